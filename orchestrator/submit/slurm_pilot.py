"""Pilot jobs of `--backend slurm`: a head, which runs the controller, and workers.

Both are called once on each of their nodes. On the first node of a head pilot runs the controller;
every other node only runs Ray, until the head says that it is over, the node is given back, or
Slurm takes it away.
"""

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.control.loop import Controller
from orchestrator.launchers.ray_watchdog import OWNER
from orchestrator.launchers.slurm import commands, job_environment, job_records, submitit_adapter
from orchestrator.launchers.slurm.head_address import HeadAddressFile
from orchestrator.launchers.slurm.launcher import FREE, PilotLauncher
from orchestrator.launchers.slurm.options import SlurmOptions
from orchestrator.launchers.slurm.ray_bootstrap import RayNode
from orchestrator.records.errors import BusyError
from orchestrator.records.processes import ProcessId, pids_with_environment
from orchestrator.records.rank_registry import TRAIN, registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome, TrialState
from orchestrator.scheduling.demand import Demand

LOG = logging.getLogger(__name__)
LOOK_S = 0.5
"""Seconds between two checks of a node whether it is still needed."""
WITHOUT_RAY_S = 40.0
"""How long a pilot may take to stop after SIGTERM; Ray ends what has lost its head for 60 s."""
LET_GO_S = 20.0
"""How long a leaving node waits for the controller to let go of it."""
ENDING_S = LET_GO_S + 5.0
"""What a leaving node keeps of its notice for that, and for ending Ray."""


@dataclass(frozen=True, kw_only=True)
class HeadPilot:
    """One allocation in which a whole sweep runs. Pickled by submitit, so plain values only."""

    sweep: str
    """Path of the sweep's folder."""
    submission: int
    trial_ids: Sequence[str]
    cache: str
    request: Mapping[str, Any]
    """A Request, as JSON."""
    gpus_per_node: int = 0
    predicted_s: Mapping[str, float] = field(default_factory=dict)
    job: str = TRAIN

    def __call__(self) -> str:
        """Run the sweep to its end, or to checkpoints and back into the queue; return which."""
        logging.basicConfig(level=logging.INFO)
        own = job_environment.job_id()
        head_address = HeadAddressFile(
            folder=job_records.folder(SweepDir(Path(self.sweep))) / own,
            generation=f"{own}/{os.environ.get('SLURM_RESTART_COUNT', '0')}",
        )
        if job_environment.node_rank() > 0:
            return _follow(SweepDir(Path(self.sweep)), head_address)
        return self._lead(own, head_address)

    def _lead(self, own: str, head_address: HeadAddressFile) -> str:
        sweep = SweepDir(Path(self.sweep))
        request = SlurmOptions.from_json(self.request)
        token = secrets.token_hex(32)
        head = _ray_node(sweep, label=f"{own}-0", token=token)
        launcher = PilotLauncher(
            sweep,
            head=head,
            token=token,
            head_address=head_address,
            own=own,
            capacity=Demand(
                cpus=request.cpus or job_environment.cores(), gpus=float(self.gpus_per_node)
            ),
            max_nodes=request.max_nodes,
            ask=lambda n, avoid: self._ask(n, avoid, sweep, head_address, request),
            job=self.job,
        )
        controller = Controller(
            sweep,
            submission=self.submission,
            trial_ids=self.trial_ids,
            launcher=launcher,
            cache=Path(self.cache),
            predicted_s=self.predicted_s,
            job=self.job,
        )
        without_ray = threading.Timer(WITHOUT_RAY_S, job_environment.requeue_job)
        without_ray.daemon = True

        def on_notice(number: int) -> None:
            controller.stop(Outcome.PREEMPTED)
            if number in (signal.SIGTERM, signal.SIGHUP):
                # Ray ends on it, too, and the controller a minute later. Ranks got it themselves.
                without_ray.start()

        over = threading.Event()

        def requeue_if_ray_dies() -> None:
            # In a thread, since calls to Ray may wait a minute for a head that is gone.
            while not over.wait(LOOK_S):
                if head.died() and not without_ray.is_alive():
                    _requeue_without_ray(own, head_address)
                    return

        threading.Thread(target=requeue_if_ray_dies, daemon=True, name="watch Ray").start()
        with job_environment.notices(on_notice) as came:
            try:
                status = controller.run(launcher.tell)
            except BusyError as error:
                LOG.warning("%s", error)
                return "busy"
            finally:
                over.set()
                without_ray.cancel()
                head_address.withdraw()
            left = any(
                sweep.trial(trial.trial_id).state() in (TrialState.WAITING, TrialState.RUNNING)
                for trial in status.trials  # without those that cannot be read
            )
            if came and left and job_environment.requeue_job():
                return "requeued"
        return "trials left" if left else "no trial left"

    def _ask(
        self,
        n: int,
        avoid: Sequence[str],
        sweep: SweepDir,
        head_address: HeadAddressFile,
        request: SlurmOptions,
    ) -> list[str]:
        """Submit further pilots, on none of the nodes to avoid; return their jobs."""
        call = WorkerPilot(
            sweep=self.sweep,
            folder=str(head_address.folder),
            generation=head_address.generation,
            notice_s=request.notice_s,
        )
        if avoid:
            exclude = ",".join(filter(None, [request.options.get("exclude"), *avoid]))
            request = replace(request, options={**request.options, "exclude": exclude})
        ids = submitit_adapter.submit(
            [call] * n,
            name=f"memscale-{sweep.name}+",
            folder=job_records.folder(sweep).absolute() / "submitit",
            request=request,
            cpus=request.cpus,
            gpus=self.gpus_per_node,
            # A node that Slurm takes away is requested anew, if still needed.
            requeue=False,
        )
        job_records.record(sweep, ids, kind=job_records.WORKER, submission=self.submission)
        return ids


@dataclass(frozen=True, kw_only=True)
class WorkerPilot:
    """Additional node of a head pilot."""

    sweep: str
    folder: str
    generation: str
    notice_s: int
    """Seconds between Slurm's signal and the end of the allocation."""

    def __call__(self) -> str:
        """Join, stay while wanted; return why it left."""
        logging.basicConfig(level=logging.INFO)
        head_address = HeadAddressFile(folder=Path(self.folder), generation=self.generation)
        return _follow(SweepDir(Path(self.sweep)), head_address, notice_s=self.notice_s)


def _requeue_without_ray(own: str, head_address: HeadAddressFile) -> None:
    """Put the job of a head whose Ray died back into the queue, and have other nodes leave."""
    LOG.error(
        "Ray of job %s ended by itself (%s/nodes/ray-%s-0.log and `dmesg` may say why); the job "
        "goes back into the queue, and trials go on from their last checkpoints",
        *(own, head_address.folder.parents[1], own),
    )
    head_address.withdraw()
    job_environment.requeue_job()


def _follow(sweep: SweepDir, head_address: HeadAddressFile, *, notice_s: int | None = None) -> str:
    """Run a node of Ray while the head does.

    Args:
        sweep: Whose head it is.
        head_address: Of the head.
        notice_s: Seconds between Slurm's signal and the end of this allocation. None: the head
            shares it, and ends it.
    """
    alone = notice_s is not None
    label = f"{job_environment.job_id()}-{job_environment.node_rank()}"
    mark = head_address.draining / label
    with job_environment.notices(lambda number: None) as came:
        offer = head_address.wait(give_up=lambda: alone and bool(came))
        if offer is None:
            return "not needed any more"
        node = _ray_node(sweep, label=label, token=offer.token)
        try:
            node.join(offer.address)
            while head_address.is_current() and not mark.exists() and not (alone and came):
                if not node.alive():
                    return "Ray ended"
                time.sleep(LOOK_S)
            if not head_address.is_current():
                return "the head has ended"
            _leave(sweep, mark, notice_s=notice_s or 0)
            return "taken away" if came else "given back"
        finally:
            node.close()
            mark.unlink(missing_ok=True)


def _leave(sweep: SweepDir, mark: Path, *, notice_s: int) -> None:
    """Have the ranks of this node checkpoint, and wait until the controller has let go of it.

    A rank has nearly the whole notice for that: killed before, it loses the checkpoint.
    """
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    signalled: set[ProcessId] = set()
    deadline = time.monotonic() + max(notice_s - ENDING_S, notice_s / 2)
    while (ranks := _ranks_here(sweep)) and time.monotonic() < deadline:
        for rank in ranks - signalled:
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGTERM)
            signalled.add(rank)
        time.sleep(LOOK_S)
    deadline = time.monotonic() + LET_GO_S
    while mark.read_text(encoding="utf-8") != FREE and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _ranks_here(sweep: SweepDir) -> set[ProcessId]:
    """Return the ranks that run under this node's Ray, which may share its machine with others."""
    own = set(pids_with_environment(OWNER, os.environ[OWNER]))
    ranks = (
        rank for trial in sweep.trials() for a in trial.attempts()[-1:] for rank in registered(a)
    )
    return {rank for rank in ranks if rank.here and rank.pid in own and rank.alive()}


def _ray_node(sweep: SweepDir, *, label: str, token: str) -> RayNode:
    gpus = job_environment.hide_other_gpus()
    return RayNode(
        label=label,
        address=commands.node_address(),
        cpus=job_environment.cores(),
        gpus=len(gpus),
        log=sweep.path / "nodes" / f"ray-{label}.log",
        token=token,
    )


def submit(pilot: HeadPilot, *, code: Path | None = None) -> list[str]:
    """Submit a head pilot, which imports from `code`; return its job."""
    sweep, request = SweepDir(Path(pilot.sweep)), SlurmOptions.from_json(pilot.request)
    ids = submitit_adapter.submit(
        [pilot],
        name=f"memscale-{sweep.name}",
        folder=job_records.folder(sweep).absolute() / "submitit",
        request=request,
        nodes=request.min_nodes,
        cpus=request.cpus,
        gpus=pilot.gpus_per_node,
        code=code,
    )
    job_records.record(sweep, ids, kind=job_records.HEAD, submission=pilot.submission)
    return ids
