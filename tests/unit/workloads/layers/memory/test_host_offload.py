"""Host-offloaded tables compute what tables on the device do, to the bit."""

import mmap
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.layers.memory import host_offload
from workloads.layers.memory.host_offload import fetch_rows
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.init import initialise
from workloads.sharding.materialise import Place, materialise_model
from workloads.training.config import TrainConfig
from workloads.training.optimizer.adamw import Optimizer
from workloads.training.optimizer.table_optimizer import READ_AS, RULE_OF
from workloads.training.step.train_step import accumulate_gradients

CPU = torch.device("cpu")
# Bags, products, rows named by signs, n-gram rows, and two tables in one layer.
ARCHITECTURES = ["memory_plus", "peer", "memoryformer", "engram", "per_layer_embedding"]
VOCAB = 61


def model_of(architecture: str, place: Place) -> nn.Module:
    module = import_module(f"workloads.architectures.{architecture}")
    make = partial(module.Config(**module.PRESETS["d8"]).build, VOCAB)
    model = materialise_model(make, Mesh(), layout="columns", here=CPU, place=place)
    initialise(model, 0)
    return model


def config(**changes: object) -> TrainConfig:
    fields = {"tokens": 64, "batch_tokens": 64, "seq_len": 16, "lr": 0.01, "grad_clip": 0.1}
    return TrainConfig(**{**fields, **changes})


@given(
    n_rows=st.integers(1, 20),
    bags=st.integers(0, 6),
    bag_size=st.integers(0, 6),
    direct=st.integers(0, 40),
)
def test_what_is_fetched_is_what_is_named_each_row_once(n_rows, bags, bag_size, direct):
    generator = torch.Generator().manual_seed(bags)
    table = torch.randn(n_rows, 3, generator=generator)
    ids = torch.randint(n_rows, (bags, bag_size), generator=generator, dtype=torch.int32)

    rows, places = fetch_rows(table, ids, direct_reads=direct)

    assert torch.equal(rows[places.long()], table[ids.long()])
    if bags * bag_size > direct:
        assert len(rows) == len(set(ids.flatten().tolist()))
    else:
        assert rows is table


@pytest.mark.parametrize("direct_reads", [0, host_offload.DIRECT_READS])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_and_three_steps_are_those_of_tables_on_the_device(
    monkeypatch, architecture, direct_reads
):
    monkeypatch.setattr(host_offload, "DIRECT_READS", direct_reads)
    models = [model_of(architecture, place) for place in ("device", "host")]
    tables = [m for m in models[1].modules() if isinstance(m, MemoryTable)]
    assert tables
    assert all(table.on_host for table in tables)
    assert not any(p.is_meta for p in (*models[1].parameters(), *models[1].buffers()))
    with torch.inference_mode():
        tokens = torch.arange(24).view(2, 12) % VOCAB
        assert torch.equal(models[0].eval()(tokens), models[1].eval()(tokens))
    optimizers = [Optimizer(m.train(), config(table_optimizer="lazy_adamw")) for m in models]

    for step in range(3):
        batch = torch.randint(VOCAB, (4, 17), generator=torch.Generator().manual_seed(step))
        losses, norms = [], []
        for model, optimizer in zip(models, optimizers, strict=True):
            losses.append(
                accumulate_gradients(model, batch, batch_tokens=64, passes=2, autocast=nullcontext)
            )
            norms.append(optimizer.clip())
            optimizer.step(0.01)
        assert losses[0] == losses[1]
        assert norms[0] == norms[1]
    assert norms[0]["value_grad_norm"] > 0
    for (name, a), b in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, p) for name in RULE_OF for p in ("fp32", "bf16", "bf16_master")],
)
def test_every_table_optimizer_makes_the_same_steps(monkeypatch, name, precision):
    monkeypatch.setattr(host_offload, "DIRECT_READS", 0)
    settings = config(table_optimizer=name, table_precision=precision)
    found = []
    for place in ("device", "host"):
        model = model_of("memory_plus", place)
        optimizer = Optimizer(model, settings)
        for step in range(3):
            batch = torch.randint(VOCAB, (4, 17), generator=torch.Generator().manual_seed(step))
            accumulate_gradients(model, batch, batch_tokens=64, passes=1, autocast=nullcontext)
            optimizer.clip()
            optimizer.step(0.01)
        found.append((model.memory_table.weight, optimizer.tables.state_dict()))

    (values, state), (host_values, host_state) = found
    assert host_values.dtype == READ_AS[precision]
    assert torch.equal(values, host_values)
    for key, moment in state["states"]["memory_table"].items():
        assert torch.equal(moment, host_state["states"]["memory_table"][key])


def test_without_a_deferred_gradient_the_dense_one_is_right(monkeypatch):
    monkeypatch.setattr(host_offload, "DIRECT_READS", 0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(20, (7, 5), generator=generator)
    weights, x = (torch.randn(7, n, generator=generator) for n in (5, 4))

    def gradients(*, on_host: bool) -> tuple[Tensor, ...]:
        table = MemoryTable(20, 4)
        initialise(table, 0)
        if on_host:
            table.to_host(CPU)
        loss = (table(ids, weights) * x).sum() + table.gathered_dot(ids, x).square().sum()
        return torch.autograd.grad(loss, [table.weight])

    torch.testing.assert_close(gradients(on_host=True), gradients(on_host=False))


def test_a_frozen_table_moves_with_its_values_and_stays_frozen():
    table = MemoryTable(5, 3)
    initialise(table, 0)
    table.requires_grad_(False)
    before = table.weight.clone()

    table.to_host(CPU)

    assert torch.equal(table.weight, before)
    assert not table.weight.requires_grad


def test_pinned_memory_has_its_own_pages_and_is_refused_in_a_sentence(monkeypatch):
    """With CUDA's two functions made up; `tests/gpu` uses them."""
    asked = []
    runtime = SimpleNamespace(cudaHostRegister=lambda *words: asked.append(words) or code)
    monkeypatch.setattr(host_offload, "_runtime", lambda: runtime)
    code = 0

    pinned = host_offload._pinned(100_001)

    assert pinned.shape == (100_001,)
    assert not pinned.any()
    pinned[-1] = 3
    assert asked == [(pinned.data_ptr(), 100_001, 0)]
    assert pinned.data_ptr() % mmap.PAGESIZE == 0
    code = 2
    with pytest.raises(RuntimeError, match=r"0\.1 GB of host memory cannot be pinned .* error 2"):
        host_offload._pinned(10**8)


def test_what_does_not_work_is_refused():
    model = model_of("memory_plus", "host")
    with pytest.raises(
        ValueError, match=r"adamw needs a gradient .* use lazy_adamw, rowwise or sgd"
    ):
        Optimizer(model, config())
    with pytest.raises(ValueError, match="holds whole tables, got memory_ranks 2"):
        materialise_model(
            nn.Module, Mesh(memory=RankGroup(size=2)), layout="columns", here=CPU, place="host"
        )
    with pytest.raises(ValueError, match="memory_tables must be device or host, got 'disk'"):
        materialise_model(nn.Module, Mesh(), layout="columns", here=CPU, place="disk")
    table = MemoryTable(5, 3)
    table.shard = object()
    with pytest.raises(ValueError, match="shared out over ranks; set memory_ranks to 1"):
        table.to_host(CPU)
