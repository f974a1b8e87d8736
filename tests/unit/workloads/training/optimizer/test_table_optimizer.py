"""Training with deferred table gradients: parity with AdamW, clipping, restarts."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from workloads.architectures import memory_plus
from workloads.checkpoint import checkpoint
from workloads.checkpoint.state_split import local_shards, merge_state, split_state
from workloads.checkpoint.tensor_block import SavedTensor, TensorBlock
from workloads.distributed.hash_partition import HashPartition
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.kernels.table_update.op import RowSums, row_sums
from workloads.kernels.table_update.split_master import join, split
from workloads.kernels.table_update.update_rules import Rule, new_state
from workloads.layers.memory import host_offload
from workloads.layers.memory.table import MemoryTable, ModuleRef
from workloads.layers.modules.init import initialise
from workloads.layers.modules.linear import Linear
from workloads.sharding.materialise import shard_tables
from workloads.training.checkpointing import load_weights, weights
from workloads.training.config import TrainConfig
from workloads.training.metrics.reporter import Interrupted
from workloads.training.optimizer import table_optimizer
from workloads.training.optimizer.adamw import Optimizer
from workloads.training.optimizer.table_optimizer import RULE_OF, TableOptimizer
from workloads.training.rank_job import RankJob
from workloads.training.step.train_step import accumulate_gradients
from workloads.training.train import run

MODEL = {
    "architecture": "memory_plus",
    "d_model": 8,
    "n_layers": 3,
    "n_heads": 2,
    "d_ff": 16,
    "n_keys": 8,
    "memory_layers": [0, 1, 2],
    "n_memory_heads": 2,
    "knn": 2,
}


def config(**changes: object) -> TrainConfig:
    fields = {
        "tokens": 64,
        "batch_tokens": 64,
        "seq_len": 16,
        "lr": 0.01,
        "value_weight_decay": 0.1,
    }
    return TrainConfig(**{**fields, **changes})


def shared_by_three(dtype: torch.dtype = torch.float64) -> nn.Module:
    fields = {name: value for name, value in MODEL.items() if name != "architecture"}
    model = memory_plus.Config(**{**fields, "memory_layers": (0, 1, 2)}).build(vocab_size=37)
    initialise(model, 0)
    return model.to(dtype)


def windows(step: int) -> Tensor:
    return torch.randint(37, (4, 17), generator=torch.Generator().manual_seed(step))


def five_steps(model: nn.Module, optimizer: Optimizer, *, passes: int = 2) -> list[float]:
    """Return the norms of the values' gradients of five steps of two micro batches."""
    norms = []
    for step in range(5):
        accumulate_gradients(
            model, windows(step), batch_tokens=64, passes=passes, autocast=nullcontext
        )
        norms.append(optimizer.clip()["value_grad_norm"].item())
        optimizer.step(0.01)
    return norms


@pytest.mark.parametrize("grad_clip", [None, 0.01])
def test_five_steps_of_a_table_shared_by_three_layers_are_adamws(grad_clip):
    expected, found = shared_by_three(), shared_by_three()

    expected_norms = five_steps(expected, Optimizer(expected, config(grad_clip=grad_clip)))
    deferred = config(grad_clip=grad_clip, table_optimizer="deferred_adamw")
    norms = five_steps(found, Optimizer(found, deferred))

    assert norms == pytest.approx(expected_norms, rel=1e-9)
    assert min(norms) > 0.01
    for (name, a), b in zip(expected.named_parameters(), found.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "fp32") for name in RULE_OF), ("lazy_adamw", "bf16"), ("rowwise", "bf16_master")],
)
def test_while_nothing_clips_the_previous_norm_gives_the_bits_of_the_exact_one(name, precision):
    """On a CPU; on a GPU where rows are updated in as many passes (tests/gpu/test_table_update_gpu.py)."""
    exact, previous = shared_by_three(torch.float32), shared_by_three(torch.float32)

    train = {"table_optimizer": name, "table_precision": precision, "grad_clip": 100.0}
    norms = [
        five_steps(model, Optimizer(model, config(**train, table_clip=clip)))
        for model, clip in ((exact, "exact"), (previous, "previous"))
    ]

    assert norms[1] == [norms[0][0], *norms[0][:-1]]
    assert 0.0 < max(norms[0]) < 100.0
    for (name, a), b in zip(exact.named_parameters(), previous.parameters(), strict=True):
        assert torch.equal(b, a), name


@pytest.mark.parametrize("grad_clip", [None, 0.01])
@pytest.mark.parametrize("name", [*RULE_OF])
def test_a_master_makes_the_steps_of_an_fp32_table_that_is_read_in_bf16(name, grad_clip):
    """Bit for bit: beside the model an fp32 table of its own is updated by the model's reads, and rounded for it."""
    train = config(table_optimizer=name, table_precision="bf16_master", grad_clip=grad_clip)
    model = shared_by_three(torch.float32)
    (table,) = (m for m in model.modules() if isinstance(m, MemoryTable))
    exact = table.weight.detach().clone()
    kept = new_state(RULE_OF[name], exact)
    optimizer = Optimizer(model, train)
    assert table.weight.dtype == torch.bfloat16

    for step in range(1, 6):
        assert torch.equal(table.weight, split(exact)[0])
        accumulate_gradients(model, windows(step), batch_tokens=64, passes=2, autocast=nullcontext)
        hits = table.sparse_gradient.take()
        table.sparse_gradient._grads = [hits]
        norm = optimizer.clip()["value_grad_norm"]
        optimizer.step(0.01)
        rule = Rule(
            kind=RULE_OF[name], lr=0.01, beta1=train.beta1, beta2=train.beta2, eps=train.eps,
            weight_decay=train.value_weight_decay, step=step,
        )  # fmt: skip
        scale = None if grad_clip is None else (grad_clip / (norm + 1e-6)).clamp(max=1.0)
        row_sums(exact, hits.ids, hits.weights, hits.x).update_(kept, rule, scale)

    state = optimizer.tables.state_dict()["states"]["memory_table"]
    assert torch.equal(join(table.weight.detach(), state.pop("low")), exact)
    assert state.keys() == kept.keys()
    assert all(torch.equal(state[key], value) for key, value in kept.items())


class Joined(SavedTensor):
    """Pieces that ranks gave, put together in memory."""

    def __init__(self, pieces: list[TensorBlock]) -> None:
        self.whole = pieces[0].whole
        self._tensor = pieces[0].tensor.new_full(self.whole, -1)
        for piece in pieces:
            self._inside(piece.offsets, piece.tensor.shape).copy_(piece.tensor)

    def _inside(self, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        return self._tensor[
            tuple(slice(first, first + n) for first, n in zip(offsets, sizes, strict=True))
        ]

    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        return self._inside(offsets, sizes).clone()


def seen_by(whole: dict, layout: str, rank: int, size: int, saved: dict) -> tuple[dict, dict]:
    """Return what a rank has of a saved state after loading it, by what it would save: what all have, and its pieces."""
    model = shared_by_three(torch.float32)
    mesh = Mesh(memory=RankGroup(rank=rank, size=size))
    if size > 1:
        shard_tables(model, mesh, layout=layout)
    optimizer = Optimizer(model, MASTER, mesh)
    state = merge_state(whole, saved, local_shards(model), optimizer.names)
    load_weights(model, state["weights"])
    optimizer.tables.load_state_dict(state["tables"])
    own = {"weights": weights(model), "tables": optimizer.tables.state_dict()}
    return split_state(own, local_shards(model), optimizer.names)


MASTER = config(table_optimizer="lazy_adamw", table_precision="bf16_master")


def test_a_master_is_saved_and_shared_out_over_any_ranks():
    """By three ranks' columns, two ranks' rows, and one process again: both halves and the moments keep their bits."""
    model = shared_by_three(torch.float32)
    optimizer = Optimizer(model, MASTER)
    five_steps(model, optimizer)
    begun = {"weights": weights(model), "tables": optimizer.tables.state_dict()}

    state, saved = begun, {}
    for layout, size in (("columns", 3), ("rows", 2), ("rows", 1)):
        seen = [seen_by(state, layout, rank, size, saved) for rank in range(size)]
        state = seen[0][0]
        saved = {key: Joined([pieces[key] for _, pieces in seen]) for key in seen[0][1]}
        # The table's values, their lower halves and two moments.
        assert len(saved) == (4 if size > 1 else 0)

    low = state["tables"]["states"]["memory_table"]["low"]
    assert low.dtype == torch.int16
    assert (low != 0).float().mean() > 0.9
    for name, kept in begun["tables"]["states"]["memory_table"].items():
        assert torch.equal(kept, state["tables"]["states"]["memory_table"][name]), name
    for name, value in begun["weights"].items():
        assert torch.equal(value, state["weights"][name]), name


@pytest.mark.parametrize("name", ["lazy_adamw", "rowwise", "sgd"])
def test_rows_are_decayed_only_when_they_are_read(name):
    model = shared_by_three()
    (table,) = (m for m in model.modules() if isinstance(m, MemoryTable))
    optimizer = Optimizer(model, config(table_optimizer=name))
    before = table.weight.detach().clone()
    accumulate_gradients(model, windows(0), batch_tokens=64, passes=1, autocast=nullcontext)
    read = torch.zeros(len(before), dtype=torch.bool)
    for hits in table.sparse_gradient._grads:
        read[hits.ids.flatten().long()] = True

    optimizer.clip()
    optimizer.step(0.01)

    assert 0 < read.sum() < len(read)
    assert torch.equal(table.weight[~read], before[~read])
    assert (table.weight[read] != before[read]).any(dim=1).all()
    assert table.weight.grad is None


def two_rows_of_one() -> tuple[MemoryTable, nn.Module]:
    class Model(nn.Module):
        PARAM_GROUP = "attention"

        def __init__(self) -> None:
            super().__init__()
            self.table = MemoryTable(2, 1)
            self.rest = Linear(1, 1)

    model = Model()
    with torch.no_grad():
        model.table.weight.zero_()
    return model.table, model


def test_the_previous_norm_clips_from_the_second_step_on_and_is_saved():
    """The one row's gradients are 2, 8 and 4, the largest norm 1."""
    changes = {
        "table_optimizer": "sgd",
        "value_weight_decay": 0.0,
        "grad_clip": 1.0,
        "table_clip": "previous",
    }
    table, model = two_rows_of_one()
    tables = Optimizer(model, config(**changes)).tables
    norms, places = [], []
    for step, gradient in enumerate((2.0, 8.0, 4.0)):
        if step == 2:
            saved = tables.state_dict()
            tables = Optimizer(model, config(**changes)).tables
            tables.load_state_dict(saved)
        table(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), gradient)).sum().backward()
        norms.append(tables.clip().item())
        tables.step(1.0)
        places.append(table.weight[0, 0].item())

    assert norms == [2.0, 2.0, 8.0]
    assert places == pytest.approx([-1.0, -1.0 - 8 / 2, -1.0 - 8 / 2 - 4 / 8], rel=1e-5)


def test_a_dense_gradient_beside_the_deferred_one_is_refused():
    table, model = two_rows_of_one()
    optimizer = Optimizer(model, config(table_optimizer="rowwise"))
    table.weight.sum().backward()

    with pytest.raises(
        ValueError, match=r"table: has a dense gradient.*use table_optimizer: adamw"
    ):
        optimizer.clip()


def test_memory_values_that_are_no_table_are_refused():
    class Values(nn.Module):
        PARAM_GROUP = "memory_values"

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 2))

    with pytest.raises(ValueError, match=r"table_optimizer: sgd updates the rows of memory tables"):
        Optimizer(Values(), config(table_optimizer="sgd"))


def test_a_state_of_another_rule_is_refused():
    _, model = two_rows_of_one()
    saved = Optimizer(model, config(table_optimizer="lazy_adamw")).tables.state_dict()

    with pytest.raises(ValueError, match=r"differs in .*mean_square"):
        Optimizer(model, config(table_optimizer="rowwise")).tables.load_state_dict(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table_clip": "previous"}, "table_clip must be exact with table_optimizer adamw"),
        ({"table_precision": "bf16"}, "table_precision must be fp32 with table_optimizer adamw"),
        ({"table_precision": "bf16_master"}, "must be fp32 .* adamw, got bf16_master"),
    ],
)
def test_what_dense_adamw_cannot_do_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_moments_in_int8_are_removed_and_null_as_recorded_trials_have_it_is_not():
    with pytest.raises(
        ValueError, match=r"table_moments.* int8 was removed.*table_precision: bf16"
    ):
        config(table_optimizer="lazy_adamw", table_moments="int8")

    assert config(table_moments=None) == config()


def test_a_model_without_tables_trains_as_ever():
    model = nn.Linear(2, 2)
    model.PARAM_GROUP = "attention"
    optimizer = Optimizer(model, config(table_optimizer="rowwise"))
    model(torch.ones(1, 2)).sum().backward()

    assert set(optimizer.clip()) == {"grad_norm"}
    optimizer.step(0.01)


DATA = {
    "source": "biographies",
    "n_people": 20,
    "style": "compact",
    "n_wordings": 4,
    "n_probe_people": 4,
    **{f"n_{pool}": 8 for pool in ("first_names", "middle_names", "last_names", "years", "cities")},
    **{f"n_{pool}": 8 for pool in ("universities", "majors", "employers")},
}


def job_in(folder: Path, cache: Path, **train: object) -> RankJob:
    return RankJob(
        data=DATA,
        model=MODEL,
        train={
            "tokens": 4 * 96,
            "batch_tokens": 96,
            "seq_len": 16,
            "lr": 0.01,
            "value_weight_decay": 0.1,
            **train,
        },
        seed=5,
        checkpoints=folder / "checkpoints",
        cache=cache,
        log_every_steps=1,
        evaluations=1,
        checkpoint_every_s=0.0,
        device="cpu",
    )


class Recorder:
    def __init__(self, stop_at: int = 10**9) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self._stop_at, self._asked = stop_at, 0

    def metrics(self, step, values):
        timed = ("time/", "step_time/", "device/")
        kept = {k: v for k, v in values.items() if not k.startswith(timed)}
        self.rows[step] = {k: v for k, v in kept.items() if k != "train/tokens_per_s"}

    def checkpoint(self, step, path):
        pass

    def progress(self, step, steps, phase, values):
        pass

    def should_stop(self):
        self._asked += 1
        return self._asked >= self._stop_at


@pytest.mark.parametrize(
    ("name", "clip", "precision"),
    [
        *((name, "exact", "bf16") for name in RULE_OF),
        *(pytest.param(name, "previous", "bf16", marks=pytest.mark.long) for name in RULE_OF),
        pytest.param("deferred_adamw", "exact", "bf16_master", marks=pytest.mark.long),
        ("lazy_adamw", "previous", "bf16_master"),
        pytest.param("sgd", "previous", "bf16_master", marks=pytest.mark.long),
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, tmp_path_factory, name, clip, precision):
    cache = tmp_path_factory.getbasetemp() / "cache"
    train = {
        "table_optimizer": name,
        "table_clip": clip,
        "grad_clip": 0.1,
        "table_precision": precision,
    }
    undisturbed, first, second = Recorder(), Recorder(stop_at=2), Recorder()
    run(job_in(tmp_path / "a", cache, **train), undisturbed)

    with pytest.raises(Interrupted):
        run(job_in(tmp_path / "b", cache, **train), first)
    run(job_in(tmp_path / "b", cache, **train), second)

    assert max(first.rows) == 2
    assert first.rows | second.rows == undisturbed.rows
    assert sorted(undisturbed.rows) == [1, 2, 3, 4]


@pytest.mark.parametrize(("begins", "goes_on"), [("host", "device"), ("device", "host")])
def test_a_trial_whose_tables_move_to_or_from_the_host_keeps_its_bits(
    tmp_path, monkeypatch, begins, goes_on
):
    monkeypatch.setattr(host_offload, "DIRECT_READS", 0)
    job = job_in(tmp_path / "device", tmp_path / "cache", table_optimizer="lazy_adamw")
    moved = replace(job, checkpoints=tmp_path / "moved")
    undisturbed, first, second = Recorder(), Recorder(stop_at=2), Recorder()
    run(job, undisturbed)

    with pytest.raises(Interrupted):
        run(replace(moved, memory_tables=begins), first)
    run(replace(moved, memory_tables=goes_on), second)

    assert first.rows | second.rows == undisturbed.rows
    expected, found = (
        checkpoint.load(each.checkpoints / "final")["weights"] for each in (job, moved)
    )
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


SHARDED_STEPS = """
import torch
from workloads.distributed import process_group
from workloads.distributed.mesh import make_mesh
from workloads.layers.memory.table import MemoryTable, ModuleRef
from workloads.layers.modules.init import initialise
from workloads.sharding.materialise import materialise_model
from workloads.training.config import TrainConfig
from workloads.training.optimizer.table_optimizer import TableOptimizer

cpu = torch.device("cpu")
where = {"rank": rank, "size": size, "device": cpu, "rendezvous": folder / f"meet-{rule}-{size}"}
with process_group.join(**where) as world:
    mesh = make_mesh(world, memory=size)
    model = materialise_model(
        lambda: torch.nn.Sequential(MemoryTable(37, 8)), mesh, layout="rows", here=cpu
    )
    initialise(model, 0)
    config = TrainConfig(
        tokens=8, batch_tokens=8, seq_len=8, lr=0.01, table_optimizer=rule, table_precision="bf16"
    )
    optimizer = TableOptimizer(model, config, mesh, seed=3)
    draw = torch.Generator().manual_seed(1)
    for _ in range(3):
        # Small whole numbers, whose sums have no order.
        ids = torch.randint(37, (24, 2), generator=draw)
        upstream = torch.randint(-3, 4, (24, 8), generator=draw).bfloat16()
        mine = world.local_range(24)
        mine = slice(mine.start, mine.stop)
        model[0](ids[mine], torch.ones(ids[mine].shape)).backward(upstream[mine])
        optimizer.clip()
        optimizer.step(0.01)
    part = model[0].weight.detach()
    torch.save(part, folder / f"{rule}-{rank}-of-{size}.pt")
"""


@pytest.mark.parametrize(
    "rule", ["deferred_adamw", pytest.param("rowwise", marks=pytest.mark.long)]
)
def test_bf16_rows_are_rounded_alike_on_any_number_of_ranks(rule, tmp_path, run_ranks):
    def trained_on(size):
        run_ranks(SHARDED_STEPS, size, {"size": size, "folder": tmp_path, "rule": rule})
        parts = [torch.load(tmp_path / f"{rule}-{rank}-of-{size}.pt") for rank in range(size)]
        assert len({len(part) for part in parts}) > 1 or size == 1
        held = torch.cat(parts)
        return held if size == 1 else held[HashPartition(len(held)).places(torch.arange(len(held)))]

    alone = trained_on(1)

    assert alone.dtype == torch.bfloat16
    assert all(torch.equal(alone, trained_on(size)) for size in (2, 4))


def test_tables_of_the_same_reads_are_sorted_once(monkeypatch):
    """Other reads, or other tables, are not taken for the same."""
    model = nn.ModuleList(MemoryTable(6, 4) for _ in range(3))
    initialise(model, 0)
    model[2].same_reads_as = ModuleRef(model[1])
    optimizer = TableOptimizer(model, config(table_optimizer="rowwise"))
    for ids in (torch.tensor([[0, 1]]), torch.tensor([[2, 1]])):
        for table in model:
            table.sparse_gradient.add_copies(6, ids, torch.ones(1, 2), torch.ones(1, 4))
    found, like = [], []

    def watched(*reads: Tensor, **others: RowSums | None) -> RowSums:
        like.append(others["like"])
        found.append(row_sums(*reads, **others))
        return found[-1]

    monkeypatch.setattr(table_optimizer, "row_sums", watched)
    optimizer.sum_lookups()

    assert like == [None, None, found[1]]
