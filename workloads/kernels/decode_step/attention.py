"""Attention of one token of each sequence in Triton.

One kernel turns query and key, writes key and value to the cache, and reads the cache up to the
token's position. A program takes a query head; the softmax is taken on the way (online softmax).
"""

import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl


def attend(
    query_key_value: Float[Tensor, "tokens columns"],
    keys: Float[Tensor, "tokens kv_heads capacity d_head"],
    values: Float[Tensor, "tokens kv_heads capacity d_head"],
    positions: Int[Tensor, " tokens"],
    rotation: Float[Tensor, "2 places half"],
    *,
    query_gain: Float[Tensor, " d_head"] | None = None,
    key_gain: Float[Tensor, " d_head"] | None = None,
    eps: float = 0.0,
) -> Float[Tensor, "tokens d_model"]:
    """Return `reference.attend`."""
    tokens, kv_heads, capacity, d_head = keys.shape
    heads = query_key_value.shape[1] // d_head - 2 * kv_heads
    out = query_key_value.new_empty(tokens, heads * d_head)
    # Few programs have a multiprocessor each, and more threads ask for more at once.
    few = tokens * heads <= 128
    _attend[(tokens * heads,)](
        query_key_value, keys, values, positions, rotation, query_gain, key_gain, out,
        capacity, rotation.shape[1], eps, d_head**-0.5 * 1.4426950408889634,
        HEADS=heads, KV_HEADS=kv_heads, HALF=d_head // 2, BLOCK=128 if few else 64,
        NORM=query_gain is not None, num_warps=8 if few else 4,
    )  # fmt: skip
    return out


@triton.jit
def _attend(
    query_key_value, keys, values, positions, rotation, query_gain, key_gain, out,
    capacity, places, eps, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Scores are of base 2: `scale` holds the logarithm of e."""
    sequence = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    group: tl.constexpr = HEADS // KV_HEADS
    kv_head = head // group
    position = tl.load(positions + sequence).to(tl.int32)
    half = tl.arange(0, HALF)
    whole = tl.arange(0, 2 * HALF)
    cosine = tl.load(rotation + position * HALF + half)
    sine = tl.load(rotation + (places + position) * HALF + half)
    row = query_key_value + sequence * (HEADS + 2 * KV_HEADS) * 2 * HALF
    q_left, q_right = _turned(row + head * 2 * HALF, query_gain, cosine, sine, eps, HALF, NORM)
    k_at = row + (HEADS + kv_head) * 2 * HALF
    k_left, k_right = _turned(k_at, key_gain, cosine, sine, eps, HALF, NORM)
    kind = keys.dtype.element_ty
    q_left, q_right = q_left.to(kind).to(tl.float32), q_right.to(kind).to(tl.float32)
    k_left, k_right = k_left.to(kind), k_right.to(kind)
    value = tl.load(row + (HEADS + KV_HEADS + kv_head) * 2 * HALF + whole).to(kind)
    first = (sequence * KV_HEADS + kv_head) * capacity * 2 * HALF
    if head % group == 0:
        place = first + position.to(tl.int64) * 2 * HALF
        tl.store(keys + place + half, k_left)
        tl.store(keys + place + HALF + half, k_right)
        tl.store(values + place + whole, value)
    # The token itself, from registers; then those before it.
    most = tl.sum(q_left * k_left.to(tl.float32) + q_right * k_right.to(tl.float32), 0) * scale
    total = 1.0
    mixed = value.to(tl.float32)
    for start in range(0, position, BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < position
        rows = first + at.to(tl.int64)[:, None] * 2 * HALF
        left = tl.load(keys + rows + half[None, :], mask=live[:, None], other=0.0)
        right = tl.load(keys + rows + HALF + half[None, :], mask=live[:, None], other=0.0)
        seen = tl.load(values + rows + whole[None, :], mask=live[:, None], other=0.0)
        score = left.to(tl.float32) * q_left[None, :] + right.to(tl.float32) * q_right[None, :]
        score = tl.where(live, tl.sum(score, 1) * scale, -float("inf"))
        higher = tl.maximum(most, tl.max(score, 0))
        weight = tl.exp2(score - higher)
        shrink = tl.exp2(most - higher)
        total = total * shrink + tl.sum(weight, 0)
        mixed = mixed * shrink + tl.sum(weight[:, None] * seen.to(tl.float32), 0)
        most = higher
    to = out + (sequence * HEADS + head) * 2 * HALF + whole
    tl.store(to, (mixed / total).to(out.dtype.element_ty))


@triton.jit
def _turned(x, gain, cosine, sine, eps, HALF: tl.constexpr, NORM: tl.constexpr):
    half = tl.arange(0, HALF)
    left = tl.load(x + half).to(tl.float32)
    right = tl.load(x + HALF + half).to(tl.float32)
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(left * left + right * right, 0) / (2 * HALF) + eps)
        left *= scale * tl.load(gain + half).to(tl.float32)
        right *= scale * tl.load(gain + HALF + half).to(tl.float32)
    return left * cosine - right * sine, right * cosine + left * sine
