"""Benchmarks during training, between its steps, within a share of its time.

All ranks take part.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.decoding.decoder import NotANumberError
from workloads.evaluation.measure import Asked, import_harness, measure, prepare, require_answers
from workloads.evaluation.text_model import TextModel
from workloads.evaluation.time_limit import TimeLimit
from workloads.training import device
from workloads.training.benchmark_hook import ModelInTraining

LOG = logging.getLogger(__name__)
UNFINISHED = "eval/unfinished_tasks"
"""Metric: tasks that were left out: the time of evaluations was over, or they were refused."""

Keep = Callable[[str, dict[str, Any]], None]
"""Takes the name of a suite and its record."""


@dataclass(frozen=True, kw_only=True)
class BenchmarksInTraining:
    """Suites and questions to ask of a model at some steps: a `BenchmarkHook`."""

    asked: Sequence[Asked]
    steps: frozenset[int]
    """After which they are asked."""
    keep: Keep
    """Called on the main rank, with every record."""
    most_share: float | None = None
    """Of the training's time, after which an evaluation stops; None: no limit."""

    def measure(self, trained: ModelInTraining) -> dict[str, float]:
        """Return the metrics of all that is asked, the same on every rank. Collective."""
        metrics: dict[str, float] = {}
        was_training = trained.model.training
        trained.model.eval()
        model = TextModel(
            model=trained.model,
            tokenizer=trained.tokenizer,
            seq_len=trained.seq_len,
            vocab_size=trained.vocab_size,
            here=trained.here,
            bf16=trained.bf16,
            # A graph and a copy of the matrices would not fit beside what training holds.
            capture=False,
            world=trained.world,
        )
        limit = TimeLimit(seconds=self._seconds(trained), world=trained.world)
        unfinished: list[str] = []
        late: list[str] = []
        try:
            with device.varying_shapes(trained.here):
                for one in self.asked:
                    refusals: list[ValueError] = []
                    record = measure(
                        one,
                        model,
                        lambda task, done, total: trained.progress(),
                        step=trained.step,
                        limit=limit,
                        refused=refusals.append,
                    )
                    metrics |= record["metrics"]
                    missing = record.get("unfinished", [])
                    unfinished += missing
                    if refusals:
                        LOG.warning(
                            "benchmarks after step %d: %s cannot be measured, and training goes "
                            "on: %s",
                            trained.step,
                            ", ".join(missing),
                            refusals[0],
                        )
                    else:
                        late += missing
                    if trained.world.is_main:
                        self.keep(one.name, record)
        except NotANumberError as error:
            # Whether training has diverged is for the next step's loss to say.
            LOG.warning("benchmarks after step %d are left out: %s", trained.step, error)
            return metrics
        finally:
            trained.model.train(was_training)
        if unfinished:
            metrics[UNFINISHED] = float(len(unfinished))
        if late:
            LOG.warning(
                "benchmarks after step %d stopped at %.2g %% of the training's time, before %s; "
                "`memscale evaluate` asks what is missing of a trained model",
                trained.step,
                100 * (self.most_share or 0.0),
                ", ".join(late),
            )
        return metrics

    def _seconds(self, trained: ModelInTraining) -> float:
        """Return how long the evaluation of this step may take.

        All evaluations together may take `most_share` of the training's time, the first k of n as
        much as k / n of it. The rate so far says how long training takes.
        """
        if self.most_share is None:
            return float("inf")
        whole = trained.training_s / trained.step * trained.n_steps
        so_far = sum(step <= trained.step for step in self.steps) / len(self.steps)
        return self.most_share * whole * so_far - trained.benchmarks_s


def load(
    names: Sequence[str],
    data: Path | None,
    *,
    questions: Path | None = None,
    model: Mapping[str, Any],
    seq_len: int,
    rows: int,
    steps: frozenset[int],
    keep: Keep,
    most_share: float | None = None,
) -> BenchmarksInTraining:
    """Return suites and questions for a training run, with their files read and checked.

    What a process needs once, it does here: the share is for questions alone.

    Args:
        names: Of bundled suites, or YAML files.
        data: Folder of the task files; None where there is no suite.
        questions: A file of questions.
        model: Section of the trial's spec.
        seq_len: Tokens of a training sequence.
        rows: Rows of each task, the first ones.
        steps: After which they are asked.
        keep: Called on the main rank, with every record.
        most_share: Of the training's time, after which an evaluation stops.

    Raises:
        ValueError: If there is no such suite, a file is missing, a row is wrong, examples are too
            few, or the model cannot generate answers.
    """
    asked = prepare(names, data, questions, limit=rows)
    require_answers(asked, model=model, seq_len=seq_len)
    if names:
        import_harness()
    return BenchmarksInTraining(
        asked=asked,
        steps=steps,
        keep=keep,
        most_share=most_share,
    )
