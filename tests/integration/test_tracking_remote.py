"""Trackers of teams: PostgreSQL under many trials at once; a server that fails in every way; TLS and a password."""

import base64
import errno
import http.client
import http.server
import importlib.util
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.records.sweep_dir import SweepDir
from orchestrator.tracking.exporter_process import ExporterProcess, exporting

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent
PASSWORD = "not-4-the-logs"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look it up by name
    spec.loader.exec_module(module)
    return module


disk_sweep = load(HERE.parent / "unit" / "orchestrator" / "tracking" / "disk_sweep.py")
postgres = load(HERE / "postgres.py")
chaos = load(HERE.parent / "chaos" / "chaos.py")


def assert_equal_to_journals(client, sweep):
    """Every trial has one run, and every (metric, step, time, value) is there once."""
    experiment = client.get_experiment_by_name(sweep.disk.name)
    runs = client.search_runs([experiment.experiment_id], "tags.`memscale.kind` = 'trial'")
    ids = {run.data.tags["memscale.trial_id"]: run.info.run_id for run in runs}
    assert len(ids) == len(runs) == len(sweep.disk.trials())
    for trial in sweep.disk.trials():
        expected = disk_sweep.expected_points(trial)
        points = disk_sweep.stored_points(client, ids[trial.trial_id])
        assert sorted(point for point in points if "/" in point[0]) == sorted(
            (key, step, t, value) for (key, step), (t, value) in expected.items()
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_postgres_takes_64_trials_at_once_from_two_sweeps_that_both_find_it_empty(tmp_path):
    from mlflow import MlflowClient

    def measure_in_the_background(sweep, attempts):
        def write():
            for start in range(0, 100, 20):
                for attempt in attempts:
                    sweep.measure(attempt, range(start, start + 20))
                time.sleep(0.1)

        writer = threading.Thread(target=write)
        writer.start()
        return writer

    try:
        with postgres.server() as uri:
            sweeps, writers, exporters = [], [], []
            for name in ("first", "second"):
                sweep = disk_sweep.DiskSweep(tmp_path / "runs", name)
                specs = [disk_sweep.make_spec(seed, sweep=name) for seed in range(32)]
                sweep.submit(specs, at_s=time.time())
                sweep.control()
                attempts = [sweep.start(spec) for spec in specs]
                writers.append(measure_in_the_background(sweep, attempts))
                exporters.append(ExporterProcess(sweep.disk, uri))
                sweeps.append((sweep, attempts))
            for (sweep, attempts), writer in zip(sweeps, writers, strict=True):
                writer.join()
                for attempt in attempts:
                    sweep.finish(attempt, step=99)
                sweep.uncontrol()
            drained = [exporter.drain(240) for exporter in exporters]

            assert [(d.points_waiting, d.problem) for d in drained] == [(0, None)] * 2
            client = MlflowClient(tracking_uri=uri)
            for sweep, _ in sweeps:
                assert_equal_to_journals(client, sweep)
    except postgres.MissingPostgresError as missing:
        pytest.skip(str(missing))


def fill(ballast):
    """Write until nothing fits any more; return the bytes that did."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 -- raises() takes one statement
        return file.tell()


def until(look, what):
    """Wait for a state, on a busy machine too."""
    chaos.until(look, what, timeout_s=400.0)


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_a_server_that_is_down_for_a_third_restarted_twice_and_once_out_of_disk_loses_nothing(
    tmp_path,
):
    from mlflow import MlflowClient

    from orchestrator.tracking.mlflow_client import TrackingClient
    from orchestrator.tracking.tracking_uri import default_tracking_uri

    with chaos.small_disk(tmp_path / "disk", size="24m") as mounted:
        if not mounted:
            pytest.skip("no small disk may be mounted here; that takes root's rights")
        uri = default_tracking_uri(tmp_path / "disk")
        TrackingClient(uri).open()
        sweep = disk_sweep.DiskSweep(tmp_path / "runs", "outage")
        specs = [disk_sweep.make_spec(seed, sweep="outage") for seed in range(4)]
        sweep.submit(specs, at_s=time.time())
        sweep.control()
        attempts = [sweep.start(spec) for spec in specs]

        def train(first, last):
            for attempt in attempts:
                sweep.measure(attempt, range(first, last))

        server = chaos.Server(uri, tmp_path / "server.log")
        exporter = ExporterProcess(sweep.disk, server.url)
        try:
            train(0, 100)
            until(lambda: exporter.unsynced_points == 0, "the first third is sent")
            server.kill()
            train(100, 200)
            until(lambda: exporter.problem is not None, "the outage is noticed")
            server.start()
            until(lambda: exporter.unsynced_points == 0, "the second third is sent")

            ballast = tmp_path / "disk" / "ballast"
            assert fill(ballast) > 0
            train(200, 300)
            until(lambda: exporter.problem is not None, "the full disk is noticed")
            assert exporter.unsynced_points > 0
            server.kill()
            ballast.unlink()
            server.start()
            for attempt in attempts:
                sweep.finish(attempt, step=299)
            sweep.uncontrol()
            until(server.answers, "the server is back")
            drained = exporter.drain(240)
        finally:
            exporter.stop()
            server.kill()

        assert (drained.points_waiting, drained.problem) == (0, None)
        assert_equal_to_journals(MlflowClient(tracking_uri=uri), sweep)


class Guard(http.server.BaseHTTPRequestHandler):
    """In front of an MLflow server: TLS, and nobody without the password."""

    protocol_version = "HTTP/1.1"
    behind = None
    """Port of the server; None: nobody gets further."""

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        expected = "Basic " + base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != expected or self.behind is None:
            self._answer(401, b'{"error_code": "UNAUTHENTICATED", "message": "who are you?"}')
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.behind, timeout=60)
        passed_on = {key: self.headers[key] for key in ("Content-Type",) if key in self.headers}
        connection.request(self.command, self.path, body, passed_on)
        response = connection.getresponse()
        self._answer(response.status, response.read())
        connection.close()

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET  # noqa: N815 -- http.server's names

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def guard(tmp_path, monkeypatch):
    """A guard that trusts nobody yet; this process's environment knows its certificate and the password."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    alternative = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [*command, *alternative, "-keyout", key, "-out", certificate],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    handler = type("Handler", (Guard,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.handler, server.url = handler, f"https://localhost:{server.server_port}"
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def submitted(folder, n=2):
    sweep = disk_sweep.DiskSweep(folder / "runs", "guarded")
    specs = [disk_sweep.make_spec(seed, sweep="guarded") for seed in range(n)]
    sweep.submit(specs, at_s=time.time())
    for spec in specs:
        attempt = sweep.start(spec)
        sweep.measure(attempt, range(50))
        sweep.finish(attempt, step=49)
    return sweep


def assert_no_secret(sweep: SweepDir):
    for path in sweep.path.parent.rglob("*"):
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.long
def test_a_refused_password_is_told_without_telling_it(tmp_path, guard):
    sweep = submitted(tmp_path)
    secret_in_uri = guard.url.replace("https://", f"https://ada:{PASSWORD}@")

    with exporting(sweep.disk, secret_in_uri, drain_s=60) as exporter:
        pass

    assert exporter.unsynced_points == 2 * 50 * 2
    assert exporter.problem is not None
    assert PASSWORD not in exporter.problem
    assert_no_secret(sweep.disk)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_password_and_certificate_come_from_the_environment_and_stay_there(tmp_path, guard):
    from mlflow import MlflowClient

    from orchestrator.cli import mlflow_server
    from orchestrator.tracking.mlflow_client import TrackingClient
    from orchestrator.tracking.tracking_uri import default_tracking_uri

    uri = default_tracking_uri(tmp_path)
    TrackingClient(uri).open()
    sweep = submitted(tmp_path)
    with mlflow_server.server(uri, tmp_path, host="127.0.0.1", port=23_100) as url:
        guard.handler.behind = int(url.rpartition(":")[2])
        with exporting(sweep.disk, guard.url, drain_s=120) as exporter:
            pass
    assert (exporter.unsynced_points, exporter.problem) == (0, None)
    assert_equal_to_journals(MlflowClient(tracking_uri=uri), sweep)
    assert_no_secret(sweep.disk)
