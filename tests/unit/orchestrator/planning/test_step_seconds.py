"""Trials whose steps were timed for a match are predicted by that, not by FLOPs or other records."""

from types import SimpleNamespace

import pytest

from orchestrator.planning.pricing import make_plan
from orchestrator.planning.runtime_prior import Measurement
from orchestrator.planning.step_seconds import StepSeconds
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.wait_queue import WaitQueue
from orchestrator.simulation.cluster_spec import parse
from orchestrator.simulation.planned_trials import rate_text, waiting_trials
from orchestrator.sweep import registry
from orchestrator.sweep.load import load_sweep

HEADER = """
name: equal_seconds
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 65536, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2, value_lr_ratio: 4.0}
model: {architecture: dense, preset: d16}
"""
AT_EQUAL_SECONDS = """
trials:
  - grid: {model.architecture: [pythia, engram]}
    match: {step_time: dense, solve: tokens}
  - set: {model.architecture: dense}
  - set: {model.architecture: dense, model.output_init: depth_scaled}
seeds: [0, 1]
"""
CPU, GPU, NEW_GPU = "AMD EPYC", "NVIDIA H100 80GB HBM3", "Quadro RTX 6000"
"""As the timer names them."""
STEP_S = {"dense": 0.010, "pythia": 0.013, "engram": 0.0177}
QUICK_DENSE = [
    Measurement(architecture=name, device=GPU, flops_per_token=1e5, s_per_token=s)
    for name, s in (("dense", 1e-9), ("pythia", 1e-6), ("engram", 1e-7))
]
"""What other sweeps recorded: trials of dense would come last."""


class Timer:
    """Answers like workloads/training/step/step_time.py; the counterpart's time drifts a little."""

    def __init__(self, device):
        self._device = device
        self._drift = 1.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def time(self, request):
        self._drift *= 1.001
        seconds = [STEP_S[model["architecture"]] * self._drift for model in request["models"]]
        told = {"device": self._device, "n_threads": request["n_threads"]}
        if self._device == NEW_GPU:
            told["device_type"] = "cuda"
        return {"seconds": [[s] * 20 for s in seconds], **told}


@pytest.fixture
def plan(tmp_path):
    """Return a function that plans a sweep whose steps were timed on a device."""

    def made(trials, *, device=GPU, measured=(), on_gpus=True):
        file = tmp_path / "equal_seconds.yaml"
        file.write_text(HEADER + trials)
        workloads = SimpleNamespace(**{**vars(registry), "step_timer": lambda: Timer(device)})
        sweep = load_sweep(file, workloads=workloads)
        there = SweepDir(tmp_path / "runs" / "equal_seconds").snapshot()
        return make_plan(sweep, there, measured, gpus_there=on_gpus)

    return made


def test_trials_of_one_comparison_tie_and_start_in_the_order_of_the_file(plan):
    found = plan(AT_EQUAL_SECONDS, measured=QUICK_DENSE)

    assert {t.runtime.source for t in found.trials} == {"steps"}
    # Each of the two was timed beside dense, whose time had drifted meanwhile.
    assert len({t.runtime.seconds for t in found.trials}) == 1
    assert found.trials[0].runtime.seconds == pytest.approx(64 * STEP_S["dense"], rel=0.01)
    cluster = parse("gpus=8")
    (waiting,) = WaitQueue(waiting_trials(found, cluster))
    assert [e.trial.trial_id for e in waiting.entries] == [t.spec.trial_id for t in found.trials]
    assert rate_text(found, cluster).startswith("from measured step times")


def test_a_share_of_a_gpu_gets_its_share(plan):
    whole, eighth = (
        plan(f"{AT_EQUAL_SECONDS}resources: {{gpus: {gpus}}}\n").trials for gpus in (1, 0.125)
    )

    assert [t.runtime.seconds for t in eighth] == [8 * t.runtime.seconds for t in whole]


@pytest.mark.parametrize(("device", "on_gpus"), [(CPU, True), (GPU, False), (NEW_GPU, False)])
def test_times_of_the_other_kind_of_device_predict_nothing(plan, device, on_gpus):
    found = plan(AT_EQUAL_SECONDS, device=device, on_gpus=on_gpus)

    assert {t.runtime.source for t in found.trials} == {"guess"}


def test_steps_on_a_core_are_not_shared(plan):
    text = f"{AT_EQUAL_SECONDS}resources: {{gpus: 0.5, cpus: 2}}\n"
    found = plan(text, device=CPU, on_gpus=False).trials

    assert found[0].runtime.seconds == pytest.approx(64 * STEP_S["dense"], rel=0.01)
    # What was timed with two threads says nothing about one.
    one_thread = plan(text.replace("cpus: 2", "cpus: 1"), device=CPU, on_gpus=False).trials
    assert {t.runtime.source for t in one_thread} == {"guess"}


def test_only_what_was_timed_is_predicted_by_it(plan):
    found = plan(
        AT_EQUAL_SECONDS.replace(
            "seeds: [0, 1]",
            "  - set: {model.architecture: engram, train.lr: 3.0e-2}\n"
            "  - set: {model.architecture: engram, train.batch_tokens: 2048}\n"
            "  - set: {model.architecture: dense, train.lr: 3.0e-2, resources.ranks: 2}\n"
            "  - set: {model.architecture: dense, train.lr: 4.0e-2, resources.compile: false}",
        )
    ).trials
    timed, *others = found[-4:]

    assert timed.runtime.seconds == pytest.approx(64 * STEP_S["engram"], rel=0.01)
    assert {other.runtime.source for other in others} == {"guess"}


def test_seconds_that_a_step_is_to_take_are_those_of_the_trial(plan):
    trials = """
trials:
  - set: {model.architecture: pythia}
    match: {step_time: 0.013}
  - set: {model.architecture: pythia, train.lr: 3.0e-2}
"""
    matched, equal = plan(trials).trials

    assert matched.runtime.seconds == 64 * 0.013
    assert matched.spec.model == equal.spec.model
    assert equal.runtime.seconds == pytest.approx(64 * 0.013, rel=0.01)


def test_an_answer_that_does_not_say_what_was_compared_predicts_nothing(plan):
    spec = plan(AT_EQUAL_SECONDS).trials[0].spec

    assert StepSeconds([{"step_s": 1.0}]).predict(spec, None, on_gpu=True) is None
