import errno
import os
import subprocess
import sys

import pytest

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.errors import StoreError
from orchestrator.records.journal import Journal


@pytest.fixture
def attempt(tmp_path):
    return AttemptDir(tmp_path)


def test_lines_are_readable_before_the_journal_is_closed(attempt):
    journal = Journal(attempt.journal, clock=lambda: 1.5)
    journal.event("start", attempt=1)
    journal.metrics(3, {"train/loss": 2})

    event, line = attempt.lines()

    assert (event.t, event.step, event.event["event"]) == (1500, None, "start")
    assert (line.step, line.metrics) == (3, {"train/loss": 2.0})
    journal.close()


def test_not_finite_values_survive_the_trip(attempt):
    journal = Journal(attempt.journal)
    journal.metrics(1, {"train/loss": float("nan"), "x": float("inf")})
    journal.close()

    (line,) = attempt.lines()

    assert line.metrics["train/loss"] != line.metrics["train/loss"]
    assert line.metrics["x"] == float("inf")


def test_full_disk_leaves_no_torn_line_in_the_middle(attempt, monkeypatch):
    journal = Journal(attempt.journal)
    journal.metrics(1, {"a": 1})
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:10]))
        with pytest.raises(OSError, match="took 10 of .* bytes; free some space"):
            journal.metrics(2, {"a": 2})

        def full(file, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"journal.jsonl: cannot write \(No space left"):
            journal.metrics(3, {"a": 3})
    journal.metrics(4, {"a": 4})
    journal.close()

    assert [line.step for line in attempt.lines()] == [1, 4]


LIMITED = """
import resource, sys
from pathlib import Path
from orchestrator.records import storage_errors
from orchestrator.records.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
journal, step = Journal(Path(sys.argv[1])), 0
try:
    while True:
        step += 1
        journal.metrics(step, {"a": 1})
except OSError as error:
    print(step - 1, storage_errors.is_limited(error))
"""


def test_a_limit_of_file_sizes_leaves_whole_lines_and_is_told_from_a_full_disk(attempt):
    told = subprocess.check_output([sys.executable, "-c", LIMITED, str(attempt.journal)], text=True)

    steps, limited = told.split()
    assert limited == "True"
    assert [line.step for line in attempt.lines()] == list(range(1, int(steps) + 1))
    assert attempt.journal.read_bytes().endswith(b"\n")


def test_lines_are_on_the_disk_after_sync_and_close(attempt, monkeypatch):
    synced, fsync = [], os.fsync

    def noted(file):
        synced.append((os.fstat(file).st_ino, os.fstat(file).st_size))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    journal = Journal(attempt.journal)
    inode = attempt.journal.stat().st_ino
    for finish in (journal.sync, journal.close):
        journal.metrics(1, {"a": 1})
        finish()
        assert synced[-1] == (inode, attempt.journal.stat().st_size)


def test_torn_last_line_is_ignored_and_offsets_lead_on(attempt):
    attempt.journal.write_bytes(b'{"t": 1, "step": 1, "metrics": {}}\n{"t": 2, "st')

    (line,) = attempt.lines()
    with attempt.journal.open("ab") as file:
        file.write(b'ep": 2, "metrics": {}}\n')

    assert [later.step for later in attempt.lines(line.end_offset)] == [2]


def test_damaged_line_in_the_middle_is_named(attempt):
    attempt.journal.write_bytes(b'{"t": 1, "step": 1}\nnonsense\n{"t": 2, "step": 2}\n')

    with pytest.raises(StoreError, match=r"journal.jsonl: bad line before byte 29"):
        list(attempt.lines())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"t": 1, "step": "7", "metrics": {}}', "step: expected a whole number, got '7'"),
        ('{"t": 1, "step": 1.5, "metrics": {}}', "step: expected a whole number"),
        ('{"t": 1, "step": 7, "metrics": null}', "metrics: expected an object, got 'None'"),
        ('{"t": 1, "step": 7, "metrics": {"a": "1"}}', "metrics.a: expected a number, got '1'"),
        ('{"t": Infinity, "step": 7}', "cannot convert float infinity"),
    ],
)
def test_a_line_with_a_wrong_field_is_named(attempt, line, said):
    attempt.journal.write_text(line + "\n")

    with pytest.raises(StoreError, match=f"journal.jsonl: bad line before byte .*{said}"):
        list(attempt.lines())
