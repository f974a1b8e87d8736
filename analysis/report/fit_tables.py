"""Tables of fits: numbers, intervals, status, hold-out, optimiser diagnostics."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from analysis.fitting.result import LawFit
from analysis.fitting.two_stage import TwoStageFit
from analysis.fitting.verdict import FitVerdict
from analysis.formatting import Column, Table, number
from analysis.scaling.isoflop import IsoflopFit


def laws_table(laws: Mapping[str, Any]) -> Table:
    """Return one row per fit: of `fit_law`, `fit_chain`, `fit_isoflop` or `fit_envelope`."""
    rows = [(title, *row) for title, fit in laws.items() for row in _law_rows(fit)]
    headings = ("fit", "numbers", "status", "verdict", "hold-out", "what they mean")
    note = (
        "hold-out: mean |log error| of the largest runs, predicted from the rest; "
        "absolute: in the units of the outcome, as the law was fitted"
    )
    return Table(
        title="Laws",
        columns=headings,
        rows=tuple(rows),
        numeric=(False,) * len(headings),
        notes=(note,) if rows else (),
    )


def _law_rows(fit: Any) -> list[tuple[str, ...]]:
    """Return numbers, status, verdict, hold-out and sentences of every part of a fit."""
    if isinstance(fit, LawFit):
        return [_row(f"{fit.law.name}: {parameters(fit)}", fit, fit.verdict, _held_out_error(fit))]
    if isinstance(fit, TwoStageFit):
        link = fit.to_outcome
        return [*_law_rows(fit.to_loss), _row(parameters(link), link, fit.verdict)]
    if isinstance(fit, IsoflopFit):
        lines = [_row(_optimum(line), line, fit.verdict) for line in fit.lines.values()]
        return [*lines, *_law_rows(fit.parametric)]
    return [_row(_optimum(fit), fit)]


def _held_out_error(fit: LawFit) -> str:
    """Return the mean error of the held-out runs, as a share or in the units of the outcome."""
    if fit.hold_out is None:
        return "–"
    if fit.objective_of.residual == "value":
        return f"{number(float(abs(fit.hold_out.errors).mean()))} absolute"
    return f"{fit.hold_out.mean_absolute_log_error:.2%}"


def _row(
    numbers: str, fit: Any, verdict: FitVerdict | None = None, held: str = "–"
) -> tuple[str, ...]:
    """Return a row; an envelope has no verdict."""
    judged = "–" if verdict is None else str(verdict.status)
    means = fit.sentence if verdict is None else f"{fit.sentence}. {verdict.sentence}"
    return numbers, str(fit.status), judged, held, means


def _optimum(fit: Any) -> str:
    """Return the optimal size as a power of compute, of a line or an envelope."""
    if fit.exponent is None:
        return "–"
    size = getattr(fit, "size", "params")
    shown = f"optimal {size} = {number(fit.coefficient)} C^{number(fit.exponent)}"
    if fit.interval is None:
        return shown
    return f"{shown} [{number(fit.interval[0])}, {number(fit.interval[1])}]"


def health_table(fits: Mapping[str, LawFit]) -> Table:
    """Return how the optimiser fared with every fit that has numbers."""
    usable = [(title, fit) for title, fit in fits.items() if fit.usable]
    formats = {
        "runs": "{0.n_points}",
        "configurations": "{0.n_configurations}",
        "degrees of freedom": "{0.degrees_of_freedom}",
        "objective": "{0.objective:.6g}",
        "gradient": "{0.gradient_norm:.1e}",
        "moved": "{0.moved:.2g}",
        "condition number": "{0.condition_number:.1e}",
        "starts agreeing": "{0.n_agreeing} of {0.n_starts}",
        "minima": "{0.n_optima}",
        "resamples refused": "{0.share_refused:.0%}",
        "resamples unsettled": "{0.share_unsettled:.1%}",
    }

    def cell(text: str) -> Callable[[tuple[str, LawFit]], str]:
        return lambda item: text.format(item[1])

    def value(text: str) -> Callable[[tuple[str, LawFit]], dict[str, Any]]:
        names = re.findall(r"0\.(\w+)", text)
        return lambda item: {name: getattr(item[1], name) for name in names}

    columns = [Column("fit", lambda item: item[0])]
    columns += [Column(heading, cell(text), True, value(text)) for heading, text in formats.items()]
    note = (
        "moved: from the winning start, 0 is a start handed back untouched;"
        " minima: distinct ones that starts came to rest in"
    )
    return Table.of("How the optimiser fared", usable, columns, [note] if usable else ())


def parameters(fit: LawFit) -> str:
    """Return `E 1.69 [1.60, 1.75], A …`, or a dash without a usable fit."""
    if not fit.usable:
        return "–"
    phrases = []
    for name, value in fit.parameters.items():
        interval = ""
        if name in fit.intervals:
            low, high = fit.intervals[name]
            # A bound or a fixed value has no spread; brackets would look like certainty.
            interval = f" [{number(low)}, {number(high)}]" if low < high else " (held at its bound)"
        phrases.append(f"{name} {number(value)}{interval}")
    return ", ".join(phrases)


def fit_fields(fit: LawFit) -> dict[str, Any]:
    """Return the parameters of a fit by name, with the ends of their intervals."""
    found: dict[str, Any] = {}
    for name, value in fit.parameters.items() if fit.usable else ():
        low, high = fit.intervals.get(name, (None, None))
        found |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return found


def hold_out_fields(fit: LawFit) -> dict[str, Any]:
    """Return the mean errors of the held-out sizes by name."""
    held = fit.hold_out
    return {
        "hold_out_relative_error": None if held is None else held.mean_relative_error,
        "hold_out_absolute_error": None if held is None else held.mean_absolute_error,
    }


def hold_out(fit: LawFit) -> str:
    """Return the mean error of the held-out sizes."""
    if fit.hold_out is None:
        return "–"
    if fit.hold_out.mean_relative_error is None:
        return f"{number(fit.hold_out.mean_absolute_error)} absolute"
    return f"{fit.hold_out.mean_relative_error:.1%}"
