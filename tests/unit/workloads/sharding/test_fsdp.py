"""Dense parameters sharded with FSDP2 on 2 or 3 ranks, against one process."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workloads.checkpoint import checkpoint
from workloads.checkpoint.state_split import merge_state
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import CommunicationError, RankGroup
from workloads.layers.memory.table import MemoryTable, ModuleRef
from workloads.sharding import fsdp_collectives
from workloads.sharding.fsdp import _grouped, cut_along, shard_dense
from workloads.sharding.fsdp_collectives import Gather, Scatter
from workloads.sharding.materialise import materialise_model

ROOT = Path(__file__).parents[4]
FOLDER = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("tables_together", FOLDER / "test_ranks_together.py")
assert _spec is not None
assert _spec.loader is not None
tables = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tables)
EXACT = (
    *tables.EXACT,
    "held_once",
    "freed_once",
    "resharded_or_kept",
    "decoded_alike",
    "never_compiled",
)


def found_by(folder: Path, group: str, *sizes: int, device: str = "cpu") -> dict[str, Any]:
    out = folder / "found.json"
    subprocess.run(
        [sys.executable, str(FOLDER / "dense_together.py"), str(out), device, group]
        + [str(size) for size in sizes],
        check=True,
        env=tables.ENVIRONMENT,
        timeout=1500,
    )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def too_far(found: dict[str, float]) -> dict[str, float]:
    """Return what is further from one process's than it may be."""
    exact = {name: error for name, error in found.items() if name.endswith(EXACT)}
    others = {name: error for name, error in found.items() if name not in exact}
    return {name: e for name, e in exact.items() if e} | tables.too_far(others)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_ranks_find_one_processs_gradients_and_ten_steps(tmp_path):
    found = found_by(tmp_path, "dense", 2)["2"]

    assert len({name.rpartition("/")[0] for name in found}) == 5
    assert not too_far(found)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_find_one_processs_gradients_and_ten_steps(tmp_path, size):
    found = found_by(tmp_path, "dense", size)[str(size)]

    assert len({name.rpartition("/")[0] for name in found}) == {3: 14, 4: 5}[size]
    assert not too_far(found)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 3])
def test_every_architecture_is_one_processs(tmp_path, size):
    found = found_by(tmp_path, "dense_architectures", size)[str(size)]

    names = {name.split("/")[2] for name in found}
    assert names == {path.stem for path in (ROOT / "workloads/architectures").glob("[a-z]*.py")}
    assert not too_far(found)


def stage(trial: str, ranks: int, dense: str, stop_after: int | None, **more: Any) -> Any:
    return {
        "trial": trial,
        "ranks": ranks,
        "dense": dense,
        "stop_after": stop_after,
        "memory_ranks": 1,
        "layout": "columns",
        "damage": None,
        "table_optimizer": "adamw",
        **more,
    }


STAGES = [
    stage("alone", 1, "replicated", None),
    stage("undisturbed", 3, "sharded", None),
    stage("resumed", 3, "sharded", 3),
    stage("resumed", 3, "sharded", None),
    stage("moving", 2, "sharded", 2, memory_ranks=2),
    stage("moving", 2, "replicated", 5),
    stage("moving", 3, "sharded", None, memory_ranks=3, layout="rows", damage="state.pt"),
]
LAZY = [
    stage("alone", 1, "replicated", None, table_optimizer="lazy_adamw"),
    stage("moving", 3, "sharded", 4, table_optimizer="lazy_adamw"),
    stage("moving", 1, "sharded", 5, table_optimizer="lazy_adamw"),
    stage("moving", 2, "sharded", None, table_optimizer="lazy_adamw", memory_ranks=2),
]


def trained_in(folder: Path, stages: list[Any]) -> list[dict[str, float] | None]:
    """Return the metrics of every stage, None of one that was stopped."""
    out = folder / "found.json"
    subprocess.run(
        [sys.executable, str(FOLDER / "trial_in_stages.py"), str(out), str(folder)],
        input=json.dumps(stages).encode(),
        check=True,
        env=tables.ENVIRONMENT,
        timeout=280,
    )
    found: list[dict[str, float] | None] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, float] | None]]:
    folder = tmp_path_factory.mktemp("stages")
    return folder, trained_in(folder, STAGES)


def final_weights(folder: Path) -> dict[str, Tensor]:
    path = checkpoint.latest(folder)
    assert path is not None
    assert path.name == "final"
    weights: dict[str, Tensor] = merge_state(
        checkpoint.load(path), checkpoint.sharded_tensors(path), {}, []
    )["weights"]
    return weights


def comparable(metrics: dict[str, float] | None) -> dict[str, float]:
    assert metrics is not None
    return {
        name: value
        for name, value in metrics.items()
        if not name.startswith(("time/", "step_time/", "device/", "memory/"))
        and name != "train/tokens_per_s"
    }


def assert_ended_alike(folder: Path, alone: str, other: str, one: Any, last: Any) -> None:
    """Compare weights and metrics of two trials at their ends."""
    wanted, found = (final_weights(folder / name) for name in (alone, other))
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        if ".usage." not in name:
            assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    one, last = comparable(one), comparable(last)
    assert one.keys() == last.keys()
    assert one["train/value_grad_norm"] > 0.1  # clipping acted
    for name, value in one.items():
        assert last[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name


@pytest.mark.long
def test_a_resumed_trial_goes_on_bit_for_bit(trained):
    folder, metrics = trained
    undisturbed, resumed = (final_weights(folder / name) for name in ("undisturbed", "resumed"))

    assert metrics[2] is None
    assert undisturbed.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[name]) for name, value in undisturbed.items())
    assert comparable(metrics[1]) == comparable(metrics[3])


@pytest.mark.long
@pytest.mark.parametrize(("other", "last"), [("undisturbed", 1), ("moving", 6)])
def test_sharded_or_not_a_trial_ends_as_one_processs_does(trained, other, last):
    folder, metrics = trained
    assert_ended_alike(folder, "alone", other, metrics[0], metrics[last])


@pytest.mark.long
def test_so_does_one_with_an_optimizer_of_tables(tmp_path):
    metrics = trained_in(tmp_path, LAZY)

    assert_ended_alike(tmp_path, "alone", "moving", metrics[0], metrics[3])


def test_a_parameter_is_cut_along_the_first_dimension_where_each_rank_gets_some_of_it():
    assert cut_along((2, 4, 24, 8), 8) == 2
    assert cut_along((2, 4, 24, 8), 2) == 0
    assert cut_along((9, 16), 8) == 0
    assert cut_along((3, 5), 8) == 0
    assert cut_along((0, 8), 8) == 1


class Blocks(nn.Module):
    """Five blocks, of which two are gathered by themselves.

    One of these reads a table; one lends a module; two share a weight.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(5))
        self.layers[0].table = MemoryTable(3, 2)
        self.layers[2].borrowed = ModuleRef(self.layers[1][0])
        self.layers[2].read = ModuleRef(self.layers[0].table)
        self.layers[4][0].weight = self.layers[3][0].weight


def test_a_block_is_gathered_by_itself_if_nobody_else_uses_what_it_has():
    model = Blocks()

    assert _grouped(model, {model.layers[0].table.weight}) == [model.layers[0], model.layers[2]]


@pytest.mark.parametrize(
    ("message", "calls"), [(Gather, "_all_gather"), (Scatter, "_reduce_scatter")]
)
def test_a_peer_that_is_gone_has_a_name_in_a_pass_too(monkeypatch, message, calls):
    def broken(*args, **kwargs):
        raise RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:61058. This is")

    monkeypatch.setattr(fsdp_collectives, calls, broken)

    with pytest.raises(CommunicationError, match="between ranks failed: .* closed by peer"):
        message()(
            torch.zeros(2),
            torch.zeros(1),
            group=None,
            **({"op": None} if message is Scatter else {}),
        )


def test_ranks_that_share_a_gpu_are_told_what_to_change(monkeypatch):
    monkeypatch.setattr("torch.distributed.get_backend", lambda group: "gloo")

    with pytest.raises(ValueError, match="sharded needs a GPU for each rank, these share one; set"):
        shard_dense(torch.nn.Linear(1, 1), RankGroup(size=2), here=torch.device("cuda"), without=[])


def test_other_words_for_how_dense_parameters_are_held_are_refused():
    with pytest.raises(
        ValueError, match="dense_parameters must be replicated or sharded, got 'zero3'"
    ):
        materialise_model(
            lambda: torch.nn.Linear(1, 1),
            Mesh(),
            layout="columns",
            here=torch.device("cpu"),
            dense="zero3",  # type: ignore[arg-type]
        )
