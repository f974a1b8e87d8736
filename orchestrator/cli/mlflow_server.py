"""MLflow server on this machine for `memscale ui`, and links to its pages."""

import contextlib
import errno
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.cli.app import sweep_names
from orchestrator.node import process_group_guard
from orchestrator.records.code_snapshot import with_code
from orchestrator.records.errors import NotFoundError, StoreError, UsageError
from orchestrator.records.redaction import without_password
from orchestrator.tracking.mlflow_client import schema_lock
from orchestrator.tracking.mlflow_page import CHARTS_VIEW, TABLE_VIEW, link
from orchestrator.tracking.tracked_sweeps import list_tracked_sweeps
from orchestrator.tracking.tracking_uri import (
    database_file,
    default_tracking_uri,
    is_database,
)

START_TIMEOUT_S = 120.0
"""For a first start on a cold disk: the server imports a lot."""
PORTS_TRIED = 20
LAST_PORT = 65_535
_Process: TypeAlias = subprocess.Popen[bytes]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Where to look."""

    url: str
    """Address of the server."""
    experiment_id: str | None
    """Of the sweep; None when there is no sweep yet."""

    @property
    def runs(self) -> str:
        """The table: trials, then the parent run, with the columns that matter."""
        return self._link(TABLE_VIEW)

    @property
    def charts(self) -> str:
        """The charts: architectures compared."""
        return self._link(CHARTS_VIEW)

    def _link(self, view: str) -> str:
        return self.url if self.experiment_id is None else link(self.url, self.experiment_id, view)


def serve(
    runs: Path,
    *,
    sweep: str | None = None,
    tracking_uri: str | None = None,
    host: str = "127.0.0.1",
    port: int = 5000,
    say: Callable[[str], None],
) -> None:
    """Serve the page until Ctrl-C; print the links once it answers.

    Raises:
        StoreError: If there is nothing to show, no such sweep, or the server does not start.
    """
    uri = tracking_uri or default_tracking_uri(runs)
    wanted = sweep or newest_sweep(runs)
    if not is_database(uri):
        url = uri.rstrip("/")
        page = Page(url=url, experiment_id=experiment_id(url, wanted))
        if sweep and page.experiment_id is None:
            _refuse_unknown(sweep, runs, uri)
        say(links(page, wanted))
        return
    file = database_file(uri)
    if file is not None and not file.is_file():
        raise NotFoundError(
            f"{file}: no runs yet; submit a sweep first, "
            "or say where they are with --runs or --tracking-uri"
        )
    if sweep:
        _refuse_unknown(sweep, runs, uri)
    if warning := opens(host, port):
        say(warning)
    say("Starting the MLflow server (about 10 seconds)…")
    with server(uri, runs, host=host, port=port) as url:
        say(links(Page(url=url, experiment_id=experiment_id(url, wanted)), wanted))
        say("Ctrl-C ends it.")
        try:
            signal.pause()
        except KeyboardInterrupt:
            say("")


def _refuse_unknown(sweep: str, runs: Path, uri: str) -> None:
    """Raise NotFoundError if there are sweeps, here or in the tracker, and not this one."""
    here = sweep_names(runs)
    if sweep in here:
        return
    known = sorted({*here, *(one.name for one in list_tracked_sweeps(uri))})
    if known and sweep not in known:
        raise NotFoundError(
            f"sweep {sweep!r}: neither in {runs} nor in its tracker; there are: {', '.join(known)}"
        )


def opens(host: str, port: int) -> str | None:
    """Return what listening on this address lets others do; None on the loopback interface."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return None
    if host == "localhost":
        return None
    return (
        f"warning: --host {host} opens port {port} or the next free one to every machine that "
        "reaches this address, without a password: they can read, change and delete all runs, "
        "download and upload artifacts, and have trials cancelled by a tag. Safer from afar: leave "
        f"--host out, and `ssh -L {port}:127.0.0.1:{port} <this machine>`"
    )


def links(page: Page, sweep: str | None) -> str:
    """Return what `memscale ui` prints."""
    if page.experiment_id is None:
        note = f"; no sweep {sweep!r} in it yet" if sweep else ""
        return f"MLflow: {page.url}{note}"
    return f"Runs of {sweep}:  {page.runs}\nCharts of {sweep}: {page.charts}"


def newest_sweep(runs: Path) -> str | None:
    """Return the name of the sweep that was submitted last, None if there is none."""
    submitted = [(p.stat().st_mtime, p.parent.name) for p in runs.glob("*/submissions")]
    return max(submitted)[1] if submitted else None


@contextmanager
def server(
    uri: str,
    runs: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 5000,
    timeout_s: float = START_TIMEOUT_S,
) -> Iterator[str]:
    """Run an MLflow server over a database while the body runs; yield its URL once it answers.

    It ends with this process, however that happens. What it says goes to RUNS/mlflow-server.log.

    Args:
        uri: The database.
        runs: Folder whose mlartifacts the server offers.
        host: Address to listen on.
        port: The next free one is taken.
        timeout_s: How long to wait for its first answer.

    Raises:
        StoreError: If it ends, or does not answer in time.
    """
    chosen = free_port(host, port)
    url = f"http://{reachable(host)}:{chosen}"
    runs.mkdir(parents=True, exist_ok=True)
    # The lock: an exporter that makes the tables at the same time would make both fail.
    with schema_lock(uri):
        process, guard = _start(uri, runs, host=host, port=chosen)
        try:
            _wait_for(url, process, _log(runs), timeout_s)
        except BaseException:
            _end(process, guard)
            raise
    try:
        yield url
    finally:
        _end(process, guard)


def reachable(host: str) -> str:
    """Return where to reach a server that listens on `host`, as it stands in a URL."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{address}]" if ":" in address else address


def server_command(runs: Path, *, host: str, port: int) -> list[str]:
    """Return the command of the server, which takes its database from the environment."""
    return [
        # -P: a user's own `mlflow.py` in the current folder must not shadow the package.
        *(sys.executable, "-P", "-m", "mlflow", "server", "--workers", "1"),
        *("--host", host, "--port", str(port)),
        *("--artifacts-destination", (runs / "mlartifacts").absolute().as_uri()),
    ]


def server_environment(uri: str) -> dict[str, str]:
    """Return the variables of a server of the database `uri`."""
    return {
        **with_code(None, os.environ),
        # Not an argument: a URI may hold a password.
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Seven processes and a gigabyte for jobs that nobody here submits.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _start(uri: str, runs: Path, *, host: str, port: int) -> tuple[_Process, _Process]:
    """Start a server and the process that ends it with this one."""
    with _log(runs).open("wb") as output:
        process = subprocess.Popen(
            server_command(runs, host=host, port=port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=server_environment(uri),
            # A group of its own: its workers are ended with it, and Ctrl-C is ours to handle.
            process_group=0,
        )
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", process_group_guard.__file__, str(process.pid)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    return process, guard


def _log(runs: Path) -> Path:
    return runs / "mlflow-server.log"


def free_port(host: str, port: int) -> int:
    """Return the first port from `port` on that nobody listens on.

    Raises:
        StoreError: If none of the next few is free, or the address is not this machine's.
        UsageError: If there is no such port.
    """
    if not 1 <= port <= LAST_PORT:
        raise UsageError(f"--port {port}: must lie in 1..{LAST_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = min(port + PORTS_TRIED - 1, LAST_PORT)
    for candidate in range(port, last + 1):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                raise StoreError(
                    f"--host {host}: cannot listen there ({error.strerror}); "
                    "name an address of this machine"
                ) from error
            return candidate
    raise StoreError(f"{host}: no free port in {port}..{last}; choose another with --port")


def experiment_id(url: str, sweep: str | None) -> str | None:
    """Return the id of a sweep's experiment on a server, None if there is none.

    Raises:
        StoreError: If the server does not answer.
    """
    if sweep is None:
        return None
    query = urllib.parse.urlencode({"experiment_name": sweep})
    try:
        with _get(f"{url}/api/2.0/mlflow/experiments/get-by-name?{query}") as answer:
            return str(json.load(answer)["experiment"]["experiment_id"])
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise StoreError(
            f"{without_password(url)}: the tracker says {error.code} {error.reason}"
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(
            f"{without_password(url)}: the tracker does not answer ({error}); is the address right?"
        ) from error


def _get(url: str) -> Any:
    # A proxy of the environment must not be asked for this machine's own pages.
    handlers = (
        [urllib.request.ProxyHandler({})]
        if url.startswith(("http://127.0.0.1", "http://localhost", "http://[::1]"))
        else []
    )
    return urllib.request.build_opener(*handlers).open(url, timeout=10)


def _wait_for(url: str, process: _Process, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise StoreError(f"the MLflow server ended at once: {last[0]}; see {log}")
        try:
            with _get(f"{url}/health"):
                return
        except OSError:
            time.sleep(0.2)
    raise StoreError(f"the MLflow server did not answer on {url} in {timeout_s:.0f} s; see {log}")


def _end(process: _Process, guard: _Process) -> None:
    """End the server and its workers, by way of the guard."""
    assert guard.stdin is not None, "it was opened as a pipe"
    guard.stdin.close()
    process.wait()
    guard.wait()
