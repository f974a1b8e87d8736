"""How often the verdict on a fit is a false alarm, and how often it notices a misfit.

    python benchmarks/verdict_calibration.py --tables 500

Made-up tables, fitted as anybody would (`fit_law`). Half of them are of the law that is fitted, with
normal noise. The others are misfits of four kinds, in equal numbers. Their largest systematic error
is twice the noise between seeds; where the noise is uneven, its standard deviation grows fourfold
from the smallest to the largest model. Designs alternate: with and without a second seed.
"""

import argparse
import collections
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.fit_law import fit_law
from analysis.fitting.law import Law
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
        return np.log(1.8 + 400 * inputs["x"] ** -0.34)
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
    error = LARGEST * NOISE * np.where(rate, 1.0, -1.0)
    named = {**inputs, "lr": np.where(rate, 1e-3, 3e-3)}
    return named, logs + error + NOISE * generator.standard_normal(len(logs))


def uneven(inputs: Table, generator: np.random.Generator) -> tuple[Table, Array]:
    """Noise that grows fourfold from the smallest to the largest model."""
    size = np.log(inputs[_first(inputs)])
    noise = NOISE * 4 ** ((size - size.min()) / np.ptp(size))
    return inputs, true_logs(inputs) + noise * generator.standard_normal(len(size))


def shared(inputs: Table, generator: np.random.Generator) -> tuple[Table, Array]:
    """Errors that neighbours have in common: half correlated three tenths of the range apart."""
    logs = true_logs(inputs)
    columns = [np.log(v) for v in inputs.values()]
    places = np.stack([(c - c.min()) / np.ptp(c) for c in columns], axis=1)
    distance = np.linalg.norm(places[:, None] - places[None, :], axis=2)
    covariance = np.exp(-np.log(2) * distance / 0.3)
    root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(logs)))
    common = NOISE * (root @ generator.standard_normal(len(logs)))
    for _ in range(3):
        common *= LARGEST * NOISE / largest_error(inputs, logs + common)
    return inputs, logs + common + NOISE * generator.standard_normal(len(logs))


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


def _first(inputs: Table) -> str:
    return next(iter(inputs))


def statuses(make: Callable[..., tuple[Table, Array]], n_tables: int) -> dict[str, list[str]]:
    """Return the verdicts by design."""
    found = collections.defaultdict(list)
    names = list(DESIGNS)
    for seed in range(n_tables):
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
    arguments = parser.parse_args()
    show("adequate", statuses(adequate, arguments.tables))
    for kind, make in MISFITS.items():
        show(kind, statuses(make, arguments.tables // len(MISFITS)))


if __name__ == "__main__":
    main()
