"""Kept sums: those of a gradient's norm, kept for the update that follows it."""

KEPT_FROM = 2
"""Times the bytes of fp32 sums, written and read, that gathering all reads again must take."""


def keeps_sums(n_reads: int, n_rows: int, *, element_bytes: int) -> bool:
    """Whether a GPU keeps the sums that a norm needs for the update, 4 bytes a number.

    The alternative is to gather `n_reads` vectors of as many numbers of `element_bytes` again.
    """
    return n_reads * element_bytes > KEPT_FROM * 8 * n_rows
