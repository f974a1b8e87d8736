"""The frame that architectures fill: embedding, blocks, final norm, head; and what can be counted of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting import FlopCount, ParamCount, Precision
from workloads.layers.attention import AttentionShape, CausalAttention, rotation_table
from workloads.layers.block import Block
from workloads.layers.feed_forward import SwiGLU
from workloads.layers.linear import Embedding, Linear
from workloads.layers.rms_norm import RMSNorm


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """Sizes of the frame and its usual blocks. The checks speak of the fields by their names in YAML."""

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_ff: int
    qk_norm: bool
    norm_eps: float
    rope_base: float
    tied_embeddings: bool

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.d_model % (2 * self.n_heads):
            raise ValueError(
                f"n_heads must divide d_model ({self.d_model}) into heads of even width, got {self.n_heads}"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_kv_heads must divide n_heads ({self.n_heads}), got {self.n_kv_heads}"
            )
        for name in ("norm_eps", "rope_base"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    @property
    def attention(self) -> AttentionShape:
        """Sizes of one attention block."""
        return AttentionShape(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            qk_norm=self.qk_norm,
        )

    @property
    def swiglu_params(self) -> int:
        """Weights of one feed-forward block."""
        return 3 * self.d_model * self.d_ff

    def param_count(self, vocab_size: int, *, n_feed_forward: int) -> ParamCount:
        """Count the frame and its attention, with SwiGLU in `n_feed_forward` of the layers."""
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
        return ParamCount(
            embedding=vocab_size * self.d_model,
            attention=self.n_layers * self.attention.params,
            feed_forward=n_feed_forward * self.swiglu_params,
            norm=(2 * self.n_layers + 1) * self.d_model
            + self.n_layers * self.attention.norm_params,
            head=0 if self.tied_embeddings else vocab_size * self.d_model,
        )

    def flops_per_token(self, vocab_size: int, seq_len: int, *, n_feed_forward: int) -> FlopCount:
        """Count forward FLOPs of what `param_count` counts; norms, activations and look-ups are left out."""
        if seq_len < 1:
            raise ValueError(f"seq_len must be at least 1, got {seq_len}")
        return FlopCount(
            attention=self.n_layers * self.attention.flops_per_token(seq_len),
            feed_forward=2.0 * n_feed_forward * self.swiglu_params,
            head=2.0 * vocab_size * self.d_model,
        )

    def bytes_per_token(
        self, vocab_size: int, *, n_feed_forward: int, batch_tokens: int, element_bytes: int
    ) -> dict[str, float]:
        """Return bytes read per token and group: matrices once per batch, one embedding row per token.

        A tied table is read whole for the logits; that reading stands under `head` too.
        """
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
        count = self.param_count(vocab_size, n_feed_forward=n_feed_forward)
        per_batch = {
            name: element_bytes * number / batch_tokens for name, number in count.as_dict().items()
        }
        rows = {
            "embedding": float(element_bytes * self.d_model),
            "head": element_bytes * vocab_size * self.d_model / batch_tokens,
        }
        return {**per_batch, **rows}

    def activation_bytes_per_token(
        self, vocab_size: int, *, n_feed_forward: int, precision: Precision
    ) -> float:
        """Return what a forward pass keeps for the backward pass, with SwiGLU in `n_feed_forward` of the layers.

        By operation, as plain torch saves it. Products keep c bytes a number, 4 or with bf16 2; norms and the
        residual stream 4. d_kv is n_kv_heads * d_head.

            norm         8 d + 4                   its input and that normalised; inverse root mean square
            attention    c (4 d + 3 d_kv)          input; turned query and key; query, key and value; mixture
                         + 4 n_heads               log-sum-exp of the scores; the fused kernel keeps no square
            qk_norm      4 (d + d_kv)              normalised query and key; with bf16, fp32 copies of both as well
                         + 4 (n_heads + n_kv_heads)
            feed-forward c (d + 4 d_ff)            input; gate, silu(gate), up and their product; with bf16 the
                                                   input twice, as each of its two readers casts it for itself
            head         c d + (c + 4) vocab_size  input; logits, probabilities
        """
        c, casts = (4, 0) if precision == "fp32" else (2, 1)
        d, d_kv = self.d_model, self.n_kv_heads * self.attention.d_head
        norm = 8 * d + 4
        attention = c * (4 * d + 3 * d_kv) + 4 * self.n_heads
        if self.qk_norm:
            attention += 4 * (1 + casts) * (d + d_kv) + 4 * (self.n_heads + self.n_kv_heads)
        feed_forward = c * ((1 + casts) * d + 4 * self.d_ff)
        head = c * d + (c + 4) * vocab_size
        per_layer = 2 * norm + attention
        return float(self.n_layers * per_layer + n_feed_forward * feed_forward + norm + head)

    def param_group(self, parameter_name: str) -> str:
        """Return the group of a parameter of the frame or of a usual block.

        Raises:
            ValueError: If there is no such parameter.
        """
        parts = parameter_name.split(".")
        for part, group in _GROUPS.items():
            if part in parts:
                return group
        raise ValueError(f"no group is known for parameter {parameter_name!r}")

    def block(self, feed_forward: nn.Module | None = None) -> Block:
        """Return a block of this shape with `feed_forward`, a SwiGLU if None, in its second slot."""
        return Block(
            d_model=self.d_model,
            norm_eps=self.norm_eps,
            mixer=CausalAttention(self.attention, norm_eps=self.norm_eps),
            feed_forward=SwiGLU(self.d_model, self.d_ff) if feed_forward is None else feed_forward,
        )


_GROUPS = {
    # Norms first: those of queries and keys lie inside the mixer.
    "norm": "norm",
    "mixer_norm": "norm",
    "feed_forward_norm": "norm",
    "query_norm": "norm",
    "key_norm": "norm",
    "mixer": "attention",
    "feed_forward": "feed_forward",
    "embedding": "embedding",
    "head": "head",
}


class Transformer(nn.Module):
    """Token ids to logits through blocks of (x, rotation)."""

    def __init__(
        self, shape: TransformerShape, *, vocab_size: int, layers: Iterable[Block]
    ) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = Embedding(vocab_size, shape.d_model)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(shape.d_model, eps=shape.norm_eps)
        self.head = None if shape.tied_embeddings else Linear(shape.d_model, vocab_size)

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocab_size"]:
        """Return next-token logits."""
        x, rotation = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.logits(x)

    def embed(
        self, tokens: Int[Tensor, "batch seq"]
    ) -> tuple[Float[Tensor, "batch seq d_model"], Float[Tensor, "2 seq 1 d_head"]]:
        """Return the first residual stream and the rotation that every block needs."""
        rotation = rotation_table(
            tokens.shape[1],
            self.shape.attention.d_head,
            base=self.shape.rope_base,
            device=tokens.device,
        )
        return self.embedding(tokens), rotation

    def logits(
        self, x: Float[Tensor, "batch seq d_model"]
    ) -> Float[Tensor, "batch seq vocab_size"]:
        """Return next-token logits of the last residual stream."""
        x = self.norm(x)
        return functional.linear(x, self.embedding.weight) if self.head is None else self.head(x)
