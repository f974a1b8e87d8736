"""Checkpoints that several ranks write, and others read."""

import hashlib
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from workloads.checkpoint import checkpoint
from workloads.checkpoint.state_split import merge_state
from workloads.distributed.hash_partition import HashPartition
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.sharding.column_parallel import ColumnParallelShard
from workloads.sharding.row_parallel import RowParallelShard

ROOT = Path(__file__).parents[4]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    "OMP_NUM_THREADS": "1",
}
"""Of processes that tests start: they find this code first, then what the tests found."""
SCRIPT = Path(__file__).with_name("trial_in_stages.py")
TOGETHER = Path(__file__).with_name("saved_together.py")
SHAPES = [(1, 1), (4, 10), (7, 17)]
LAYOUTS = {"columns": ColumnParallelShard, "rows": RowParallelShard}
NAMES = ["norm", "table.weight"]


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
    mesh = Mesh(memory=RankGroup(rank=rank, size=size))
    if size == 1:
        return mesh, {}, state
    shard = LAYOUTS[layout](mesh, n_rows=n_rows, width=width)

    def inside(value: Tensor) -> Tensor:
        if value.shape != (n_rows, width):
            return value
        columns = shard.columns
        return value[shard.row_numbers(), columns.start : columns.stop].clone()

    kept = {
        index: {key: inside(value) for key, value in entry.items()}
        for index, entry in state["optimizer"]["state"].items()
    }
    weights = {name: inside(value) for name, value in state["weights"].items()}
    optimizer = {**state["optimizer"], "state": kept}
    of_table = state["tables"]["states"]["table"]
    own = {
        "exp_avg": inside(of_table["exp_avg"]),
        "mean_square": of_table["mean_square"][shard.row_numbers()],
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("saved")
    out = folder / "found.json"
    subprocess.run(
        [sys.executable, str(TOGETHER), str(out), str(folder)],
        check=True,
        env=ENVIRONMENT,
        timeout=280,
    )
    return folder, json.loads(out.read_text())


def read(path: Path, shards: Any = None, *, names: Any = NAMES, training: bool = True) -> Any:
    state = checkpoint.load(path / "step-00000003")
    del state["format"]
    if not training:
        del state["optimizer"]
    return merge_state(
        state, checkpoint.sharded_tensors(path / "step-00000003"), shards or {}, names
    )


@pytest.mark.long
@pytest.mark.parametrize("wrote", ["1", "2", "3", "4", "2x2", "upper"])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_any_ranks_read_what_any_ranks_wrote(saved, layout, wrote):
    for n_rows, width in SHAPES:
        path = saved[0] / "whole" / f"{layout}-{wrote}-{n_rows}-{width}"
        state = state_of(n_rows, width)
        for reads in ("columns", 1), ("columns", 2), ("columns", 3), ("rows", 2), ("rows", 5):
            for rank in range(reads[1]):
                _, shards, expected = seen_by(state, *reads[:1], rank, reads[1])
                assert same(read(path, shards), expected)
        # To read a model, without going on with its training.
        _, shards, expected = seen_by(state, "rows", 1, 2)
        del expected["optimizer"]
        assert same(read(path, shards, training=False), expected)


@pytest.mark.long
def test_torchs_own_reader_finds_the_tables(saved, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    state = state_of(7, 17)
    for wrote in ("columns-3", "rows-2x2"):
        path = saved[0] / "whole" / f"{wrote}-7-17" / "step-00000003" / "parts"
        dcp_to_torch_save(path, tmp_path / "whole.pt")
        found = torch.load(tmp_path / "whole.pt")
        hashed = "/hashed" if wrote.startswith("rows") else ""
        order = HashPartition(7).rows(range(7)) if hashed else torch.arange(7)

        values = found.pop(f"weights/table.weight/values{hashed}")
        assert same(values, state["weights"]["table.weight"][order])
        for key in ("exp_avg", "exp_avg_sq"):
            expected = state["optimizer"]["state"][1][key][order]
            assert same(found.pop(f"optimizer/table.weight/{key}{hashed}"), expected)
        for key, expected in state["tables"]["states"]["table"].items():
            assert same(found.pop(f"tables/table/{key}{hashed}"), expected[order])
        assert not found


@pytest.mark.long
def test_what_several_ranks_have_alike_is_written_once(saved):
    sizes = {
        wrote: sum(
            file.stat().st_size
            for file in (saved[0] / "whole" / f"rows-{wrote}-7-17").rglob("*.distcp")
        )
        for wrote in ("2", "2x2")
    }

    assert sizes["2x2"] == sizes["2"]


@pytest.mark.long
def test_every_file_is_in_the_manifest(saved):
    for path in (saved[0] / "whole").glob("*/*"):
        named = json.loads((path / "manifest.json").read_text())
        files = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
        assert files == {"state.pt", "manifest.json", *named.get("parts", {})}
        for name, seal in {"state.pt": named, **named.get("parts", {})}.items():
            content = (path / name).read_bytes()
            assert seal["bytes"] == len(content)
            assert seal["sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.long
def test_states_that_nobody_shares_out_need_nothing_of_dcp(saved):
    folder, found = saved

    assert found["imports"] == []
    assert not list((folder / "alone").rglob("parts"))


@pytest.mark.long
def test_another_shape_is_refused(saved):
    _, other, _ = seen_by(state_of(4, 12), "columns", 0, 2)

    for wrote in ("1", "2"):
        with pytest.raises(
            ValueError, match="the checkpoint's tensor is 4 × 10, the model's 4 × 12"
        ):
            read(saved[0] / "whole" / f"columns-{wrote}-4-10", other)


@pytest.mark.long
def test_a_block_that_is_not_told_is_missed(saved, tmp_path):
    path = copied(saved[0] / "whole" / "columns-2-4-10", tmp_path)
    told = path / "step-00000003" / "parts" / ".metadata"
    metadata = pickle.loads(told.read_bytes())
    metadata.state_dict_metadata["weights/table.weight/values"].chunks.pop()
    told.write_bytes(pickle.dumps(metadata))

    with pytest.raises(
        ValueError, match=r"weights/table\.weight/values: .* hold \d+ of the 40 numbers of 4 × 10"
    ):
        read(path)


class Malicious:
    """Pickled, it is a call of a function of its choice."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self):
        return Path.touch, (self.made,)


@pytest.mark.long
@pytest.mark.parametrize(
    "where", [".metadata", "another", "planner_data", "state_dict_metadata", "block"]
)
def test_pieces_that_hold_code_are_refused_and_nothing_of_it_runs(saved, tmp_path, where):
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    made = tmp_path / "made"
    path = copied(saved[0] / "whole" / "columns-2-4-10", tmp_path)
    told = path / "step-00000003" / "parts" / ".metadata"
    metadata = pickle.loads(told.read_bytes())
    if where == ".metadata":
        metadata = Malicious(made)
    elif where == "another":
        metadata = metadata.state_dict_metadata
    elif where == "planner_data":
        metadata.planner_data = Malicious(made)
    elif where == "state_dict_metadata":
        # What is stored so, DCP reads by a pickle that may do anything.
        metadata.state_dict_metadata["weights/table.weight/values"] = BytesStorageMetadata()
    else:
        code = told.with_name("code")
        torch.save(Malicious(made), code)
        for info in metadata.storage_data.values():
            info.relative_path, info.offset, info.length = "code", 0, code.stat().st_size
    told.write_bytes(pickle.dumps(metadata))

    with pytest.raises(ValueError, match="more than tensors and plain values"):
        read(path)

    assert not made.exists()
    if where == "block":
        torch.load(code, weights_only=False)
        assert made.exists(), "the file would have run code"


def test_parts_of_an_earlier_version_are_named(tmp_path):
    path = checkpoint.save(tmp_path, 3, {"step": 3, "weights": {}})
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["parts"] = {"part-0-of-2.pt": {}, "part-1-of-2.pt": {}}
    (path / "manifest.json").write_text(json.dumps(manifest))

    with pytest.raises(ValueError, match=r"holds part-0-of-2\.pt, part-1-of-2\.pt, files that"):
        checkpoint.sharded_tensors(path)


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / folder.name))


def cut_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(100)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.long
@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", ".metadata"])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut_short, "parts/{} has 100 bytes, its manifest says"),
        (flip_a_bit, "parts/{} is not what its manifest says (SHA-256 differs)"),
        (Path.unlink, "parts/{}'"),
    ],
)
def test_a_torn_part_is_named_and_the_checkpoint_before_is_used(
    saved, tmp_path, caplog, name, damage, says
):
    folder = copied(saved[0] / "steps", tmp_path)
    damage(folder / "step-00000002" / "parts" / name)

    with caplog.at_level(logging.WARNING):
        found = checkpoint.latest(folder)

    assert found == folder / "step-00000001"
    assert says.format(name) in caplog.text


@pytest.mark.long
def test_storage_that_fails_on_one_rank_is_its_error_and_ends_the_other(saved):
    failures = saved[1]["failures"]
    assert len(failures) == 10

    for name, failure in failures.items():
        assert failure["failed"]["errno"] == failure["code"], name
        assert failure["other"]["kind"] == "CommunicationError", name
        assert failure["other"]["errno"] is None, name
        assert failure["left"] == ["step-00000001", "step-00000002"], name
    assert failures["full_for_a_moment"]["failed"]["kind"] == "RuntimeError"
    for name, rank in ("full_block", 1), ("full_first", 0), ("full_metadata", 0):
        assert f"rank {rank} could not write its part" in failures[name]["other"]["says"]


@pytest.mark.long
@pytest.mark.parametrize(("victim", "least"), [("first", 16), ("second", 2), ("last", 5)])
def test_a_rank_killed_between_any_two_acts_leaves_a_whole_checkpoint(saved, victim, least):
    _, found = saved
    kills = found["kills"][victim]

    assert len(kills) > least
    for kill in kills:
        expected = {"final": 3, "step-00000003": 3, "step-00000002": 2}[kill["found"]]
        assert kill["step"] == expected
        assert kill["values"] == [expected, expected, 100, 500]
        assert kill["left"] == []
    assert {kill["step"] for kill in kills} == {2, 3}
    for kill in kills[:-1]:
        rank = 1 if victim == "second" else 0
        assert kill["ends"][rank] == {"signal": 9}, kill
        other = kill["ends"][1 - rank]
        assert other is None or other.get("kind") == "CommunicationError", kill
    assert kills[-1]["ends"] == [None, None], kills[-1]


@pytest.mark.long
def test_dtensors_and_their_moments_go_on_in_any_number_of_ranks(saved):
    _, found = saved
    found = found["dtensors"]

    # Four parameters and their two moments, of which the second rank has none where there is one
    # row only.
    exact = {"loaded": 0.0, "went_on": 0.0}
    assert found["2"] == [{"pieces": 12.0, **exact}, {"pieces": 8.0, **exact}]
    assert len(found["3"]) == 3
    for rank in (*found["1"], *found["3"]):
        for name, distance in rank.items():
            assert distance <= (1e-6 if "went_on" in name else 0.0), name


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
    stage("moving", 3, "rows", None, damage="parts/__1_0.distcp"),
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
        env=ENVIRONMENT,
        timeout=280,
    )
    return folder, json.loads(out.read_text())


def final_weights(folder: Path) -> dict[str, Tensor]:
    path = checkpoint.latest(folder)
    assert path is not None
    assert path.name == "final"
    state = merge_state(checkpoint.load(path), checkpoint.sharded_tensors(path), {}, [])
    weights: dict[str, Tensor] = state["weights"]
    return weights


def comparable(metrics: dict[str, float] | None) -> dict[str, float]:
    assert metrics is not None
    return {
        name: value
        for name, value in metrics.items()
        if not name.startswith(("time/", "step_time/", "device/")) and name != "train/tokens_per_s"
    }


def assert_trained_alike(found: dict[str, float], expected: dict[str, float]) -> None:
    for name in ("train/loss", "train/value_grad_norm", "train/grad_norm", "valid/loss"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name
    # Of the tokens of all ranks. A row whose score is close to another's may be read by one alone.
    for name in ("memory/kl", "memory/effective_rows", "memory/max_over_mean"):
        assert found[name] == pytest.approx(expected[name], rel=1e-2), name


@pytest.mark.long
def test_a_resumed_trial_of_two_ranks_goes_on_bit_for_bit(trained):
    folder, metrics = trained
    undisturbed, resumed = (final_weights(folder / name) for name in ("columns", "resumed"))

    assert same(undisturbed, resumed)
    assert metrics[2] is None
    assert comparable(metrics[1]) == comparable(metrics[3])
    assert not list((folder / "resumed").glob("step-*"))


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("rule", ["rowwise", "deferred"])
def test_uneven_ranks_with_whole_tables_train_what_one_does(trained, rule):
    _, metrics = trained
    of = {asked["trial"]: comparable(metrics[i]) for i, asked in enumerate(STAGES) if metrics[i]}

    # Clipping acts: the ranks agree on the norm.
    assert of[f"{rule}_alone"]["train/value_grad_norm"] > 0.1
    assert_trained_alike(of[f"{rule}_uneven"], of[f"{rule}_alone"])
