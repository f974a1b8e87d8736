"""FLOPs by the conventions of papers, where they differ from ours.

Ours are in `counts.py`.

MemoryFormer (arXiv 2411.12992) counts one multiply-add as one FLOP, one block, a sequence of 2,048
tokens, attention over the whole square, and no head. These functions keep to that, and are for
comparison with its tables only.
"""

PAPER_SEQ_LEN = 2048
"""Of MemoryFormer's table 1."""


def dense_block_paper_flops(
    d_model: int, *, d_ff: int | None = None, seq_len: int = PAPER_SEQ_LEN
) -> tuple[int, int]:
    """Return FLOPs of a Pythia block's linear maps, and of the block (table 1).

    Linear maps: s (4 d**2 + 2 d d_ff), which is 12 s d**2 with the usual d_ff (None) of 4 d. The
    block: 2 s**2 d more.
    """
    linear = seq_len * d_model * (4 * d_model + 2 * (4 * d_model if d_ff is None else d_ff))
    return linear, linear + _mixing(d_model, seq_len)


def memoryformer_paper_flops(
    d_model: int, *, tau: int, seq_len: int = PAPER_SEQ_LEN
) -> tuple[int, int]:
    """Return FLOPs of a MemoryFormer block's look-ups, and of the whole block.

    Look-ups: 6 K s d with K = d / tau. The block: 2 s**2 d more.

    Reproduces five of the six cells of table 1. The rows read, (4 d + (tau + 2) K) K, would be
    fewer: 5.25 K d for tau = 8.
    """
    lookups = 6 * (d_model // tau) * seq_len * d_model
    return lookups, lookups + _mixing(d_model, seq_len)


def _mixing(d_model: int, seq_len: int) -> int:
    return 2 * seq_len**2 * d_model
