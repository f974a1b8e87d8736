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
        ("model.architecture=dense", []),
    ],
)
def test_every_key_must_fit(sweep, text, expected):
    kept = select(sweep, status_from_disk(sweep, now=1.0), parse_filter(text)).trials

    specs = [sweep.trial(trial.trial_id).spec() for trial in kept]
    assert sorted((s.model["n_keys"], s.train["lr"]) for s in specs) == sorted(expected)


@pytest.mark.parametrize("key", ["n_keys", "model.nkeys"])
def test_an_unknown_key_names_the_near_one(sweep, key):
    with pytest.raises(ValueError, match=rf"no trial has '{key}'; did you mean model\.n_keys\?"):
        select(sweep, status_from_disk(sweep, now=1.0), parse_filter(f"{key}=256"))


@pytest.mark.parametrize("text", ["", "state", "=done", "state=done,"])
def test_what_is_no_filter_is_refused(text):
    with pytest.raises(ValueError, match="must be key=value"):
        parse_filter(text)
