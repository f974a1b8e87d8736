"""Table of benchmark results of a sweep's models, with their uncertainty."""

from dataclasses import asdict
from typing import Any

from analysis.formatting import Column, Table, number
from analysis.loading.load import Runs, histories
from analysis.scaling.benchmark_noise import (
    PREFIX,
    BenchmarkNoise,
    benchmark_columns,
    benchmark_noise,
)


def benchmarks(runs: Runs) -> Table:
    """Return signal, noise and the smallest difference of every benchmark; no row without any."""
    measured = benchmark_columns(runs.table)  # histories are many files or requests
    found = benchmark_noise(runs.table, histories(runs, (PREFIX,))) if measured else []
    columns = [
        Column("task", lambda b: b.task, fields=_numbers),
        Column("metric", lambda b: b.measure, fields=_none),
        Column("lowest", lambda b: number(b.lowest), True, _none),
        Column("highest", lambda b: number(b.highest), True, _none),
        Column("chance", lambda b: _value(b.chance), True, _none),
        Column("noise", lambda b: _value(b.noise), True, _none),
        Column("from", lambda b: b.noise_from or "–", fields=_none),
        Column("signal / noise", lambda b: _value(b.signal_to_noise), True, _none),
        Column("smallest difference", lambda b: _value(b.smallest_difference), True, _none),
        Column("what it tells", _seen),
    ]
    notes = (
        "lowest, highest: mean over seeds of the lowest and the highest configuration",
        "noise: standard deviation of one trial's score between seeds; without repeated seeds"
        " between the last checkpoints, without these the standard error over the task's rows",
        "signal / noise: highest - lowest over the noise of a configuration's mean;"
        " noise alone gives 1 to 4, more with more configurations",
        "smallest difference: what a test at 5 % finds in 80 of 100 such sweeps",
    )
    return Table.of("Benchmarks", found, columns, notes if found else ())


def _numbers(noise: BenchmarkNoise) -> dict[str, Any]:
    """Return every number of a row, for files."""
    return {
        **asdict(noise),
        "signal_to_noise": noise.signal_to_noise,
        "smallest_difference": noise.smallest_difference,
    }


def _none(noise: BenchmarkNoise) -> dict[str, Any]:
    """Return nothing: the first column has the numbers of all."""
    del noise
    return {}


def _value(number_or_none: float | None) -> str:
    return "–" if number_or_none is None else number(number_or_none)


def _seen(noise: BenchmarkNoise) -> str:
    """Say what the numbers of a benchmark are good for."""
    if noise.at_chance:
        return "all at chance"
    smallest = noise.smallest_difference
    if noise.n_configurations > 1 and smallest is not None and noise.signal < smallest:
        return "no difference seen"
    if noise.n_above_chance is not None and noise.n_above_chance < noise.n_configurations:
        return f"{noise.n_configurations - noise.n_above_chance} at chance"
    return ""
