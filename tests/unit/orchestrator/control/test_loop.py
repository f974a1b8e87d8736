"""The controller with a fake launcher, in simulated time."""

import errno
import io
import json
import os
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest

from orchestrator.control import attempt_exits, node_exclusion
from orchestrator.control.attempt_starts import STARTING_S
from orchestrator.control.failure_classifier import EXIT_CODES, AttemptExit
from orchestrator.control.launcher_port import NotPlaced, SharedUsage
from orchestrator.control.loop import Controller
from orchestrator.control.status import NO_CONTROLLER, status_from_disk
from orchestrator.node.reporter import RankReporter
from orchestrator.node.worker import write_error, write_result
from orchestrator.records import locks, storage_errors
from orchestrator.records import trial_dir as trial_dir_module
from orchestrator.records.errors import BusyError, ExperimentError, MovedError
from orchestrator.records.json_files import write_json
from orchestrator.records.locks import ControllerLock
from orchestrator.records.processes import ProcessId
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import (
    GPU_PEAK,
    Outcome,
    Resources,
    Retries,
    TrialSpec,
    TrialState,
)
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.fair_share import Amounts, Grant
from orchestrator.scheduling.interface import Running

DONE = {0: 0}


class FakeLauncher:
    """Attempts run until the test says how they end; a stop ends them at the next poll, as graceful ranks do."""

    def __init__(self, *, cpus=2, gpus=()):
        self.node = Node(node_id="n", host="host-n", cpus=cpus, gpus=gpus)
        self.more_nodes = ()
        self.launches, self.stops, self.orphans = [], [], []
        self.running = {}
        self.ended = []
        self.refuse = 0
        self.peaks = {}
        self.deaf = False
        self.started = self.closed = False

    def start(self):
        self.started = True

    def nodes(self):
        return (self.node, *self.more_nodes)

    def launch(self, launch):
        if self.refuse:
            self.refuse -= 1
            raise NotPlaced("somebody else uses it")
        self.launches.append(launch)
        self.running[launch.trial_id] = launch
        return launch.gpu_ids

    def poll(self):
        ended, self.ended = self.ended, []
        return ended

    def stop(self, trial_id, attempt, *, hard):
        self.stops.append((trial_id, attempt, hard))
        if hard or not self.deaf:
            code = -9 if hard else EXIT_CODES[Outcome.INTERRUPTED]
            self.end(
                trial_id, {0: code}, killed_by_launcher=frozenset({0}) if hard else frozenset()
            )

    def end_orphans(self, processes):
        self.orphans += processes
        return []

    def close(self):
        self.closed = True

    def end(self, trial_id, codes, *, steps=0, error=None, **more):
        """End what runs of a trial: with a journal that reached `steps`, a result if all codes are 0, an error.json."""
        launch = self.running.pop(trial_id)
        (request,) = launch.rank_requests(launch.gpu_ids)[:1]
        reporter = RankReporter(request)
        for step in range(1, steps + 1):
            reporter.metrics(step, {"train/loss": 1.0})
        reporter.close()
        if not any(codes.values()) and not more.get("node_lost"):
            peak = {GPU_PEAK: self.peaks[trial_id]} if trial_id in self.peaks else {}
            write_result(request, request.trial.spec(), reporter, {"train/loss": 1.0, **peak})
        if error is not None:
            write_error(request, error, ValueError("it broke"), step=1)
        self.ended.append(
            AttemptExit(trial_id=trial_id, attempt=launch.attempt, exit_codes=codes, **more)
        )


class World:
    """A sweep, a fake launcher and a clock that a sleeping controller moves."""

    def __init__(self, root):
        self.sweep = SweepDir(root / "s")
        self.launcher = FakeLauncher()
        self.now = 1000.0
        self.set_s = 0.0
        """By how much somebody has set the wall clock."""
        self.updates = []
        self.script = None

    def trial(self, seed, **more):
        fields = {
            "resources": Resources(gpus=0),
            "train": {"tokens": 1000, "batch_tokens": 10, "seq_len": 10},
            **more,
        }
        spec = TrialSpec(
            sweep="s", data={"source": "x"}, model={"architecture": "dense"}, seed=seed, **fields
        )
        self.sweep.trial(spec.trial_id).create(spec)
        return spec.trial_id

    def controller(self, *trial_ids, submission=1, **more):
        clocks = {"clock": lambda: self.now, "wall_clock": lambda: self.now + self.set_s}
        more = {"lock": ControllerLock(self.sweep, submission=submission, **clocks), **more}
        return Controller(
            self.sweep,
            submission=submission,
            trial_ids=trial_ids,
            launcher=self.launcher,
            cache=self.sweep.path / "cache",
            sleep=self._sleep,
            **clocks,
            **more,
        )

    def run(self, *trial_ids, script, **more):
        """Run a controller; `script` is a generator that is advanced once per second of simulated time."""
        self.the_controller = self.controller(*trial_ids, **more)
        self.script = script
        return self.the_controller.run(self.updates.append)

    def _sleep(self, seconds):
        self.now += 1.0
        assert self.now < 1500, (
            f"the controller does not end; running {list(self.launcher.running)}"
        )
        if self.script is not None:
            next(self.script, None)

    def end(self, trial_id, attempt=1):
        return self.sweep.trial(trial_id).attempt(attempt).end()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def finish(world, *trial_ids):
    for trial_id in trial_ids:
        while trial_id not in world.launcher.running:
            yield
        world.launcher.end(trial_id, DONE, steps=100)
        yield


def test_every_trial_is_run_once_and_the_status_says_so(world):
    ids = [world.trial(seed) for seed in range(3)]

    status = world.run(*ids, script=finish(world, *ids))

    assert [launch.trial_id for launch in world.launcher.launches] == ids
    assert status.complete
    assert not status.controller_alive
    assert [t.trial_id for t in status.trials] == ids
    assert {t.outcome for t in status.trials} == {Outcome.DONE}
    assert world.launcher.closed


def test_longest_prediction_starts_first(world):
    ids = [world.trial(seed) for seed in range(3)]
    world.launcher = FakeLauncher(cpus=1)
    predicted = dict(zip(ids, (5.0, 50.0, 500.0), strict=True))

    world.run(*ids, script=finish(world, *reversed(ids)), predicted_s=predicted)

    assert [launch.trial_id for launch in world.launcher.launches] == ids[::-1]


@pytest.mark.parametrize("kept", [True, False])
def test_what_has_a_checkpoint_starts_first_when_the_sweep_is_submitted_again(world, kept):
    fresh, stopped = world.trial(0), world.trial(1)
    world.launcher = FakeLauncher(cpus=1)

    def stop():
        if kept:
            (world.sweep.trial(stopped).checkpoints / "step-37").mkdir(parents=True)
        world.the_controller.stop()
        yield

    world.run(stopped, script=stop())
    predicted = dict.fromkeys((fresh, stopped), 500.0)
    script = finish(world, *((stopped, fresh) if kept else (fresh, stopped)))
    world.run(fresh, stopped, script=script, predicted_s=predicted, submission=2)

    started = [launch.trial_id for launch in world.launcher.launches]
    assert started == [stopped, *([stopped, fresh] if kept else [fresh, stopped])]


def test_waiting_trials_say_why_and_running_ones_show_their_progress(world):
    first, second = world.trial(0), world.trial(1, resources=Resources(gpus=0, cpus=2))

    def script():
        beat = {
            "attempt": 1,
            "step": 25,
            "steps": 100,
            "phase": "train",
            "loss": 2.5,
            "tokens_per_s": 50.0,
        }
        write_json(world.sweep.trial(second).path / "heartbeat.json", beat)
        yield
        yield from finish(world, second, first)

    world.run(first, second, script=script())
    now = {t.trial_id: t for t in next(u for u in world.updates if u.trials[1].step).trials}

    assert now[second].state is TrialState.RUNNING
    assert (now[second].step, now[second].loss, now[second].eta_s) == (25, 2.5, 75 * 10 / 50.0)
    assert now[first].state is TrialState.WAITING
    assert now[first].wait == "needs 1 core; 0 of 2 cores free; next in line, starts in about 15 s"


def test_status_from_disk_is_what_the_controller_says(world):
    ids = [world.trial(seed) for seed in range(4)]
    seen = []

    def script():
        world.launcher.end(ids[0], DONE, steps=100)
        yield
        yield
        seen.append(
            (world.updates[-1], status_from_disk(world.sweep, now=world.updates[-1].updated_at))
        )
        yield from finish(world, *ids[1:])

    status = world.run(*ids, script=script())
    published, read = seen[0]

    assert published == read
    assert published.count(TrialState.RUNNING) == 2
    assert published.time_left_s is not None
    assert status_from_disk(world.sweep, now=status.updated_at).trials == status.trials


def test_nothing_left_to_do_starts_no_launcher(world):
    trial = world.trial(0)
    world.run(trial, script=finish(world, trial))
    world.launcher = FakeLauncher()

    status = world.run(trial, script=iter(()), submission=2)

    assert status.complete
    assert not world.launcher.started


def test_failure_is_retried_within_its_budget_and_the_reason_is_kept(world):
    trial = world.trial(0, retries=Retries(failure=1))

    def script():
        for _ in range(2):
            codes = {0: EXIT_CODES[Outcome.COMMUNICATION]}
            world.launcher.end(trial, codes, error=Outcome.COMMUNICATION)
            yield

    status = world.run(trial, script=script())

    attempts = world.sweep.trial(trial).attempts()
    assert [a.end()["outcome"] for a in attempts] == ["communication", "communication"]
    assert [a.end()["final"] for a in attempts] == [False, True]
    reason = "ValueError: it broke (retry 1 of 1 after communication)"
    assert attempts[0].launch()["why"] == "first attempt"
    assert attempts[1].launch()["why"] == f"retry after communication: {reason}"
    assert status.trials[0].state is TrialState.FAILED
    assert "the failure budget of 1 retries is used up" in status.trials[0].reason


def test_user_error_is_final(world):
    trial = world.trial(0, retries=Retries(failure=9))

    def script():
        world.launcher.end(trial, {0: EXIT_CODES[Outcome.USER_ERROR]}, error=Outcome.USER_ERROR)
        yield

    assert world.run(trial, script=script()).trials[0].state is TrialState.FAILED
    assert len(world.launcher.launches) == 1


def test_killed_in_vain_waits_longer_each_time(world):
    trial = world.trial(0)

    def script():
        for _ in range(3):
            while trial not in world.launcher.running:
                yield
            world.launcher.end(trial, {0: -9})
            yield
        yield from finish(world, trial)

    world.run(trial, script=script())
    attempts = world.sweep.trial(trial).attempts()
    starts = [a.launch()["started_at"] for a in attempts]
    ends = [a.end()["ended_at"] for a in attempts]

    gaps = [start - end for start, end in zip(starts[1:], ends, strict=False)]
    assert gaps[0] == 0
    assert gaps[1] >= 2
    assert gaps[2] >= 4
    assert any("starts again in" in update.trials[0].wait for update in world.updates)


def test_failed_trial_of_an_earlier_submission_gets_a_new_budget(world):
    trial = world.trial(0)

    def fail():
        world.launcher.end(trial, {0: EXIT_CODES[Outcome.DIVERGED]}, error=Outcome.DIVERGED)
        yield

    world.run(trial, script=fail())
    again = world.run(trial, script=iter(()), submission=1)
    assert again.trials[0].state is TrialState.FAILED

    status = world.run(trial, script=finish(world, trial), submission=2)

    assert status.complete
    why = world.sweep.trial(trial).attempt(2).launch()["why"]
    assert why.startswith("submitted again after diverged: ")


def test_gpu_oom_is_retried_with_a_smaller_micro_batch(world):
    trial = world.trial(0, train={"tokens": 4096, "batch_tokens": 1024, "seq_len": 128})

    def script():
        world.launcher.end(trial, {0: EXIT_CODES[Outcome.GPU_OOM]}, error=Outcome.GPU_OOM)
        yield
        yield from finish(world, trial)

    world.run(trial, script=script())

    assert [launch.memory_halvings for launch in world.launcher.launches] == [0, 1]
    assert world.sweep.trial(trial).attempt(2).launch()["memory_halvings"] == 1


def test_seeds_of_what_ran_out_of_memory_on_its_share_start_with_a_larger_one(world):
    world.launcher = FakeLauncher(cpus=1, gpus=("0",))
    asked = {"resources": Resources(gpus=0.25), "retries": Retries(failure=0)}
    first, second = world.trial(0, **asked), world.trial(1, **asked)

    def script():
        world.launcher.end(first, {0: EXIT_CODES[Outcome.GPU_OOM]}, error=Outcome.GPU_OOM)
        yield
        yield from finish(world, first, second)

    status = world.run(first, second, script=script())

    assert status.complete
    launched = [(launch.trial_id, launch.gpus) for launch in world.launcher.launches]
    assert launched == [(first, 0.25), (first, 0.5), (second, 0.5)]
    assert [launch.gpu_memory_share for launch in world.launcher.launches] == [0.25, 0.5, 0.5]
    assert world.sweep.trial(first).attempt(2).launch()["gpus"] == 0.5


def test_seeds_of_what_ran_out_of_a_whole_gpu_start_with_smaller_passes(world):
    world.launcher = FakeLauncher(cpus=1, gpus=("0",))
    first, second = (world.trial(seed, resources=Resources(gpus=1)) for seed in range(2))

    def script():
        world.launcher.end(first, {0: EXIT_CODES[Outcome.GPU_OOM]}, error=Outcome.GPU_OOM)
        yield
        yield from finish(world, first, second)

    assert world.run(first, second, script=script()).complete
    halvings = {
        (launch.trial_id, launch.attempt): launch.memory_halvings
        for launch in world.launcher.launches
    }
    assert halvings == {(first, 1): 0, (first, 2): 1, (second, 1): 1}


def test_share_follows_what_the_first_trial_of_a_configuration_was_measured_to_hold(world):
    world.launcher = FakeLauncher(cpus=1, gpus=("0",))
    world.launcher.node = replace(world.launcher.node, gpu_memory_bytes=80e9)
    ids = [world.trial(seed, resources=Resources(gpus=0.1)) for seed in range(2)]

    def script():
        launch = world.launcher.running[ids[0]]
        world.launcher.peaks[ids[0]] = 30e9
        world.launcher.end(launch.trial_id, DONE, steps=100)
        yield
        yield from finish(world, ids[1])

    world.run(*ids, script=script())
    first, second = world.launcher.launches

    assert (first.gpus, first.gpu_memory_share) == (0.1, 0.1)
    assert second.gpus == second.gpu_memory_share
    assert 30e9 * 1.15 < second.gpus * 80e9 < 30e9 * 1.15 + 2e9


def test_after_a_fault_of_a_shared_gpu_a_trial_is_no_client_of_mps_any_more(world):
    world.launcher = FakeLauncher(cpus=1, gpus=("0",))
    trial = world.trial(0, resources=Resources(gpus=0.25), retries=Retries(failure=0))

    def script():
        world.launcher.end(trial, {0: EXIT_CODES[Outcome.GPU_FAULT]}, error=Outcome.GPU_FAULT)
        yield
        yield from finish(world, trial)

    assert world.run(trial, script=script()).complete
    assert [launch.mps for launch in world.launcher.launches] == [True, False]


def test_whole_gpus_are_not_capped(world):
    world.launcher = FakeLauncher(cpus=1, gpus=("0",))
    trial = world.trial(0, resources=Resources())

    world.run(trial, script=finish(world, trial))

    assert world.launcher.launches[0].gpu_memory_share is None
    assert not world.launcher.launches[0].mps


def test_auto_is_one_gpu_per_rank_where_there_are_any(world):
    world.launcher = FakeLauncher(cpus=4, gpus=("0", "1"))
    one, two = world.trial(0, resources=Resources()), world.trial(1, resources=Resources(ranks=2))

    world.run(one, two, script=finish(world, two, one))

    by_id = {launch.trial_id: launch for launch in world.launcher.launches}
    assert (by_id[one].gpus, by_id[two].gpus) == (1.0, 2.0)
    assert [r.gpus for r in by_id[two].rank_requests(by_id[two].gpu_ids)] == [("0",), ("1",)]


class SharedFakeLauncher(FakeLauncher):
    """Nodes that somebody else uses too; what they leave is for the test to say."""

    def __init__(self, *, n_nodes=1, **more):
        super().__init__(**more)
        self.all = [replace(self.node, node_id=f"n{i}", host=f"host-{i}") for i in range(n_nodes)]
        self.left, self.usages = SharedUsage(), []

    def nodes(self):
        return tuple(self.all)

    def exchange_usage(self, usage):
        self.usages.append(usage)
        return self.left


def test_a_sweep_starts_no_more_than_its_share_and_publishes_its_usage(world):
    world.launcher = SharedFakeLauncher(cpus=4)
    world.launcher.left = SharedUsage(grant=Grant(cpus=2.0, why="its share is 2 cores"))
    ids = [world.trial(seed) for seed in range(3)]

    def script():
        while not any(status.trials[2].wait for status in world.updates[1:]):
            yield
        assert len(world.launcher.running) == 2
        world.launcher.left = SharedUsage()
        while len(world.launcher.running) < 3:
            yield
        for trial_id in ids:
            world.launcher.end(trial_id, DONE, steps=100)
        yield

    status = world.run(*ids, script=script())

    assert status.complete
    waits = {t.wait for s in world.updates for t in s.trials if t.wait}
    assert "fits, and leaves room to others: its share is 2 cores" in waits
    first, full = world.launcher.usages[0], world.launcher.usages[-1]
    assert (first.holds_cpus, first.wants_cpus, first.started) == (0, 3, 0)
    assert (full.wants_cpus, full.started) == (0, 3)


def test_trials_make_way_for_a_higher_priority_and_go_on_without_using_a_budget(world):
    world.launcher = SharedFakeLauncher(cpus=3)
    ids = [world.trial(seed, retries=Retries(failure=0, preemption=0)) for seed in range(3)]

    def script():
        while len(world.launcher.running) < 3:
            yield
        world.launcher.left = SharedUsage(grant=Grant(cpus=1.0, lacking=Amounts(0.0, 2.0)))
        while len(world.launcher.running) > 1:
            yield
        for _ in range(20):  # nothing more leaves, and nothing starts, while the other is there
            yield
        assert len(world.launcher.running) == 1
        assert len(world.launcher.stops) == 2
        world.launcher.left = SharedUsage()
        while len(world.launcher.running) < 3:
            yield
        yield from finish(world, *ids)

    status = world.run(*ids, script=script())

    assert status.complete
    ends = [[a.end()["outcome"] for a in world.sweep.trial(i).attempts()] for i in ids]
    assert sorted(ends) == [["done"], ["yielded", "done"], ["yielded", "done"]]


def test_foreign_load_is_not_free(world):
    world.launcher = SharedFakeLauncher(cpus=2)
    foreign = Running(trial_id="others", node_id="n0", demand=Demand(cpus=2))
    world.launcher.left = SharedUsage(foreign_load=[foreign], grant=Grant(why="shares the cluster"))
    trial = world.trial(0)

    def script():
        for _ in range(5):
            yield
        assert world.launcher.launches == []
        world.launcher.left = SharedUsage()
        yield from finish(world, trial)

    world.run(trial, script=script())

    waits = {t.wait for s in world.updates for t in s.trials}
    assert any("0 of 2 cores free" in w and "(shares the cluster)" in w for w in waits)


def test_a_trial_of_more_ranks_than_a_node_holds_gets_whole_nodes(world):
    world.launcher = SharedFakeLauncher(n_nodes=2, cpus=2, gpus=("0", "1"))
    gang = world.trial(0, resources=Resources(ranks=4))
    single = world.trial(1, resources=Resources(gpus=0))

    def script():
        yield from finish(world, gang)
        yield from finish(world, single)

    status = world.run(gang, single, script=script())

    assert status.complete
    first, second = world.launcher.launches
    assert (first.trial_id, first.gpus) == (gang, 4.0)
    assert [part.node_id for part in first.all_nodes] == ["n0", "n1"]
    assert world.sweep.trial(gang).attempt(1).launch()["node"] == "host-0, host-1"
    # Its nodes are its own: the other trial had to wait for its end.
    assert (second.trial_id, second.other_nodes) == (single, ())
    waits = {t.wait for s in world.updates for t in s.trials if t.trial_id == single}
    assert any("needs 1 core" in wait for wait in waits)


def test_a_cluster_that_grows_is_waited_for(world):
    world.launcher = SharedFakeLauncher(cpus=2)
    world.launcher.left = SharedUsage(may_grow=True)
    large = world.trial(0, resources=Resources(gpus=0, cpus=4))

    def script():
        for _ in range(5):
            yield
        world.launcher.all.append(Node(node_id="late", host="late", cpus=4))
        yield from finish(world, large)

    assert world.run(large, script=script()).complete


def test_launcher_that_cannot_place_costs_no_attempt(world):
    trial = world.trial(0)
    world.launcher.refuse = 2

    world.run(trial, script=finish(world, trial))

    assert len(world.sweep.trial(trial).attempts()) == 1


def test_trial_that_fits_nowhere_is_left_waiting_with_the_reason(world):
    huge, fine = world.trial(0, resources=Resources(gpus=0, cpus=64)), world.trial(1)

    status = world.run(huge, fine, script=finish(world, fine))

    assert status.trials[0].state is TrialState.WAITING
    assert "needs 64 cores on one node" in status.trials[0].wait
    assert status.trials[1].state is TrialState.DONE


def test_stop_lets_trials_checkpoint_and_leaves_them_waiting(world):
    ids = [world.trial(seed) for seed in range(3)]

    def script():
        world.the_controller.stop()
        yield

    status = world.run(*ids, script=script())

    assert {t.state for t in status.trials} == {TrialState.WAITING}
    assert sorted(world.launcher.stops) == sorted(
        (launch.trial_id, 1, False) for launch in world.launcher.launches
    )
    ended = world.end(world.launcher.launches[0].trial_id)
    assert (ended["outcome"], ended["final"]) == ("interrupted", False)
    assert ended["reason"].startswith("stopped on request; no step is lost")
    assert any(update.stopping for update in world.updates)


def test_second_stop_ends_them_at_once(world):
    trial = world.trial(0)
    world.launcher.deaf = True

    def script():
        world.the_controller.stop()
        yield
        yield
        world.the_controller.stop()
        yield

    world.run(trial, script=script())

    assert [hard for _, _, hard in world.launcher.stops] == [False, True]
    assert world.end(trial)["outcome"] == "interrupted"


def test_a_full_disk_is_told_while_everything_runs_and_since_when(world, monkeypatch):
    trial, free, told = world.trial(0), [10**9], []
    monkeypatch.setattr(storage_errors, "free_bytes", lambda place: free[0])

    def script():
        yield
        for free[0] in (0, 0, 0, 10**9):
            for _ in range(3):
                yield
            told.append((world.updates[-1].full_disk, status_from_disk(world.sweep).full_disk))
        yield from finish(world, trial)

    world.run(trial, script=script())

    since = {sentence.partition(": ")[0] for sentence, _ in told[:3]}
    assert len(since) == 1, "since it was first seen to be full"
    for sentence, elsewhere in told[:3]:
        assert sentence.startswith(f"the disk of {world.sweep.path} is full since about 1970-01-01")
        assert " free; free some there (`du -sh " in sentence
        assert elsewhere.startswith(f"the disk of {world.sweep.path} is full since about ")
    assert told[3] == ("", "")


def test_a_used_up_quota_is_told_while_everything_runs(world, monkeypatch):
    """Only a write finds it: the disk itself is empty."""
    trial, used_up, told = world.trial(0), [False], []
    write_json = locks.write_json

    def write(path, record):
        if used_up[0]:
            raise OSError(errno.EDQUOT, "Disk quota exceeded", str(path))
        write_json(path, record)

    monkeypatch.setattr(locks, "write_json", write)

    def script():
        yield
        for used_up[0] in (True, False):
            for _ in range(25):
                yield
            told.append(world.updates[-1].full_disk)
        yield from finish(world, trial)

    world.run(trial, script=script())

    assert told[0].startswith(f"your disk quota is used up at {world.sweep.path}")
    assert told[1] == ""


@pytest.mark.parametrize("ends", [False, True])
def test_a_sweep_whose_folder_is_moved_ends_and_goes_on_at_its_new_place(world, ends):
    trials, old = [world.trial(seed) for seed in range(3)], world.sweep.path
    moved = old.with_name("moved") / "s"
    moved.parent.mkdir()

    def script():
        while len(world.launcher.running) < 2:
            yield
        old.rename(moved)
        if ends:  # found by the end of an attempt, before the next heartbeat
            world.launcher.ended.append(
                AttemptExit(trial_id=trials[0], attempt=1, exit_codes={0: 82})
            )
        yield

    with pytest.raises(MovedError, match=f"was moved to {moved} while it trained"):
        world.run(*trials, script=script())

    assert world.launcher.closed
    assert not old.exists()
    world.sweep, world.launcher = SweepDir(moved), FakeLauncher()
    assert world.run(*trials, submission=2, script=finish(world, *trials)).complete
    first = [world.end(trial) for trial in trials[:2]]
    assert [end["outcome"] for end in first] == ["node_lost", "node_lost"]


def test_trials_start_even_if_looking_at_them_takes_longer_than_a_round_of_starts(world):
    ids = [world.trial(seed) for seed in range(2)]
    nodes = world.launcher.nodes

    def slow_nodes():
        world.now += 2 * STARTING_S
        return nodes()

    world.launcher.nodes = slow_nodes

    assert world.run(*ids, script=finish(world, *ids)).complete


def test_a_trial_whose_turn_comes_in_the_next_round_waits_for_nothing_any_more(world):
    ids = [world.trial(seed) for seed in range(3)]
    world.launcher.node = Node(node_id="n", host="host-n", cpus=1, gpus=())
    launch = world.launcher.launch

    def slow_launch(request):
        world.now += 2 * STARTING_S
        return launch(request)

    world.launcher.launch = slow_launch

    def script():
        yield
        assert all("0 of 1 core free" in t.wait for t in world.updates[-1].trials[1:])
        world.launcher.node = replace(world.launcher.node, cpus=3)
        yield
        assert [t.wait for t in world.updates[-1].trials] == ["", "", ""]
        assert [t.state for t in world.updates[-1].trials] == ["running", "running", "waiting"]
        while True:
            for trial_id in list(world.launcher.running):
                world.launcher.end(trial_id, {0: 0})
            yield

    assert world.run(*ids, script=script()).complete


def test_cancelled_trials_stop_for_good_and_the_others_go_on(world):
    ids = [world.trial(seed) for seed in range(4)]

    def script():
        running, waiting = (
            list(world.launcher.running),
            [i for i in ids if i not in world.launcher.running],
        )
        world.sweep.trial(running[0]).request_cancel("test")
        world.sweep.trial(waiting[0]).request_cancel("test")
        while running[0] in world.launcher.running:
            yield
        yield from finish(world, running[1], waiting[1])

    status = world.run(*ids, script=script())

    assert status.count(TrialState.CANCELLED) == 2
    assert status.count(TrialState.DONE) == 2


def fail(world, trial_id, *, steps=0):
    """Have what runs of a trial end for good."""
    while trial_id not in world.launcher.running:
        yield
    world.launcher.end(trial_id, {0: 1}, steps=steps, error=Outcome.USER_ERROR)
    while world.sweep.trial(trial_id).state() is TrialState.RUNNING:
        yield
    yield  # the exit is processed, and the sweep would be over


def request_retry(world, trial_id):
    trial = world.sweep.trial(trial_id)
    trial.request_retry("test", after=trial.last_attempt(), at=world.now)


def test_a_failed_trial_runs_again_when_somebody_asks(world):
    failed, other = world.trial(0), world.trial(1)

    def script():
        yield from fail(world, failed)
        assert status_from_disk(world.sweep).trials[0].state is TrialState.FAILED
        request_retry(world, failed)
        request_retry(world, failed)
        yield from finish(world, failed, other)

    status = world.run(failed, other, script=script())

    assert status.complete
    assert [t.trial_id for t in status.trials] == [failed, other]
    first, second = world.sweep.trial(failed).attempts()
    assert first.end()["final"]
    assert second.launch()["why"].startswith("retry (test) after user_error: ")


def test_cancelled_trials_run_again_when_somebody_asks_whether_or_not_they_had_started(world):
    ids = [world.trial(seed) for seed in range(3)]
    waiting = ids[2]

    def script():
        running = ids[0]
        for trial_id in (running, waiting):
            world.sweep.trial(trial_id).request_cancel("test")
        while running in world.launcher.running:
            yield
        yield
        assert status_from_disk(world.sweep).count(TrialState.CANCELLED) == 2
        for trial_id in (running, waiting):
            request_retry(world, trial_id)
        yield from finish(world, *ids)

    assert world.run(*ids, script=script()).complete

    assert [len(world.sweep.trial(i).attempts()) for i in ids] == [2, 1, 1]
    assert not any(world.sweep.trial(i).cancel_requested() for i in ids)


def test_a_retry_that_was_asked_for_has_the_budgets_anew(world):
    trial, other = world.trial(0, retries=Retries(preemption=1)), world.trial(1)

    def script():
        for attempt in (1, 2, 3, 4):
            while trial not in world.launcher.running:
                yield
            world.launcher.end(trial, {0: -9})
            while world.end(trial, attempt) is None:
                yield
            yield
            if attempt == 2:
                request_retry(world, trial)
        yield from finish(world, other)

    status = world.run(trial, other, script=script())

    assert status.count(TrialState.FAILED) == 1
    assert [world.end(trial, n)["final"] for n in (1, 2, 3, 4)] == [False, True, False, True]


@pytest.mark.parametrize("state", ["done", "running"])
def test_retry_requests_of_done_and_running_trials_are_ignored(world, state):
    trial, other = world.trial(0), world.trial(1)

    def script():
        if state == "running":
            request_retry(world, trial)
        yield from finish(world, trial)
        if state == "done":
            request_retry(world, trial)
        yield
        yield from finish(world, other)

    assert world.run(trial, other, script=script()).complete

    assert len(world.sweep.trial(trial).attempts()) == 1


def test_a_request_that_no_controller_saw_is_met_once_by_the_next_of_the_same_submission(world):
    trial = world.trial(0)
    world.run(trial, script=fail(world, trial))
    assert not world.run(trial, script=None).complete
    assert len(world.launcher.launches) == 1
    request_retry(world, trial)

    assert world.run(trial, script=finish(world, trial)).complete

    assert len(world.sweep.trial(trial).attempts()) == 2
    assert not world.sweep.trial(trial).retry_requested()


def test_a_new_submission_retries_what_failed_whether_or_not_somebody_asked(world):
    asked, not_asked = world.trial(0), world.trial(1)

    def script():
        yield from fail(world, asked)
        yield from fail(world, not_asked)

    world.run(asked, not_asked, script=script())
    request_retry(world, asked)

    status = world.run(asked, not_asked, script=finish(world, asked, not_asked), submission=2)

    assert status.complete
    assert [len(world.sweep.trial(i).attempts()) for i in (asked, not_asked)] == [2, 2]


def test_a_retry_in_a_cancelled_sweep_is_not_taken_up(world):
    failed, other = world.trial(0), world.trial(1)

    def script():
        yield from fail(world, failed)
        write_json(world.sweep.path / "cancel.json", {"by": "test"})
        request_retry(world, failed)
        yield

    status = world.run(failed, other, script=script())

    assert len(world.sweep.trial(failed).attempts()) == 1
    assert not status.complete


def test_cancelled_sweep_ends(world):
    ids = [world.trial(seed) for seed in range(4)]

    def script():
        write_json(world.sweep.path / "cancel.json", {"by": "test"})
        yield

    status = world.run(*ids, script=script())

    assert status.count(TrialState.CANCELLED) == 4
    assert status_from_disk(world.sweep).count(TrialState.CANCELLED) == 4


def test_time_limit_checkpoints_and_goes_on_within_the_budget(world):
    trial = world.trial(
        0, resources=Resources(gpus=0, time_limit_s=20.0), retries=Retries(failure=1)
    )

    def script():
        while len(world.launcher.launches) < 2:
            yield
        yield from finish(world, trial)

    status = world.run(trial, script=script())

    assert world.end(trial)["outcome"] == "time_limit"
    started_at = world.sweep.trial(trial).attempt(1).launch()["started_at"]
    assert 20 < world.end(trial)["ended_at"] - started_at < 25
    assert status.complete


@pytest.mark.parametrize("set_s", [-86_400.0, 7200.0], ids=["back a day", "forward two hours"])
def test_a_clock_that_is_set_ends_nothing_and_a_request_to_cancel_is_heard(world, set_s):
    resources = Resources(gpus=0, time_limit_s=100.0)
    kept, cancelled = (world.trial(seed, resources=resources) for seed in range(2))

    def script():
        world.set_s = set_s
        yield
        assert world.launcher.running.keys() == {kept, cancelled}
        world.sweep.trial(cancelled).request_cancel("test")
        yield
        yield
        assert world.launcher.running.keys() == {kept}
        yield from finish(world, kept)

    status = world.run(kept, cancelled, script=script())

    assert world.end(cancelled)["outcome"] == "cancelled"
    assert world.end(kept)["outcome"] == "done"
    assert status.updated_at == world.now + set_s


@pytest.mark.parametrize("set_s", [-86_400.0, 7200.0], ids=["back a day", "forward two hours"])
def test_a_retry_waits_its_delay_whatever_somebody_sets_the_clock_to(world, set_s):
    trial = world.trial(0)

    def script():
        waited_s = []
        for n_launches in (1, 2, 3):
            world.launcher.end(trial, {0: -9})
            world.set_s, ended_at = 0.0, world.now
            while len(world.launcher.launches) == n_launches:
                yield
                world.set_s = set_s
            waited_s.append(world.now - ended_at)
        assert 2.0 <= waited_s[1] < 5.0 <= waited_s[2] + 1.0 < 9.0
        yield from finish(world, trial)

    assert world.run(trial, script=script()).complete


def test_orphaned_attempts_are_closed_before_anything_starts(world):
    lost, done, broken = world.trial(0), world.trial(1), world.trial(2)
    for trial in (lost, done, broken):
        world.sweep.trial(trial).new_attempt({"submission": 1, "started_at": 900.0})
    orphan = ProcessId(host="host-n", pid=77, start_ticks=5)
    attempt = world.sweep.trial(lost).attempt(1)
    (attempt.path / "ranks.jsonl").write_text(
        '{"rank": 2, "host": "ho{"rank": 3}\n'  # two lines that ran into each other
        + (json.dumps({"rank": 0, **orphan.to_json()}) + '\n{"rank": 1, "ho')
    )
    write_json(world.sweep.trial(done).path / "result.json", {"metrics": {}, "steps": 100})
    write_json(
        world.sweep.trial(broken).attempt(1).path / "error.json",
        {"kind": "diverged", "message": "Diverged: nan"},
    )
    before = status_from_disk(world.sweep)
    assert {t.wait for t in before.trials if t.state is TrialState.WAITING} == {NO_CONTROLLER}

    status = world.run(lost, done, broken, script=finish(world, lost))

    assert world.launcher.orphans == [orphan]
    assert [world.end(t)["outcome"] for t in (lost, done, broken)] == [
        "node_lost",
        "done",
        "diverged",
    ]
    assert [t.state for t in status.trials] == [TrialState.DONE, TrialState.DONE, TrialState.FAILED]
    assert len(world.sweep.trial(lost).attempts()) == 2


def test_open_attempts_of_trials_not_asked_for_are_closed_too(world):
    asked, other = world.trial(0), world.trial(1)
    world.sweep.trial(other).new_attempt({"submission": 1})

    world.run(asked, script=finish(world, asked), submission=2)

    assert world.end(other)["outcome"] == "node_lost"
    assert [launch.trial_id for launch in world.launcher.launches] == [asked]


def damage(path):
    """Leave what a power cut may leave of a file."""
    path.write_bytes(b"")


def finish_attempt(world, trial_id, attempt):
    while getattr(world.launcher.running.get(trial_id), "attempt", 0) != attempt:
        yield
    world.launcher.end(trial_id, DONE, steps=100)
    yield


def assert_set_aside(world, status, trial_id, file):
    """The status names the file of one trial, which nothing runs, and the others are done."""
    (sentence,) = status.unreadable
    assert sentence.startswith(f"{world.sweep.trial(trial_id).path / file}: not valid JSON")
    assert sentence.endswith("; this trial is set aside")
    assert trial_id not in [t.trial_id for t in status.trials]
    assert {t.state for t in status.trials} == {TrialState.DONE}
    assert not status.complete
    assert trial_id not in world.launcher.running
    assert status_from_disk(world.sweep).unreadable == status.unreadable


def test_a_trial_that_cannot_be_read_at_the_start_is_told_and_left_alone(world):
    broken, other = world.trial(0), world.trial(1)
    world.sweep.trial(broken).new_attempt({"submission": 1})
    damage(world.sweep.trial(broken).attempt(1).path / "launch.json")

    status = world.run(broken, other, script=finish(world, other))

    assert_set_aside(world, status, broken, "attempts/0001/launch.json")
    assert world.end(broken) is None
    assert status_from_disk(world.sweep).earlier == ""


def test_nothing_but_trials_that_cannot_be_read_is_not_complete(world):
    broken = world.trial(0)
    damage(world.sweep.trial(broken).path / "spec.json")

    status = world.run(broken, script=iter(()))

    assert not status.complete
    assert not world.launcher.started
    assert world.sweep.controller()["trial_ids"] == [broken]


@pytest.mark.parametrize("file", ["retry.json", "result.json", "attempts/0001/error.json"])
@pytest.mark.parametrize("while_it", ["runs", "ends"])
def test_a_record_damaged_while_its_trial_runs_ends_no_other(world, file, while_it):
    broken, other, third = (world.trial(seed) for seed in range(3))

    def script():
        while {broken, other} - world.launcher.running.keys():
            yield
        damage(world.sweep.trial(broken).path / file)
        if while_it == "ends":
            world.launcher.running.pop(broken)
            world.launcher.ended.append(AttemptExit(trial_id=broken, attempt=1, exit_codes={0: -9}))
        elif file.endswith("error.json"):  # it is read at the end alone
            world.launcher.stop(broken, 1, hard=False)
        yield
        yield from finish(world, other, third)

    status = world.run(broken, other, third, script=script())

    if file.endswith("error.json"):
        # Readers of states need it no more: the next submission closes the attempt.
        assert broken not in [t.trial_id for t in status.trials]
        assert not status.complete
    else:
        assert_set_aside(world, status, broken, file)
    for trial_id in (other, third):
        assert [a.end()["outcome"] for a in world.sweep.trial(trial_id).attempts()] == ["done"]


@pytest.mark.parametrize("folder", ["", "attempts", "attempts/0001"])
@pytest.mark.parametrize("while_it", ["runs", "ends"])
def test_a_folder_removed_while_its_trial_runs_ends_no_other(world, folder, while_it):
    removed, other, third = (world.trial(seed) for seed in range(3))
    spec, stopped = world.sweep.trial(removed).spec(), []

    def script():
        while {removed, other} - world.launcher.running.keys():
            yield
        world.launcher.deaf = True  # ranks without a folder write nothing more
        shutil.rmtree(world.sweep.trial(removed).path / folder)
        if while_it == "runs":
            while not stopped:
                yield
                stopped[:] = [stop for stop in world.launcher.stops if stop[0] == removed]
        world.launcher.running.pop(removed)
        world.launcher.ended.append(AttemptExit(trial_id=removed, attempt=1, exit_codes={0: 82}))
        yield
        yield from finish(world, other, third)

    status = world.run(removed, other, third, script=script())

    (sentence,) = status.unreadable
    path = world.sweep.trial(removed).path
    place = path / "attempts/0001" if folder else path
    assert sentence.startswith(f"{place}: somebody removed this folder while the trial ran;")
    assert [t.state for t in status.trials] == [TrialState.DONE, TrialState.DONE]
    assert not status.complete
    for trial_id in (other, third):
        assert world.end(trial_id)["outcome"] == "done"

    world.sweep.add_trials([spec])
    world.launcher.deaf = False
    again = world.run(removed, other, third, submission=2, script=finish(world, removed))
    assert again.complete


@pytest.mark.parametrize("written", ["spec.json", "launch.json"])
def test_a_folder_removed_while_its_trial_starts_ends_no_other(world, monkeypatch, written):
    spec = TrialSpec(
        sweep="s",
        data={"source": "x"},
        model={"architecture": "dense"},
        train={"tokens": 1000, "batch_tokens": 10, "seq_len": 10},
        resources=Resources(gpus=0),
        seed=0,
    )
    removed, other = spec.trial_id, world.trial(1)
    world.sweep.add_trials([spec])
    folder = world.sweep.trial(removed).path

    def write(path, *args, **more):
        if path.is_relative_to(folder) and path.name == written:
            shutil.rmtree(folder)
        write_json(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(trial_dir_module, "write_json", write)
        status = world.run(removed, other, script=finish(world, other))

    (sentence,) = status.unreadable
    assert sentence == (
        f"{folder}: somebody removed this folder while the trial started; submit again to train "
        "it; this trial is set aside"
    )
    assert world.end(other)["outcome"] == "done"
    assert not status.complete

    world.sweep.add_trials([spec])
    assert world.run(removed, other, submission=2, script=finish(world, removed)).complete


def test_a_folder_removed_while_its_trial_finds_no_place_ends_no_other(world):
    removed, other = world.trial(0), world.trial(1)
    place = world.launcher.launch

    def launch(request):
        if request.trial_id == removed and not world.launcher.launches:
            world.launcher.launch = place
            shutil.rmtree(world.sweep.trial(removed).path)
            raise NotPlaced("the node is gone")
        return place(request)

    world.launcher.launch = launch

    assert world.run(removed, other, script=finish(world, other, removed)).complete


def test_a_missing_sweep_at_the_start_of_a_trial_ends_the_controller(world, monkeypatch):
    trial = world.trial(0)

    def write(path, *args, **more):
        if path.name == "launch.json":
            shutil.rmtree(world.sweep.path)
        write_json(path, *args, **more)

    monkeypatch.setattr(trial_dir_module, "write_json", write)

    with pytest.raises((FileNotFoundError, MovedError)):
        world.run(trial, script=iter(()))


def test_an_end_that_waits_for_room_is_dropped_with_its_folder(world, monkeypatch):
    first, second = world.trial(0), world.trial(1)
    attempt = world.sweep.trial(first).path / "attempts" / "0001"

    def full(path, record):
        if path == attempt / "end.json" and attempt.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_json(path, record)

    def script():
        while {first, second} - world.launcher.running.keys():
            yield
        world.launcher.end(first, {0: EXIT_CODES[Outcome.DISK_FULL]})
        yield
        yield
        shutil.rmtree(attempt.parent.parent)
        yield from finish(world, second, first)

    monkeypatch.setattr(attempt_exits, "write_json", full)

    assert world.run(first, second, script=script()).complete


def test_what_was_set_aside_goes_on_once_its_record_is_restored(world):
    broken, other = world.trial(0), world.trial(1)
    retry = world.sweep.trial(broken).path / "retry.json"

    def script():
        while broken not in world.launcher.running:
            yield
        damage(retry)
        yield from finish(world, other)

    assert not world.run(broken, other, script=script()).complete
    assert world.end(broken)["outcome"] == "interrupted"
    retry.unlink()

    status = world.run(broken, other, script=finish_attempt(world, broken, 2), submission=2)

    assert status.complete
    assert not status.unreadable


def test_a_damaged_request_to_retry_what_failed_sets_that_aside(world):
    failed, other = world.trial(0), world.trial(1)

    def script():
        yield from fail(world, failed)
        damage(world.sweep.trial(failed).path / "retry.json")
        yield
        yield
        yield from finish(world, other)

    status = world.run(failed, other, script=script())

    assert_set_aside(world, status, failed, "retry.json")


@pytest.mark.parametrize("error", [None, {}, {"kind": "quota", "message": "of a newer version"}])
def test_an_orphaned_attempt_that_cannot_be_closed_is_left_open(world, error):
    broken, other = world.trial(0), world.trial(1)
    world.sweep.trial(broken).new_attempt({"submission": 1})
    file = world.sweep.trial(broken).attempt(1).path / "error.json"
    if error is None:
        damage(file)
    else:
        write_json(file, error)

    status = world.run(broken, other, script=finish(world, other))

    assert world.end(broken) is None
    assert [t.trial_id for t in status.trials] == [other]
    assert len(status.unreadable) == 1


@pytest.mark.parametrize("line", ['"step": "7", "metrics": {}', '"step": 7, "metrics": null'])
def test_a_wrong_line_of_a_journal_sets_its_trial_aside(world, line):
    broken, other = world.trial(0), world.trial(1)
    attempt = world.sweep.trial(broken).new_attempt({"submission": 1})
    attempt.journal.write_text(f'{{"t": 1, {line}}}\n')
    end = {"outcome": "killed", "reason": "signal 9", "final": False}
    write_json(attempt.path / "end.json", end)

    status = world.run(broken, other, script=finish(world, other))

    assert [t.trial_id for t in status.trials if t.state is TrialState.DONE] == [other]
    assert world.sweep.trial(broken).last_attempt() == 1


def test_failing_launcher_leaves_a_truthful_record_and_a_free_lock(world):
    trial = world.trial(0)

    def poll():
        raise ExperimentError("the cluster is gone")

    def script():
        world.launcher.poll = poll
        yield

    with pytest.raises(ExperimentError, match="the cluster is gone"):
        world.run(trial, script=script())

    assert world.end(trial)["outcome"] == "node_lost"
    assert (
        "its controller failed: ExperimentError: the cluster is gone" in world.end(trial)["reason"]
    )
    assert world.launcher.closed
    lock = ControllerLock(world.sweep, submission=2)
    lock.acquire()
    lock.release()


def test_second_controller_is_refused_and_touches_nothing(world):
    trial = world.trial(0)
    holder = ControllerLock(world.sweep, submission=1)
    holder.acquire()

    with pytest.raises(BusyError, match=f"process {os.getpid()}"):
        world.run(trial, script=iter(()))

    assert world.sweep.trial(trial).attempts() == []
    holder.release()


def test_status_is_published_at_least_every_second(world):
    trial = world.trial(0)

    def script():
        for _ in range(20):
            yield
        yield from finish(world, trial)

    world.run(trial, script=script())

    times = [update.updated_at for update in world.updates]
    assert max(b - a for a, b in pairwise(times)) <= 1.0


def test_predictions_are_corrected_by_measured_run_times(world):
    ids = [world.trial(seed) for seed in range(3)]
    world.launcher = FakeLauncher(cpus=1)

    def script():
        for _ in range(40):
            yield
        yield from finish(world, *ids)

    world.run(*ids, script=script(), predicted_s=dict.fromkeys(ids, 10.0))

    after_first = next(u for u in world.updates if u.count(TrialState.DONE) == 1)
    assert after_first.time_left_s > 70


def test_predictions_are_corrected_by_the_rate_of_what_runs(world):
    first, second = world.trial(0), world.trial(1)
    world.launcher = FakeLauncher(cpus=1)

    def script():
        yield
        beat = {"attempt": 1, "step": 50, "steps": 100, "tokens_per_s": 50.0}
        write_json(world.sweep.trial(first).path / "heartbeat.json", beat)
        yield
        yield from finish(world, first, second)

    predicted_s = {first: 2000.0, second: 1000.0}
    world.run(first, second, script=script(), predicted_s=predicted_s)

    with_rate = next(u for u in world.updates if u.trials[0].eta_s)
    assert with_rate.trials[0].eta_s == 10.0  # half of 1,000 tokens
    assert with_rate.time_left_s == 10.0 + 1000.0 * 20.0 / 2000.0


def test_an_attempt_that_went_on_from_a_checkpoint_corrects_predictions_by_its_share(world):
    ids = [world.trial(seed) for seed in range(3)]
    world.launcher = FakeLauncher(cpus=1)

    def stop():
        (world.sweep.trial(ids[0]).checkpoints / "step-50").mkdir(parents=True)
        world.the_controller.stop()
        yield

    world.run(ids[0], script=stop())
    before = world.now

    def script():
        for _ in range(40):
            yield
        yield from finish(world, *ids)

    predicted_s = dict.fromkeys(ids, 1000.0)
    world.run(*ids, script=script(), predicted_s=predicted_s, submission=2)

    after_first = next(u for u in world.updates if u.count(TrialState.DONE) == 1)
    seconds = after_first.updated_at - before
    # Two more, each twice as long as that half of one.
    assert after_first.time_left_s == pytest.approx(2 * 2 * seconds, rel=0.1)


def test_node_where_several_configurations_fail_is_excluded_and_readmitted_on_request(world):
    kinds = [
        world.trial(seed, train={"tokens": 1000 + 10 * seed, "batch_tokens": 10, "seq_len": 10})
        for seed in range(5)
    ]
    world.launcher = FakeLauncher(cpus=1)
    world.launcher.more_nodes = (Node(node_id="g", host="host-good", cpus=1, gpus=()),)
    seen = {}

    def script():
        failed = 0
        while failed < node_exclusion.MIN_CONFIGURATIONS:
            for trial, launch in list(world.launcher.running.items()):
                if launch.node_id == "n" and launch.attempt == 1:
                    failed += 1
                    world.launcher.end(trial, {0: -9})
            yield
            # What was retried here stays quiet, and the other node has work of its own.
            for trial, launch in list(world.launcher.running.items()):
                if launch.attempt > 1 or launch.node_id == "g":
                    world.launcher.end(trial, {0: EXIT_CODES[Outcome.PREEMPTED]})
            yield
        seen["published"], seen["disk"] = world.updates[-1].excluded, status_from_disk(world.sweep)
        before = len(world.launcher.launches)
        for _ in range(4):
            for trial in list(world.launcher.running):
                world.launcher.end(trial, {0: EXIT_CODES[Outcome.PREEMPTED]})
            yield
        seen["on"] = {launch.node_id for launch in world.launcher.launches[before:]}
        next((world.sweep.path / "nodes").glob("host-n.excluded.json")).unlink()
        while {launch.node_id for launch in world.launcher.running.values()} != {"n", "g"}:
            yield
        while True:
            for trial in list(world.launcher.running):
                world.launcher.end(trial, DONE, steps=1)
            yield

    status = world.run(*kinds, script=script())

    assert status.complete
    assert seen["published"] == seen["disk"].excluded
    (sentence,) = seen["published"]
    assert sentence.startswith("node host-n is left out: 3 trials of different kinds failed there")
    assert sentence.count("(killed)") == node_exclusion.MIN_CONFIGURATIONS
    assert seen["on"] == {"g"}
    assert status.excluded == ()


def test_full_disk_pauses_and_goes_on_when_there_is_room(world, monkeypatch):
    trial = world.trial(0, accounting={"total_params": 1.0e6}, retries=Retries(failure=0))
    free = [1.0e6]
    monkeypatch.setattr("orchestrator.records.storage_errors.free_bytes", lambda place: free[0])

    def script():
        world.launcher.end(trial, {0: EXIT_CODES[Outcome.DISK_FULL]}, error=Outcome.DISK_FULL)
        for _ in range(5):
            yield
            assert not world.launcher.running
        free[0] = 14.0e6
        yield from finish(world, trial)

    status = world.run(trial, script=script())

    assert status.complete
    wait = next(u.trials[0].wait for u in world.updates if "is full" in u.trials[0].wait)
    assert "a checkpoint needs about 12.6 MiB; free some there" in wait
    assert len(world.launcher.launches) == 2


def test_end_that_a_full_disk_does_not_take_is_written_later(world, monkeypatch):
    trial = world.trial(0)
    full = [False]
    write = attempt_exits.write_json

    def sometimes(path, record, **more):
        if full[0] and path.name == "end.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, record, **more)

    monkeypatch.setattr(attempt_exits, "write_json", sometimes)

    def script():
        full[0] = True
        world.launcher.end(trial, {0: EXIT_CODES[Outcome.DISK_FULL]})
        for _ in range(3):
            yield
        assert world.end(trial) is None
        assert world.updates[-1].trials[0].state is TrialState.WAITING
        full[0] = False
        yield from finish(world, trial)

    assert world.run(trial, script=script()).complete
    assert world.end(trial)["outcome"] == "disk_full"


class FailingStorage:
    """Everything that the controller reads or writes by this package fails while `code` is set."""

    def __init__(self, monkeypatch, *, below):
        self.code, self.below = None, str(below)
        for name in ("open", "mkdir", "scandir", "listdir", "stat", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))
        monkeypatch.setattr("io.open", self._failing(io.open))

    def _failing(self, function):
        def wrapped(path=".", *args, **more):
            below = not isinstance(path, int) and str(path).startswith(self.below)
            if self.code is not None and below:
                raise OSError(self.code, os.strerror(self.code), str(path))
            return function(path, *args, **more)

        return wrapped


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_storage_that_fails_stops_nothing_for_good(world, monkeypatch, caplog, code):
    ids = [world.trial(seed, retries=Retries(failure=0)) for seed in range(4)]
    storage = FailingStorage(monkeypatch, below=world.sweep.path)
    published = []

    def script():
        # One has just written its result; the other met the failing storage too.
        world.launcher.end(ids[0], DONE, steps=100)
        world.launcher.end(ids[1], {0: EXIT_CODES[Outcome.STORAGE]}, steps=5)
        storage.code = code
        for _ in range(70):
            yield
            assert world.launcher.running == {}
            published.append(world.updates[-1])
        storage.code = None
        while True:
            for trial in list(world.launcher.running):
                world.launcher.end(trial, DONE, steps=100)
            yield

    status = world.run(*ids, script=script())

    assert status.complete
    assert [launch.trial_id for launch in world.launcher.launches].count(ids[0]) == 1
    assert [launch.trial_id for launch in world.launcher.launches].count(ids[1]) == 2
    assert world.end(ids[0])["outcome"] == "done"
    assert world.end(ids[1])["outcome"] == "storage"
    assert world.end(ids[1])["reason"].startswith(
        f"the storage of {world.sweep.trial(ids[1]).path} fails, and took no record of it; "
    )
    assert {len(trial.attempts()) for trial in world.sweep.trials()} == {1, 2}
    waits = {trial.wait for trial in published[-1].trials if trial.state is TrialState.WAITING}
    (wait,) = waits
    assert wait.startswith(f"the storage of {world.sweep.path} fails ({os.strerror(code)}); see to")
    assert "(for 1 min" in wait
    assert sum("fails" in line for line in caplog.messages) == 2, "logged once a minute"
    assert [p for p in world.sweep.path.rglob(".*") if p.is_file()] == []


def test_attempt_that_the_storage_did_not_take_is_begun_again_under_the_same_number(
    world, monkeypatch
):
    trial = world.trial(0)
    left = [2]
    write = trial_dir_module.write_json

    def sometimes(path, record, **more):
        if path.name == "launch.json" and left[0]:
            left[0] -= 1
            (path.parent / ".launch.json-abcd1234").touch()
            raise OSError(errno.EIO, "Input/output error", str(path))
        write(path, record, **more)

    monkeypatch.setattr(trial_dir_module, "write_json", sometimes)

    assert world.run(trial, script=finish(world, trial)).complete
    assert [a.number for a in world.sweep.trial(trial).attempts()] == [1]
    waits = {u.trials[0].wait for u in world.updates}
    assert any(f"the storage of {world.sweep.trial(trial).path} fails" in wait for wait in waits)


def test_a_second_stop_does_not_wait_for_the_storage(world, monkeypatch):
    trial = world.trial(0)
    storage = FailingStorage(monkeypatch, below=world.sweep.path)

    def script():
        storage.code = errno.EIO
        yield
        world.the_controller.stop()
        world.the_controller.stop()
        while True:
            yield

    world.launcher.end = lambda trial_id, codes, **more: world.launcher.ended.append(
        AttemptExit(trial_id=trial_id, attempt=1, exit_codes=codes)
    )
    status = world.run(trial, script=script())

    assert not status.complete
    storage.code = None
    assert world.end(trial) is None, "the next controller writes it down"
    assert not world.updates[-1].controller_alive


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_controller_whose_sweep_was_taken_over_decides_nothing_more(world, monkeypatch, how):
    trial = world.trial(0)
    storage = FailingStorage(monkeypatch, below=world.sweep.path)
    theirs = {**ProcessId.own().to_json(), "pid": 1, "start_ticks": 1, "submission": 2}

    def script():
        storage.code = errno.EIO if how == "fails" else None
        for _ in range(70 if how == "fails" else 0):
            yield
        storage.code = None
        world.now += 70.0 if how == "hangs" else 0.0
        world.launcher.end(trial, {0: -9})
        write_json(world.sweep.path / "controller.json", theirs)
        yield

    with pytest.raises(BusyError, match="process 1 on .* took it over"):
        world.run(trial, script=script())

    assert world.sweep.controller() == theirs
    assert world.end(trial) is None
    assert world.launcher.closed


def test_last_end_is_waited_for_when_the_storage_fails(world, monkeypatch):
    trial = world.trial(0)
    write, left = attempt_exits.write_json, [5]

    def sometimes(path, record, **more):
        if path.name == "end.json" and left[0]:
            left[0] -= 1
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        write(path, record, **more)

    monkeypatch.setattr(attempt_exits, "write_json", sometimes)

    status = world.run(trial, script=finish(world, trial))

    assert world.end(trial)["outcome"] == "done"
    assert status.trials[0].outcome is Outcome.DONE


def test_node_whose_mount_fails_is_excluded_when_the_storage_works_elsewhere(world):
    tracker = node_exclusion.FailureTracker()
    published = [
        tracker.record("n", configuration=kind, trial_id=kind, outcome=Outcome.STORAGE)
        for kind in ("a", "b", "c")
    ]

    assert published[:2] == [None, None]
    assert "a (storage), b (storage), c (storage)" in published[2]


def test_node_is_not_to_blame_for_storage_that_fails_everywhere(world, monkeypatch):
    kinds = [
        world.trial(seed, train={"tokens": 1000 + 10 * seed, "batch_tokens": 10, "seq_len": 10})
        for seed in range(3)
    ]
    world.launcher = FakeLauncher(cpus=3)
    world.launcher.more_nodes = (Node(node_id="g", host="host-good", cpus=0, gpus=()),)
    write, fails = attempt_exits.write_json, [True]

    def sometimes(path, record, **more):
        if fails[0] and path.name == "end.json":
            raise OSError(errno.EIO, "Input/output error")
        write(path, record, **more)

    monkeypatch.setattr(attempt_exits, "write_json", sometimes)

    def script():
        for trial in kinds:
            world.launcher.end(trial, {0: EXIT_CODES[Outcome.STORAGE]})
        yield
        yield
        fails[0] = False
        yield from finish(world, *kinds)

    status = world.run(*kinds, script=script())

    assert status.complete
    assert all(not update.excluded for update in world.updates)
