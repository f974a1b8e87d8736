"""Expanding a sweep file: how many trials, in which order, under which names."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sweep.load import Sweep, load_sweep

AXES: dict[str, st.SearchStrategy[Any]] = {
    "train.lr": st.floats(1e-3, 1.0),
    "train.weight_decay": st.floats(0.0, 1.0),
    "train.beta1": st.floats(0.0, 0.99),
    "train.schedule": st.sampled_from(["cosine", "wsd", "constant"]),
    "data.n_people": st.integers(1, 10_000),
    "data.seed": st.integers(0, 2**20),
    "model.d_ff": st.integers(1, 5_000),
    "model.preset": st.sampled_from(["d16", "d24", "1m", "3m"]),
}

grids = st.lists(st.sampled_from(sorted(AXES)), min_size=1, max_size=3, unique=True).flatmap(
    lambda keys: st.fixed_dictionaries(
        {key: st.lists(AXES[key], min_size=1, max_size=4, unique=True) for key in keys}
    )
)
seeds = st.lists(st.integers(0, 2**31), min_size=1, max_size=3, unique=True)


def document(**more: Any) -> dict[str, Any]:
    return {
        "name": "test",
        "data": {"source": "biographies", "n_people": 100, "seed": 0},
        "train": {"tokens": 640, "batch_tokens": 64, "seq_len": 16, "lr": 0.01},
        "model": {"architecture": "dense", "preset": "d16", "n_layers": 3},
        **more,
    }


def load(content: dict[str, Any]) -> Sweep:
    # JSON is YAML as long as no number has an exponent: four digits after the point have none.
    text = json.dumps(_decimal(content), indent=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(text)
        return load_sweep(file)


def _decimal(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _decimal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decimal(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


def ids(sweep: Sweep) -> list[str]:
    return [trial.trial_id for trial in sweep.trials]


@settings(max_examples=12, deadline=None)
@given(grid=grids, seeds=seeds)
def test_a_grid_has_as_many_trials_as_its_product(grid: dict[str, Any], seeds: list[int]) -> None:
    grid = {key: list(dict.fromkeys(_decimal(values))) for key, values in grid.items()}

    sweep = load(document(trials=[{"grid": grid}], seeds=seeds))

    assert len(sweep.trials) == math.prod(len(values) for values in grid.values()) * len(seeds)
    assert len(set(ids(sweep))) == len(sweep.trials)


@settings(max_examples=8, deadline=None)
@given(grid=grids, seeds=seeds)
def test_expanding_twice_gives_the_same_trials(grid: dict[str, Any], seeds: list[int]) -> None:
    grid = {key: list(dict.fromkeys(_decimal(values))) for key, values in grid.items()}
    content = document(trials=[{"grid": grid}], seeds=seeds)

    assert load(content).trials == load(content).trials


@settings(max_examples=8, deadline=None)
@given(grid=grids, seeds=seeds)
def test_the_order_of_keys_does_not_rename_trials(grid: dict[str, Any], seeds: list[int]) -> None:
    grid = {key: list(dict.fromkeys(_decimal(values))) for key, values in grid.items()}
    content = document(trials=[{"grid": grid}], seeds=seeds)

    assert set(ids(load(content))) == set(ids(load(reversed_keys(content))))


@settings(max_examples=8, deadline=None)
@given(data=st.data(), length=st.integers(1, 4))
def test_a_list_of_its_points_is_the_same_as_a_zip(data: st.DataObject, length: int) -> None:
    keys = ("train.lr", "data.seed")
    lists = {
        key: _decimal(data.draw(st.lists(AXES[key], min_size=length, max_size=length)))
        for key in keys
    }
    # The index makes the points differ whatever was drawn.
    lists["data.seed"] = [8 * seed + i for i, seed in enumerate(lists["data.seed"])]
    points = [dict(zip(lists, point, strict=True)) for point in zip(*lists.values(), strict=True)]

    zipped = load(document(trials=[{"zip": lists}]))
    listed = load(document(trials=[{"list": points}]))
    apart = load(document(trials=[{"set": point} for point in points]))

    assert ids(zipped) == ids(listed) == ids(apart)
