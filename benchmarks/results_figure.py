"""Figure of a finished sweep: what was tuned as a grid, one size as dots, the rest as curves.

`results_page.py` draws it, and the looks of architectures are the same on all pages.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd

import analysis
from analysis.loading.load import Runs
from analysis.plotting.axes import caption, log_scale, margins, rounded
from analysis.plotting.style import MARKERS, marker_size, series_styles
from analysis.scaling.outcomes import higher_is_better
from analysis.scaling.tuned_setting import tuned_setting

mpl.use("Agg")
import matplotlib.pyplot as plt

FIGURE_METRICS = 3
"""Most panels of the figure."""
STYLES = series_styles(
    (
        "memory",
        "memory_plus",
        "engram",
        "moe",
        "peer",
        "pythia",
        "dense",
        "memoryformer",
        "ngram_input",
        "value_embeddings",
        "per_layer_embedding",
        "ultramem_v2",
        "lookup_ffn",
        "latent_attention",
        "all_attention",
        "linformer",
        "performer",
        "cosformer",
    )
)
"""Look of every architecture, the same on all pages. A new one comes last. Those that share a colour
have other marks, and share no mark with a later curve of the other."""
MOST_MARKS = 6
"""Most curves of one architecture that have marks of their own."""
BASE = "dense"
"""Architecture whose levels are drawn through figures of one size."""
INIT = "model.output_init"
SMALLER = "depth_scaled"
"""Value of INIT with which output matrices begin smaller: drawn dotted."""
LEVELS = {
    "--": f"dashed: mean of {BASE}",
    ":": f"dotted: of {BASE} with smaller output matrices",
    "-.": f"dash-dotted: of another {BASE}",
}
"""Line through a figure of dots -> what it is."""


class Column(NamedTuple):
    """A metric of the page."""

    metric: str
    heading: str


def draw_figure(runs: Runs, columns: Sequence[Column], path: Path) -> None:
    """Draw the panels: what was tuned as a grid, one size of each as dots, the rest as curves."""
    table = runs.table
    panels = figure_columns(table, columns)
    if not varied_numbers(table, "data."):
        tuned = tuned_setting(table, analysis.fit_sweep(runs, n_draws=0))
        if tuned is not None:
            _grid(table, tuned.name, tuned.arms, _loss(columns), path)
            return
    label, across = _across(table)
    if label == "total parameters" and table["preset"].nunique() == 1:
        _dots(list(_curves(table, pd.Series(0.0, table.index))), panels, path)
        return
    curves = list(_curves(table, across))
    if label == "total parameters" and all(across[r.index].nunique() == 1 for *_, r in curves):
        _dots(curves, panels, path)
        return
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(1.6 + 3.8 * len(panels), 3.6),
        squeeze=False,
        layout="constrained",
    )
    for panel, (metric, heading) in zip(axes[0], panels, strict=True):
        for (architecture, name, rows), later, line in zip(
            curves, _later(curves), _lines(curves), strict=True
        ):
            look: dict[str, Any] = {"color": STYLES[architecture].colour, "label": name}
            look["linestyle"] = line
            at = across[rows.index]
            if at.isna().all():  # without a table: a level, and a band from seed to seed
                panel.axhline(rows[metric].mean(), **look)
                if len(rows) > 1:
                    ends = rows[metric].min(), rows[metric].max()
                    panel.axhspan(*ends, color=look["color"], alpha=0.1, linewidth=0)
                continue
            means = rows.groupby(at)[metric].mean()
            look |= _mark(architecture, later)
            panel.plot(means.index, means, **look)
            if rows["seed"].nunique() > 1:
                seeds = {"color": look["color"], "marker": look["marker"]}
                panel.scatter(at, rows[metric], s=look["markersize"] ** 2 / 4, alpha=0.5, **seeds)
        panel.set(xlabel=label, ylabel=_axis_name(heading, panel.get_ylim(), "\n"))
        log_scale(panel, "x", *margins(across.dropna(), least=1.5), show=rounded, most=6)
    handles, names = axes[0][-1].get_legend_handles_labels()
    columns_of_names = 2 * len(panels)
    figure.legend(handles, names, loc="outside upper center", ncols=columns_of_names, fontsize=7)
    if table["seed"].nunique() > 1:
        words = "lines: means over seeds; small points: seeds"
        caption(figure, f"{words}; shaded: their span" if across.isna().any() else words)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def varied_numbers(table: pd.DataFrame, *sections: str) -> list[str]:
    """Return the settings of sections (`data.`, ...) that differ between trials and are numbers."""
    return [
        name
        for name in table
        if name.startswith(sections)
        and pd.api.types.is_numeric_dtype(table[name])
        and table[name].nunique() > 1
    ]


def figure_columns(table: pd.DataFrame, columns: Sequence[Column]) -> list[Column]:
    """Return what the figure shows: the first metrics that differ between trials.

    Bits per byte and loss are one quantity, so one of them is enough.
    """
    names = {metric for metric, _ in columns}
    shown = [
        column
        for column in columns
        if not (column.metric == "valid/loss" and "valid/bits_per_byte" in names)
        and table[column.metric].nunique() > 1
    ]
    return (shown or list(columns))[:FIGURE_METRICS]


def _across(table: pd.DataFrame) -> tuple[str, pd.Series]:
    """Return what the figure is drawn against, in words and of each trial.

    It is what varies in the data; of one size with tables of several sizes their rows; or total
    parameters.
    """
    for name in varied_numbers(table, "data."):
        words = name.rpartition(".")[2].removeprefix("n_").replace("_", " ")
        return words, table[name].astype(float)
    keys = "model.n_keys"
    one_size = keys in varied_numbers(table, "model.") and table["preset"].nunique() == 1
    if one_size and (table.groupby("architecture")[keys].nunique() > 1).any():
        return "rows of the memory", table[keys].astype(float) ** 2
    return "total parameters", table["total_params"].astype(float)


def _curves(table: pd.DataFrame, across: pd.Series) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield architecture, name and runs of every curve: settings that vary make further ones.

    A setting that has one value at each place of the x axis makes no further curve. Plain output
    matrices come before smaller ones.
    """
    for architecture, rows in table.groupby("architecture"):
        settings = [name for name in rows if name.startswith(("train.", "model."))]
        at = across[rows.index].fillna(0.0)
        varied = [c for c in settings if rows.groupby(at)[c].nunique(dropna=False).max() > 1]
        # Tokens that a match solved for tell nothing apart that other settings do not.
        others = [c for c in varied if c != "train.tokens"]
        if others != varied and others:
            tokens = rows.groupby(others, dropna=False)["train.tokens"].nunique()
            varied = others if tokens.max() <= 1 else varied
        if not varied:
            words = [str(architecture), *_shared_init(rows)]
            # Several sizes beside one preset are a curve of their own: they have its budget.
            bases = rows.groupby("preset", sort=False)
            apart = len(bases) > 1 and bases["total_params"].nunique().max() > 1
            for preset, part in sorted(bases, key=_smallest) if apart else [("", rows)]:
                beside = [f"beside {preset}"] if apart else []
                yield str(architecture), ", ".join([*words, *beside]), part
            continue
        if varied == ["train.tokens"]:
            # How many a match solved for differs from size to size; fewest go with fewest.
            order = rows.groupby(at)["train.tokens"].rank("dense")
            for _, part in rows.groupby(order):
                yield str(architecture), f"{architecture}, {_tokens(part)}", part
            continue
        parts = list(rows.groupby(varied, dropna=False))
        for values, part in sorted(parts, key=lambda of: _begins_smaller(of[1])):
            named = zip((name.rpartition(".")[2] for name in varied), values, strict=True)
            shown = [f"{name} {_plainly(value)}" for name, value in named if not pd.isna(value)]
            words = [] if INIT in varied else _shared_init(part)
            yield str(architecture), ", ".join([str(architecture), *words, *shown]), part


def _smallest(of_preset: tuple[Any, pd.DataFrame]) -> float:
    """Return the parameters of the smallest model of a preset."""
    return float(of_preset[1]["total_params"].min())


def _tokens(rows: pd.DataFrame) -> str:
    """Return from how many to how many tokens these runs read."""
    ends = [f"{n / 1e6:.3g} M" for n in (rows["train.tokens"].min(), rows["train.tokens"].max())]
    return f"{' to '.join(dict.fromkeys(ends))} tokens"


def _begins_smaller(rows: pd.DataFrame) -> bool:
    """Return whether output matrices of all these runs begin smaller."""
    return INIT in rows and bool((rows[INIT] == SMALLER).all())


def _shared_init(rows: pd.DataFrame) -> list[str]:
    """Return the words for a beginning that all runs of a curve share, if it is not the plain one."""
    return [f"{INIT.rpartition('.')[2]} {SMALLER}"] if _begins_smaller(rows) else []


def _loss(columns: Sequence[Column]) -> Column:
    """Return the held-out loss, or else the first metric."""
    return next((column for column in columns if column.metric == "valid/loss"), columns[0])


def _mark(architecture: str, later: int) -> dict[str, Any]:
    """Return the mark of an architecture's curve, by how many others stand before it.

    The second is hollow, the third and fourth have the next mark but two, and so on.
    """
    later = min(later, MOST_MARKS - 1)
    place = MARKERS.index(STYLES[architecture].marker) + 3 * (later // 2)
    marker = MARKERS[place % len(MARKERS)]
    hollow = {"markerfacecolor": "white"} if later % 2 else {}
    return {"marker": marker, "markersize": marker_size(marker, 6.0), **hollow}


def _later(curves: Sequence[tuple[str, str, pd.DataFrame]]) -> list[int]:
    """Return of each curve how many others of its architecture stand before it."""
    architectures = [architecture for architecture, *_ in curves]
    return [architectures[:place].count(name) for place, name in enumerate(architectures)]


def _lines(curves: Sequence[tuple[str, str, pd.DataFrame]]) -> list[str]:
    """Return the line of each curve: dotted where output matrices begin smaller.

    Of the others the first of an architecture is solid, that of BASE dashed; further ones are
    dash-dotted.
    """
    found: list[str] = []
    plain: set[str] = set()
    for architecture, _, rows in curves:
        first = "--" if architecture == BASE else "-"
        found.append(":" if _begins_smaller(rows) else "-." if architecture in plain else first)
        if found[-1] != ":":
            plain.add(architecture)
    return found


def _axis_name(heading: str, ends: tuple[float, float], before: str = " ") -> str:
    """Return the name of an axis, which says where 0 lies beyond its lower end."""
    return f"{heading}{before}(axis not from 0)" if min(ends) > 0 else heading


def _dots(
    curves: Sequence[tuple[str, str, pd.DataFrame]], columns: Sequence[Column], path: Path
) -> None:
    """Draw one size of each: a line per configuration, best first, a mark for each seed."""
    best = columns[0].metric
    ranked = sorted(
        zip(curves, _later(curves), strict=True), key=lambda one: float(one[0][2][best].mean())
    )
    if higher_is_better(best):
        ranked.reverse()
    named = [curve for curve, _ in ranked]
    words = max(len(name) for _, name, _ in named)
    figure, axes = plt.subplots(
        1,
        len(columns),
        figsize=(max(2.2, 0.085 * words) + 3.4 * len(columns), 1.5 + 0.26 * len(named)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    lines = _lines(named)
    shown = {line for (name, *_), line in zip(named, lines, strict=True) if name == BASE}
    levels = shown if len(named) > 2 else set()
    for panel, (metric, heading) in zip(axes[0], columns, strict=True):
        for place, (((architecture, _, rows), later), line) in enumerate(
            zip(ranked, lines, strict=True)
        ):
            colour, mean = STYLES[architecture].colour, rows[metric].mean()
            mark = _mark(architecture, later)
            panel.scatter(
                rows[metric],
                [place] * len(rows),
                s=0.7 * mark["markersize"] ** 2,
                marker=mark["marker"],
                edgecolors=colour,
                facecolors=mark.get("markerfacecolor", colour),
                alpha=0.7,
            )
            if len(rows) > 1:
                panel.scatter(mean, place, s=70, marker="|", color="black")
            if levels and architecture == BASE:
                panel.axvline(mean, color=colour, linestyle=line, linewidth=0.9)
        panel.set(xlabel=_axis_name(heading, panel.get_xlim()))
        panel.set_ylim(len(named) - 0.5, -0.5)
        panel.grid(axis="both", alpha=0.3)
    axes[0][0].set_yticks(range(len(named)), [name for _, name, _ in named])
    several = any(len(rows) > 1 for *_, rows in named)
    legend = "marks: seeds; black line: their mean" if several else "marks: one seed of each"
    caption(figure, "; ".join([legend, *(LEVELS[line] for line in LEVELS if line in levels)]))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _grid(
    table: pd.DataFrame, setting: str, arms: Mapping[str, str], column: Column, path: Path
) -> None:
    """Draw a metric of every configuration at every value of what was tuned, the best row first.

    The colour is the distance to the best value of the row.
    """
    metric, heading = column
    rows = table.assign(arm=table["configuration"].map(arms))
    means = rows.pivot_table(index="arm", columns=setting, values=metric)
    high = higher_is_better(metric)
    best = means.max(axis=1) if high else means.min(axis=1)
    means = means.loc[best.sort_values(ascending=not high).index]
    behind = means.sub(best[means.index], axis=0).abs()
    figure, axes = plt.subplots(
        figsize=(2.6 + 0.85 * len(means.columns), 1.3 + 0.27 * len(means)), layout="constrained"
    )
    most = max(float(behind.quantile(0.75, axis=1).median()), 1e-9)
    axes.imshow(behind, cmap="YlOrBr", vmin=0, vmax=3 * most, aspect="auto", alpha=0.6)
    for y, arm in enumerate(means.index):
        for x, value in enumerate(means.loc[arm]):
            if not math.isnan(value):
                weight = "bold" if behind.loc[arm].iloc[x] == 0 else "normal"
                number = f"{value:#.4g}".rstrip(".")
                axes.text(x, y, number, ha="center", va="center", fontsize=8, weight=weight)
    axes.set_yticks(range(len(means)), list(means.index), fontsize=8)
    axes.set_xticks(range(len(means.columns)), [_power(value) for value in means.columns])
    axes.set(xlabel=setting.rpartition(".")[2], title=heading)
    caption(figure, "bold: the best of a row; the darker, the farther from it")
    figure.savefig(path, dpi=130, bbox_inches="tight")  # a title may be wider than few columns
    plt.close(figure)


def _plainly(value: Any) -> str:
    """Return a setting with all digits of a whole number, which a table may hold as a float."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _power(value: float) -> str:
    """Return a small number with its power of ten, 6e-3 and 1.2e-2, and others as they are."""
    if not 0 < value < 0.1:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    return f"{value / 10.0**exponent:.3g}e{exponent}"
