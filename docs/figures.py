"""Draw figures of the documentation that follow from numbers in the repository: `make figures`.

`memory_scaling.png`, the README's first, is drawn from the runs in `docs/results/*.csv`. A line
joins means over seeds, small points are the runs. A hollow point is one seed, a half-filled one
two. A dashed level is the base without a memory, shaded from its lowest seed to its highest.
Squares and dotted levels are models whose output matrices begin smaller. Of these, 30m's is from
the search of its rate. `memory_scaling_total.png` has the same runs against all parameters, and
`memory_scaling_seconds.png` against seconds of training. There nothing is joined, since GPUs were
shared in different ways.

`architectures.png` and `ngram_dispute.png` are of the overviews of these two studies, see
`study_figures.py`.

`memoryformer_block_flops.png` is figure 1 of MemoryFormer, from `paper_block_flops` at the sizes of
`sweeps/papers/memoryformer/figure1.yaml`.
"""

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import study_figures

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plotting.axes import log_scale, outcome_limits, rounded
from workloads.architectures import memoryformer, pythia

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parent / "images"
RECALL = "recall/train_wording/exact_match"
BITS = "valid/bits_per_byte"
INIT = "model.output_init"
SMALLER = (
    "facts_initial_values",
    "facts_10m_memory_plus",
    "facts_10m_memory",
    "facts_10m_larger",
)
"""Parts whose trials all begin with smaller output matrices."""
LEVEL = "dense"
MEMORY, TOTAL, SECONDS = "memory_params", "total_params", "train_seconds"
X_LABELS = {
    MEMORY: "parameters of the memory",
    TOTAL: "all parameters",
    SECONDS: "seconds of training, GPUs shared",
}
COLOURS = {LEVEL: "#000000", "memory": "#0072B2", "memory_plus": "#D55E00"}
"""As on the pages of results (`benchmarks/results_page.py`)."""
FEW_SEEDS: dict[int, dict[str, Any]] = {
    1: {"markerfacecolor": "white"},
    2: {"fillstyle": "left", "markerfacecoloralt": "white"},
}
"""How a mean of fewer than three seeds is marked."""


def main() -> None:
    """Draw all figures."""
    _save(_memory_scaling(MEMORY), "memory_scaling.png")
    _save(_memory_scaling(TOTAL), "memory_scaling_total.png")
    _save(_memory_scaling(SECONDS), "memory_scaling_seconds.png")
    _save(study_figures.architectures(), "architectures.png")
    _save(study_figures.ngram_dispute(), "ngram_dispute.png")
    _save(_block_flops(), "memoryformer_block_flops.png")


def _save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / name, dpi=150)
    print(f"wrote {IMAGES / name}")


def _memory_scaling(x: str) -> Figure:
    """Return recall of facts and bits per byte of a text by a column of X_LABELS, base by base."""
    figure, axes = plt.subplots(2, 4, figsize=(14, 7), layout="constrained")
    facts = (
        (
            "1m",
            "30,000 people",
            ("facts_1m", "facts_1m_memory", "facts_1m_largest", "facts_initial_values"),
        ),
        ("3m", "30,000 people", ("facts_3m", "facts_3m_largest", "facts_initial_values")),
        ("10m", "140,000 people", SMALLER[1:]),
    )
    for panel, (base, people, parts) in zip(axes[0, :3], facts, strict=True):
        _draw(panel, pd.concat([_part(part) for part in parts]).query("preset == @base"), RECALL, x)
        panel.set(title=f"facts, {people}, {base} base", ylim=(0, 1.03))
    seeded = ("text_1m", "text_3m", "text_10m", "text_largest", "text_largest_seeds")
    texts = pd.concat([*map(_part, seeded), _text_30m()])  # share a scale
    texts = texts.drop_duplicates("trial_id")  # the last two share seed 0
    for panel, base in zip(axes[1], ("1m", "3m", "10m", "30m"), strict=True):
        _draw(panel, texts.query("preset == @base"), BITS, x)
        one = ", one seed" * (base == "30m")
        panel.set(title=f"text, {base} base{one}", ylim=outcome_limits(texts[BITS], BITS))
    drawn = axes.flat[[0, 1, 2, 4, 5, 6, 7]]
    together = {MEMORY: axes[:, :3].T, TOTAL: [drawn], SECONDS: [drawn[:3], drawn[3:]]}
    for panels in together[x]:  # those that share a scale; facts and text of a base do in the first
        lows, highs = zip(*(panel.get_xlim() for panel in panels), strict=True)
        for panel in panels:
            show = "{:g}".format if x == SECONDS else rounded
            log_scale(panel, "x", min(lows), max(highs), show=show, most=4)
    for panel in drawn:
        panel.set_xlabel(X_LABELS[x])
    axes[0, 0].set_ylabel("facts recalled")
    axes[1, 0].set_ylabel("bits per byte (axis not from 0)")
    legend = axes[0, 3]  # no facts were given to 30m
    legend.set_axis_off()
    if x == SECONDS:
        axes[0, 0].plot([], [], "o", color="grey", label="filled: on an H100")
        axes[0, 0].plot(
            [], [], "o", color="grey", markerfacecolor="white", label="hollow: on an H200"
        )
    handles = {
        label: handle
        for panel in axes.flat
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    labels = sorted(handles)
    legend.legend(
        [handles[label] for label in labels], labels, frameon=False, fontsize=9, loc="center"
    )
    return figure


def _part(name: str) -> pd.DataFrame:
    runs = pd.read_csv(RESULTS / f"memory_scaling_{name}.csv")
    if INIT not in runs:  # a setting that all trials of a part share has no column
        runs[INIT] = "depth_scaled" if name in SMALLER else ""
    return runs.fillna({INIT: ""})


def _text_30m() -> pd.DataFrame:
    """Return the runs at 30m, of dense with smaller output matrices that at its best rate."""
    tuned = pd.read_csv(RESULTS / "architectures_tune_30m.csv").query("architecture == @LEVEL")
    tuned = tuned[tuned[INIT].notna()].nsmallest(1, BITS)
    return pd.concat([_part("text_30m").query(f"`{INIT}` == ''"), tuned])


def _block_flops() -> Figure:
    """Return FLOPs of a block and sequence by width and by length, as the paper counts them."""
    figure, (by_width, by_length) = plt.subplots(1, 2, figsize=(9, 3.7), layout="constrained")
    widths, lengths = (512, 1024, 2048, 4096), (1024, 2048, 4096, 8192)
    for name, colour, flops in (
        ("pythia", COLOURS["memory"], _pythia_flops),
        ("memoryformer", COLOURS["memory_plus"], _memoryformer_flops),
    ):
        style: dict[str, Any] = {"color": colour, "label": name, "marker": "o"}
        by_width.plot(widths, [flops(width, 2048) / 1e9 for width in widths], **style)
        by_length.plot(lengths, [flops(2048, length) / 1e9 for length in lengths], **style)
    for panel, marks, label in (
        (by_width, widths, "width, at 2,048 tokens"),
        (by_length, lengths, "tokens, at width 2,048"),
    ):
        panel.set(xscale="log", yscale="log", xlabel=label, ylabel="GFLOPs of a block")
        panel.set_xticks(marks, [f"{mark:,}" for mark in marks])
        panel.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    for width in widths:
        share = _memoryformer_flops(width, 2048) / _pythia_flops(width, 2048)
        by_width.annotate(
            f"{share:.0%}",
            (width, _memoryformer_flops(width, 2048) / 1e9),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    by_width.legend(frameon=False)
    return figure


def _pythia_flops(width: int, seq_len: int) -> int:
    fields = {**pythia.PRESETS["410m"], "d_model": width, "d_ff": 4 * width}
    return pythia.Config(**fields).paper_block_flops(seq_len)


def _memoryformer_flops(width: int, seq_len: int) -> int:
    fields = {**memoryformer.PRESETS["base"], "d_model": width, "n_heads": 16}
    return memoryformer.Config(**fields).paper_block_flops(seq_len)


def _draw(panel: Axes, runs: pd.DataFrame, metric: str, x: str) -> None:
    """Draw a curve for each memory, and a level with the span of its seeds for the base."""
    style: dict[str, Any]
    for (architecture, init), rows in runs.groupby(["architecture", INIT]):
        style = {"color": COLOURS[str(architecture)], "label": architecture}
        if init:
            style |= {"label": f"{architecture}, smaller output matrices"}
        if architecture == LEVEL:
            panel.axhline(rows[metric].mean(), linestyle=":" if init else "--", **style)
            low, high = rows[metric].min(), rows[metric].max()
            panel.axhspan(low, high, color=style["color"], alpha=0.1, linewidth=0)
            if x == MEMORY:
                continue  # it has none
            style |= {"label": "_"}
        panel.scatter(rows[x], rows[metric], s=9, alpha=0.5, color=style["color"])
        mark = "s" if init else "o"
        if x == SECONDS:
            _draw_apart(panel, rows, metric, style | {"marker": mark})
            continue
        sizes = rows.groupby(x)[metric]
        means, seeds = sizes.mean(), sizes.count()
        panel.plot(means.index, means, marker=mark, linestyle="" if init else "-", **style)
        for n, look in FEW_SEEDS.items():
            few = means[seeds == n]
            panel.plot(few.index, few, mark, color=style["color"], zorder=3, **look)
    shown = runs.loc[runs["architecture"] != LEVEL, x] if x == MEMORY else runs[x]
    low, high = shown.min() / 1.5, shown.max() * (3 if x == MEMORY else 1.5)
    log_scale(panel, "x", low, high, show=rounded, most=4)


def _draw_apart(panel: Axes, rows: pd.DataFrame, metric: str, style: dict[str, Any]) -> None:
    """Draw means of seeds on each kind of GPU, hollow on an H200, larger with a larger table."""
    kinds = rows["device"].str.contains("H200").rename("h200")
    for (_, h200), trials in rows.groupby([MEMORY, kinds]):
        table = float(trials[MEMORY].iloc[0])
        look: dict[str, Any] = style | {"markersize": 4 + 1.3 * math.log10(max(table / 1e5, 1))}
        if h200:
            look |= {"markerfacecolor": "white", "label": "_"}
        panel.plot(trials[SECONDS].mean(), trials[metric].mean(), linestyle="", **look)


if __name__ == "__main__":
    main()
