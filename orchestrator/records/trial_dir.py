"""Folder of one trial, and the state that follows from its files.

`sweep_dir` says what each file holds.
"""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.records import unstarted_specs
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import (
    read_json,
    read_record,
    remove_temporary,
    write_bytes,
    write_json,
)
from orchestrator.records.lock_file import open_lock
from orchestrator.records.snapshot import (
    AttemptRecord,
    TrialRecord,
    derive_state,
    is_open,
    parse_spec,
)
from orchestrator.records.trial_spec import TrialSpec, TrialState

TRIAL_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}")
"""Ids become folder names, as those of sweeps do."""


@dataclass(frozen=True)
class TrialDir:
    """Everything known about one trial."""

    path: Path

    @property
    def trial_id(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    def checkpoint_step(self) -> int:
        """Return the step that a resumed run goes on after: of the newest checkpoint, else 0."""
        if not self.checkpoints.is_dir():
            return 0
        steps = (p.name.removeprefix("step-") for p in self.checkpoints.glob("step-*"))
        return max((int(step) for step in steps if step.isdigit()), default=0)

    def create(self, spec: TrialSpec, *, durable: bool = True) -> None:
        """Write spec.json, and make all folders that it needs; see `write_spec`."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_spec(spec, durable=durable)

    def start(self, spec: TrialSpec) -> None:
        """Make the folder for the first attempt, and write spec.json.

        Raises:
            FileNotFoundError: If the sweep has no folder any more: somebody moved or removed it.
        """
        self.path.mkdir(exist_ok=True)
        self.write_spec(spec)

    def write_spec(self, spec: TrialSpec, *, durable: bool = True) -> None:
        """Write spec.json. An existing one is replaced only in what is not part of the identity.

        `durable` is that of `write_json`. One process at a time does it: what a killed one left of
        its file is deleted.
        """
        if spec.trial_id != self.trial_id:
            raise ValueError(
                f"{self.path}: spec is {spec.trial_id}; a trial lives in the folder of its name"
            )
        remove_temporary(self.path, of="spec.json")
        write_json(self.path / "spec.json", spec.to_json(), durable=durable)

    def has_spec(self) -> bool:
        """Whether the folder has its spec: it gets that for the first attempt."""
        return (self.path / "spec.json").exists()

    def spec(self) -> TrialSpec:
        """Return the trial's spec.

        Raises:
            StoreError: If spec.json is missing or was altered.
        """
        return parse_spec(self.path, self._spec_source())

    def _spec_source(self) -> dict[str, Any] | None:
        """Return the content of spec.json, before the first attempt that of the sweep's file."""
        own = read_json(self.path / "spec.json")
        return self._spec_before_start() if own is None else own

    def _spec_before_start(self) -> dict[str, Any] | None:
        return unstarted_specs.find(self.path.parent.parent, self.trial_id)

    def attempts(self) -> list[AttemptDir]:
        """Return the attempts, oldest first."""
        folder = self.path / "attempts"
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.name.isdigit() and entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [AttemptDir(folder / name) for name in sorted(names)]

    def last_attempt(self) -> int:
        """Return the number of the last attempt, 0 when none was started."""
        attempts = self.attempts()
        return attempts[-1].number if attempts else 0

    def attempt(self, number: int) -> AttemptDir:
        """Return the folder of an attempt, which need not exist."""
        return AttemptDir(self.path / "attempts" / f"{number:04d}")

    def new_attempt(self, launch: Mapping[str, Any]) -> AttemptDir:
        """Make the folder of the next attempt with its launch.json, or nothing if the disk is full.

        Failing storage may keep the folder even so. The next attempt takes it: nothing ran in it.
        """
        attempts = self.attempts()
        left = bool(attempts) and attempts[-1].launch() is None and attempts[-1].end() is None
        number = 1 + (attempts[-1].number if attempts else 0) - left
        attempt = self.attempt(number)
        attempt.path.parent.mkdir(exist_ok=True)
        attempt.path.mkdir(exist_ok=left)
        remove_temporary(attempt.path)
        try:
            write_json(attempt.path / "launch.json", launch)
        except OSError:
            with suppress(OSError):
                attempt.path.rmdir()
            raise
        return attempt

    def result(self) -> dict[str, Any] | None:
        """Return result.json, None until the trial is done.

        Its metrics are also those of evaluations since then that are not in the file: a killed
        `memscale evaluate` left them out, or an earlier version, which kept them apart.
        """
        record = read_record(self.path / "result.json")
        later = {} if record is None else self.evaluation_metrics()
        return {**record, "metrics": {**record["metrics"], **later}} if record and later else record

    def evaluations(self) -> dict[str, Any]:
        """Return suite -> record of `memscale evaluate`, empty before the first."""
        record = read_json(self.path / "evaluation.json") or {}
        return dict(record.get("suites", {}))

    def earlier_evaluations(self) -> dict[str, dict[int, Any]]:
        """Return suite -> step -> record, of steps before the last one."""
        record = read_json(self.path / "evaluation.json") or {}
        return {
            suite: {int(step): one for step, one in of.items()}
            for suite, of in record.get("earlier", {}).items()
        }

    def add_evaluation(
        self,
        suite: str,
        record: Mapping[str, Any],
        *,
        final: bool = True,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Keep the record of a suite, in the place of an older one, and its metrics in the result.

        Whoever is killed in between loses nothing: `result` adds what the file lacks.

        Args:
            suite: Its name.
            record: What was measured.
            final: Whether it is of the trained model; otherwise of its `step`.
            files: Contents of files beside the record, by path in this folder; they replace older
                ones.
        """
        for name, content in (files or {}).items():
            (self.path / name).parent.mkdir(exist_ok=True)
            write_bytes(self.path / name, content)
        with self._evaluation_lock():
            known = read_json(self.path / "evaluation.json") or {}
            suites, earlier = dict(known.get("suites", {})), dict(known.get("earlier", {}))
            if final:
                suites[suite] = dict(record)
            else:
                earlier[suite] = {**earlier.get(suite, {}), str(record["step"]): dict(record)}
            write_json(
                self.path / "evaluation.json",
                {"suites": suites, **({"earlier": earlier} if earlier else {})},
            )
            self._complete_result()

    def complete_result(self) -> None:
        """Write into result.json what evaluations measured and a killed one did not write there."""
        if self.result() != read_record(self.path / "result.json"):
            with self._evaluation_lock():
                self._complete_result()

    def _complete_result(self) -> None:
        complete = self.result()
        if complete is not None and complete != read_record(self.path / "result.json"):
            write_json(self.path / "result.json", complete)

    @contextmanager
    def _evaluation_lock(self) -> Iterator[None]:
        """Hold the right to add evaluations; a killed holder lets go of it."""
        lock = open_lock(self.path / "evaluation.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for milliseconds
            yield
        finally:
            os.close(lock)

    def evaluation_metrics(self) -> dict[str, float]:
        """Return the metrics of all suites by name: `eval/piqa/acc`, `eval/piqa/acc_stderr`."""
        suites = self.evaluations().values()
        return {name: value for one in suites for name, value in one["metrics"].items()}

    def controller(self) -> dict[str, Any] | None:
        """Return controller.json of a controller that runs this trial alone (a Slurm job)."""
        return read_record(self.path / "controller.json")

    def heartbeat(self) -> dict[str, Any] | None:
        """Return what rank 0 last said about its progress; None if it cannot be read.

        Nobody flushes it to the disk, so a power cut may leave it empty. Nothing rests on it.
        """
        with suppress(StoreError):
            return read_record(self.path / "heartbeat.json")
        return None

    def cancel_requested(self) -> bool:
        """Whether somebody asked to cancel this trial."""
        return (self.path / "cancel.json").exists()

    def request_cancel(self, by: str, *, durable: bool = True) -> None:
        """Ask whoever runs this trial to stop it for good. `durable` is that of `write_json`."""
        self.path.mkdir(exist_ok=True)
        write_json(self.path / "cancel.json", {"by": by}, durable=durable)

    def retry_request(self) -> dict[str, Any] | None:
        """Return retry.json, also of a request that was met since."""
        return read_record(self.path / "retry.json")

    def retry_requested(self) -> bool:
        """Whether somebody asked for another attempt and none was made since."""
        return is_open(self.retry_request(), self.last_attempt())

    def request_retry(self, by: str, *, after: int, at: float) -> None:
        """Ask for another attempt, by a controller of now or later; take back a request to cancel.

        Args:
            by: Who asks.
            after: Number of the last attempt now; any later one meets the request.
            at: Seconds since 1970.
        """
        if (self.retry_request() or {"after": -1})["after"] < after:
            self.path.mkdir(exist_ok=True)
            write_json(self.path / "retry.json", {"by": by, "asked_at": at, "after": after})
        (self.path / "cancel.json").unlink(missing_ok=True)

    def state(self) -> TrialState:
        """Derive the state from the trial's files, reading no more of them than it takes.

        RUNNING means that its last attempt has no end.json; whether that attempt's controller is
        still alive is for the caller to ask (`SweepDir.controller`).
        """
        if (self.path / "result.json").exists():
            return TrialState.DONE
        attempts = self.attempts()
        return derive_state(
            done=False,
            last_attempt=attempts[-1].number if attempts else 0,
            end=attempts[-1].end() if attempts else None,
            cancel_requested=self.cancel_requested(),
            retry_request=self.retry_request(),
        )

    def record(self, *, for_status: bool = False) -> TrialRecord:
        """Return the trial's small files, each read once.

        Args:
            for_status: Only what changes while it runs: no spec, and of the attempts the ends of
                the last two.

        Raises:
            StoreError: If one of them is damaged; a damaged heartbeat counts as none.
        """
        try:
            names = set(os.listdir(self.path))  # noqa: PTH208 -- names, no paths
        except (FileNotFoundError, NotADirectoryError):
            names = set()

        def read(name: str) -> dict[str, Any] | None:
            return read_record(self.path / name) if name in names else None

        attempts = self.attempts() if "attempts" in names else []
        result = read("result.json")
        spec: dict[str, Any] | None = None
        if not for_status:
            spec = read("spec.json") if "spec.json" in names else self._spec_before_start()
        return TrialRecord(
            path=self.path,
            spec_source=spec,
            attempts=tuple(
                AttemptRecord(
                    path=attempt.path,
                    launch=None if for_status else attempt.launch(),
                    end=attempt.end(),
                )
                for attempt in (attempts[-2:] if for_status else attempts)
            ),
            result=result,
            heartbeat=self.heartbeat() if "heartbeat.json" in names and not result else None,
            controller=read("controller.json"),
            retry_request=read("retry.json"),
            cancel_requested="cancel.json" in names,
            checkpoint_step=self.checkpoint_step() if "checkpoints" in names else 0,
        )

    def metrics(self) -> dict[str, dict[int, tuple[int, float]]]:
        """Merge the journals of all attempts: key -> step -> (t, value).

        Where attempts overlap (steps repeated after a resume), the later attempt wins: its values
        belong to the weights that were kept. What `memscale evaluate` measured later is among it.
        """
        merged: dict[str, dict[int, tuple[int, float]]] = {}
        for attempt in self.attempts():
            for line in attempt.lines():
                if line.step is not None:
                    for key, value in line.metrics.items():
                        merged.setdefault(key, {})[line.step] = (line.t, value)
        for record in self.evaluations().values():
            if record["step"] is not None:
                t = round(1000 * float(record["finished_at"]))
                for key, value in record["metrics"].items():
                    merged.setdefault(key, {})[int(record["step"])] = (t, value)
        return merged
