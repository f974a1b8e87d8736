"""Model selection among laws, by hold-out of the largest runs.

A richer law always fits better; whether it extrapolates better, the hold-out says. All laws predict
the same runs, so their errors can be compared (`analysis/fitting/hold_out.py`). AIC and BIC
(Burnham and Anderson 2002, sections 2.2 and 6.4.1; for least squares, sigma counted as a parameter)
stand beside it.

    choice = choose_law(runs)
    choice.table  # what each law would have done
    choice.predict({"params": 7e10, "tokens": 1.4e12})  # the intervals hold the choice of the law

`compare_laws` ranks laws that are given; `choose_law` takes all laws that the table has the columns
for, each by its own objective and by least squares, and keeps those that the hold-out cannot tell
from the best. Of these, misfits (`LawFit.verdict`) are left out where another is none.
"""

import importlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.fit_data import read_fit_data
from analysis.fitting.fit_law import fit_law, restricted
from analysis.fitting.hold_out import shared_hold_out
from analysis.fitting.law import Law, as_law
from analysis.fitting.objective import Objective
from analysis.fitting.result import LawFit, LawPrediction
from analysis.fitting.summary import given
from analysis.loading.columns import HasTable, Runs, as_columns, find_column, names_of

MOST_KEPT = 4
"""Candidates refitted with intervals."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LawChoice:
    """The law that predicts the largest runs best, with those that might do so as well."""

    fits: Mapping[str, LawFit]
    """Candidates that the hold-out cannot tell from the best, best first; without misfits, unless
    all are."""
    table: pd.DataFrame
    """One row per candidate, best hold-out first; its error is NaN where it had no hold-out."""
    sentence: str

    def __repr__(self) -> str:
        n = len(self.table)
        return f"<LawChoice: {self.fit.law.name} of {n} candidates; see sentence, table, fit>"

    @property
    def fit(self) -> LawFit:
        """The fit of the chosen law."""
        return next(iter(self.fits.values()))

    def predict(
        self, inputs: Mapping[str, ArrayLike], *, sigma: ArrayLike | None = None
    ) -> LawPrediction:
        """Return the chosen law at `inputs` (n,), with intervals that hold the choice of the law.

        An interval reaches from the lowest to the highest end of the candidates that were kept.
        Arguments and errors are those of `LawFit.predict`.
        """
        each = [fit.predict(inputs, sigma=sigma) for fit in self.fits.values()]
        low, new_low = (np.min([getattr(p, n) for p in each], axis=0) for n in ("low", "new_low"))
        high, new_high = (
            np.max([getattr(p, n) for p in each], axis=0) for n in ("high", "new_high")
        )
        return replace(each[0], low=low, high=high, new_low=new_low, new_high=new_high)


def choose_law(
    runs: Runs | HasTable,
    laws: Sequence[Law | str] | None = None,
    *,
    outcome: str = "loss",
    columns: Mapping[str, str] | None = None,
    n_draws: int = 1000,
    **options: Any,
) -> LawChoice:
    """Return the law that predicts the largest runs best from the others, and its fit to all.

    All candidates predict the same runs: the largest quarter of the configurations, or fewer, but
    two at least, where a candidate could not be fitted to the rest. A candidate that cannot be
    fitted without them has no rank. With `sigma`, a run counts 1 / sigma in the mean error.

    Args:
        runs: Columns, one row per run; none of them is kept back for the caller's own test.
        laws: Candidates, or their names; None takes those of `analysis/laws` for this outcome whose
            inputs the table has.
        outcome: Column to explain.
        columns: The laws' input names to the columns that hold them, where they differ.
        n_draws: Resamples behind the intervals of the candidates that are kept.
        options: The rest of `fit_law`'s arguments.

    Raises:
        ValueError: If no law has its columns, or none can be fitted and held out.

    Example:
        >>> from analysis.fitting.synthetic import make_runs
        >>> from analysis.laws.kaplan import KAPLAN
        >>> choice = choose_law(
        ...     make_runs(KAPLAN, 20, noise=0.001), ["chinchilla", "kaplan"], n_draws=0
        ... )
        >>> choice.fit.law.name
        'kaplan'
    """
    runs = as_columns(runs)
    candidates = _candidates(runs, laws, outcome, columns or {}, "objective" in options)
    shared = {"outcome": outcome, "columns": columns, **options}
    shared["hold_out"] = _same_hold_out(candidates.values(), runs, **shared)
    fits = {
        name: fit_law(law, runs, **{"objective": objective, **shared}, n_draws=0)
        for name, (law, objective) in candidates.items()
    }
    errors = {name: _held_out_errors(fit) for name, fit in fits.items() if fit.hold_out is not None}
    if not errors:
        reasons = "; ".join(f"{name}: {fit.hold_out_note}" for name, fit in fits.items())
        raise ValueError(f"laws: no candidate predicts held-out runs ({reasons}); add runs")
    order = sorted(errors, key=lambda name: float(errors[name].mean()))
    kept = [name for name in order if _as_good(errors[name], errors[order[0]])][:MOST_KEPT]
    refits = {
        name: fit_law(law, runs, **{"objective": objective, **shared}, n_draws=n_draws)
        for name, (law, objective) in candidates.items()
        if name in kept
    }
    refits = {name: replace(fit, n_judged=len(refits)) for name, fit in refits.items()}
    sound = [name for name in kept if not refits[name].verdict.is_misfit] or kept
    rows = [
        _row(name, fits[name], errors, name in sound) for name in [*order, *(fits.keys() - errors)]
    ]
    return LawChoice(
        fits={name: refits[name] for name in sound},
        table=pd.DataFrame(rows),
        sentence=_sentence(
            order,
            kept,
            errors,
            misfits=[name for name in kept if name not in sound],
            unranked=[name for name in fits if name not in errors],
        ),
    )


def _candidates(
    runs: Runs,
    laws: Sequence[Law | str] | None,
    outcome: str,
    columns: Mapping[str, str],
    one_objective: bool,
) -> dict[str, tuple[Law, Objective | None]]:
    """Return laws by their own objective and by least squares; the name says which."""
    if laws is None:
        # By name: laws import this folder.
        everything = importlib.import_module("analysis.laws.registry").all_laws().values()
        chosen = [law for law in everything if law.outcome == outcome]
        chosen = [law for law in chosen if _has_inputs(law, runs, columns)]
        if not chosen:
            raise ValueError(
                f"laws: none explains {outcome} by the columns {names_of(runs)}; "
                "name those of its inputs, as columns={'params': '…', 'tokens': '…'}; "
                "an input that is the same in all runs does not count"
            )
    else:
        chosen = [as_law(law) for law in laws]
    if np.min(np.asarray(runs[outcome], dtype=np.float64)) <= 0:
        chosen = [law for law in chosen if law.default_objective.residual == "value"]
    found: dict[str, tuple[Law, Objective | None]] = {}
    for name, law in _named(chosen).items():
        found[name] = (law, None)
        if not one_objective and not law.default_objective.smooth:
            squares = Objective(residual=law.default_objective.residual, huber=None)
            found[f"{name}, least squares"] = (law, squares)
    if one_objective:
        found = {name: (law, None) for name, (law, _) in found.items()}
    return found


def _named(laws: Sequence[Law]) -> dict[str, Law]:
    """Return laws by name; those of one name by what was given of their parameters, or equation.

    Those that these do not tell apart are numbered.

    Raises:
        ValueError: If two laws are the same.
    """
    for i, law in enumerate(laws):
        if any(_same(law, earlier) for earlier in laws[:i]):
            name = ", ".join(filter(None, [law.name, given(law)]))
            raise ValueError(f"laws: {name} is given twice; leave one out")
    names = [law.name for law in laws]
    for details in ([given(law) for law in laws], [law.equation for law in laws]):
        count = Counter(names)
        names = [
            f"{name}, {detail}" if detail and count[name] > 1 else name
            for name, detail in zip(names, details, strict=True)
        ]
    earlier = [names[:i].count(name) for i, name in enumerate(names)]
    names = [f"{name} ({n + 1})" if n else name for name, n in zip(names, earlier, strict=True)]
    return dict(zip(names, laws, strict=True))


def _same(one: Law, other: Law) -> bool:
    """Return whether two laws have the same form, and the same is known of their parameters."""
    return type(one) is type(other) and all(
        getattr(one, what) == getattr(other, what)
        for what in ("name", "equation", "inputs", "parameters", "example", "bounds")
    )


def _has_inputs(law: Law, runs: Runs, columns: Mapping[str, str]) -> bool:
    """Return whether the table has a column for every input, and it is not the same in all runs.

    Memory is 0 in all runs of a sweep of dense models, which says nothing of a law of memory.
    """
    found = [find_column(runs, name, columns) for name in law.inputs]
    return all(name is not None and len(set(runs[name])) > 1 for name in found)


def _same_hold_out(
    candidates: Iterable[tuple[Law, Objective | None]],
    runs: Runs,
    *,
    hold_out: bool | ArrayLike = True,
    outcome: str = "loss",
    columns: Mapping[str, str] | None = None,
    clusters: Sequence[Any] | NDArray[Any] | str | None = None,
    objective: Objective | None = None,
    sigma: ArrayLike | str | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    **_: Any,
) -> bool | ArrayLike:
    """Return `hold_out` of `fit_law` for all candidates: the same runs, unless they are given.

    Arguments are those of `fit_law`.
    """
    if hold_out is not True:
        return hold_out
    read = []
    for law, own in candidates:
        law = restricted(law, fixed, bounds)
        used = objective or own or law.default_objective
        read.append((law, read_fit_data(law, runs, outcome, columns, clusters, used, sigma)))
    mask = shared_hold_out(read)
    # Where there is none, each fit says why.
    return True if mask is None else mask


def _held_out_errors(fit: LawFit) -> NDArray[np.float64]:
    """Return |predicted - observed| per held-out run (n,), times how much it counts (`_shares`)."""
    assert fit.hold_out is not None
    return np.abs(fit.hold_out.errors) * _shares(fit)


def _shares(fit: LawFit) -> NDArray[np.float64]:
    """Return 1 / sigma of each held-out run (n,), one on average: noise tells no laws apart."""
    assert fit.hold_out is not None
    inverse = np.sqrt(fit.weights[fit.hold_out.rows])
    return np.asarray(inverse / inverse.mean())


def _as_good(errors: NDArray[np.float64], best: NDArray[np.float64]) -> bool:
    """Return whether the mean error is the best one's, up to a standard error of the difference."""
    difference = errors - best
    error = float(difference.std(ddof=1)) / np.sqrt(len(best)) if len(best) > 1 else 0.0
    return float(difference.mean()) <= error


def _row(
    name: str, fit: LawFit, errors: Mapping[str, NDArray[np.float64]], kept: bool
) -> dict[str, Any]:
    aic, bic = information(fit)
    return {
        "candidate": name,
        "kept": kept,
        "status": str(fit.status),
        "n_free": fit.n_free,
        "hold_out_error": float(errors[name].mean()) if name in errors else np.nan,
        "aic": aic,
        "bic": bic,
        "sentence": fit.sentence,
    }


def _sentence(
    order: Sequence[str],
    kept: Sequence[str],
    errors: Mapping[str, NDArray[np.float64]],
    *,
    misfits: Sequence[str],
    unranked: Sequence[str],
) -> str:
    best = errors[order[0]]
    runs = f"{len(best)} largest runs" if len(best) > 1 else "largest run"
    text = f"{order[0]} predicts the {runs} best, with a mean error of {best.mean():.3g}"
    if len(kept) > 1:
        text += f"; as good, up to a standard error: {', '.join(kept[1:])}"
    worse = next((name for name in order if name not in kept), None)
    if worse is not None:
        text += f"; then {worse} with {errors[worse].mean():.3g}"
    if misfits:
        text += f"; left out as misfits: {', '.join(misfits)}"
    if unranked:
        text += f"; without a rank, for they cannot predict these runs: {', '.join(unranked)}"
    return text


def compare_laws(
    laws: Sequence[Law | str], runs: Runs | HasTable, **options: Any
) -> tuple[pd.DataFrame, dict[str, LawFit]]:
    """Return one row per law, best hold-out first, and the fits by name.

    Of laws of one name, the names say what was given of their parameters, or their equation.
    All laws predict the same runs, as in `choose_law`. Laws that cannot come last, without an
    error; `hold_out_note` of their fits says why. Columns of the table are `hold_out_error` (mean
    absolute error), `hold_out_rms` (root mean square) and `hold_out_bias` (mean; above 0
    predictions are too high). They are of log errors, or in the units of the outcome where a law is
    fitted in them (`residual="value"`). With `sigma`, a run counts 1 / sigma in the first, and
    1 / sigma^2 in the others.

    Args:
        laws: Fitted to the same runs.
        runs: As `analysis.fitting.fit_law.fit_law`.
        options: The rest of its arguments, the same for all laws.

    Example:
        >>> from analysis.fitting.synthetic import make_runs
        >>> from analysis.laws.kaplan import KAPLAN
        >>> runs = make_runs(KAPLAN, 20, noise=0.001)
        >>> table, fits = compare_laws(["chinchilla", "kaplan"], runs, n_draws=0)
        >>> table["law"].tolist()
        ['kaplan', 'chinchilla']
    """
    runs = as_columns(runs)
    chosen = [as_law(law) for law in laws]
    options["hold_out"] = _same_hold_out([(law, None) for law in chosen], runs, **options)
    fits = {name: fit_law(law, runs, **options) for name, law in _named(chosen).items()}
    fits = {name: replace(fit, n_judged=len(fits)) for name, fit in fits.items()}
    in_units = any(fit.objective_of.residual == "value" for fit in fits.values())
    rows = []
    for name, fit in fits.items():
        errors, shares = np.asarray([np.nan]), np.ones(1)
        if fit.hold_out is not None:
            errors = fit.hold_out.errors if in_units else fit.hold_out.log_errors
            shares = _shares(fit)
        aic, bic = information(fit)
        rows.append(
            {
                "law": name,
                "status": str(fit.status),
                "n_free": fit.n_free,
                "objective": fit.objective,
                "hold_out_error": float(np.mean(np.abs(errors) * shares)),
                "hold_out_rms": float(np.sqrt(np.average(errors**2, weights=shares**2))),
                "hold_out_bias": float(np.average(errors, weights=shares**2)),
                "aic": aic,
                "bic": bic,
                "sentence": fit.sentence,
            }
        )
    table = pd.DataFrame(rows).sort_values("hold_out_error", kind="stable", na_position="last")
    return table.reset_index(drop=True), fits


def information(fit: LawFit) -> tuple[float, float]:
    """Return AIC and BIC of a least-squares fit; NaN for other objectives or without numbers."""
    if not fit.usable or not fit.objective_of.smooth:
        return float("nan"), float("nan")
    n, k = fit.n_points, fit.n_free + 1
    deviance = n * float(np.log(max(2 * fit.objective / n, 1e-300)))
    return deviance + 2 * k, deviance + k * float(np.log(n))
