"""Warnings about the runs of a fit, before it and by its residuals."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.fit_data import FitData
from analysis.fitting.law import Law, LawProblem
from analysis.fitting.outliers import scale_of
from analysis.fitting.residual_groups import check_mixture, check_residual_groups
from analysis.fitting.result import LawFit
from analysis.fitting.verdict import outliers_of
from analysis.loading.columns import Runs, column, in_words, numbers
from analysis.loading.flops_per_token import check_flops
from analysis.loading.pooled_architectures import check_architecture_names
from analysis.loading.run_checks import check_runs
from analysis.loading.size_units import check_size_units
from analysis.loading.validation import SIZES, DataWarning, refuse_bad_units

Array = NDArray[np.float64]


def check_table(
    law: Law,
    runs: Runs,
    data: FitData,
    outcome: str,
    seeds_named: bool,
    configurations: NDArray[np.int64] | None,
    accept: Collection[str],
    rows: NDArray[np.int64] | None,
) -> list[str]:
    """Return a sentence for everything odd about the table; refuse units that cannot be."""
    inputs, y = data.inputs, data.y
    sizes = {k: v for k, v in inputs.items() if k in SIZES}
    refuse_bad_units(check_size_units(sizes, rows=rows), accept=accept)
    found: list[DataWarning | None] = []
    if (y > 0).all():
        found += check_runs(
            inputs,
            y,
            outcome=outcome,
            seeds_named=seeds_named,
            configurations=configurations,
            rows=rows,
        )
    if "flops" in runs and {"params", "tokens"} <= set(inputs):
        # The law does not use them, so it is no reason to refuse.
        flops = np.asarray(column(runs, "flops"))
        if flops.shape == y.shape and np.issubdtype(flops.dtype, np.number):
            active = inputs["params"]
            if "active_params" in runs:
                active = numbers(runs, "active_params", zero=True)
            found.append(check_flops(flops.astype(np.float64), active, inputs["tokens"], rows=rows))
    if "architecture" in runs and "group" not in inputs:
        told_by = [values for name, values in inputs.items() if name not in (*SIZES, "x")]
        kinds = list(column(runs, "architecture"))
        found.append(check_architecture_names(kinds, told_by, has_experts="experts" in runs))
    return [w.sentence for w in found if w is not None and w.kind not in accept]


def check_groups(
    problem: LawProblem,
    theta: Array,
    residuals: Array,
    data: FitData,
    rows: NDArray[np.int64] | None,
) -> list[str]:
    """Return a sentence if the residuals are those of two kinds of runs."""
    if (data.y <= 0).any():
        return []
    relative = residuals
    if problem.y is not problem.log_y:
        predicted = problem.law.evaluate(data.inputs, problem.unscale(theta[None, :])[0])
        relative = np.log(np.maximum(predicted, 1e-300) / data.y)
    found = check_residual_groups(relative, rows=rows)
    if found is None:
        jacobian = problem.log_jacobian(theta)[np.argsort(data.order)]
        found = check_mixture(relative, jacobian, data.inputs, data.places, rows=rows)
    return [] if found is None else [found.sentence]


def check_outliers(fit: LawFit, rows: NDArray[np.int64] | None) -> list[str]:
    """Return a sentence that names the runs far from the curve."""
    found, residuals = outliers_of(fit), fit.standardised
    if not len(found):
        return []
    amount = fit.objective_of.amount
    rms = float(np.sqrt((residuals**2).sum() / (fit.n_points - fit.n_free)))
    scale = scale_of(residuals, fit.n_free)
    named = np.sort(found if rows is None else rows[found])
    lie, them = ("lies", "it") if len(found) == 1 else ("lie", "them")
    return [
        f"{in_words(named)} {lie} far from the curve, by up to "
        f"{amount(abs(residuals[found[0]]))}, where residuals are {amount(scale)} by a robust "
        f"scale ({amount(rms)} by root mean square); look at {them}, and leave out "
        "what was measured wrongly"
    ]
