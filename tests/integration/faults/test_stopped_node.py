"""A node that stands still (SIGSTOP: a suspended machine, a frozen container) and wakes up later.

Nobody can tell it from a dead one. So its attempts are closed and made elsewhere, and what wakes up finds that it is fenced.
"""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.control.loop import Controller
from orchestrator.launchers import ray as ray_launcher
from orchestrator.launchers.local import ProcessLauncher
from orchestrator.launchers.ray import RayLauncher
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.sweep.load import load_sweep

pytestmark = [
    pytest.mark.integration,
    pytest.mark.faults,
    pytest.mark.long,
    pytest.mark.timeout(1500),
]
STEPS = 4_000  # longer than any silence here, so that no trial ends before it is noticed
SWEEP = f"""
name: still
data: {{source: biographies, style: compact, n_people: 60}}
train: {{tokens: {STEPS * 256}, batch_tokens: 256, seq_len: 32, lr: 1.0e-2}}
model: {{architecture: dense, preset: d12}}
resources: {{gpus: 0}}
logging: {{every_steps: 1, evaluations: 1, checkpoint_every_s: 1}}
seeds: [0, 1]
"""
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
}


@pytest.fixture
def nodes(monkeypatch):
    """Start two Ray nodes of one core each; the first has the head."""
    root = Path("/tmp") / f"rs-{os.getpid()}"  # sockets allow only short paths
    (root / "ray").mkdir(parents=True)
    for name, value in {**SETTINGS, "RAY_TMPDIR": str(root)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=1, include_dashboard=False)
        yield cluster, cluster.add_node(num_cpus=1)
    finally:
        cluster.shutdown()
        shutil.rmtree(root, ignore_errors=True)


def processes_of(node):
    """Return the raylet of a node and all that descends from it."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [raylet, *raylet.children(recursive=True)]


class Fault:
    """What is done to the second node, as the controller tells how the sweep goes."""

    def __init__(self, sweep, node):
        self.sweep, self.node = sweep, node
        self.stopped, self.rank, self.trial, self.woke = [], None, None, False

    def trial_there(self):
        """Return the trial that trains on the node, and its rank, once it has made some steps."""
        pids = {process.pid for process in processes_of(self.node)}
        for trial in self.sweep.trials():
            if (trial.heartbeat() or {}).get("step", 0) > 50 and trial.checkpoint_step():
                for rank in registered(trial.attempt(1)):
                    if rank.pid in pids:
                        return trial, psutil.Process(rank.pid)
        return None

    def stop(self, which):
        """Stop these processes of the node."""
        self.stopped = which
        for process in which:
            process.send_signal(signal.SIGSTOP)

    def wake(self, which):
        for process in which:
            with suppress(psutil.NoSuchProcess):  # some end while others are woken
                process.send_signal(signal.SIGCONT)

    def close(self):
        self.wake(self.stopped)


def sweep_in(folder):
    (folder / "still.yaml").write_text(SWEEP)
    sweep = SweepDir(folder / "runs" / "still")
    sweep.add_trials(load_sweep(folder / "still.yaml").trials)
    return sweep


def run(sweep, launcher, tell=lambda status: None):
    return Controller(
        sweep,
        submission=1,
        trial_ids=[trial.trial_id for trial in sweep.trials()],
        launcher=launcher,
        cache=sweep.path.parent / "cache",
    ).run(tell)


def ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(look, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def losses(sweep):
    return {
        trial.trial_id: {step: loss for step, (_, loss) in trial.metrics()["train/loss"].items()}
        for trial in sweep.trials()
    }


def assert_done_once(sweep, trial, folder):
    """Every trial has one result, with the numbers of a sweep that nobody disturbed."""
    for one in sweep.trials():
        outcomes = [attempt.end()["outcome"] for attempt in one.attempts()]
        assert outcomes == (["node_lost", "done"] if one == trial else ["done"])
        assert one.result()["attempt"] == len(outcomes)
        assert [path for path in one.path.rglob(".*") if path.name != ".tmp"] == []
    folder.mkdir()
    undisturbed = sweep_in(folder)
    assert run(undisturbed, ProcessLauncher(undisturbed, cpus=2)).complete
    assert losses(sweep) == losses(undisturbed)
    assert [len(steps) for steps in losses(sweep).values()] == [STEPS, STEPS]


def test_a_node_that_stands_still_is_fenced_and_ends_when_it_wakes(nodes, tmp_path):
    cluster, node = nodes
    sweep = sweep_in(tmp_path)
    fault, before = Fault(sweep, node), {}

    def disturb(status):
        if fault.trial is None and (found := fault.trial_there()):
            fault.trial, fault.rank = found
            fault.stop(processes_of(node))
            before["journal"] = fault.trial.attempt(1).journal.read_bytes()
        again = fault.trial is not None and not fault.woke and fault.trial.attempt(2)
        if again and sum(1 for line in again.lines() if line.metrics) > 20:
            # The rank alone at first: nobody is there to end it.
            fault.woke = True
            fault.wake([fault.rank])
            wait_until(lambda: ended(fault.rank))
            journal = fault.trial.attempt(1).journal.read_bytes()
            assert journal.startswith(before["journal"])
            # It may have stood still within a write, which then ends; nothing follows that line.
            assert journal[len(before["journal"]) :].count(b"\n") <= 1
            assert fault.trial.attempt(1).error() is None
            fault.wake(fault.stopped)

    try:
        assert run(sweep, RayLauncher(sweep, address=cluster.address), disturb).complete
        assert fault.woke, "the trial was to be made again while the node stood still"
        # A raylet that wakes hears that it was given up, and ends. Its own children look whether it
        # is there, so it must be reaped, as an init process does.
        node.all_processes["raylet"][0].process.wait(60)
        wait_until(lambda: all(ended(process) for process in fault.stopped))
    finally:
        fault.close()
    assert "stands still" in fault.trial.attempt(1).end()["reason"]
    assert_done_once(sweep, fault.trial, tmp_path / "undisturbed")


def test_a_supervisor_that_stands_still_is_replaced(nodes, tmp_path, monkeypatch):
    cluster, node = nodes
    sweep = sweep_in(tmp_path)
    fault = Fault(sweep, node)
    monkeypatch.setattr(ray_launcher, "SILENT_S", 5.0)

    def disturb(status):
        if fault.trial is None and (found := fault.trial_there()):
            fault.trial, fault.rank = found
            supervisor = fault.rank.parent().parent()
            assert "NodeSupervisor" in " ".join(supervisor.cmdline())
            fault.stop([supervisor])

    try:
        assert run(sweep, RayLauncher(sweep, address=cluster.address), disturb).complete
        wait_until(lambda: all(ended(process) for process in [*fault.stopped, fault.rank]))
    finally:
        fault.close()
    assert "did not answer for 5 s" in fault.trial.attempt(1).end()["reason"]
    assert_done_once(sweep, fault.trial, tmp_path / "undisturbed")
