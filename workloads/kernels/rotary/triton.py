"""Gradient of rotary positions in Triton: one read and one write per number.

A program takes one head, of queries, of keys or of values, at a few positions. A thread holds 16
bytes of each half of a row.
"""

import triton
from jaxtyping import Float
from torch import Tensor
from triton import language as tl

WARPS = 4


def gradient(
    query: Float[Tensor, "batch seq heads d_head"],
    key: Float[Tensor, "batch seq kv_heads d_head"],
    value: Float[Tensor, "batch seq kv_heads d_head"],
    rotation: Float[Tensor, "2 *batch seq 1 columns"],
) -> Float[Tensor, "batch seq all_heads d_head"]:
    """Return `reference.gradient`; gradients may have any strides."""
    # Rows are read in vectors.
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    batch, seq, n_heads, d_head = query.shape
    n_kv_heads = key.shape[2]
    out = query.new_empty(batch, seq, n_heads + 2 * n_kv_heads, d_head)
    if not out.numel():
        return out
    rotation = rotation.contiguous()
    # One table for all sequences, or one each.
    table_stride = rotation.stride(1) if rotation.dim() == 5 and rotation.shape[1] > 1 else 0
    constants = tile(d_head, rotation.shape[-1], query.element_size())
    grid = (batch * triton.cdiv(seq, constants["ROWS"]) * out.shape[2],)
    _gradient[grid](
        query, key, value, rotation, out, seq, n_heads, n_kv_heads,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        rotation.stride(0), table_stride, **constants,
    )  # fmt: skip
    return out


def tile(d_head: int, columns: int, element_size: int) -> dict[str, int]:
    """Return the constants of a kernel: its threads, 16 bytes each, cover half of its rows."""
    half = max(1, triton.next_power_of_2(columns // 2))
    threads_per_half = max(1, half * element_size // 16)
    return {
        "D_HEAD": d_head,
        "COLUMNS": columns,
        "HALF": half,
        "REST": triton.next_power_of_2(max(1, d_head - columns)),
        "WIDTH": triton.next_power_of_2(d_head),
        "ROWS": max(1, 32 * WARPS // threads_per_half),
        "num_warps": WARPS,
    }


@triton.jit
def _copy(source, target, live, FIRST: tl.constexpr, D_HEAD: tl.constexpr, WIDTH: tl.constexpr):
    """Copy columns from FIRST on of every row."""
    column = tl.arange(0, WIDTH)[None, :]
    if WIDTH != D_HEAD - FIRST:
        live = live & (column < D_HEAD - FIRST)
    row = tl.load(source + FIRST + column, mask=live)
    tl.store(target + FIRST + column, row, mask=live)


@triton.jit
def _angle(at, live, kind: tl.constexpr):
    """Return cosines or sines, rounded as the forward pass rounds them."""
    return tl.load(at, mask=live).to(kind).to(tl.float32)


@triton.jit
def _gradient(
    query, key, value, rotation, out, seq, n_heads, n_kv_heads,
    query_batch, query_seq, query_head, key_batch, key_seq, key_head,
    value_batch, value_seq, value_head, sine_stride, table_stride,
    D_HEAD: tl.constexpr, COLUMNS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    # Heads come first: they share the angles, and write side by side.
    all_heads = n_heads + 2 * n_kv_heads
    head = tl.program_id(0) % all_heads
    tile = tl.program_id(0) // all_heads
    n_tiles = tl.cdiv(seq, ROWS)
    batch = (tile // n_tiles).to(tl.int64)
    row = (tile % n_tiles) * ROWS + tl.arange(0, ROWS)[:, None]
    live = row < seq
    row = row.to(tl.int64)

    if head < n_heads:
        source = query + batch * query_batch + head * tl.cast(query_head, tl.int64)
        row_stride = tl.cast(query_seq, tl.int64)
    elif head < n_heads + n_kv_heads:
        source = key + batch * key_batch + (head - n_heads) * tl.cast(key_head, tl.int64)
        row_stride = tl.cast(key_seq, tl.int64)
    else:
        of_value = head - n_heads - n_kv_heads
        source = value + batch * value_batch + of_value * tl.cast(value_head, tl.int64)
        row_stride = tl.cast(value_seq, tl.int64)
    source += row * row_stride
    target = out + (batch * seq + row) * (all_heads * D_HEAD) + head * D_HEAD

    if head >= n_heads + n_kv_heads:
        _copy(source, target, live, 0, D_HEAD, WIDTH)
    else:
        column = tl.arange(0, HALF)[None, :]
        turns = live
        if HALF * 2 != COLUMNS:
            turns = live & (column < COLUMNS // 2)
        # All loads come before the first store, which the compiler does not move them across.
        left = tl.load(source + column, mask=turns).to(tl.float32)
        right = tl.load(source + COLUMNS // 2 + column, mask=turns).to(tl.float32)
        kind: tl.constexpr = out.dtype.element_ty
        angles = rotation + batch * table_stride + row * COLUMNS + column
        left_cosine = _angle(angles, turns, kind)
        right_cosine = _angle(angles + COLUMNS // 2, turns, kind)
        left_sine = _angle(angles + sine_stride, turns, kind)
        right_sine = _angle(angles + sine_stride + COLUMNS // 2, turns, kind)
        at = target + column
        tl.store(at, (left * left_cosine + right * right_sine).to(kind), mask=turns)
        tl.store(at + COLUMNS // 2, (right * right_cosine + left * left_sine).to(kind), mask=turns)
        if COLUMNS != D_HEAD:
            _copy(source, target, live, COLUMNS, D_HEAD, REST)
