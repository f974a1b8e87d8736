"""One submission from priced plan to finished sweep: records, launcher, controller, shipper, signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator import lease
from orchestrator.controller import Controller
from orchestrator.environment import redacted_argv
from orchestrator.errors import BusyError, StoreError
from orchestrator.launchers.protocol import Launcher
from orchestrator.plan import Plan
from orchestrator.records import TrialState
from orchestrator.status import SweepStatus
from orchestrator.sweep_files import step_times
from orchestrator.tracking.supervise import Drained, shipping
from orchestrator.trial_dir import SweepDir, TrialDir, sweep_dir, write_json

DETACH_S = 60.0
"""How long a detached submission may take until it runs its sweep: imports and spec files."""
LAUNCHERS = ("ray", "process", "debug")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a submission ended."""

    status: SweepStatus
    interrupted: bool
    drained: Drained
    """Whether the tracker has every measurement."""

    @property
    def exit_code(self) -> int:
        """Return 0 when every trial is done, 130 after Ctrl-C, else 1."""
        if self.interrupted:
            return 130
        return 0 if self.status.complete else 1


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Everything `memscale submit` was asked to do."""

    plan: Plan
    runs: Path
    tracking_uri: str | None = None
    launcher: str = "ray"
    cpus: int | None = None
    gpus: int | None = None
    argv: Sequence[str] = ()

    def run(self, on_update: Callable[[SweepStatus], None]) -> Ended:
        """Write the records, train what is missing, ship what was measured.

        Raises:
            BusyError: If a live controller runs this sweep already.
            ExperimentError: If the launcher cannot start.
        """
        disk = sweep_dir(self.runs, self.plan.sweep.name)
        number = self._record(disk)
        controller = Controller(
            disk,
            submission=number,
            trial_ids=[t.spec.trial_id for t in self.plan.trials],
            launcher=self._launcher(disk),
            cache=(self.runs / "cache").absolute(),
            predicted_s={t.spec.trial_id: t.forecast.seconds for t in self.plan.trials},
        )
        with shipping(disk, self.tracking_uri) as shipper, _stops(controller) as stopped:

            def tell(status: SweepStatus) -> None:
                shipper.keep_alive()
                on_update(status)

            status = controller.run(tell)
        assert shipper.drained is not None, "the end of `shipping` drains"
        return Ended(status=status, interrupted=bool(stopped), drained=shipper.drained)

    def _record(self, disk: SweepDir) -> int:
        """Write specs, sweep.yaml and the submission; take back old requests to cancel."""
        refuse_if_busy(disk)
        (disk.path / "cancel.json").unlink(missing_ok=True)
        for trial in self.plan.trials:
            folder = disk.trial(trial.spec.trial_id)
            folder.create(trial.spec)
            (folder.path / "cancel.json").unlink(missing_ok=True)
        (disk.path / "sweep.yaml").write_text(self.plan.sweep.text, encoding="utf-8")
        if self.plan.sweep.step_times:
            step_times.write(disk.path / "sweep.step_times.json", self.plan.sweep.step_times)
        return disk.add_submission(
            {
                "submitted_at": time.time(),
                "user": os.environ.get("USER", ""),
                "argv": redacted_argv(self.argv),
                "question": self.plan.sweep.question,
                "files": [str(file) for file in dict.fromkeys(self.plan.sweep.files)],
                "trial_ids": [t.spec.trial_id for t in self.plan.trials],
                "new": {t.spec.trial_id: t.why for t in self.plan.trials if t.status == "new"},
            }
        )

    def _launcher(self, disk: SweepDir) -> Launcher:
        from orchestrator.launchers import local

        if self.launcher == "process":
            return local.ProcessLauncher(disk, cpus=self.cpus, gpus=self.gpus)
        if self.launcher == "debug":
            return local.DebugLauncher(cpus=self.cpus, gpus=self.gpus)
        try:
            from orchestrator.launchers.ray_cluster import RayLauncher
        except ModuleNotFoundError as error:
            raise StoreError(
                "Ray is not installed; pip install 'memscale[ray]', or submit with --launcher process"
            ) from error
        return RayLauncher(disk, cpus=self.cpus, gpus=self.gpus)


DETACHED = "MEMSCALE_DETACHED"
"""Environment variable of a submission that was started by `detach`: it runs instead of detaching again."""


def detach(argv: Sequence[str], disk: SweepDir) -> Path:
    """Start the same command in a session of its own; return the file it prints into, once it runs the sweep.

    Raises:
        BusyError: If a live controller runs this sweep already.
        StoreError: If the command ended before it ran the sweep.
    """
    refuse_if_busy(disk)
    disk.path.mkdir(parents=True, exist_ok=True)
    log = disk.path / "controller.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            # -P: what lies in the current folder must not shadow what the command imports.
            [sys.executable, "-P", "-m", "orchestrator.cli", *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _import_path(), DETACHED: "1"},
        )
    deadline = time.monotonic() + DETACH_S
    while time.monotonic() < deadline:
        controller = disk.controller()
        if controller is not None and controller["pid"] == process.pid:
            return log
        if process.poll() is not None:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise StoreError(
                f"{log}: the submission ended at once: {said[-1] if said else 'it said nothing'}"
            )
        time.sleep(0.05)
    raise StoreError(f"{log}: the submission did not start in {DETACH_S:.0f} s; see there")


def _import_path() -> str:
    """Return a PYTHONPATH on which this very memscale is found from any folder."""
    root = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)


def refuse_if_busy(disk: SweepDir) -> None:
    """Raise BusyError if a live controller runs this sweep."""
    controller = disk.controller()
    if lease.is_alive(controller):
        assert controller is not None, "what does not exist is not alive"
        raise BusyError(
            f"sweep {disk.name}: pid {controller['pid']} on {controller['host']} runs it already; "
            f"watch it with `memscale status {disk.name} --watch`, end it with `memscale cancel {disk.name}`"
        )


def cancel(disk: SweepDir, trials: Sequence[TrialDir], *, whole_sweep: bool) -> list[str]:
    """Ask for unfinished trials to be stopped for good; return their ids. The controller, if any, does the rest."""
    asked = [t for t in trials if t.state() in (TrialState.WAITING, TrialState.RUNNING)]
    who = f"memscale cancel, pid {os.getpid()}"
    if whole_sweep and asked:
        write_json(disk.path / "cancel.json", {"by": who})
    for trial in asked:
        trial.request_cancel(who)
    return [trial.trial_id for trial in asked]


@contextmanager
def _stops(controller: Controller) -> Iterator[list[int]]:
    """Turn Ctrl-C and SIGTERM into requests to stop; yield the list of signals that came."""
    came: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        came.append(number)
        controller.stop()

    before: Mapping[int, object] = {
        n: signal.signal(n, on_signal) for n in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
