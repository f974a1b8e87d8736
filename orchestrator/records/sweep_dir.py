"""Folders of sweeps, trials and attempts: files that survive every process.

    runs/<sweep>/
      sweep.yaml                   the file as last submitted; of several files all of them
      sweep.inputs.json            its input files: where they lay, what they held
      sweep.hub_commits.json       its data sets of the hub: source as written -> commit
      submissions/0001.json        when, by whom, which trials it asked for, how to run them
      specs.jsonl                  specs of trials that have not started (unstarted_specs.py)
      submit.lock                  flocked by `memscale submit` while it writes all these, and until
                                   the controller of its submission runs
      code/<12 hex digits>/        the code that submissions run (code_snapshot.py)
      controller.json              pid, host, start time and heartbeat of the controller, which
                                   holds a flock on controller.lock
      statuses.jsonl               controller: cache of final statuses (status_cache.py)
      cancel.json                  present: somebody asked to cancel the sweep
      tracking.json                exporter: this folder's id in trackers, parent run, problems
      tracking.folder_id           exporter: a copy of that id
      tracking.log                 what the exporter said; `tracking.lock` is flocked by it
      nodes/<host>.log             what the process that starts ranks on a node printed
      nodes/ray.log                what Ray said of its own failures
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
        result.json                rank 0, when the last step and the last evaluation are done;
                                   `memscale evaluate` adds metrics
        evaluation.json            rank 0, memscale evaluate: suite -> when, on which data, metrics
                                   of the trained model; `earlier`: suite -> step -> the same
        evaluation.lock            flocked by whoever adds an evaluation to these two
        table_reads/               memscale evaluate --table-reads: reads of every row, statistics
                                   of every table, a figure
        tracking.json              exporter: run id and offsets per tracking URI

Every JSON file is replaced atomically; a journal's torn last line is ignored by readers. A trial's
state is derived from these files: nothing is stored twice.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.records import unstarted_specs
from orchestrator.records.errors import NotFoundError, StoreError
from orchestrator.records.json_files import (
    flush_file_system,
    read_json,
    read_record,
    remove_temporary,
    write_bytes,
    write_json,
)
from orchestrator.records.snapshot import SweepSnapshot, TrialRecord
from orchestrator.records.trial_dir import TRIAL_ID, TrialDir
from orchestrator.records.trial_spec import TrialSpec

SWEEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""Sweep names become folder names: no separators, no leading dot."""
RESERVED_NAMES = re.compile(r"cache|mlartifacts|mlflow\.db.*|mlflow-server\.log", re.IGNORECASE)
"""What lies beside the sweeps in a runs folder: no sweep can be called so."""
WRITTEN_BY_OTHERS = ("tracking.json", "cancel.json", "retry.json", unstarted_specs.FILE)
"""Files beside the controller's that the exporter, `memscale cancel`, `retry` and `submit`
write."""


TEMPORARY_CODE = ".tmp-"
"""Prefix of a copy of the code that is not complete; `locks.submitting` protects it."""


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
        (self.path / "trials").mkdir(parents=True, exist_ok=True)
        folders, started, unstarted = self.trial_folders(), [], []
        for spec in specs:
            trial = self.trial(spec.trial_id)
            there = spec.trial_id in folders
            if there:
                (trial.path / "cancel.json").unlink(missing_ok=True)
            if there and trial.has_spec():
                trial.write_spec(spec, durable=False)
                started.append(spec.trial_id)
            else:
                unstarted.append(spec)
        if started:  # before their lines go: a power cut must not take both
            flush_file_system(self.path)
        remove_temporary(self.path, of=unstarted_specs.FILE)
        content = unstarted_specs.text(unstarted, sweep=self.path, started=started)
        write_bytes(self.path / unstarted_specs.FILE, content)

    def submissions(self) -> list[dict[str, Any]]:
        """Return the submissions, oldest first; `submit/submission.py` writes them."""
        records = [
            read_record(self.path / "submissions" / name) for name in self._submission_names()
        ]
        return [record for record in records if record is not None]

    def _submission_names(self) -> list[str]:
        folder = self.path / "submissions"
        # Not by glob, which passes over a folder that cannot be read: the next number would be
        # that of another one.
        names = sorted(os.listdir(folder)) if folder.is_dir() else []  # noqa: PTH208
        return [name for name in names if re.fullmatch(r"\d+\.json", name)]

    def add_submission(self, record: Mapping[str, Any]) -> int:
        """Store a submission and return its number, 1 for the first."""
        folder = self.path / "submissions"
        # The highest, not the count: of lost records, later ones keep their numbers.
        number = max((int(Path(name).stem) for name in self._submission_names()), default=0) + 1
        folder.mkdir(exist_ok=True)
        write_json(folder / f"{number:04d}.json", {"number": number, **record})
        return number

    def submission(self, number: int) -> dict[str, Any]:
        """Return a submission.

        Raises:
            StoreError: If there is none of that number.
        """
        path = self.path / "submissions" / f"{number:04d}.json"
        record = read_record(path)
        if record is None:
            raise StoreError(f"{path}: not there; submit again")
        return record

    def controller(self) -> dict[str, Any] | None:
        """Return controller.json; `liveness.is_alive` tells whether that controller lives."""
        return read_record(self.path / "controller.json")

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
            submissions=tuple(self.submissions()),
            excluded_nodes=self.excluded_nodes(),
            trials=trials,
            unreadable=unreadable,
        )


def dangling_link(path: Path) -> str:
    """Return what is wrong, and what to do, if a path is a link to nothing; else ""."""
    if not path.is_symlink() or path.exists():
        return ""
    return f"a link to {path.readlink()}, which is not there; mount that disk, or correct the link"


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
