"""Performer: linear attention by random features, on a GPT-NeoX backbone.

Source: Choromanski et al. 2021, "Rethinking Attention with Performers" (arXiv 2009.14794), FAVOR+
with positive orthogonal features. With y = x / d_head^(1/4) and fixed random w_1 … w_m, a query and
a key have the features `exp(w_r . y - |y|^2 / 2) + eps`; the expected product of two features is
`exp(q . k / sqrt(d_head))`.

What keeps the exponents in range must not look at later tokens, or decoding would differ from a
full pass:

* Queries: the largest exponent of a token's features is subtracted, which cancels in the quotient;
  so does |y|^2 / 2, which is left out, so that a long query is not drowned by eps. As in the source
  but for that.
* Keys: the source subtracts the largest exponent over all positions, later ones included. By
  default nothing is subtracted here: `w . y - |y|^2 / 2` is at most `|w|^2 / 2`, about d_head / 2,
  whatever the key, so features do not overflow. They do vanish where keys are long, and then eps
  takes their place. `key_stabiliser: running_max` subtracts the largest exponent up to each
  position (`mixers/stabilised_attention.py`), which needs no eps; `qk_norm` gives all keys about
  one length instead.

Further departures: features are drawn once per layer, from the seed, and never again; the released
codes draw anew during training. The factor 1 / sqrt(m) cancels and is left out. Their eps is 1e-6
or 1e-4; here 1e-6, which learned better. With entries of size 1 in queries and keys, m features are
far from enough to approximate softmax: see Performer as attention with a kernel of its own.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workloads.accounting.counts import Precision
from workloads.field_error import FieldError, PositiveInt
from workloads.kernels.random_feature_attention.op import is_fused, random_feature_sums
from workloads.layers.backbone.neox import NEOX_BACKBONES, NeoXBackbone
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.mixers.attention import MultiHead
from workloads.layers.mixers.linear_attention import (
    LinearAttentionShape,
    normalised,
    normalised_mix,
)
from workloads.layers.mixers.stabilised_attention import stabilised_mix


@dataclass(frozen=True, kw_only=True)
class PerformerShape(LinearAttentionShape):
    """Sizes of one mixer."""

    stabilised: bool = False
    """Whether keys are kept below their running maximum, by sums in fp32."""

    def mixing_activation_bytes(self, seq_len: int, precision: Precision) -> float:
        """Return what mixing keeps; stabilised, also features and scores before their factors."""
        if not self.stabilised:
            return super().mixing_activation_bytes(seq_len, precision)
        n_chunks = -(-seq_len // self.chunk)
        length, columns, width = seq_len / n_chunks, self.d_head + 1, self.n_features
        per_head = 3 * width + 3 * length + 3 * columns + 2 * self.d_head
        per_head += (2 if n_chunks > 1 else 1) * width * columns / length
        return 4.0 * self.n_heads * per_head + self.map_bytes(precision)

    def mixing_flops(self, seq_len: int) -> float:
        """Return FLOPs of mixing positions, random projections of query and key included."""
        return super().mixing_flops(seq_len) + 4.0 * self.n_heads * self.d_head * self.n_features

    def map_bytes(self, precision: Precision) -> float:
        """Return bytes kept for the backward pass: the key and a part of the inputs.

        In fp32 with norms: the normalised query and key, and the value.
        """
        if self.qk_norm:
            return (16.0 if precision == "fp32" else 4.0) * self.d_model
        return (4.0 if precision == "fp32" else 2.0) * self.d_model


@dataclass(frozen=True, kw_only=True)
class Config(NeoXBackbone):
    """GPT-NeoX transformer with Performer's linear attention."""

    n_features: PositiveInt | None = None
    """Random features of a head; None is d_head ln d_head rounded down, but from d_head to 256."""
    feature_eps: float = 1.0e-6
    """Added to every feature, so that no weight is zero."""
    equal_lengths: bool = False
    """Give all random vectors the length sqrt(d_head) instead of those of Gaussian ones."""
    qk_norm: bool = False
    """Normalise queries and keys per head, so that all keys count about equally."""
    key_stabiliser: Literal["running_max"] | None = None
    """running_max: keep features of long keys in range by the largest exponent so far. Write
    feature_eps: 0 beside it, for eps counts beside the largest feature there."""
    chunk_tokens: PositiveInt = 64
    """Tokens mixed at once by their products; changes speed and counted FLOPs, not the result."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.feature_eps < math.inf:
            rule = "must be at least 0 and finite"
            raise FieldError("feature_eps", rule, self.feature_eps, "the nearest is 0")

    @property
    def feature_count(self) -> int:
        """Random features of a head, with absent fields filled in."""
        d_head = self.d_model // self.n_heads
        usual = min(256, max(d_head, int(d_head * math.log(d_head))))
        return usual if self.n_features is None else self.n_features

    @property
    def attention(self) -> PerformerShape:
        """Sizes of one mixer."""
        return PerformerShape(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_heads,
            bias=True,
            qk_norm=self.qk_norm,
            rotary_columns=self.rotary_columns,
            n_features=self.feature_count,
            chunk=self.chunk_tokens,
            stabilised=self.key_stabiliser is not None,
        )

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        mixers = (
            self.mixer(
                PerformerAttention,
                eps=self.feature_eps,
                equal_lengths=self.equal_lengths,
                stabilised=self.key_stabiliser is not None,
            )
            for _ in range(self.n_layers)
        )
        return self.transformer(vocab_size, (self.block(mixer) for mixer in mixers))


class PerformerAttention(MultiHead):
    """Linear attention by positive random features, which all heads of a layer share."""

    shape: PerformerShape
    random_vectors: Tensor

    def __init__(
        self,
        shape: PerformerShape,
        *,
        eps: float,
        equal_lengths: bool,
        stabilised: bool = False,
        **initial: Any,
    ) -> None:
        super().__init__(shape, **initial)
        self.eps, self.equal_lengths, self.stabilised = eps, equal_lengths, stabilised
        self.register_buffer("random_vectors", torch.empty(shape.n_features, shape.d_head))

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the random vectors."""
        n, width = value.shape
        vectors = orthogonal_vectors(n, width, generator, equal_lengths=self.equal_lengths)
        value.copy_(vectors)

    def mix(
        self,
        query: Float[Tensor, "batch heads seq d_head"],
        key: Float[Tensor, "batch heads seq d_head"],
        value: Float[Tensor, "batch heads seq d_head"],
        context: Context,
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Return the mixture by products of features."""
        if self.stabilised:
            return self._stabilised_mix(query, key, value, context)
        # As autocast rounds the weights of products; fp32 in fp32.
        vectors = self.random_vectors.to(value.dtype)
        if context.cache is None and is_fused(query, key, value, vectors):
            sums = random_feature_sums(query, key, value, vectors, eps=self.eps)
            return normalised(*sums)
        query, key = (
            self._features(query, vectors, value.dtype, is_key=False),
            self._features(key, vectors, value.dtype, is_key=True),
        )
        return normalised_mix(query, key, value, chunk=self.shape.chunk, context=context)

    def _stabilised_mix(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Return the mixture with keys below the largest exponent up to each of them."""
        before = None if context.cache is None else context.cache.state("level")
        wide, scale = self.random_vectors.dtype, key.shape[-1] ** -0.25
        with torch.autocast(key.device.type, enabled=False):
            y = key.to(wide) * scale
            exponent = functional.linear(y, self.random_vectors)
            exponent = exponent - y.square().sum(dim=-1, keepdim=True) / 2
            level = exponent.detach().amax(dim=-1).cummax(dim=-1).values
            if before is not None:
                level = torch.maximum(level, before[..., None])
            keys = (exponent - level[..., None]).exp() + self.eps
        queries = self._features(query, self.random_vectors, wide, is_key=False)
        return stabilised_mix(queries, keys, value, level, chunk=self.shape.chunk, context=context)

    def _features(
        self,
        x: Float[Tensor, "batch heads seq d_head"],
        vectors: Float[Tensor, "features d_head"],
        dtype: torch.dtype,
        *,
        is_key: bool,
    ) -> Float[Tensor, "batch heads seq features"]:
        features: Tensor = _PositiveFeatures.apply(  # type: ignore[no-untyped-call]
            x.contiguous(), vectors, self.eps, is_key, dtype
        )
        return features


class _PositiveFeatures(torch.autograd.Function):
    """Random features `exp(w . y - largest) + eps` for y = x / d_head^(1/4).

    An autograd function of its own: plain autograd would keep several copies.

    Exponents are fp32 at least, features of the type asked for. The slope of a key's feature is
    `exp(w . y - |y|^2 / 2) (w - y)`, of a query's `exp(w . y - largest) w`: what is subtracted
    there cancels but for eps, so no gradient passes through it, as in the released code.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, vectors: Tensor, eps: float, is_key: bool, dtype: torch.dtype
    ) -> Tensor:
        scale = x.shape[-1] ** -0.25
        with torch.autocast(x.device.type, enabled=False):
            vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
            wide = x.to(vectors.dtype)
            exponent = functional.linear(wide, vectors * scale)
            if is_key:
                largest = wide.square().sum(dim=-1, keepdim=True) * (scale**2 / 2)
            else:
                largest = exponent.amax(dim=-1, keepdim=True)
            features = exponent.sub_(largest).exp_().add_(eps).to(dtype)
        ctx.save_for_backward(features, vectors, *((x,) if is_key else ()))
        ctx.eps, ctx.scale, ctx.dtype = eps, scale, x.dtype
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        features, vectors, *key = ctx.saved_tensors
        slope = (features - ctx.eps).mul_(gradient)
        with torch.autocast(features.device.type, enabled=False):
            result = (slope @ (vectors * ctx.scale).to(slope.dtype)).to(ctx.dtype)
        if key:
            total = slope.sum(dim=-1, keepdim=True, dtype=ctx.dtype)
            result.addcmul_(total, key[0], value=-(ctx.scale**2))
        return result, None, None, None, None


def orthogonal_vectors(
    n: int, width: int, generator: torch.Generator, *, equal_lengths: bool
) -> Float[Tensor, "features d_head"]:
    """Return random vectors, orthogonal within each block of d_head.

    Each alone is Gaussian unless lengths are equal.

    Worked out in float64, so that the rounding of different linear algebra libraries stays out of
    the result.
    """
    gaussian = torch.randn(-(-n // width), width, width, generator=generator, dtype=torch.float64)
    basis, upper = torch.linalg.qr(gaussian)
    # Without the signs, the first columns of a basis would prefer one side.
    basis = basis * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    directions = basis.mT.reshape(-1, width)[:n]
    lengths = torch.full((n, 1), width**0.5, dtype=torch.float64)
    if not equal_lengths:
        others = torch.randn(n, width, generator=generator, dtype=torch.float64)
        lengths = torch.linalg.vector_norm(others, dim=-1, keepdim=True)
    vectors: Tensor = directions * lengths
    return vectors


PRESETS: dict[str, dict[str, Any]] = NEOX_BACKBONES
