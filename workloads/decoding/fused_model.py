"""A decoding step of Llama-style models in few kernels.

A step reads every weight once, for a handful of tokens, so it takes as long as reading them does if
nothing waits in between. Here a dense block is five kernels where its modules launch thirty. A
block, or a part of one, that is not known here runs as its module is written.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from workloads.kernels.backend import implementation
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.block import Block
from workloads.layers.cache import Cache, LayerCache
from workloads.layers.context import Context, ForwardState
from workloads.layers.memory.product_key_memory import ProductKeyMemory
from workloads.layers.mixers.attention import CausalAttention, rotation_table
from workloads.layers.modules.autocast import to_autocast_dtype
from workloads.layers.modules.feed_forward import SwiGLU
from workloads.layers.modules.moe import MixtureOfExperts
from workloads.layers.modules.norms import RMSNorm

Residual = Float[Tensor, "batch d_model"]
FeedForward = Callable[[Residual, Context], Residual]
"""The residual stream after a feed-forward slot, of that before it."""

MOST_ROUTED = 8
"""Pairs of a token and an expert up to which each reads its expert by itself."""


class FusedModel:
    """Reads one token of every sequence: what `model(tokens, cache)` returns, up to rounding.

    Matrices of a SwiGLU are moved into one, of which its parameters become views. Sub-keys of a
    memory whose scores are cosines are copied, each as long as the scale of its head.
    """

    def __init__(self, model: Transformer) -> None:
        """Make a step of a model in evaluation mode, whose parameters may not be replaced after."""
        self._model = model
        ops: Any = implementation("decode_step", next(model.parameters()))
        self._ops = ops
        self._layers = [
            _Block(layer, ops) if _is_known(layer, model) else layer for layer in model.layers
        ]
        self._all_known = all(isinstance(layer, _Block) for layer in self._layers)
        self._rotation: Float[Tensor, "2 capacity half"] | None = None

    def __call__(
        self, tokens: Int[Tensor, "batch 1"], cache: Cache
    ) -> Float[Tensor, "batch 1 vocab_size"]:
        """Return the logits of each sequence's next token."""
        model = self._model
        context = self._context(tokens, cache)
        rotation = self._rotation_for(cache)
        x = to_autocast_dtype(model.embed(tokens, context.for_layer(cache.embedding)))
        for index, layer in enumerate(self._layers):
            mine = context.for_layer(cache.layer(index))
            if isinstance(layer, _Block):
                x = layer(x[:, 0], mine, cache, rotation)[:, None]
            else:
                x = layer(x, mine)
        cache.advance(1)
        if not isinstance(model.norm, RMSNorm):
            return model.logits(x)
        head = model.embedding if model.head is None else model.head
        norm = {"gain": model.norm.gain, "eps": model.norm.eps}
        logits: Tensor = self._ops.linear(x[:, 0], head.weight, **norm)
        return logits[:, None]

    def _context(self, tokens: Tensor, cache: Cache) -> Context:
        if not self._all_known:
            return self._model.context(tokens, cache)
        positions = cache.lengths[:, None]
        return Context(tokens=tokens, positions=positions, forward_state=ForwardState())

    def _rotation_for(self, cache: Cache) -> Tensor:
        """Return cosines and sines of all positions that the cache has room for."""
        if self._rotation is None or self._rotation.shape[1] < cache.capacity:
            rotary = self._model.rotary
            assert rotary is not None
            half, device = rotary.columns // 2, cache.lengths.device
            table = rotation_table(cache.capacity, rotary.columns, base=rotary.base, device=device)
            cosine, sine = table[:, :, 0]
            self._rotation = torch.stack((cosine[:, half:], sine[:, half:]))
        return self._rotation


def fused(model: nn.Module) -> Callable[[Tensor, Cache], Tensor]:
    """Return a step of the model in few kernels; the model itself where no block is known."""
    if isinstance(model, Transformer) and any(_is_known(each, model) for each in model.layers):
        return FusedModel(model)
    return model


def _is_known(layer: nn.Module, model: Transformer) -> bool:
    """Whether a block's mixer is attention with rotary positions on whole heads."""
    if type(layer) is not Block or type(layer.mixer) is not CausalAttention or layer.parallel:
        return False
    shape, half = layer.mixer.shape, layer.mixer.shape.d_head // 2
    whole = model.rotary is not None and model.rotary.columns == shape.d_head
    # A program of the kernel holds half a head, a power of two.
    fits = 8 <= half <= 128 and half & (half - 1) == 0
    norms = (layer.mixer_norm, layer.feed_forward_norm)
    return whole and fits and all(isinstance(norm, RMSNorm) for norm in norms)


class _Block:
    """One block: attention, then whatever is in its feed-forward slot."""

    def __init__(self, block: nn.Module, ops: Any) -> None:
        assert isinstance(block, Block)
        assert isinstance(block.mixer, CausalAttention)
        assert isinstance(block.mixer_norm, RMSNorm)
        assert isinstance(block.feed_forward_norm, RMSNorm)
        self._ops, self._mixer = ops, block.mixer
        self._norm = _options(block.mixer_norm)
        assert block.feed_forward is not None
        self._feed_forward = _feed_forward(block.feed_forward, block.feed_forward_norm, ops)

    def __call__(
        self, x: Residual, context: Context, cache: Cache, rotation: Float[Tensor, "2 places half"]
    ) -> Residual:
        mixer, ops, here = self._mixer, self._ops, context.cache
        assert here is not None
        joint, output = mixer.query_key_value, mixer.output
        row = ops.linear(x, joint.weight, joint.bias, **self._norm)
        keys, values = (self._room(name, here, row) for name in ("key", "value"))
        norms: dict[str, Any] = {}
        if mixer.query_norm is not None and mixer.key_norm is not None:
            norms = {
                "query_gain": mixer.query_norm.gain,
                "key_gain": mixer.key_norm.gain,
                "eps": mixer.query_norm.eps,
            }
        mixed = ops.attend(row, keys, values, cache.lengths, rotation, **norms)
        x = ops.linear(mixed, output.weight, output.bias, residual=x)
        return self._feed_forward(x, context)

    def _room(self, name: str, here: LayerCache, like: Tensor) -> Tensor:
        shape = self._mixer.shape
        return here.room(name, (len(like), shape.n_kv_heads, here.capacity, shape.d_head), like)


def _options(norm: RMSNorm) -> dict[str, Any]:
    return {"gain": norm.gain, "eps": norm.eps}


def _feed_forward(module: nn.Module, norm: RMSNorm, ops: Any) -> FeedForward:
    """Return the fused form of a module, or the module behind its norm."""

    def as_written(x: Residual, context: Context) -> Residual:
        result: Tensor = module(norm(x)[:, None], context)[:, 0]
        return x + result.to(x.dtype)

    if type(module) is SwiGLU:
        dense = _swiglu(module, norm, ops)
        return lambda x, context: dense(x, x)
    if isinstance(module, ProductKeyMemory) and _reads_plainly(module):
        return _memory(module, norm, ops)
    if isinstance(module, MixtureOfExperts):
        few = _experts(module, norm, ops)
        most = MOST_ROUTED // module.shape.top_k
        return lambda x, context: (few if len(x) <= most else as_written)(x, context)
    return as_written


def _swiglu(module: SwiGLU, norm: RMSNorm, ops: Any) -> Callable[[Residual, Residual], Residual]:
    """Return a function of the block's input and what its output is added to."""
    d_ff = len(module.gate.weight)
    gate_up = torch.cat((module.gate.weight.detach(), module.up.weight.detach()))
    module.gate.weight.data, module.up.weight.data = gate_up[:d_ff], gate_up[d_ff:]

    def run(x: Residual, to: Residual) -> Residual:
        hidden = ops.swiglu(x, gate_up, **_options(norm))
        result: Tensor = ops.linear(hidden, module.down.weight, residual=to)
        return result

    return run


def _reads_plainly(module: ProductKeyMemory) -> bool:
    """Whether queries, keys and bag are used as kernels know it, and the table is read in place."""
    lookup, table = module.lookup, module.table.module
    plain = not (lookup.query_batch_norm or lookup.shared_keys)
    plain = plain and lookup.score == "softmax" and module.shape.gate != "scalar"
    return plain and table.shard is None and not table.on_host


def _memory(module: ProductKeyMemory, norm: RMSNorm, ops: Any) -> FeedForward:
    query, gate, output = module.query, module.gate, module.output
    sub_keys, cosines = module.sub_keys.detach(), module.score_scale is not None
    if module.score_scale is not None:  # as `ProductKeyLookup.select` has it, once for all steps
        wide = torch.promote_types(sub_keys.dtype, torch.float32)
        scaled = functional.normalize(sub_keys.to(wide), dim=-1) * module.score_scale[:, None, None]
        sub_keys = scaled.detach().to(sub_keys.dtype)

    def run(x: Residual, context: Context) -> Residual:
        asked = ops.linear(x, query.weight, query.bias, **_options(norm))
        ids, weights = ops.choose(asked, sub_keys, module.lookup.knn, normalise=cosines)
        read: Tensor = weighted_bag(module.table.module.weight, ids, weights)
        if gate is not None:
            read = ops.gated(x, gate.weight, gate.bias, read, **_options(norm))
        if output is None:
            return x + read.to(x.dtype)
        result: Tensor = ops.linear(read, output.weight, output.bias, residual=x)
        return result

    return run


def _experts(module: MixtureOfExperts, norm: RMSNorm, ops: Any) -> FeedForward:
    shape, each = module.shape, module.experts
    bias = None if module.selection_bias is None else module.selection_bias.bias
    shared = None if module.shared is None else _swiglu(module.shared, norm, ops)

    def run(x: Residual, context: Context) -> Residual:
        chosen, weights = ops.route(
            x,
            module.router.weight,
            shape.top_k,
            bias=bias,
            renormalise=shape.renormalise,
            **_options(norm),
        )
        matrices = (each.gate, each.up, each.down)
        y: Tensor = ops.experts(x, *matrices, chosen, weights, **_options(norm))
        return y if shared is None else shared(x, y)

    return run
