"""Model selection among laws, by hold-out of the largest runs.

A richer law always fits better; whether it extrapolates better, the hold-out says. AIC and BIC
(Burnham and Anderson 2002, sections 2.2 and 6.4.1; for least squares, sigma counted as a parameter)
stand beside it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.fitting.fit_law import Runs, fit_law
from analysis.fitting.law import Law
from analysis.fitting.result import LawFit


def compare_laws(
    laws: Sequence[Law], runs: Runs, **options: Any
) -> tuple[pd.DataFrame, dict[str, LawFit]]:
    """Return one row per law, best hold-out first, and the fits by name.

    Laws without numbers come last.

    Args:
        laws: Fitted to the same runs.
        runs: As `analysis.fitting.fit_law.fit_law`.
        options: The rest of its arguments, the same for all laws.
    """
    fits = {law.name: fit_law(law, runs, **options) for law in laws}
    rows = []
    for law in laws:
        fit = fits[law.name]
        held = fit.hold_out
        aic, bic = information(fit)
        rows.append(
            {
                "law": law.name,
                "status": str(fit.status),
                "n_free": law.n_free,
                "objective": fit.objective,
                "hold_out_error": held.mean_absolute_log_error if held else np.nan,
                "hold_out_rms": held.rms_log_error if held else np.nan,
                "hold_out_bias": held.bias if held else np.nan,
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
