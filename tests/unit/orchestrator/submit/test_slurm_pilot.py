"""A pilot that leaves gives its ranks the time of the notice."""

from types import SimpleNamespace

import pytest

from orchestrator.launchers.slurm.head_address import HeadAddressFile
from orchestrator.launchers.slurm.launcher import FREE
from orchestrator.launchers.slurm.options import SlurmOptions
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.submit import slurm_pilot


class Rank(SimpleNamespace):
    """A rank that can be a member of a set."""

    __hash__ = object.__hash__


@pytest.fixture
def leave(monkeypatch, tmp_path):
    """Return the seconds that a pilot waits for a rank that takes so long to checkpoint."""

    def measure(checkpoint_s, *, minutes=720, released=True):
        now, rank, signals = [0.0], Rank(pid=4711), []

        def sleep(seconds):
            now[0] += seconds

        monkeypatch.setattr(
            slurm_pilot, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
        )
        monkeypatch.setattr(slurm_pilot.os, "kill", lambda pid, number: signals.append(pid))
        monkeypatch.setattr(
            slurm_pilot, "_ranks_here", lambda sweep: {rank} if now[0] < checkpoint_s else set()
        )
        mark = tmp_path / "leaving" / "13-0"
        if released:
            monkeypatch.setattr(slurm_pilot.Path, "read_text", lambda self, encoding: FREE)
        notice_s = SlurmOptions(backend="slurm", minutes=minutes).notice_s
        slurm_pilot._leave(None, mark, notice_s=notice_s)
        assert signals == [4711]
        return now[0]

    return measure


def test_a_long_checkpoint_has_nearly_the_whole_notice(leave):
    assert leave(100.0) == 100.0
    assert leave(1e9) == 150.0 - slurm_pilot.ENDING_S


def test_all_is_over_before_the_allocation_is(leave):
    assert leave(1e9, released=False) < 150.0


def test_a_short_allocation_leaves_time_for_the_end_too(leave):
    assert leave(1e9, minutes=1) == 7.5


def test_excluded_nodes_are_avoided_beside_those_of_the_user(monkeypatch, tmp_path):
    options = []

    def submit(calls, *, request, **more):
        options.append(dict(request.options))
        return ["14"]

    monkeypatch.setattr(slurm_pilot.submitit_adapter, "submit", submit)
    pilot = slurm_pilot.HeadPilot(
        sweep=str(tmp_path), submission=1, trial_ids=[], cache="", request={}, gpus_per_node=0
    )
    head_address = HeadAddressFile(folder=tmp_path / "12", generation="12/0")
    request = SlurmOptions(backend="slurm", options={"exclude": "n9"})

    for avoid in ([], ["n1", "n2"]):
        assert pilot._ask(1, avoid, SweepDir(tmp_path), head_address, request) == ["14"]

    assert options == [{"exclude": "n9"}, {"exclude": "n9,n1,n2"}]
