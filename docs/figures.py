"""Draw the README's first figure from the runs of the study memory_scaling: `make figures`.

Its runs are in `docs/results/*.csv`. A line joins means over seeds, small points are the runs. A
dashed level is the base without a memory.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from analysis.plotting.axes import rounded, ticks

RESULTS = Path(__file__).parent / "results"
IMAGE = Path(__file__).parent / "images" / "memory_scaling.png"
RECALL = "recall/train_wording/exact_match"
LEVEL = "dense"
COLOURS = {LEVEL: "#555555", "memory": "#0072B2", "memory_plus": "#D55E00"}


def main() -> None:
    """Draw recall of facts at two bases and bits per byte of a text, against memory parameters."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.7), layout="constrained")
    panels = (
        (("facts_1m", "facts_1m_memory", "facts_1m_largest"), "1m base", RECALL, "facts recalled"),
        (("facts_3m", "facts_3m_largest"), "3m base", RECALL, "facts recalled"),
        (("text_3m",), "3m base", "valid/bits_per_byte", "bits per byte, held-out text"),
    )
    for panel, (parts, title, metric, label) in zip(axes, panels, strict=True):
        runs = pd.concat([pd.read_csv(RESULTS / f"memory_scaling_{part}.csv") for part in parts])
        _draw(panel, runs, metric)
        panel.set(title=title, ylabel=label, xlabel="parameters of the memory")
        if metric == RECALL:
            panel.set_ylim(0, 1.03)
    axes[0].legend(frameon=False)
    figure.savefig(IMAGE, dpi=150)
    print(f"wrote {IMAGE}")


def _draw(panel: Axes, runs: pd.DataFrame, metric: str) -> None:
    """Draw a curve for each memory and a level for the base."""
    style: dict[str, Any]
    for architecture, rows in runs.groupby("architecture"):
        style = {"color": COLOURS[str(architecture)], "label": architecture}
        if architecture == LEVEL:
            panel.axhline(rows[metric].mean(), linestyle="--", **style)
            continue
        means = rows.groupby("memory_params")[metric].mean()
        panel.plot(means.index, means, marker="o", **style)
        panel.scatter(rows["memory_params"], rows[metric], s=9, alpha=0.5, color=style["color"])
    sizes = runs.loc[runs["architecture"] != LEVEL, "memory_params"]
    panel.set_xscale("log")
    panel.set_xticks(marks := ticks(sizes.min() / 1.5, sizes.max() * 1.5), map(rounded, marks))
    panel.xaxis.set_minor_locator(mpl.ticker.NullLocator())


if __name__ == "__main__":
    main()
