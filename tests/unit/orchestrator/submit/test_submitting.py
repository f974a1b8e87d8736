"""Writing the records of a submission: one at a time, after what killed ones left is swept."""

import os
import signal
import subprocess
import sys

import pytest

from orchestrator.records.errors import BusyError, StoreError
from orchestrator.records.locks import submitting
from orchestrator.records.sweep_dir import SweepDir

HOLD = """
import sys
from pathlib import Path
from orchestrator.records.locks import submitting
from orchestrator.records.sweep_dir import SweepDir
with submitting(SweepDir(Path(sys.argv[1]))):
    print('held', flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def sweep(tmp_path):
    return SweepDir(tmp_path / "s")


def leave(sweep):
    """Leave what a submission that is killed while it writes leaves."""
    half = sweep.path / "code" / ".tmp-0a1b2c3d" / "orchestrator"
    half.mkdir(parents=True)
    (half / "loop.py").touch()
    torn = sweep.path / "submissions" / ".0002.json-0a1b2c3d"
    torn.parent.mkdir()
    torn.touch()
    return half.parent, torn


def test_what_a_killed_submission_left_is_swept_by_the_next(sweep):
    sweep.path.mkdir()
    left = leave(sweep)
    kept = sweep.path / "code" / "0123456789ab"
    kept.mkdir()
    sweep.add_submission({"trial_ids": []})

    with submitting(sweep):
        pass

    assert not any(path.exists() for path in left)
    assert kept.is_dir()
    assert len(sweep.submissions()) == 1


def test_what_a_living_submission_writes_is_left_alone_until_it_is_killed(sweep):
    command = [sys.executable, "-c", HOLD, str(sweep.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        left = leave(sweep)

        with (
            pytest.raises(BusyError, match="has been writing its records"),
            submitting(sweep, wait_s=0.0),
        ):
            pass
        assert all(path.exists() for path in left)

        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    with submitting(sweep):
        assert not any(path.exists() for path in left)


@pytest.mark.parametrize("link", ["runs/s", "runs"], ids=["sweep", "runs"])
def test_a_folder_that_is_a_link_to_nothing_is_one_sentence(tmp_path, link):
    path = tmp_path / link
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("/nonexistent/scratch")
    sweep = SweepDir(tmp_path / "runs" / "s")

    said = "a link to /nonexistent/scratch, which is not there; mount"
    with pytest.raises(StoreError, match=said), submitting(sweep):
        pass
