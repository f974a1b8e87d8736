"""Heat maps of two swept settings: outcome of each pair, a panel per size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from analysis.formatting import number
from analysis.plotting.axes import INK, caption
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.fit_panels import Y_LABELS, side_title
from analysis.scaling.best_settings import size_names
from analysis.scaling.outcomes import higher_is_better
from orchestrator.records.varied_settings import setting_text

Array = NDArray[np.float64]

MOST_PANELS = 8
"""Panels of one figure; of more the largest sizes are drawn."""

FEWEST_VALUES = 2
"""Values of each setting in a panel; with fewer it is no map."""

COLOUR_MAP = "cividis"
"""Even in lightness, also to readers who see two colours alone."""


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """The outcome over two settings, at one architecture and size."""

    title: str
    x: str
    y: str
    """Settings."""
    columns: Sequence[Any]
    rows: Sequence[Any]
    """Their values, increasing."""
    values: Array
    """(rows, columns), mean over seeds and best of what else varies; NaN where nothing ran."""


def heat_maps(table: pd.DataFrame, names: Sequence[str], outcome: str) -> list[HeatMap]:
    """Return a map for every architecture and size at which two settings were varied together.

    The two with most values are the axes; of others the best counts.

    Args:
        table: Of `Runs`.
        names: Settings that vary in the sweep beside size.
        outcome: Column.
    """
    # Stable: of equally many values the order of the names stays.
    keys = sorted((name for name in names if name in table), key=lambda n: -table[n].nunique())
    if len(keys) < 2 or outcome not in table or not len(table):
        return []
    x, y = keys[:2]
    first = table.drop_duplicates("configuration").set_index("configuration")
    first = first.assign(size=size_names(first))
    first["value"] = table.groupby("configuration")[outcome].mean()
    maps = []
    groups = first.sort_values("total_params", kind="stable").groupby(
        ["architecture", "size"], sort=False
    )
    for (architecture, size), group in groups:
        best = group.groupby([y, x])["value"]
        grid = (best.max() if higher_is_better(outcome) else best.min()).unstack()
        if min(grid.shape) < FEWEST_VALUES:
            continue
        maps.append(
            HeatMap(
                title=f"{architecture} {size}",
                x=x,
                y=y,
                columns=list(grid.columns),
                rows=list(grid.index),
                values=grid.to_numpy(dtype=np.float64),
            )
        )
    return maps


def heat_map_figure(maps: Sequence[HeatMap], outcome: str) -> Figure:
    """Return a panel per map, the best of each framed, on one scale of colours.

    Raises:
        ValueError: If there is no map.
    """
    if not maps:
        raise ValueError("figure: no two settings were varied together at one size")
    shown = list(maps)[-MOST_PANELS:]
    n_columns = min(len(shown), 4)
    n_rows = -(-len(shown) // n_columns)
    finite = np.concatenate([m.values[np.isfinite(m.values)] for m in shown])
    with styled():
        figure = new_figure(1.2 + 2.9 * n_columns, 0.9 + 2.5 * n_rows)
        axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
        for axis in axes[len(shown) :]:
            axis.set_visible(False)
        for axis, one in zip(axes, shown, strict=False):
            image = _draw(axis, one, outcome, float(finite.min()), float(finite.max()))
        figure.colorbar(
            image, ax=list(axes[: len(shown)]), label=Y_LABELS.get(outcome, outcome), shrink=0.8
        )
        words = ["mean over seeds", "frame: best of those tried at that size"]
        if len(maps) > len(shown):
            words.append(f"the {len(shown)} largest of {len(maps)} sizes")
        caption(figure, " · ".join(words))
    return figure


def _draw(axis: Axes, one: HeatMap, outcome: str, low: float, high: float) -> Any:
    """Draw one map with its numbers; return what the colours belong to."""
    masked = np.ma.masked_invalid(one.values)
    image = axis.imshow(masked, aspect="auto", origin="lower", cmap=COLOUR_MAP, vmin=low, vmax=high)
    axis.set_xticks(range(len(one.columns)), [setting_text(v) for v in one.columns])
    axis.set_yticks(range(len(one.rows)), [setting_text(v) for v in one.rows])
    axis.set_xlabel(one.x.rpartition(".")[2])
    axis.set_ylabel(one.y.rpartition(".")[2])
    side_title(axis, one.title)
    middle = (low + high) / 2
    for (row, column), value in np.ndenumerate(one.values):
        if np.isfinite(value):
            ink = "white" if value < middle else INK
            axis.text(column, row, number(value), ha="center", va="center", color=ink, fontsize=8)
    best = np.nanargmax(one.values) if higher_is_better(outcome) else np.nanargmin(one.values)
    row, column = np.unravel_index(best, one.values.shape)
    frame: Any = {"fill": False, "edgecolor": "#D55E00", "linewidth": 2.5}
    axis.add_patch(Rectangle((float(column) - 0.5, float(row) - 0.5), 1, 1, **frame))
    return image
