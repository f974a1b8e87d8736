"""Submission: from a priced plan to a finished sweep, here or in the background."""

import importlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.control.launcher_port import Launcher
from orchestrator.control.launcher_start import LauncherStart
from orchestrator.control.loop import Controller
from orchestrator.control.status import SweepStatus
from orchestrator.launchers.detached_controller import controller_command
from orchestrator.launchers.slurm import job_records
from orchestrator.node.warm_interpreter import WarmInterpreter
from orchestrator.planning.pricing import Plan
from orchestrator.records import code_snapshot, liveness
from orchestrator.records.errors import BusyError, StoreError, UsageError
from orchestrator.records.json_files import flush_file_system, write_json, write_text
from orchestrator.records.locks import submitting
from orchestrator.records.provenance import redacted_argv
from orchestrator.records.snapshot import SweepSnapshot
from orchestrator.records.sweep_dir import SweepDir, sweep_dir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialState
from orchestrator.submit.stop_signals import stop_signals
from orchestrator.sweep.expansion import hub_commits, recorded_inputs
from orchestrator.sweep.matching import step_time
from orchestrator.sweep.parsing import discovery
from orchestrator.tracking.exporter_process import DrainResult, exporting

DETACH_S = 60.0
"""How long a detached submission may take until it runs its sweep: imports and spec files."""
HOSTED_S = 240.0
"""The same on a cluster, which starts a process for its host first."""
_ADDRESS = re.compile(r"auto|(ray://)?(\[[0-9A-Fa-f:]+\]|[\w.-]+):\d+")
TRACKING = "MLFLOW_TRACKING_URI"
PASSED_ON = ("MLFLOW_", "MEMSCALE_RUNS", "NCCL_", "HF_")
"""Prefixes of the variables that a controller on a cluster gets from the machine that submits; they
are never on disk."""


@dataclass(frozen=True, kw_only=True)
class SubmissionResult:
    """How a submission ended."""

    status: SweepStatus
    interrupted: bool
    drained: DrainResult
    """Whether the tracker has every measurement."""

    @property
    def exit_code(self) -> int:
        """Return 0 when every trial is done, 130 after a stop signal, else 1."""
        if self.interrupted:
            return 130
        return 0 if self.status.complete else 1


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Options of `memscale submit`, and the plan to run."""

    plan: Plan
    runs: Path
    tracking_uri: str | None = None
    launcher: str = "ray"
    cpus: int | None = None
    gpus: int | None = None
    address: str | None = None
    """Of an existing Ray cluster: `ray://HOST:PORT`, `HOST:PORT` or `auto`. None: Ray of this
    machine, for this sweep alone."""
    priority: int = 0
    """Among the sweeps of one cluster; higher ones go first."""
    weight: float = 1.0
    """Share among sweeps of one priority."""
    argv: Sequence[str] = ()
    register: bool = False
    """Whether finished models are registered in MLflow's registry."""

    def __post_init__(self) -> None:
        if self.address is None:
            return
        if not _ADDRESS.fullmatch(self.address):
            raise ValueError(
                "--address must be auto, HOST:PORT or ray://HOST:PORT (the client's port, 10001 by "
                f"default), got {self.address!r}"
            )
        if self.launcher != "ray":
            raise ValueError(
                f"--address is of a Ray cluster and --launcher is {self.launcher}; "
                "leave one of them out"
            )
        if self.cpus is not None or self.gpus is not None:
            raise ValueError(
                "--cpus and --gpus are of this machine; a cluster has what its nodes offer to Ray, "
                "so leave them out"
            )

    def run(
        self,
        on_update: Callable[[SweepStatus], None],
        *,
        warm: WarmInterpreter | None = None,
    ) -> SubmissionResult:
        """Write the records, train what is missing, export what was measured.

        Args:
            on_update: Called about once a second and at every change.
            warm: What may become a fork server, for Ray of this machine.

        Raises:
            BusyError: If a live controller runs this sweep already.
            ExperimentError: If the launcher cannot start. Without a cluster nothing is written.
        """
        sweep = sweep_dir(self.runs, self.plan.sweep.name)
        self._refuse_what_cannot_run()
        with ExitStack() as until_the_end, ExitStack() as until_locked:
            until_locked.enter_context(self._writing(sweep))
            how = self._how(code_snapshot.take(sweep))
            start = LauncherStart(_launcher(sweep, how, warm))
            until_the_end.callback(start.close)
            if self._trains:
                # It takes longest and leaves this process idle, which writes specs meanwhile.
                start.begin()
            record = self._write_records(sweep, how)
            snapshot = self.plan.snapshot.submitted(trial.spec for trial in self.plan.readable)
            return run_recorded(
                sweep,
                record,
                on_update,
                tracking_uri=self.tracking_uri,
                # Slurm jobs may have run single trials since, without a trace in the sweep's files.
                snapshot=None if job_records.used(sweep) else snapshot,
                start=start,
                on_locked=until_locked.close,
            )

    def detach(self) -> Path:
        """Write the records and have another process run the sweep; return its log once it does.

        On a cluster that process lives there and outlives this machine
        (`launchers/detached_controller.py`); otherwise it is one of this machine, in a session of
        its own.

        Raises:
            BusyError: If a live controller runs this sweep already.
            StoreError: If it ended before it ran the sweep.
        """
        sweep = sweep_dir(self.runs, self.plan.sweep.name)
        with self.recorded(sweep) as record:
            number, code = int(record["number"]), Path(record["run"]["code"])
            environment = {} if self.tracking_uri is None else {TRACKING: self.tracking_uri}
            if self.address is None:
                return _detach_here(sweep, number, code, environment)
            log: Path = _ray("ray_detached").start_detached_controller(
                sweep,
                number,
                code=code,
                address=self.address,
                environment={
                    **{n: v for n, v in os.environ.items() if n.startswith(PASSED_ON)},
                    **environment,
                },
                started=lambda: _runs(sweep, number),
                timeout_s=HOSTED_S,
            )
            return log

    def write_records(self, sweep: SweepDir) -> Mapping[str, Any]:
        """Write what `recorded` writes, for whoever starts nothing; return the record."""
        with self.recorded(sweep) as record:
            return record

    @contextmanager
    def recorded(self, sweep: SweepDir) -> Iterator[Mapping[str, Any]]:
        """Write specs, sweep.yaml, the code and the submission; take back old requests to cancel.

        No other submission can write until the end of the block: by then, what runs this one has
        begun, and others are refused.

        Yields:
            The submission's record, as stored.

        Raises:
            BusyError: If a live controller runs this sweep already. Then nothing is written.
            ExperimentError: If no cluster answers at its address. Then nothing is written.
        """
        self._refuse_what_cannot_run()
        with self._writing(sweep):
            yield self._write_records(sweep, self._how(code_snapshot.take(sweep)))

    @contextmanager
    def _writing(self, sweep: SweepDir) -> Iterator[None]:
        """Hold the right to write records, unless a controller has begun since the plan."""
        with submitting(sweep):
            self._refuse_if_begun(sweep)
            yield

    def _refuse_if_begun(self, sweep: SweepDir) -> None:
        """Raise BusyError if something has begun to run the sweep since the plan."""
        refuse_if_busy(replace(self.plan.snapshot, controller=sweep.controller()))

    @property
    def _trains(self) -> bool:
        """Whether there is anything to train."""
        return any(trial.to_train for trial in self.plan.trials)

    def _refuse_what_cannot_run(self) -> None:
        """Raise what `recorded` raises, before the sweep gets a folder."""
        for path in (self.runs, *self.plan.sweep.files, Path(orchestrator.__file__)):
            _refuse_if_not_utf8(path.absolute())
        refuse_if_busy(self.plan.snapshot)
        if self.address is not None and self._trains:
            _ray("ray_connect").ping(self.address)

    def _how(self, code: Path) -> dict[str, Any]:
        """Return how to run it, for any process that has the code."""
        return {
            "code": str(code),
            "launcher": self.launcher,
            "address": self.address,
            "cpus": self.cpus,
            "gpus": self.gpus,
            "priority": self.priority,
            "weight": self.weight,
            "predicted_s": {t.spec.trial_id: t.runtime.seconds for t in self.plan.trials},
        }

    def _write_records(self, sweep: SweepDir, how: Mapping[str, Any]) -> Mapping[str, Any]:
        (sweep.path / "cancel.json").unlink(missing_ok=True)
        sweep.add_trials(trial.spec for trial in self.plan.readable)
        self._write_sweep_file(sweep.path / "sweep.yaml")
        record: dict[str, Any] = {
            "submitted_at": time.time(),
            "user": os.environ.get("USER", ""),
            "argv": redacted_argv(self.argv),
            "question": self.plan.sweep.question,
            "files": [str(file) for file in dict.fromkeys(self.plan.sweep.files)],
            # All of them, for the status to name what cannot be read.
            "trial_ids": [t.spec.trial_id for t in self.plan.trials],
            **({"register": True} if self.register else {}),
            "new": {t.spec.trial_id: t.why for t in self.plan.trials if t.status == "new"},
            "run": how,
        }
        return {"number": sweep.add_submission(record), **record}

    def _write_sweep_file(self, path: Path) -> None:
        """Write the sweep file, and beside it what it needs to mean the same trials from there."""
        sweep = self.plan.sweep
        write_text(path, sweep.text, durable=True)
        labels = [source.label for source in discovery.split(path, sweep.text)]
        recorded_inputs.write(path, labels, sweep.inputs)
        if sweep.step_times:
            step_time.write(path.with_name("sweep.step_times.json"), sweep.step_times)
        if sweep.hub_commits:
            hub_commits.write(path, sweep.hub_commits)


def run_recorded(
    sweep: SweepDir,
    record: Mapping[str, Any],
    on_update: Callable[[SweepStatus], None],
    *,
    tracking_uri: str | None = None,
    address: str | None = None,
    snapshot: SweepSnapshot | None = None,
    start: LauncherStart | None = None,
    on_locked: Callable[[], None] = lambda: None,
) -> SubmissionResult:
    """Run a recorded submission, in the process that recorded it or in another, on any machine.

    Args:
        sweep: The sweep.
        record: The submission, as `SweepDir.submission` returns it.
        on_update: Called about once a second and at every change.
        tracking_uri: MLflow store or server; default the SQLite store beside the sweeps. It is not
            in the record, for it may hold a password.
        address: Of the Ray cluster as seen from here, if not as it was given.
        snapshot: The sweep as the submission left it; None: the controller reads it.
        start: Of the launcher, where it exists; None: it begins here. It is closed at the end.
        on_locked: Called once no other controller can run this sweep any more.

    Raises:
        BusyError: If a live controller runs this sweep already.
        ExperimentError: If the launcher cannot start.
    """
    how = record["run"]
    code = Path(how["code"])
    if start is None:
        start = LauncherStart(_launcher(sweep, {**how, "address": address or how["address"]}))
        start.begin()
    controller = Controller(
        sweep,
        submission=int(record["number"]),
        trial_ids=record["trial_ids"],
        launcher=start.launcher,
        start=start,
        cache=(sweep.path.parent / "cache").absolute(),
        predicted_s=how["predicted_s"],
        snapshot=snapshot,
    )
    with (
        closing(start),
        exporting(
            sweep, tracking_uri, code=code, environment=start.environment, at_once=False
        ) as exporter,
        stop_signals(controller.stop) as stops,
    ):

        def tell(status: SweepStatus) -> None:
            if status.totals[TrialState.RUNNING]:
                # Not before: importing MLflow takes a core that the first attempt waits for.
                exporter.begin()
            exporter.keep_alive()
            with stops.output():
                on_update(status)

        status = controller.run(tell, on_locked=on_locked)
    assert exporter.drained is not None, "the end of `exporting` drains"
    return SubmissionResult(status=status, interrupted=bool(stops.came), drained=exporter.drained)


def _launcher(
    sweep: SweepDir, how: Mapping[str, Any], warm: WarmInterpreter | None = None
) -> Launcher:
    from orchestrator.launchers import local

    code = Path(how["code"])

    if how["launcher"] == "process":
        return local.ProcessLauncher(sweep, cpus=how["cpus"], gpus=how["gpus"], code=code)
    if how["launcher"] == "debug":
        return local.DebugLauncher(cpus=how["cpus"], gpus=how["gpus"])
    launcher: Launcher = _ray("ray").RayLauncher(
        sweep,
        address=how["address"],
        cpus=how["cpus"],
        gpus=how["gpus"],
        code=code,
        priority=how["priority"],
        weight=how["weight"],
        warm=warm,
    )
    return launcher


def _ray(name: str) -> Any:
    """Return a module that knows Ray."""
    try:
        return importlib.import_module(f"orchestrator.launchers.{name}")
    except ModuleNotFoundError as error:
        raise StoreError(
            "Ray is not installed; pip install 'memscale[ray]', or submit with --launcher process"
        ) from error


def _detach_here(sweep: SweepDir, number: int, code: Path, environment: Mapping[str, str]) -> Path:
    """Start the controller of a recorded submission, in a session of its own; return its log."""
    log = sweep.path / "controller.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            controller_command(sweep, number),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=code_snapshot.with_code(code, {**os.environ, **environment}),
        )
    deadline = time.monotonic() + DETACH_S
    while time.monotonic() < deadline:
        if _runs(sweep, number):
            return log
        if process.poll() is not None:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise StoreError(
                f"{log}: the submission ended at once: {said[-1] if said else 'it said nothing'}"
            )
        time.sleep(0.05)
    raise StoreError(f"{log}: the submission did not start in {DETACH_S:.0f} s; see there")


def _runs(sweep: SweepDir, number: int) -> bool:
    """Return whether a controller runs, or ran, this submission."""
    return (sweep.controller() or {}).get("submission") == number


def _refuse_if_not_utf8(path: Path) -> None:
    """Raise UsageError for a path that records, MLflow and Ray, all of UTF-8, cannot hold."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{os.fspath(path)!r}: this path is not UTF-8, so records cannot hold it; rename the "
            "folder or file, for example with `convmv -f latin1 -t utf8 --notest`"
        ) from None


def refuse_if_busy(snapshot: SweepSnapshot) -> None:
    """Raise BusyError if a live controller runs this sweep, or jobs of it wait in Slurm's queue."""
    name, controller = snapshot.name, snapshot.controller
    if controller is not None and liveness.is_alive(snapshot.path, controller):
        raise BusyError(
            f"sweep {name}: pid {controller['pid']} on {controller['host']} runs it already, and "
            f"nothing of this submission was taken up; watch it with `memscale status {name} "
            f"--watch`, or end it with Ctrl-C or `kill {controller['pid']}` there, which writes "
            "checkpoints, and submit again"
        )
    job_records.refuse_if_queued(SweepDir(snapshot.path))


def cancel(sweep: SweepDir, trials: Sequence[TrialDir], *, whole_sweep: bool) -> list[str]:
    """Request that unfinished trials be cancelled, and return their ids; the controller does it."""
    unfinished = [t for t in trials if _may_run(t)]
    who = f"memscale cancel, pid {os.getpid()}"
    if whole_sweep and unfinished:
        write_json(sweep.path / "cancel.json", {"by": who})
    for trial in unfinished:
        trial.request_cancel(who, durable=False)
    flush_file_system(sweep.path)
    trial_ids = [trial.trial_id for trial in unfinished]
    job_records.cancel(sweep, trial_ids, whole_sweep=whole_sweep)
    return trial_ids


def _may_run(trial: TrialDir) -> bool:
    """Whether a trial waits or runs; one that cannot be read may."""
    try:
        return trial.state() in (TrialState.WAITING, TrialState.RUNNING)
    except StoreError:
        return True
