"""Records of a sweep's Slurm jobs: one file for each array in SWEEP/slurm/jobs.

    SWEEP/slurm/
      jobs/12.json               {"kind", "submission", "jobs": {"12_0": trial id or null, …}}
      12/head.json               how the nodes of head pilot 12 find its Ray; see head_address.py
      12/leaving/13-0            the node of a pilot on which nothing new may start
      submitit/                  scripts and pickles of jobs, and what they printed

Slurm itself says what became of a job; the records only say whose it is.
"""

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.control.status import QueueReasons
from orchestrator.launchers.slurm import commands
from orchestrator.launchers.slurm.commands import Queued, SlurmError
from orchestrator.records.errors import BusyError
from orchestrator.records.json_files import read_json, write_json
from orchestrator.records.sweep_dir import SweepDir

HEAD = "head"
"""A pilot whose first node runs Ray's head and the controller."""
WORKER = "worker"
"""A pilot of one node that joins a head."""
TRIAL = "trial"
"""A job that trains one trial."""


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job that Slurm has not forgotten."""

    kind: str
    trial_id: str | None
    """The one that it trains; None for pilots."""
    queued: Queued

    @property
    def pending(self) -> bool:
        """Whether it waits in the queue."""
        return self.queued.state == "PENDING"

    def __str__(self) -> str:
        why = f" ({self.queued.reason})" if self.pending else ""
        return f"Slurm job {self.queued.job_id} is {self.queued.state}{why}"


def folder(sweep: SweepDir) -> Path:
    """Return the folder of all that concerns Slurm."""
    return sweep.path / "slurm"


def record(
    sweep: SweepDir,
    job_ids: Sequence[str],
    *,
    kind: str,
    submission: int,
    trial_ids: Sequence[str | None] | None = None,
) -> None:
    """Write down the jobs of one call of `submitit_adapter.submit`."""
    whose = trial_ids or [None] * len(job_ids)
    jobs = folder(sweep) / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    write_json(
        jobs / f"{job_ids[0].partition('_')[0]}.json",
        {
            "kind": kind,
            "submission": submission,
            "jobs": dict(zip(job_ids, whose, strict=True)),
        },
    )


def used(sweep: SweepDir) -> bool:
    """Whether this sweep was ever submitted to Slurm."""
    return (folder(sweep) / "jobs").is_dir()


def live_jobs(sweep: SweepDir) -> list[JobRecord]:
    """Return the jobs that wait, run or are ending.

    Raises:
        SlurmError: If Slurm cannot be asked.
    """
    if not used(sweep):
        return []
    records = {p.stem: read_json(p) for p in (folder(sweep) / "jobs").glob("*.json")}
    queue = commands.queued(records.keys())
    found = []
    for job_id, queued in queue.items():
        record = records[job_id.partition("_")[0]]
        if record is not None:
            found.append(
                JobRecord(kind=record["kind"], trial_id=record["jobs"].get(job_id), queued=queued)
            )
    return found


def queue_reasons(sweep: SweepDir) -> QueueReasons | None:
    """Return why trials wait as the sweep's jobs say it; None if no job was ever submitted."""
    if not used(sweep):
        return None
    try:
        jobs = live_jobs(sweep)
    except SlurmError as error:
        # Where Slurm is but does not answer, jobs may well be there.
        return QueueReasons(
            rest=f"its Slurm job cannot be looked up here ({error})",
            n_jobs=int(shutil.which("squeue") is not None),
        )
    # One that is ending has said what became of its trials.
    going = [job for job in jobs if job.queued.state != "COMPLETING"]
    heads = [str(job) for job in going if job.kind == HEAD]
    return QueueReasons(
        by_trial={job.trial_id: str(job) for job in going if job.trial_id is not None},
        rest=heads[0] if heads else None,
        n_jobs=len(jobs),
    )


def refuse_if_queued(sweep: SweepDir, *, kinds: Collection[str] = (HEAD, WORKER)) -> None:
    """Raise BusyError if jobs of these kinds wait or run for a sweep.

    Where Slurm cannot be asked, the locks of records/locks.py keep two controllers apart.
    """
    try:
        jobs = [job for job in live_jobs(sweep) if job.kind in kinds]
    except SlurmError:
        return
    if jobs:
        more = f", and there are {len(jobs) - 1} more" if jobs[1:] else ""
        raise BusyError(
            f"sweep {sweep.name}: {jobs[0]}{more}; watch with "
            f"`memscale status {sweep.name} --watch`, end with `memscale cancel {sweep.name}`"
        )


def cancel(sweep: SweepDir, trial_ids: Collection[str], *, whole_sweep: bool) -> None:
    """Cancel pending jobs. Those that run look for requests to cancel themselves.

    Raises:
        SlurmError: If Slurm cannot be asked.
    """
    if not trial_ids:
        return
    try:
        jobs = [
            job.queued.job_id
            for job in live_jobs(sweep)
            if job.pending and (job.trial_id in trial_ids or (whole_sweep and job.trial_id is None))
        ]
        commands.cancel(jobs)
    except SlurmError as error:
        raise SlurmError(
            f"what runs was asked to stop, but jobs in Slurm's queue stay there: {error}; "
            "cancel again from a login node"
        ) from error
