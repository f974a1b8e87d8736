"""Universal kriging of ln(loss): predictions without a scaling law.

ln(loss) is a linear trend in the logarithms of the inputs plus a Gaussian field with a squared
exponential covariance (Sacks, Welch, Mitchell and Wynn 1989, section 4). Every input counts from 0
to 1 over the runs and candidates, so a range of sizes weighs as much as a range of tokens. Where
all laws are wrong this still says how far a place is from what has been measured: it asks first for
runs that fill the space, and for those near the target.

The scale of the covariance and the noise follow from the runs by maximum likelihood. The other
constants are fixed: a few runs cannot tell them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LENGTH = 0.5
"""Length over which the field varies, in ranges of an input."""

NOISES = (0.03, 0.1, 0.3)
"""Standard deviations of a run's noise, in those of the field, of which the likeliest is taken; the
largest as long as there are fewer than FEWEST_RUNS."""

FEWEST_RUNS = 8

SLOPE = 3.0
"""Standard deviation of the trend's change over the range of an input, in those of the field."""

LEVEL = 10.0
"""Standard deviation of the trend's level, in those of the field."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kriging:
    """ln(loss) at places, given the runs."""

    mean: Array
    """(q,)"""
    covariance: Array
    """(q, q) of the trend and the field, without a run's own noise."""
    noise: float
    """Variance of a run's own noise."""


def kriging(runs: Array, log_loss: Array, places: Array, *, box: Array | None = None) -> Kriging:
    """Return ln(loss) at places, given the runs; without runs, what is held of it at first.

    Args:
        runs: (n, d) logarithms of the runs' inputs; n may be 0.
        log_loss: (n,) ln(loss) of the runs.
        places: (q, d) logarithms of inputs.
        box: (k, d) places whose range is the unit of each input; None takes runs and places.

    Raises:
        ValueError: If a value is not finite.
    """
    everything = np.concatenate([runs, places])
    if not (np.isfinite(everything).all() and np.isfinite(log_loss).all()):
        raise ValueError("inputs: must be finite logarithms; give positive inputs and losses")
    span = np.ptp(everything if box is None else box, axis=0)
    # An input that never varies says nothing, whatever its unit.
    scaled = (everything - everything.mean(axis=0)) / np.where(span > 0, span, 1.0)
    prior = _prior_covariance(scaled)
    n = len(runs)
    if n == 0:
        return Kriging(mean=np.zeros(len(places)), covariance=prior, noise=NOISES[-1] ** 2)
    level = float(log_loss.mean())
    deviation = log_loss - level
    noise = NOISES[-1]
    if n >= FEWEST_RUNS:
        noise = min(NOISES, key=lambda sd: _deviance(prior[:n, :n], deviation, sd))
    among = prior[:n, :n] + noise**2 * np.eye(n)
    gain = np.linalg.solve(among, prior[:n, n:]).T
    scale = float(deviation @ np.linalg.solve(among, deviation)) / n
    return Kriging(
        mean=level + gain @ deviation,
        covariance=scale * (prior[n:, n:] - gain @ prior[:n, n:]),
        noise=scale * noise**2,
    )


def _deviance(prior: Array, deviation: Array, noise: float) -> float:
    """Return -2 ln(likelihood) at the likeliest scale, up to a constant."""
    n = len(prior)
    among = prior + noise**2 * np.eye(n)
    scale = float(deviation @ np.linalg.solve(among, deviation)) / n
    return n * float(np.log(max(scale, 1e-300))) + float(np.linalg.slogdet(among)[1])


def _prior_covariance(scaled: Array) -> Array:
    """Return the covariance (q, q) of trend and field at places (q, d) in units of their range."""
    distance = ((scaled[:, None, :] - scaled[None, :, :]) ** 2).sum(axis=-1)
    trend: Array = LEVEL**2 + SLOPE**2 * scaled @ scaled.T
    return np.asarray(np.exp(-0.5 * distance / LENGTH**2) + trend)
