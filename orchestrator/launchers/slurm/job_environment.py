"""Environment of a Slurm job: id, resources, end-of-job signals, requeueing."""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from orchestrator.launchers.slurm import commands
from orchestrator.launchers.slurm.commands import SlurmError
from orchestrator.node.hardware import usable_cores, visible_gpus

LOG = logging.getLogger(__name__)
NOTICES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP)
"""SIGUSR2 is what jobs ask for before their time limit and before preemption. SIGTERM is sent by a
cluster that was not set up for that, by `scancel`, and by `scontrol requeue`. SIGHUP comes from
`srun` or a step whose terminal or daemon is gone; the allocation ends like at a SIGTERM."""


def job_id(environment: Mapping[str, str] = os.environ) -> str:
    """Return the id of this job as `squeue -r` shows it: `12`, or `12_3` in an array."""
    array = environment.get("SLURM_ARRAY_JOB_ID")
    if array is not None:
        return f"{array}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment["SLURM_JOB_ID"]


def node_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return which of the job's nodes this is, from 0."""
    return int(environment.get("SLURM_NODEID", "0"))


def cores(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many cores of this node are the job's."""
    said = environment.get("SLURM_CPUS_PER_TASK") or environment.get("SLURM_CPUS_ON_NODE")
    return int(said) if said else usable_cores()


def hide_other_gpus() -> tuple[str, ...]:
    """Return the GPUs of this job on this node; hide all when it has none.

    Without Slurm's cgroups the node's other GPUs could be seen, too.
    """
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return visible_gpus()


@contextmanager
def notices(on_notice: Callable[[int], None]) -> Iterator[list[int]]:
    """Call `on_notice` with the first signal that announces the end of the allocation.

    Yields the signals that came. Replaces submitit's handlers, which would requeue the job before
    anything has checkpointed.
    """
    came: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        came.append(number)
        if len(came) == 1:
            on_notice(number)

    before = {number: signal.signal(number, on_signal) for number in NOTICES}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def requeue_job() -> bool:
    """Requeue this job, unless it was cancelled or Slurm requeues it; return whether it was done.

    Call it when everything has checkpointed: what still runs of the job is ended. Where Slurm's
    commands do not work on the node, that is said and nothing is done.
    """
    own = job_id()
    try:
        state = commands.state(own)
        if state != "RUNNING":
            LOG.info("job %s is %s: it is not requeued", own, state or "unknown")
            return False
        commands.requeue(own)
    except SlurmError as error:
        LOG.error("job %s was not requeued: %s; submit again", own, error)
        return False
    LOG.info("job %s was requeued", own)
    return True
