import pandas as pd
import pytest

from analysis.report.device_share import device_share

ROW = {
    "training_flops": 1.0e15,
    "device/gpus": 1.0,
    "device/peak_bf16_flops_per_s": 1.0e15,
    "time/train_s": 3.0,
    "time/evaluate_s": 1.0,
    "time/data_s": 0.0,
}


def test_trials_side_by_side_on_one_gpu_add_up():
    """Two trials of one second's work each: 4 s of a GPU alone, then 4 s of half a GPU."""
    table = pd.DataFrame([ROW, {**ROW, "device/gpus": 0.5}])

    assert f"2 trials used {2 / 6:.2g} of the bf16 peak of {6 / 3600:.3g} GPU-hours" in str(
        device_share(table)
    )


def test_starting_and_benchmarks_hold_the_gpu_too():
    """A second trial of 4 s, which is from before they were recorded."""
    table = pd.DataFrame([{**ROW, "time/start_s": 5.0, "time/benchmarks_s": 3.0}, ROW])

    assert f"used {2 / 16:.2g} of the bf16 peak of {16 / 3600:.3g} GPU-hours" in str(
        device_share(table)
    )


def test_trials_that_do_not_say_are_counted_out():
    cpu = {name: value for name, value in ROW.items() if not name.startswith("device/")}

    assert "1 trial used 0.25 of" in str(device_share(pd.DataFrame([ROW, cpu])))
    assert str(device_share(pd.DataFrame([ROW, cpu]))).endswith("; 1 did not record it")


@pytest.mark.parametrize("missing", [["device/gpus"], list(ROW)])
def test_without_gpus_nothing_is_said(missing):
    assert device_share(pd.DataFrame([ROW]).drop(columns=missing)) is None
