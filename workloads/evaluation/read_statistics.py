"""Statistics of how evenly the rows of a table are read."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class ReadStatistics:
    """Evenness of the reads of one table.

    `p_i` is the share of row i in all reads, R the number of rows.
    """

    rows_read: float
    """Share of rows read at least once."""
    normalised_entropy: float
    """`H / ln R` with `H = -sum_i p_i ln p_i`: Pielou's evenness (Pielou 1966, J. Theor. Biol.
    13:131). 1 is uniform; of a single row 1 by definition."""
    kl_to_uniform: float
    """Kullback-Leibler divergence of p from the uniform distribution, `ln R - H`, nats."""
    gini: float
    """Gini coefficient of the reads per row, `sum_i (2 i - R - 1) n_(i) / (R N)` with n_(i) in
    increasing order and N their sum (Damgaard & Weiner 2000, Ecology 81:1139). 0 is uniform."""
    max_over_mean: float
    """Reads of the most read row over the mean row's."""
    rows_read_if_uniform: float
    """What `rows_read` would be expected to be if every read hit a row at random."""
    kl_if_uniform: float
    """What `kl_to_uniform` would be then: that much is chance."""


def read_statistics(reads: NDArray[np.int64]) -> ReadStatistics:
    """Return how evenly rows are read.

    Args:
        reads: Of every row (rows,).

    Raises:
        ValueError: If nothing was read.
    """
    n_rows, total = len(reads), int(reads.sum())
    if total == 0:
        raise ValueError("table reads: no row was read, got only zeros; count over some tokens")
    counts = np.sort(reads).astype(np.float64)
    shares = counts[counts > 0] / total
    entropy = max(0.0, float(-(shares * np.log(shares)).sum()))
    ranks = 2 * np.arange(1, n_rows + 1, dtype=np.float64) - n_rows - 1
    mean = total / n_rows
    return ReadStatistics(
        rows_read=len(shares) / n_rows,
        normalised_entropy=entropy / math.log(n_rows) if n_rows > 1 else 1.0,
        kl_to_uniform=max(0.0, math.log(n_rows) - entropy),
        gini=max(0.0, float((ranks * counts).sum()) / (n_rows * total)),
        max_over_mean=float(counts[-1]) / mean,
        rows_read_if_uniform=-math.expm1(-mean),
        kl_if_uniform=_poisson_kl(mean) if n_rows > 1 else 0.0,
    )


def _poisson_kl(mean: float) -> float:
    """Return `E[(n / mean) ln(n / mean)]` of a Poisson variable n.

    Reads of a row that is one of many are Poisson if rows are read at random. With many reads a row
    it nears 1 / (2 mean), the bias that Miller & Madow (1955) correct entropies for.
    """
    if mean > 1e4:
        return 0.5 / mean
    spread = 12 * math.sqrt(mean) + 30
    counts = np.arange(max(1, math.floor(mean - spread)), math.ceil(mean + spread), dtype=float)
    log_factorials = np.array([math.lgamma(n + 1) for n in counts])
    probabilities = np.exp(counts * math.log(mean) - mean - log_factorials)
    ratios = counts / mean
    return max(0.0, float((probabilities * ratios * np.log(ratios)).sum()))
