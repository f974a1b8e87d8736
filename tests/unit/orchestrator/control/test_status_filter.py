"""Which trials `memscale status --where` shows."""

import pytest

from orchestrator.control.status import status_from_disk
from orchestrator.control.status_filter import parse_filter, select
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec


@pytest.fixture
def sweep(tmp_path):
    """Four trials of two sizes and two learning rates; those of the larger size are done."""
    sweep = SweepDir(tmp_path / "s")
    for n_keys in (64, 256):
        for lr in (0.003, 0.001):
            spec = TrialSpec(
                sweep="s",
                data={"source": "x"},
                model={"architecture": "memory_plus", "n_keys": n_keys},
                train={"tokens": 100, "batch_tokens": 10, "lr": lr, "tied": lr > 0.002},
                seed=0,
            )
            sweep.trial(spec.trial_id).create(spec)
            if n_keys == 256:
                result = {"metrics": {}, "finished_at": 1.0}
                write_json(sweep.trial(spec.trial_id).path / "result.json", result)
    return sweep


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state=done", [(256, 0.003), (256, 0.001)]),
        ("model.n_keys=256,train.lr=3e-3", [(256, 0.003)]),
        ("model.n_keys=64, train.lr=0.001, state=waiting", [(64, 0.001)]),
        ("model.n_keys=64,state=done", []),
        ("state=done,state=waiting,train.tied=on", [(64, 0.003), (256, 0.003)]),
        ("train.lr=many", []),
        ("preset=none,train.lr=1e-3", [(64, 0.001), (256, 0.001)]),
        ("model.preset=none,train.lr=1e-3", [(64, 0.001), (256, 0.001)]),
        ("model.architecture=memory_plus,state=done", [(256, 0.003), (256, 0.001)]),
        ("state=failed,outcome=gpu_oom", []),
        ("outcome=none,train.lr=1e-3", [(64, 0.001), (256, 0.001)]),
    ],
)
def test_every_key_must_fit(sweep, text, expected):
    status = select(sweep, status_from_disk(sweep, now=1.0), parse_filter(text))
    kept = status.trials
    assert len(kept) + status.hidden == 4

    specs = [sweep.trial(trial.trial_id).spec() for trial in kept]
    assert sorted((s.model["n_keys"], s.train["lr"]) for s in specs) == sorted(expected)


@pytest.mark.parametrize("key", ["n_keys", "model.nkeys"])
def test_an_unknown_key_names_the_near_one(sweep, key):
    with pytest.raises(ValueError, match=rf"no trial has '{key}'; did you mean model\.n_keys\?"):
        select(sweep, status_from_disk(sweep, now=1.0), parse_filter(f"{key}=256"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "state=runing",
            "no trial has state=runing; did you mean running? "
            "take one of waiting, running, done, failed, cancelled",
        ),
        ("state=done,state=Failed", "no trial has state=Failed; did you mean failed? take one"),
        ("outcome=disk", "no trial has outcome=disk; "),
        (
            "architecture=memory_pluss",
            "no trial has architecture=memory_pluss; did you mean memory_plus? "
            "all have memory_plus",
        ),
        ("state=done,model.architecture=dense", "no trial has model.architecture=dense; all have"),
        ("preset=10m", "no trial has preset=10m; all have none"),
    ],
)
def test_a_value_that_no_trial_can_have_names_those_there_are(sweep, text, message):
    with pytest.raises(ValueError, match="no trial has") as caught:
        select(sweep, status_from_disk(sweep, now=1.0), parse_filter(text))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["", "state", "=done", "state=done,"])
def test_what_is_no_filter_is_refused(text):
    with pytest.raises(ValueError, match="must be key=value"):
        parse_filter(text)
