"""Benchmarks asked between the steps of a training run, on all its ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.evaluation.evaluate_suites import measure
from workloads.evaluation.harness_model import HarnessModel
from workloads.evaluation.prepared_suite import PreparedSuite, prepare
from workloads.training.benchmark_hook import ModelInTraining

Keep = Callable[[str, dict[str, Any]], None]
"""Takes the name of a suite and its record."""


@dataclass(frozen=True, kw_only=True)
class BenchmarksInTraining:
    """Suites to ask of a model at some steps: a `BenchmarkHook`."""

    suites: Sequence[PreparedSuite]
    steps: frozenset[int]
    """After which they are asked."""
    keep: Keep
    """Called on the main rank, with every record."""

    def measure(self, trained: ModelInTraining) -> dict[str, float]:
        """Return the metrics of all suites, the same on every rank. Collective."""
        metrics: dict[str, float] = {}
        was_training = trained.model.training
        trained.model.eval()
        try:
            for one in self.suites:
                # A model each, because what it counts is of one suite.
                model = HarnessModel(
                    model=trained.model,
                    text_tokenizer=trained.tokenizer,
                    seq_len=trained.seq_len,
                    vocab_size=trained.vocab_size,
                    here=trained.here,
                    bf16=trained.bf16,
                    # A graph and a copy of the matrices would not fit beside what training holds.
                    capture=False,
                    world=trained.world,
                )
                record = measure(
                    one, model, lambda task, done, total: trained.progress(), step=trained.step
                )
                metrics |= record["metrics"]
                if trained.world.is_main:
                    self.keep(one.suite.name, record)
            return metrics
        finally:
            trained.model.train(was_training)


def load(
    names: Sequence[str], data: Path, *, rows: int, steps: frozenset[int], keep: Keep
) -> BenchmarksInTraining:
    """Return suites for a training run, with their files read and checked.

    Args:
        names: Of bundled suites, or YAML files.
        data: Folder of the task files.
        rows: Rows of each task, the first ones.
        steps: After which they are asked.
        keep: Called on the main rank, with every record.

    Raises:
        ValueError: If there is no such suite, a file is missing or a row is wrong.
    """
    return BenchmarksInTraining(suites=prepare(names, data, limit=rows), steps=steps, keep=keep)
