"""How well the largest runs are predicted from the runs that a design of experiments chose.

    python benchmarks/next_runs.py FOLDER --seeds 10

FOLDER holds the tasks of `benchmarks/scalebench.py` and, if there, `chinchilla_points.csv`. A seed
offers four fifths of the training runs, drawn at random. Every strategy spends 1, 5 or 10 % of what
they cost together (parameters times tokens). Then one procedure fits all: of the task's laws by
least squares, the one that predicts the largest quarter of the chosen runs best. Printed is the R2
of the test runs, at least -1, as mean ± standard error over the seeds. `D-optimal` and `one law`
start from 12 of the cheapest runs, since they need a fit. They use the first law of the task, which
is wrong for some; `averaged` is what `analysis.next_runs` does, from nothing or from those 12.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scalebench import TASKS

from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.law import LawProblem
from analysis.fitting.objective import Objective
from analysis.fitting.result import LawFit
from analysis.laws.registry import law_named
from analysis.scaling.greedy_design import DesignModel, spread_plan
from analysis.scaling.kriging import kriging
from analysis.scaling.local_weights import local_weights

Array = NDArray[np.float64]
BUDGETS = (0.01, 0.05, 0.1)
POOL = 0.8
N_PILOT = 12
N_TARGETS = 12
SQUARES = Objective(residual="log", huber=None)
LAWS = {
    "farseer": ("chinchilla", "kaplan", "farseer"),
    "data_constrained": ("chinchilla", "kaplan", "farseer", "data_constrained"),
    "moe": ("routed",),
    "vocab": ("vocabulary",),
    "chinchilla": ("chinchilla", "kaplan", "farseer"),
}
N_STARTS = 4
"""Of a fit, beside the optimum of all runs: a start, to save time, not an answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Runs to choose from, runs to predict, and laws to do it by."""

    name: str
    train: pd.DataFrame
    test: pd.DataFrame
    cost: Array
    laws: Sequence[str]
    starts: Mapping[str, Array]

    @property
    def inputs(self) -> list[str]:
        """Columns that some law takes."""
        return list(dict.fromkeys(i for name in self.laws for i in law_named(name).inputs))

    @property
    def in_logs(self) -> bool:
        """Whether losses are positive."""
        return bool(self.train["loss"].min() > 0)

    def outcome(self, values: Array) -> Array:
        """Return losses as they are fitted."""
        return np.log(np.maximum(values, 1e-9)) if self.in_logs else values

    def fit(self, law: str, rows: Sequence[int]) -> LawFit | None:
        """Return the law's fit to some runs, None without numbers."""
        of, runs = law_named(law), self.train.iloc[list(rows)]
        columns = {name: runs[name].to_numpy(dtype=float) for name in (*of.inputs, "loss")}
        objective = SQUARES if self.in_logs else of.default_objective
        starts = [self.starts[law]] if law in self.starts else []
        try:
            problem = LawProblem(of, {n: columns[n] for n in of.inputs}, columns["loss"], objective)
            spread = problem.unscale(problem.starts())
            chosen = np.random.default_rng(0).permutation(len(spread))[: N_STARTS if starts else 64]
            controls = FitControls(starts=np.concatenate([*starts, spread[chosen]]))
            fit = fit_law(
                of, columns, objective=objective, n_draws=0, hold_out=False, controls=controls
            )
        except ValueError:
            return None
        return fit if fit.usable else None


def predicted(fit: LawFit, runs: pd.DataFrame) -> Array:
    """Return the losses (n,) of runs."""
    inputs = {name: runs[name].to_numpy(dtype=float) for name in fit.law.inputs}
    return fit.law.evaluate(inputs, np.asarray(list(fit.parameters.values())))


def score(task: Task, rows: Sequence[int]) -> float:
    """Return R2 of the test runs by the law that predicts the largest quarter of the rows best."""
    by_size = sorted(rows, key=lambda i: task.cost[i])
    n_large = max(1, round(len(rows) / 4))
    small, large = by_size[:-n_large], task.train.iloc[by_size[-n_large:]]
    errors: dict[str, float] = {}
    for law in task.laws:
        fit = task.fit(law, small) if len(task.laws) > 1 else None
        difference = np.inf
        if fit is not None:
            difference = task.outcome(predicted(fit, large)) - task.outcome(large["loss"])
        errors[law] = float(np.mean(np.abs(difference)))
    for law in sorted(errors, key=errors.__getitem__):
        fit = task.fit(law, rows)
        if fit is not None:
            observed = task.test["loss"].to_numpy()
            squares = np.sum((predicted(fit, task.test) - observed) ** 2)
            found = 1 - squares / np.sum((observed - observed.mean()) ** 2)
            return float(max(found, -1.0)) if np.isfinite(found) else -1.0
    return -1.0


def law_model(task: Task, laws: Sequence[str], rows: Sequence[int], places: pd.DataFrame):
    """Return the covariance (q, q) of the outcome at places and the noise; None without a fit.

    It is the mean over laws whose residuals are within twice the smallest, and their disagreement.
    """
    found = []
    for law in laws:
        fit = task.fit(law, rows) if len(rows) >= law_named(law).n_free + 3 else None
        if fit is None:
            continue
        problem = fit.problem()
        theta = problem.scale(np.asarray(list(fit.parameters.values()))[None, :])[0]
        free = np.flatnonzero((theta > problem.lower + 1e-9) & (theta < problem.upper - 1e-9))
        J = problem.jacobian(theta[None, :])[0][:, free] * problem.y_unit
        noise = max(float(np.sum(fit.residuals**2)) / max(len(rows) - len(free), 1), 1e-8)
        size = np.maximum(np.linalg.norm(J, axis=0), 1e-300)
        inverse = np.linalg.pinv((J / size).T @ (J / size) + 1e-6 * np.eye(len(free)))
        S = noise * inverse / np.outer(size, size)
        step, n = 1e-4 * np.sqrt(np.diag(S)), len(free)
        moved = np.repeat(theta[None, :], 2 * n + 1, axis=0)
        moved[np.arange(n), free] += step
        moved[n + np.arange(n), free] -= step
        inputs = {name: places[name].to_numpy(dtype=float) for name in fit.law.inputs}
        y = task.outcome(fit.law.evaluate(inputs, problem.unscale(moved)))
        slopes = ((y[:n] - y[n:-1]) / (2 * step[:, None])).T
        if np.isfinite(slopes).all():
            found.append((slopes @ S @ slopes.T, y[-1], noise))
    if not found:
        return None
    least = min(noise for *_, noise in found)
    kept = [one for one in found if one[2] <= 4 * least]
    apart = np.asarray([y for _, y, _ in kept]) - np.mean([y for _, y, _ in kept], axis=0)
    covariance = np.mean([c for c, *_ in kept], axis=0) + apart.T @ apart / len(kept)
    return covariance, least


Choice = list[int]
Strategy = Callable[[Task, NDArray[np.int64], float, np.random.Generator], Choice]


def affordable(task: Task, order: Sequence[int], budget: float) -> Choice:
    """Return the runs of an order, without those that no longer fit."""
    chosen = []
    for i in order:
        if task.cost[i] <= budget:
            chosen.append(int(i))
            budget -= task.cost[i]
    return chosen


def at_random(task: Task, pool: NDArray[np.int64], budget: float, rng) -> Choice:
    return affordable(task, rng.permutation(pool), budget)


def cheapest_first(task: Task, pool: NDArray[np.int64], budget: float, rng) -> Choice:
    return affordable(task, pool[np.argsort(task.cost[pool], kind="stable")], budget)


def pilot(task: Task, pool: NDArray[np.int64], budget: float, rng) -> Choice:
    """Return 12 of the cheapest tenth, or of the cheapest 24."""
    cheap = pool[np.argsort(task.cost[pool], kind="stable")]
    return affordable(task, rng.permutation(cheap[: max(len(pool) // 10, 24)])[:N_PILOT], budget)


def in_batches(
    task: Task,
    pool: NDArray[np.int64],
    budget: float,
    rng,
    *,
    choose: Callable[[Task, Choice, pd.DataFrame, NDArray[np.int64], float, int], Choice],
    with_pilot: bool = True,
) -> Choice:
    """Return runs of batches of 6 or half of what is there, chosen anew after each."""
    targets = task.test.iloc[np.random.default_rng(0).permutation(len(task.test))[:N_TARGETS]]
    done = pilot(task, pool, budget, rng) if with_pilot else []
    while True:
        left = budget - task.cost[done].sum()
        free = np.setdiff1d(pool, done)
        n = max(6, len(done) // 2) if done else N_PILOT
        added = choose(task, done, targets, free[task.cost[free] <= left], left, n)
        if not added:
            return done
        done = [*done, *added]


def averaged(task: Task, done: Choice, targets, free, left: float, n: int) -> Choice:
    places = pd.concat([targets, task.train.iloc[free]])
    logs = np.log(places[task.inputs].to_numpy(dtype=float))
    runs = np.log(task.train.iloc[done][task.inputs].to_numpy(dtype=float))
    y = task.outcome(task.train.iloc[done]["loss"].to_numpy(dtype=float))
    found = kriging(runs, y, logs, box=np.concatenate([runs, logs[len(targets) :]]))
    without_law = DesignModel(covariance=found.covariance, noise=np.full(len(free), found.noise))
    models = [without_law, replace(without_law, over_candidates=True)]
    of_laws = law_model(task, task.laws, done, places)
    if of_laws is not None:
        noise = np.full(len(free), of_laws[1])
        models.append(DesignModel(covariance=of_laws[0], noise=noise))
    # The budget is for all batches, and the only limit.
    everywhere = np.log(task.train[task.inputs].to_numpy(dtype=float))
    weights = local_weights(logs[: len(targets)], logs[len(targets) :], box=everywhere)
    costs = task.cost[free]
    plan = spread_plan(models, costs, budget=left, n_runs=n, n_later=np.inf, weights=weights)
    return [int(free[i]) for i, _ in plan]


def one_law(task: Task, done: Choice, targets, free, left: float, n: int, *, d_optimal) -> Choice:
    """Choose by gain per cost: of the targets' variance, or of the coefficients' volume."""
    found = law_model(task, task.laws[:1], done, pd.concat([targets, task.train.iloc[free]]))
    if found is None:
        return affordable(task, free[np.argsort(task.cost[free], kind="stable")], left)[:n]
    model = DesignModel(covariance=found[0], noise=np.full(len(free), found[1]))
    chosen: list[int] = []
    open_ = np.ones(len(free), dtype=bool)
    while len(chosen) < n and (good := open_ & (task.cost[free] <= left)).any():
        gain = model.removed()
        if d_optimal:
            gain = np.log1p(np.diag(model.covariance)[model.n_targets :] / model.noise)
        i = int(np.where(good, gain / task.cost[free], -np.inf).argmax())
        model, open_[i], left = model.after(i), False, left - task.cost[free[i]]
        chosen.append(int(free[i]))
    return chosen


STRATEGIES: Mapping[str, Strategy] = {
    "random": at_random,
    "cheapest first": cheapest_first,
    "D-optimal": partial(in_batches, choose=partial(one_law, d_optimal=True)),
    "one law": partial(in_batches, choose=partial(one_law, d_optimal=False)),
    "averaged": partial(in_batches, choose=averaged, with_pilot=False),
    "averaged, pilot": partial(in_batches, choose=averaged),
}


def read_tasks(folder: Path) -> list[Task]:
    """Return the tasks whose files are there."""
    found = []
    for name, laws in LAWS.items():
        if name == "chinchilla":
            file = folder / "chinchilla_points.csv"
            if not file.exists():
                continue
            runs = pd.read_csv(file).query("outlier_dropped_in_paper == 0")
            held = (runs["flops"] >= 1e21).to_numpy()
        else:
            runs = pd.read_csv(folder / f"scalebench_{name}.csv").rename(columns=TASKS[name])
            held = (runs["split"] == "test").to_numpy()
        train, test = (runs[m].reset_index(drop=True) for m in (~held, held))
        length = next((c for c in ("tokens", "characters") if c in train), None)
        cost = train["params"] * (train[length] if length else 1.0)
        parts = {"name": name, "train": train, "test": test, "cost": cost.to_numpy(dtype=float)}
        task = Task(**parts, laws=laws, starts={})
        fits = {law: task.fit(law, range(len(train))) for law in laws}
        starts = {
            law: np.asarray([list(fit.parameters.values())]) for law, fit in fits.items() if fit
        }
        found.append(Task(**parts, laws=laws, starts=starts))
    return found


def compare(tasks: Sequence[Task], seeds: range, *, names: Sequence[str]) -> pd.DataFrame:
    """Return one row per task, budget, strategy and seed, printed as they come."""
    rows = []
    for task in tasks:
        full = score(task, range(len(task.train)))
        print(f"{task.name}: R2 {full:.3f} by all {len(task.train)} runs", flush=True)
        for budget in BUDGETS:
            for name in names:
                values, counts, started = [], [], time.process_time()
                for seed in seeds:
                    rng = np.random.default_rng([seed, round(1000 * budget)])
                    n = len(task.train)
                    pool = np.random.default_rng(seed).permutation(n)[: round(POOL * n)]
                    limit = budget * task.cost[pool].sum()
                    chosen = STRATEGIES[name](task, np.sort(pool), limit, rng)
                    assert task.cost[chosen].sum() <= limit * (1 + 1e-9)
                    values.append(score(task, chosen))
                    counts.append(len(chosen))
                    rows.append(
                        {"task": task.name, "budget": budget, "strategy": name, "seed": seed}
                        | {"R2": values[-1], "runs": counts[-1]}
                    )
                error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
                print(
                    f"  {budget:4.0%} {name:16s} {np.mean(values):6.3f} ± {error:.3f}"
                    f"  {np.mean(counts):5.0f} runs  {time.process_time() - started:5.1f} CPU s",
                    flush=True,
                )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tasks", nargs="*", choices=list(LAWS), default=list(LAWS))
    parser.add_argument("--strategies", nargs="*", choices=list(STRATEGIES), default=[*STRATEGIES])
    parser.add_argument("--csv", type=Path, help="where to write one row per choice")
    arguments = parser.parse_args()
    tasks = [t for t in read_tasks(arguments.folder) if t.name in arguments.tasks]
    table = compare(tasks, range(arguments.seeds), names=arguments.strategies)
    if arguments.csv:
        table.to_csv(arguments.csv, index=False)
    by_seed = table.groupby(["strategy", "seed"], sort=False)["R2"].mean()
    for name, values in by_seed.groupby("strategy", sort=False):
        print(f"{name}: {values.mean():.3f} ± {values.sem():.3f} over tasks and budgets")


if __name__ == "__main__":
    main()
