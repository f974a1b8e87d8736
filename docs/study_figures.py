"""Figures of the overview pages of two studies, drawn by `figures.py` from `docs/results/*.csv`.

`architectures.png` has the loss of every architecture less that of the better dense, at equal FLOPs
and at equal seconds. `ngram_dispute.png` has that of tables, memories and experts and of what they
are set beside, less that of either dense, by the size of the base. Intervals are Welch's over seeds
(95 %, of one comparison). One seed has none and a hollow mark.
"""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.fitting.bootstrap import MeanEstimate, difference_of_means
from analysis.plotting.axes import INK, caption, grid, log_scale, rounded
from analysis.plotting.style import COLOURS, MARKERS

RESULTS = Path(__file__).parent / "results"
LOSS = "valid/loss"
INIT = "model.output_init"
SMALLER = "depth_scaled"
SIZES = ("3m", "10m", "30m")
BETTER, PLAIN = "the better dense", "the plain dense"
LOWER_IS_BETTER = "held-out loss, nats per token, less that of {} (below zero: better)"
WHICH = "the better dense, whose output matrices begin smaller"


class Trait(NamedTuple):
    """Configurations of `ngram_dispute` that are one at all sizes."""

    name: str
    query: str
    look: int
    """0: what is asked about, 1: its control, 2: experts of as many parameters."""


ROWS, ONE_ROW = "`model.rows_per_head` > 1", "`model.rows_per_head` == 1"
ON_DENSE, ON_EXPERTS = "`model.base` != 'moe'", "`model.base` == 'moe'"
CONTROL, EXPERTS = "its control: one row", "experts, as many parameters"
FEWER = Trait(EXPERTS, "architecture == 'moe' and not most", 2)
PANELS = {
    "engram": (
        Trait("engram", f"architecture == 'engram' and {ON_DENSE} and {ROWS}", 0),
        Trait(CONTROL, f"architecture == 'engram' and {ON_DENSE} and {ONE_ROW}", 1),
        FEWER,
    ),
    "n-gram input": (
        Trait("n-gram input", f"architecture == 'ngram_input' and {ROWS}", 0),
        Trait(CONTROL, f"architecture == 'ngram_input' and {ONE_ROW}", 1),
        FEWER,
    ),
    "value embeddings": (
        Trait("value embeddings", "architecture == 'value_embeddings'", 0),
        Trait("wide dense, equal FLOPs", "architecture == 'dense' and wide", 1),
    ),
    "Memory+": (Trait("Memory+", "architecture == 'memory_plus'", 0), FEWER),
    "engram on experts": (
        Trait("engram on experts", f"architecture == 'engram' and {ON_EXPERTS} and {ROWS}", 0),
        Trait(CONTROL, f"architecture == 'engram' and {ON_EXPERTS} and {ONE_ROW}", 1),
        Trait(EXPERTS, "architecture == 'moe' and most", 2),
    ),
}
"""What is asked about, and what it is set beside: a panel each."""


def architectures() -> Figure:
    """Return each architecture's loss less that of the better dense, a row each, a mark a size."""
    found = {
        match: {size: _less_better(f"architectures_{match}_{size}") for size in SIZES}
        for match in ("flops", "seconds")
    }
    order = sorted(found["flops"]["10m"], key=lambda name: found["flops"]["10m"][name].value)
    figure, panels = plt.subplots(
        1, 2, figsize=(12, 7.6), sharex=True, sharey=True, layout="constrained"
    )
    for panel, (match, sizes) in zip(panels, found.items(), strict=True):
        for place, (size, gains) in enumerate(sizes.items()):
            colour, marker = COLOURS[place], MARKERS[place]
            for row, name in enumerate(order):
                at = row + 0.26 * (place - 1)
                _mark(panel, gains[name], at, colour=colour, marker=marker, sideways=True)
            face = "white" if size == "30m" else colour
            label = f"{size}, one seed" if size == "30m" else f"{size}, three seeds"
            panel.plot(
                [], [], marker, color=colour, markerfacecolor=face, markersize=5, label=label
            )
        panel.axvline(0, color=INK, linewidth=1)
        for row in range(1, len(order), 2):
            panel.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", linewidth=0, zorder=-2)
        panel.set_title(f"equal {'training FLOPs' if match == 'flops' else match}")
        panel.set_ylim(len(order) - 0.5, -0.5)
        grid(panel)
    panels[0].set_yticks(range(len(order)), [PLAIN if name == "dense" else name for name in order])
    panels[1].legend(frameon=False, loc="upper right")
    caption(
        figure,
        f"{LOWER_IS_BETTER.format(WHICH)}; "
        "lines: 95 % intervals of one comparison, before correction; "
        "hollow: one seed, without an interval; rows: by 10m at equal FLOPs",
        size=9,
    )
    return figure


def ngram_dispute() -> Figure:
    """Return loss less that of either dense by size, a row a dense, a column for what is asked."""
    runs = {size: _dispute(size) for size in (*SIZES, "134m")}
    figure, axes = plt.subplots(
        2, len(PANELS), figsize=(15, 7), sharex=True, sharey=True, layout="constrained"
    )
    for row, base in zip(axes, (BETTER, PLAIN), strict=True):
        for panel, (title, traits) in zip(row, PANELS.items(), strict=True):
            for trait in traits:
                _by_size(panel, runs, trait, base)
            panel.axhline(0, color=INK, linewidth=1)
            grid(panel)
            if base == BETTER:
                panel.set_title(title)
                panel.legend(frameon=False, fontsize=8, loc="upper left")
        row[0].set_ylabel(f"loss less that of {base}")
    for panel in axes[1]:
        panel.set_xlabel("active parameters of dense")
    axes[0, 0].set_ylim(-0.2, 1.08)
    log_scale(axes[0, 0], "x", 2e6, 1.5e8, show=rounded, most=4)
    caption(
        figure,
        f"{LOWER_IS_BETTER.format(f'{WHICH}, above, and the plain one, below')}, at equal "
        "measured seconds but for the wide dense; lines: means, with 95 % "
        "intervals of one comparison, before correction; hollow: one seed (134m), without an "
        "interval; marks of a size stand side by side",
        size=9,
    )
    return figure


def _by_size(panel: Axes, runs: dict[str, pd.DataFrame], trait: Trait, base: str) -> None:
    """Draw one trait's differences to a dense, joined from size to size."""
    colour, marker = COLOURS[(1, 0, 2)[trait.look]], MARKERS[trait.look]
    points = []
    for table in runs.values():
        found = _less(table, trait, base)
        at = table.loc[table["base"] == base, "active_params"].iloc[0] * 1.07 ** (trait.look - 1)
        _mark(panel, found, at, colour=colour, marker=marker, sideways=False)
        points.append((at, found.value))
    xs, ys = zip(*points, strict=True)
    line = "--" if trait.look else "-"
    panel.plot(xs, ys, line, color=colour, linewidth=1.2, alpha=0.7, zorder=1)
    panel.plot([], [], line, marker=marker, color=colour, markersize=5, label=trait.name)


def _less(table: pd.DataFrame, trait: Trait, base: str) -> MeanEstimate:
    """Return a trait's mean loss less that of a dense."""
    dense = table.loc[table["base"] == base, LOSS]
    return difference_of_means(table.query(trait.query)[LOSS].to_numpy(), dense.to_numpy())


def _mark(
    panel: Axes, found: MeanEstimate, at: float, *, colour: str, marker: str, sideways: bool
) -> None:
    """Draw a difference with its interval, hollow where one seed gives none."""
    look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "linestyle": ""}
    spans = panel.hlines if sideways else panel.vlines
    if found.low is None or found.high is None:
        look["markerfacecolor"] = "white"
    else:
        spans(at, found.low, found.high, color=colour, linewidth=1.3, zorder=2)
    panel.plot(*((found.value, at) if sideways else (at, found.value)), zorder=3, **look)


def _less_better(name: str) -> dict[str, MeanEstimate]:
    """Return each architecture's mean loss in a CSV less that of the better dense.

    Those with smaller output matrices, which ran at 3m alone, are left out.
    """
    runs = pd.read_csv(RESULTS / f"{name}.csv")
    smaller = runs[INIT].eq(SMALLER)
    dense = runs["architecture"].eq("dense")
    better = runs.loc[dense & smaller, LOSS].to_numpy()
    extra = smaller & runs["architecture"].isin(runs.loc[~smaller, "architecture"])
    return {
        str(architecture): difference_of_means(rows[LOSS].to_numpy(), better)
        for architecture, rows in runs[~extra].groupby("architecture")
    }


def _dispute(size: str) -> pd.DataFrame:
    """Return the runs of a size, with which dense each is, whether wide, and who has most experts."""
    runs = pd.read_csv(RESULTS / f"ngram_dispute_{size}.csv")
    dense = runs["architecture"].eq("dense")
    widths = runs["model.d_ff"].where(dense)
    experts = runs["model.n_experts"]
    runs["wide"] = dense & (widths > widths.min())
    runs["most"] = experts == experts.max()
    runs["base"] = ""
    runs.loc[dense & ~runs["wide"], "base"] = PLAIN
    runs.loc[dense & runs[INIT].eq(SMALLER), "base"] = BETTER
    return runs
