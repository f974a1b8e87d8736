"""Draw figures of the documentation that follow from numbers in the repository: `make figures`.

`memory_scaling.png`, the README's first, is drawn from the runs in `docs/results/*.csv`. A line
joins means over seeds, small points are the runs; a hollow point is one seed. A dashed level is the
base without a memory, shaded from its lowest seed to its highest. Squares and dotted levels are
models whose output matrices begin smaller. Of these, 30m's is from the search of its rate.

`memoryformer_block_flops.png` is figure 1 of MemoryFormer, from `paper_block_flops` at the sizes of
`sweeps/papers/memoryformer/figure1.yaml`.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd

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
SMALLER = ("facts_initial_values", "facts_10m_memory_plus", "facts_10m_memory")
"""Parts whose trials all begin with smaller output matrices."""
LEVEL = "dense"
COLOURS = {LEVEL: "#000000", "memory": "#0072B2", "memory_plus": "#D55E00"}
"""As on the pages of results (`benchmarks/results_page.py`)."""


def main() -> None:
    """Draw all figures."""
    _save(_memory_scaling(), "memory_scaling.png")
    _save(_block_flops(), "memoryformer_block_flops.png")


def _save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / name, dpi=150)
    print(f"wrote {IMAGES / name}")


def _memory_scaling() -> Figure:
    """Return recall of facts and bits per byte of a text by memory parameters, a column a base."""
    figure, axes = plt.subplots(2, 4, figsize=(14, 7), layout="constrained")
    facts = (
        (
            "1m",
            "30,000 people",
            ("facts_1m", "facts_1m_memory", "facts_1m_largest", "facts_initial_values"),
        ),
        ("3m", "30,000 people", ("facts_3m", "facts_3m_largest", "facts_initial_values")),
        ("10m", "140,000 people", ("facts_10m_memory_plus", "facts_10m_memory")),
    )
    for panel, (base, people, parts) in zip(axes[0, :3], facts, strict=True):
        _draw(panel, pd.concat([_part(part) for part in parts]).query("preset == @base"), RECALL)
        panel.set(title=f"facts, {people}, {base} base", ylim=(0, 1.03))
    seeded = map(_part, ("text_3m", "text_10m", "text_largest"))
    texts = pd.concat([*seeded, _text_30m()])  # share a scale
    for panel, base in zip(axes[1, 1:], ("3m", "10m", "30m"), strict=True):
        _draw(panel, texts.query("preset == @base"), BITS)
        one = ", one seed" * (base == "30m")
        panel.set(title=f"text, {base} base{one}", ylim=outcome_limits(texts[BITS], BITS))
    for column in axes[:, 1:3].T:  # facts and text of a base share a scale
        lows, highs = zip(*(panel.get_xlim() for panel in column), strict=True)
        for panel in column:
            log_scale(panel, "x", min(lows), max(highs), show=rounded, most=4)
    for panel in axes.flat[[0, 1, 2, 5, 6, 7]]:
        panel.set_xlabel("parameters of the memory")
    axes[0, 0].set_ylabel("facts recalled")
    axes[1, 1].set_ylabel("bits per byte (axis not from 0)")
    legend = axes[0, 3]  # no facts were given to 30m
    for empty in (legend, axes[1, 0]):  # no text to 1m
        empty.set_axis_off()
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


def _draw(panel: Axes, runs: pd.DataFrame, metric: str) -> None:
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
            continue
        sizes = rows.groupby("memory_params")[metric]
        means, seeds = sizes.mean(), sizes.count()
        mark = "s" if init else "o"
        panel.plot(means.index, means, marker=mark, linestyle="" if init else "-", **style)
        panel.scatter(rows["memory_params"], rows[metric], s=9, alpha=0.5, color=style["color"])
        one = means[seeds == 1]
        panel.plot(one.index, one, mark, color=style["color"], markerfacecolor="white", zorder=3)
    sizes = runs.loc[runs["architecture"] != LEVEL, "memory_params"]
    low, high = sizes.min() / 1.5, sizes.max() * 3
    log_scale(panel, "x", low, high, show=rounded, most=4)


if __name__ == "__main__":
    main()
