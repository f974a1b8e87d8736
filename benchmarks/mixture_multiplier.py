"""How close multipliers of a mixture of experts come to known ones.

    python benchmarks/mixture_multiplier.py --tables 200

Every table holds a dense and a mixture sweep of 7 sizes x 5 ratios of tokens to parameters, two
seeds each, noise 0.3 %. `params` counts every expert (eight times the feed-forward two thirds),
`active_params` those that a token uses. The mixture's loss at N active parameters is the dense
law's at m N, so that the dense model needs m times the FLOPs for the same loss: m is 1.5 to 4. The
multiplier is read at the geometric mean of the sweep's FLOPs, which no law is told.
"""

import argparse
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from analysis.fitting.objective import SQUARES
from analysis.laws.chinchilla import CHINCHILLA
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--noise", type=float, default=0.003)
    parser.add_argument("--draws", type=int, default=0, help="resamples behind the bands")
    options = parser.parse_args()
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
        print(f"| {name} | {np.nanmedian(errors):.2%} | {np.nanquantile(errors, 0.95):.2%} | {np.mean(np.asarray(errors) < 0.05):.1%} | {band} | {seconds:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
