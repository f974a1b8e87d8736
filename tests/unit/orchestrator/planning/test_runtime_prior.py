import itertools
import math
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from orchestrator.planning.runtime_prior import (
    Measurement,
    matmul_flops_per_second,
    measurements,
    predict_runtime,
    state_bytes_per_token,
)
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec


def spec(architecture="dense", *, flops=3.0e9, tokens=1.0e6):
    return TrialSpec(
        sweep="s",
        data={"source": "biographies"},
        model={"architecture": architecture},
        train={},
        seed=0,
        accounting={"training_flops": flops, "training_tokens": tokens},
    )


def measured(architecture="dense", *, flops_per_token=3000.0, s_per_token=1e-5):
    return Measurement(
        architecture=architecture,
        device="cpu",
        flops_per_token=flops_per_token,
        s_per_token=s_per_token,
    )


def test_a_measured_trial_of_the_same_size_is_believed():
    found = predict_runtime(spec(), [measured()], flops_per_second=None)

    assert found.source == "measured"
    assert math.isclose(found.seconds, 10.0)


def test_a_larger_model_takes_longer_and_a_smaller_one_no_less():
    larger = predict_runtime(spec(flops=3.0e10), [measured()], flops_per_second=None)
    smaller = predict_runtime(spec(flops=3.0e8), [measured()], flops_per_second=None)

    assert math.isclose(larger.seconds, 100.0)
    assert math.isclose(smaller.seconds, 10.0)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_time_carried_far_is_the_upper_end_of_a_range(on_gpu):
    device = "NVIDIA H100" if on_gpu else "cpu"
    small = replace(measured(flops_per_token=3.0e3, s_per_token=1e-4), device=device)

    def at(ratio: float):
        wanted = spec(flops=ratio * 3.0e9)
        return predict_runtime(wanted, [small], flops_per_second=1.0e11, on_gpu=on_gpu)

    assert at(10.0).factors == (1.0, 1.0)
    far = at(1.0e4)
    assert math.isclose(far.seconds, 1.0e6)
    assert far.factors[1] == 1.0
    # At the fastest that was seen, and a fifth: 6e14 FLOP/s on a GPU; three times the guess on a core.
    seconds = 3.0e13 / 6.0e14 if on_gpu else (3.0e13 / 1.0e10 + 20.0) / 3
    assert far.seconds * far.factors[0] == pytest.approx(seconds)


def with_state(found, state_bytes, **more):
    """Return a spec, of one step unless told, whose weights, gradients and optimizer state are so large."""
    numbers = {"model_state_bytes": state_bytes, "activation_bytes": 7.0, "steps": 1.0}
    numbers["peak_memory_bytes"] = state_bytes + 1.2 * 7.0 + 100.0
    return replace(found, accounting={**found.accounting, **numbers, **more})


@pytest.mark.parametrize(
    ("flops_factor", "state_factor", "highest"),
    [(1.0, 100.0, 100.0), (10.0, 100.0, 10.0), (1.0, 8.0, 1.0), (1e4, 1e3, 1.0), (1e3, 1e4, 10)],
)
def test_state_that_grows_faster_than_flops_is_the_upper_end(flops_factor, state_factor, highest):
    small = replace(measured(), state_bytes_per_token=2.0)
    wanted = with_state(spec(flops=3.0e9 * flops_factor), 2.0e6 * state_factor)

    found = predict_runtime(wanted, [small], flops_per_second=1.0e11)

    assert found.seconds == pytest.approx(10.0 * flops_factor)
    assert found.factors[1] == pytest.approx(highest)
    assert found.extrapolated == (max(flops_factor, state_factor) > 10)


def test_rows_that_are_not_read_are_not_passed_over():
    whole = with_state(spec(), 8.0e6, params_memory_values=3.0, total_params=4.0)
    assert state_bytes_per_token(whole) == 8.0
    lazy = replace(whole, train={"table_optimizer": "lazy_adamw"})
    assert state_bytes_per_token(lazy) == 2.0
    assert state_bytes_per_token(spec()) is None


def test_records_from_before_the_state_was_counted_tell_it_by_their_peak():
    numbers = {"peak_memory_bytes": 8.0e6 + 1.2e9, "activation_bytes": 1.0e9, "steps": 1.0}
    old = replace(spec(), accounting={**spec().accounting, **numbers})

    assert state_bytes_per_token(old) == pytest.approx(8.0)


def test_a_start_is_taken_once_however_long_the_training():
    took = replace(measured(), start_s=15.0)  # 10 s a million tokens

    long = predict_runtime(spec(flops=3.0e11, tokens=1.0e8), [took], flops_per_second=None)
    larger = predict_runtime(spec(flops=3.0e10), [took], flops_per_second=None)

    assert (long.seconds, long.factors) == (pytest.approx(1015.0), (1.0, 1.0))
    assert larger.seconds == pytest.approx(115.0), "a larger model compiles no longer"


def in_batches(batch_tokens, *, tokens=1.0e6, **more):
    found = replace(spec(tokens=tokens, **more), train={"batch_tokens": batch_tokens})
    return replace(found, accounting={**found.accounting, "steps": tokens / batch_tokens})


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_measurement_of_a_near_batch_is_preferred(on_gpu):
    device = "NVIDIA H100" if on_gpu else "cpu"
    near, far = (
        replace(measured(s_per_token=s), device=device, batch_tokens=batch)
        for batch, s in ((4_000, 2e-5), (64_000, 1e-5))
    )

    found = predict_runtime(in_batches(4_000), [far, near], flops_per_second=None, on_gpu=on_gpu)

    assert (found.seconds, found.factors) == (pytest.approx(20.0), (1.0, 1.0))


@pytest.mark.parametrize("flops_factor", [1.0, 2.0])
@pytest.mark.parametrize("shorter", [2.0, 64.0])
def test_the_range_of_a_smaller_batch_holds_steps_that_take_what_they_took(flops_factor, shorter):
    took = replace(measured(), batch_tokens=64_000)
    wanted = in_batches(64_000 / shorter, flops=3.0e9 * flops_factor)

    found = predict_runtime(wanted, [took], flops_per_second=None)

    assert found.seconds == pytest.approx(10.0 * flops_factor)
    assert found.factors == (1.0, pytest.approx(shorter / flops_factor))
    assert found.extrapolated == (shorter > flops_factor)


def test_the_range_of_a_larger_batch_holds_fewer_steps_that_take_what_they_took():
    took = replace(measured(s_per_token=1e-3), batch_tokens=1_000)

    found = predict_runtime(in_batches(4_000), [took], flops_per_second=1.0e11)

    assert found.seconds == pytest.approx(1000.0)
    assert found.factors == (pytest.approx(0.25), 1.0)


def test_many_small_steps_on_a_gpu_take_their_least_time():
    """d32 in steps of 65,536 tokens at 14.5 M tokens/s (docs/benchmarks.md), then of 1,024."""
    took = replace(
        measured(flops_per_token=4.0e5, s_per_token=1 / 14.5e6),
        device="NVIDIA H100",
        start_s=3.0,
        batch_tokens=65_536,
    )
    wanted = in_batches(1_024, flops=4.0e5 * 2.0e7, tokens=2.0e7)

    found = predict_runtime(wanted, [took], flops_per_second=None, on_gpu=True)

    steps = 2.0e7 / 1_024
    low, high = (found.seconds * factor for factor in found.factors)
    assert low == pytest.approx(3.0 + steps * 6.0e-4 / 4)
    assert high == pytest.approx(3.0 + steps * 65_536 / 14.5e6)


@pytest.mark.parametrize(
    ("flops_per_token", "params", "batch_tokens", "tokens_per_s"),
    [
        (757.9e6, 937.1e6, 16_384, 190_028),
        (770.3e6, 134.1e6, 16_384, 288_376),
        (214.7e6, 151.0e6, 32_768, 514_575),
    ],
    ids=["memory_plus 134m", "dense 134m", "memory_plus 30m"],
)
def test_the_range_holds_what_was_measured_of_larger_models_and_tables(
    monkeypatch, flops_per_token, params, batch_tokens, tokens_per_s
):
    """From dense 30m to others on one GPU (docs/benchmarks.md), adamw of all parameters."""
    monkeypatch.setattr("orchestrator.planning.runtime_prior.FAR", 1.0)
    small = Measurement(
        architecture="dense",
        device="NVIDIA H100",
        flops_per_token=221.8e6,
        s_per_token=1 / 694_734,
        state_bytes_per_token=16 * 34.4e6 / 32_768,
    )
    wanted = with_state(spec(flops=flops_per_token * 1e6), 16 * params, steps=1e6 / batch_tokens)

    found = predict_runtime(wanted, [small], flops_per_second=None, on_gpu=True)

    low, high = (found.seconds * factor for factor in found.factors)
    assert low < 1e6 / tokens_per_s < high


def test_the_same_architecture_is_preferred_to_a_nearer_size():
    found = predict_runtime(
        spec("memory_plus"),
        [measured("dense"), measured("memory_plus", flops_per_token=1000.0, s_per_token=2e-5)],
        flops_per_second=None,
    )

    assert found.source == "measured"
    assert math.isclose(found.seconds, 60.0)


def test_another_architecture_is_scaled_and_said_so():
    assert (
        predict_runtime(spec("memory_plus"), [measured("dense")], flops_per_second=None).source
        == "scaled"
    )


def test_what_a_cpu_took_says_nothing_about_a_gpu():
    assert (
        predict_runtime(spec(), [measured()], flops_per_second=None, on_gpu=True).source == "guess"
    )


def test_without_measurements_the_guess_says_that_it_is_one():
    found = predict_runtime(spec(), [], flops_per_second=1.0e9)

    assert found.source == "guess"
    assert found.seconds > 3.0
    low, high = (found.seconds * factor for factor in found.factors)
    assert low < found.seconds < high


@pytest.mark.parametrize(
    ("flops_per_token", "tokens_per_s"),
    [(70.4e6, 186_320), (221.8e6, 694_734), (770.3e6, 288_376)],
    ids=["memoryformer 30m", "dense 30m", "dense 134m"],
)
def test_the_range_of_a_guess_holds_steps_that_were_measured_on_a_gpu(
    flops_per_token, tokens_per_s
):
    """docs/benchmarks.md, training steps of all architectures."""
    found = predict_runtime(
        spec(flops=flops_per_token * 1e6), [], flops_per_second=None, on_gpu=True
    )

    low, high = (found.seconds * factor for factor in found.factors)
    assert low < 1e6 / tokens_per_s < high


@pytest.mark.parametrize("step_s", [8192 / 14.53e6, 8192 / 11.63e6, 8192 / 0.97e6])
@pytest.mark.parametrize("start_s", [0.004, 1.6, 3.0, 17.9])
def test_a_small_model_on_a_gpu_takes_a_least_time_a_step_and_compiles(step_s, start_s):
    """d32, steps and starts of docs/benchmarks.md: its FLOPs alone take a tenth of the steps."""
    steps = 610.0
    d32 = spec(flops=4.0e5 * 8192 * steps, tokens=8192 * steps)
    d32 = replace(d32, accounting={**d32.accounting, "steps": steps})

    found = predict_runtime(d32, [], flops_per_second=None, on_gpu=True)

    assert found.seconds == pytest.approx(3.0 + 610 * 6e-4)
    low, high = (found.seconds * factor for factor in found.factors)
    assert low < start_s + steps * step_s < high


def test_what_was_measured_has_no_range():
    assert predict_runtime(spec(), [measured()], flops_per_second=None).factors == (1.0, 1.0)


def test_a_matrix_product_has_a_rate():
    assert matmul_flops_per_second(size=64, repeats=2) > 0


def test_the_rate_is_that_of_a_core_whatever_else_runs(monkeypatch):
    """Three other processes leave a quarter of the wall time."""
    core, product = itertools.count(), itertools.count()
    monkeypatch.setattr(time, "process_time", lambda: 0.5 * next(core))
    monkeypatch.setattr(time, "perf_counter", lambda: 2.0 * next(product))

    assert matmul_flops_per_second(size=10, products=7, repeats=3) == 7 * 2.0 * 10**3 / 0.5


IN_ONE_THREAD = """
import time
from orchestrator.planning.runtime_prior import matmul_flops_per_second
matmul_flops_per_second()
in_all, here = time.process_time(), time.thread_time()
matmul_flops_per_second(repeats=20)
print(time.process_time() - in_all, time.thread_time() - here)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has one thread")
def test_the_rate_is_measured_in_one_thread():
    """Threads of BLAS that wait for each other in loops took 13 times the core seconds."""
    free = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}

    said = subprocess.check_output([sys.executable, "-c", IN_ONE_THREAD], env=free, text=True)

    in_all, here = map(float, said.split())
    # Threads that BLAS begins at its import took as much again on a busy machine.
    assert in_all < 5 * here + 0.05


@pytest.mark.parametrize("tokens", [-1, 0, None])
def test_a_result_with_an_impossible_number_of_tokens_is_no_measurement(tmp_path, tokens):
    trained = in_batches(1_024)
    done = SweepDir(tmp_path / "a").trial(trained.trial_id)
    done.create(trained)
    result = {"tokens": tokens, "metrics": {"time/train_s": 15.0}}
    write_json(done.path / "result.json", result)

    assert measurements(tmp_path) == []


def test_finished_trials_of_all_sweeps_are_measurements_and_broken_folders_are_not(tmp_path):
    trained = in_batches(1_024)
    done = SweepDir(tmp_path / "a").trial(trained.trial_id)
    done.create(trained)
    write_json(
        done.path / "result.json",
        {
            "tokens": 1_000_000,
            "device": "cpu",
            "metrics": {"time/train_s": 15.0, "time/start_s": 5.0},
        },
    )
    unfinished = SweepDir(tmp_path / "b").trial(spec("memory_plus").trial_id)
    unfinished.create(spec("memory_plus"))

    [only] = measurements(tmp_path)

    assert only.architecture == "dense"
    assert math.isclose(only.s_per_token, 1.5e-5)
    assert (only.start_s, only.batch_tokens) == (5.0, 1_024)
    assert measurements(tmp_path / "nowhere") == []
