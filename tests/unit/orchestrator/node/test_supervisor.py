"""The supervisor and its fork server, with real processes that count instead of training."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from orchestrator.control.failure_classifier import EXIT_CODES
from orchestrator.control.launcher_port import Launch
from orchestrator.node import fork_server_process, log_cap
from orchestrator.node.supervisor import AFTER_FAILURE_S, CHECK_S, STOP_TIMEOUT_S, NodeSupervisor
from orchestrator.records.errors import ExperimentError
from orchestrator.records.processes import ProcessId, pids_with_environment
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome, TrialSpec

JOB = f"{Path(__file__).parent.parent / 'counting_job.py'}:run"


class Node:
    """A supervisor of a sweep's folder, with a clock that jumps."""

    def __init__(self, root):
        self.sweep = SweepDir(root / "s")
        self.skipped_s = 0.0
        self.supervisor = NodeSupervisor(
            log=str(root / "node.log"),
            environment={"MEMSCALE_SWEEP_DIR": str(self.sweep.path)},
            job=JOB,
            clock=lambda: time.monotonic() + self.skipped_s,
        )

    def launch(
        self, *, ranks=1, gpus=0.0, gpu_ids=(), mps=False, seed=0, hang_after_s=None, **data
    ):
        spec = TrialSpec(
            sweep="s",
            data={"source": "x", **data},
            model={"architecture": "dense"},
            train={"tokens": 100, "batch_tokens": 10, "seq_len": 10},
            seed=seed,
        )
        trial = self.sweep.trial(spec.trial_id)
        trial.create(spec)
        attempt = trial.new_attempt({"submission": 1})
        launch = Launch(
            trial_id=spec.trial_id,
            trial_path=str(trial.path),
            attempt=attempt.number,
            node_id="n",
            ranks=ranks,
            cpus=1,
            gpus=gpus,
            gpu_ids=gpu_ids,
            cache="c",
            mps=mps,
            hang_after_s=hang_after_s,
            job=JOB,
        )
        self.supervisor.launch(launch, gpu_ids)
        return launch

    def wait_for_end(self):
        return wait_until(self.supervisor.poll)

    def left(self):
        return pids_with_environment("MEMSCALE_SWEEP_DIR", str(self.sweep.path))


def wait_until(look, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def at_gate(launch):
    wait_until((Path(launch.trial_path) / "at-gate").exists)
    (process,) = [p for p in registered(launch.folder) if p.alive()][:1]
    return process


def at_checkpoint(node, launch):
    at_gate(launch)
    node.supervisor.stop(launch.key, hard=False)
    trial = Path(launch.trial_path)
    wait_until((trial / "at-checkpoint").exists)
    return trial


def wait_until_it_wrote(trial):
    """Wait for a write that began after now."""
    for _ in range(2):
        before = (trial / "large").stat().st_mtime_ns
        wait_until(lambda: (trial / "large").stat().st_mtime_ns > before)  # noqa: B023


def seen(launch, rank=0):
    return json.loads((launch.folder.path / f"seen-{rank}.json").read_text())


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.supervisor.close()
    assert node.left() == []


def test_ranks_run_with_their_own_log_and_without_gpus_that_they_do_not_hold(node):
    launch = node.launch(ranks=2)

    (ended,) = node.wait_for_end()

    assert (ended.trial_id, ended.attempt, ended.exit_codes) == (launch.trial_id, 1, {0: 0, 1: 0})
    log = launch.folder.log.read_text()
    assert "rank 0 of 2 goes on from step 0" in log
    assert "rank 1 of 2 goes on from step 0" in log
    assert seen(launch)["gpus"] == ""
    assert seen(launch)["cwd"] == str(Path.cwd())
    assert {p.pid for p in registered(launch.folder)} == {
        seen(launch, 0)["pid"],
        seen(launch, 1)["pid"],
    }


def test_gpus_are_dealt_out_to_the_ranks(node):
    cases = [
        (1, ("3",), ["3"]),
        (2, ("0", "1"), ["0", "1"]),
        (2, ("5",), ["5", "5"]),
        (2, ("0", "1", "2", "3"), ["0,1", "2,3"]),
        (1, ("0", "1"), ["0,1"]),
    ]
    for seed, (ranks, gpu_ids, shares) in enumerate(cases):
        launch = node.launch(ranks=ranks, gpus=float(len(gpu_ids)), gpu_ids=gpu_ids, seed=seed)
        node.wait_for_end()

        assert [seen(launch, rank)["gpus"] for rank in range(ranks)] == shares


def test_the_record_of_an_attempt_on_a_gpu_has_the_workspace_of_its_products(node, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    launch = node.launch(gpus=1.0, gpu_ids=("3",))
    node.wait_for_end()

    record = json.loads((launch.folder.path / "environment.json").read_text())

    assert record["variables"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert record["variables"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_ranks_that_share_a_gpu_are_clients_of_mps_where_it_works(node, monkeypatch):
    asked = []
    monkeypatch.setattr(
        node.supervisor._mps,
        "environment",
        lambda gpu: asked.append(gpu) or {"CUDA_MPS_PIPE_DIRECTORY": "/of-the-daemon"},
    )
    whole = node.launch(gpus=1.0, gpu_ids=("0",), seed=0)
    node.wait_for_end()
    shared = node.launch(gpus=0.5, gpu_ids=("1",), mps=True, seed=1)
    node.wait_for_end()

    assert (seen(whole)["mps"], seen(shared)["mps"]) == (None, "/of-the-daemon")
    assert asked == ["1"]


@pytest.mark.parametrize(("shares", "asked"), [(True, ["1"]), (False, [])])
def test_mps_is_there_before_the_first_rank_where_gpus_will_be_shared(
    node, monkeypatch, shares, asked
):
    seen: list[str] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    monkeypatch.setattr(node.supervisor._mps, "environment", lambda gpu: seen.append(gpu) or {})
    monkeypatch.setattr(node.supervisor, "_shares_gpus", shares)

    node.supervisor.wait_until_ready()

    assert seen == asked


def test_several_attempts_run_side_by_side(node):
    launches = [node.launch(seed=seed, gate_at=5) for seed in range(3)]
    for launch in launches:
        at_gate(launch)
        (Path(launch.trial_path) / "go").touch()

    ended = []
    wait_until(lambda: ended.extend(node.supervisor.poll()) or len(ended) == 3)

    assert {e.trial_id for e in ended} == {launch.trial_id for launch in launches}


def test_stop_lets_a_rank_checkpoint(node):
    launch = node.launch(gate_at=4)
    at_gate(launch)
    node.supervisor.stop(launch.key, hard=False)

    (ended,) = node.wait_for_end()

    assert ended.exit_codes == {0: EXIT_CODES[Outcome.INTERRUPTED]}
    assert (Path(launch.trial_path) / "checkpoints" / "step-00000003").exists()


def test_rank_that_does_not_heed_a_stop_is_killed_after_a_while(node):
    launch = node.launch(gate_at=4, deaf=True)
    at_gate(launch)
    node.supervisor.stop(launch.key, hard=False)
    assert node.supervisor.poll() == []

    node.skipped_s = STOP_TIMEOUT_S
    (ended,) = node.wait_for_end()

    assert (ended.exit_codes, ended.killed_by_launcher) == ({0: -signal.SIGKILL}, {0})


def test_a_large_checkpoint_may_take_longer_than_other_stops(node):
    launch = node.launch(gate_at=4, writes=True)
    trial = at_checkpoint(node, launch)
    for _ in range(3):
        node.skipped_s += 2 * STOP_TIMEOUT_S
        assert node.supervisor.poll() == []
        wait_until_it_wrote(trial)
    (trial / "go").touch()

    (ended,) = node.wait_for_end()

    assert ended.exit_codes == {0: EXIT_CODES[Outcome.INTERRUPTED]}
    assert (trial / "checkpoints" / "step-00000003").exists()


def test_rank_whose_checkpoint_stands_still_is_killed(node):
    launch = node.launch(gate_at=4, writes=True)
    trial = at_checkpoint(node, launch)
    (trial / "stuck").touch()
    wait_until((trial / "is-stuck").exists)
    node.skipped_s += CHECK_S
    assert node.supervisor.poll() == []  # what it had written until now
    node.skipped_s += STOP_TIMEOUT_S - 1.0
    assert node.supervisor.poll() == []

    node.skipped_s += 1.0
    (ended,) = node.wait_for_end()

    assert (ended.exit_codes, ended.killed_by_launcher) == ({0: -signal.SIGKILL}, {0})
    assert "after step 3 of 10 (checkpoint)" in ended.last_positions[0]


def test_a_checkpoint_does_not_keep_ranks_whose_others_have_failed(node):
    launch = node.launch(gate_at=4, writes=True)
    at_checkpoint(node, launch)
    node.supervisor.end_with(launch.key, failed=True)

    node.skipped_s += AFTER_FAILURE_S
    (ended,) = node.wait_for_end()

    assert ended.exit_codes == {0: -signal.SIGKILL}


def test_ranks_of_a_part_end_with_those_of_another_node(node):
    launch = node.launch(gate_at=2, deaf=True)
    wait_until((Path(launch.trial_path) / "at-gate").exists)

    node.supervisor.end_with(launch.key, failed=True)
    assert node.supervisor.poll() == []
    node.skipped_s = AFTER_FAILURE_S

    (ended,) = node.wait_for_end()
    assert ended.exit_codes == {0: -signal.SIGKILL}
    assert ended.killed_by_launcher == {0}
    node.supervisor.end_with(launch.key, failed=True)  # too late, and harmless


def test_hard_stop_kills_at_once(node):
    launch = node.launch(gate_at=4, deaf=True)
    at_gate(launch)
    node.supervisor.stop(launch.key, hard=True)

    (ended,) = node.wait_for_end()

    assert (ended.exit_codes, ended.killed_by_launcher) == ({0: -signal.SIGKILL}, {0})


def test_killed_rank_is_told_from_those_that_we_end_after_it(node):
    launch = node.launch(ranks=2, gate_at=4, gate_all=True, deaf=True)
    at_gate(launch)
    wait_until((Path(launch.trial_path) / "at-gate-1").exists)
    os.kill(seen(launch, 1)["pid"], signal.SIGKILL)
    wait_until(lambda: seen(launch, 1)["pid"] not in node.left())
    assert node.supervisor.poll() == []

    def poll_a_second_later():
        # Only from when the supervisor has heard of the death does it wait for the other rank.
        node.skipped_s += 1.0
        return node.supervisor.poll()

    (ended,) = wait_until(poll_a_second_later)

    assert node.skipped_s >= AFTER_FAILURE_S
    assert ended.exit_codes == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert ended.killed_by_launcher == {0}


def test_a_crashed_rank_leaves_its_stacks_in_the_log(node):
    launch = node.launch(segfaults=True)

    (ended,) = node.wait_for_end()

    assert ended.exit_codes == {0: -signal.SIGSEGV}
    log = launch.folder.log.read_text()
    assert "Fatal Python error: Segmentation fault" in log
    assert "counting_job.py" in log


def test_death_of_the_fork_server_takes_its_ranks_and_the_next_launch_gets_a_new_one(node):
    launch = node.launch(gate_at=4)
    rank = at_gate(launch)
    fork_server = int(Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(fork_server, signal.SIGKILL)

    (ended,) = node.wait_for_end()

    assert ended.exit_codes == {0: -signal.SIGKILL}
    assert ended.killed_by_launcher == frozenset()
    assert not rank.alive()
    again = node.launch(seed=1)
    (ended,) = node.wait_for_end()
    assert (ended.trial_id, ended.exit_codes) == (again.trial_id, {0: 0})


def test_ranks_that_make_no_progress_are_ended_and_say_where_they_stood(node):
    launch = node.launch(ranks=2, gate_at=4, gate_all=True, hang_after_s=30.0)
    at_gate(launch)
    wait_until((Path(launch.trial_path) / "at-gate-1").exists)

    for _ in range(9):
        node.skipped_s += 4.0
        assert node.supervisor.poll() == []
    (ended,) = node.wait_for_end()

    assert ended.exit_codes == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert ended.killed_by_launcher == {0, 1}
    assert "(limit 30 s: resources.hang_after_s)" in ended.hang
    for rank in range(2):
        assert ended.last_positions[rank].startswith("after step 3 of 10 (train): ")
        # The innermost call that is not the library's: at times what the loop at the gate asks.
        assert re.search("_wait_at_gate|should_stop", ended.last_positions[rank])
    log = launch.folder.log.read_text()
    assert log.index("── no progress for") < log.index("── rank 0 (pid") < log.index("── rank 1 (p")
    assert log.count("in _wait_at_gate") == 2


def test_ranks_that_get_on_are_left_alone(node):
    launch = node.launch(gate_at=4, hang_after_s=1000.0)
    at_gate(launch)
    for _ in range(50):
        node.skipped_s += 4.0
        assert node.supervisor.poll() == []
    (Path(launch.trial_path) / "go").touch()

    (ended,) = node.wait_for_end()
    assert (ended.exit_codes, ended.hang) == ({0: 0}, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_to_the_fork_server_is_passed_on_and_does_not_end_it(node, number):
    launch = node.launch(gate_at=4)
    rank = at_gate(launch)
    fork_server = int(Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(fork_server, number)

    (ended,) = node.wait_for_end()

    assert ended.exit_codes == {0: EXIT_CODES[Outcome.INTERRUPTED]}
    assert (Path(launch.trial_path) / "checkpoints" / "step-00000003").exists()
    again = node.launch(seed=1)
    (ended,) = node.wait_for_end()
    assert (ended.trial_id, ended.exit_codes) == (again.trial_id, {0: 0})


def test_closing_ends_the_ranks(node):
    rank = at_gate(node.launch(gate_at=4, deaf=True))
    node.supervisor.close()

    assert not rank.alive()
    assert node.left() == []


def test_orphans_of_another_controller_are_ended(node, tmp_path):
    other = Node(tmp_path / "other")
    launch = other.launch(gate_at=4, deaf=True)
    rank = at_gate(launch)
    elsewhere = ProcessId(host="elsewhere", pid=1, start_ticks=1)

    assert node.supervisor.end_orphans([rank, elsewhere]) == [elsewhere]
    assert not rank.alive()
    (ended,) = other.wait_for_end()
    assert ended.exit_codes == {0: -signal.SIGKILL}
    other.supervisor.close()


def test_reused_pid_is_left_alone(node):
    rank = at_gate(node.launch(gate_at=4))
    somebody_else = ProcessId(host=rank.host, pid=rank.pid, start_ticks=rank.start_ticks - 1)

    assert node.supervisor.end_orphans([somebody_else]) == []
    assert rank.alive()


def test_fork_server_that_cannot_import_says_what_it_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server_process, "TRAINING_MODULES", ("no_such_module",))
    monkeypatch.setattr(fork_server_process, "workload_modules", list)
    supervisor = NodeSupervisor(log=str(tmp_path / "node.log"), environment={})

    with pytest.raises(ExperimentError, match="(?s)node.log: .*No module named 'no_such_module'"):
        supervisor.wait_until_ready()
    supervisor.close()


@pytest.mark.parametrize("kills", [1, 2, 9])
def test_fork_server_that_is_killed_while_importing_is_started_again(tmp_path, monkeypatch, kills):
    (tmp_path / "mortal.py").write_text(
        "import os, pathlib\n"
        "deaths = pathlib.Path(__file__).with_name('deaths')\n"
        "n = len(deaths.read_text()) if deaths.exists() else 0\n"
        f"if n < {kills}:\n"
        "    deaths.write_text('x' * (n + 1))\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(fork_server_process, "TRAINING_MODULES", ("mortal",))
    monkeypatch.setattr(fork_server_process, "workload_modules", list)
    supervisor = NodeSupervisor(log=str(tmp_path / "node.log"), environment={})

    if kills > fork_server_process.REPLACEMENTS:
        with pytest.raises(ExperimentError, match="ended while importing"):
            supervisor.wait_until_ready()
    else:
        supervisor.wait_until_ready()
    supervisor.close()

    tried = min(kills, 1 + fork_server_process.REPLACEMENTS)
    assert len((tmp_path / "deaths").read_text()) == tried


def test_log_of_a_rank_that_floods_it_is_cut(node, monkeypatch):
    monkeypatch.setattr(log_cap, "LIMIT_BYTES", 100_000)
    monkeypatch.setattr(log_cap, "HEAD_BYTES", 1_000)
    monkeypatch.setattr(log_cap, "TAIL_BYTES", 1_000)
    launch = node.launch(gate_at=4)
    at_gate(launch)
    with launch.folder.log.open("a") as log:
        log.write("flood\n" * 100_000)

    node.skipped_s += 2.0
    assert node.supervisor.poll() == []
    assert launch.folder.log.stat().st_size < 3_000
    (Path(launch.trial_path) / "go").touch()
    node.wait_for_end()

    assert "goes on from step 0" in launch.folder.log.read_text()


def test_fork_server_refuses_to_fork_beside_threads(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setattr(fork_server_process, "TRAINING_MODULES", ("threaded",))
    monkeypatch.setattr(fork_server_process, "workload_modules", list)
    supervisor = NodeSupervisor(log=str(tmp_path / "node.log"), environment={})

    with pytest.raises(ExperimentError, match="threaded.* started 1 threads; forking is unsafe"):
        supervisor.wait_until_ready()
    supervisor.close()


def test_broken_architecture_does_not_keep_the_others_from_training(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("raise RuntimeError('half-written')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(fork_server_process, "TRAINING_MODULES", ("json",))
    monkeypatch.setattr(fork_server_process, "workload_modules", lambda: ["broken"])
    supervisor = NodeSupervisor(log=str(tmp_path / "node.log"), environment={})

    supervisor.wait_until_ready()
    supervisor.close()

    assert "half-written" in (tmp_path / "node.log").read_text()
