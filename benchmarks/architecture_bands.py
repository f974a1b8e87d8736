"""Coverage of the bands of multipliers and frontier, over simulated sweeps.

    python benchmarks/architecture_bands.py --replicates 500

Each sweep has six sizes by three lengths by two seeds of two architectures whose laws differ in A
and B; noise between configurations and between seeds is equal. What is counted, at three budgets
(the last four times the largest run): the FLOP multiplier and the size multiplier, and one
architecture's best size, tokens and loss. 500 sweeps of a true 95 % scatter by 1 % (one standard
error).
"""

import argparse
import time

import numpy as np

from analysis.fitting.objective import SQUARES, Objective
from analysis.laws.chinchilla import CHINCHILLA
from analysis.scaling.architecture_laws import fit_families
from analysis.scaling.compute_multiplier import multipliers
from analysis.scaling.cost_measures import COST_MEASURES
from analysis.scaling.frontier import allocate, frontier

TRUTH = {
    "dense": np.asarray([482.01, 2085.43, 1.8172, 0.3478, 0.3658]),
    "memory": np.asarray([400.0, 1800.0, 1.8172, 0.3478, 0.3658]),
}
BUDGETS = np.asarray([3e15, 1e18, 2e19])
OBJECTIVES = {
    "squares": SQUARES,
    "huber": Objective(),
    "huber 1.345 scales": Objective(huber=None, huber_scales=1.345),
}


def make_sweep(seed: int, noise: float) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    sizes, ratios = np.geomspace(1e6, 1e8, 6), np.asarray([5.0, 20.0, 80.0])
    params = np.repeat(sizes, 3)
    columns: dict[str, list[np.ndarray]] = {
        k: [] for k in ("architecture", "params", "tokens", "loss")
    }
    for name, truth in TRUTH.items():
        tokens = params * np.tile(ratios, 6)
        clean = CHINCHILLA.evaluate({"params": params, "tokens": tokens}, truth)
        shared = noise / np.sqrt(2) * generator.standard_normal(len(params))
        for _ in range(2):
            own = noise / np.sqrt(2) * generator.standard_normal(len(params))
            columns["architecture"].append(np.full(len(params), name))
            columns["params"].append(params)
            columns["tokens"].append(tokens)
            columns["loss"].append(clean * np.exp(shared + own))
    return {k: np.concatenate(v) for k, v in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=500)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--noise", type=float, default=0.004)
    parser.add_argument("--objective", choices=OBJECTIVES, default="squares")
    options = parser.parse_args()
    exact = fit_families(make_sweep(0, 0.0), objective=SQUARES, n_draws=0, hold_out=False)
    known = multipliers(exact, "memory", amounts=BUDGETS)
    best = allocate(exact.curves()["memory"], COST_MEASURES["flops"], BUDGETS)
    truth = {
        "multiplier": known.multiplier,
        "size multiplier": known.size,
        "best size": best.params[0],
        "best tokens": best.tokens[0],
        "best loss": best.loss[0],
    }
    held = {name: np.zeros(len(BUDGETS)) for name in truth}
    start = time.process_time()
    for seed in range(options.replicates):
        families = fit_families(
            make_sweep(seed + 1, options.noise),
            objective=OBJECTIVES[options.objective],
            n_draws=options.draws,
            hold_out=False,
        )
        found = multipliers(families, "memory", amounts=BUDGETS)
        allocation = frontier(families, budgets=BUDGETS).allocations["memory"]
        bands = {
            "multiplier": (found.low, found.high), "size multiplier": (found.size_low, found.size_high),
            "best size": allocation.params_band, "best tokens": allocation.tokens_band, "best loss": allocation.loss_band,
        }  # fmt: skip
        for name, (low, high) in bands.items():
            held[name] += (low <= truth[name]) & (truth[name] <= high)
        if (seed + 1) % 100 == 0 or seed + 1 == options.replicates:
            each = (time.process_time() - start) / (seed + 1)
            print(
                f"{options.objective}, {seed + 1} sweeps, {options.draws} draws, {each:.2f} CPU-s each"
            )
            for name, count in held.items():
                shares = (
                    f"{b:.0e}: {c / (seed + 1):.1%}" for b, c in zip(BUDGETS, count, strict=True)
                )
                print(f"{name:15}", *shares, flush=True)


if __name__ == "__main__":
    main()
