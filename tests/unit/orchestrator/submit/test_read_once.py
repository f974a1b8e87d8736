"""The way from `memscale submit` to the first launch reads each file of a sweep's folder once."""

import os
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.cli.app import make_plan
from orchestrator.control.status import status_from_disk
from orchestrator.records.json_files import write_json
from orchestrator.records.locks import ControllerLock, locked
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.demand import Node
from orchestrator.submit import submission
from orchestrator.submit.submission import Submission

SWEEP = """# Question: is the folder read once?
name: s
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}
model: {architecture: dense, preset: d16}
seeds: [0, 1, 2, 3]
"""


class ReadCounter:
    """Counts how often each file and folder below a folder is read, from `below` until `stop`."""

    def __init__(self):
        self.counts: Counter[str] = Counter()
        self._folder: Path | None = None

    def below(self, folder: Path) -> None:
        self._folder = folder

    def stop(self) -> None:
        self._folder = None

    def on_event(self, event: str, arguments: tuple) -> None:
        if self._folder is None or event not in ("open", "os.listdir", "os.scandir"):
            return
        path, writes = arguments[0], event == "open" and (arguments[2] or 0) & os.O_ACCMODE
        if isinstance(path, str | os.PathLike) and not writes:
            absolute = Path(path).absolute()
            if absolute.is_relative_to(self._folder):
                self.counts[str(absolute.relative_to(self._folder))] += 1


READS = ReadCounter()
# It cannot be taken back, and does nothing unless a test counts.
sys.addaudithook(READS.on_event)


class FirstLaunch(Exception):
    """The end of what is counted."""


class Launcher:
    """One node of one core; reads are counted until an attempt is started there."""

    def start(self):
        pass

    def nodes(self):
        return [Node(node_id="n", host="h", cpus=1, gpus=())]

    def poll(self):
        return []

    def end_orphans(self, processes):
        return []

    def launch(self, launch):
        READS.stop()
        self.launched = launch
        raise FirstLaunch

    def close(self):
        pass


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A sweep with a trial that is done, one that failed, one that was left running and a new one."""
    exporter = SimpleNamespace(drained=True, keep_alive=lambda: None, begin=lambda: None)
    monkeypatch.setattr(submission, "exporting", lambda *a, **k: nullcontext(exporter))
    file = tmp_path / "s.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    sweep = SweepDir(tmp_path / "runs" / "s")
    specs = [t.spec for t in make_plan([file], tmp_path / "runs").trials]
    ended = {"ended_at": 2.0, "reason": "its reason", "exit_codes": {}}
    for spec, outcome in zip(specs[:3], ("done", "user_error", None), strict=True):
        trial = sweep.trial(spec.trial_id)
        trial.create(spec)
        attempt = trial.new_attempt({"started_at": 1.0, "submission": 1})
        attempt.journal.write_text('{"t":1,"step":5,"metrics":{"train/loss":2.0}}\n')
        progress = {"step": 5, "steps": 8, "phase": "train", "loss": 2.0, "tokens_per_s": 1.0}
        write_json(trial.path / "heartbeat.json", {"attempt": 1, **progress})
        (trial.checkpoints / "step-00000004").mkdir(parents=True)
        if outcome:
            write_json(attempt.path / "end.json", {"outcome": outcome, "final": True, **ended})
        if outcome == "done":
            measured = {"train/loss": 2.0, "time/train_s": 1.0}
            write_json(trial.path / "result.json", {"tokens": 8192, "metrics": measured})
    sweep.add_submission({"trial_ids": [spec.trial_id for spec in specs], "submitted_at": 1.0})
    controller = {"pid": 1, "host": "elsewhere", "start_ticks": 1, "updated_at": 1.0}
    write_json(sweep.path / "controller.json", {**controller, "submission": 1, "ended_at": 2.0})
    return tmp_path / "runs"


def test_every_file_is_read_once_before_the_first_launch(runs, monkeypatch):
    launcher = Launcher()
    monkeypatch.setattr(submission, "_launcher", lambda *arguments: launcher)

    READS.below(runs / "s")
    plan = make_plan([runs.parent / "s.yaml"], runs)
    with pytest.raises(FirstLaunch):
        Submission(plan=plan, runs=runs).run(lambda status: None)

    counts = READS.counts
    assert [t.status for t in plan.trials] == ["done", "retry", "resume", "new"]
    launched = f"trials/{launcher.launched.trial_id}"
    there = [f"trials/{trial.spec.trial_id}" for trial in plan.trials[:3]]
    fresh = {
        ".": "temporary files of killed writers are removed",
        "controller.json": "whether another controller came meanwhile",
        "trials": "which trials have a folder",
        "nodes": "a node that somebody has readmitted",
        f"{launched}/attempts": "the number of the next attempt",
        **dict.fromkeys(there, "temporary files of ranks and submissions that were killed"),
        **{f"{trial}/checkpoints": "whether there is one to go on from now" for trial in there},
        "submissions": "the number of the next one",
    }
    again = {
        path: n
        for path, n in counts.items()
        if n > 1 and path not in fresh and not path.startswith(("code", f"{launched}/attempts/"))
    }
    assert again == {}
    assert counts["controller.json"] == 3  # the plan, before anything is written, under its lock
    read = {Path(path).name for path in counts}
    assert {"spec.json", "result.json", "end.json", "launch.json", "0001.json"} <= read


def test_a_snapshot_is_read_anew_when_another_controller_ran_since(runs, monkeypatch):
    monkeypatch.setattr(submission, "_launcher", lambda *arguments: Launcher())
    plan = make_plan([runs.parent / "s.yaml"], runs)
    sweep = SweepDir(runs / "s")
    for trial in plan.trials[1:]:
        result = {"tokens": 8192, "steps": 8, "metrics": {"train/loss": 2.0}}
        sweep.trial(trial.spec.trial_id).create(trial.spec)
        write_json(sweep.trial(trial.spec.trial_id).path / "result.json", result)
    write_json(sweep.path / "controller.json", {**sweep.controller(), "ended_at": 3.0})
    monkeypatch.setattr(submission, "SubmissionResult", lambda *, status, **fields: status)

    status = Submission(plan=plan, runs=runs).run(lambda status: None)

    assert status.complete


def test_trials_that_cannot_be_read_are_asked_for_and_make_the_submission_fail(runs, monkeypatch):
    monkeypatch.setattr(submission, "_launcher", lambda *arguments: Launcher())
    sweep = SweepDir(runs / "s")
    for trial in sweep.trials():
        (trial.attempt(1).path / "end.json").write_text("")
    (runs.parent / "s.yaml").write_text(SWEEP.replace("[0, 1, 2, 3]", "[0, 1, 2]"))
    plan = make_plan([runs.parent / "s.yaml"], runs)

    result = Submission(plan=plan, runs=runs).run(lambda status: None)

    assert [t.status for t in plan.trials] == ["unreadable"] * 3
    assert len(result.status.unreadable) == 3
    assert result.exit_code == 1
    assert sweep.submissions()[-1]["trial_ids"] == [t.spec.trial_id for t in plan.trials]
    assert status_from_disk(sweep).unreadable == result.status.unreadable


def test_no_other_submission_writes_until_the_controller_has_its_lock(runs, monkeypatch):
    sweep, free = SweepDir(runs / "s"), {}

    def look(when):
        lock = locked(sweep.path / "submit.lock")
        free[when] = lock is not None
        if lock is not None:
            os.close(lock)

    class Looking(Launcher):
        def launch(self, launch):
            look("at the first launch")
            raise FirstLaunch

    def acquire(self, of=ControllerLock.acquire):
        look("before its lock")
        of(self)

    monkeypatch.setattr(ControllerLock, "acquire", acquire)
    monkeypatch.setattr(submission, "_launcher", lambda *arguments: Looking())

    with pytest.raises(FirstLaunch):
        Submission(plan=make_plan([runs.parent / "s.yaml"], runs), runs=runs).run(print)

    assert free == {"before its lock": False, "at the first launch": True}
