"""Checkpoints that several ranks write, and others read."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workloads import checkpoint
from workloads.checkpoint import Part
from workloads.ranks import CommunicationError, World
from workloads.sharding.columns import Columns
from workloads.sharding.mesh import Mesh
from workloads.sharding.rows import Rows
from workloads.sharding.saved import apart, together

ROOT = Path(__file__).parents[4]
SCRIPT = Path(__file__).with_name("trial_in_stages.py")
LAYOUTS = {"columns": Columns, "rows": Rows}
NAMES = ["norm", "table.weight"]
trained_once = pytest.mark.xdist_group("saved")
"""Of tests that look at what one run trained, for which one process is enough."""


def state_of(n_rows: int, width: int) -> dict[str, Any]:
    """A state as one process has it, every number of the table different."""
    table = torch.arange(float(n_rows * width)).view(n_rows, width)
    moments = {"step": torch.tensor(3.0), "exp_avg": table + 0.25, "exp_avg_sq": table + 0.5}
    norm = {"step": torch.tensor(3.0), "exp_avg": torch.ones(4), "exp_avg_sq": torch.ones(4)}
    rows = {"exp_avg": table - 0.25, "mean_square": torch.arange(float(n_rows)) - 0.5}
    return {
        "step": 3,
        "weights": {"norm": torch.full((4,), 7.0), "table.weight": table},
        "optimizer": {"state": {0: norm, 1: moments}, "param_groups": [{"params": [0, 1]}]},
        "tables": {"states": {"table": rows, "other": {"exp_avg": norm}}, "steps": {"table": 3}},
    }


def seen_by(state: dict[str, Any], layout: str, rank: int, size: int) -> tuple[Mesh, Any, Any]:
    """Return a rank's mesh, its shards, and its own view of a state."""
    n_rows, width = state["weights"]["table.weight"].shape
    mesh = Mesh(memory=World(rank=rank, size=size))
    if size == 1:
        return mesh, {}, state
    shard = LAYOUTS[layout](mesh, n_rows=n_rows, width=width)

    def inside(value: Tensor) -> Tensor:
        if value.shape != (n_rows, width):
            return value
        rows, columns = shard.rows, shard.columns
        return value[rows.start : rows.stop, columns.start : columns.stop].clone()

    kept = {
        index: {key: inside(value) for key, value in entry.items()}
        for index, entry in state["optimizer"]["state"].items()
    }
    weights = {name: inside(value) for name, value in state["weights"].items()}
    optimizer = {**state["optimizer"], "state": kept}
    of_table = state["tables"]["states"]["table"]
    own = {
        "exp_avg": inside(of_table["exp_avg"]),
        "mean_square": of_table["mean_square"][shard.rows.start : shard.rows.stop],
    }
    tables = {**state["tables"], "states": {**state["tables"]["states"], "table": own}}
    own_state = {**state, "weights": weights, "optimizer": optimizer, "tables": tables}
    return mesh, {"table.weight": shard}, own_state


def same(first: object, second: object) -> bool:
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and first.keys() == second.keys()
            and all(same(first[key], second[key]) for key in first)
        )
    return first == second


@given(
    n_rows=st.integers(1, 7),
    width=st.integers(1, 40),
    wrote=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.integers(1, 5)),
    reads=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.integers(1, 5)),
)
def test_any_ranks_read_what_any_ranks_wrote(n_rows, width, wrote, reads):
    state = state_of(n_rows, width)
    parts, alike = [], state
    for rank in range(wrote[1]):
        mesh, shards, own = seen_by(state, wrote[0], rank, wrote[1])
        alike, part = apart(own, mesh, shards, NAMES)
        parts += [] if part is None else [part.state]

    for rank in range(reads[1]):
        _, shards, expected = seen_by(state, reads[0], rank, reads[1])
        assert same(together(alike, parts, shards, NAMES), expected)
        # To read a model, without going on with its training.
        del expected["optimizer"]
        weights_alone = {name: value for name, value in alike.items() if name != "optimizer"}
        assert same(together(weights_alone, parts, shards, NAMES), expected)


def test_a_missing_piece_and_another_shape_are_refused():
    state = state_of(4, 10)
    parts = []
    for rank in range(2):
        mesh, shards, own = seen_by(state, "columns", rank, 2)
        alike, part = apart(own, mesh, shards, NAMES)
        assert part is not None
        parts.append(part.state)
    _, other, _ = seen_by(state_of(4, 12), "columns", 0, 2)

    with pytest.raises(
        ValueError, match=r"table\.weight: the checkpoint's pieces hold 20 of 40 numbers"
    ):
        together(alike, parts[:1], {}, NAMES)
    with pytest.raises(ValueError, match="the checkpoint's table is 4 × 10, the model's 4 × 12"):
        together(alike, parts, other, NAMES)


def test_of_ranks_that_hold_the_same_part_one_saves_it():
    state = state_of(4, 10)
    _, shards, own = seen_by(state, "rows", 1, 2)
    mesh = Mesh(memory=World(rank=1, size=2), data=World(rank=1, size=2))

    assert apart(own, mesh, shards, NAMES)[1] is None


class Killed(BaseException):
    pass


class Threads:
    """Two ranks in threads; what one waits for when the other is dead is a communication error."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=20)
        self.box: list[Any] = [None, None]

    def world(self, rank: int) -> World:
        outer = self

        class Thread(World):
            def wait(self) -> None:
                try:
                    outer.barrier.wait()
                except threading.BrokenBarrierError:
                    raise CommunicationError("the other is dead") from None

            def all(self, value: Any) -> list[Any]:
                outer.box[self.rank] = value
                self.wait()
                return list(outer.box)

        return Thread(rank=rank, size=2)


def saved_by_two(folder: Path, step: int, *, last: bool = False) -> bool:
    """Save with two ranks; return whether both came to the end."""
    threads, ended = Threads(), []

    def rank(number: int) -> None:
        part = Part(index=number, count=2, state={"w": torch.full((9,), float(step))})
        state = {"step": step}
        world = threads.world(number)
        try:
            if last:
                checkpoint.save_final(folder, state, part=part, world=world)
            else:
                checkpoint.save(folder, step, state, part=part, world=world)
            ended.append(number)
        except (Killed, CommunicationError, OSError):
            threads.barrier.abort()

    running = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return len(ended) == 2


def dying_after(patch: pytest.MonkeyPatch, calls_left: int) -> None:
    """From the n-th act on, whoever acts on the disk dies."""
    calls: list[int] = []

    def dying(function: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if len(calls) >= calls_left:
                raise Killed
            calls.append(1)
            return function(*args, **kwargs)

        return wrapper

    for owner, name in (
        (Path, "rename"),
        (Path, "mkdir"),
        (os, "fsync"),
        (shutil, "rmtree"),
        (torch, "save"),
        (json, "dump"),
    ):
        patch.setattr(owner, name, dying(getattr(owner, name)))


@pytest.mark.parametrize("last", [False, True])
def test_a_kill_between_any_two_acts_of_two_ranks_leaves_a_whole_checkpoint(tmp_path, last):
    for calls_left in range(100):
        folder = tmp_path / str(calls_left)
        assert saved_by_two(folder, 1)
        assert saved_by_two(folder, 2)
        with pytest.MonkeyPatch.context() as patch:
            dying_after(patch, calls_left)
            finished = saved_by_two(folder, 3, last=last)

        found = checkpoint.latest(folder)

        assert found is not None
        expected = {"final": 3, "step-00000003": 3, "step-00000002": 2}[found.name]
        assert checkpoint.load(found)["step"] == expected
        values = [part["w"] for part in checkpoint.parts(found)]
        assert len(values) == 2
        assert all(torch.equal(value, torch.full((9,), float(expected))) for value in values)
        assert not list(folder.glob(".tmp-*"))
        if finished:
            assert calls_left > 12
            return
    raise AssertionError("the save never finished")


def cut_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(100)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut_short, "part-1-of-2.pt has 100 bytes, its manifest says"),
        (flip_a_bit, "part-1-of-2.pt is not what its manifest says (SHA-256 differs)"),
        (Path.unlink, "part-1-of-2.pt'"),
    ],
)
def test_a_torn_part_is_named_and_the_checkpoint_before_is_used(tmp_path, caplog, damage, says):
    saved_by_two(tmp_path, 1)
    saved_by_two(tmp_path, 2)
    damage(tmp_path / "step-00000002" / "part-1-of-2.pt")

    with caplog.at_level(logging.WARNING):
        found = checkpoint.latest(tmp_path)

    assert found == tmp_path / "step-00000001"
    assert says in caplog.text


def stage(trial: str, ranks: int, layout: str, stop_after: int | None, **more: Any) -> Any:
    return {
        "trial": trial,
        "ranks": ranks,
        "memory_ranks": ranks,
        "layout": layout,
        "stop_after": stop_after,
        "damage": None,
        "table_optimizer": "adamw",
        **more,
    }


STAGES = [
    stage("alone", 1, "columns", None),
    stage("columns", 2, "columns", None),
    stage("resumed", 2, "columns", 3),
    stage("resumed", 2, "columns", None),
    stage("moving", 2, "columns", 2),
    stage("moving", 3, "rows", 4),
    stage("moving", 1, "columns", 5),
    # Four ranks, two by two, where the newest checkpoint of the stage before is torn.
    stage("moving", 4, "columns", 6, memory_ranks=2),
    stage("moving", 3, "rows", None, damage="part-1-of-2.pt"),
    stage("rowwise_alone", 1, "columns", None, table_optimizer="rowwise"),
    stage("rowwise_moving", 2, "columns", 2, table_optimizer="rowwise"),
    stage("rowwise_moving", 3, "rows", 4, table_optimizer="rowwise"),
    stage("rowwise_moving", 1, "columns", 5, table_optimizer="rowwise"),
    stage("rowwise_moving", 3, "columns", None, table_optimizer="rowwise"),
    # Four ranks of which each has the whole table, and of six sequences one or two.
    stage("rowwise_uneven", 4, "columns", None, memory_ranks=1, table_optimizer="rowwise"),
    stage("deferred_alone", 1, "columns", None, table_optimizer="deferred_adamw"),
    stage("deferred_uneven", 4, "columns", None, memory_ranks=1, table_optimizer="deferred_adamw"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, float] | None]]:
    folder = tmp_path_factory.mktemp("stages")
    out = folder / "found.json"
    subprocess.run(
        [sys.executable, str(SCRIPT), str(out), str(folder)],
        input=json.dumps(STAGES).encode(),
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=280,
    )
    return folder, json.loads(out.read_text())


def final_weights(folder: Path) -> dict[str, Tensor]:
    path = checkpoint.latest(folder)
    assert path is not None
    assert path.name == "final"
    state = together(checkpoint.load(path), checkpoint.parts(path), {}, [])
    weights: dict[str, Tensor] = state["weights"]
    return weights


def comparable(metrics: dict[str, float] | None) -> dict[str, float]:
    assert metrics is not None
    return {
        name: value
        for name, value in metrics.items()
        if not name.startswith("time/") and name != "train/tokens_per_s"
    }


def assert_trained_alike(found: dict[str, float], expected: dict[str, float]) -> None:
    for name in ("train/loss", "train/value_grad_norm", "train/grad_norm", "valid/loss"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name


@trained_once
def test_a_resumed_trial_of_two_ranks_goes_on_bit_for_bit(trained):
    folder, metrics = trained
    undisturbed, resumed = (final_weights(folder / name) for name in ("columns", "resumed"))

    assert same(undisturbed, resumed)
    assert metrics[2] is None
    assert comparable(metrics[1]) == comparable(metrics[3])
    assert not list((folder / "resumed").glob("step-*"))


@trained_once
def test_a_trial_that_moves_between_ranks_and_layouts_ends_as_one_processs_does(trained):
    folder, metrics = trained
    alone, moved = (final_weights(folder / name) for name in ("alone", "moving"))
    rowwise = final_weights(folder / "rowwise_alone")
    assert not torch.allclose(rowwise["memory_table.weight"], alone["memory_table.weight"])
    for name, value in final_weights(folder / "rowwise_moving").items():
        if ".usage." not in name:
            assert value == pytest.approx(rowwise[name], rel=1e-4, abs=1e-5), name

    trainable = [name for name in alone if ".usage." not in name]
    assert alone.keys() == moved.keys()
    assert "memory_table.weight" in trainable
    for name in trainable:
        assert moved[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-5), name
    one, last = comparable(metrics[0]), comparable(metrics[8])
    assert last.pop("memory/shard_max_over_mean") >= 1.0
    for layer in ("layer_00", "layer_01"):
        assert last.pop(f"memory/{layer}/shard_max_over_mean") >= 1.0
    assert one.keys() == last.keys()
    assert_trained_alike(last, one)
    assert last["knowledge/bits_per_param"] == pytest.approx(
        one["knowledge/bits_per_param"], rel=1e-3, abs=1e-6
    )


@trained_once
@pytest.mark.parametrize("rule", ["rowwise", "deferred"])
def test_uneven_ranks_with_whole_tables_train_what_one_does(trained, rule):
    _, metrics = trained
    of = {asked["trial"]: comparable(metrics[i]) for i, asked in enumerate(STAGES) if metrics[i]}

    # Clipping acts: the ranks agree on the norm.
    assert of[f"{rule}_alone"]["train/value_grad_norm"] > 0.1
    assert_trained_alike(of[f"{rule}_uneven"], of[f"{rule}_alone"])
