"""The bag of a look-up by signs in Triton: one table after another, so that reads hit what lies close by.

A table of one chunk is small: of 2**8 rows, the 128 bytes wide columns that a program sums are 32 KB. All tokens of a
program read the same table at the same time, and the programs of one multiprocessor go through the tables at about the
same pace. So of two reads of a row the second often finds it in the multiprocessor's own cache, and the second-level
cache, which bounds `weighted_bag`, is asked for less. What then bounds the kernel is how many instructions it takes per
number; rows and scores therefore come chunk by chunk, as `sign_hash` stores them, and bf16 in pairs.
"""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

from workloads.kernels.row_reduction.triton import offset, reduce_rows, sort_reads
from workloads.kernels.weighted_bag import triton as weighted_bag

_LINE_BYTES = 128
_TOKENS, _WARPS = 32, 1
"""Of one program: no warp waits for another. Of two or more, Triton gives each token to several."""
_FILLS = 2112
"""Programs that an H200 holds at a time."""


def forward(
    table: Float[Tensor, "rows width"],
    rows: Int[Tensor, "tokens chunks"],
    scores: Float[Tensor, "tokens chunks"],
    *,
    block_tokens: int | None = None,
    num_warps: int = _WARPS,
) -> Float[Tensor, "tokens width"]:
    """Return `reference.forward`, summed in fp32 with scores in fp32.

    Args:
        table: Of 16 or 32 bits.
        rows: As in the reference, chunk k's in table k.
        scores: As in the reference.
        block_tokens: Tokens summed by one program. None: 32, or where that makes too few programs the weighted bag,
            whose programs each take one token.
        num_warps: Of one program.
    """
    n_tokens, n_chunks = rows.shape
    width = table.shape[1]
    pairs = table.dtype == torch.bfloat16 and width % 2 == 0 and table.storage_offset() % 2 == 0
    table = table.contiguous()
    words = table.view(torch.int32) if pairs else table
    n_words = words.shape[1]
    block_words = max(16, min(_LINE_BYTES // words.element_size(), triton.next_power_of_2(n_words)))
    n_blocks = triton.cdiv(n_words, block_words)
    few = block_tokens is None and triton.cdiv(n_tokens, _TOKENS) * n_blocks < _FILLS
    if few or not rows.numel():
        return weighted_bag.forward(table, rows, scores)
    block_tokens = block_tokens or _TOKENS
    out = table.new_empty(n_tokens, width)
    _forward[(triton.cdiv(n_tokens, block_tokens), n_blocks)](
        words, rows.T.contiguous(), scores.T.contiguous(), out, n_tokens, n_chunks, n_words,
        TOKENS=block_tokens, WORDS=block_words, EVEN=n_words % block_words == 0, PAIRS=pairs,
        num_warps=num_warps,
    )  # fmt: skip
    return out


def backward(
    table: Float[Tensor, "rows width"],
    rows: Int[Tensor, "tokens chunks"],
    scores: Float[Tensor, "tokens chunks"],
    grad: Float[Tensor, "tokens width"],
    *,
    needs_table: bool,
    needs_scores: bool,
) -> tuple[Float[Tensor, "rows width"] | None, Float[Tensor, "tokens chunks"] | None]:
    """Return `reference.backward`; the scores' gradient is stored chunk by chunk."""
    if not needs_table:
        if not needs_scores:
            return None, None
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
def _forward(
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
        # The next chunk's are on their way while this one's rows are; after the last chunk's, its own once more.
        step = tl.where(chunk < n_chunks, n_tokens, 0)
        rows += step
        scores += step
        next_row, next_score = tl.load(rows), tl.load(scores).to(tl.float32)
        place = table + offset(row, n_words)[:, None] + cols
        words = tl.load(place) if EVEN else tl.load(place, mask=cols < n_words, other=0)
        if PAIRS:
            # bf16 is the upper half of fp32: one instruction a number, where a conversion takes one and a half.
            acc += (words << 16).to(tl.float32, bitcast=True) * score[:, None]
            second += (words & -65536).to(tl.float32, bitcast=True) * score[:, None]
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
