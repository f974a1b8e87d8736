"""The figure of the next run: where the candidates lie among the runs, and what each brings for its price."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis.plotting.architectures import GRID, SHADE
from analysis.plotting.style import series_styles
from analysis.plotting.sweep import STYLE, rounded, ticks
from analysis.scaling.architecture_laws import SIZE_INPUTS, ArchitectureLaws
from analysis.scaling.experimental_design import ExperimentalDesign, LossAt


def next_run_figure(found: ExperimentalDesign, families: ArchitectureLaws) -> Figure:
    """Return two panels: candidates in the plane of sizes and tokens (larger is more telling), and width against GPU-hours.

    Without tokens in the law, the first panel has the outcome in their place.
    """
    styles = series_styles(families.by_name)
    numbers = {id(r.candidate): i + 1 for i, r in enumerate(found.chosen)}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 4.9), layout="constrained")
        FigureCanvasAgg(figure)
        plane, price = figure.subplots(1, 2)
        spans: list[list[float]] = [[], []]
        for name, family in families.by_name.items():
            rows = np.ones(len(family.fit.y), dtype=bool)
            if family.group is not None:
                rows = family.fit.inputs["group"] == family.group
            size = next(family.fit.inputs[n] for n in SIZE_INPUTS if n in family.fit.inputs)[rows]
            other = family.fit.inputs.get("tokens", family.fit.y)[rows]
            plane.plot(size, other, linestyle="none", marker=".", markersize=5, color=styles[name].colour, alpha=0.6, zorder=3)  # fmt: skip
            spans[0] += [size.min(), size.max()]
            spans[1] += [other.min(), other.max()]
        inside = Rectangle(
            (min(spans[0]), min(spans[1])), max(spans[0]) - min(spans[0]), max(spans[1]) - min(spans[1]),
            facecolor="white", edgecolor="none", zorder=0.5,
        )  # fmt: skip
        plane.set_facecolor(SHADE)
        plane.add_patch(inside)
        for r in found.ranked:
            inputs, style = r.candidate.inputs, styles[r.candidate.architecture]
            x = next(inputs[n] for n in SIZE_INPUTS if n in inputs)
            y = inputs.get("tokens", np.nan)
            removed = 1 - r.width**2
            if np.isfinite(y):
                plane.plot(x, y, linestyle="none", marker=style.marker, markersize=4 + 14 * np.sqrt(removed), markerfacecolor="none", markeredgecolor=style.colour, markeredgewidth=1.3, zorder=4)  # fmt: skip
                spans[0].append(x)
                spans[1].append(y)
            price.plot(r.candidate.gpu_hours, r.width, linestyle="none", marker=style.marker, markersize=6.5, markerfacecolor="white", markeredgecolor=style.colour, markeredgewidth=1.3, zorder=3)  # fmt: skip
            if id(r.candidate) in numbers:
                for axis, at in ((plane, (x, y)), (price, (r.candidate.gpu_hours, r.width))):
                    if np.isfinite(at[1]):
                        axis.annotate(str(numbers[id(r.candidate)]), at, xytext=(7, 7), textcoords="offset points", fontsize=11, fontweight="bold", zorder=6)  # fmt: skip
        target = found.target
        if isinstance(target, LossAt) and "tokens" in target.inputs:
            x = next(target.inputs[n] for n in SIZE_INPUTS if n in target.inputs)
            plane.plot(x, target.inputs["tokens"], marker="*", markersize=16, color="#222222", linestyle="none", zorder=5)  # fmt: skip
            spans[0].append(x)
            spans[1].append(target.inputs["tokens"])
        if found.chosen:
            hours = np.cumsum([r.candidate.gpu_hours for r in found.chosen])
            price.step(np.append(hours[0], hours), [1.0, *(r.width for r in found.chosen)], where="post", color="#222222", linewidth=1.6, zorder=2)  # fmt: skip
        for axis, low, high in ((plane.xaxis, *_ends(spans[0])), (plane.yaxis, *_ends(spans[1]))):
            axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
            axis.set_major_locator(FixedLocator(ticks(low, high, most=6)))
            axis.set_major_formatter(FuncFormatter(lambda v, _: rounded(v) if v >= 1e3 else f"{v:g}"))  # fmt: skip
            axis.set_minor_locator(NullLocator())
        plane.set(title="Candidates among the runs", xlabel="Parameters N")
        any_tokens = any("tokens" in r.candidate.inputs for r in found.ranked)
        plane.set_ylabel("Training tokens D" if any_tokens else families.outcome.capitalize())
        price.set_xscale("log")
        price.set(title="What a run brings for its price", xlabel="GPU-hours", ylabel="Width of the interval afterwards / now")  # fmt: skip
        price.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
        price.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.3g}%"))
        low, high = _ends([r.candidate.gpu_hours for r in found.ranked])
        price.set_xlim(low, high)
        price.xaxis.set_major_locator(FixedLocator(ticks(low, high, most=6)))
        price.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        price.xaxis.set_minor_locator(NullLocator())
        for axes in (plane, price):
            axes.grid(visible=True, color=GRID, linewidth=0.7)
            axes.set_axisbelow(True)
        _legend(figure, plane, found, families)
        figure.supxlabel(f"target: {found.target.description}", fontsize=9, color="#555555")
    return figure


def _legend(
    figure: Figure, plane: Axes, found: ExperimentalDesign, families: ArchitectureLaws
) -> None:
    styles = series_styles(families.by_name)
    shown = {r.candidate.architecture for r in found.ranked}
    handles: list[Line2D | Patch] = [
        Line2D([], [], linestyle="none", marker=s.marker, markersize=8, markerfacecolor="none", markeredgecolor=s.colour, markeredgewidth=1.3, label=f"candidate, {n}")
        for n, s in styles.items() if n in shown
    ]  # fmt: skip
    handles.append(Line2D([], [], linestyle="none", marker=".", color="#555555", label="run that is there"))  # fmt: skip
    if isinstance(found.target, LossAt) and "tokens" in found.target.inputs:
        handles.append(Line2D([], [], linestyle="none", marker="*", markersize=12, color="#222222", label="target"))  # fmt: skip
    if found.chosen:
        handles.append(Line2D([], [], color="#222222", linewidth=1.6, label="chosen, in order"))
    handles.append(Patch(facecolor=SHADE, edgecolor="#CCCCCC", label="outside the runs"))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 6), frameon=False, fontsize=9)  # fmt: skip


def _ends(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = max((high / low) ** 0.06, 1.15)
    return low / margin, high * margin
