"""Validation of a table of runs: warnings about numbers that cannot all be right.

Each warning is one sentence with the rows and what to do, and none is acted on in silence.
`analysis.load` and the fits refuse a table whose units cannot be right (a number would come out,
and mean nothing); of the rest they fit all rows and repeat the sentence in the fit's own.
`accept={"units"}` says that somebody looked and that it is right.

    units          neighbouring sizes of one column lie a factor of GAP apart: millions beside ones;
                   parameters or tokens below 1
    small          parameters or tokens that are hardly counts, as 70 and 2.8: said, not refused
    flops          FLOPs per active parameter and token that no training costs
    embeddings     FLOPs of small models above that by what embeddings cost: said, not refused
    duplicates     the same run twice: equal sizes and an equal loss to the last digit
    diverged       a loss far above that of a run that is smaller in every way
    architectures  losses or FLOPs that fall into two groups, where one name says one architecture
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

WarningKind = Literal[
    "units", "small", "flops", "embeddings", "duplicates", "diverged", "architectures"
]

ALL_KINDS: tuple[str, ...] = get_args(WarningKind)

SIZES = ("params", "tokens", "flops", "n_active", "active_params", "total_params")


@dataclass(frozen=True, kw_only=True)
class DataWarning:
    """One thing that is odd about a table of runs."""

    kind: WarningKind
    column: str
    """The column it is about."""
    rows: tuple[int, ...]
    """From 0; empty if it is about the whole column."""
    sentence: str


def refuse_bad_units(
    warnings: Sequence[DataWarning], *, where: str = "", accept: Collection[str] = ()
) -> None:
    """Raise for warnings about units that are not accepted.

    Raises:
        ValueError: With all their sentences.
    """
    fatal = [w for w in warnings if w.kind in ("units", "flops") and w.kind not in accept]
    if fatal:
        kinds = ", ".join(sorted({repr(w.kind) for w in fatal}))
        lead = f"{where}: " if where else ""
        raise ValueError(
            f"{lead}{'; '.join(w.sentence for w in fatal)}; "
            f"if it is right as it is, say accept={{{kinds}}}"
        )
