"""How well isoFLOP lines find the exponent of a law whose curves are no parabolas.

    python benchmarks/isoflop_exponent.py --tables 200

Seven budgets from 1e18 to 1e21 FLOPs; at each, sizes one octave apart up to four octaves on each
side of a centre; losses of a Chinchilla law, noise 0.3 %. The centre is the optimum, or 20 tokens
per parameter, which is where people put it. "within 0.02" and "held" are shares of the tables whose
exponent of the optimal parameters is that close to the law's, and lies in the 95 % interval.
"""

import argparse
import itertools
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from analysis.fitting.objective import SQUARES
from analysis.laws.chinchilla import CHINCHILLA, compute_optimum
from analysis.scaling.isoflop import fit_isoflop

LAWS = {
    "Besiroglu et al. 2024": {"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658},
    "Hoffmann et al. 2022": {"A": 406.4, "B": 410.7, "E": 1.69, "alpha": 0.34, "beta": 0.28},
    "alpha 0.25, beta 0.5": {"A": 60.0, "B": 3e4, "E": 1.8, "alpha": 0.25, "beta": 0.5},
}  # fmt: skip
METHODS = ("auto", "parabola")
CENTRES = ("the optimum", "20 tokens")
OCTAVES = np.arange(-4, 5)
BUDGETS = np.geomspace(1e18, 1e21, 7)


def sizes_of(law: dict[str, float], centre: str) -> dict[str, np.ndarray]:
    """Return the sizes of a sweep."""
    middles = [
        compute_optimum(law, C)[0] if centre == "the optimum" else np.sqrt(C / 120) for C in BUDGETS
    ]
    flops = np.repeat(BUDGETS, len(OCTAVES))
    params = np.concatenate([middle * 2.0**OCTAVES for middle in middles])
    return {"params": params, "tokens": flops / 6 / params, "flops": flops}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--noise", type=float, default=0.003)
    options = parser.parse_args()
    print(
        "| law | centre | method | median error | within 0.02 | held | half width | quartics | s |"
    )
    print("|---" * 9 + "|")
    for method, (name, law), centre in itertools.product(METHODS, LAWS.items(), CENTRES):
        clean = sizes_of(law, centre)
        true = law["beta"] / (law["alpha"] + law["beta"])
        loss = CHINCHILLA.evaluate(clean, np.asarray([law[p] for p in CHINCHILLA.parameter_names]))
        errors, held, widths, quartics = [], [], [], 0
        started = time.process_time()
        for seed in range(options.tables):
            noise = options.noise * np.random.default_rng(seed).standard_normal(len(loss))
            table = clean | {"loss": loss * np.exp(noise)}
            fit = fit_isoflop(
                table,
                method=method,
                objective=SQUARES,
                n_draws=options.draws,
                seed=seed,
                hold_out=False,
            )
            line = fit.lines["params"]
            quartics += line.method == "quartic"
            if line.interval is None:
                held.append(False)
                continue
            errors.append(abs(line.exponent - true))
            held.append(line.interval[0] <= true <= line.interval[1])
            widths.append((line.interval[1] - line.interval[0]) / 2)
        seconds = time.process_time() - started
        close = sum(e < 0.02 for e in errors) / options.tables
        print(
            f"| {name} | {centre} | {method} | {np.median(errors):.4f} | {close:.1%} | {np.mean(held):.1%} | {np.median(widths):.4f} | {quartics / options.tables:.0%} | {seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
