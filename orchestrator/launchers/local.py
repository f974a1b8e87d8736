"""Launchers for one machine without Ray: processes, and in-process debugging."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from orchestrator.control.failure_classifier import EXIT_CODES, AttemptExit
from orchestrator.control.launcher_port import Launch
from orchestrator.node import worker
from orchestrator.node.exception_outcome import exception_outcome
from orchestrator.node.local_node import local_node
from orchestrator.node.reporter import RankReporter, StopFlag
from orchestrator.node.supervisor import NodeSupervisor
from orchestrator.records import unstarted_specs
from orchestrator.records.code_snapshot import with_code
from orchestrator.records.errors import ExperimentError
from orchestrator.records.processes import ProcessId, kill_and_wait
from orchestrator.records.rank_registry import TRAIN
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome
from orchestrator.scheduling.demand import Node


class ProcessLauncher:
    """Runs ranks as processes of this machine, forked from a fork server that is a child."""

    def __init__(
        self,
        sweep: SweepDir,
        *,
        cpus: int | None = None,
        gpus: int | None = None,
        job: str = TRAIN,
        code: Path | None = None,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            sweep: Whose trials run; its folder takes the fork server's log.
            cpus: Cores to give to trials; None is all this process may use.
            gpus: How many of the visible GPUs to give to trials; None is all.
            code: Folder that ranks import from; None: where this program is.
            job: The job function that will be launched; decides what the fork server imports.
        """
        self._sweep = sweep
        self._node = local_node(cpus, gpus)
        self._job = job
        self._code = code
        self._supervisor: NodeSupervisor | None = None

    def start(self) -> None:
        """Start the fork server and wait until it has imported everything."""
        self._supervisor = NodeSupervisor(
            log=str(self._sweep.path / "nodes" / f"{self._node.host}.log"),
            environment=rank_environment(self._sweep, self._code),
            job=self._job,
            own_group=True,
        )
        try:
            self._supervisor.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def nodes(self) -> Sequence[Node]:
        """Return this machine."""
        return (self._node,)

    def launch(self, launch: Launch) -> tuple[str, ...]:
        """Fork the ranks, on the GPUs that the scheduler chose: nobody else allocates them here."""
        self._running().launch(launch, launch.gpu_ids)
        return launch.gpu_ids

    def poll(self) -> list[AttemptExit]:
        """Return what ended."""
        return self._running().poll()

    def stop(self, trial_id: str, attempt: int, *, hard: bool) -> None:
        """Signal the ranks."""
        self._running().stop(f"{trial_id}/{attempt}", hard=hard)

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """Kill ranks of an earlier controller on this machine."""
        return self._running().end_orphans(processes)

    def close(self) -> None:
        """End the fork server and its ranks."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None

    def _running(self) -> NodeSupervisor:
        assert self._supervisor is not None, "start() comes first"
        return self._supervisor


class DebugLauncher:
    """Runs one trial after another in this process.

    Breakpoints work, and exceptions reach the caller.
    """

    def __init__(self, *, cpus: int | None = None, gpus: int | None = None) -> None:
        """Prepare. The arguments are those of `ProcessLauncher`."""
        self._node = local_node(cpus, gpus)
        self._ended: list[AttemptExit] = []

    def start(self) -> None:
        """Nothing to start."""

    def nodes(self) -> Sequence[Node]:
        """Return this machine."""
        return (self._node,)

    def launch(self, launch: Launch) -> tuple[str, ...]:
        """Run the trial to its end before returning."""
        if launch.ranks > 1:
            raise ExperimentError(
                f"trial {launch.trial_id}: needs {launch.ranks} ranks and the debug launcher is "
                "one process; set resources.ranks to 1, or use --launcher process"
            )
        (request,) = launch.rank_requests(launch.gpu_ids)
        stop, outcome = StopFlag(), Outcome.DONE
        reporter = RankReporter(request, stop)
        try:
            with _stops_too(stop):
                worker.run(request, reporter)
        except BaseException as error:
            outcome = exception_outcome(error)
            # A KeyboardInterrupt is the caller's, as other exceptions are.
            if outcome is not Outcome.INTERRUPTED or not isinstance(error, Exception):
                worker.write_error(request, outcome, error, step=reporter.step)
                raise
        self._ended.append(
            AttemptExit(
                trial_id=launch.trial_id,
                attempt=launch.attempt,
                exit_codes={0: EXIT_CODES[outcome]},
            )
        )
        return launch.gpu_ids

    def poll(self) -> list[AttemptExit]:
        """Return the trial that ran last."""
        ended, self._ended = self._ended, []
        return ended

    def stop(self, trial_id: str, attempt: int, *, hard: bool) -> None:
        """Nothing runs while the controller can ask."""

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """Kill ranks of an earlier controller on this machine."""
        own = ProcessId.own()
        here = [process for process in processes if process.here and process != own]
        return kill_and_wait(here) + [process for process in processes if not process.here]

    def close(self) -> None:
        """Nothing to end."""


@contextmanager
def _stops_too(stop: StopFlag) -> Iterator[None]:
    """Let stop signals reach a trial in this process, and then the handlers that are set."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {
        n: handler for n in numbers if callable(handler := signal.getsignal(n))
    }

    def request(number: int, frame: FrameType | None) -> None:
        stop.request(number, frame)
        handlers[number](number, frame)

    for number in handlers:
        signal.signal(number, request)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def rank_environment(sweep: SweepDir, code: Path | None = None) -> dict[str, str]:
    """Return the environment variables of every process of a sweep.

    They name the sweep, by which its processes are recognised, the compile caches and the code.

    Compiled kernels are kept beside the sweeps, as prepared data are: later sweeps use them too.
    Each user has a cache of their own, since kernels are code that runs as whoever loads it.

    Args:
        sweep: The sweep that the processes belong to.
        code: Folder to import from (`code_snapshot.take`); None: where this program is.
    """
    compiled = sweep.path.absolute().parent / "cache" / f"compiled-{os.getuid()}"
    imports = {} if code is None else {"PYTHONPATH": with_code(code, os.environ)["PYTHONPATH"]}
    return {
        **imports,
        "MEMSCALE_SWEEP_DIR": str(sweep.path.absolute()),
        "TRITON_CACHE_DIR": str(compiled / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
    }


def shares_gpus(sweep: SweepDir) -> bool:
    """Return whether the first trial that is found asks for a part of a GPU: others will, too."""
    with suppress(OSError, StopIteration, ExperimentError):
        # Trials that have not started have a line each, and no folder.
        names = unstarted_specs.read(sweep.path) or sweep.trial_folders()
        gpus = sweep.trial(next(iter(names))).spec().resources.gpus
        return gpus != "auto" and 0.0 < float(gpus) < 1.0
    return False
