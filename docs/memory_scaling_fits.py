"""Print the tables of fits in docs/results/memory_scaling.md, from the CSVs in docs/results.

python docs/memory_scaling_fits.py

As `memscale report` fits a sweep: a curve over the tables of one base, and the change by a doubling
of the memory's parameters. All curves of an outcome are judged together. A base with fewer tables
than a curve needs has the change alone.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.fitting.bootstrap import contrast_of_means
from analysis.fitting.result import LawFit
from analysis.formatting import count, number
from analysis.scaling.memory_trend import MEMORY, memory_trends, slope_weights
from analysis.scaling.series_curves import FEWEST_TABLES, CurveSpec, fit_series

OUTCOMES = {"recall/train_wording/exact_match": "factual_recall", "valid/loss": "loss"}
"""Columns of the CSVs -> what a report calls them."""
RESULTS = Path(__file__).parent / "results"
INIT = "model.output_init"
FACTS = ("facts_1m", "facts_1m_memory", "facts_1m_largest", "facts_3m", "facts_3m_largest")
SMALLER = ("facts_10m_memory", "facts_10m_memory_plus", "facts_10m_larger")
"""Parts whose trials all begin with smaller output matrices: a shared setting has no column."""
LARGEST = ("text_largest", "text_largest_seeds")
"""At 30m of one seed: a curve counts them, a change by a doubling does not, at any base."""
TEXTS = ("text_1m", "text_3m", "text_10m", "text_30m", *LARGEST)


def main() -> None:
    for parts, outcome, law in (
        ((*FACTS, *SMALLER), "factual_recall", "saturating"),
        (TEXTS, "loss", "power_law"),
    ):
        runs = pd.concat([_part(part) for part in parts], ignore_index=True)
        runs = runs.drop_duplicates("trial_id", ignore_index=True)  # seed 0 is in both of LARGEST
        spec = CurveSpec(outcome=outcome, x=MEMORY, law=law)
        series = dict(zip(runs["configuration"], runs["series"], strict=True))
        fits = {curve.series: curve.fit for curve in fit_series(runs, series, [spec])}
        for name, rows in runs.groupby("series"):
            tables = f"{len(rows)} runs of {rows[MEMORY].nunique()}"
            fit = fits.get(str(name))
            shown = f"{_coefficients(fit)} | {fit.verdict.status}" if fit else "none | no curve"
            print(f"| {name} | {tables} | {shown} | {_slope(rows, outcome)} |")
            if fit:
                print(f"    {fit.verdict.sentence}")


def _part(name: str) -> pd.DataFrame:
    """Return the runs with a memory, but those that begin otherwise than the rest of their part."""
    runs = pd.read_csv(RESULTS / f"memory_scaling_{name}.csv").rename(columns=OUTCOMES)
    runs = runs[runs[MEMORY] > 0].assign(part=name)
    if INIT in runs:  # the two tables that begin so are too few
        runs = runs[runs[INIT].isna()].drop(columns=INIT)
    series = runs["preset"] + ", " + runs["architecture"]
    return runs.assign(
        series=series, configuration=series + runs[MEMORY].map(lambda size: f" {size:.0f}")
    )


def _coefficients(fit: LawFit) -> str:
    if not fit.usable:
        return "none"
    shown = []
    for name, value in fit.parameters.items():
        text = count if name == "x0" else number
        low, high = fit.intervals[name]
        spread = f" [{text(low)}, {text(high)}]" if low < high else ", at its bound"
        shown.append(f"{name} {text(value)}{spread}")
    return "; ".join(shown)


def _slope(rows: pd.DataFrame, outcome: str) -> str:
    """Return the change by a doubling, over tables of several seeds where there are such."""
    rows = rows[~rows["part"].isin(LARGEST)]
    if rows[MEMORY].nunique() >= FEWEST_TABLES:
        (trend,) = memory_trends(rows, outcome=outcome)
        found = trend.per_doubling
        if found.low is None or found.high is None:
            return f"{found.value:.4f}, one seed"
        if found.high - found.low <= rows[outcome].max():
            return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
    # Two tables say nothing of a line, and three too little.
    by_seed = rows.pivot(index="seed", columns=MEMORY, values=outcome)
    weights = slope_weights(np.log2(by_seed.columns.to_numpy(dtype=np.float64)))
    found = contrast_of_means([(1.0, by_seed.to_numpy() @ weights)])
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}], by seeds alone"


if __name__ == "__main__":
    main()
