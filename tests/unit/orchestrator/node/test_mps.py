"""The MPS daemon of a node, with a stand-in for NVIDIA's: it listens, and quits when told to."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from orchestrator.node import mps, private_folder
from orchestrator.node.mps import PIPES, MpsDaemon

CONTROL = """\
#!{python} -S
import os, pathlib, sys, time
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f"]:
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    (pipes / "pid").write_text(str(os.getpid()))
    (pipes / "control").touch()
    while not (pipes / "quit").exists():
        time.sleep(0.01)
    {last_word}
elif sys.stdin.read() == "quit\\n":
    (pipes / "quit").touch()
"""
CLIENT = "import os; assert os.path.exists(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + '/control')"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    root = tmp_path / "t"
    root.mkdir()
    monkeypatch.setattr(private_folder, "safe_root", lambda: root)
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return root


@pytest.fixture
def control(tmp_path):
    program = tmp_path / "control"
    word = f"pathlib.Path({str(tmp_path / 'quitted')!r}).touch()"
    program.write_text(CONTROL.format(python=sys.executable, last_word=word))
    program.chmod(0o755)
    return str(program)


def wait_until(look, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def alive(pid):
    return Path(f"/proc/{pid}/stat").exists()


def test_clients_find_the_daemon_in_a_private_folder_until_it_is_closed(control, root, tmp_path):
    daemon = MpsDaemon(control=control, client=CLIENT)
    assert list(root.iterdir()) == []

    environment = daemon.environment("0")
    pipes = Path(environment[PIPES])
    assert (pipes / "control").exists()
    assert stat.S_IMODE(pipes.parent.stat().st_mode) == 0o700
    assert len(str(pipes / "control").removeprefix(str(root))) < 50
    assert daemon.environment("1") == environment
    pid = (pipes / "pid").read_text()

    daemon.close()
    assert not alive(pid)
    assert (tmp_path / "quitted").exists(), "it was asked to end, not killed"
    assert list(root.iterdir()) == []


def test_the_daemon_and_its_folder_go_when_their_owner_is_killed(control, root):
    owner = textwrap.dedent(f"""
        import pathlib, time
        from orchestrator.node import mps, private_folder
        private_folder.safe_root = lambda: pathlib.Path({str(root)!r})
        print(mps.MpsDaemon(control={control!r}, client={CLIENT!r}).environment("0"), flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        pid = next(root.glob("*/pipe/pid")).read_text()
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(pid) and list(root.iterdir()) == [])


def test_the_daemon_goes_when_its_guard_is_killed_and_nothing_depends_on_it_then(control, caplog):
    daemon = MpsDaemon(control=control, client=CLIENT)
    pid = (Path(daemon.environment("0")[PIPES]) / "pid").read_text()
    os.kill(daemon._guard.pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))

    assert daemon.environment("0") == {}
    assert "take turns" in caplog.text
    daemon.close()


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ("import sys; sys.exit('CUDA error 805')", "CUDA error 805"),
        ("import os; os._exit(7)", "exit status 7"),
        ("import time; time.sleep(60)", "did not start in time"),
    ],
)
def test_where_no_client_works_trials_take_turns(control, root, monkeypatch, caplog, client, said):
    monkeypatch.setattr(mps, "READY_S", 2.0)
    daemon = MpsDaemon(control=control, client=client)

    assert daemon.environment("0") == {}
    assert said in caplog.text
    assert list(root.iterdir()) == []
    caplog.clear()
    assert daemon.environment("0") == {}, "nor is it tried again"
    assert caplog.text == ""


def test_a_daemon_that_ends_at_once_is_said(tmp_path, root, caplog):
    program = tmp_path / "control"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)

    assert MpsDaemon(control=str(program)).environment("0") == {}
    assert "ended at once" in caplog.text
    assert list(root.iterdir()) == []


def test_without_mps_nothing_is_started_or_said(root, caplog):
    assert MpsDaemon(control="there-is-no-such-program").environment("0") == {}
    assert list(root.iterdir()) == []
    assert caplog.text == ""


def test_a_daemon_of_the_user_stands(control, root, monkeypatch):
    monkeypatch.setenv(PIPES, "/theirs")

    assert MpsDaemon(control=control, client=CLIENT).environment("0") == {}
    assert list(root.iterdir()) == []
