"""A Ray cluster that was there before: gangs over its nodes, several sweeps at once, strangers, controllers that live on it.

Two nodes of two cores and two pretended GPUs each, for the whole file.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.control import node_exclusion
from orchestrator.control.loop import Controller
from orchestrator.control.status import status_from_disk
from orchestrator.launchers.local import ProcessLauncher
from orchestrator.launchers.ray import RayLauncher
from orchestrator.records.processes import pids_writing_below
from orchestrator.records.rank_registry import TRAIN, registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, TrialSpec, TrialState
from orchestrator.scheduling.demand import Demand
from orchestrator.scheduling.fair_share import SweepUsage
from orchestrator.sweep.load import load_sweep

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]
JOB = f"{Path(__file__).parents[1] / 'unit' / 'orchestrator' / 'counting_job.py'}:run"

RUN_CONTROLLER = Path(__file__).with_name("run_controller.py")


def wait_until(look, timeout_s=600.0):
    """Return the first true value of `look`.

    Long, because what is waited for starts six processes beside those of other tests.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start two nodes; nothing of this user's other Rays is touched."""
    with pytest.MonkeyPatch.context() as patch:
        root = Path("/tmp") / f"rc-{os.getpid()}"  # sockets allow only short paths
        (root / "ray").mkdir(parents=True)
        patch.setenv("RAY_TMPDIR", str(root))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        from ray.cluster_utils import Cluster

        found = Cluster()
        try:
            node = {"num_cpus": 2, "num_gpus": 2}
            found.add_node(**node, include_dashboard=False)
            found.add_node(**node)
            yield found
        finally:
            found.shutdown()
            shutil.rmtree(root, ignore_errors=True)


def add(sweep, seed, data=None, **resources):
    spec = TrialSpec(
        sweep=sweep.name,
        data={"source": "x", **(data or {})},
        model={"architecture": "dense"},
        train={"tokens": 50, "batch_tokens": 10, "seq_len": 10},
        seed=seed,
        resources=Resources(**resources),
    )
    sweep.trial(spec.trial_id).create(spec)
    return sweep.trial(spec.trial_id)


def at_gate(trials):
    return [trial for trial in trials if (trial.path / "at-gate").exists()]


@pytest.mark.long
def test_a_gang_fills_whole_nodes_ends_as_one_and_leaves_strangers_alone(cluster, tmp_path):
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    sweep = SweepDir(tmp_path / "gang")
    gang = add(sweep, 0, {"gate_at": 3, "gate_all": True}, ranks=4, gpus=4.0)
    seen = {}

    class BesideAStranger(RayLauncher):
        def start(self):
            super().start()
            seen["stranger"] = placement_group([{"CPU": 1, "GPU": 1}])
            assert seen["stranger"].wait(60)
            wait_until(lambda: self.exchange_usage(SweepUsage()).foreign_load)

    controller = Controller(
        sweep,
        submission=1,
        trial_ids=[gang.trial_id],
        launcher=BesideAStranger(sweep, address=cluster.address, job=JOB),
        cache=tmp_path / "cache",
        job=JOB,
    )

    def disturb(status):
        """The stranger goes once it was noticed; then one rank of the second node is killed."""
        (trial,) = status.trials
        if "wait" not in seen and "1 of 2 nodes empty" in trial.wait:
            seen["wait"] = trial.wait
            remove_placement_group(seen["stranger"])
        gates = [gang.path / name for name in ("at-gate", "at-gate-1", "at-gate-2", "at-gate-3")]
        if "killed" not in seen and all(gate.exists() for gate in gates):
            record = json.loads((gang.attempt(1).path / "seen-3.json").read_text())
            os.kill(record["pid"], signal.SIGKILL)
            seen["killed"] = registered(gang.attempt(1))

    status = controller.run(disturb)

    assert status.complete
    assert "needs 4 GPUs and 4 cores on 2 whole nodes" in seen["wait"]
    first, second = (gang.attempt(number) for number in (1, 2))
    assert first.end()["outcome"] == "killed"
    assert first.end()["exit_codes"]["3"] == -signal.SIGKILL
    assert len(first.end()["exit_codes"]) == 4
    assert not any(rank.alive() for rank in seen["killed"])
    assert second.end()["outcome"] == "done"
    # Of the first attempt, in which all wait for one another. In the second a rank that starts when
    # rank 0 is done has nothing to do.
    gpus = [json.loads((first.path / f"seen-{rank}.json").read_text())["gpus"] for rank in range(4)]
    assert gpus == ["0", "1", "0", "1"]
    assert not ray.is_initialized()


@pytest.mark.long
def test_a_node_on_which_three_kinds_of_trials_die_is_left_out_and_named(cluster, tmp_path):
    sweep = SweepDir(tmp_path / "blames")
    # Without GPUs they go where there are none first.
    trials = [
        add(sweep, kind, {"dies_where": "BAD_NODE", "kind": kind}, gpus=0) for kind in range(16)
    ]
    bad = cluster.add_node(num_cpus=2, num_gpus=0, env_vars={"BAD_NODE": "1"})
    try:
        status = Controller(
            sweep,
            submission=1,
            trial_ids=[trial.trial_id for trial in trials],
            launcher=RayLauncher(sweep, address=cluster.address, job=JOB),
            cache=tmp_path / "cache",
            job=JOB,
        ).run()
    finally:
        cluster.remove_node(bad)

    assert status.complete
    assert {trial.state() for trial in trials} == {TrialState.DONE}
    ((name, why),) = node_exclusion.excluded(sweep.excluded_nodes()).items()
    assert name == f"{socket.gethostname()}-{bad.node_id[:8]}"
    assert "3 trials of different kinds failed there and none was done since: " in why
    killed = [trial for trial in trials if trial.attempt(1).end()["outcome"] == "killed"]
    assert len(killed) >= 3
    assert sum(why.count(trial.trial_id) for trial in killed) == 3


@pytest.mark.slow
def test_two_sweeps_share_a_cluster_evenly_and_know_of_each_other(cluster, tmp_path):
    sweeps = [SweepDir(tmp_path / name) for name in ("early", "late")]
    early, late = (
        [add(sweep, seed, {"gate_at": 3}, gpus=0) for seed in range(6)] for sweep in sweeps
    )
    controllers = []

    def submit(sweep):
        with (sweep.path / "controller.log").open("wb") as log:
            command = [sys.executable, str(RUN_CONTROLLER), str(sweep.path), "1", "ray"]
            controllers.append(
                subprocess.Popen([*command, cluster.address, JOB], stdout=log, stderr=log)
            )

    try:
        submit(sweeps[0])
        wait_until(lambda: len(at_gate(early)) == 4)  # every core of the cluster
        submit(sweeps[1])
        wait_until(
            lambda: any("1 other sweep" in t.wait for t in status_from_disk(sweeps[1]).trials)
        )
        for trial in at_gate(early)[:2]:
            (trial.path / "go").touch()
        # Two cores are free. Early holds its half and leaves them to late, although it asked first.
        wait_until(lambda: len(at_gate(late)) == 2)
        assert len(at_gate(early)) == 4
        assert any("1 other sweep" in trial.wait for trial in status_from_disk(sweeps[0]).trials)
        for trial in [*early, *late]:
            (trial.path / "go").touch()
        for controller, sweep in zip(controllers, sweeps, strict=True):
            assert controller.wait(timeout=200) == 0, (sweep.path / "controller.log").read_text()
    finally:
        for controller in controllers:
            controller.kill()
            controller.wait()


@pytest.mark.long
def test_a_priority_and_a_reservation_of_others_are_heeded(cluster, tmp_path):
    """One launcher, and lines that other controllers might have written."""
    sweep = SweepDir(tmp_path / "own")
    sweep.path.mkdir()
    launcher = RayLauncher(sweep, address=cluster.address, job=JOB)
    launcher.start()
    try:
        from orchestrator.launchers.cluster_registry import ClusterRegistry
        from orchestrator.launchers.ray_connect import RayKeyValueStore

        nodes = launcher.nodes()
        wants = SweepUsage(wants_cpus=4)
        alone = launcher.exchange_usage(wants)
        assert (alone.foreign_load, alone.grant.closed) == ([], frozenset())
        assert alone.grant.allows(wants, Demand(cpus=1))

        other = ClusterRegistry(RayKeyValueStore(), "/shared/runs/other")
        other.exchange(SweepUsage(priority=1, wants_cpus=3, keeps=(nodes[0].node_id,)))
        beside = launcher.exchange_usage(wants)

        assert beside.grant.cpus == pytest.approx(1)
        assert {taken.node_id for taken in beside.foreign_load} == {nodes[0].node_id}
        other.leave()
        assert launcher.exchange_usage(wants).grant.closed == frozenset()
    finally:
        launcher.close()


TRAINED = """
name: {name}
data: {{source: biographies, style: compact, n_people: 60}}
train: {{tokens: {tokens}, batch_tokens: 256, seq_len: 32, lr: 1.0e-2}}
model: {{architecture: dense, preset: d12}}
resources: {{gpus: 0}}
logging: {{every_steps: 1, evaluations: 1, checkpoint_every_s: 1000}}
seeds: {seeds}
"""


def trained_sweep(folder, name, *, tokens, seeds):
    file = folder / f"{name}.yaml"
    file.write_text(TRAINED.format(name=name, tokens=tokens, seeds=seeds))
    sweep = SweepDir(folder / "runs" / name)
    for spec in load_sweep(file).trials:
        sweep.trial(spec.trial_id).create(spec)
    return sweep


def losses(trial):
    return {step: value for step, (_, value) in trial.metrics()["train/loss"].items()}


@pytest.mark.long
def test_a_higher_priority_makes_others_checkpoint_and_wait_and_changes_no_number(
    cluster, tmp_path
):
    low = trained_sweep(tmp_path, "low", tokens=512_000, seeds=[0, 1, 2, 3])
    high = trained_sweep(tmp_path, "high", tokens=51_200, seeds=[0, 1])
    controllers = []

    def submit(sweep, priority):
        with (sweep.path / "controller.log").open("wb") as log:
            command = [sys.executable, str(RUN_CONTROLLER), str(sweep.path), "1", "ray"]
            command += [cluster.address, TRAIN, str(priority)]
            controllers.append(subprocess.Popen(command, stdout=log, stderr=log))

    try:
        submit(low, 0)
        wait_until(lambda: all((t.heartbeat() or {}).get("step", 0) > 20 for t in low.trials()))
        submit(high, 1)
        launches = wait_until(
            lambda: [found for t in high.trials() for a in t.attempts() if (found := a.launch())]
        )
        started = [launch["started_at"] for launch in launches]
        assert not any(trial.result() for trial in low.trials()), "low was to hold every core"
        for controller, sweep in zip(controllers[::-1], (high, low), strict=True):
            assert controller.wait(timeout=600) == 0, (sweep.path / "controller.log").read_text()
    finally:
        for controller in controllers:
            controller.kill()
            controller.wait()
    attempts = {trial: [a.end() for a in trial.attempts()] for trial in low.trials()}
    yielded = [trial for trial, ends in attempts.items() if ends[0]["outcome"] == "yielded"]
    assert len(yielded) == 2, "as few as needed"
    for trial, ends in attempts.items():
        assert [end["outcome"] for end in ends] == ["yielded"] * (trial in yielded) + ["done"]
        steps = [
            line.step
            for a in trial.attempts()
            for line in a.lines()
            if line.metrics.get("train/loss")
        ]
        assert steps == list(range(1, 2001)), "every step once"
    first_end = min(attempts[trial][0]["ended_at"] for trial in yielded)
    assert (
        "made way for a sweep of higher priority; no step is lost"
        in attempts[yielded[0]][0]["reason"]
    )
    assert first_end <= min(started) + 1.0, "it gave the room"

    alone = SweepDir(tmp_path / "alone" / "low")
    spec = yielded[0].spec()
    alone.trial(spec.trial_id).create(spec)
    reference = Controller(
        alone,
        submission=1,
        trial_ids=[spec.trial_id],
        launcher=ProcessLauncher(alone, cpus=1),
        cache=tmp_path / "runs" / "low" / "cache",
    )
    assert reference.run().complete
    assert losses(alone.trial(spec.trial_id)) == losses(yielded[0])
    final = [t.result()["metrics"]["train/loss"] for t in (alone.trial(spec.trial_id), yielded[0])]
    assert final[0] == final[1]


SWEEP = """
# Question: does it outlive the terminal?
name: outlives
data: {source: biographies, style: compact, n_people: 60}
train: {tokens: 25_600, batch_tokens: 256, seq_len: 32, lr: 1.0e-2}
model: {architecture: dense, preset: d12}
trials:
  - grid: {train.lr: [1.0e-2, 2.0e-2]}
  - set: {train.tokens: 102_400_000}
resources: {gpus: 0}
logging: {every_steps: 5, evaluations: 1, checkpoint_every_s: 0.1}
"""


@pytest.fixture
def client_address(monkeypatch):
    """A cluster as `ray start` makes it, reached from elsewhere; that of `cluster_utils` has no agent for clients."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    folder = Path("/tmp") / f"re-{os.getpid()}"
    folder.mkdir()
    port, client_port = free_port(), free_port()
    with (folder / "log").open("wb") as log:
        head = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                *(f"--port={port}", f"--ray-client-server-port={client_port}", "--num-cpus=2"),
                *("--node-ip-address=127.0.0.1", f"--temp-dir={folder}", "--num-gpus=0"),
                *("--include-dashboard=false", "--dashboard-agent-listen-port=0"),
                "--object-store-memory=80000000",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: b"Ray runtime started" in (folder / "log").read_bytes())
        yield f"ray://127.0.0.1:{client_port}"
    finally:
        head.terminate()  # `ray start --block` ends what it started
        head.wait(60)
        for pid in pids_writing_below(folder):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_a_detached_sweep_lives_on_the_cluster_and_survives_its_controller(cluster, tmp_path):
    outlives(cluster.address, tmp_path)


@pytest.mark.slow
def test_the_ray_client_submits_from_elsewhere(client_address, tmp_path):
    outlives(client_address, tmp_path)


def outlives(address, tmp_path):
    """Submit, kill the controller, and see the cluster bring the sweep to its end; but for a trial that would take hours.

    Its log is read, and it is cancelled, by processes that know the folder only.
    """
    (tmp_path / "outlives.yaml").write_text(SWEEP)
    disk = SweepDir(tmp_path / "runs" / "outlives")

    def memscale(*words):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "orchestrator.cli", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "in the background" in memscale(
        "submit", "outlives.yaml", "--address", address, "--detach"
    )
    first = disk.controller()
    (tmp_path / "outlives.yaml").unlink()  # all it needs is in the folder
    (long,) = (t for t in disk.trials() if t.spec().train["tokens"] > 1_000_000)
    wait_until(long.checkpoint_step)
    os.kill(first["pid"], signal.SIGKILL)

    def only_the_long_one_is_left():
        states = [trial.state() for trial in disk.trials()]
        again = disk.controller()["pid"] != first["pid"] and (long.heartbeat() or {}).get("step")
        return again and states.count(TrialState.DONE) == 2 and long.state() is TrialState.RUNNING

    wait_until(only_the_long_one_is_left)
    assert "1 running" in memscale("status", "outlives")
    said = memscale("logs", long.trial_id)
    assert f"attempt {long.last_attempt()}: " in said
    assert "── node_lost: " in memscale("logs", long.trial_id, "--attempt", "1")
    assert memscale("cancel", "outlives") == "Asked 1 unfinished trial of outlives to stop.\n"

    wait_until(lambda: disk.controller().get("ended_at") is not None)
    status = memscale("status", "outlives")
    assert "2 done" in status
    assert "1 cancelled" in status
    ends = [a.end()["outcome"] for trial in disk.trials() for a in trial.attempts()]
    assert ends.count("done") == 2
    assert set(ends) == {"done", "node_lost", "cancelled"}
    assert long.attempts()[-1].end()["outcome"] == "cancelled"
    assert long.checkpoint_step() > 0
    assert "── cancelled: " in memscale("logs", long.trial_id)
    assert "2 done" in (disk.path / "controller.log").read_text()


def test_no_cluster_at_an_address_is_said_with_what_to_do(tmp_path):
    from orchestrator.records.errors import ExperimentError

    launcher = RayLauncher(SweepDir(tmp_path / "s"), address="127.0.0.1:1", job=JOB)

    with pytest.raises(ExperimentError, match=r"no Ray cluster could be joined .*ray://HOST:10001"):
        launcher.start()


def test_a_submission_to_no_cluster_writes_nothing(tmp_path, monkeypatch):
    (tmp_path / "outlives.yaml").write_text(SWEEP)
    words = ("submit", "outlives.yaml", "--address", "127.0.0.1:1")

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)

    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), "told, not raised"
    assert "no Ray cluster could be joined" in done.stderr
    assert not (tmp_path / "runs").exists()
