"""How often the verdict on a fit is a false alarm, and how often it notices a misfit.

    python benchmarks/verdict_calibration.py --tables 500

Made-up tables, fitted as anybody would (`fit_law`). Half of them are of the law that is fitted, with
normal noise. The others are misfits of four kinds, in equal numbers. Without noise, the fitted law
misses their runs by at most twice the noise between seeds. Where the noise is uneven, there is no
such error: its standard deviation is half the middle one's at the smallest model and twice it at
the largest. Designs alternate: with and without a second seed.

`--bound` prints how often the last two kinds could be noticed at best: by the likelihood-ratio test
that knows the covariance of the errors, at the given share of false alarms.
"""

import argparse
import collections
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space

from analysis.fitting.fit_law import fit_law
from analysis.fitting.law import Law, LawProblem
from analysis.fitting.objective import SQUARES
from analysis.fitting.verdict import VerdictStatus
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.kaplan import KAPLAN
from analysis.laws.power import POWER

Array = NDArray[np.float64]
Table = dict[str, Array]

LARGEST = 2.0
"""Largest systematic error of a misfit, in standard deviations of the noise."""

NOISE = 0.003
"""Of ln(loss), where the misfit does not set it."""

POWER_TRUTH = {"A": 400.0, "E": 1.8, "alpha": 0.34}
TRUTH = {"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658}


def grid(n_sizes: int, n_lengths: int, n_seeds: int) -> Table:
    """Return sizes x tokens, each with its seeds."""
    params = np.geomspace(3e7, 3e9, n_sizes)
    tokens = np.geomspace(1e9, 3e11, n_lengths)
    n, d = (a.ravel() for a in np.meshgrid(params, tokens, indexing="ij"))
    return {"params": np.repeat(n, n_seeds), "tokens": np.repeat(d, n_seeds)}


def scattered(n_runs: int, n_seeds: int, generator: np.random.Generator) -> Table:
    """Return runs at places of their own."""
    n, d = 10 ** generator.uniform((7.5, 9.0), (9.5, 11.5), (n_runs, 2)).T
    return {"params": np.repeat(n, n_seeds), "tokens": np.repeat(d, n_seeds)}


def ladder(n_sizes: int, n_seeds: int) -> Table:
    """Return one size after the other."""
    return {"x": np.repeat(np.geomspace(1e6, 1e9, n_sizes), n_seeds)}


DESIGNS: dict[str, Callable[[np.random.Generator], Table]] = {
    "6 x 5 grid": lambda generator: grid(6, 5, 1),
    "5 x 4 grid, two seeds": lambda generator: grid(5, 4, 2),
    "40 scattered": lambda generator: scattered(40, 1, generator),
    "20 scattered, two seeds": lambda generator: scattered(20, 2, generator),
    "ladder of 12, two seeds": lambda generator: ladder(12, 2),
}


def law_of(inputs: Table) -> Law:
    """Return the law that is fitted."""
    return CHINCHILLA if "tokens" in inputs else POWER


def true_logs(inputs: Table) -> Array:
    """Return ln(loss) of the fitted law, without noise."""
    if "x" in inputs:
        t = POWER_TRUTH
        return np.log(t["E"] + t["A"] * inputs["x"] ** -t["alpha"])
    parameters = np.asarray([TRUTH[name] for name in CHINCHILLA.parameter_names])
    return np.log(CHINCHILLA.evaluate(inputs, parameters))


def wrong_logs(inputs: Table, generator: np.random.Generator) -> Array:
    """Return ln(loss) of a law that the fitted one cannot follow."""
    if "x" in inputs:
        bend = np.log(inputs["x"] / 10 ** generator.uniform(7, 8)) / generator.uniform(0.3, 1)
        return true_logs(inputs) - 0.2 * np.logaddexp(0, bend)
    n, d = inputs["params"] / 1e9, inputs["tokens"] / 1e9
    if generator.random() < 0.5:
        example = np.asarray([KAPLAN.example[name] for name in KAPLAN.parameter_names])
        return np.log(KAPLAN.evaluate(inputs, example))
    # Farseer's form, with exponents in tokens that change with the size.
    rate = np.exp(-0.1 * n**0.12 - 0.6)
    logs: Array = np.logaddexp(0.9 - 0.35 * n**0.15, 0.2 * n**-0.11 - rate * np.log(d))
    return logs


def adequate(inputs: Table, generator: np.random.Generator) -> tuple[Table, Array]:
    """The law itself, with even noise."""
    noise = generator.uniform(0.5, 2) * NOISE
    return inputs, true_logs(inputs) + noise * generator.standard_normal(
        len(inputs[_first(inputs)])
    )


def wrong_law(inputs: Table, generator: np.random.Generator) -> tuple[Table, Array]:
    """Another law."""
    logs = wrong_logs(inputs, generator)
    noise = largest_error(inputs, logs) / LARGEST
    return inputs, logs + noise * generator.standard_normal(len(logs))


def mixed(inputs: Table, generator: np.random.Generator) -> tuple[Table, Array]:
    """Two learning rates, which the table names, spread over the configurations at random."""
    logs = true_logs(inputs)
    _, place = np.unique(logs, return_inverse=True)
    n_places = int(place.max()) + 1
    rate = (generator.permutation(n_places) < n_places // 2)[place.reshape(-1)]
    common = scaled(inputs, logs, NOISE * np.where(rate, 1.0, -1.0))
    named = {**inputs, "lr": np.where(rate, 1e-3, 3e-3)}
    return named, logs + common + NOISE * generator.standard_normal(len(logs))


def uneven(inputs: Table, generator: np.random.Generator) -> tuple[Table, Array]:
    """Noise that grows fourfold from the smallest to the largest model."""
    size = np.log(inputs[_first(inputs)])
    noise = NOISE * 4 ** ((size - size.min()) / np.ptp(size))
    return inputs, true_logs(inputs) + noise * generator.standard_normal(len(size))


def shared(inputs: Table, generator: np.random.Generator) -> tuple[Table, Array]:
    """Errors that neighbours have in common: half correlated three tenths of the range apart."""
    logs = true_logs(inputs)
    columns = [np.log(v) for v in inputs.values()]
    root = np.linalg.cholesky(common_covariance(columns))
    common = scaled(inputs, logs, NOISE * (root @ generator.standard_normal(len(logs))))
    return inputs, logs + common + NOISE * generator.standard_normal(len(logs))


def common_covariance(columns: list[Array]) -> Array:
    """Return the covariance (n, n) of shared errors at the logs of sizes, each (n,)."""
    places = np.stack([(c - c.min()) / np.ptp(c) for c in columns], axis=1)
    distance = np.linalg.norm(places[:, None] - places[None, :], axis=2)
    covariance: Array = np.exp(-np.log(2) * distance / 0.3) + 1e-9 * np.eye(len(places))
    return covariance


def scaled(inputs: Table, logs: Array, common: Array) -> Array:
    """Return errors (n,) so large that the fitted law misses runs without noise as it should."""
    for _ in range(3):
        common = common * LARGEST * NOISE / largest_error(inputs, logs + common)
    return common


def largest_error(inputs: Table, logs: Array) -> float:
    """Return by how much the fitted law misses runs without noise."""
    table = {**inputs, "loss": np.exp(logs)}
    fit = fit_law(law_of(inputs), table, objective=SQUARES, n_draws=0, hold_out=False)
    return float(np.abs(fit.residuals).max())


MISFITS = {
    "wrong law": wrong_law,
    "mixed conditions": mixed,
    "uneven noise": uneven,
    "shared errors": shared,
}


def bounds(inputs: Table, share: float, n_tables: int, seed: int) -> tuple[float, float]:
    """Return how often uneven and shared noise can be noticed at best, with the law as linear."""
    generator = np.random.default_rng(seed)
    law, logs = law_of(inputs), true_logs(inputs)
    problem = LawProblem(law, inputs, np.exp(logs), SQUARES)
    truth = POWER_TRUTH if "x" in inputs else TRUTH
    theta = problem.scale(np.asarray([[truth[name] for name in law.parameter_names]]))
    contrasts = null_space(problem.jacobian(theta)[0].T)
    columns = [np.log(v) for v in inputs.values()]
    noise = generator.standard_normal((n_tables, len(logs)))
    nothing = generator.standard_normal((n_tables, len(logs))) @ contrasts
    # Only the direction is known to the test: noise may as well shrink.
    place = (columns[0] - columns[0].min()) / np.ptp(columns[0])
    uneven_ = [contrasts.T @ np.diag(4.0 ** (2 * s * place)) @ contrasts for s in (1, -1)]
    common = noise[::-1] @ np.linalg.cholesky(common_covariance(columns)).T
    common = common @ contrasts @ contrasts.T
    common *= LARGEST / np.abs(common).max(axis=1, keepdims=True)
    within = contrasts.T @ common_covariance(columns) @ contrasts
    shared_ = [np.eye(len(within)) + ratio * within for ratio in (0.3, 0.6, 1.0, 1.5)]

    def noticed(tables: Array, covariances: list[Array]) -> float:
        found, null = (_log_ratio(each, covariances) for each in (tables, nothing))
        return float((found > np.quantile(null, 1 - share)).mean())

    return noticed((noise * 4.0**place) @ contrasts, uneven_), noticed(
        (common + noise) @ contrasts, shared_
    )


def _log_ratio(tables: Array, covariances: list[Array]) -> Array:
    """Return (B,) the log mean likelihood ratio to even noise, the scale profiled out."""
    ratios = []
    for covariance in covariances:
        rest = np.einsum("bi,ij,bj->b", tables, np.linalg.inv(covariance), tables)
        log_det = np.linalg.slogdet(covariance)[1]
        fall = np.log(rest / (tables**2).sum(axis=1))
        ratios.append(-0.5 * log_det - len(covariance) / 2 * fall)
    mean: Array = np.logaddexp.reduce(ratios, axis=0)
    return mean


KINDS = {"adequate": adequate, **MISFITS}


def _first(inputs: Table) -> str:
    return next(iter(inputs))


def statuses(
    make: Callable[..., tuple[Table, Array]], n_tables: int, first_seed: int
) -> dict[str, list[str]]:
    """Return the verdicts by design."""
    found = collections.defaultdict(list)
    names = list(DESIGNS)
    for seed in range(first_seed, first_seed + n_tables):
        generator = np.random.default_rng(seed)
        name = names[seed % len(names)]
        inputs = DESIGNS[name](generator)
        columns, logs = make(inputs, generator)
        table = {**columns, "loss": np.exp(logs)}
        fit = fit_law(law_of(inputs), table, n_draws=100, seed=seed)
        found[name].append(str(fit.verdict.status))
    return dict(found)


def show(kind: str, found: dict[str, list[str]]) -> None:
    """Print the share of each verdict."""
    everything = [status for each in found.values() for status in each]
    for name, each in [*found.items(), ("all designs", everything)]:
        shares = (f"{each.count(str(s)) / len(each):6.1%} {s}" for s in VerdictStatus)
        print(f"{kind:18}{name:26}{len(each):4} tables: {', '.join(shares)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=500, help="adequate ones, and misfits")
    parser.add_argument("--first-seed", type=int, default=0, help="thresholds were set on 5000 on")
    parser.add_argument("--only", choices=KINDS, help="this kind alone")
    parser.add_argument("--bound", type=float, help="share of false alarms; prints bounds alone")
    arguments = parser.parse_args()
    if arguments.bound is not None:
        found = [
            bounds(make(np.random.default_rng(0)), arguments.bound, 4000, 1)
            for make in DESIGNS.values()
        ]
        for name, (first, second) in zip(DESIGNS, found, strict=True):
            print(f"{name:26}uneven noise {first:.0%}, shared errors {second:.0%}")
        first, second = np.mean(found, axis=0)
        print(f"{'all designs':26}uneven noise {first:.0%}, shared errors {second:.0%}")
        return
    for kind, make in KINDS.items():
        if arguments.only in (None, kind):
            share = len(MISFITS) if kind in MISFITS else 1
            show(kind, statuses(make, arguments.tables // share, arguments.first_seed))


if __name__ == "__main__":
    main()
