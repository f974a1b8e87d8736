"""The estimate against what torch holds: parameters, gradients, deferred reads and optimizer state of one real step."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from orchestrator.sweep import registry
from workloads.architectures import dense, engram, memory_plus
from workloads.distributed.collectives import Pending
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.layers.memory.lookup_grad import LookupGrad, sums_bytes
from workloads.layers.memory.table import MemoryTable, TableComponent
from workloads.layers.modules.init import initialise
from workloads.layers.modules.usage_stats import MemoryUsage
from workloads.sharding import column_parallel, row_parallel, table_route
from workloads.sharding.materialise import shard_tables
from workloads.sharding.table_route import TableRoute
from workloads.training.config import TrainConfig
from workloads.training.memory_estimate.peak_memory import TrainingMemory, training_memory
from workloads.training.memory_estimate.table_memory import SORTED_READ_BYTES
from workloads.training.optimizer.adamw import Optimizer
from workloads.training.optimizer.table_optimizer import TableOptimizer
from workloads.training.step.train_step import accumulate_gradients

RESULTS = Path(__file__).parents[5] / "docs" / "results"
VOCAB_SIZE, SEQ_LEN, SEQUENCES = 37, 8, 4
ROUTES: dict[Any, type[TableRoute]] = {
    column_parallel: column_parallel.ColumnParallelRoute,
    row_parallel: row_parallel.RowParallelRoute,
}
BATCH_TOKENS = SEQUENCES * SEQ_LEN


def _train(**changes: Any) -> TrainConfig:
    fields = {"tokens": 64, "batch_tokens": BATCH_TOKENS, "seq_len": SEQ_LEN, "lr": 0.01}
    return TrainConfig(**{**fields, **changes})


def _smallest(name: str) -> Any:
    module = registry.architecture(name)
    configs = [module.Config(**fields) for fields in module.PRESETS.values()]
    return min(configs, key=lambda config: config.param_count(VOCAB_SIZE).total)


def _tables(model: nn.Module) -> list[MemoryTable]:
    return [module for module in model.modules() if isinstance(module, MemoryTable)]


def _meta(config: Any) -> nn.Module:
    with torch.device("meta"):
        model: nn.Module = config.build(VOCAB_SIZE)
    return model


WITH_TABLES = [name for name in registry.architectures() if _tables(_meta(_smallest(name)))]
PRECISIONS = ("fp32", "bf16", "bf16_master")
UPDATES = [
    ("adamw", "fp32"),
    *((o, p) for o in ("deferred_adamw", "lazy_adamw", "rowwise", "sgd") for p in PRECISIONS),
]
CONFIG = memory_plus.Config(
    **{**memory_plus.PRESETS["d8"], "n_keys": 9, "value_dim": 20, "memory_layers": (0, 1)}
)


def _initialised() -> nn.Module:
    model: nn.Module = CONFIG.build(VOCAB_SIZE)
    initialise(model, 0)
    model.recording_usage = False
    return model


def _estimate(config: Any, train: TrainConfig, **options: Any) -> TrainingMemory:
    return training_memory(
        config,
        VOCAB_SIZE,
        train,
        **{"precision": "fp32", "micro_batch_tokens": BATCH_TOKENS, **options},
    )


def _held(config: Any, train: TrainConfig) -> dict[str, int]:
    """Return the bytes of the tensors that a step of two micro batches leaves at each of its points."""
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)
    optimizer = Optimizer(model, train)
    windows = torch.randint(VOCAB_SIZE, (SEQUENCES, SEQ_LEN + 1))
    accumulate_gradients(model, windows, batch_tokens=BATCH_TOKENS, passes=2, autocast=nullcontext)
    deferred = [
        table.sparse_gradient for table in _tables(model) if table.sparse_gradient is not None
    ]
    reads = [hits for each in deferred for hits in each._grads]
    held = {
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "own_reads": sum(t.nbytes for hits in reads for t in vars(hits).values()),
    }
    optimizer.clip()
    optimizer.step(0.01)
    moments = [
        tensor
        for state in optimizer.adamw.state.values()
        for name, tensor in state.items()
        if name != "step"
    ]
    if optimizer.tables is not None:
        states = optimizer.tables.state_dict()["states"].values()
        moments += [tensor for state in states for tensor in state.values()]
    return {
        **held,
        "parameters": sum(p.nbytes for p in model.parameters()),
        "usage": sum(
            buffer.nbytes
            for module in model.modules()
            if isinstance(module, MemoryUsage)
            for buffer in module.buffers()
            if buffer.shape == module.mass.shape
        ),
        "optimizer_state": sum(tensor.nbytes for tensor in moments),
    }


@pytest.mark.parametrize(("table_optimizer", "table_precision"), UPDATES)
def test_a_step_holds_what_is_estimated_to_the_byte(table_optimizer, table_precision):
    train = _train(table_optimizer=table_optimizer, table_precision=table_precision)

    held, estimate = _held(CONFIG, train), _estimate(CONFIG, train)

    assert held == {name: getattr(estimate, name) for name in held}
    assert (estimate.own_reads == 0) == (table_optimizer == "adamw")


@pytest.mark.parametrize("name", WITH_TABLES)
def test_so_does_every_architecture_with_tables(name):
    train = _train(table_optimizer="rowwise", table_precision="bf16")

    held, estimate = _held(_smallest(name), train), _estimate(_smallest(name), train)

    assert held == {each: getattr(estimate, each) for each in held}


@pytest.mark.parametrize("place", ["device", "host"])
def test_a_pass_that_records_use_holds_what_is_estimated(place):
    config = engram.Config(**engram.PRESETS["10m"])
    usage = MemoryUsage(n_rows := 100_000)
    estimate = _estimate(config, _train(table_optimizer="rowwise"), tables_on_host=place == "host")
    rows = [t.n_rows for _, t in config.components(VOCAB_SIZE) if isinstance(t, TableComponent)]
    read = torch.zeros(1, 1, dtype=torch.int64)
    with torch.profiler.profile(profile_memory=True) as profile:
        usage.record(read, torch.ones(1, 1))
    made = max(event.self_cpu_memory_usage for event in profile.key_averages())

    assert made == pytest.approx(8 * n_rows, rel=0.01)
    assert (estimate.usage, estimate.recording) == (17 * sum(rows), 8 * max(rows))


def test_one_without_tables_takes_sixteen_bytes_a_parameter():
    config = dense.Config(d_model=32, n_layers=2, n_heads=2, d_ff=64)
    count = config.param_count(VOCAB_SIZE)

    none, some = (_estimate(config, _train(), micro_batch_tokens=tokens) for tokens in (0, 1000))
    half = _estimate(config, _train(), micro_batch_tokens=0, precision="bf16")

    assert none.peak == none.model_state == some.model_state == 16 * count.total
    activations = 1000 * config.activation_bytes_per_token(VOCAB_SIZE, SEQ_LEN, precision="fp32")
    assert some.peak - none.peak == pytest.approx(1.2 * activations)
    assert half.peak - none.peak == 2 * (count.total - count.embedding)


@pytest.mark.parametrize(
    ("table_optimizer", "fp32", "bf16"),
    [
        ("deferred_adamw", 12 * 20, 6 * 20),
        ("lazy_adamw", 12 * 20, 6 * 20),
        ("rowwise", 4 * 20 + 4, 2 * 20 + 4),
        ("sgd", 4 * 20, 2 * 20),
    ],
)
def test_bytes_a_row_are_those_that_the_manual_says(table_optimizer, fp32, bf16):
    """Bytes per row of 20 numbers: docs/sweep-files.md, "Table optimizers and precisions".

    All else takes 16 bytes a number.
    """
    count = CONFIG.param_count(VOCAB_SIZE)

    for table_precision, expected in (("fp32", fp32), ("bf16", bf16), ("bf16_master", fp32)):
        train = _train(table_optimizer=table_optimizer, table_precision=table_precision)
        found = _estimate(CONFIG, train)
        state = found.parameters + found.gradients + found.optimizer_state
        assert state == 16 * (count.total - count.memory_values) + 81 * expected


@pytest.mark.parametrize("layout", ["columns", "rows"])
@pytest.mark.parametrize("memory_ranks", [2, 3, 4])
@pytest.mark.parametrize("name", WITH_TABLES)
def test_of_shared_tables_it_counts_the_largest_part(name, memory_ranks, layout):
    config = _smallest(name)
    held = []
    for rank in range(memory_ranks):
        model = _meta(config)
        shard_tables(model, Mesh(memory=RankGroup(rank=rank, size=memory_ranks)), layout=layout)
        held.append(sum(p.nbytes for p in model.parameters()))

    estimate = _estimate(
        config, _train(), ranks=memory_ranks, memory_ranks=memory_ranks, memory_layout=layout
    )

    assert estimate.parameters == max(held)
    assert estimate.gradients == max(held)
    assert estimate.optimizer_state == 2 * max(held)


def _kept_by_one_of(memory_ranks: int, layout: str, bytes_kept: Any, monkeypatch: Any) -> int:
    """Return what a rank's forward pass keeps, other ranks bringing the same bags and no sums."""

    def all_gather(world: RankGroup, x: Tensor) -> Pending:
        return lambda: x.repeat(world.size, 1)

    def all_to_all(world: RankGroup, x: Tensor, *, sent: list[int], received: list[int]) -> Pending:
        # Others send here what is sent from here to here.
        if received == [sent[0]] * world.size:
            return lambda: x[: sent[0]].repeat(world.size)
        return lambda: x.new_zeros(sum(received))

    routes: list[TableRoute] = []
    monkeypatch.setattr(table_route, "all_to_all", all_to_all)
    monkeypatch.setattr(table_route, "all_gather", all_gather)
    for module, route in ROUTES.items():
        monkeypatch.setattr(module, route.__name__, partial(_noted, route, routes))
    mesh = Mesh(memory=RankGroup(rank=0, size=memory_ranks))
    model = CONFIG.build(VOCAB_SIZE)
    shard_tables(model, mesh, layout=layout)
    initialise(model, 0)
    model.recording_usage = False
    tokens = torch.randint(VOCAB_SIZE, (64, SEQ_LEN), generator=torch.Generator().manual_seed(0))
    with mesh.equal_bags():
        kept: int = bytes_kept(model, tokens, "fp32")
    assert routes
    # A read's backward pass goes by the route of its forward pass, which autograd does not count.
    tensors = [x for route in routes for x in vars(route).values() if isinstance(x, Tensor)]
    return kept + sum(x.nbytes for x in tensors)


def _noted(
    kind: type[TableRoute], routes: list[TableRoute], *args: Any, **kwargs: Any
) -> TableRoute:
    route = kind(*args, **kwargs)
    routes.append(route)
    return route


@pytest.mark.parametrize("memory_ranks", [2, 4])
def test_a_rank_that_shares_tables_keeps_the_reads_of_all(memory_ranks, bytes_kept, monkeypatch):
    n_tokens = 64 * SEQ_LEN
    whole = bytes_kept(_initialised(), torch.zeros(64, SEQ_LEN, dtype=torch.long), "fp32")
    options = {"memory_ranks": memory_ranks, "micro_batch_tokens": n_tokens}

    for layout in ("columns", "rows"):
        kept = _kept_by_one_of(memory_ranks, layout, bytes_kept, monkeypatch)
        estimate = _estimate(CONFIG, _train(), memory_layout=layout, **options)
        added = (
            estimate.activations
            - _estimate(CONFIG, _train(), micro_batch_tokens=n_tokens).activations
        )
        assert added == kept - whole, layout


def test_reads_of_all_ranks_come_together_for_the_update():
    train = _train(table_optimizer="sgd")
    # Two layers, each with the bags of all heads.
    n_reads = 2 * CONFIG.memory.lookup.rows_read
    a_token = n_reads * (4 + 4) + 2 * 20 * 4

    one, four = (_estimate(CONFIG, train, ranks=n, micro_batch_tokens=8) for n in (1, 4))

    assert one.own_reads == one.all_reads == four.all_reads == a_token * BATCH_TOKENS
    assert four.own_reads == a_token * BATCH_TOKENS / 4
    kept = 4 * CONFIG.memory.lookup.n_slots * CONFIG.memory.value_dim  # rows have many reads
    assert four.sorting == SORTED_READ_BYTES * n_reads * BATCH_TOKENS + kept


def test_of_many_micro_batches_the_sums_of_rows_wait_and_not_the_reads():
    batches = [512 * SEQ_LEN, 1024 * SEQ_LEN]
    small, large = (
        _estimate(
            CONFIG,
            _train(batch_tokens=n, tokens=n, table_optimizer="sgd"),
            micro_batch_tokens=SEQ_LEN,
        )
        for n in batches
    )

    assert small.own_reads == large.own_reads
    assert small.all_reads == large.all_reads == sums_bytes(81, 20)
    whole = _estimate(
        CONFIG,
        _train(batch_tokens=4096, tokens=4096, table_optimizer="sgd"),
        micro_batch_tokens=4096,
    )
    assert whole.own_reads > 5 * small.own_reads


@pytest.mark.parametrize("checkpointed", [False, True])
def test_sharded_blocks_have_copies_of_all_weights_unless_they_run_again(checkpointed):
    config = dense.Config(**dense.PRESETS["d64"])
    count = config.param_count(VOCAB_SIZE)

    found = _estimate(
        config,
        _train(),
        precision="bf16",
        ranks=4,
        dense_sharded=True,
        activation_checkpointing=checkpointed,
    )

    blocks = count.total - count.embedding - count.head
    copied = -(-blocks // config.n_layers) if checkpointed else blocks
    assert found.weight_copies == 2 * (copied + count.head)


def test_blocks_that_stay_gathered_are_all_held_at_once():
    config = dense.Config(**{**dense.PRESETS["d64"], "n_layers": 5})
    count = config.param_count(VOCAB_SIZE)
    blocks = count.total - count.embedding - count.head

    resharded, kept = (
        _estimate(config, _train(), ranks=4, dense_sharded=True, reshard_after_forward=way)
        for way in (True, False)
    )

    of_two = 2 * -(-blocks // config.n_layers)
    assert kept.gathered - resharded.gathered == 4 * (blocks - of_two)
    assert kept.peak > resharded.peak


def test_tables_that_are_read_by_signs_have_copies_under_autocast():
    config, train = _smallest("memoryformer"), _train()
    count = config.param_count(VOCAB_SIZE)

    found = _estimate(config, train, precision="bf16")

    assert found.weight_copies == 2 * (count.total - count.embedding)
    shared = _estimate(config, train, precision="bf16", memory_ranks=2, ranks=2)
    assert shared.weight_copies == found.weight_copies - 2 * count.memory_values


def test_the_peak_is_that_of_the_passes_of_the_sums_or_of_the_update():
    held = {"parameters": 1, "gradients": 10, "optimizer_state": 100, "weight_copies": 1000}

    def peak(activations: float, all_reads: int, reader_gradients: int = 0) -> float:
        return TrainingMemory(
            **held,
            reader_gradients=reader_gradients,
            activations=activations,
            fetched_rows=5,
            held_rows=0,
            own_reads=7,
            all_reads=all_reads,
            sorting=3,
        ).peak

    assert peak(50, 20) == 1111 + 1.2 * 50 + 5 + 7
    assert peak(50, 100) == 1111 + 100 + 3
    assert peak(50, 20, reader_gradients=200) == 1111 + 200 + 50 / 2


@pytest.mark.parametrize(
    ("study", "n_keys"), [("memory_scaling_text_30m", 1024), ("memory_scaling_text_largest", 2048)]
)
@pytest.mark.parametrize("name", ["memory", "memory_plus"])
def test_of_large_tables_it_is_near_what_gpus_measured(study, n_keys, name):
    runs = pd.read_csv(RESULTS / f"{study}.csv").query("preset == '30m' and architecture == @name")
    if "model.n_keys" in runs:  # no column where all trials have the same
        runs = runs[runs["model.n_keys"] == n_keys]
    measured = runs["peak_gpu_bytes"].max()
    module = registry.architecture(name)
    config = module.Config(**{**module.PRESETS["30m"], "n_keys": n_keys})
    train = TrainConfig(tokens=26_214_400, batch_tokens=16_384, seq_len=256, lr=2e-3)

    estimate = training_memory(
        config, 8192, train, precision="bf16", micro_batch_tokens=train.batch_tokens
    ).peak

    # A process has a gigabyte or two more: CUDA, its libraries, what the allocator keeps.
    assert 0.8 * measured < estimate < measured


@pytest.mark.parametrize("optimizer", ["lazy_adamw", "rowwise", "sgd"])
def test_of_tables_on_the_host_a_gpu_holds_the_rows_that_a_micro_batch_reads(optimizer):
    train = _train(table_optimizer=optimizer)
    values = CONFIG.param_count(VOCAB_SIZE).memory_values

    whole, outside = (
        _estimate(CONFIG, train, micro_batch_tokens=2, tables_on_host=on_host)
        for on_host in (False, True)
    )

    rows_read = CONFIG.bytes_per_token(VOCAB_SIZE, batch_tokens=2, element_bytes=4)
    assert outside.fetched_rows == 2 * rows_read["memory_values"] > 0
    assert whole.fetched_rows == 0
    assert whole.parameters - outside.parameters == 4 * values
    moments = 2 * 4 * values if optimizer == "lazy_adamw" else 0
    assert whole.optimizer_state - outside.optimizer_state == moments

    train = _train(table_optimizer=optimizer, table_precision="bf16_master")
    whole, outside = (
        _estimate(CONFIG, train, micro_batch_tokens=2, tables_on_host=on_host)
        for on_host in (False, True)
    )
    assert outside.fetched_rows == rows_read["memory_values"]
    assert whole.parameters - outside.parameters == 2 * values
    assert whole.optimizer_state - outside.optimizer_state == 2 * values + moments


@pytest.mark.parametrize("rule", ["rowwise", "lazy_adamw", "sgd"])
def test_of_tables_read_by_tokens_a_gpu_holds_the_copies_that_steps_make(rule):
    """The estimate's bytes are those of the buffers."""
    config = engram.Config(**engram.PRESETS["d8"])
    train = _train(table_optimizer=rule, batch_tokens=8, seq_len=4)
    with torch.device("meta"):
        model = config.build(VOCAB_SIZE)
    for table in model.memory_tables:
        table.to_host(torch.device("cpu"))
    model.to_empty(device="cpu")
    tables = TableOptimizer(model, train)
    tables.prefetch.begin(torch.zeros(2, 5, dtype=torch.int64), None)
    made = sum(
        each.nbytes
        for copies in tables.prefetch._copies.values()
        for rows in (copies._ids, copies._next, copies.current, copies._last)
        for each in rows.values()
    )

    found = _estimate(config, train, tables_on_host=True, micro_batch_tokens=8)
    several = _estimate(config, train, tables_on_host=True, micro_batch_tokens=8, ranks=2)

    assert found.held_rows == made > 0
    assert found.fetched_rows == 0
    assert several.held_rows == 0
    assert several.fetched_rows > 0


@pytest.mark.parametrize("memory_ranks", [1, 2, 4])
def test_deferred_reads_of_a_part_are_those_of_the_ranks_that_share_the_table(memory_ranks):
    train = _train(table_optimizer="sgd")
    model = _initialised()
    mesh = Mesh(memory=RankGroup(rank=0, size=memory_ranks))
    shard_tables(model, mesh, layout="columns")
    table = next(m for m in model.modules() if isinstance(m, MemoryTable))
    # What `sharding/sharded_lookup.py` leaves of two layers' reads: ids and weights of all ranks,
    # gradients of this one's columns.
    n_bags, bag_size = memory_ranks * train.batch_tokens // 4, CONFIG.memory.lookup.rows_read
    hits = LookupGrad(
        ids=torch.zeros(n_bags, bag_size, dtype=torch.int32),
        weights=torch.zeros(n_bags, bag_size),
        x=torch.zeros(n_bags, table.weight.shape[1]),
    )

    found = _estimate(CONFIG, train, ranks=4, memory_ranks=memory_ranks, micro_batch_tokens=8)

    assert found.own_reads == 2 * sum(x.nbytes for x in (hits.ids, hits.weights, hits.x))
    assert found.all_reads == found.own_reads * 4 // memory_ranks


def test_of_tables_on_the_host_a_gpu_holds_the_second_moments_of_rows():
    train = _train(table_optimizer="rowwise", table_precision="bf16")
    count = CONFIG.param_count(VOCAB_SIZE)

    found = _estimate(CONFIG, train, tables_on_host=True)

    n_rows = count.memory_values // 20
    assert found.optimizer_state == 8 * (count.total - count.memory_values) + 4 * n_rows


def test_of_prefetched_tables_it_holds_no_optimizer_state():
    train = _train(table_optimizer="rowwise", table_precision="bf16")
    config = engram.Config(**engram.PRESETS["d16"])
    count = config.param_count(VOCAB_SIZE)

    found = _estimate(config, train, tables_on_host=True)

    assert found.optimizer_state == 8 * (count.total - count.memory_values)
