"""Product-key selection on a GPU: scores by tensor cores to fp32 accuracy, then two exact searches.

A chunk of tokens at a time, so that memory stays within `SCORE_BYTES`, goes through five kernels:

1. `_split`: rows of query and sub-keys become sums of one or two fp16 rows times a power of two per row. Two fp16
   numbers hold 22 bits and a sign each way, as good as the 24 bits of fp32 to within half a unit of its last place.
2. `_score`: fp32 scores of each half, two tensor-core products for a bf16 query and three for an fp32 one.
3. `_candidates`: per row, the scores above a bound that at least knn of them reach; about 1.4 knn of 1,024 do.
4. `_order`: the best knn of these in order. Score and id share one integer, so that ties fall to the lowest id.
5. `_pair`: the best knn among the sums of `reference.candidate_pairs`.

The bound: the keys are dealt out into groups, and the knn-th largest of the groups' maxima cannot exceed the knn-th
largest score.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.product_key_topk import reference

MAX_KNN = 64
MAX_KEYS = 4096
SCORE_BYTES = 2**28
"""Most memory for the scores of a chunk of tokens. At 1,024 keys, what is found in them takes a quarter more."""
WEIGHT_BYTES = 2**28
"""Most memory for the dense weights of a chunk of tokens in the backward pass."""

_LARGEST_ID = tl.constexpr(2**24 - 1)
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def applies(query: Tensor, sub_keys: Tensor, knn: int) -> bool:
    """Return whether these kernels can choose: on CUDA, types up to fp32, not too many keys or slots."""
    n_keys = sub_keys.shape[2]
    return (
        query.is_cuda
        and query.dtype in _TYPES
        and sub_keys.dtype in _TYPES
        and query.numel() > 0
        and n_keys <= MAX_KEYS
        and 1 <= knn <= min(n_keys, MAX_KNN)
    )


def product_key_topk(
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of the best `knn` of n_keys**2 slots (`reference.product_key_topk`).

    Gradients are sums in a fixed order, so a second run gives the same bits.
    """
    scores, ids = _select(query, sub_keys, knn)
    return scores, ids


@torch.library.custom_op("memscale::product_key_topk", mutates_args=())
def _select(query: Tensor, sub_keys: Tensor, knn: int) -> tuple[Tensor, Tensor]:
    return select(query, sub_keys, knn)


@_select.register_fake
def _(query: Tensor, sub_keys: Tensor, knn: int) -> tuple[Tensor, Tensor]:
    shape = (query.shape[0], query.shape[1], knn)
    return query.new_empty(shape, dtype=torch.float32), query.new_empty(shape, dtype=torch.int64)


@torch.library.custom_op("memscale::product_key_topk_backward", mutates_args=())
def _gradients(grad: Tensor, ids: Tensor, query: Tensor, sub_keys: Tensor) -> tuple[Tensor, Tensor]:
    return gradients(grad, ids, query, sub_keys)


@_gradients.register_fake
def _(grad: Tensor, ids: Tensor, query: Tensor, sub_keys: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), sub_keys.new_empty(sub_keys.shape)


def _keep(ctx, inputs, output) -> None:
    query, sub_keys, _ = inputs
    ctx.save_for_backward(query, sub_keys, output[1])


def _backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
    query, sub_keys, ids = ctx.saved_tensors
    return *_gradients(grad, ids, query, sub_keys), None


_select.register_autograd(_backward, setup_context=_keep)


def select(
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
    *,
    score_bytes: int = SCORE_BYTES,
    score_tile: tuple[int, int, int, int] = (128, 128, 8, 2),
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Run the forward kernels.

    Args:
        query: The halves are the first and the last key_dim / 2 columns.
        sub_keys: Left and right codebooks.
        knn: Slots per head.
        score_bytes: Most memory for scores.
        score_tile: Tokens and keys per program of `_score`, its warps and its stages.
    """
    n_tokens, n_heads, _ = query.shape
    n_keys, width = sub_keys.shape[2:]
    block_tokens, block_keys, warps, stages = score_tile
    log_best = max(4, (knn - 1).bit_length())
    best = 2**log_best
    slots = 2 * best
    padded_keys = triton.cdiv(n_keys, block_keys) * block_keys
    per_token = 2 * n_heads * padded_keys * 4
    chunk = max(1, score_bytes // per_token // block_tokens) * block_tokens
    chunk = min(chunk, triton.cdiv(n_tokens, block_tokens) * block_tokens)

    def new(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, device=query.device, dtype=dtype)

    query = query if query.stride(-1) == 1 else query.contiguous()
    sub_keys = sub_keys if sub_keys.stride(-1) == 1 else sub_keys.contiguous()
    half, head, row, _ = sub_keys.stride()
    keys, key_scales = _parts(sub_keys, (half, head, row), n_keys, padded_keys, n_heads, width)
    scores = new(2 * n_heads, chunk, padded_keys, dtype=torch.float32)
    found = new(2 * n_heads, slots, chunk, dtype=torch.int64)
    counts = new(2 * n_heads, chunk, dtype=torch.int32)
    ordered = new(2 * n_heads, best, chunk, dtype=torch.int64)
    ranks = reference._candidate_ranks(knn, n_keys, query.device)
    out_scores = new(n_tokens, n_heads, knn, dtype=torch.float32)
    out_ids = new(n_tokens, n_heads, knn, dtype=torch.int64)

    row_warps = max(1, triton.next_power_of_2(n_keys) // 1024)
    lanes = min(32 * row_warps, triton.next_power_of_2(n_keys))
    deep = triton.next_power_of_2(triton.cdiv(n_keys, lanes))
    order_rows = 128
    for start in range(0, n_tokens, chunk):
        part = query[start : start + chunk]
        tokens = len(part)
        strides = (width, query.stride(1), query.stride(0))
        queries, query_scales = _parts(part, strides, tokens, chunk, n_heads, width)
        tiles = triton.cdiv(tokens, block_tokens), padded_keys // block_keys
        _score[(2 * n_heads * tiles[0] * tiles[1],)](
            queries,
            keys,
            key_scales,
            scores,
            chunk,
            padded_keys,
            queries.shape[-1],
            tiles[0],
            tiles[1],
            QUERY_PARTS=len(queries),
            KEY_PARTS=len(keys),
            BLOCK_T=block_tokens,
            BLOCK_N=block_keys,
            BLOCK_D=min(64, queries.shape[-1]),
            num_warps=warps,
            num_stages=stages,
        )
        _candidates[(tokens, 2 * n_heads)](
            scores,
            found,
            counts,
            chunk,
            padded_keys,
            n_keys,
            knn,
            SLOTS=slots,
            LANES=lanes,
            DEEP=deep,
            FULL=n_keys == deep * lanes,
            num_warps=row_warps,
        )
        _order[(triton.cdiv(tokens, order_rows), 2 * n_heads)](
            found,
            counts,
            query_scales,
            ordered,
            tokens,
            chunk,
            SLOTS=slots,
            LOG=log_best,
            BLOCK_T=order_rows,
            num_warps=order_rows // 32,
        )
        _pair[(triton.cdiv(tokens, order_rows), n_heads)](
            ordered,
            ranks,
            out_scores[start:],
            out_ids[start:],
            tokens,
            chunk,
            n_heads,
            n_keys,
            knn,
            PAIRS=ranks.shape[1],
            LOG=log_best,
            BLOCK_T=order_rows,
            num_warps=order_rows // 32,
        )
    return out_scores, out_ids


def _parts(
    x: Tensor,
    strides: tuple[int, int, int],
    n_rows: int,
    padded_rows: int,
    n_heads: int,
    width: int,
) -> tuple[Float[Tensor, "parts halves_x_heads padded_rows padded_width"], Tensor]:
    """Return rows of both halves and all heads as fp16 parts, zeros beyond `n_rows`, and the rows' scales.

    A row is the sum of its parts times its scale. `strides` lead to the next half, head and row.
    """
    n_parts = 2 if x.dtype == torch.float32 else 1
    small = triton.next_power_of_2(max(16, width))
    padded_width = min(small, triton.cdiv(width, 64) * 64)
    parts = x.new_empty((n_parts, 2 * n_heads, padded_rows, padded_width), dtype=torch.float16)
    scales = x.new_empty((2 * n_heads, padded_rows), dtype=torch.float32)
    block = 16
    _split[(triton.cdiv(padded_rows, block), 2 * n_heads)](
        x,
        parts,
        scales,
        *strides,
        n_rows,
        padded_rows,
        n_heads,
        width,
        padded_width,
        PARTS=n_parts,
        BLOCK_R=block,
        BLOCK_D=triton.next_power_of_2(padded_width),
        num_warps=4,
    )
    return parts, scales


def gradients(
    grad: Float[Tensor, "tokens heads knn"],
    ids: Int[Tensor, "tokens heads knn"],
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    *,
    weight_bytes: int = WEIGHT_BYTES,
    product_type: tl.dtype = tl.bfloat16,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of query and sub-keys from those of the scores, by kernels.

    The sub-keys' is a product of query and dense weights (tokens, n_keys), of which each token fills in at most knn,
    a chunk of tokens at a time. Its factors are split into two numbers of `product_type`: bf16 keeps 16 bits then.
    """
    n_tokens, n_heads, knn = ids.shape
    n_keys, width = sub_keys.shape[2:]
    slots = triton.next_power_of_2(knn)
    padded = triton.next_power_of_2(max(16, width))
    query = query if query.stride(-1) == 1 else query.contiguous()
    sub_keys = sub_keys if sub_keys.stride(-1) == 1 else sub_keys.contiguous()
    grad, ids = grad.contiguous(), ids.contiguous()

    grad_query = torch.empty(query.shape, device=query.device, dtype=query.dtype)
    block = max(1, min(16, 4096 // padded))
    _query_gradient[(triton.cdiv(n_tokens, block), 2 * n_heads)](
        grad,
        ids,
        sub_keys,
        grad_query,
        *sub_keys.stride()[:3],
        n_tokens,
        n_heads,
        n_keys,
        width,
        knn,
        BLOCK_T=block,
        BLOCK_D=padded,
        num_warps=4,
    )

    block_tokens, block_keys, block_width = 64, 64, min(128, padded)
    chunk = max(1, weight_bytes // (2 * n_heads * n_keys * 4) // block_tokens) * block_tokens
    chunk = min(chunk, triton.cdiv(n_tokens, block_tokens) * block_tokens)
    tiles = triton.cdiv(n_keys, block_keys), triton.cdiv(width, block_width)
    # Few and small codebooks would leave multiprocessors idle, so tokens are shared out too, and the sums added.
    shares = max(1, min(256 // (2 * n_heads * tiles[0] * tiles[1]), chunk // block_tokens, 16))
    weights = torch.empty(2 * n_heads, chunk, n_keys, device=query.device, dtype=torch.float32)
    sums = torch.zeros(shares, *sub_keys.shape, device=query.device, dtype=torch.float32)
    scatter_block = 32
    for start in range(0, n_tokens, chunk):
        tokens = min(chunk, n_tokens - start)
        weights.zero_()
        _scatter_weights[(triton.cdiv(tokens, scatter_block), n_heads)](
            grad[start:],
            ids[start:],
            weights,
            tokens,
            chunk,
            n_heads,
            n_keys,
            knn,
            SLOTS=slots,
            BLOCK_T=scatter_block,
            num_warps=4,
        )
        _key_gradient[(tiles[0] * tiles[1], 2 * n_heads, shares)](
            weights,
            query[start:],
            sums,
            query.stride(0),
            query.stride(1),
            tokens,
            chunk,
            n_heads,
            n_keys,
            width,
            tiles[1],
            QUERY_PARTS=1 if query.dtype == torch.bfloat16 else 2,
            TYPE=product_type,
            BLOCK_T=block_tokens,
            BLOCK_N=block_keys,
            BLOCK_D=block_width,
            num_warps=4,
            num_stages=3,
        )
    return grad_query, sums.sum(0).to(sub_keys.dtype)


@triton.jit
def _rising(x):
    """Return integers in the order of fp32 numbers; zeros of either sign are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _number(rising):
    """Return the fp32 number of `_rising`'s integer."""
    return (rising ^ ((rising >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _together(score, id):
    """Return numbers in the order of scores, equal scores by lowest id first, that tell both.

    They are fp64, which compares in one instruction where int64 takes two, and never near infinity or zero.
    """
    rising = (_rising(score) ^ -(2**31)).to(tl.uint32, bitcast=True).to(tl.int64)
    return ((rising << 24) + (id ^ _LARGEST_ID) + 2**60).to(tl.float64, bitcast=True)


@triton.jit
def _score_of(together):
    rising = (together.to(tl.int64, bitcast=True) >> 24).to(tl.int32)
    return _number(rising ^ -(2**31))


@triton.jit
def _id_of(together):
    return (together.to(tl.int64, bitcast=True) & _LARGEST_ID) ^ _LARGEST_ID


@triton.jit
def _exchange(
    x, LOG: tl.constexpr, BLOCK: tl.constexpr, STRIDE: tl.constexpr, RISING: tl.constexpr
):
    """Return rows (rows, 2**LOG), of any two numbers STRIDE apart the larger first in every other block."""
    PAIRS: tl.constexpr = 2**LOG // (2 * STRIDE)
    pairs = tl.permute(tl.reshape(x, [x.shape[0], PAIRS, 2, STRIDE]), [0, 1, 3, 2])
    first, second = tl.split(pairs)
    falling = tl.arange(0, PAIRS) // (BLOCK // (2 * STRIDE)) % 2 == RISING
    swap = (first < second) == falling[None, :, None]
    pairs = tl.join(tl.where(swap, second, first), tl.where(swap, first, second))
    return tl.reshape(tl.permute(pairs, [0, 1, 3, 2]), [x.shape[0], 2**LOG])


@triton.jit
def _merge(x, LOG: tl.constexpr, SIZE: tl.constexpr, RISING: tl.constexpr):
    """Return rows (rows, 2**LOG) of which every 2**SIZE numbers are sorted, falling and rising by turns.

    Before, each half of them was sorted, one falling and one rising (a bitonic merge).
    """
    for i in tl.static_range(SIZE):
        x = _exchange(x, LOG, 2**SIZE, 2 ** (SIZE - 1 - i), RISING)
    return x


@triton.jit
def _sort(x, LOG: tl.constexpr, RISING: tl.constexpr):
    """Return rows (rows, 2**LOG) sorted, falling or rising: tl.sort takes a hundred times as long to compile."""
    for size in tl.static_range(1, LOG):
        x = _merge(x, LOG, size, 0)
    return _merge(x, LOG, LOG, RISING)


@triton.jit
def _split(
    x_ptr,
    parts_ptr,
    scales_ptr,
    stride_half,
    stride_head,
    stride_row,
    n_rows,
    padded_rows,
    n_heads,
    width,
    padded_width,
    PARTS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    book = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    origin = (book // n_heads).to(tl.int64) * stride_half + (book % n_heads) * stride_head
    x = tl.load(
        x_ptr + origin + row[:, None].to(tl.int64) * stride_row + column[None, :],
        mask=(row < n_rows)[:, None] & (column < width)[None, :],
        other=0.0,
    ).to(tl.float32)  # [BLOCK_R, BLOCK_D]
    # The largest number of each row goes to 2**14..2**15: fp16 ends at 2**16, and rounds no worse down to 2**-14.
    exponent = (tl.max(tl.abs(x), 1).to(tl.int32, bitcast=True) >> 23) & 255
    up = tl.minimum(268 - exponent, 253)
    x = x * (up << 23).to(tl.float32, bitcast=True)[:, None]
    high = x.to(tl.float16)
    to = (book.to(tl.int64) * padded_rows + row)[:, None] * padded_width + column[None, :]
    inside = (row < padded_rows)[:, None] & (column < padded_width)[None, :]
    tl.store(parts_ptr + to, high, mask=inside)
    if PARTS == 2:
        low = (x - high.to(tl.float32)).to(tl.float16)
        all_rows = tl.num_programs(1).to(tl.int64) * padded_rows
        tl.store(parts_ptr + all_rows * padded_width + to, low, mask=inside)
    down = ((254 - up) << 23).to(tl.float32, bitcast=True)
    tl.store(scales_ptr + book.to(tl.int64) * padded_rows + row, down, mask=row < padded_rows)


@triton.jit
def _score(
    query_ptr,
    keys_ptr,
    key_scales_ptr,
    scores_ptr,
    padded_tokens,
    padded_keys,
    width,
    tiles_t,
    tiles_n,
    QUERY_PARTS: tl.constexpr,
    KEY_PARTS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # Neighbours share a tile of the query.
    program = tl.program_id(0)
    book = (program // (tiles_n * tiles_t)).to(tl.int64)
    books = tl.num_programs(0) // (tiles_n * tiles_t)
    token = program // tiles_n % tiles_t * BLOCK_T + tl.arange(0, BLOCK_T)
    key = program % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_D)
    query_ptr += book * padded_tokens * width
    keys_ptr += book * padded_keys * width
    second_query = query_ptr + books.to(tl.int64) * padded_tokens * width
    second_keys = keys_ptr + books.to(tl.int64) * padded_keys * width
    at_query = token[:, None] * width + column[None, :]
    at_keys = key[:, None] * width + column[None, :]
    scores = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    for start in range(0, width, BLOCK_D):
        q = tl.load(query_ptr + at_query + start)
        k = tl.load(keys_ptr + at_keys + start)
        scores = tl.dot(q, k.T, scores)
        if KEY_PARTS == 2:
            low = tl.load(second_keys + at_keys + start)
            scores = tl.dot(q, low.T, scores)
        if QUERY_PARTS == 2:
            low = tl.load(second_query + at_query + start)
            scores = tl.dot(low, k.T, scores)
    # The query's own scale changes no row's order, so `_order` applies it.
    scores *= tl.load(key_scales_ptr + book * padded_keys + key)[None, :]
    to = (book * padded_tokens + token[:, None]) * padded_keys + key[None, :]
    tl.store(scores_ptr + to, scores)


@triton.jit(do_not_specialize=["padded_keys"])
def _candidates(
    scores_ptr,
    found_ptr,
    counts_ptr,
    padded_tokens,
    padded_keys,
    n_keys,
    knn,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
    DEEP: tl.constexpr,
    FULL: tl.constexpr,
):
    # One program, of one warp up to 1,024 keys, takes one row, and each lane every LANES-th score. Were the length of a row specialised, a lane
    # would load four neighbours at once, and have to exchange them for the stores.
    row = tl.program_id(1).to(tl.int64) * padded_tokens + tl.program_id(0)
    key = tl.arange(0, DEEP * LANES)
    inside = (key < n_keys) | FULL
    scores = tl.load(scores_ptr + row * padded_keys + key, mask=inside, other=-float("inf"))

    # Two groups a lane. Halve the range of the bound, keeping knn groups above.
    groups: tl.constexpr = 2 if DEEP > 1 else 1
    maxima = tl.max(tl.reshape(scores, [DEEP // groups, groups, LANES]), 0)
    low = tl.min(tl.min(maxima, 0), 0)
    high = tl.max(tl.max(maxima, 0), 0)
    for _ in range(8):
        middle = 0.5 * low + 0.5 * high
        enough = tl.sum(tl.sum((maxima >= middle).to(tl.int32), 0), 0) >= knn
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    # Not a number is not below the bound either, and the reference, too, takes it for the best.
    keep = (inside & ((scores < low) == 0)).to(tl.int32)
    count = tl.sum(keep, 0)

    if count > SLOTS:
        # Ties do that. Search on among the integers of score and id, of which no two are equal.
        rising = tl.where(inside, _rising(scores), -(2**31))
        first = tl.where(low == low, _rising(low).to(tl.int64), -(2**31)) << 32
        last = (tl.max(rising, 0).to(tl.int64) << 32) | 0xFFFFFFFF
        while count > SLOTS:
            middle = (first | last) - ((first ^ last) >> 1)
            above = tl.sum(_reach(rising, key, middle), 0)
            enough = above >= knn
            first = tl.where(enough, middle, first)
            last = tl.where(enough, last, middle - 1)
            count = tl.where(enough, above, count)
        keep = _reach(rising, key, first)

    by_lane = tl.reshape(keep, [DEEP, LANES])
    totals = tl.sum(by_lane, 0)
    slot = tl.cumsum(by_lane, 0) - 1 + (tl.cumsum(totals, 0) - totals)[None, :]
    slot = tl.reshape(slot, [DEEP * LANES])
    packed = (scores.to(tl.int32, bitcast=True).to(tl.int64) << 32) | key
    found_ptr += (row - tl.program_id(0)) * SLOTS + tl.program_id(0)
    tl.store(found_ptr + slot * padded_tokens, packed, mask=keep != 0)
    tl.store(counts_ptr + row, count)


@triton.jit
def _reach(rising, key, bound):
    """Return 1 where score and complement of the id, as one integer, reach the bound."""
    score = (bound >> 32).to(tl.int32)
    id = (bound & 0xFFFFFFFF) ^ 0xFFFFFFFF
    return ((rising > score) | ((rising == score) & (key <= id))).to(tl.int32)


@triton.jit(do_not_specialize=["n_tokens", "padded_tokens"])
def _order(
    found_ptr,
    counts_ptr,
    query_scales_ptr,
    ordered_ptr,
    n_tokens,
    padded_tokens,
    SLOTS: tl.constexpr,
    LOG: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    # Rows apart by a number that is not specialised are loaded one number at a time, so that one thread holds all
    # slots of a token and sorts without talking to its neighbours.
    BEST: tl.constexpr = 2**LOG
    book = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = token < n_tokens
    count = tl.load(counts_ptr + book * padded_tokens + token, mask=inside, other=0)
    rank = tl.arange(0, BEST)[None, :]
    found_ptr += book * SLOTS * padded_tokens
    best = _sort(_found(found_ptr, rank, token, count, padded_tokens), LOG, 0)
    for start in range(BEST, SLOTS, BEST):
        new = _sort(_found(found_ptr, start + rank, token, count, padded_tokens), LOG, 1)
        # One falls, the other rises: the larger of each two numbers are the best of both.
        best = _merge(tl.where(best < new, new, best), LOG, LOG, 0)
    scale = tl.load(query_scales_ptr + book * padded_tokens + token, mask=inside, other=0.0)
    score = _score_of(best) * scale[:, None]
    ordered_ptr += book * BEST * padded_tokens
    packed = (score.to(tl.int32, bitcast=True).to(tl.int64) << 32) | _id_of(best)
    tl.store(ordered_ptr + rank * padded_tokens + token[:, None], packed, mask=inside[:, None])


@triton.jit
def _found(found_ptr, slot, token, count, padded_tokens):
    valid = slot < count[:, None]
    packed = tl.load(found_ptr + slot * padded_tokens + token[:, None], mask=valid, other=0)
    score = (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(valid, _together(score, packed & _LARGEST_ID), 0.0)


@triton.jit(do_not_specialize=["n_tokens", "padded_tokens"])
def _pair(
    ordered_ptr,
    ranks_ptr,
    out_scores_ptr,
    out_ids_ptr,
    n_tokens,
    padded_tokens,
    n_heads,
    n_keys,
    knn,
    PAIRS: tl.constexpr,
    LOG: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    BEST: tl.constexpr = 2**LOG
    head = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = (token < n_tokens)[:, None]
    left_ptr = ordered_ptr + head * BEST * padded_tokens + token[:, None]
    right_ptr = ordered_ptr + (n_heads + head) * BEST * padded_tokens + token[:, None]
    rank = tl.arange(0, BEST)
    sums = _sums(left_ptr, right_ptr, ranks_ptr, rank, PAIRS, inside, padded_tokens, n_keys)
    best = _sort(sums, LOG, 0)
    for start in tl.static_range(BEST, PAIRS, BEST):
        pair = start + rank
        sums = _sums(left_ptr, right_ptr, ranks_ptr, pair, PAIRS, inside, padded_tokens, n_keys)
        new = _sort(sums, LOG, 1)
        best = _merge(tl.where(best < new, new, best), LOG, LOG, 0)
    to = (token[:, None].to(tl.int64) * n_heads + head) * knn + rank[None, :]
    valid = inside & (rank < knn)[None, :]
    tl.store(out_scores_ptr + to, _score_of(best), mask=valid)
    tl.store(out_ids_ptr + to, _id_of(best), mask=valid)


@triton.jit
def _sums(left_ptr, right_ptr, ranks_ptr, pair, PAIRS: tl.constexpr, inside, padded_tokens, n_keys):
    known = pair < PAIRS
    left_rank = tl.load(ranks_ptr + pair, mask=known, other=0).to(tl.int32)
    right_rank = tl.load(ranks_ptr + PAIRS + pair, mask=known, other=0).to(tl.int32)
    valid = inside & known[None, :]
    left = tl.load(left_ptr + (left_rank * padded_tokens)[None, :], mask=valid, other=0)
    right = tl.load(right_ptr + (right_rank * padded_tokens)[None, :], mask=valid, other=0)
    score = (left >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    score += (right >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    slot = left.to(tl.int32) * n_keys + right.to(tl.int32)
    return tl.where(valid, _together(score, slot), 0.0)


@triton.jit
def _query_gradient(
    grad_ptr,
    ids_ptr,
    sub_keys_ptr,
    grad_query_ptr,
    stride_half,
    stride_head,
    stride_key,
    n_tokens,
    n_heads,
    n_keys,
    width,
    knn,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    half = tl.program_id(1) // n_heads
    head = tl.program_id(1) % n_heads
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, BLOCK_D)
    inside = token < n_tokens
    sub_keys_ptr += half.to(tl.int64) * stride_half + head.to(tl.int64) * stride_head
    at = (token.to(tl.int64) * n_heads + head) * knn
    total = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for i in range(knn):
        slot = tl.load(ids_ptr + at + i, mask=inside, other=0).to(tl.int32)
        weight = tl.load(grad_ptr + at + i, mask=inside, other=0.0)
        left = slot // n_keys
        key = tl.where(half == 0, left, slot - left * n_keys)
        row = tl.load(
            sub_keys_ptr + key[:, None].to(tl.int64) * stride_key + column[None, :],
            mask=(column < width)[None, :],
            other=0.0,
        )
        total += weight[:, None] * row.to(tl.float32)
    to = (token[:, None].to(tl.int64) * n_heads + head) * (2 * width) + half * width
    tl.store(
        grad_query_ptr + to + column[None, :],
        total.to(grad_query_ptr.dtype.element_ty),
        mask=inside[:, None] & (column < width)[None, :],
    )


@triton.jit
def _scatter_weights(
    grad_ptr,
    ids_ptr,
    weights_ptr,
    n_tokens,
    padded_tokens,
    n_heads,
    n_keys,
    knn,
    SLOTS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    head = tl.program_id(1)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    rank = tl.arange(0, SLOTS)
    at = (token.to(tl.int64) * n_heads + head) * knn
    inside = (token < n_tokens)[:, None] & (rank < knn)[None, :]
    slot = tl.load(ids_ptr + at[:, None] + rank[None, :], mask=inside, other=0).to(tl.int32)
    left = slot // n_keys
    right = slot - left * n_keys
    left_sum = tl.zeros([BLOCK_T, SLOTS], tl.float32)
    right_sum = tl.zeros([BLOCK_T, SLOTS], tl.float32)
    # Slots share sub-keys. Each adds up all that share its own, and they then write the same number.
    for i in range(knn):
        other = tl.load(ids_ptr + at + i, mask=token < n_tokens, other=0).to(tl.int32)
        weight = tl.load(grad_ptr + at + i, mask=token < n_tokens, other=0.0)[:, None]
        other_left = other // n_keys
        other_right = other - other_left * n_keys
        left_sum += tl.where(left == other_left[:, None], weight, 0.0)
        right_sum += tl.where(right == other_right[:, None], weight, 0.0)
    to_left = (head.to(tl.int64) * padded_tokens + token)[:, None] * n_keys + left
    to_right = ((n_heads + head).to(tl.int64) * padded_tokens + token)[:, None] * n_keys + right
    tl.store(weights_ptr + to_left, left_sum, mask=inside)
    tl.store(weights_ptr + to_right, right_sum, mask=inside)


@triton.jit
def _key_gradient(
    weights_ptr,
    query_ptr,
    sums_ptr,
    stride_token,
    stride_head,
    n_tokens,
    padded_tokens,
    n_heads,
    n_keys,
    width,
    tiles_d,
    QUERY_PARTS: tl.constexpr,
    TYPE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    book = tl.program_id(1).to(tl.int64)
    half = tl.program_id(1) // n_heads
    head = tl.program_id(1) % n_heads
    key = tl.program_id(0) // tiles_d * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.program_id(0) % tiles_d * BLOCK_D + tl.arange(0, BLOCK_D)
    query_ptr += half * width + head.to(tl.int64) * stride_head
    weights_ptr += book * padded_tokens * n_keys
    share = tl.program_id(2).to(tl.int64)
    shares = tl.num_programs(2)
    to = (share * 2 * n_heads + book) * n_keys * width + key[:, None] * width + column[None, :]
    inside = (key < n_keys)[:, None] & (column < width)[None, :]
    total = tl.load(sums_ptr + to, mask=inside, other=0.0)  # [BLOCK_N, BLOCK_D]
    for start in range(tl.program_id(2) * BLOCK_T, n_tokens, shares * BLOCK_T):
        token = start + tl.arange(0, BLOCK_T)
        weights = tl.load(
            weights_ptr + token[:, None].to(tl.int64) * n_keys + key[None, :],
            mask=(token < n_tokens)[:, None] & (key < n_keys)[None, :],
            other=0.0,
        ).T
        query = tl.load(
            query_ptr + token[:, None].to(tl.int64) * stride_token + column[None, :],
            mask=(token < n_tokens)[:, None] & (column < width)[None, :],
            other=0.0,
        )
        high = weights.to(TYPE)
        low = (weights - high.to(tl.float32)).to(TYPE)
        query_high = query.to(TYPE)
        total = tl.dot(high, query_high, total, input_precision="ieee")
        total = tl.dot(low, query_high, total, input_precision="ieee")
        if QUERY_PARTS == 2:
            query_low = (query.to(tl.float32) - query_high.to(tl.float32)).to(TYPE)
            total = tl.dot(high, query_low, total, input_precision="ieee")
    tl.store(sums_ptr + to, total, mask=inside)
