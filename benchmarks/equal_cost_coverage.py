"""How often intervals of differences at equal cost hold the truth.

    python benchmarks/equal_cost_coverage.py --tables 1000

Every table holds two architectures of six sizes, losses on a power law in FLOPs with normal noise
of 0.01 (or 0.01 and 0.03), two to five seeds. The candidate's curve lies 0.02 lower. Its sizes cost
exactly what the reference's do, or 1.3 times as much, where the reference is interpolated. Printed
is the share of 95 % intervals, of the mean over sizes and at the largest size, that hold the
difference of the noise-free curves, and how often the mean is called different where there is none.
"""

import argparse
import time

import numpy as np
import pandas as pd

from analysis.scaling.equal_cost import equal_cost

SHIFT = 0.02
SIZES = np.geomspace(1e10, 1e12, 6)


def curve(flops: np.ndarray) -> np.ndarray:
    """Return the reference's loss without noise."""
    return 2 + (flops / 1e9) ** -0.3


def made_up(
    seed: int, *, seeds: int, ratio: float, noises: tuple[float, float], shift: float
) -> pd.DataFrame:
    """Return runs of both architectures."""
    generator = np.random.default_rng(seed)
    parts = []
    for name, flops, below, noise in (
        ("dense", SIZES, 0.0, noises[0]),
        ("memory", SIZES * ratio, shift, noises[1]),
    ):
        x = np.repeat(flops, seeds)
        loss = curve(x) - below + noise * generator.standard_normal(len(x))
        parts.append(pd.DataFrame({"architecture": name, "training_flops": x, "loss": loss}))
    table = pd.concat(parts, ignore_index=True).assign(training_tokens=1e6)
    return table.assign(configuration=[f"{a} {f:.6g}" for a, f in table.iloc[:, :2].to_numpy()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=1000)
    tables = parser.parse_args().tables
    print("| seeds | costs | noise | mean held | largest held | called different of equals | s |")
    print("|---" * 7 + "|")
    for noises in ((0.01, 0.01), (0.01, 0.03)):
        for ratio in (1.0, 1.3):
            for seeds in (2, 3, 5):
                started, found = time.process_time(), []
                for seed in range(tables):
                    of = {"seeds": seeds, "ratio": ratio, "noises": noises}
                    (one,) = equal_cost(
                        made_up(seed, shift=SHIFT, **of), reference="dense"
                    ).differences
                    (none,) = equal_cost(
                        made_up(tables + seed, shift=0.0, **of), reference="dense"
                    ).differences
                    found.append(
                        (
                            one.mean.low <= -SHIFT <= one.mean.high,
                            one.largest.low <= -SHIFT <= one.largest.high,
                            none.verdict != "not told apart",
                        )
                    )
                mean, largest, wrong = np.mean(found, axis=0)
                spent = time.process_time() - started
                costs = "equal" if ratio == 1 else "interpolated"
                print(
                    f"| {seeds} | {costs} | {noises[0]}, {noises[1]} | {mean:.1%} | {largest:.1%} "
                    f"| {wrong:.1%} | {spent:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
