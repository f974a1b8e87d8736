"""How close multipliers of a mixture of experts come to known ones.

    python benchmarks/mixture_multiplier.py --tables 200

Every table holds a dense and a mixture sweep of 7 sizes x 5 ratios of tokens to parameters, two
seeds each, noise 0.3 %. `params` counts every expert (eight times the feed-forward two thirds),
`active_params` those that a token uses. The mixture's loss at N active parameters is the dense
law's at m N, so that the dense model needs m times the FLOPs for the same loss: m is 1.5 to 4. The
multiplier is read at the geometric mean of the sweep's FLOPs, which no law is told.

    python benchmarks/mixture_multiplier.py --tables 200 --routed

holds sweeps of 1, 4, 16 and 64 experts by the joint law of Ludziejewski et al. 2025 (6 sizes x 4
ratios, two seeds), and reads the multipliers of the last three over dense.
"""

import argparse
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from analysis.fitting.objective import SQUARES
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.registry import law_named
from analysis.scaling.architecture_laws import fit_families
from analysis.scaling.compute_multiplier import multipliers

LAW = np.asarray([CHINCHILLA.example[name] for name in CHINCHILLA.parameter_names])
STORED_PER_ACTIVE = 1 / 3 + 8 * 2 / 3
SIZES, RATIOS, SEEDS = np.geomspace(3e7, 1e9, 7), np.geomspace(5, 80, 5), 2


def made_up(seed: int, noise: float) -> tuple[dict[str, np.ndarray], float]:
    """Return a table of both sweeps, and the true multiplier."""
    generator = np.random.default_rng(seed)
    true = float(generator.uniform(1.5, 4))
    size, ratio, _ = (v.ravel() for v in np.meshgrid(SIZES, RATIOS, np.arange(SEEDS)))
    n = len(size)
    routed = np.repeat([False, True], n)
    active, tokens = np.tile(size, 2), np.tile(size * ratio, 2)
    effective = np.where(routed, true * active, active)
    loss = CHINCHILLA.evaluate({"params": effective, "tokens": tokens}, LAW)
    return {
        "architecture": np.where(routed, "moe", "dense"),
        "params": np.where(routed, STORED_PER_ACTIVE * active, active),
        "active_params": active,
        "experts": np.where(routed, 8, 1),
        "tokens": tokens,
        "loss": loss * np.exp(noise * generator.standard_normal(2 * n)),
    }, true


def routed(seed: int, noise: float, counts=(1, 4, 16, 64)) -> dict[str, np.ndarray]:
    """Return a table of sweeps with several numbers of experts."""
    generator = np.random.default_rng(seed)
    grid = np.meshgrid(counts, np.geomspace(3e7, 1e9, 6), np.geomspace(5, 80, 4), range(SEEDS))
    experts, size, ratio, _ = (v.ravel().astype(float) for v in grid)
    law = law_named("routed_joint")
    coefficients = np.asarray([law.example[name] for name in law.parameter_names])
    inputs = {"n_active": size, "tokens": size * ratio, "experts": experts}
    noise_of_runs = np.exp(noise * generator.standard_normal(len(size)))
    return {
        "architecture": np.asarray(["dense" if e == 1 else f"moe {e:g}" for e in experts]),
        "active_params": size,
        "tokens": size * ratio,
        "experts": experts,
        "loss": law.evaluate(inputs, coefficients) * noise_of_runs,
    }


def compare_routed(tables: int, noise: float) -> None:
    """Print how close the multipliers over dense come to those of the law without noise."""
    names = ("moe 4", "moe 16", "moe 64")
    print("| law | median error | 95 % of errors below | within 5 % | s |")
    print("|---" * 5 + "|")

    def found(table: dict[str, np.ndarray], law: str) -> list[float]:
        laws = fit_families(table, law=law, objective=SQUARES, n_draws=0, hold_out=False)
        return [float(multipliers(laws, name, amounts=1e19).multiplier[0]) for name in names]

    true = found(routed(0, 0.0), "routed_joint")
    for law in ("routed_joint", "chinchilla"):
        started = time.process_time()
        each = np.asarray([found(routed(seed, noise), law) for seed in range(tables)])
        errors = np.abs(each / true - 1)
        spent = time.process_time() - started
        print(
            f"| {law} | {np.nanmedian(errors):.2%} | {np.nanquantile(errors, 0.95):.2%} "
            f"| {np.mean(errors < 0.05):.1%} | {spent:.0f} |",
            flush=True,
        )
    print(f"True multipliers: {', '.join(f'{t:.3f}' for t in true)}; {tables} tables")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--noise", type=float, default=0.003)
    parser.add_argument("--draws", type=int, default=0, help="resamples behind the bands")
    parser.add_argument("--routed", action="store_true", help="several numbers of experts")
    options = parser.parse_args()
    if options.routed:
        compare_routed(options.tables, options.noise)
        return
    amount = float(np.exp(np.log(6 * np.outer(SIZES**2, RATIOS)).mean()))
    ways: dict[str, dict] = {
        "default": {},
        "least squares": {"objective": SQUARES},
        "least squares, total parameters": {"objective": SQUARES, "columns": {"params": "params"}},
    }
    print("| way | median error | 95 % of errors below | within 5 % | held | s |")
    print("|---" * 6 + "|")
    for name, way in ways.items():
        errors, held, started = [], [], time.process_time()
        for seed in range(options.tables):
            table, true = made_up(seed, options.noise)
            laws = fit_families(table, n_draws=options.draws, seed=seed, hold_out=False, **way)
            found = multipliers(laws, "moe", amounts=amount)
            errors.append(abs(found.multiplier[0] / true - 1))
            held.append(found.low[0] <= true <= found.high[0])
        seconds = time.process_time() - started
        band = f"{np.mean(held):.1%}" if options.draws else "not asked for"
        print(
            f"| {name} | {np.nanmedian(errors):.2%} | {np.nanquantile(errors, 0.95):.2%} | {np.mean(np.asarray(errors) < 0.05):.1%} | {band} | {seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
