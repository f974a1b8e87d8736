"""Text summary of a fit: a table of coefficients, and the fit's diagnostics."""

import html
from typing import TYPE_CHECKING

import pandas as pd

from analysis.loading.columns import taken

if TYPE_CHECKING:
    from analysis.fitting.law import Law
    from analysis.fitting.result import LawFit

WIDTH = 100
"""Columns of the text."""


def coefficients(fit: "LawFit") -> pd.DataFrame:
    """Return one row per coefficient (value, low, high), NaN where there is no interval."""
    nothing = (float("nan"), float("nan"))
    rows = {
        name: (value, *fit.intervals.get(name, nothing)) for name, value in fit.parameters.items()
    }
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=["value", "low", "high"])
    return frame.rename_axis("parameter")


def summary_text(fit: "LawFit") -> str:
    """Return the fit as lines of at most WIDTH characters where words allow."""
    lines = [f"{fit.law.name}: {fit.law.equation}", *(f"{k}: {v}" for k, v in _facts(fit).items())]
    table = coefficients(fit)
    if len(table):
        lines += ["", table.to_string(float_format=lambda v: f"{v:.5g}"), "", _meaning(fit)]
    return "\n".join(lines)


def summary_html(fit: "LawFit") -> str:
    """Return the same for a notebook."""
    facts = "".join(f"<li>{html.escape(k)}: {html.escape(v)}</li>" for k, v in _facts(fit).items())
    table = coefficients(fit).to_html(float_format=lambda v: f"{v:.5g}") if fit.usable else ""
    meaning = f"<p>{html.escape(_meaning(fit))}</p>" if fit.usable else ""
    title = html.escape(f"{fit.law.name}: {fit.law.equation}")
    return f"<p><b>{title}</b></p><ul>{facts}</ul>{table}{meaning}"


def _facts(fit: "LawFit") -> dict[str, str]:
    """Return what stands above the table, by its name."""
    weighted = len(fit.weights) > 0 and bool((fit.weights != fit.weights[0]).any())
    columns = taken(fit.columns)
    return {
        "source": fit.law.source,
        **({"given": given(fit.law)} if fit.law.bounds else {}),
        "outcome": f"{fit.outcome}, {fit.n_points} runs of {fit.n_configurations} configurations",
        **({"columns": columns} if columns else {}),
        "objective": fit.objective_of.words + (", runs weighted" if weighted else ""),
        "verdict": str(fit.verdict),
        "optimiser": f"{fit.status}; {fit.sentence}",
        "hold-out": fit.hold_out_note,
    }


def given(law: "Law") -> str:
    """Return what was known of the parameters."""
    return ", ".join(
        f"{name} = {low:g}" if low == high else f"{name} within {low:g}..{high:g}"
        for name, (low, high) in law.bounds.items()
    )


def _meaning(fit: "LawFit") -> str:
    """Return what the intervals mean, and what is not in them."""
    if not fit.intervals:
        return "No intervals: no resamples were drawn, or there are too few runs."
    return (
        f"{fit.level:.0%} intervals from {len(fit.draws)} resamples of whole configurations. They "
        "hold the noise of runs, not an error of the law itself."
    )
