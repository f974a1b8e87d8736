"""A submission killed at any of its writes: the next one completes the records, and nothing is doubled."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.planning.pricing import make_plan
from orchestrator.planning.runtime_prior import Measurement
from orchestrator.records import sweep_dir
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.demand import Node
from orchestrator.submit import submission
from orchestrator.submit.submission import Submission
from orchestrator.sweep.load import load_sweep

SWEEP = """name: s
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}
model: {architecture: dense, preset: d16}
seeds: [0, 1]
"""
MEASURED = [Measurement(architecture="dense", device="cpu", flops_per_token=1e5, s_per_token=1e-5)]
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.link")
KILLED, LAUNCHED = 9, 0


class Killer:
    """Ends the process at its n-th change of files; it counts them below one folder."""

    def __init__(self):
        self.folder, self.left, self.count = None, 0, 0

    def on_event(self, event, arguments):
        writes = event == "open" and (arguments[2] or 0) & os.O_CREAT
        if self.folder is None or not (writes or event in CHANGES):
            return
        if (
            isinstance(arguments[0], str | os.PathLike)
            and self.folder in Path(arguments[0]).parents
        ):
            self.count += 1
            if self.count == self.left:
                os._exit(KILLED)


KILLER = Killer()
sys.addaudithook(KILLER.on_event)  # it cannot be taken back, and counts where a test says so


class Launcher:
    """Ends the process at the first attempt."""

    def start(self):
        pass

    close = start

    def nodes(self):
        return [Node(node_id="n", host="h", cpus=1, gpus=())]

    def poll(self):
        return []

    def end_orphans(self, processes):
        return []

    def launch(self, launch):
        Path(os.environ["MEMSCALE_TEST_COUNT"]).write_text(str(KILLER.count))
        os._exit(LAUNCHED)


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """A call that submits in a process of its own, killed at a write, and returns how that ended."""
    file, runs = tmp_path / "s.yaml", tmp_path / "runs"
    file.write_text(SWEEP)
    exporter = SimpleNamespace(keep_alive=lambda: None, begin=lambda: None)
    monkeypatch.setattr(submission, "exporting", lambda *a, **k: nullcontext(exporter))
    monkeypatch.setattr(submission, "_launcher", lambda *a: Launcher())
    monkeypatch.setattr(submission.code_snapshot, "take", lambda sweep: sweep.path / "code" / "c")
    monkeypatch.setattr(sweep_dir, "flush_file_system", lambda folder: None)
    monkeypatch.setattr("os.fsync", lambda file: None)
    monkeypatch.setenv("MEMSCALE_TEST_COUNT", str(tmp_path / "count"))
    loaded = load_sweep(file)

    def submit(sweep: SweepDir, kill_at: int = 0) -> int:
        plan = make_plan(loaded, sweep.snapshot(), MEASURED)
        pid = os.fork()
        if pid == 0:
            KILLER.folder, KILLER.left = sweep.path, kill_at
            try:
                Submission(plan=plan, runs=sweep.path.parent).run(lambda status: None)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    submit.runs, submit.ids = runs, [trial.trial_id for trial in loaded.trials]
    return submit


@pytest.mark.long
@pytest.mark.faults
def test_a_kill_at_any_write_before_the_first_attempt_is_completed_by_the_next(submit, tmp_path):
    assert submit(SweepDir(submit.runs / "whole" / "s")) == LAUNCHED
    n_changes = int((tmp_path / "count").read_text())
    assert n_changes > 20

    for kill_at in range(1, n_changes + 1):
        sweep = SweepDir(submit.runs / str(kill_at) / "s")
        assert submit(sweep, kill_at) == KILLED
        assert submit(sweep) == LAUNCHED

        assert sorted(t.trial_id for t in sweep.trials()) == sorted(submit.ids)
        assert all(trial.spec().trial_id == trial.trial_id for trial in sweep.trials())
        assert [one["trial_ids"] for one in sweep.submissions()][-1] == submit.ids
        assert len(sweep.submissions()) <= 2
        left = [path.name for path in sweep.path.rglob(".*")]
        assert left == [], f"killed at change {kill_at}"
        assert sum(len(trial.attempts()) for trial in sweep.trials()) <= 2
