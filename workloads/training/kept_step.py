"""Kept step: model, optimizer, CUDA graphs, for the next trial of the same kind.

A small trial takes seconds, and building these anew a good part of them: a process that trains
several trials of one kind, one after another, makes them once. For the next trial the initial
weights are written and the optimizer's moments cleared in place, where the graphs expect them. What
else differs, the learning rates and random draws, is set before each step anyway. So a trial takes
the very steps that it takes in a process of its own.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workloads.layers.modules.init import initialise
from workloads.training.metrics.device_use import DeviceUse
from workloads.training.rank_job import RankJob
from workloads.training.step.cuda_graph import CapturedStep
from workloads.training.step.train_step import TrainStep

_STEP = "step"


@dataclass(frozen=True, kw_only=True)
class KeptStep:
    """A step that a trial has taken to its end, and whose next trial may take it."""

    kind: RankJob
    """`_kind` of that trial."""
    step: TrainStep | CapturedStep
    use: DeviceUse
    """Of the device, by its trials."""

    def renew(self, seed: int) -> None:
        """Put model and optimizer in the state that they begin with."""
        initialise(self.step.model, seed)
        self.step.optimizer.reset()
        self.step.phases.take()
        self.step.phases.mean_s()


def take(
    between: MutableMapping[str, Any] | None, job: RankJob, *, begins: bool
) -> KeptStep | None:
    """Return what the last trial kept, renewed, if this one is of its kind.

    It is kept no more, also where the trial goes on from a checkpoint and makes a model of its own.
    """
    kept: KeptStep | None = None if between is None else between.pop(_STEP, None)
    if kept is None or not begins or kept.kind != _kind(job):
        return None
    kept.renew(job.seed)
    return kept


def keep(
    between: MutableMapping[str, Any] | None,
    job: RankJob,
    step: TrainStep | CapturedStep,
    use: DeviceUse,
) -> None:
    """Keep the step of a trial that came to its end for the next one.

    Optimizers of tables keep more than moments, ranks of several do what others know of, and other
    weights than the initial ones are not written anew: these begin with a model of their own.
    """
    if between is None or job.from_pretrained is not None:
        return
    if job.world_size == 1 and step.optimizer.tables is None:
        between[_STEP] = KeptStep(kind=_kind(job), step=step, use=use)


def _kind(job: RankJob) -> RankJob:
    """Return the job without what may differ between trials that take the same step."""
    return replace(job, seed=0, checkpoints=Path(), train={**job.train, "lr": None})
