"""The Chinchilla fit, 4,500 starts and 4,000 resamples.

Ours beside a plain loop over scipy with exact gradients.

    python benchmarks/fits.py [--data chinchilla_points.csv] [--starts 4500 --resamples 4000]
    [--loop-every 10]

Both see the same 240 runs, the same starting grid (Hoffmann et al. 2022), the same resamples (seed
42) and the same objective, sum of Huber(1e-3) of log errors. The loop is what most published code
does, done well: L-BFGS-B from every start on the log-sum-exp form with exact gradients and the
objective divided by the threshold, then one BFGS per resample from the best fit. Without --data the
runs are made up, as many over as wide a range.
"""

import argparse
import itertools
import os
import platform
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import scipy
import scipy.optimize

from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.synthetic import make_runs
from analysis.laws.chinchilla import CHINCHILLA

DELTA = 1e-3


def grid() -> np.ndarray:
    """Return ln A, ln B, ln E, alpha, beta of the 4,500 starts."""
    axes = (
        np.arange(0, 30, 5.0),
        np.arange(0, 30, 5.0),
        np.arange(-1, 1.5, 0.5),
        np.arange(0, 2.5, 0.5),
        np.arange(0, 2.5, 0.5),
    )
    return np.asarray(list(itertools.product(*axes)))


def objective(
    p: np.ndarray, log_n: np.ndarray, log_d: np.ndarray, log_loss: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return sum Huber / DELTA and its gradient."""
    a, b, e, alpha, beta = p
    terms = np.stack([a - alpha * log_n, b - beta * log_d, np.full(len(log_n), e)])
    total = np.logaddexp.reduce(terms)
    r = total - log_loss
    slope = np.clip(r, -DELTA, DELTA)
    share = np.exp(terms - total) * (weights * slope)
    value = weights @ (slope * (r - 0.5 * slope))
    gradient = np.asarray(
        [share[0].sum(), share[1].sum(), share[2].sum(), -share[0] @ log_n, -share[1] @ log_d]
    )
    return value / DELTA, gradient / DELTA


def plain_loop(
    runs: pd.DataFrame, starts: np.ndarray, resamples: np.ndarray
) -> tuple[float, np.ndarray, float, float]:
    """Return the best objective, every resample's, and the seconds of either part."""
    data = (
        np.log(runs["params"].to_numpy()),
        np.log(runs["tokens"].to_numpy()),
        np.log(runs["loss"].to_numpy()),
    )
    began = time.perf_counter()
    best, lowest = None, np.inf
    for start in starts:
        found = scipy.optimize.minimize(
            objective,
            start,
            args=(*data, np.ones(len(runs))),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-8},
        )
        if found.fun < lowest:
            best, lowest = found.x, found.fun
    best = scipy.optimize.minimize(
        objective,
        best,
        args=(*data, np.ones(len(runs))),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-8},
    )
    middle = time.perf_counter()
    values = [
        scipy.optimize.minimize(
            objective, best.x, args=(*data, w), jac=True, method="BFGS", options={"gtol": 1e-6}
        ).fun
        for w in resamples
    ]
    return (
        best.fun * DELTA,
        np.asarray(values) * DELTA,
        middle - began,
        time.perf_counter() - middle,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", help="chinchilla_points.csv of Besiroglu et al. 2024; made up if absent"
    )
    parser.add_argument("--starts", type=int, default=4500)
    parser.add_argument("--resamples", type=int, default=4000)
    parser.add_argument(
        "--loop-every",
        type=int,
        default=1,
        help="the loop does one start and resample in so many, its seconds are multiplied",
    )
    options = parser.parse_args()
    if options.data:
        table = pd.read_csv(options.data)
        runs = table[~table["outlier_dropped_in_paper"]].reset_index(drop=True)
    else:
        runs = pd.DataFrame(make_runs(CHINCHILLA, 240, noise=0.006))
    n = len(runs)
    starts = grid()[:: max(1, 4500 // options.starts)][: options.starts]
    generator = np.random.RandomState(42)
    resamples = np.asarray(
        [np.bincount(generator.choice(n, size=n), minlength=n) for _ in range(options.resamples)],
        dtype=float,
    )
    raw = np.column_stack([np.exp(starts[:, :3]), starts[:, 3:]])

    def ours(weights: np.ndarray):
        began, cpu = time.perf_counter(), time.process_time()
        fit = fit_law(
            CHINCHILLA, runs, hold_out=False, controls=FitControls(starts=raw, resamples=weights)
        )
        return fit, time.perf_counter() - began, time.process_time() - cpu

    _, only_starts, _ = ours(np.empty((0, n)))
    fit, seconds, cpu = ours(resamples)
    loop_cpu = time.process_time()
    every = options.loop_every
    best, values, loop_starts, loop_resamples = plain_loop(
        runs, starts[::every], resamples[::every]
    )
    loop_cpu = every * (time.process_time() - loop_cpu)
    loop_starts, loop_resamples = every * loop_starts, every * loop_resamples
    difference = fit.draw_objectives[::every] / values - 1
    print(
        f"numpy {np.__version__}, scipy {scipy.__version__}, python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"{n} runs, {len(starts)} starts, {len(resamples)} resamples"
    )
    print("| | starts s | resamples s | both s | CPU s | objective |")
    print("|---|---|---|---|---|---|")
    print(
        f"| ours | {only_starts:.2f} | {seconds - only_starts:.2f} | {seconds:.2f} | {cpu:.1f} | {fit.objective:.14f} |"
    )
    estimated = "" if every == 1 else f" (x {every} of every {every}th)"
    print(
        f"| plain scipy loop{estimated} | {loop_starts:.2f} | {loop_resamples:.2f} | {loop_starts + loop_resamples:.2f} | {loop_cpu:.1f} | {best:.14f} |"
    )
    print(
        f"{len(difference)} resamples compared; ours higher by more than 1e-9: {(difference > 1e-9).sum()} (largest {difference.max():.1e}); "
        f"lower by more than 1e-9: {(difference < -1e-9).sum()} (largest {-difference.min():.1e})"
    )


if __name__ == "__main__":
    main()
