"""Whole sweeps on this machine without Ray, with a job that counts instead of training."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from orchestrator.control.loop import Controller
from orchestrator.launchers.local import (
    DebugLauncher,
    ProcessLauncher,
    rank_environment,
    shares_gpus,
)
from orchestrator.records.processes import pids_with_environment
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome, Resources, Retries, TrialSpec, TrialState
from orchestrator.submit.stop_signals import stop_signals

JOB = f"{Path(__file__).parent.parent / 'counting_job.py'}:run"


@pytest.fixture
def sweep(tmp_path):
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    return sweep


# Both defaults are frozen.
def add(sweep, seed, *, resources=Resources(gpus=0), retries=Retries(), **data):  # noqa: B008
    spec = spec_of(seed, resources=resources, retries=retries, **data)
    sweep.trial(spec.trial_id).create(spec)
    return spec.trial_id


def spec_of(seed, *, resources=Resources(gpus=0), retries=Retries(), **data):  # noqa: B008
    return TrialSpec(
        sweep="s",
        data={"source": "x", **data},
        model={"architecture": "dense"},
        train={"tokens": 100, "batch_tokens": 10, "seq_len": 10},
        seed=seed,
        resources=resources,
        retries=retries,
    )


def control(sweep, launcher, trial_ids, submission=1):
    return Controller(
        sweep,
        submission=submission,
        trial_ids=trial_ids,
        launcher=launcher,
        cache=sweep.path / "cache",
        job=JOB,
    )


def merged_steps(sweep, trial_id):
    return sorted(sweep.trial(trial_id).metrics()["train/loss"])


def loss_by_step(sweep, trial_id):
    return {
        step: value for step, (_, value) in sweep.trial(trial_id).metrics()["train/loss"].items()
    }


def test_sweep_of_processes_finishes_with_every_kind_of_trial(sweep):
    plain, two_ranks = add(sweep, 0), add(sweep, 1, resources=Resources(gpus=0, ranks=2))
    oom_once = add(sweep, 2, fail={"1": "oom"})
    wrong = add(sweep, 3, fail={"1": "user"})
    launcher = ProcessLauncher(sweep, cpus=2, gpus=0, job=JOB)

    status = control(sweep, launcher, [plain, two_ranks, oom_once, wrong]).run()

    assert [t.state for t in status.trials] == [TrialState.DONE] * 3 + [TrialState.FAILED]
    assert status.trials[3].outcome is Outcome.USER_ERROR
    assert status.trials[3].reason.startswith("ValueError: train.lr: must be positive")
    assert [len(sweep.trial(t).attempts()) for t in (plain, two_ranks, oom_once, wrong)] == [
        1,
        1,
        2,
        1,
    ]
    assert merged_steps(sweep, oom_once) == list(range(1, 11))
    assert pids_with_environment("MEMSCALE_SWEEP_DIR", str(sweep.path)) == []
    environment = sweep.trial(plain).attempt(1).environment()
    assert environment


def test_interrupted_sweep_goes_on_where_it_was_with_the_same_numbers(sweep, tmp_path):
    ids = [add(sweep, seed, gate_at=6) for seed in range(3)]
    controller = control(sweep, ProcessLauncher(sweep, cpus=2, gpus=0, job=JOB), ids)

    def stop_at_the_gate(status):
        if sum((sweep.trial(t.trial_id).path / "at-gate").exists() for t in status.trials) == 2:
            controller.stop()

    stopped = controller.run(stop_at_the_gate)
    assert {t.state for t in stopped.trials} == {TrialState.WAITING}
    assert [t.outcome for t in stopped.trials] == [Outcome.INTERRUPTED, Outcome.INTERRUPTED, None]

    for trial_id in ids:
        (sweep.trial(trial_id).path / "go").touch()
    status = control(
        sweep, ProcessLauncher(sweep, cpus=2, gpus=0, job=JOB), ids, submission=2
    ).run()

    assert status.complete
    undisturbed = SweepDir(tmp_path / "undisturbed")
    for seed, trial_id in enumerate(ids):
        assert add(undisturbed, seed, gate_at=6) == trial_id
        (undisturbed.trial(trial_id).path / "go").touch()
    control(undisturbed, DebugLauncher(cpus=2, gpus=0), ids).run()
    for trial_id in ids:
        assert merged_steps(sweep, trial_id) == list(range(1, 11))
        assert loss_by_step(sweep, trial_id) == loss_by_step(undisturbed, trial_id)


def test_cancelled_trial_checkpoints_and_leaves(sweep):
    trial = add(sweep, 0, gate_at=6)
    controller = control(sweep, ProcessLauncher(sweep, cpus=1, gpus=0, job=JOB), [trial])

    def cancel_at_the_gate(status):
        if (sweep.trial(trial).path / "at-gate").exists():
            sweep.trial(trial).request_cancel("test")

    status = controller.run(cancel_at_the_gate)

    assert status.trials[0].state is TrialState.CANCELLED
    assert (
        sweep.trial(trial)
        .attempt(1)
        .end()["reason"]
        .startswith("cancelled on request; no step is lost")
    )
    assert (sweep.trial(trial).checkpoints / "step-00000005").exists()


def test_debugger_runs_one_trial_after_another_in_this_process(sweep):
    ids = [add(sweep, seed) for seed in range(2)]

    status = control(sweep, DebugLauncher(cpus=2, gpus=0), ids).run()

    assert status.complete
    seen = [json.loads((sweep.trial(t).attempt(1).path / "seen-0.json").read_text()) for t in ids]
    assert [s["pid"] for s in seen] == [os.getpid()] * 2


def test_a_signal_stops_the_trial_in_the_debugger_and_the_sweep_after_it(sweep):
    ids = [add(sweep, seed, gate_at=6) for seed in range(2)]
    controller = control(sweep, DebugLauncher(cpus=2, gpus=0), ids)
    at_gate = sweep.trial(ids[0]).path / "at-gate"
    stopped, over = [], threading.Event()

    def signal_at_the_gate():
        while not (at_gate.exists() or over.wait(0.01)):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        if not over.wait(20):
            (sweep.trial(ids[0]).path / "go").touch()

    with stop_signals(lambda: (stopped.append(1), controller.stop())):
        sender = threading.Thread(target=signal_at_the_gate)
        sender.start()
        status = controller.run()
        over.set()
        sender.join()

    assert stopped == [1]
    assert [(t.state, t.outcome) for t in status.trials] == [
        (TrialState.WAITING, Outcome.INTERRUPTED),
        (TrialState.WAITING, None),
    ]
    assert (sweep.trial(ids[0]).checkpoints / "step-00000005").exists()
    assert sweep.trial(ids[0]).attempt(1).error() is None


def test_debugger_lets_the_error_through_and_records_it(sweep):
    trial = add(sweep, 0, fail={"1": "user"})

    with pytest.raises(ValueError, match=r"train\.lr"):
        control(sweep, DebugLauncher(cpus=1, gpus=0), [trial]).run()

    end = sweep.trial(trial).attempt(1).end()
    assert (end["outcome"], end["final"]) == ("user_error", True)
    assert "counting_job.py" in sweep.trial(trial).attempt(1).error()["traceback"]


@pytest.mark.parametrize(
    ("gpus", "shares"), [(0, False), (0.125, True), (1, False), (2, False), ("auto", False)]
)
def test_trials_share_gpus_where_the_first_asks_for_a_part_of_one(sweep, gpus, shares):
    spec = spec_of(0, resources=Resources(gpus=gpus))
    assert not shares_gpus(sweep)
    sweep.add_trials([spec])
    assert shares_gpus(sweep) is shares

    sweep.trial(spec.trial_id).create(spec)  # as its first attempt does
    sweep.add_trials([])
    assert shares_gpus(sweep) is shares


def test_sweeps_of_a_runs_folder_share_what_is_compiled(sweep):
    first, second = (rank_environment(SweepDir(sweep.path.parent / name)) for name in "ab")

    for cache in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert first[cache] == second[cache]
        assert Path(first[cache]).is_relative_to(sweep.path.parent / "cache")


def test_a_spec_that_cannot_be_read_shares_nothing(sweep):
    trial = sweep.trial(add(sweep, 0, resources=Resources(gpus=0.5)))
    (trial.path / "spec.json").unlink()

    assert not shares_gpus(sweep)
