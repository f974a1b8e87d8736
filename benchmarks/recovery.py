"""How often intervals hold the truth: known coefficients, made-up runs, every law.

    python benchmarks/recovery.py --replicates 500
    python benchmarks/recovery.py --laws chinchilla,sparse_effective,routed --starts own

Each replicate is a new set of runs (the same sizes, new noise), fitted and resampled in full.
"coverage" is the share of replicates whose 95 % interval holds the true value: for each coefficient
(lowest and highest of them), for the law at a point inside the runs and at one three times as large
as the largest of each input, and for a new run at the point inside (its prediction interval). 500
replicates of a true 95 % scatter by 1 % (one standard error).
"""

import argparse
import itertools
import os
import platform
import time
from dataclasses import dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import scipy

from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.law import Law, LinearScaleLaw
from analysis.fitting.objective import SQUARES, Objective
from analysis.fitting.result import Band, LawFit
from analysis.fitting.synthetic import make_inputs, make_runs
from analysis.fitting.two_stage import fit_chain
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.loss_to_accuracy import Sigmoid
from analysis.laws.power import PowerLaw
from analysis.laws.registry import all_laws
from analysis.laws.saturating import Saturating
from analysis.scaling.isoflop import fit_isoflop

NOISE = {"sparsity": 0.0005, "broken": 0.005, "fine_grained": 0.001}


def targets(law: Law, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a point inside the runs and one beyond them."""
    middle, beyond = [], []
    for name in law.inputs:
        some = inputs[name][inputs[name] > 0]
        middle.append(float(np.exp(np.log(some).mean())))
        beyond.append(float(some.max() if name == "sparsity" else 3 * some.max()))
    return {n: np.asarray([a, b]) for n, a, b in zip(law.inputs, middle, beyond, strict=True)}


class Tally:
    """Counts in how many replicates intervals held the truth."""

    def __init__(self, truth: np.ndarray, curve: np.ndarray) -> None:
        """Start with the true coefficients (p,) and the true curve inside and outside (2,)."""
        self._truth, self._curve = truth, curve
        self._held, self._held_curve = np.zeros(len(truth)), np.zeros(2)
        self._held_new = self._usable = 0
        self._started = time.process_time()

    def add(self, fit: LawFit, forecast: Band, new: float) -> None:
        """Add a fit with its predictions at the two places, and a new run at the first."""
        self._usable += 1
        ends = np.asarray(list(fit.intervals.values()))
        self._held += (ends[:, 0] <= self._truth) & (self._truth <= ends[:, 1])
        self._held_curve += (forecast.low <= self._curve) & (self._curve <= forecast.high)
        self._held_new += bool(forecast.new_low[0] <= new <= forecast.new_high[0])

    def shares(self) -> dict[str, float]:
        """Return the shares, and the CPU seconds since the beginning."""
        held = self._held / self._usable
        return {
            "usable": self._usable,
            "lowest": float(held.min()),
            "mean": float(held.mean()),
            "highest": float(held.max()),
            "inside": float(self._held_curve[0] / self._usable),
            "beyond": float(self._held_curve[1] / self._usable),
            "new run": float(self._held_new / self._usable),
            "seconds": time.process_time() - self._started,
        }


def recover(
    law: Law,
    *,
    replicates: int,
    draws: int,
    n_runs: int,
    noise: float,
    objective: Objective,
    from_truth: bool,
) -> dict[str, float]:
    inputs = make_inputs(law, n_runs)
    at = targets(law, inputs)
    truth = np.asarray([law.example[name] for name in law.parameter_names])
    curve = law.evaluate(at, truth)
    tally, widths = Tally(truth, curve), []
    for replicate in range(replicates):
        runs = make_runs(law, n_runs, noise=noise, seed=replicate + 1)
        starts = truth[None, :] if from_truth else None
        fit = fit_law(
            law,
            runs,
            objective=objective,
            n_draws=draws,
            seed=replicate,
            hold_out=False,
            controls=FitControls(starts=starts),
        )
        if not fit.usable:
            continue
        forecast = fit.predict(at)
        new = curve[0] * np.exp(noise * np.random.default_rng(10**6 + replicate).standard_normal())
        tally.add(fit, forecast, new)
        widths.append(np.log(forecast.high[1] / forecast.low[1]) / 2)
    return tally.shares() | {"half width beyond": float(np.median(widths))}


def recover_chain(*, replicates: int, draws: int, n_runs: int, noise: float) -> dict[str, float]:
    """Chinchilla and a sigmoid to accuracy.

    The outcome at a point inside the runs and one beyond, through both steps.
    """
    link, parameters = Sigmoid(chance=0.25), np.asarray([0.9, 2.9, 4.0])
    inputs = make_inputs(CHINCHILLA, n_runs)
    at = targets(CHINCHILLA, inputs)
    truth = np.asarray([CHINCHILLA.example[name] for name in CHINCHILLA.parameter_names])
    curve = link.evaluate({"loss": CHINCHILLA.evaluate(at, truth)}, parameters)
    held, held_link, usable = np.zeros(2), np.zeros(3), 0
    started = time.process_time()
    for replicate in range(replicates):
        runs = make_runs(CHINCHILLA, n_runs, noise=noise, seed=replicate + 1)
        scatter = noise * np.random.default_rng(10**6 + replicate).standard_normal(n_runs)
        accuracy = np.clip(link.evaluate({"loss": runs["loss"]}, parameters) + scatter, 0, 1)
        fit = fit_chain(
            CHINCHILLA,
            link,
            runs | {"accuracy": accuracy},
            objective=SQUARES,
            n_draws=draws,
            seed=replicate,
            hold_out=False,
        )
        if not fit.usable:
            continue
        usable += 1
        forecast = fit.predict(at)
        held += (forecast.low <= curve) & (curve <= forecast.high)
        ends = np.asarray(list(fit.to_outcome.intervals.values()))
        held_link += (ends[:, 0] <= parameters) & (parameters <= ends[:, 1])
    return {
        "link lowest": float((held_link / usable).min()),
        "inside": float(held[0] / usable),
        "beyond": float(held[1] / usable),
        "seconds": time.process_time() - started,
    }


@dataclass(frozen=True)
class OneSize:
    """A curve of one size.

    `n_sizes` sizes of three seeds each, errors of configurations as large as those of seeds.
    """

    law: LinearScaleLaw
    truth: tuple[float, ...]
    span: tuple[float, float]
    noise: float


CURVES = {
    "power law": OneSize(PowerLaw(), (1.7, 400.0, 0.35), (1e5, 1e8), 0.005),
    "saturating": OneSize(Saturating(), (0.8, 3e6, 0.7), (1e5, 1e8), 0.01),
}


def recover_curve(curve: OneSize, *, replicates: int, draws: int, n_sizes: int) -> dict[str, float]:
    """Coefficients, the curve inside and at ten times the largest size, and a new run."""
    sizes, seeds = np.geomspace(*curve.span, n_sizes), 3
    x, member = np.repeat(sizes, seeds), np.repeat(np.arange(n_sizes), seeds)
    truth = np.asarray(curve.truth)
    at = np.asarray([np.sqrt(curve.span[0] * curve.span[1]), 10 * curve.span[1]])
    known, clean = curve.law.evaluate({"x": at}, truth), curve.law.evaluate({"x": x}, truth)
    tally = Tally(truth, known)
    for replicate in range(replicates):
        generator = np.random.default_rng(replicate)
        shared, own = generator.standard_normal(n_sizes + 1), generator.standard_normal(len(x) + 1)
        errors = curve.noise / np.sqrt(2) * (shared[member] + own[:-1])
        fit = fit_law(
            curve.law,
            {"x": x, "y": clean + errors},
            outcome="y",
            clusters=member,
            n_draws=draws,
            seed=replicate,
            hold_out=False,
        )
        if not fit.usable:
            continue
        new = known[0] + curve.noise / np.sqrt(2) * (shared[-1] + own[-1])
        tally.add(fit, fit.predict(at), new)
    return tally.shares()


ISOFLOPS = ((5, 9, 0.001), (8, 7, 0.005), (5, 9, 0.005), (8, 7, 0.001))
"""Budgets, sizes of each, noise."""


def recover_isoflop(
    *, replicates: int, draws: int, n_budgets: int, n_sizes: int, noise: float
) -> dict[str, float]:
    """Sizes around the optimum of a law with alpha = beta, where parabolas are unbiased."""
    law = {"A": 500.0, "B": 500.0, "E": 1.8, "alpha": 0.35, "beta": 0.35}
    point = np.asarray([law[name] for name in CHINCHILLA.parameter_names])
    budgets = np.repeat(np.geomspace(1e18, 1e21, n_budgets), n_sizes)
    sizes = np.sqrt(budgets / 6) * np.tile(np.geomspace(1 / 8, 8, n_sizes), n_budgets)
    clean = {"params": sizes, "tokens": budgets / 6 / sizes, "flops": budgets}
    loss = CHINCHILLA.evaluate(clean, point)
    held, held_optimum, held_parametric, usable = 0, 0.0, 0, 0
    started = time.process_time()
    for replicate in range(replicates):
        errors = noise * np.random.default_rng(replicate).standard_normal(len(loss))
        runs = clean | {"loss": loss * np.exp(errors)}
        fit = fit_isoflop(
            runs,
            method="parabola",
            objective=SQUARES,
            n_draws=draws,
            seed=replicate,
            hold_out=False,
        )
        line = fit.lines["params"]
        if line.interval is None:
            continue
        usable += 1
        held += line.interval[0] <= 0.5 <= line.interval[1]
        optima = [(b.interval, np.sqrt(b.compute / 6)) for b in line.budgets if b.interval]
        held_optimum += np.mean([low <= true <= high for (low, high), true in optima])
        low, high = fit.exponents["params"][1]
        held_parametric += low <= 0.5 <= high
    return {
        "usable": usable,
        "line": held / usable,
        "optimum": held_optimum / usable,
        "parametric": held_parametric / usable,
        "seconds": time.process_time() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicates", type=int, default=500)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--noise", type=float, default=0.005)
    parser.add_argument(
        "--laws",
        default="",
        help="comma-separated, curves, chain and isoflop among them; all by default",
    )
    parser.add_argument(
        "--starts",
        choices=("truth", "own"),
        default="truth",
        help="own: every fit searches as it does for a user; truth, for speed: it begins at the true coefficients",
    )
    options = parser.parse_args()
    laws = all_laws()
    names = (
        options.laws.split(",") if options.laws else [*sorted(laws), "curves", "chain", "isoflop"]
    )
    chosen = [laws[name] for name in names if name in laws]
    print(
        f"numpy {np.__version__}, scipy {scipy.__version__}, python {platform.python_version()}, {os.cpu_count()} cores; "
        f"{options.replicates} replicates, {options.draws} resamples, {options.runs} runs, least squares of ln(loss), starts: {options.starts}"
    )
    columns = (
        "noise",
        "coefficients",
        "lowest",
        "mean",
        "highest",
        "inside",
        "beyond",
        "new run",
        "half width beyond",
        "s",
    )
    print("| law | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for law in chosen:
        noise = NOISE.get(law.name, options.noise)
        r = recover(
            law,
            replicates=options.replicates,
            draws=options.draws,
            n_runs=options.runs,
            noise=noise,
            objective=SQUARES,
            from_truth=options.starts == "truth",
        )
        shares = " | ".join(
            f"{r[c]:.1%}" for c in ("lowest", "mean", "highest", "inside", "beyond", "new run")
        )
        print(
            f"| {law.name} | {noise:g} | {law.n_free} | {shares} | {r['half width beyond']:.2%} | {r['seconds']:.0f} |",
            flush=True,
        )
    if "chain" in names:
        r = recover_chain(
            replicates=options.replicates,
            draws=options.draws,
            n_runs=options.runs,
            noise=options.noise,
        )
        print(
            f"chain (chinchilla, sigmoid): link's coefficients at least {r['link lowest']:.1%}; accuracy inside {r['inside']:.1%}, beyond {r['beyond']:.1%}; {r['seconds']:.0f} s",
            flush=True,
        )
    if "curves" in names:
        for (name, curve), n_sizes in itertools.product(CURVES.items(), (8, 24)):
            r = recover_curve(
                curve, replicates=options.replicates, draws=options.draws, n_sizes=n_sizes
            )
            shares = " | ".join(
                f"{r[c]:.1%}" for c in ("lowest", "mean", "highest", "inside", "beyond", "new run")
            )
            print(
                f"| {name}, {n_sizes} sizes | {curve.noise:g} | {len(curve.truth)} | {shares} | {r['usable']} usable | {r['seconds']:.0f} |",
                flush=True,
            )
    if "isoflop" in names:
        for n_budgets, n_sizes, noise in ISOFLOPS:
            r = recover_isoflop(
                replicates=options.replicates,
                draws=options.draws,
                n_budgets=n_budgets,
                n_sizes=n_sizes,
                noise=noise,
            )
            print(
                f"isoflop, {n_budgets} budgets of {n_sizes} sizes, noise {noise:g}: exponent of the line {r['line']:.1%}, a budget's optimum {r['optimum']:.1%}, exponent of the parametric law {r['parametric']:.1%}; {r['usable']} with a line; {r['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
