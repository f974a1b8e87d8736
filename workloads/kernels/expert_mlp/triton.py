"""Routed SwiGLU experts in Triton: products read tokens where they lie.

Seven kernels each step: gated hidden numbers, outputs and their sums over a token's experts
forwards; gradients of hidden numbers, inputs, their sums, and of both pairs of weights backwards.
Every expert's rows are cut into tiles of their own. Their list (`tile_list`) is made on the GPU,
and its length does not depend on the loads, so a step can be captured as a CUDA graph.
"""

from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl


@dataclass(frozen=True, kw_only=True)
class MatmulTile:
    """What one program computes, and with what."""

    rows: int
    cols: int
    depth: int
    """Terms of a sum per step."""
    warps: int
    stages: int
    """Steps whose operands are on their way at once."""

    def options(self) -> dict[str, int]:
        """Return the kernel's constants."""
        return {
            "ROWS": self.rows,
            "COLS": self.cols,
            "DEPTH": self.depth,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


ROWS = 128
"""Of a tile of the products by rows, which share one list of tiles."""

# The fastest of six settings each on an H100 (`benchmarks/experts.py --tiles`).
HIDDEN = MatmulTile(rows=ROWS, cols=128, depth=64, warps=8, stages=3)
OUTPUT = MatmulTile(rows=ROWS, cols=256, depth=64, warps=8, stages=4)
HIDDEN_GRADIENT = MatmulTile(rows=ROWS, cols=128, depth=64, warps=8, stages=4)
INPUT_GRADIENT = MatmulTile(rows=ROWS, cols=256, depth=32, warps=8, stages=3)
PAIR_GRADIENT = MatmulTile(rows=128, cols=64, depth=64, warps=4, stages=3)
DOWN_GRADIENT = MatmulTile(rows=128, cols=128, depth=64, warps=8, stages=6)


def forward(
    x: Float[Tensor, "tokens d_model"],
    gate: Float[Tensor, "experts d_model d_expert"],
    up: Float[Tensor, "experts d_model d_expert"],
    down: Float[Tensor, "experts d_expert d_model"],
    weights: Float[Tensor, " rows"],
    token_of_row: Int[Tensor, " rows"],
    rows_by_token: Int[Tensor, " rows"],
    starts: Int[Tensor, " tokens"],
    ends: Int[Tensor, " experts"],
) -> tuple[
    Float[Tensor, "tokens d_model"],
    Float[Tensor, "rows d_expert"],
    Float[Tensor, "rows d_expert"],
]:
    """Return every token's weighted sum of its experts' outputs, and both products with x."""
    x, gate, up, down = (each.contiguous() for each in (x, gate, up, down))
    n_rows, d_model, d_expert = len(token_of_row), *gate.shape[1:]
    gated, upped, hidden = (x.new_empty(n_rows, d_expert) for _ in range(3))
    output = x.new_empty(n_rows, d_model)
    if n_rows:
        tiles = tile_list(ends, n_rows)
        _hidden[(triton.cdiv(d_expert, HIDDEN.cols), tiles.shape[1])](
            x, gate, up, weights, token_of_row, tiles, ends, gated, upped, hidden,
            tiles.shape[1], d_model, d_expert, **HIDDEN.options(),
        )  # fmt: skip
        _output[(triton.cdiv(d_model, OUTPUT.cols), tiles.shape[1])](
            hidden, down, tiles, ends, output, tiles.shape[1], d_expert, d_model,
            **OUTPUT.options(),
        )  # fmt: skip
    return sum_by_token(output, rows_by_token, starts), gated, upped


def backward(
    x: Float[Tensor, "tokens d_model"],
    gate: Float[Tensor, "experts d_model d_expert"],
    up: Float[Tensor, "experts d_model d_expert"],
    down: Float[Tensor, "experts d_expert d_model"],
    weights: Float[Tensor, " rows"],
    token_of_row: Int[Tensor, " rows"],
    rows_by_token: Int[Tensor, " rows"],
    starts: Int[Tensor, " tokens"],
    ends: Int[Tensor, " experts"],
    gated: Float[Tensor, "rows d_expert"],
    upped: Float[Tensor, "rows d_expert"],
    grad: Float[Tensor, "tokens d_model"],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, gate, up, down and weights.

    All of them: in training nothing else is asked for.
    """
    x, gate, up, down, grad = (each.contiguous() for each in (x, gate, up, down, grad))
    n_rows, (n_experts, d_model, d_expert) = len(token_of_row), gate.shape
    if not n_rows:
        inputs = x, gate, up, down, weights
        return tuple(map(torch.zeros_like, inputs))  # type: ignore[return-value]
    tiles = tile_list(ends, n_rows)
    n_tiles = tiles.shape[1]
    gated_grad, upped_grad, hidden = (torch.empty_like(gated) for _ in range(3))
    blocks = triton.cdiv(d_expert, HIDDEN_GRADIENT.cols)
    shares = weights.new_empty(blocks, n_rows, dtype=torch.float32)
    _hidden_gradient[(blocks, n_tiles)](
        grad, down, weights, token_of_row, tiles, ends, gated, upped,
        gated_grad, upped_grad, hidden, shares,
        n_tiles, n_rows, d_model, d_expert, **HIDDEN_GRADIENT.options(),
    )  # fmt: skip
    down_grad = torch.empty_like(down)
    grid = triton.cdiv(d_expert, DOWN_GRADIENT.rows) * triton.cdiv(d_model, DOWN_GRADIENT.cols)
    _down_gradient[(grid, n_experts)](
        hidden, grad, token_of_row, ends, down_grad, d_expert, d_model, **DOWN_GRADIENT.options()
    )
    gate_grad, up_grad = torch.empty_like(gate), torch.empty_like(up)
    grid = triton.cdiv(d_model, PAIR_GRADIENT.rows) * triton.cdiv(d_expert, PAIR_GRADIENT.cols)
    _pair_gradient[(grid, n_experts)](
        x, gated_grad, upped_grad, token_of_row, ends, gate_grad, up_grad, d_model, d_expert,
        **PAIR_GRADIENT.options(),
    )  # fmt: skip
    rows_grad = x.new_empty(n_rows, d_model)
    _input_gradient[(triton.cdiv(d_model, INPUT_GRADIENT.cols), n_tiles)](
        gated_grad, upped_grad, gate, up, tiles, ends, rows_grad, n_tiles, d_expert, d_model,
        **INPUT_GRADIENT.options(),
    )  # fmt: skip
    x_grad = sum_by_token(rows_grad, rows_by_token, starts)
    return x_grad, gate_grad, up_grad, down_grad, shares.sum(0).to(weights.dtype)


def sum_by_token(
    rows: Float[Tensor, "rows width"],
    rows_by_token: Int[Tensor, " rows"],
    starts: Int[Tensor, " tokens"],
) -> Float[Tensor, "tokens width"]:
    """Return for every token the sum of its rows, in fp32 and in the order of `rows_by_token`."""
    n_rows, width = rows.shape
    out = rows.new_empty(len(starts), width)
    cols = min(1024, triton.next_power_of_2(width))
    if out.numel():
        _sum_by_token[(len(starts), triton.cdiv(width, cols))](
            rows, rows_by_token, starts, out, n_rows, width, COLS=cols, num_warps=4
        )
    return out


def tile_list(ends: Int[Tensor, " experts"], n_rows: int) -> Int[Tensor, "2 tiles"]:
    """Return expert and first row of every tile of `ROWS` rows; an expert of -1 for no tile."""
    n_experts = len(ends)
    n_tiles = triton.cdiv(n_rows, ROWS) + n_experts
    tiles = torch.empty(2, n_tiles, dtype=torch.int32, device=ends.device)
    _tile_list[(triton.cdiv(n_tiles, _LISTED),)](
        ends, tiles, n_tiles, n_experts,
        ROWS=ROWS, LISTED=_LISTED, EXPERTS=triton.next_power_of_2(n_experts),
    )  # fmt: skip
    return tiles


_LISTED = 32
"""Tiles that one program lists."""


@triton.jit
def _tile_list(
    ends, tiles, n_tiles, n_experts,
    ROWS: tl.constexpr, LISTED: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    expert = tl.arange(0, EXPERTS)
    there = expert < n_experts
    end = tl.load(ends + expert, mask=there, other=0).to(tl.int32)
    begin = tl.load(ends + expert - 1, mask=there & (expert > 0), other=0).to(tl.int32)
    count = tl.where(there, (end - begin + ROWS - 1) // ROWS, 0)
    last = tl.cumsum(count, 0)
    tile = tl.program_id(0) * LISTED + tl.arange(0, LISTED)
    mine = (tile[:, None] >= (last - count)[None, :]) & (tile[:, None] < last[None, :])
    # At most one expert holds a tile, so a sum over experts picks its numbers.
    found = tl.sum(tl.where(mine, expert[None, :] + 1, 0), 1) - 1
    row = begin[None, :] + (tile[:, None] - (last - count)[None, :]) * ROWS
    tl.store(tiles + tile, found, mask=tile < n_tiles)
    tl.store(tiles + n_tiles + tile, tl.sum(tl.where(mine, row, 0), 1), mask=tile < n_tiles)


@triton.jit
def _hidden(
    x, gate, up, weights, tokens, tiles, ends, gated, upped, hidden,
    n_tiles, d_model, d_expert,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Store x gate, x up, and `weight * silu(x gate) * (x up)` for a tile of rows."""
    expert = tl.load(tiles + tl.program_id(1))
    if expert >= 0:
        row = tl.load(tiles + n_tiles + tl.program_id(1)) + tl.arange(0, ROWS)
        live = row < tl.load(ends + expert)
        col = tl.program_id(0) * COLS + tl.arange(0, COLS)
        k = tl.arange(0, DEPTH)
        token = tl.load(tokens + row, mask=live, other=0).to(tl.int64)
        left = x + token[:, None] * d_model + k[None, :]
        right = expert.to(tl.int64) * d_model * d_expert + k[:, None] * d_expert + col[None, :]
        of_gate, of_up = gate + right, up + right
        g = tl.zeros([ROWS, COLS], tl.float32)
        u = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(0, d_model, DEPTH):
            numbers = tl.load(left, mask=k[None, :] < d_model - start, other=0.0)
            there = (k[:, None] < d_model - start) & (col[None, :] < d_expert)
            g = tl.dot(numbers, tl.load(of_gate, mask=there, other=0.0), g, input_precision="ieee")
            u = tl.dot(numbers, tl.load(of_up, mask=there, other=0.0), u, input_precision="ieee")
            left += DEPTH
            of_gate += DEPTH * d_expert
            of_up += DEPTH * d_expert
        # The backward pass reads the rounded products, so what is made of them here is rounded too.
        kind = gated.dtype.element_ty
        g, u = g.to(kind), u.to(kind)
        weight = tl.load(weights + row, mask=live, other=0.0).to(tl.float32)
        at = row.to(tl.int64)[:, None] * d_expert + col[None, :]
        inside = live[:, None] & (col[None, :] < d_expert)
        tl.store(gated + at, g, mask=inside)
        tl.store(upped + at, u, mask=inside)
        g, u = g.to(tl.float32), u.to(tl.float32)
        h = g * tl.sigmoid(g) * u * weight[:, None]
        tl.store(hidden + at, h.to(kind), mask=inside)


@triton.jit
def _output(
    hidden, down, tiles, ends, output, n_tiles, d_expert, d_model,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Store `hidden down` for a tile of rows."""
    expert = tl.load(tiles + tl.program_id(1))
    if expert >= 0:
        row = tl.load(tiles + n_tiles + tl.program_id(1)) + tl.arange(0, ROWS)
        live = row < tl.load(ends + expert)
        col = tl.program_id(0) * COLS + tl.arange(0, COLS)
        k = tl.arange(0, DEPTH)
        # Of a row beyond the end row 0 is read, and nothing is stored.
        within = tl.where(live, row, 0).to(tl.int64)
        left = hidden + within[:, None] * d_expert + k[None, :]
        right = down + expert.to(tl.int64) * d_model * d_expert
        right += k[:, None] * d_model + col[None, :]
        acc = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(0, d_expert, DEPTH):
            numbers = tl.load(left, mask=k[None, :] < d_expert - start, other=0.0)
            there = (k[:, None] < d_expert - start) & (col[None, :] < d_model)
            matrix = tl.load(right, mask=there, other=0.0)
            acc = tl.dot(numbers, matrix, acc, input_precision="ieee")
            left += DEPTH
            right += DEPTH * d_model
        at = row.to(tl.int64)[:, None] * d_model + col[None, :]
        inside = live[:, None] & (col[None, :] < d_model)
        tl.store(output + at, acc.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _hidden_gradient(
    grad, down, weights, tokens, tiles, ends, gated, upped,
    gated_grad, upped_grad, hidden, shares,
    n_tiles, n_rows, d_model, d_expert,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Store the gradients of both products, the hidden numbers, and shares of the weights' sums."""
    expert = tl.load(tiles + tl.program_id(1))
    if expert >= 0:
        row = tl.load(tiles + n_tiles + tl.program_id(1)) + tl.arange(0, ROWS)
        live = row < tl.load(ends + expert)
        col = tl.program_id(0) * COLS + tl.arange(0, COLS)
        k = tl.arange(0, DEPTH)
        token = tl.load(tokens + row, mask=live, other=0).to(tl.int64)
        left = grad + token[:, None] * d_model + k[None, :]
        right = down + expert.to(tl.int64) * d_model * d_expert
        right += col[None, :] * d_model + k[:, None]
        acc = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(0, d_model, DEPTH):
            numbers = tl.load(left, mask=k[None, :] < d_model - start, other=0.0)
            there = (k[:, None] < d_model - start) & (col[None, :] < d_expert)
            matrix = tl.load(right, mask=there, other=0.0)
            acc = tl.dot(numbers, matrix, acc, input_precision="ieee")
            left += DEPTH
            right += DEPTH
        weight = tl.load(weights + row, mask=live, other=0.0).to(tl.float32)
        first = tl.load(tiles + n_tiles + tl.program_id(1)).to(tl.int64) * d_expert
        gated += first
        upped += first
        gated_grad += first
        upped_grad += first
        hidden += first
        # A quarter of the columns at a time: five numbers for every one of the sums would spill.
        left, right = acc.reshape(ROWS, 2, 2, COLS // 4).permute(0, 3, 2, 1).split()
        quarters = left.split() + right.split()
        share = tl.zeros([ROWS], tl.float32)
        for quarter in tl.static_range(4):
            col = tl.program_id(0) * COLS + quarter * (COLS // 4) + tl.arange(0, COLS // 4)
            at = tl.arange(0, ROWS)[:, None] * d_expert + col[None, :]
            inside = live[:, None] & (col[None, :] < d_expert)
            g = tl.load(gated + at, mask=inside, other=0.0).to(tl.float32)
            u = tl.load(upped + at, mask=inside, other=0.0).to(tl.float32)
            sigmoid = tl.sigmoid(g)
            silu = g * sigmoid
            share += tl.sum(quarters[quarter] * silu * u, 1)
            kind = hidden.dtype.element_ty
            tl.store(hidden + at, (silu * u * weight[:, None]).to(kind), mask=inside)
            h = quarters[quarter] * weight[:, None]
            tl.store(upped_grad + at, (h * silu).to(kind), mask=inside)
            slope = sigmoid * (1.0 + g * (1.0 - sigmoid))
            tl.store(gated_grad + at, (h * u * slope).to(kind), mask=inside)
        tl.store(shares + tl.program_id(0) * n_rows + row, share, mask=live)


@triton.jit
def _input_gradient(
    gated_grad, upped_grad, gate, up, tiles, ends, rows_grad, n_tiles, d_expert, d_model,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Store the gradient of each row's copy of its token."""
    expert = tl.load(tiles + tl.program_id(1))
    if expert >= 0:
        row = tl.load(tiles + n_tiles + tl.program_id(1)) + tl.arange(0, ROWS)
        live = row < tl.load(ends + expert)
        col = tl.program_id(0) * COLS + tl.arange(0, COLS)
        k = tl.arange(0, DEPTH)
        within = tl.where(live, row, 0).to(tl.int64)
        left = within[:, None] * d_expert + k[None, :]
        right = expert.to(tl.int64) * d_model * d_expert + col[None, :] * d_expert + k[:, None]
        of_gated, of_upped = gated_grad + left, upped_grad + left
        of_gate, of_up = gate + right, up + right
        acc = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(0, d_expert, DEPTH):
            near = k[None, :] < d_expert - start
            there = (k[:, None] < d_expert - start) & (col[None, :] < d_model)
            numbers = tl.load(of_gated, mask=near, other=0.0)
            matrix = tl.load(of_gate, mask=there, other=0.0)
            acc = tl.dot(numbers, matrix, acc, input_precision="ieee")
            numbers = tl.load(of_upped, mask=near, other=0.0)
            matrix = tl.load(of_up, mask=there, other=0.0)
            acc = tl.dot(numbers, matrix, acc, input_precision="ieee")
            of_gated += DEPTH
            of_upped += DEPTH
            of_gate += DEPTH
            of_up += DEPTH
        at = row.to(tl.int64)[:, None] * d_model + col[None, :]
        inside = live[:, None] & (col[None, :] < d_model)
        tl.store(rows_grad + at, acc.to(rows_grad.dtype.element_ty), mask=inside)


@triton.jit
def _block(height, width, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return this program's rows and columns of an expert's matrix."""
    blocks = tl.cdiv(width, COLS)
    row = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(0) % blocks * COLS + tl.arange(0, COLS)
    return row, col


@triton.jit
def _group(ends):
    """Return where this program's expert's rows begin and end."""
    expert = tl.program_id(1)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0).to(tl.int32)
    return begin, tl.load(ends + expert).to(tl.int32)


@triton.jit
def _pair_gradient(
    x, gated_grad, upped_grad, tokens, ends, gate_grad, up_grad, d_model, d_expert,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Store a block of the gradients of an expert's two matrices that read tokens."""
    row, col = _block(d_model, d_expert, ROWS, COLS)
    begin, end = _group(ends)
    of_gate = tl.zeros([ROWS, COLS], tl.float32)
    of_up = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(begin, end, DEPTH):
        k = start + tl.arange(0, DEPTH)
        live = k < end
        token = tl.load(tokens + k, mask=live, other=0).to(tl.int64)
        there = live[:, None] & (row[None, :] < d_model)
        numbers = tl.load(x + token[:, None] * d_model + row[None, :], mask=there, other=0.0)
        at = k.to(tl.int64)[:, None] * d_expert + col[None, :]
        there = live[:, None] & (col[None, :] < d_expert)
        left = tl.trans(numbers)
        matrix = tl.load(gated_grad + at, mask=there, other=0.0)
        of_gate = tl.dot(left, matrix, of_gate, input_precision="ieee")
        matrix = tl.load(upped_grad + at, mask=there, other=0.0)
        of_up = tl.dot(left, matrix, of_up, input_precision="ieee")
    at = tl.program_id(1).to(tl.int64) * d_model * d_expert + row[:, None] * d_expert + col[None, :]
    inside = (row[:, None] < d_model) & (col[None, :] < d_expert)
    tl.store(gate_grad + at, of_gate.to(gate_grad.dtype.element_ty), mask=inside)
    tl.store(up_grad + at, of_up.to(up_grad.dtype.element_ty), mask=inside)


@triton.jit
def _down_gradient(
    hidden, grad, tokens, ends, down_grad, d_expert, d_model,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Store a block of the gradient of an expert's last matrix."""
    row, col = _block(d_expert, d_model, ROWS, COLS)
    begin, end = _group(ends)
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(begin, end, DEPTH):
        k = start + tl.arange(0, DEPTH)
        live = k < end
        token = tl.load(tokens + k, mask=live, other=0).to(tl.int64)
        there = live[:, None] & (row[None, :] < d_expert)
        at = k.to(tl.int64)[:, None] * d_expert + row[None, :]
        left = tl.trans(tl.load(hidden + at, mask=there, other=0.0))
        there = live[:, None] & (col[None, :] < d_model)
        matrix = tl.load(grad + token[:, None] * d_model + col[None, :], mask=there, other=0.0)
        acc = tl.dot(left, matrix, acc, input_precision="ieee")
    at = tl.program_id(1).to(tl.int64) * d_model * d_expert + row[:, None] * d_model + col[None, :]
    inside = (row[:, None] < d_expert) & (col[None, :] < d_model)
    tl.store(down_grad + at, acc.to(down_grad.dtype.element_ty), mask=inside)


@triton.jit
def _sum_by_token(rows, rows_by_token, starts, out, n_rows, width, COLS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    begin = tl.load(starts + token)
    more = token + 1 < tl.num_programs(0)
    end = tl.where(more, tl.load(starts + token + 1, mask=more, other=0), n_rows)
    acc = tl.zeros([COLS], tl.float32)
    for place in range(begin, end):
        row = tl.load(rows_by_token + place).to(tl.int64)
        acc += tl.load(rows + row * width + col, mask=col < width, other=0.0).to(tl.float32)
    tl.store(out + token * width + col, acc.to(out.dtype.element_ty), mask=col < width)
