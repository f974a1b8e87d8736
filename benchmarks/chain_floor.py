"""How well a two-stage fit with a chance floor predicts a decade beyond its runs.

    python benchmarks/chain_floor.py --tables 200

Every table is a ladder of 16 runs (4 sizes x 4 ratios of tokens to parameters) over two decades of
FLOPs, of a Chinchilla law and a sigmoid of its own: floor 0.2 to 0.5, ceiling 0.9 to 1, steepness 3
to 8 per nat, half-way point among the runs. Accuracy has an error of 0.01, ln(loss) of --noise. The
target has ten times the FLOPs of the largest run. "held" is the share of tables whose 95 % band of
the target holds its true accuracy.
"""

import argparse
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from analysis.fitting.objective import SQUARES
from analysis.fitting.two_stage import fit_chain
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.loss_to_accuracy import Sigmoid

LAW = np.asarray([CHINCHILLA.example[name] for name in CHINCHILLA.parameter_names])
PARAMS = np.repeat(2e8 * np.geomspace(1, 10**0.5, 4), 4)
RUNS = {"params": PARAMS, "tokens": PARAMS * np.tile(np.geomspace(20, 200, 4), 4)}
OUTCOME_NOISE = 0.01
RATIO = float(np.sqrt(20 * 200))
TARGET_PARAMS = np.sqrt(10 * float((PARAMS * RUNS["tokens"]).max()) / RATIO)
TARGET = {"params": np.asarray([TARGET_PARAMS]), "tokens": np.asarray([RATIO * TARGET_PARAMS])}

LINKS = {
    "floor fitted, anchored": Sigmoid(chance=None),
    "floor known": None,
    "floor taken as 0": Sigmoid(),
}


def made_up(seed: int, noise: float) -> tuple[dict[str, np.ndarray], float, float]:
    """Return a table, the target's true accuracy, and the floor."""
    generator = np.random.default_rng(seed)
    clean = CHINCHILLA.evaluate(RUNS, LAW)
    floor, ceiling = generator.uniform(0.2, 0.5), generator.uniform(0.9, 1.0)
    link = np.asarray(
        [ceiling, generator.uniform(clean.min(), clean.max()), generator.uniform(3, 8)]
    )
    sigmoid = Sigmoid(chance=floor)
    loss = clean * np.exp(noise * generator.standard_normal(len(clean)))
    scatter = OUTCOME_NOISE * generator.standard_normal(len(clean))
    accuracy = np.clip(sigmoid.evaluate({"loss": loss}, link) + scatter, 0, 1)
    truth = sigmoid.evaluate({"loss": CHINCHILLA.evaluate(TARGET, LAW)}, link)[0]
    return RUNS | {"loss": loss, "accuracy": accuracy}, float(truth), floor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--noise", default="0.001", help="of ln(loss), comma-separated")
    options = parser.parse_args()
    print(
        "| noise of the loss | link | median error | 90 % of errors below | held | half width | s |"
    )
    print("|---" * 7 + "|")
    for noise in map(float, options.noise.split(",")):
        for name, given in LINKS.items():
            errors, held, widths, started = [], [], [], time.process_time()
            for seed in range(options.tables):
                table, truth, floor = made_up(seed, noise)
                link = given or Sigmoid(chance=floor)
                chain = fit_chain(
                    CHINCHILLA,
                    link,
                    table,
                    objective=SQUARES,
                    n_draws=options.draws,
                    seed=seed,
                    hold_out=False,
                )
                if not chain.usable:
                    held.append(False)
                    continue
                at = chain.predict(TARGET)
                errors.append(abs(at.y[0] - truth))
                held.append(bool(at.low[0] <= truth <= at.high[0]))
                widths.append((at.high[0] - at.low[0]) / 2)
            seconds = time.process_time() - started
            print(
                f"| {noise:g} | {name} | {np.median(errors):.4f} | {np.quantile(errors, 0.9):.4f} | {np.mean(held):.1%} | {np.median(widths):.3f} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
