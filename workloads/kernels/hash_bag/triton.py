"""Sign-hash lookups in Triton: one kernel for few tokens, two for many.

Few tokens: a program hashes a token's numbers and reads 128 or 512 bytes of the rows that they
name, so the hash is taken anew for each such part of a row. That costs less than a second kernel,
up to about two thousand tokens.

Many tokens: `sign_hash`, then the bag, one table after another, so that reads hit what lies close
by. A table of one chunk is small: of 2**8 rows, the 128 bytes wide columns that a program sums are
32 KB. All tokens of a program read the same table at the same time, and the programs of one
multiprocessor go through the tables at about the same pace. So of two reads of a row the second
often finds it in the multiprocessor's own cache, and the second-level cache, which bounds
`weighted_bag`, is asked for less. What then bounds the kernel is how many instructions it takes per
number; rows and scores therefore come chunk by chunk, as `sign_hash` stores them, and bf16 in
pairs.

Many tokens and small tables of bf16: products with one-hot matrices (`one_hot.py`), in the backward
pass too.
"""

from typing import Any

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

from workloads.kernels.hash_bag import one_hot
from workloads.kernels.segment_sum.triton import offset, reduce_rows, sort_reads
from workloads.kernels.sign_hash import triton as sign_hash
from workloads.kernels.sign_hash.reference import row_type
from workloads.kernels.sign_hash.triton import code_and_score
from workloads.kernels.weighted_bag import triton as weighted_bag

_LINE_BYTES = 128
_TOKENS, _WARPS = 32, 1
"""Of one program: no warp waits for another. Of two or more, Triton gives each token to several."""
_FEW = 1056
"""Programs that half fill an H200. Fewer of them take longer than one kernel that hashes and sums.
"""

_WIDE = 4096
"""Programs of 128 bytes a row, from which on each takes 512."""


def forward(
    table: Float[Tensor, "rows width"],
    z: Float[Tensor, "tokens chunks bits"],
    *,
    temperature: float,
    times_l1: bool,
    few: bool | None = None,
) -> tuple[
    Float[Tensor, "tokens width"], Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]
]:
    """Return `reference.forward`, hashed and summed in fp32.

    Args:
        table: Of 16 or 32 bits.
        z: As in the reference.
        temperature: As in the reference.
        times_l1: As in the reference.
        few: Whether to take one kernel; None: as long as the bag of many tokens would leave the GPU
            half empty.
    """
    how: dict[str, Any] = {"temperature": temperature, "times_l1": times_l1}
    if few is None:
        blocks = triton.cdiv(table.shape[1] * table.element_size(), _LINE_BYTES)
        few = triton.cdiv(len(z), _TOKENS) * blocks < _FEW
    if few and z.numel() and table.numel():
        return _few(table, z, 2 / temperature, times_l1)
    if one_hot.pays(table, z):
        return one_hot.forward(table, z, **how)
    rows, scores = sign_hash.forward(z, **how)
    return bag(table, rows, scores), rows, scores


def _few(table: Tensor, z: Tensor, factor: float, times_l1: bool) -> tuple[Tensor, Tensor, Tensor]:
    n_tokens, n_chunks, bits = z.shape
    words, pairs = _words(table)
    n_words = words.shape[1]
    out = table.new_empty(n_tokens, table.shape[1])
    rows = z.new_empty(n_chunks, n_tokens, dtype=row_type(n_chunks, bits)).T
    scores = z.new_empty(n_chunks, n_tokens, dtype=torch.float32).T
    # Wider where there are programs enough all the same: then fewer of them hash the same numbers.
    wide = n_tokens * triton.cdiv(words.shape[1] * words.element_size(), _LINE_BYTES) >= _WIDE
    block_bytes = 4 * _LINE_BYTES if wide else _LINE_BYTES
    block_words = max(16, min(block_bytes // words.element_size(), triton.next_power_of_2(n_words)))
    block_chunks = min(32, triton.next_power_of_2(n_chunks))
    _hash_and_sum[(n_tokens, triton.cdiv(n_words, block_words))](
        words, z.contiguous(), rows, scores, out, n_chunks, n_words, factor,
        TIMES_L1=times_l1, BITS=bits, PLACES=triton.next_power_of_2(bits),
        CHUNKS=block_chunks, WORDS=block_words, PAIRS=pairs,
        EVEN=n_words % block_words == 0 and n_chunks % block_chunks == 0, num_warps=1,
    )  # fmt: skip
    return out, rows, scores


def bag(
    table: Float[Tensor, "rows width"],
    rows: Int[Tensor, "tokens chunks"],
    scores: Float[Tensor, "tokens chunks"],
    *,
    block_tokens: int = _TOKENS,
    num_warps: int = _WARPS,
) -> Float[Tensor, "tokens width"]:
    """Return the sums alone, chunk k's rows in table k, summed in fp32 with scores in fp32.

    Args:
        table: Of 16 or 32 bits.
        rows: As in the reference.
        scores: As in the reference.
        block_tokens: Tokens summed by one program.
        num_warps: Of one program.
    """
    n_tokens, n_chunks = rows.shape
    words, pairs = _words(table)
    n_words = words.shape[1]
    block_words = max(16, min(_LINE_BYTES // words.element_size(), triton.next_power_of_2(n_words)))
    out = table.new_empty(n_tokens, table.shape[1])
    if not rows.numel():
        return out.zero_()
    _bag[(triton.cdiv(n_tokens, block_tokens), triton.cdiv(n_words, block_words))](
        words, rows.T.contiguous(), scores.T.contiguous(), out, n_tokens, n_chunks, n_words,
        TOKENS=block_tokens, WORDS=block_words, EVEN=n_words % block_words == 0, PAIRS=pairs,
        num_warps=num_warps,
    )  # fmt: skip
    return out


def _words(table: Tensor) -> tuple[Tensor, bool]:
    """Return a table as the kernels read it, and whether that is in pairs of bf16."""
    pairs = (
        table.dtype == torch.bfloat16
        and table.shape[1] % 2 == 0
        and table.storage_offset() % 2 == 0
    )
    table = table.contiguous()
    return table.view(torch.int32) if pairs else table, pairs


def backward(
    table: Float[Tensor, "rows width"],
    z: Float[Tensor, "tokens chunks bits"],
    rows: Int[Tensor, "tokens chunks"],
    scores: Float[Tensor, "tokens chunks"],
    grad: Float[Tensor, "tokens width"],
    *,
    temperature: float,
    times_l1: bool,
    needs_table: bool,
    needs_z: bool,
) -> tuple[Float[Tensor, "rows width"] | None, Float[Tensor, "tokens chunks bits"] | None]:
    """Return `reference.backward`."""
    how: dict[str, Any] = {"temperature": temperature, "times_l1": times_l1}
    if one_hot.pays(table, z):
        needs = {"needs_table": needs_table, "needs_z": needs_z}
        return one_hot.backward(table, z, grad, **how, **needs)
    table_grad, scores_grad = _read_gradients(table, rows, scores, grad, needs_table, needs_z)
    if scores_grad is None:
        return table_grad, None
    return table_grad, sign_hash.backward(z, scores_grad, **how)


def _read_gradients(
    table: Tensor, rows: Tensor, scores: Tensor, grad: Tensor, needs_table: bool, needs_scores: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of table and scores; those of the scores are stored chunk by chunk."""
    if not needs_table and not needs_scores:
        return None, None
    if not needs_table:
        scores_grad = weighted_bag.row_products(table, rows, grad).to(scores.dtype)
        return None, scores_grad.T.contiguous().T
    reads = sort_reads(rows.T, scores.T, len(table), by_chunk=True)
    table_grad, products = reduce_rows(
        reads,
        grad,
        table if needs_scores else None,
        sums_dtype=table.dtype,
        products_dtype=scores.dtype,
        # Every row has many readers: enough work for a program, and few rows.
        group=1,
    )
    return table_grad, None if products is None else products.view(rows.T.shape).T


@triton.jit
def _hash_and_sum(
    table, z, rows, scores, out, n_chunks, n_words, factor,
    TIMES_L1: tl.constexpr, BITS: tl.constexpr, PLACES: tl.constexpr,
    CHUNKS: tl.constexpr, WORDS: tl.constexpr, PAIRS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Hash one token and sum a block of columns of its rows.

    The first block's program stores rows and scores.
    """
    token = tl.program_id(0).to(tl.int64)
    n_tokens = tl.num_programs(0)
    cols = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    place = tl.arange(0, PLACES)[None, None, :]
    acc = tl.zeros([WORDS], tl.float32)
    second = tl.zeros([WORDS], tl.float32)
    for start in range(0, n_chunks, CHUNKS):
        chunk = start + tl.arange(0, CHUNKS)[None, :]
        at = (token * n_chunks + chunk)[:, :, None] * BITS + place
        there = (place < BITS) & (chunk < n_chunks)[:, :, None]
        numbers = tl.load(z + at, mask=there, other=0.0).to(tl.float32)
        code, score = code_and_score(numbers, place, factor, TIMES_L1, BITS)
        row = (chunk.to(rows.dtype.element_ty) << BITS) + code
        chunk = start + tl.arange(0, CHUNKS)
        row, score = tl.reshape(row, [CHUNKS]), tl.reshape(score, [CHUNKS])
        if tl.program_id(1) == 0:
            to = chunk.to(tl.int64) * n_tokens + token
            tl.store(rows + to, row, mask=chunk < n_chunks)
            tl.store(scores + to, score, mask=chunk < n_chunks)
        address = table + offset(row, n_words)[:, None] + cols
        if EVEN:
            words = tl.load(address)
        else:
            live = (chunk < n_chunks)[:, None]
            words = tl.load(address, mask=live & (cols < n_words), other=0)
            score = tl.where(chunk < n_chunks, score, 0.0)
        if PAIRS:
            acc += tl.sum(lower_half(words) * score[:, None], 0)
            second += tl.sum(upper_half(words) * score[:, None], 0)
        else:
            acc += tl.sum(words.to(tl.float32) * score[:, None], 0)
    cols = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    if PAIRS:
        acc = tl.join(acc, second).reshape(2 * WORDS)
        cols = tl.program_id(1) * 2 * WORDS + tl.arange(0, 2 * WORDS)
        n_words *= 2
    tl.store(out + token * n_words + cols, acc.to(out.dtype.element_ty), mask=cols < n_words)


@triton.jit
def lower_half(words):
    """Return the first of two bf16 numbers in a word. bf16 is the upper half of fp32."""
    return (words << 16).to(tl.float32, bitcast=True)


@triton.jit
def upper_half(words):
    """Return the second."""
    return (words & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _bag(
    table, rows, scores, out, n_tokens, n_chunks, n_words,
    TOKENS: tl.constexpr, WORDS: tl.constexpr, EVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    cols = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    # Beyond the end the last token once more, which is cheaper than masks.
    within = tl.minimum(token, n_tokens - 1)
    rows += within
    scores += within
    # One number of every word, and if there are two the other.
    acc = tl.zeros([TOKENS, WORDS], tl.float32)
    second = tl.zeros([TOKENS, WORDS], tl.float32)
    row, score = tl.load(rows), tl.load(scores).to(tl.float32)
    for chunk in range(1, n_chunks + 1):
        # The next chunk's are on their way while this one's rows are; after the last chunk's, its
        # own once more.
        step = tl.where(chunk < n_chunks, n_tokens, 0)
        rows += step
        scores += step
        next_row, next_score = tl.load(rows), tl.load(scores).to(tl.float32)
        place = table + offset(row, n_words)[:, None] + cols
        words = tl.load(place) if EVEN else tl.load(place, mask=cols < n_words, other=0)
        if PAIRS:
            # One instruction a number, where a conversion takes one and a half.
            acc += lower_half(words) * score[:, None]
            second += upper_half(words) * score[:, None]
        else:
            acc += words.to(tl.float32) * score[:, None]
        row, score = next_row, next_score
    if PAIRS:
        acc = tl.join(acc, second).reshape(TOKENS, 2 * WORDS)
        cols = tl.program_id(1) * 2 * WORDS + tl.arange(0, 2 * WORDS)[None, :]
        n_words *= 2
    tl.store(
        out + token[:, None] * n_words + cols,
        acc.to(out.dtype.element_ty),
        mask=(token < n_tokens)[:, None] & (cols < n_words),
    )
