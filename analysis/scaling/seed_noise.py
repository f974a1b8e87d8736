"""Noise between configurations and between seeds, as a fit's objective weighs it."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.objective import MAD_TO_SIGMA
from analysis.fitting.result import LawFit
from analysis.scaling.architecture_laws import ArchitectureLaws

Array = NDArray[np.float64]


class NoiseVariance(NamedTuple):
    """Variance of ln(outcome)."""

    between: float
    """Between configurations."""
    within: float
    """Between seeds of one configuration."""

    def of_mean(self, n_seeds: Array | int) -> Array:
        """Return the variance of the mean of a configuration's seeds."""
        return np.maximum(self.between + self.within / n_seeds, 1e-300)


def noise_variances(fit: LawFit, others: Sequence[LawFit] = ()) -> NoiseVariance:
    """Return the noise of a fit's runs.

    The total is the residuals' robust scale squared (their mean square for least squares), times
    n / (n - p). The part between seeds is pooled over configurations that have several, those of
    `others` where the fit has none; it is 0 where none has (`seeds_known`). Both are divided by
    the efficiency of the objective for normal errors (Huber 1981, section 4.5: 2 / pi for the
    absolute error).
    """
    r = _log_residuals(fit)
    freedom = max(len(r) - fit.n_free, 1)
    scale = math.sqrt(float(np.mean(r**2)))
    if fit.huber is not None:
        robust = MAD_TO_SIGMA * float(np.median(np.abs(r)))
        scale = robust if robust > 0 else scale
    total = scale**2 * len(r) / freedom
    pooled = [_between_seeds(one) for one in ([fit] if _between_seeds(fit)[1] else others)]
    squares, n_repeats = (sum(part[i] for part in pooled) for i in (0, 1))
    within = min(squares / n_repeats if n_repeats else 0.0, total)
    efficiency = _efficiency(math.inf if fit.huber is None else fit.huber / max(scale, 1e-300))
    return NoiseVariance((total - within) / efficiency, within / efficiency)


def seeds_known(laws: ArchitectureLaws) -> bool:
    """Whether some configuration has two seeds.

    Without, nothing says how much of the noise a further seed takes away.
    """
    return any(_between_seeds(fit)[1] for fit in laws.fits)


def configuration_rows(fit: LawFit) -> list[NDArray[np.int64]]:
    """Return the rows of each configuration of a fit."""
    # Runs of one label that differ in their inputs (checkpoints) are configurations of their own.
    inputs = np.stack([np.asarray(v) for v in fit.inputs.values()], axis=1)
    keys = [
        np.unique(np.asarray(fit.clusters), return_inverse=True)[1].reshape(-1),
        np.unique(inputs, axis=0, return_inverse=True)[1].reshape(-1),
    ]
    member = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    return [np.flatnonzero(member == i) for i in range(int(member.max()) + 1)]


def _between_seeds(fit: LawFit) -> tuple[float, int]:
    """Return the squares of ln(outcome) around configurations' means, and their freedom."""
    groups = [_log_residuals(fit)[m] for m in configuration_rows(fit) if len(m) > 1]
    squares = sum(float(((g - g.mean()) ** 2).sum()) for g in groups)
    return squares, sum(len(g) - 1 for g in groups)


def _log_residuals(fit: LawFit) -> Array:
    return fit.residuals if fit.objective_of.residual == "log" else fit.residuals / fit.y


def _efficiency(k: float) -> float:
    """Return (E psi')^2 / E psi^2 for normal errors, psi Huber's with threshold k sd."""
    from scipy.special import ndtr

    if math.isinf(k):
        return 1.0
    if k < 1e-4:
        return 2 / math.pi
    inside = 2 * float(ndtr(k)) - 1
    density = math.exp(-0.5 * k * k) / math.sqrt(2 * math.pi)
    square = inside - 2 * k * density + k * k * (1 - inside)
    return inside**2 / square
