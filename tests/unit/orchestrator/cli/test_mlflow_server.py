"""Links, ports and errors of `memscale ui`; the server itself: tests/integration/test_tracking.py."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.cli import mlflow_server
from orchestrator.node import process_group_guard
from orchestrator.records.errors import NotFoundError, StoreError, UsageError


def test_the_links_open_the_runs_table_and_the_charts():
    page = mlflow_server.Page(url="http://127.0.0.1:5000", experiment_id="7")

    assert page.runs.startswith("http://127.0.0.1:5000/#/experiments/7/runs?")
    assert "viewStateShareKey=memscale-table" in page.runs
    assert "compareRunsMode=CHART" in page.charts
    assert mlflow_server.links(page, "recall").splitlines()[0] == f"Runs of recall:  {page.runs}"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "::1", "localhost"])
def test_loopback_opens_nothing(host):
    assert mlflow_server.opens(host, 5000) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "node7.example.org"])
def test_any_other_address_says_what_it_opens_before_it_does(host, tmp_path, monkeypatch):
    said = []
    (tmp_path / "mlflow.db").touch()
    monkeypatch.setattr(mlflow_server, "server", lambda *a, **k: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        mlflow_server.serve(tmp_path, host=host, port=5123, say=said.append)

    assert said[0].startswith(f"warning: --host {host} opens port 5123")
    assert "ssh -L 5123:127.0.0.1:5123" in said[0]


def test_without_a_sweep_the_link_is_the_server():
    page = mlflow_server.Page(url="http://127.0.0.1:5000", experiment_id=None)

    assert mlflow_server.links(page, None) == "MLflow: http://127.0.0.1:5000"
    assert "no sweep 'x'" in mlflow_server.links(page, "x")


def test_a_port_in_use_is_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        assert mlflow_server.free_port("127.0.0.1", port) > port


@pytest.mark.parametrize("port", [0, 70_000])
def test_a_port_that_there_is_not_is_refused(port):
    with pytest.raises(UsageError, match=rf"--port {port}: must lie in 1\.\.65535"):
        mlflow_server.free_port("127.0.0.1", port)


def test_the_last_port_has_none_after_it():
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody else may have it
            taken.bind(("127.0.0.1", 65_535))
            taken.listen()

        with pytest.raises(StoreError, match=r"no free port in 65535\.\.65535"):
            mlflow_server.free_port("127.0.0.1", 65_535)


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]"), ("node7", "node7")],
)
def test_the_server_is_reached_by_an_address_that_a_url_takes(host, url):
    assert mlflow_server.reachable(host) == url


def test_a_free_port_of_ipv6_is_found():
    has_ipv6 = Path("/proc/net/if_inet6").exists()

    with contextlib.nullcontext() if has_ipv6 else pytest.raises(StoreError, match="--host ::1"):
        assert mlflow_server.free_port("::1", 20_000) >= 20_000


def test_an_address_of_another_machine_is_not_a_busy_port():
    with pytest.raises(StoreError, match=r"--host 192\.0\.2\.1: cannot listen there"):
        mlflow_server.free_port("192.0.2.1", 20_000)


def test_the_newest_sweep_is_the_one_submitted_last(tmp_path):
    for age, name in ((100, "old"), (0, "new"), (50, "middle")):
        folder = tmp_path / name / "submissions"
        folder.mkdir(parents=True)
        os.utime(folder, (1e9 - age, 1e9 - age))

    assert mlflow_server.newest_sweep(tmp_path) == "new"
    assert mlflow_server.newest_sweep(tmp_path / "empty") is None


def test_nothing_is_served_before_a_sweep(tmp_path):
    with pytest.raises(StoreError, match="no runs yet; submit a sweep first"):
        mlflow_server.serve(tmp_path, say=print)

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("uri", [None, "http://tracker"])
def test_a_sweep_that_is_nowhere_is_refused_before_a_server_starts(tmp_path, monkeypatch, uri):
    said = []
    (tmp_path / "mlflow.db").touch()
    (tmp_path / "here" / "trials").mkdir(parents=True)
    there = SimpleNamespace(name="there")
    monkeypatch.setattr(mlflow_server, "list_tracked_sweeps", lambda uri: [there])
    monkeypatch.setattr(mlflow_server, "experiment_id", lambda url, sweep: None)
    monkeypatch.setattr(mlflow_server, "server", lambda *a, **k: 1 / 0)
    options = {"tracking_uri": uri, "say": said.append}

    with pytest.raises(
        NotFoundError, match="sweep 'nosuch': neither in .*; there are: here, there$"
    ):
        mlflow_server.serve(tmp_path, sweep="nosuch", **options)
    assert said == []

    for known in ("here", "there", None):
        if uri is None:
            with pytest.raises(ZeroDivisionError):
                mlflow_server.serve(tmp_path, sweep=known, **options)
        else:
            mlflow_server.serve(tmp_path, sweep=known, **options)


def test_a_tracker_that_does_not_answer_is_named_without_its_password(tmp_path):
    port = mlflow_server.free_port("127.0.0.1", 20_000)

    with pytest.raises(StoreError, match="does not answer") as error:
        mlflow_server.serve(
            tmp_path, sweep="x", tracking_uri=f"http://ada:pw@127.0.0.1:{port}", say=print
        )

    assert "pw@" not in str(error.value)


def test_the_guard_ends_a_group_with_its_parent(tmp_path):
    sleeper = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(flush=True); time.sleep(600)"
    group = subprocess.Popen(
        [sys.executable, "-c", sleeper], stdout=subprocess.PIPE, process_group=0
    )
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", process_group_guard.__file__, str(group.pid)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    group.stdout.readline()

    guard.stdin.close()

    assert group.wait(30) == -signal.SIGTERM
    assert guard.wait(30) == 0
    # The grandchild too: it held the other end of this pipe.
    assert group.stdout.read() == b""
    group.stdout.close()
