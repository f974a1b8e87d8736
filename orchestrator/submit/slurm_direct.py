"""Backend slurm-direct: one Slurm job per trial, with a controller of its own."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.control.loop import Controller
from orchestrator.launchers.local import ProcessLauncher
from orchestrator.launchers.slurm import autoscaler, job_environment, job_records, submitit_adapter
from orchestrator.launchers.slurm.commands import Partition, SlurmError
from orchestrator.launchers.slurm.options import SlurmOptions
from orchestrator.records.errors import BusyError
from orchestrator.records.locks import ControllerLock
from orchestrator.records.rank_registry import TRAIN
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome, TrialSpec, TrialState
from orchestrator.scheduling.demand import Demand

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DirectTrial:
    """Task of a job array. Pickled by submitit, so plain values only."""

    sweep: str
    """Path of the sweep's folder."""
    trial_id: str
    submission: int
    cache: str
    predicted_s: float
    job: str = TRAIN

    def __call__(self) -> str:
        """Bring the trial to its end, or to a checkpoint and back into the queue; return its state.

        It may be killed at any moment: the next job of the trial, or this one when Slurm starts it
        again, goes on from the last checkpoint.

        Raises:
            SlurmError: If the job does not hold the trial; the job fails by it.
        """
        logging.basicConfig(level=logging.INFO)
        sweep = SweepDir(Path(self.sweep))
        trial = sweep.trial(self.trial_id)
        gpus = job_environment.hide_other_gpus()
        controller = Controller(
            sweep,
            submission=self.submission,
            trial_ids=[self.trial_id],
            launcher=ProcessLauncher(
                sweep, cpus=job_environment.cores(), gpus=len(gpus), job=self.job
            ),
            cache=Path(self.cache),
            predicted_s={self.trial_id: self.predicted_s},
            job=self.job,
            lock=ControllerLock(sweep, submission=self.submission, trial=trial),
        )
        with job_environment.notices(lambda number: controller.stop(Outcome.PREEMPTED)) as came:
            try:
                status = controller.run()
            except BusyError as error:
                LOG.warning("%s", error)
                return "busy"
            state = trial.state()
            if came and state is TrialState.WAITING and job_environment.requeue_job():
                return "requeued"
        if state is TrialState.WAITING and not came:
            why = "; ".join(trial.wait for trial in status.trials)
            raise SlurmError(f"trial {self.trial_id} cannot run in its job: {why}")
        return str(state)


@dataclass(frozen=True, kw_only=True)
class JobSize:
    """Cores and GPUs that a job asks of its node."""

    cpus: int
    gpus: int


class PartlyRefusedError(SlurmError):
    """Slurm has taken some jobs of a submission, and refused others."""

    def __init__(self, error: SlurmError, *, job_ids: Sequence[str], jobs: int) -> None:
        """Keep the jobs that are queued.

        Args:
            error: What sbatch said.
            job_ids: Of the jobs that it took.
            jobs: How many were to be submitted.
        """
        super().__init__(
            f"{error}; {len(job_ids)} of {jobs} jobs are queued and go on; "
            "submit again for the others once these have ended"
        )
        self.job_ids = job_ids


def job_size(spec: TrialSpec, partition: Partition) -> JobSize:
    """Return what the job of a trial asks for; a fraction of a GPU becomes one, as Slurm needs it.

    Raises:
        SlurmError: If no node of the partition has that much.
    """
    best = Demand(cpus=0, gpus=float(partition.most_gpus))
    demand = autoscaler.demand_of(spec.resources, best)
    needs = JobSize(cpus=demand.cpus, gpus=math.ceil(demand.gpus))
    if not partition.kinds_with(cpus=needs.cpus, gpus=needs.gpus):
        raise SlurmError(
            f"trial {spec.trial_id}: needs {demand} on one node; {partition}; "
            "choose another --partition, or lower resources"
        )
    return needs


def submit(
    sweep: SweepDir,
    specs: Sequence[TrialSpec],
    *,
    submission: int,
    request: SlurmOptions,
    partition: Partition,
    array_size: int,
    cache: Path,
    predicted_s: Mapping[str, float],
    job: str = TRAIN,
    code: Path | None = None,
) -> list[str]:
    """Submit one job for each of these trials, as few arrays as possible; return their ids.

    Trials that ask for the same go into one array, longest predicted first, at most `array_size` to
    an array. Jobs import from `code`, by default from where this very program lies.

    Raises:
        PartlyRefusedError: If sbatch refuses an array when it has taken others.
        SlurmError: If it refuses the first.
    """
    unique = {spec.trial_id: spec for spec in specs}
    groups: dict[JobSize, list[TrialSpec]] = {}
    for spec in unique.values():
        groups.setdefault(job_size(spec, partition), []).append(spec)
    sent: list[str] = []
    for needs, group in groups.items():
        group.sort(key=lambda spec: -predicted_s.get(spec.trial_id, 0.0))
        for part in chunks(group, array_size):
            calls = [
                DirectTrial(
                    sweep=str(sweep.path.absolute()),
                    trial_id=spec.trial_id,
                    submission=submission,
                    cache=str(cache.absolute()),
                    predicted_s=predicted_s.get(spec.trial_id, 0.0),
                    job=job,
                )
                for spec in part
            ]
            try:
                ids = submitit_adapter.submit(
                    calls,
                    name=f"memscale-{sweep.name}",
                    folder=job_records.folder(sweep).absolute() / "submitit",
                    request=request,
                    cpus=needs.cpus,
                    gpus=needs.gpus,
                    code=code,
                )
            except SlurmError as error:
                if not sent:
                    raise
                raise PartlyRefusedError(error, job_ids=sent, jobs=len(unique)) from error
            job_records.record(
                sweep,
                ids,
                kind=job_records.TRIAL,
                submission=submission,
                trial_ids=[spec.trial_id for spec in part],
            )
            sent += ids
    return sent


def chunks(specs: Sequence[TrialSpec], size: int) -> Iterator[Sequence[TrialSpec]]:
    """Cut a list into parts of at most `size`."""
    return (specs[i : i + size] for i in range(0, len(specs), size))
