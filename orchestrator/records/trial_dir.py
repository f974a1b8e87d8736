"""Folders of sweeps, trials and attempts: files that survive every process.

    runs/<sweep>/
      sweep.yaml                   the file as last submitted; of several files all of them
      sweep.inputs.json            its input files: where they lay, what they held
      submissions/0001.json        when, by whom, which trials it asked for, how to run them
      specs.jsonl                  specs of trials that have not started (unstarted_specs.py)
      submit.lock                  flocked by `memscale submit` while it writes all these
      code/<12 hex digits>/        the code that submissions run (code_snapshot.py)
      controller.json              pid, host, start time and heartbeat of the controller, which
                                   holds a flock on controller.lock
      statuses.jsonl               controller: cache of final statuses (status_cache.py)
      cancel.json                  present: somebody asked to cancel the sweep
      tracking.json                exporter: this folder's id in trackers, parent runs, problems
      tracking.log                 what the exporter said; `tracking.lock` is flocked by it
      nodes/<host>.log             what the process that starts ranks on a node printed
      nodes/<node>.excluded.json   controller: why a node is excluded (control/node_exclusion.py)
      slurm/                       jobs on a Slurm cluster (launchers/slurm/job_records.py)
      trials/<trial_id>/           made for the first attempt, or a request
        spec.json                  TrialSpec; written once
        cancel.json                present: somebody asked to cancel this trial
        retry.json                 somebody asked for another attempt: by, asked_at, after (number
                                   of the last attempt then, 0: none)
        heartbeat.json             rank 0, once a second: attempt, pid, step, steps, phase, loss,
                                   tokens per second
        controller.json, .lock     as of the sweep: of a Slurm job that runs this trial alone
        lease.lock                 its attempt; flocked by rank 0 while it trains: no two train it
        attempts/0001/
          launch.json              controller: when, resources, which controller
          environment.json         rank 0: git commit, diff state, packages, hardware
          ranks.jsonl              every rank: its process (host, pid, start), to end orphans
          rendezvous.json          rank 0, for a moment: where the other ranks find it
          journal.jsonl            rank 0, append only: {"t": ms since 1970, "step": n,
                                   "metrics": {...}} or {"t": …, "event": …}
          log.txt                  stdout and stderr of all ranks; stacks of those that hung
          error.json               the rank that failed: kind, message, traceback, step
          end.json                 controller: outcome, reason, exit codes
        checkpoints/step-00000120/ complete when it has this name; half-written ones are .tmp-*
        result.json                rank 0, once, when the last step and the last evaluation are done
        evaluation.json            rank 0, memscale evaluate: suite -> when, on which data, metrics
                                   of the trained model; `earlier`: suite -> step -> the same
        table_reads/               memscale evaluate --table-reads: reads of every row, statistics
                                   of every table, a figure
        tracking.json              exporter: run id and offsets per tracking URI

Every JSON file is replaced atomically; a journal's torn last line is ignored by readers. A trial's
state is derived from these files: nothing is stored twice.
"""

import ctypes
import json
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.records import unstarted_specs
from orchestrator.records.errors import NotFoundError, StoreError
from orchestrator.records.record_fields import check_fields_of
from orchestrator.records.snapshot import (
    AttemptRecord,
    SweepSnapshot,
    TrialRecord,
    derive_state,
    is_open,
    parse_spec,
)
from orchestrator.records.trial_spec import TrialSpec, TrialState

SWEEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""Sweep names become folder names: no separators, no leading dot."""
RESERVED_NAMES = re.compile(r"cache|mlartifacts|mlflow\.db.*|mlflow-server\.log", re.IGNORECASE)
"""What lies beside the sweeps in a runs folder: no sweep can be called so."""
TRIAL_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}")
"""So do the ids of trials."""


_encode = json.JSONEncoder(ensure_ascii=False).encode
"""As `json.dumps` without escapes, which would make an encoder for every field of ten thousand
specs."""


def write_json(
    path: Path, record: Mapping[str, Any], *, durable: bool = True, private: bool = False
) -> None:
    """Replace `path` atomically: readers see the old or the new content, never a part.

    Args:
        path: Folders above it are made.
        record: A JSON object.
        durable: Wait until the disk has it. A heartbeat, replaced every second, need not.
        private: It holds a secret: only its owner may read it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A line per field. With `indent`, json is three times as slow: ten thousand specs take seconds.
    lines = (f" {json.dumps(key)}: {_encode(value)}" for key, value in record.items())
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_text(path, text, durable=durable, private=private)


def write_text(path: Path, text: str, *, durable: bool, private: bool = False) -> None:
    """Replace `path` by a text (`write_bytes`)."""
    write_bytes(path, text.encode(), durable=durable, private=private)


def write_bytes(path: Path, content: bytes, *, durable: bool = True, private: bool = False) -> None:
    """Replace `path` atomically, in a folder that exists. The arguments are those of `write_json`.

    Who may read it follows from the umask and from the folder (its setgid bit, its default ACL).
    """
    # Not by `tempfile`, whose files nobody but their owner may ever read.
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    mode = 0o600 if private else 0o666
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def flush_file_system(folder: Path) -> None:
    """Return when all that was written to the file system of a folder is on its disk.

    For ten thousand files it takes seconds, an fsync of each minutes.
    """
    libc, handle = ctypes.CDLL(None, use_errno=True), os.open(folder, os.O_RDONLY)
    try:
        if libc.syncfs(handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(handle)


_TEMPORARY = re.compile(r"\.(?P<name>.+)-[a-z0-9_]{8}|\.result-\d+\.json")
"""What `write_json`, and a rank before it links its result, leave behind when they are killed."""


WRITTEN_BY_OTHERS = ("tracking.json", "cancel.json", "retry.json", unstarted_specs.FILE)
"""Files beside the controller's that the exporter, `memscale cancel`, `retry` and `submit`
write."""


TEMPORARY_CODE = ".tmp-"
"""Prefix of a copy of the code that is not complete; `locks.submitting` protects it."""


def remove_temporary(folder: Path, *, of: str | None = None, but: Collection[str] = ()) -> None:
    """Delete what killed writers left in a folder. The caller knows that none of them still writes.

    Args:
        folder: It need not exist.
        of: Only what was to become the file of this name.
        but: Not of these.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            found = _TEMPORARY.fullmatch(entry.name) if entry.name.startswith(".") else None
            if found and found["name"] not in but and of in (None, found["name"]):
                Path(entry.path).unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the record, or None when the file does not exist.

    Raises:
        StoreError: If the file is there and is not a JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise StoreError(f"{path}: not valid JSON ({error}); restore it or delete it") from error
    if not isinstance(record, dict):
        raise StoreError(
            f"{path}: expected an object, got {type(record).__name__}; restore it or delete it"
        )
    return record


def read_record(path: Path) -> dict[str, Any] | None:
    """Return one of a trial's records, or None when the file does not exist.

    Raises:
        StoreError: If it is damaged, or lacks a field that readers rely on.
    """
    record = read_json(path)
    if record is not None:
        check_fields_of(path, record)
    return record


@dataclass(frozen=True)
class JournalLine:
    """One complete line of a journal."""

    t: int
    """Milliseconds since 1970, when it was measured."""
    step: int | None
    metrics: Mapping[str, float]
    event: Mapping[str, Any] | None
    end_offset: int
    """Byte offset just after this line."""


@dataclass(frozen=True)
class AttemptDir:
    """One try at running a trial."""

    path: Path

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        return int(self.path.name)

    @property
    def journal(self) -> Path:
        """Append-only measurements of rank 0."""
        return self.path / "journal.jsonl"

    @property
    def log(self) -> Path:
        """What the ranks printed."""
        return self.path / "log.txt"

    def launch(self) -> dict[str, Any] | None:
        """Return launch.json."""
        return read_record(self.path / "launch.json")

    def end(self) -> dict[str, Any] | None:
        """Return end.json: None while the attempt runs, or if its controller died."""
        return read_record(self.path / "end.json")

    def is_closed(self) -> bool:
        """Whether the controller has closed it; False where the storage does not say.

        The folder is listed, since a network file system remembers that a file was not there.
        """
        try:
            return "end.json" in os.listdir(self.path)  # noqa: PTH208 -- names, no paths
        except OSError:
            return False

    def error(self) -> dict[str, Any] | None:
        """Return error.json."""
        return read_json(self.path / "error.json")

    def environment(self) -> dict[str, Any] | None:
        """Return environment.json."""
        return read_json(self.path / "environment.json")

    def lines(self, offset: int = 0) -> Iterator[JournalLine]:
        """Yield the complete lines from byte `offset` on, without a torn last one.

        Raises:
            StoreError: If a complete line is not valid.
        """
        try:
            file = self.journal.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                offset += len(raw)
                try:
                    record = json.loads(raw)
                    yield JournalLine(
                        t=int(record["t"]),
                        step=record.get("step"),
                        metrics=record.get("metrics", {}),
                        event=record if "event" in record else None,
                        end_offset=offset,
                    )
                except (ValueError, KeyError, TypeError) as error:
                    raise StoreError(
                        f"{self.journal}: bad line before byte {offset} ({error}); delete that line"
                    ) from error


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
        """Write spec.json. An existing one is replaced only in what is not part of the identity.

        `durable` is that of `write_json`. One process at a time does it: what a killed one left of
        its file is deleted.
        """
        if spec.trial_id != self.trial_id:
            raise ValueError(
                f"{self.path}: spec is {spec.trial_id}; a trial lives in the folder of its name"
            )
        if self.path.is_dir():
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
        attempt.path.mkdir(parents=True, exist_ok=left)
        remove_temporary(attempt.path)
        try:
            write_json(attempt.path / "launch.json", launch)
        except OSError:
            with suppress(OSError):
                attempt.path.rmdir()
            raise
        return attempt

    def result(self) -> dict[str, Any] | None:
        """Return result.json, None until the trial is done."""
        return read_record(self.path / "result.json")

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
        """Keep the record of a suite, in the place of an older one.

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

    def evaluation_metrics(self) -> dict[str, float]:
        """Return the metrics of all suites by name: `eval/piqa/acc`, `eval/piqa/acc_stderr`."""
        suites = self.evaluations().values()
        return {name: value for one in suites for name, value in one["metrics"].items()}

    def controller(self) -> dict[str, Any] | None:
        """Return controller.json of a controller that runs this trial alone (a Slurm job)."""
        return read_json(self.path / "controller.json")

    def heartbeat(self) -> dict[str, Any] | None:
        """Return what rank 0 last said about its progress."""
        return read_record(self.path / "heartbeat.json")

    def cancel_requested(self) -> bool:
        """Whether somebody asked to cancel this trial."""
        return (self.path / "cancel.json").exists()

    def request_cancel(self, by: str, *, durable: bool = True) -> None:
        """Ask whoever runs this trial to stop it for good. `durable` is that of `write_json`."""
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
            StoreError: If one of them is damaged.
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
            heartbeat=None if result else read("heartbeat.json"),
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


@dataclass(frozen=True)
class SweepDir:
    """All trials ever submitted under one sweep name."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.path.name

    def trial(self, trial_id: str) -> TrialDir:
        """Return the folder of a trial, which need not exist.

        Raises:
            NotFoundError: If the id cannot be a folder of its own.
        """
        if not TRIAL_ID.fullmatch(trial_id):
            raise NotFoundError(
                f"trial {trial_id!r}: an id is <architecture>-<12 hex digits>; "
                f"`memscale status {self.name}` lists them"
            )
        return TrialDir(self.path / "trials" / trial_id)

    def trials(self) -> list[TrialDir]:
        """Return the trials that have a spec, by name."""
        return [TrialDir(self.path / "trials" / name) for name in self._trial_ids()]

    def _trial_ids(self) -> list[str]:
        """Return the ids of the trials that have a spec, sorted."""
        unstarted, folder = unstarted_specs.read(self.path), self.path / "trials"
        others = (name for name in self.trial_folders() if name not in unstarted)
        return sorted([*unstarted, *(i for i in others if TrialDir(folder / i).has_spec())])

    def trial_folders(self) -> set[str]:
        """Return the names of the trials that have a folder: what never started may have none."""
        try:
            return set(os.listdir(self.path / "trials"))  # noqa: PTH208 -- names, no paths
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def add_trials(self, specs: Iterable[TrialSpec]) -> None:
        """Keep the specs of trials and take back requests to cancel them; done by one process.

        An existing spec is replaced only in what is not part of the identity.
        """
        folders, started, unstarted = self.trial_folders(), [], []
        for spec in specs:
            trial = self.trial(spec.trial_id)
            there = spec.trial_id in folders
            if there:
                (trial.path / "cancel.json").unlink(missing_ok=True)
            if there and trial.has_spec():
                trial.create(spec, durable=False)
                started.append(spec.trial_id)
            else:
                unstarted.append(spec)
        (self.path / "trials").mkdir(parents=True, exist_ok=True)
        if started:  # before their lines go: a power cut must not take both
            flush_file_system(self.path)
        remove_temporary(self.path, of=unstarted_specs.FILE)
        content = unstarted_specs.text(unstarted, sweep=self.path, started=started)
        write_bytes(self.path / unstarted_specs.FILE, content)

    def submissions(self) -> list[dict[str, Any]]:
        """Return the submissions, oldest first; `submit/submission.py` writes them."""
        records = [read_json(self.path / "submissions" / name) for name in self._submission_names()]
        return [record for record in records if record is not None]

    def _submission_names(self) -> list[str]:
        folder = self.path / "submissions"
        # Not by glob, which passes over a folder that cannot be read: the next number would be
        # that of another one.
        names = sorted(os.listdir(folder)) if folder.is_dir() else []  # noqa: PTH208
        return [name for name in names if re.fullmatch(r"\d+\.json", name)]

    def add_submission(self, record: Mapping[str, Any]) -> int:
        """Store a submission and return its number, 1 for the first."""
        number = len(self._submission_names()) + 1
        write_json(self.path / "submissions" / f"{number:04d}.json", {"number": number, **record})
        return number

    def submission(self, number: int) -> dict[str, Any]:
        """Return a submission.

        Raises:
            StoreError: If there is none of that number.
        """
        path = self.path / "submissions" / f"{number:04d}.json"
        record = read_json(path)
        if record is None:
            raise StoreError(f"{path}: not there; submit again")
        return record

    def controller(self) -> dict[str, Any] | None:
        """Return controller.json; `liveness.is_alive` tells whether that controller lives."""
        return read_json(self.path / "controller.json")

    def cancel_requested(self) -> bool:
        """Whether somebody asked to cancel the whole sweep."""
        return (self.path / "cancel.json").exists()

    def excluded_nodes(self) -> dict[Path, dict[str, Any]]:
        """Return the file of each excluded node, with its content."""
        files = sorted((self.path / "nodes").glob("*.excluded.json"))
        records = ((file, read_json(file)) for file in files)
        return {file: record for file, record in records if record is not None}

    def snapshot(self, trial_ids: Iterable[str] | None = None) -> SweepSnapshot:
        """Return the sweep's small files, each read once.

        A trial with a damaged file is set aside (`SweepSnapshot.unreadable`).

        Args:
            trial_ids: The trials to read; None: all.

        Raises:
            StoreError: If a file of the sweep itself is damaged.
        """
        folder = self.path / "trials"
        if trial_ids is None:
            trial_ids = sorted(self.trial_folders() | unstarted_specs.read(self.path).keys())
        trials: dict[str, TrialRecord] = {}
        unreadable: dict[str, str] = {}
        for trial_id in trial_ids:
            try:
                record = TrialDir(folder / trial_id).record()
                if record.spec_source is not None:
                    record.check_spec()
                    trials[trial_id] = record
            except StoreError as error:
                unreadable[trial_id] = str(error)
        return SweepSnapshot(
            path=self.path,
            controller=self.controller(),
            cancel_requested=self.cancel_requested(),
            submissions=tuple(self.submissions()),
            excluded_nodes=self.excluded_nodes(),
            trials=trials,
            unreadable=unreadable,
        )


def sweep_dir(runs: Path, name: str) -> SweepDir:
    """Return the folder of a sweep under `runs`.

    Raises:
        NotFoundError: If the name cannot be a folder of its own.
    """
    if not SWEEP_NAME.fullmatch(name):
        raise NotFoundError(
            f"sweep name {name!r}: use letters, digits, '_', '-' and '.', at most 100, "
            "not starting with a dot"
        )
    return SweepDir(runs / name)
