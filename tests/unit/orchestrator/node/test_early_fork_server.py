"""A fork server that was started before its supervisor, with real processes that count instead of training."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from orchestrator.control.launcher_port import Launch
from orchestrator.node import fork_server
from orchestrator.node.early_fork_server import EarlyForkServer
from orchestrator.node.supervisor import NodeSupervisor
from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec

JOB = f"{Path(__file__).parent.parent / 'counting_job.py'}:run"


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(look, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


@pytest.fixture
def early(tmp_path):
    server = EarlyForkServer(tmp_path / "early.log", environment={}, job=JOB)
    yield server
    server.close()


def supervisor_of(early, tmp_path):
    return NodeSupervisor(
        log=str(tmp_path / "own.log"), environment={}, job=JOB, early=early.address
    )


def launch(supervisor, tmp_path, seed=0, **data):
    spec = TrialSpec(
        sweep="s",
        data={"source": "x", **data},
        model={"architecture": "dense"},
        train={"tokens": 100, "batch_tokens": 10, "seq_len": 10},
        seed=seed,
    )
    trial = SweepDir(tmp_path / "s").trial(spec.trial_id)
    trial.create(spec)
    attempt = trial.new_attempt({"submission": 1})
    launched = Launch(
        trial_id=trial.trial_id,
        trial_path=str(trial.path),
        attempt=attempt.number,
        node_id="n",
        ranks=1,
        cpus=1,
        gpus=0.0,
        gpu_ids=(),
        cache="c",
        job=JOB,
    )
    supervisor.launch(launched, ())
    return trial, attempt


def code_of_end(supervisor):
    (ended,) = wait_until(supervisor.poll)
    return ended.exit_codes[0]


def test_serves_its_supervisor_and_ends_with_it(early, tmp_path):
    supervisor = supervisor_of(early, tmp_path)
    assert supervisor.wait_until_ready() > 0.0

    trial, attempt = launch(supervisor, tmp_path)
    assert code_of_end(supervisor) == 0

    assert trial.result() is not None
    assert not (tmp_path / "own.log").exists()
    supervisor.close()
    assert early._process.wait(timeout=60) == 0
    assert not registered(attempt)[0].alive()


def test_ranks_end_with_the_connection(early, tmp_path):
    supervisor = supervisor_of(early, tmp_path)
    trial, attempt = launch(supervisor, tmp_path, gate_at=5)
    wait_until((trial.path / "at-gate").exists)

    # As when the supervisor is killed.
    supervisor._fork_server._process.kill()

    assert early._process.wait(timeout=60) == 0
    (rank,) = registered(attempt)
    wait_until(lambda: not rank.alive())
    assert trial.result() is None
    supervisor.close()


@pytest.mark.parametrize("connected", [False, True])
def test_another_one_takes_the_place_of_one_that_was_killed(early, tmp_path, connected):
    if connected:
        supervisor = supervisor_of(early, tmp_path)
        supervisor.wait_until_ready()
        early.close()
    else:
        early.close()
        supervisor = supervisor_of(early, tmp_path)

    trial, attempt = launch(supervisor, tmp_path)
    assert code_of_end(supervisor) == 0

    assert trial.result() is not None
    assert (tmp_path / "own.log").exists()
    supervisor.close()
    assert not registered(attempt)[0].alive()


def test_one_killed_while_it_is_awaited_is_replaced(early, tmp_path):
    os.kill(early._process.pid, signal.SIGSTOP)  # before it could import all
    supervisor = supervisor_of(early, tmp_path)
    os.kill(early._process.pid, signal.SIGKILL)

    assert supervisor.wait_until_ready() > 0.0
    assert (tmp_path / "own.log").exists()
    supervisor.close()


def test_a_killed_fork_server_ends_its_attempts_and_the_next_gets_another(early, tmp_path):
    supervisor = supervisor_of(early, tmp_path)
    trial, attempt = launch(supervisor, tmp_path, gate_at=5)
    wait_until((trial.path / "at-gate").exists)
    (rank,) = registered(attempt)
    assert parent_of(rank.pid) == early._process.pid

    os.kill(early._process.pid, signal.SIGKILL)
    assert code_of_end(supervisor) == -signal.SIGKILL
    assert not rank.alive()

    _, attempt = launch(supervisor, tmp_path, seed=1)
    assert code_of_end(supervisor) == 0
    (rank,) = registered(attempt)
    assert ProcessId.own() != rank
    supervisor.close()


def test_refuses_the_connection_of_another_user(monkeypatch):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen(2)
        first, second = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        first.connect(listener.getsockname())
        second.connect(listener.getsockname())
        users = iter([os.geteuid() + 1, os.geteuid()])
        monkeypatch.setattr(fork_server.os, "geteuid", lambda: next(users))

        accepted = fork_server.accept(listener.detach())

        os.write(accepted, b"hello")
        assert second.recv(5) == b"hello"
        assert first.recv(5) == b""
        os.close(accepted)
        first.close()
        second.close()
