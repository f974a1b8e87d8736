"""Mixture of experts for few tokens in Triton: only chosen experts are read.

Four kernels: the router's choice, hidden numbers, parts of the outputs, and their sum. Nothing is
sorted by expert; two tokens of one expert read it twice, the second time mostly from the L2 cache.
"""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

COLS = 32
"""Outputs of a program: 64 bytes of each row of a matrix."""
DEPTH = 128
"""Rows of a matrix read at a time."""
PARTS = 8
"""Programs that share the sums of an output, so that all multiprocessors have some."""
WARPS = 4


def route(
    x: Float[Tensor, "tokens width"],
    router: Float[Tensor, "experts width"],
    top_k: int,
    *,
    gain: Float[Tensor, " width"],
    eps: float,
    bias: Float[Tensor, " experts"] | None = None,
    renormalise: bool = False,
) -> tuple[Int[Tensor, "tokens top_k"], Float[Tensor, "tokens top_k"]]:
    """Return `reference.route`; ids are int32."""
    (tokens, width), n_experts = x.shape, len(router)
    chosen = torch.empty(tokens, top_k, dtype=torch.int32, device=x.device)
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=x.device)
    experts = triton.next_power_of_2(n_experts)
    _route[(tokens,)](
        x, gain, router, bias, chosen, weights, width, n_experts, top_k, eps,
        EXPERTS=experts, CHOICES=triton.next_power_of_2(top_k),
        DEPTH=max(64, min(2048, 8192 // experts)),
        BIAS=bias is not None, RENORMALISE=renormalise, num_warps=8,
    )  # fmt: skip
    return chosen, weights


def experts(
    x: Float[Tensor, "tokens width"],
    gate: Float[Tensor, "experts width d_expert"],
    up: Float[Tensor, "experts width d_expert"],
    down: Float[Tensor, "experts d_expert width"],
    chosen: Int[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    *,
    gain: Float[Tensor, " width"],
    eps: float,
) -> Float[Tensor, "tokens width"]:
    """Return `reference.experts`."""
    (tokens, width), d_expert, top_k = x.shape, gate.shape[2], chosen.shape[1]
    hidden = gate.new_empty(tokens, top_k, d_expert)
    _hidden[(tokens * top_k, triton.cdiv(d_expert, COLS))](
        x, gain, gate, up, chosen, weights, hidden, width, d_expert, top_k, eps,
        COLS=COLS, DEPTH=DEPTH, num_warps=WARPS,
    )  # fmt: skip
    part = triton.cdiv(triton.cdiv(d_expert, PARTS), DEPTH) * DEPTH
    n_parts = triton.cdiv(d_expert, part)
    sums = torch.empty(n_parts, tokens, width, dtype=torch.float32, device=x.device)
    _outputs[(tokens, n_parts, triton.cdiv(width, COLS))](
        hidden, down, chosen, sums, tokens, d_expert, width, part,
        TOP_K=top_k, COLS=COLS, DEPTH=DEPTH, num_warps=WARPS,
    )  # fmt: skip
    out = torch.empty_like(x)
    _add_parts[(triton.cdiv(tokens * width, 256),)](
        x, sums, out, tokens * width, PARTS=n_parts, COLS=256, num_warps=2
    )
    return out


@triton.jit
def _route(
    x, gain, router, bias, chosen, weights, width, n_experts, top_k, eps,
    EXPERTS: tl.constexpr, CHOICES: tl.constexpr, DEPTH: tl.constexpr, BIAS: tl.constexpr,
    RENORMALISE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    there = expert < n_experts
    sums = tl.zeros([EXPERTS, DEPTH], tl.float32)
    squares = tl.zeros([DEPTH], tl.float32)
    for start in range(0, width, DEPTH):
        column = start + tl.arange(0, DEPTH)
        live = column < width
        value = tl.load(x + token * width + column, mask=live, other=0.0).to(tl.float32)
        squares += value * value
        value *= tl.load(gain + column, mask=live, other=0.0).to(tl.float32)
        at = router + expert[:, None] * width + column[None, :]
        w = tl.load(at, mask=there[:, None] & live[None, :], other=0.0).to(tl.float32)
        sums += w * value[None, :]
    logits = tl.sum(sums, 1) / tl.sqrt(tl.sum(squares, 0) / width + eps)
    logits = tl.where(there, logits, -float("inf"))
    probability = tl.exp(logits - tl.max(logits, 0))
    probability = probability / tl.sum(probability, 0)
    score = probability
    if BIAS:
        score += tl.load(bias + expert, mask=there, other=0.0).to(tl.float32)
    score = tl.where(there, score, -float("inf"))
    choice = tl.arange(0, CHOICES)
    ids = tl.zeros([CHOICES], tl.int32)
    found = tl.zeros([CHOICES], tl.float32)
    for place in range(top_k):
        best = tl.min(tl.where(score == tl.max(score, 0), expert, EXPERTS), 0)
        ids = tl.where(choice == place, best, ids)
        mine = tl.sum(tl.where(expert == best, probability, 0.0), 0)
        found = tl.where(choice == place, mine, found)
        score = tl.where(expert == best, -float("inf"), score)
    if RENORMALISE:
        found = found / tl.sum(found, 0)
    tl.store(chosen + token * top_k + choice, ids, mask=choice < top_k)
    tl.store(weights + token * top_k + choice, found, mask=choice < top_k)


@triton.jit
def _hidden(
    x, gain, gate, up, chosen, weights, hidden, width, d_expert, top_k, eps,
    COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """`silu(gate n) * up n` times the router's weight, of one token and one of its experts."""
    pair = tl.program_id(0)
    token = (pair // top_k).to(tl.int64)
    expert = tl.load(chosen + pair).to(tl.int64)
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = column < d_expert
    gates = tl.zeros([DEPTH, COLS], tl.float32)
    ups = tl.zeros([DEPTH, COLS], tl.float32)
    squares = tl.zeros([DEPTH], tl.float32)
    first = expert * width * d_expert
    for start in range(0, width, DEPTH):
        row = start + tl.arange(0, DEPTH)
        live = row < width
        at = first + row[:, None] * d_expert + column[None, :]
        mask = live[:, None] & inside[None, :]
        g = tl.load(gate + at, mask=mask, other=0.0).to(tl.float32)
        u = tl.load(up + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + token * width + row, mask=live, other=0.0).to(tl.float32)
        squares += value * value
        value *= tl.load(gain + row, mask=live, other=0.0).to(tl.float32)
        gates += g * value[:, None]
        ups += u * value[:, None]
    scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / width + eps)
    y = tl.sum(gates, 0) * scale
    y = y / (1.0 + tl.exp(-y)) * tl.sum(ups, 0) * scale * tl.load(weights + pair)
    to = hidden + pair.to(tl.int64) * d_expert + column
    tl.store(to, y.to(hidden.dtype.element_ty), mask=inside)


@triton.jit
def _outputs(
    hidden, down, chosen, sums, tokens, d_expert, width, part,
    TOP_K: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A part of the terms of a token's outputs, of all its experts."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(2) * COLS + tl.arange(0, COLS)
    inside = column < width
    begin = tl.program_id(1) * part
    end = tl.minimum(begin + part, d_expert)
    total = tl.zeros([DEPTH, COLS], tl.float32)
    for choice in range(TOP_K):
        expert = tl.load(chosen + token * TOP_K + choice).to(tl.int64)
        for start in range(begin, end, DEPTH):
            row = start + tl.arange(0, DEPTH)
            live = row < end
            at = (expert * d_expert + row)[:, None] * width + column[None, :]
            w = tl.load(down + at, mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
            value = hidden + (token * TOP_K + choice) * d_expert + row
            total += w * tl.load(value, mask=live, other=0.0).to(tl.float32)[:, None]
    to = sums + (tl.program_id(1) * tokens + token) * width + column
    tl.store(to, tl.sum(total, 0), mask=inside)


@triton.jit
def _add_parts(x, sums, out, numbers, PARTS: tl.constexpr, COLS: tl.constexpr):
    at = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = at < numbers
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(sums + part * numbers + at, mask=inside, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)
