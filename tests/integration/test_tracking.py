"""The exporter against real MLflow: SQLite, a server that dies, kills, the page in a browser."""

import importlib.util
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app, mlflow_server
from orchestrator.control.loop import Controller
from orchestrator.launchers.local import ProcessLauncher
from orchestrator.records.json_files import read_json, write_json
from orchestrator.records.processes import ProcessId
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialState
from orchestrator.tracking import sync_state
from orchestrator.tracking.corpus_dataset import trial_datasets
from orchestrator.tracking.exporter_process import ExporterProcess, exporting
from orchestrator.tracking.mlflow_client import TrackerError, TrackingClient
from orchestrator.tracking.run_schema import CANCEL, FOLDER_ID, KIND, RETRY, RETRY_TAKEN
from orchestrator.tracking.sync_sweep import SweepSync
from orchestrator.tracking.tracked_sweeps import list_tracked_sweeps
from orchestrator.tracking.tracking_uri import default_tracking_uri

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent
JOB = f"{HERE.parent / 'unit' / 'orchestrator' / 'counting_job.py'}:run"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


disk_sweep = load(HERE.parent / "unit" / "orchestrator" / "tracking" / "disk_sweep.py")
screenshot = load(HERE.parents[1] / "docs" / "screenshot.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_store):
    """A runs folder whose SQLite store has its tables. Odd names are on purpose."""
    folder = tmp_path_factory.mktemp("state") / "my runs ü"
    make_store(folder)
    return folder


@pytest.fixture(scope="module")
def client(runs):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=default_tracking_uri(runs))


@pytest.fixture
def sweep(runs, request):
    """An empty sweep of its own, with this process as its controller."""
    name = request.node.name.removeprefix("test_").replace("[", "-").rstrip("]")
    written = disk_sweep.DiskSweep(runs, name)
    yield written
    written.uncontrol()


def submitted(sweep, n_trials=3):
    specs = [
        disk_sweep.make_spec(seed, architecture, sweep=sweep.disk.name)
        for seed in range(n_trials)
        for architecture in ("dense", "memory_plus")
    ]
    sweep.submit(specs, at_s=time.time())
    sweep.control()
    return specs


def run_ids(client, sweep):
    experiment = client.get_experiment_by_name(sweep.disk.name)
    found = client.search_runs([experiment.experiment_id], "tags.`memscale.kind` = 'trial'")
    ids = {run.data.tags["memscale.trial_id"]: run.info.run_id for run in found}
    assert len(ids) == len(found), "a trial has two runs"
    return ids


def has_points(client, sweep):
    """Whether some measurement of some trial has come."""
    experiment = client.get_experiment_by_name(sweep.disk.name)
    found = client.search_runs([experiment.experiment_id]) if experiment else []
    kinds = [(run.data.tags.get("memscale.kind"), run.data.metrics) for run in found]
    return any(kind == "trial" and any("/" in key for key in metrics) for kind, metrics in kinds)


def assert_equal_to_journals(client, sweep):
    """Every (metric, step, time, value) is there, once."""
    ids = run_ids(client, sweep)
    trials = sweep.disk.trials()
    assert set(ids) == {trial.trial_id for trial in trials}
    for trial in trials:
        expected = disk_sweep.expected_points(trial)
        points = disk_sweep.stored_points(client, ids[trial.trial_id])
        measured = [point for point in points if "/" in point[0]]
        assert sorted(measured) == sorted(
            (key, step, t, value) for (key, step), (t, value) in expected.items()
        )


def until(condition, *, timeout_s=240.0):
    """Wait for a state, not for a time. Looking takes at most a quarter of the time: two cores do the rest."""
    deadline = time.monotonic() + timeout_s
    while True:
        looked_at = time.monotonic()
        if condition():
            return
        assert looked_at < deadline, "it did not come to pass"
        time.sleep(max(0.05, 3 * (time.monotonic() - looked_at)))


def waiting(exporter, fewer_than):
    return lambda: exporter.unsynced_points < fewer_than


@pytest.mark.long
def test_sqlite_holds_the_journals_once_however_often_they_are_sent(
    runs, client, sweep, monkeypatch
):
    from mlflow.artifacts import download_artifacts

    specs = submitted(sweep)
    # One of them takes several batches of points.
    number = sweep.disk.submissions()[-1]["number"]
    record = sweep.disk.path / "submissions" / f"{number:04d}.json"
    write_json(record, {**read_json(record), "register": True})
    weights = sweep.disk.trial(specs[0].trial_id).checkpoints / "final"
    weights.mkdir(parents=True)
    (weights / "state.pt").write_bytes(b"learnt")
    for spec, steps in zip(specs[:5], (800, 80, 80, 80, 80), strict=True):
        first = sweep.start(spec)
        sweep.measure(first, range(steps * 7 // 8))
        sweep.end(first, "killed", final=False)
        second = sweep.start(spec)
        sweep.measure(
            second,
            range(steps // 2, steps),
            late_ms=70_000,
            names=("train/loss", "train/lr", "a|b"),
        )
        sweep.finish(second, step=steps - 1)
    with second.journal.open("a") as file:
        file.write('{"t": 1700000000001, "step": 2000, "metrics": {"odd": NaN, "big": Infinity}}\n')
    for _ in range(2):
        with exporting(sweep.disk, drain_s=600) as exporter:
            sweep.uncontrol()
        assert (exporter.unsynced_points, exporter.problem) == (0, None)
        for trial in sweep.disk.trials():
            (trial.path / "tracking.json").unlink()

    ids = run_ids(client, sweep)
    run = client.get_run(ids[specs[0].trial_id])
    assert run.info.status == "FINISHED"
    (corpus,) = run.inputs.dataset_inputs
    assert (corpus.dataset.name, corpus.tags[0].value) == ("biographies", "training")
    assert corpus.dataset.digest == trial_datasets(specs[0])[0].digest
    (version,) = client.search_model_versions(f"name = '{sweep.disk.name}'")
    assert version.run_id == run.info.run_id
    assert version.tags["memscale.trial_id"] == specs[0].trial_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", default_tracking_uri(runs))
    stored = Path(download_artifacts(f"models:/{sweep.disk.name}/1"))
    assert (stored / "final" / "state.pt").read_bytes() == b"learnt"
    assert (stored / "spec.json").is_file()
    assert run.info.end_time == round((disk_sweep.T0 / 1000 + 99) * 1000)
    assert client.get_run(ids[specs[5].trial_id]).info.status == "SCHEDULED"
    parent = client.get_run(run.data.tags["mlflow.parentRunId"])
    assert parent.data.metrics["trials/done"] == 5
    assert parent.info.status == "KILLED"
    for trial in sweep.disk.trials():
        expected = {
            (key.replace("|", "_"), step, t, value)
            for (key, step), (t, value) in disk_sweep.expected_points(trial).items()
        }
        points = disk_sweep.stored_points(client, ids[trial.trial_id])
        assert sorted(p for p in points if "/" in p[0] or p[0] == "a_b") == sorted(
            point for point in expected if point[0] not in ("odd", "big")
        )
    for name in ("odd", "big"):
        assert len(client.get_metric_history(ids[specs[4].trial_id], name)) == 1
    text = Path(client.download_artifacts(ids[specs[0].trial_id], "log/attempt-2.txt")).read_text()
    assert text == "log of attempt 2\n"
    assert (
        client.get_experiment_by_name(sweep.disk.name).tags["mlflow.note.content"]
        == "Does it grow?"
    )


def test_a_resumed_sweep_has_one_parent_run_and_one_row_in_the_list(runs, client, sweep):
    """The tracker also holds a parent of an earlier version, and one that another host made."""
    specs = submitted(sweep, 1)
    sweep.end(sweep.start(specs[0]), "interrupted", final=False)
    experiment = client.create_experiment(sweep.disk.name)
    folder = {FOLDER_ID: sync_state.folder_id(sweep.disk)}
    earlier, _, parent = (
        client.create_run(experiment, start_time=at, tags={KIND: kind, **folder}).info.run_id
        for at, kind in ((1, "submission"), (3, "sweep"), (2, "sweep"))
    )
    with exporting(sweep.disk):
        sweep.uncontrol()
    assert client.get_run(parent).info.status == "KILLED"

    sweep.submit(specs, at_s=time.time())
    for spec in specs:
        sweep.finish(sweep.start(spec, submission=2), step=9, at_s=time.time())
    with exporting(sweep.disk) as exporter:
        pass

    assert exporter.problem is None
    found = client.search_runs([experiment], "tags.`memscale.kind` != 'trial'")
    assert {run.info.run_id for run in found} == {earlier, parent}
    assert client.get_run(parent).info.status == "FINISHED"
    trials = [client.get_run(run_id) for run_id in run_ids(client, sweep).values()]
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent}
    rows = list_tracked_sweeps(default_tracking_uri(runs))
    (row,) = [row for row in rows if row.name == sweep.disk.name]
    assert (row.state, row.trials, row.counts["done"]) == ("done", 2, 2)
    assert row.submitted_at > time.time() - 3600


@pytest.mark.long
def test_killed_exporters_lose_and_double_nothing_and_the_last_is_replaced(runs, client, sweep):
    specs = submitted(sweep)
    attempts = [sweep.start(spec) for spec in specs]
    chance = random.Random(0)
    for kill in range(2):
        exporter = ExporterProcess(sweep.disk)
        for attempt in attempts:
            sweep.measure(attempt, range(150 * kill, 150 * (kill + 1)))
        total = 2 * 150 * len(attempts)
        until(waiting(exporter, chance.uniform(0.2, 1.0) * total))
        os.kill(exporter.pid, signal.SIGKILL)
        exporter.stop()
    with exporting(sweep.disk) as last:
        os.kill(last.pid, signal.SIGKILL)
        until(lambda: not last.alive())
        for attempt in attempts:
            sweep.measure(attempt, range(300, 310))
            sweep.finish(attempt, step=309)
        sweep.uncontrol()

    assert (last.unsynced_points, last.problem) == (0, None)
    assert_equal_to_journals(client, sweep)


def test_no_exporter_survives_its_parent(runs, sweep):
    submitted(sweep, 1)
    parent = (
        "import sys, time; from pathlib import Path\n"
        "from orchestrator.records.sweep_dir import SweepDir; from orchestrator.tracking.exporter_process import ExporterProcess\n"
        f"print(ExporterProcess(SweepDir(Path({str(sweep.disk.path)!r}))).pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    exporter = ProcessId.of(int(process.stdout.readline()))
    until((sweep.disk.path / "tracking.json").exists)  # it has met the tracker
    process.kill()
    process.wait()
    process.stdout.close()

    until(lambda: not exporter.alive(), timeout_s=60)


@pytest.mark.long  # the next one sets a tag on the page, too
def test_a_cancel_tag_on_the_page_reaches_the_trial(runs, client, sweep):
    (spec, *_) = submitted(sweep, 1)
    with exporting(sweep.disk) as exporter:
        until(lambda: client.get_experiment_by_name(sweep.disk.name) is not None)
        until(lambda: spec.trial_id in run_ids(client, sweep))
        run_id = run_ids(client, sweep)[spec.trial_id]
        client.set_tag(run_id, CANCEL, "please")

        until(sweep.disk.trial(spec.trial_id).cancel_requested)
        until(lambda: CANCEL not in client.get_run(run_id).data.tags)

    assert exporter.problem is None
    assert client.get_run(run_id).info.status == "KILLED"


def test_a_retry_tag_on_the_page_has_a_failed_trial_run_again(runs, client, sweep):
    """The first attempt fails on its own; another trial waits at a gate, so that the controller is still there."""
    train = {"tokens": 100, "batch_tokens": 10, "seq_len": 10}
    fails, waits = (
        disk_sweep.make_spec(seed, sweep=sweep.disk.name, data={"source": "x", **data}, train=train)
        for seed, data in enumerate([{"fail": {"1": "user"}}, {"gate_at": 3}])
    )
    sweep.submit([fails, waits], at_s=time.time())
    trial, go = sweep.disk.trial(fails.trial_id), sweep.disk.trial(waits.trial_id).path / "go"
    controller = Controller(
        sweep.disk,
        submission=1,
        trial_ids=[fails.trial_id, waits.trial_id],
        launcher=ProcessLauncher(sweep.disk, cpus=2, job=JOB),
        cache=runs / "cache",
        job=JOB,
    )
    asked = []

    def set_the_tag_once_it_failed(status):
        if status.trials[0].state is TrialState.DONE:
            go.touch()
        elif status.trials[0].state is TrialState.FAILED and not asked:
            experiment = client.get_experiment_by_name(sweep.disk.name)
            if experiment and fails.trial_id in run_ids(client, sweep):
                asked.append(run_ids(client, sweep)[fails.trial_id])
                client.set_tag(asked[0], RETRY, "please")

    with exporting(sweep.disk) as exporter:
        status = controller.run(set_the_tag_once_it_failed)

    assert status.complete
    assert [a.end()["outcome"] for a in trial.attempts()] == ["user_error", "done"]
    assert trial.attempt(2).launch()["why"].startswith("retry (tag memscale.retry in MLflow) after")
    assert (exporter.unsynced_points, exporter.problem) == (0, None)
    assert_equal_to_journals(client, sweep)
    run = client.get_run(asked[0])
    assert RETRY not in run.data.tags
    assert run.data.tags[RETRY_TAKEN].endswith(": 1 trial back in the queue")
    assert (run.info.status, run.data.tags["memscale.attempt"]) == ("FINISHED", "2")
    parent = client.get_run(run.data.tags["mlflow.parentRunId"])
    assert parent.info.status == "FINISHED"
    assert (parent.data.metrics["trials/done"], parent.data.metrics["trials/failed"]) == (2, 0)


def test_a_lost_store_is_rebuilt_from_the_trial_directories_by_sync(tmp_path, make_store):
    from mlflow import MlflowClient

    sweep = disk_sweep.DiskSweep(tmp_path / "runs", "lost")
    specs = submitted(sweep, 1)
    for spec in specs:
        first = sweep.start(spec)
        sweep.measure(first, range(40))
        sweep.end(first, "killed", final=False)
        second = sweep.start(spec)
        sweep.measure(second, range(30, 60), late_ms=70_000)
        sweep.finish(second, step=59)
    sweep.uncontrol()
    store = tmp_path / "runs" / "mlflow.db"

    def sync():
        words = ["sync", "lost", "--runs", str(tmp_path / "runs")]
        done = CliRunner().invoke(app, words, env={"MLFLOW_TRACKING_URI": None, "COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        assert "The tracker has every point of lost" in done.output
        client = MlflowClient(tracking_uri=default_tracking_uri(tmp_path / "runs"))
        assert_equal_to_journals(client, sweep)
        ids = run_ids(client, sweep).values()
        assert {client.get_run(run_id).info.status for run_id in ids} == {"FINISHED"}

    make_store(tmp_path / "runs")
    sync()

    # Of one trial the exporter's own file still says that the tracker has everything, of the other it is gone, too.
    store.unlink()
    (sweep.disk.trials()[0].path / "tracking.json").unlink()
    sync()


def test_a_moved_runs_folder_sends_no_artifacts_to_its_old_place(tmp_path, make_store, caplog):
    old, new = tmp_path / "old", tmp_path / "new"
    make_store(old / "runs")
    sweep = disk_sweep.DiskSweep(old / "runs", "moved")
    submitted(sweep, 1)
    sweep.uncontrol()
    (sweep.disk.path / "sweep.yaml").write_text("name: before\n")
    assert SweepSync(sweep.disk, TrackingClient(default_tracking_uri(old / "runs"))).round()
    old.rename(new)
    moved = SweepDir(new / "runs" / "moved")
    (moved.path / "sweep.yaml").write_text("name: moved\n")
    sync = SweepSync(moved, TrackingClient(default_tracking_uri(new / "runs")))

    assert sync.round() is False

    assert f"keeps artifacts in {old}/runs/mlartifacts" in caplog.text
    assert not old.exists()
    (old / "runs").mkdir(parents=True)
    (old / "runs" / "mlartifacts").symlink_to(new / "runs" / "mlartifacts")
    assert SweepSync(moved, TrackingClient(default_tracking_uri(new / "runs"))).round() is True
    (stored,) = (new / "runs" / "mlartifacts").rglob("sweep.yaml")
    assert stored.read_text() == "name: moved\n"


@pytest.mark.slow
def test_processes_that_make_the_tables_at_once(tmp_path):
    uri = default_tracking_uri(tmp_path / "fresh")
    script = f"from orchestrator.tracking.mlflow_client import TrackingClient; TrackingClient({uri!r}).open()"
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) for _ in range(3)
    ]
    said = [process.communicate()[1].decode() for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0], said


class Server:
    """An MLflow server that can be killed and started again at the same address."""

    def __init__(self, uri, log):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._uri, self._log = uri, log
        self._process = None

    def start(self):
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--port",
            str(self.port),
            "--workers",
            "1",
        ]
        command += [
            "--backend-store-uri",
            self._uri,
            "--artifacts-destination",
            str(self._log.parent / "artifacts"),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                process_group=0,
                env={
                    **os.environ,
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                },
            )

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def send(self, number):
        os.killpg(self._process.pid, number)

    def kill(self):
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_server_lost_in_the_middle_delays_and_loses_nothing(runs, client, sweep, tmp_path, fault):
    specs = submitted(sweep)
    server = Server(default_tracking_uri(runs), tmp_path / "server.log")
    server.start()
    try:
        until(server.answers)
        attempts = [sweep.start(spec) for spec in specs]
        exporter = ExporterProcess(sweep.disk, server.url)
        killed = threading.Event()

        def train():
            """The journals grow while points are sent; the last third of them after the server is dead."""
            for start in range(0, 300, 30):
                if start == 210:
                    killed.wait()
                for attempt in attempts:
                    sweep.measure(attempt, range(start, start + 30))

        writer = threading.Thread(target=train, daemon=True)
        writer.start()
        until(lambda: has_points(client, sweep))
        server.kill() if fault == "killed" else server.send(signal.SIGSTOP)
        killed.set()
        writer.join()
        until(lambda: exporter.problem is not None)
        assert exporter.unsynced_points >= 2 * 90 * len(attempts)
        assert exporter.alive()

        server.start() if fault == "killed" else server.send(signal.SIGCONT)
        until(server.answers)
        for attempt in attempts:
            sweep.finish(attempt, step=299)
        sweep.uncontrol()
        drained = exporter.drain(120)
        assert (drained.points_waiting, drained.problem) == (0, None)
    finally:
        server.kill()

    assert_equal_to_journals(client, sweep)
    statuses = [client.get_run(run_id).info.status for run_id in run_ids(client, sweep).values()]
    assert statuses == ["FINISHED"] * len(specs)


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("looks", ["after", "before"])
def test_a_server_that_makes_a_run_after_the_request_timed_out_doubles_nothing(
    runs, client, sweep, tmp_path, monkeypatch, looks
):
    """The server has the request, but another process locks its database meanwhile."""
    from mlflow.entities import ViewType

    (spec, *_) = specs = submitted(sweep, 1)
    for attempt in [sweep.start(spec) for spec in specs]:
        sweep.measure(attempt, range(30))
    server = Server(default_tracking_uri(runs), tmp_path / "server.log")
    server.start()
    database = sqlite3.connect(runs / "mlflow.db", isolation_level=None)
    try:
        until(server.answers)
        tracker = TrackingClient(server.url)
        create_run = tracker.create_run

        def locked_out(experiment_id, *, tags, **more):
            if tags.get("memscale.trial_id") != spec.trial_id:
                return create_run(experiment_id, tags=tags, **more)
            monkeypatch.undo()
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
            database.execute("BEGIN IMMEDIATE")
            return create_run(experiment_id, tags=tags, **more)

        monkeypatch.setattr(tracker, "create_run", locked_out)
        sender = SweepSync(sweep.disk, tracker)
        with pytest.raises(TrackerError, match="timed out"):
            sender.round()
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
        asked = f"tags.`memscale.trial_id` = '{spec.trial_id}'"
        experiment = client.get_experiment_by_name(sweep.disk.name).experiment_id
        if looks == "before":
            sender.take_cancel_requests()
        database.execute("ROLLBACK")
        until(lambda: client.search_runs([experiment], asked))
        while sender.in_doubt:
            assert sender.round() is True
    finally:
        database.close()
        server.kill()

    assert_equal_to_journals(client, sweep)
    every = client.search_runs([experiment], asked, ViewType.ALL)
    assert len(every) == (2 if looks == "before" else 1)


@pytest.mark.long
@pytest.mark.faults
def test_an_exporter_that_stands_still_delays_no_end_and_the_next_sends_all(runs, client, sweep):
    specs = submitted(sweep, 1)
    attempts = [sweep.start(spec) for spec in specs]
    for attempt in attempts:
        sweep.measure(attempt, range(30))
    exporter = ExporterProcess(sweep.disk)
    until(lambda: has_points(client, sweep))
    os.kill(exporter.pid, signal.SIGSTOP)
    for attempt in attempts:
        sweep.measure(attempt, range(30, 60))
        sweep.finish(attempt, step=59)
    sweep.uncontrol()

    drained = exporter.drain(1.0)

    assert not exporter.alive()
    assert drained.points_waiting >= 2 * 30 * len(attempts)
    assert drained.problem == "the exporter did not finish in 1 s"
    with exporting(sweep.disk) as second:
        pass
    assert (second.unsynced_points, second.problem) == (0, None)
    assert_equal_to_journals(client, sweep)


@pytest.mark.long
@pytest.mark.faults
def test_a_database_that_another_process_locks_delays_and_loses_nothing(runs, client, sweep):
    """An exclusive lock, as of a backup or a browser of databases that was left open."""
    specs = submitted(sweep, 1)
    for spec in specs:
        sweep.measure(sweep.start(spec), range(30))
    exporter = ExporterProcess(sweep.disk)
    until(lambda: has_points(client, sweep))
    lock = sqlite3.connect(runs / "mlflow.db", isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        for trial in sweep.disk.trials():
            sweep.measure(trial.attempts()[0], range(30, 60))
        until(lambda: exporter.problem is not None)
        shown = CliRunner().invoke(app, ["status", sweep.disk.name, "--runs", str(runs)]).output
        assert "another process has locked the database" in " ".join(shown.split())
        assert exporter.alive()
    finally:
        lock.close()
    for trial in sweep.disk.trials():
        sweep.finish(trial.attempts()[0], step=59)
    sweep.uncontrol()

    drained = exporter.drain(120)

    assert (drained.points_waiting, drained.problem) == (0, None)
    assert_equal_to_journals(client, sweep)


def test_the_end_of_a_sweep_does_not_hang_on_a_dead_tracker(runs, sweep):
    (spec, *_) = submitted(sweep, 1)
    attempt = sweep.start(spec)
    sweep.measure(attempt, range(10))
    port = mlflow_server.free_port("127.0.0.1", 23_000)

    with exporting(sweep.disk, f"http://127.0.0.1:{port}", drain_s=600) as exporter:
        pass

    assert exporter.unsynced_points == 20
    assert exporter.problem is not None
    assert exporter.problem.startswith(f"nothing answers at http://127.0.0.1:{port}; ")
    assert sync_state.problems(sweep.disk) == {f"http://127.0.0.1:{port}": exporter.problem}

    sweep.finish(attempt, step=9)
    with exporting(sweep.disk, drain_s=600) as exporter:
        pass

    assert exporter.problem is None
    assert sync_state.problems(sweep.disk) == {}, "another tracker took it all"


@pytest.mark.long
@pytest.mark.browser
def test_the_page_groups_trials_and_compares_architectures(runs, sweep, tmp_path):
    specs = submitted(sweep, 2)
    for spec in specs:
        attempt = sweep.start(spec)
        sweep.measure(
            attempt,
            range(0, 100, 10),
            names=("train/loss", "valid/loss", "recall/train_wording/exact_match"),
        )
        sweep.finish(attempt, step=90)
    with exporting(sweep.disk):
        sweep.uncontrol()
    picture = tmp_path / "charts.png"
    name = sweep.disk.name
    try:
        with (
            screenshot.browser() as browser,
            mlflow_server.server(default_tracking_uri(runs), runs) as url,
        ):
            page = mlflow_server.Page(url=url, experiment_id=mlflow_server.experiment_id(url, name))
            browser.open(page.runs)
            text = browser.wait_for([name, "architecture", "memscale.state", "trials/done"])
            assert "shared view state" not in text.replace("viewing a shared view", ""), (
                "MLflow refused the view"
            )

            text = browser.wait_for([spec.trial_id[-12:][:6] for spec in specs])
            assert text.count("memory_plus 1m seed") == 2
            assert "1234567" in text

            browser.open(page.charts)
            browser.wait_for(
                ["Accuracy against size", "Curves", "Group: dense", "Group: memory_plus"]
            )
            browser.wait_for(["total_params vs. recall/train_wording/exact_match", "(train/loss)"])
            browser.screenshot(picture)
    except screenshot.MissingBrowserError as missing:
        pytest.skip(str(missing))

    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


@pytest.mark.long
@pytest.mark.browser
def test_the_parent_run_shows_question_answer_and_report(runs, client, sweep):
    (spec,) = submitted(sweep, 1)[:1]
    attempt = sweep.start(spec)
    sweep.measure(attempt, range(3))
    sweep.finish(attempt, step=2)
    numbers = {
        "question": "Which grows?",
        "answer": {"status": "told apart", "sentences": ["memory_plus is better by 0.25 nats."]},
        "rests_on": "Of 1 fitted curve: 1 adequate.",
        "next": [],
        "tables": [
            {
                "name": "fitted_curves",
                "rows": [
                    {"architecture": "dense", "outcome": "loss", "x": "total_params"}
                    | {"alpha": 0.3125, "verdict": "adequate", "why": "no pattern"}
                ],
            }
        ],
    }
    folder = sweep.disk.path / "report"
    folder.mkdir()
    (folder / "report.html").write_text("<h1>Curves of the sweep</h1>")
    (folder / "report.json").write_text(json.dumps(numbers))
    with exporting(sweep.disk):
        sweep.uncontrol()
    experiment = client.get_experiment_by_name(sweep.disk.name).experiment_id
    (parent,) = client.search_runs([experiment], "tags.`memscale.kind` = 'sweep'")
    try:
        with (
            screenshot.browser() as browser,
            mlflow_server.server(default_tracking_uri(runs), runs) as url,
        ):
            at = f"{url}/#/experiments/{experiment}/runs/{parent.info.run_id}"
            browser.open(at)
            browser.wait_for(["Which grows?", "Answer: told apart.", "better by 0.25 nats"])
            browser.wait_for(["fit/dense/loss_against_total_params/alpha", "0.3125"])
            browser.open(f"{at}/artifacts/report/report.html")
            browser.wait_for(["report.html", "report.json"])
            with browser.frame():
                browser.wait_for(["Curves of the sweep"])
    except screenshot.MissingBrowserError as missing:
        pytest.skip(str(missing))
