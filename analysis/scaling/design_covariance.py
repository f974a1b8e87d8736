"""Covariance of a design's target and candidates, as fitted laws tell it.

By information, near the optimum: S = (sum j j / v)^-1 over configurations, with rows j of the
Jacobian of ln(loss) and the variance v of a configuration's mean (`experimental_design.py`). Or by
draws, over the resamples of a fit.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.result import LawFit
from analysis.fitting.verdict import worst
from analysis.scaling.architecture_laws import ArchitectureLaws, Curve
from analysis.scaling.design_candidate import Candidate
from analysis.scaling.design_targets import Target, log_loss
from analysis.scaling.seed_noise import configuration_rows, noise_variances

Array = NDArray[np.float64]


STEP = 1e-4
"""Of a central difference, in standard deviations of a coefficient's log or exponent."""


def covariance_over_laws(
    fitted: Sequence[ArchitectureLaws], candidates: Sequence[Candidate], target: Target
) -> tuple[Array, list[str]]:
    """Return the covariance (1 + c, 1 + c) over several laws, and notes on which laws those are.

    It is the mean of the laws' own, plus that of their predictions: where laws disagree, a run
    tells between them. The first law always counts; a further one unless it misfits.
    """
    first = fitted[0]
    counted = [
        (
            covariance_by_information(first, candidates, target),
            _predictions(first, candidates, target),
        )
    ]
    names, notes = [_law_name(first, target)], []
    for laws in fitted[1:]:
        name = _law_name(laws, target)
        try:
            verdict = worst({n: laws.named(n).fit.verdict for n in target.architectures})
            if not verdict.is_credible:
                notes.append(f"{name} does not count: {verdict}")
                continue
            own = covariance_by_information(laws, candidates, target)
            counted.append((own, _predictions(laws, candidates, target)))
            names.append(name)
        except ValueError as error:
            notes.append(f"{name} does not count: {error}")
    if len(names) > 1:
        notes.append(f"averaged over the laws {', '.join(names)}")
    predictions = np.asarray([p for _, p in counted])
    apart = predictions - predictions.mean(axis=0)
    covariance = np.mean([c for c, _ in counted], axis=0) + apart.T @ apart / len(apart)
    return np.asarray(covariance), notes


def _law_name(laws: ArchitectureLaws, target: Target) -> str:
    found = laws.by_name.get(target.architectures[0])
    return found.curve.law.name if found else next(iter(laws.by_name.values())).curve.law.name


def _predictions(laws: ArchitectureLaws, candidates: Sequence[Candidate], target: Target) -> Array:
    """Return ln(target) and ln(loss) of the candidates (1 + c,)."""
    values = [log_target(target, laws)]
    for c in candidates:
        curve = laws.named(c.architecture).curve
        values.append(float(log_loss(curve.law, c.inputs, curve.parameters)[0]))
    return np.asarray(values)


def log_target(target: Target, laws: ArchitectureLaws) -> float:
    """Return the target's logarithm by the runs that are there."""
    value = float(target.values(laws.curves())[0])
    if not math.isfinite(value):
        raise ValueError(
            f"target: {target.description} has no value; the reference never gets to that loss,"
            " or has no best size there"
        )
    return value


def covariance_by_information(
    laws: ArchitectureLaws, candidates: Sequence[Candidate], target: Target
) -> Array:
    """Return the covariance (1 + c, 1 + c) of the target and each candidate's ln(loss).

    It is linearised: a sum over the fits, because different fits have independent errors.
    """
    total = np.zeros((len(candidates) + 1, len(candidates) + 1))
    curves = laws.curves()
    for fit in laws.fits:
        problem = fit.problem()
        theta = problem.scale(np.asarray(list(fit.parameters.values()))[None, :])[0]
        # A coefficient at its bound does not move.
        free = np.flatnonzero((theta > problem.lower + 1e-9) & (theta < problem.upper - 1e-9))
        J = problem.law.log_jacobian(problem.features, theta[None, :])[0][free].T
        S = _coefficient_covariance(J, fit, laws.fits)
        # Central differences of the target and of every candidate's loss, all at once.
        step = STEP * np.sqrt(np.diag(S))
        n = len(free)
        moved = np.repeat(theta[None, :], 2 * n, axis=0)
        moved[np.arange(n), free] += step
        moved[n + np.arange(n), free] -= step
        here = {
            name: law.with_parameters(problem.unscale(moved))
            for name, law in laws.by_name.items()
            if law.fit is fit
        }
        values = np.zeros((len(candidates) + 1, 2 * n))
        values[0] = target.values(
            {name: _repeated(curve, 2 * n) for name, curve in curves.items()} | here
        )
        for row, c in zip(values[1:], candidates, strict=True):
            if c.architecture in here:
                near = here[c.architecture]
                row[:] = log_loss(near.law, c.inputs, near.parameters)
        slopes = (values[:, :n] - values[:, n:]) / (2 * step)
        if not np.isfinite(slopes).all():
            raise ValueError(
                f"target: {target.description} ends close to where the runs put it,"
                " so it has no interval to narrow; ask nearer to the runs"
            )
        total += slopes @ S @ slopes.T
    return total


def _coefficient_covariance(J: Array, fit: LawFit, fits: Sequence[LawFit]) -> Array:
    """Return (sum j j / v)^-1 over the mean Jacobian rows j of the configurations."""
    members = configuration_rows(fit)
    counts = np.asarray([len(m) for m in members], dtype=float)
    weight = 1.0 / noise_variances(fit, fits).of_mean(counts)
    mean = np.asarray([J[m].mean(axis=0) for m in members])
    size = np.maximum(np.linalg.norm(mean, axis=0), 1e-300)
    scaled = mean / size
    inverse = np.linalg.pinv((scaled.T * weight) @ scaled, hermitian=True)
    return np.asarray(inverse / np.outer(size, size))


def covariance_by_draws(
    laws: ArchitectureLaws, candidates: Sequence[Candidate], target: Target
) -> Array:
    """Return the covariance (1 + c, 1 + c) over the resamples in which the target has a value."""
    if laws.n_draws < 50:
        raise ValueError(
            f"by: draws needs at least 50 resamples, got {laws.n_draws};"
            " fit with n_draws=500, or use by='information'"
        )
    drawn = laws.drawn()
    rows = [target.values(drawn)]
    for c in candidates:
        curve = drawn[c.architecture]
        rows.append(log_loss(curve.law, c.inputs, curve.parameters))
    values = np.stack(rows)
    return np.atleast_2d(np.cov(values[:, np.isfinite(values).all(axis=0)]))


def _repeated(curve: Curve, k: int) -> Curve:
    """Return a curve of one set of coefficients as one of k equal sets."""
    return replace(
        curve,
        parameters=np.repeat(curve.parameters, k, axis=0),
        costs={name: np.repeat(rows, k, axis=0) for name, rows in curve.costs.items()},
    )
