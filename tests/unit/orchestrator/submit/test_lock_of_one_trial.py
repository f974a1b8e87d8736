"""The sweep's lock shared by jobs of single trials."""

import pytest

from orchestrator.records.errors import BusyError
from orchestrator.records.liveness import is_alive
from orchestrator.records.locks import ControllerLock
from orchestrator.records.sweep_dir import SweepDir


def test_one_trial_each_or_all_together(tmp_path):
    sweep = SweepDir(tmp_path / "s")
    (sweep.path / "trials").mkdir(parents=True)
    a, b = sweep.trial("a"), sweep.trial("b")
    whole = ControllerLock(sweep, submission=1)
    of_a, of_b = (ControllerLock(sweep, submission=1, trial=trial) for trial in (a, b))

    of_a.acquire()
    of_b.acquire()

    assert of_a.trial_ids == ("a",)
    assert is_alive(a.path, a.controller())
    assert sweep.controller() is None
    for other in (whole, ControllerLock(sweep, submission=2, trial=a)):
        with pytest.raises(BusyError, match="runs it already|perhaps a Slurm job of one trial"):
            other.acquire()
    of_a.release()
    assert not is_alive(a.path, a.controller())
    with pytest.raises(
        BusyError, match="another process holds .*lock: perhaps a Slurm job of one trial"
    ):
        whole.acquire()
    of_b.release()
    whole.acquire()
    with pytest.raises(BusyError):
        of_a.acquire()
    whole.release()
    of_a.acquire()
    of_a.release()
