"""One entry for all figures: `draw` finds the figure for whatever was fitted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.fitting.missing_run_sensitivity import PartialFit
from analysis.fitting.result import LawFit
from analysis.fitting.two_stage import TwoStageFit
from analysis.loading.load import Runs
from analysis.plotting.chain_figure import chain_figure
from analysis.plotting.curve_figure import curve_figure
from analysis.plotting.design_figure import design_figure
from analysis.plotting.envelope_figure import envelope_figure
from analysis.plotting.frontier_figure import frontier_figure
from analysis.plotting.isoflop_figure import isoflop_figure
from analysis.plotting.law_figure import law_figure
from analysis.plotting.multipliers_figure import multipliers_figure
from analysis.plotting.sweep_figure import sweep_figure
from analysis.plotting.usage_figure import usage_figure
from analysis.scaling.architecture_laws import ArchitectureLaws
from analysis.scaling.compute_multiplier import Multipliers
from analysis.scaling.design_result import ExperimentalDesign
from analysis.scaling.envelope import Envelope
from analysis.scaling.frontier import Frontier
from analysis.scaling.isoflop import IsoflopFit
from analysis.scaling.sweep_summary import SweepFits


def _law(fits: LawFit | Mapping[str, LawFit], **options: Any) -> Figure:
    one = fits if isinstance(fits, LawFit) else next(iter(fits.values()))
    # A law of one size, fitted to the outcome itself, is a curve: nothing else is to be held.
    if one.objective_of.residual == "value" and len(one.inputs) == 1:
        return curve_figure(fits, **options)
    return law_figure(fits, **options)


def _partial(found: PartialFit, **options: Any) -> Figure:
    return _law(found.fit, **options)


def _architectures(laws: ArchitectureLaws, **options: Any) -> Figure:
    # One fit of several architectures has a series for each; others are named by theirs.
    fits = {id(law.fit): (name, law.fit) for name, law in laws.by_name.items()}
    if len(fits) < len(laws.by_name):
        return _law({fit.law.name: fit for _, fit in fits.values()}, **options)
    return _law(dict(fits.values()), **options)


def _multipliers(curves: Multipliers | Sequence[Multipliers], **options: Any) -> Figure:
    given = [curves] if isinstance(curves, Multipliers) else curves
    return multipliers_figure(given, **options)


def _sweep(fits: SweepFits, *, runs: Runs, histories: pd.DataFrame | None = None) -> Figure | None:
    if histories is None:
        return sweep_figure(runs, fits)
    return usage_figure(runs, fits, histories)


FIGURES: Mapping[type, Callable[..., Figure | None]] = {
    LawFit: _law,
    TwoStageFit: chain_figure,
    IsoflopFit: isoflop_figure,
    Envelope: envelope_figure,
    PartialFit: _partial,
    ArchitectureLaws: _architectures,
    Multipliers: _multipliers,
    Frontier: frontier_figure,
    ExperimentalDesign: design_figure,
    SweepFits: _sweep,
}
"""The figure of each kind of result."""


def draw(result: Any, **options: Any) -> Any:
    """Return the matplotlib figure of a result, or of several of one kind.

    As the last line of a notebook's cell it is shown.

    Args:
        result: What a fit returned; laws and chains also as a mapping by architecture,
            multipliers also as a list.
        options: Of the figure: `runs` for the fits of a sweep, and `histories` for the use of its
            memories and experts over training (None where nothing reported it); `size=True` for
            multipliers of size; the label `outcome` of laws, chains, profiles and envelopes, and
            `x` of laws of one size.

    Raises:
        ValueError: If it is of no kind known, or has no numbers.

    Example:
        >>> from analysis import fit_law
        >>> runs = {"x": [1e6, 4e6, 1.6e7, 6.4e7, 2.56e8], "loss": [5.0, 4.0, 3.5, 3.25, 3.125]}
        >>> draw(fit_law("power", runs, n_draws=0)).axes[-1].get_xlabel()
        'Size'
    """
    one = result
    if isinstance(result, Mapping | list | tuple) and len(result):
        one = next(iter(result.values() if isinstance(result, Mapping) else result))
    if type(one) not in FIGURES:
        kinds = ", ".join(kind.__name__ for kind in FIGURES)
        raise ValueError(f"figure: of {kinds}, got {type(one).__name__}")
    return FIGURES[type(one)](result, **options)
