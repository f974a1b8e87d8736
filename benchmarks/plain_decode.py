"""One decoding step in plain torch, replayed as one CUDA graph: the peer of our decoder.

Nothing of memscale is used. Weights and caches are bf16, attention is torch's fused one over a
cache that is full but for the token read, attention and dense feed-forward blocks are compiled,
mixtures take torch's grouped products, memories `topk` and `embedding_bag`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model, of its memories or experts, and of its context."""

    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    vocab_size: int
    context: int
    n_experts: int
    n_keys: int
    key_dim: int
    n_memory_heads: int
    knn: int
    memory_layers: tuple[int, ...]


class PlainDecoder:
    """Weights of one kind of model (dense, moe or memory_plus)."""

    def __init__(self, kind: str, shape: Shape, device: str) -> None:
        self.kind, self.shape, self.device = kind, shape, device
        d, m = shape.d_model, shape.d_ff
        self.embedding, self.head = (
            self._weight(shape.vocab_size, d),
            self._weight(d, shape.vocab_size),
        )
        self.table = self._weight(shape.n_keys**2, d) if kind == "memory_plus" else None
        self.layers: list[dict[str, Tensor]] = []
        for index in range(shape.n_layers):
            layer = {"qkv": self._weight(d, 3 * d), "out": self._weight(d, d)}
            if kind == "moe":
                e = shape.n_experts
                layer |= {
                    "router": self._weight(d, e),
                    "up": self._weight(e, d, 2 * m),
                    "down": self._weight(e, m, d),
                }
            elif kind == "memory_plus" and index in shape.memory_layers:
                heads, half = shape.n_memory_heads, shape.key_dim // 2
                layer |= {
                    "query": self._weight(d, heads * shape.key_dim),
                    "keys": self._weight(heads, 2, shape.n_keys, half),
                    "gate": self._weight(d, d),
                    "down": self._weight(d, d),
                }
            else:
                layer |= {"up": self._weight(d, 2 * m), "down": self._weight(m, d)}
            self.layers.append(layer)

    def step(self, batch: int) -> Callable[[], Tensor]:
        """Return a step for as many sequences, with caches of its own, that returns the logits."""
        shape = self.shape
        head = shape.d_model // shape.n_heads
        caches = [
            [self._weight(batch, shape.n_heads, shape.context, head) for _ in range(2)]
            for _ in self.layers
        ]
        tokens = torch.randint(shape.vocab_size, (batch,), device=self.device)
        angle = torch.rand(head // 2, device=self.device) * math.pi
        turn = (angle.cos(), angle.sin())
        attend, dense = (_compiled(each, self.device) for each in (attention, feed_forward))

        def step() -> Tensor:
            x = self.embedding[tokens]
            for layer, (keys, values) in zip(self.layers, caches, strict=True):
                x = attend(x, layer["qkv"], layer["out"], keys, values, *turn)
                if "router" in layer:
                    x = mixture(x, layer["router"], layer["up"], layer["down"])
                elif "query" in layer:
                    assert self.table is not None
                    x = memory(
                        x,
                        layer["query"],
                        layer["keys"],
                        self.table,
                        layer["gate"],
                        layer["down"],
                        shape.knn,
                    )
                else:
                    x = dense(x, layer["up"], layer["down"])
            return _norm(x) @ self.head

        return step

    def _weight(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=torch.bfloat16) * shape[-1] ** -0.5


_compilations: dict[Any, Any] = {}


def _compiled(function: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    """All kinds of model share what is compiled, one graph per batch size."""
    if device == "cpu":
        return function
    if function not in _compilations:
        _compilations[function] = torch.compile(function, dynamic=False)
    return _compilations[function]


def _norm(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], eps=1e-5)


def attention(
    x: Tensor, qkv: Tensor, out: Tensor, keys: Tensor, values: Tensor, cosine: Tensor, sine: Tensor
) -> Tensor:
    batch, n_heads = keys.shape[:2]
    query, key, value = (_norm(x) @ qkv).view(batch, 3, n_heads, -1).unbind(1)

    def turned(y: Tensor) -> Tensor:
        left, right = y.float().chunk(2, dim=-1)
        whole = torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
        return whole.to(y.dtype)

    keys[:, :, -1] = turned(key)
    values[:, :, -1] = value
    mixed = functional.scaled_dot_product_attention(turned(query)[:, :, None], keys, values)
    return x + mixed.reshape(batch, -1) @ out


def feed_forward(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gate, value = (_norm(x) @ up).chunk(2, dim=-1)
    return x + (functional.silu(gate) * value) @ down


def mixture(x: Tensor, router: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The best expert of each token, by grouped products over tokens sorted by expert."""
    n_experts, normed = router.shape[1], _norm(x)
    weight, expert = (normed @ router).float().softmax(-1).max(-1)
    order = expert.argsort()
    if x.is_cuda:
        ends = torch.histc(expert.float(), bins=n_experts, min=0, max=n_experts - 1).cumsum(0).int()
        gate, value = torch._grouped_mm(normed[order], up, offs=ends).chunk(2, dim=-1)
        found = torch._grouped_mm(functional.silu(gate) * value, down, offs=ends)
    else:
        gate, value = torch.einsum("td,tdf->tf", normed[order], up[expert[order]]).chunk(2, dim=-1)
        found = torch.einsum("tf,tfd->td", functional.silu(gate) * value, down[expert[order]])
    return x.index_add(0, order, found * weight[order, None].to(x.dtype))


def memory(
    x: Tensor, query: Tensor, keys: Tensor, table: Tensor, gate: Tensor, down: Tensor, knn: int
) -> Tensor:
    """The best rows of every head by product keys, summed, gated and projected."""
    batch, normed, n_keys = len(x), _norm(x), keys.shape[2]
    halves = (normed @ query).view(batch, keys.shape[0], 2, -1)
    best, ids = torch.einsum("bhsd,hsnd->bhsn", halves, keys).topk(knn, dim=-1)
    pairs = best[:, :, 0, :, None] + best[:, :, 1, None, :]
    score, place = pairs.flatten(2).topk(knn, dim=-1)
    rows = (ids[:, :, 0, :, None] * n_keys + ids[:, :, 1, None, :]).flatten(2).gather(-1, place)
    weight = score.float().softmax(-1).to(x.dtype)
    read = functional.embedding_bag(
        rows.view(batch, -1), table, per_sample_weights=weight.view(batch, -1), mode="sum"
    )
    return x + (read * functional.silu(normed @ gate)) @ down
