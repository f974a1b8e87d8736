"""Ranks that run several trials one after another, with real processes that count instead of training."""

import json
import os
import signal
import time
from pathlib import Path
from threading import Timer

import pytest

from orchestrator.control.failure_classifier import EXIT_CODES
from orchestrator.control.launcher_port import Launch
from orchestrator.node import supervisor as supervisor_module
from orchestrator.node.supervisor import NodeSupervisor
from orchestrator.records.processes import pids_with_environment
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome, TrialSpec

JOB = f"{Path(__file__).parent.parent / 'counting_job.py'}:run"
STATE_JOB = f"{Path(__file__).parent.parent / 'state_job.py'}:run"


class Node:
    """A supervisor of a sweep's folder. Tests share one: each has trials and a kind of its own."""

    def __init__(self, root):
        self.sweep = SweepDir(root / "s")
        self.test = ""
        # The fork server has imported numpy and torch, as for ranks that train.
        self.supervisor = NodeSupervisor(
            log=str(root / "node.log"),
            environment={"MEMSCALE_SWEEP_DIR": str(self.sweep.path)},
        )

    def trial(self, *, seed=0, **data):
        spec = TrialSpec(
            sweep="s",
            data={"source": "x", "test": self.test, **data},
            model={"architecture": "dense"},
            train={"tokens": 100, "batch_tokens": 10, "seq_len": 10},
            seed=seed,
        )
        trial = self.sweep.trial(spec.trial_id)
        if not trial.path.exists():
            trial.create(spec)
        return trial

    def launch(self, *, alike="same", cpus=1, share=None, gpu_ids=(), mps=False, job=JOB, **trial):
        folder = self.trial(**trial)
        launch = Launch(
            trial_id=folder.trial_id,
            trial_path=str(folder.path),
            attempt=folder.new_attempt({"submission": 1}).number,
            node_id="n",
            ranks=1,
            cpus=cpus,
            gpus=float(len(gpu_ids)),
            gpu_ids=gpu_ids,
            gpu_memory_share=share,
            mps=mps,
            cache="c",
            job=job,
            alike=alike and f"{self.test} {alike}",
        )
        self.supervisor.launch(launch, gpu_ids)
        return launch

    def code_of_end(self):
        (ended,) = wait_until(self.supervisor.poll)
        return ended.exit_codes[0]

    def run(self, **launch):
        """Run a trial to its good end; return its process."""
        launched = self.launch(**launch)
        assert self.code_of_end() == 0
        return process_of(launched)

    def left(self):
        return pids_with_environment("MEMSCALE_SWEEP_DIR", str(self.sweep.path))


def wait_until(look, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def process_of(launch):
    (process,) = registered(launch.folder)
    return process


def at_gate(launch):
    wait_until((Path(launch.trial_path) / "at-gate").exists)
    return process_of(launch)


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory):
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.supervisor.close()
    assert node.left() == []


@pytest.fixture
def node(shared_node, request, monkeypatch):
    monkeypatch.setattr(supervisor_module, "IDLE_S", 1000.0)  # nothing ends for this reason
    shared_node.test = request.node.name
    return shared_node


def test_a_rank_that_is_done_takes_the_next_trial_of_its_kind(node):
    one = node.launch(seed=0)
    assert node.code_of_end() == 0
    two = node.launch(seed=1)
    assert node.code_of_end() == 0

    assert process_of(one) == process_of(two)
    assert process_of(two).alive()
    for launch, seed in ((one, 0), (two, 1)):
        assert launch.folder.log.read_text().count("goes on from step 0") == 1
        lines = [json.loads(line) for line in launch.folder.journal.read_text().splitlines()]
        assert [line["metrics"]["train/loss"] for line in lines if "metrics" in line][:1] == [
            pytest.approx(seed * 1.000001 + 1 / (1 + seed))
        ]
        assert [line["event"] for line in lines if line.get("event") in ("start", "done")] == [
            "start",
            "done",
        ]


def test_a_trial_of_another_kind_or_other_resources_gets_a_new_process(node, monkeypatch):
    monkeypatch.setattr(
        node.supervisor._mps, "environment", lambda gpu: {"CUDA_MPS_PIPE_DIRECTORY": "/of-one"}
    )
    on_gpu = {"gpu_ids": ("0",)}
    others = [
        {"alike": "b"},
        {"cpus": 2},
        {"share": 0.5},
        {"gpu_ids": ("1",)},
        {"mps": True},
        {"alike": None},
    ]
    for seed, other in enumerate(others):
        waits = node.run(seed=2 * seed, **on_gpu)
        new = node.run(seed=2 * seed + 1, **{**on_gpu, **other})

        assert new != waits
        wait_until(lambda waits=waits: not waits.alive())  # it held what the other may need
    wait_until(lambda: not new.alive())  # it was to take one trial only


def test_trials_side_by_side_have_a_process_each_and_the_next_takes_any_that_waits(node):
    launches = [node.launch(seed=seed, gate_at=5) for seed in range(2)]
    processes = {at_gate(launch) for launch in launches}
    assert len(processes) == 2
    (Path(launches[0].trial_path) / "go").touch()
    assert node.code_of_end() == 0

    assert node.run(seed=2) == process_of(launches[0])
    (Path(launches[1].trial_path) / "go").touch()
    assert node.code_of_end() == 0


def test_a_rank_that_fails_ends_and_so_do_those_that_wait(node):
    fails = node.launch(seed=0, gate_at=5, fail={"1": "oom"})
    at_gate(fails)
    waits = node.run(seed=1)
    (Path(fails.trial_path) / "go").touch()
    assert node.code_of_end() > 0

    assert node.run(seed=2) not in (waits, process_of(fails))
    assert not process_of(fails).alive()
    wait_until(lambda: not waits.alive())


def test_kill_9_ends_the_current_trial_alone_which_resumes_in_a_new_process(node):
    done = node.launch(seed=0)
    assert node.code_of_end() == 0
    result = (Path(done.trial_path) / "result.json").read_bytes()
    killed = node.launch(seed=1, gate_at=5)
    process = at_gate(killed)
    assert process == process_of(done)
    os.kill(process.pid, signal.SIGKILL)

    assert node.code_of_end() == -signal.SIGKILL
    assert (Path(done.trial_path) / "result.json").read_bytes() == result
    again = node.launch(seed=1, gate_at=5)
    assert node.code_of_end() == 0
    assert again.attempt == 2
    assert process_of(again) != process
    assert "goes on from step 4" in again.folder.log.read_text()


def test_a_rank_killed_while_it_waits_costs_nobody_an_attempt(node):
    waits = node.run(seed=0)
    os.kill(waits.pid, signal.SIGKILL)
    wait_until(lambda: not waits.alive())

    assert node.run(seed=1) != waits
    assert node.supervisor.poll() == []


def test_a_rank_that_was_asked_to_leave_takes_no_other_trial(node):
    node.run(seed=0)
    launch = node.launch(seed=1, gate_at=5)
    process = at_gate(launch)
    node.supervisor.stop(launch.key, hard=False)
    assert node.code_of_end() == EXIT_CODES[Outcome.INTERRUPTED]

    assert node.run(seed=2) != process


def test_a_stop_that_comes_too_late_still_ends_the_process(node):
    process = node.run(job=STATE_JOB, is_told_to_stop=True)

    wait_until(lambda: not process.alive())


def launch_while_it_puts_itself_in_order(node, before, **launch):
    """Launch a trial whose predecessor's process is not in order yet; return both processes."""
    first = node.launch(seed=0, job=STATE_JOB, slow_to_go=True)
    assert node.code_of_end() == 0
    process = process_of(first)
    then = Timer(0.3, before, [process, Path(first.trial_path) / "gone"])
    then.start()
    following = node.launch(seed=1, job=STATE_JOB, **launch)
    then.join()
    assert node.code_of_end() == 0
    return process, process_of(following)


def test_a_trial_waits_for_the_process_of_its_kind_to_be_in_order(node):
    first, following = launch_while_it_puts_itself_in_order(node, lambda _, gone: gone.touch())

    assert first == following


def test_a_trial_of_another_kind_does_not_wait_for_it(node):
    first, other = launch_while_it_puts_itself_in_order(node, lambda _, gone: None, alike="b")

    assert first != other
    wait_until(lambda: not first.alive())


def test_a_trial_that_waits_for_a_process_that_dies_gets_another(node):
    first, other = launch_while_it_puts_itself_in_order(
        node, lambda process, gone: os.kill(process.pid, signal.SIGKILL)
    )

    assert first != other
    assert node.supervisor.poll() == []


def test_a_trial_waits_for_a_process_that_is_never_in_order_for_some_time_only(node, monkeypatch):
    monkeypatch.setattr(supervisor_module, "IDLE_S", 0.5)
    first, other = launch_while_it_puts_itself_in_order(node, lambda _, gone: None)

    assert first != other
    assert not first.alive()


def test_a_trial_that_waits_for_a_process_ends_if_it_is_told_to(node):
    first = node.launch(seed=0, job=STATE_JOB, slow_to_go=True)
    assert node.code_of_end() == 0

    def end():
        (key,) = node.supervisor._attempts
        node.supervisor._fork_server.send({"signal": f"{key}/0", "number": int(signal.SIGTERM)})

    then = Timer(0.3, end)
    then.start()
    following = node.launch(seed=1, job=STATE_JOB)
    then.join()

    assert node.code_of_end() == -signal.SIGTERM
    assert registered(following.folder) == []
    (Path(first.trial_path) / "gone").touch()


def test_a_trial_that_waits_for_a_process_that_keeps_a_setting_gets_another(node):
    process = node.run(seed=0, job=STATE_JOB, keeps_dtype=True)

    assert node.run(seed=1, job=STATE_JOB) != process


def test_a_rank_waits_for_some_time_only(node, monkeypatch):
    monkeypatch.setattr(supervisor_module, "IDLE_S", 0.2)
    waits = node.run(seed=0)

    wait_until(lambda: not waits.alive())
    assert node.run(seed=1) != waits


def test_what_a_trial_did_to_its_process_is_gone_for_the_next(node):
    found = []
    for seed in range(2):
        launch = node.launch(seed=seed, job=STATE_JOB)
        assert node.code_of_end() == 0
        found.append(json.loads((launch.folder.path / "state.json").read_text()))
        assert "a warning that comes once" in launch.folder.log.read_text()

    assert found[0] == found[1]
    assert found[0]["pid"] == found[1]["pid"]


def test_a_trial_that_leaves_a_setting_behind_ends_its_process(node):
    process = node.run(seed=0, job=STATE_JOB, keeps_dtype=True)

    wait_until(lambda: not process.alive())


def test_a_rank_that_waits_dies_with_the_fork_server(node):
    waits = node.run(seed=0)
    fork_server = int(Path(f"/proc/{waits.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(fork_server, signal.SIGKILL)

    wait_until(lambda: not waits.alive())
