"""Steps with prefetched rows make the numbers of tables on the device; a GPU's streams, `tests/gpu` shows."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.sweep import registry
from tests.unit.workloads.training.optimizer.test_table_optimizer import Recorder, job_in
from workloads.checkpoint import checkpoint
from workloads.distributed.mesh import Mesh
from workloads.layers.memory import host_rows
from workloads.layers.memory.table import MemoryTable, TableComponent
from workloads.layers.memory.token_reads import token_readers
from workloads.layers.modules.init import initialise
from workloads.sharding.materialise import Place, materialise_model
from workloads.training.config import TrainConfig
from workloads.training.metrics.reporter import Interrupted
from workloads.training.rank_job import RankJob
from workloads.training.step import compilation, cuda_graph
from workloads.training.step.train_step import TrainStep
from workloads.training.train import run

CPU = torch.device("cpu")
VOCAB = 61
BY_TOKEN = {
    "engram": {},
    "engram, one table": {"architecture": "engram", "shared_table": True},
    "ngram_input": {},
    "value_embeddings": {},
    "per_layer_embedding": {},
}


def model_of(name: str, place: Place, *, here: torch.device = CPU) -> nn.Module:
    fields = {"architecture": name, **BY_TOKEN.get(name, {})}
    module = import_module(f"workloads.architectures.{fields.pop('architecture')}")
    make = partial(module.Config(**module.PRESETS["d8"], **fields).build, VOCAB)
    model = materialise_model(make, Mesh(), layout="columns", here=here, place=place)
    initialise(model, 0)
    return model.train()


def step_of(
    model: nn.Module, *, passes: int = 1, compiled: bool = False, **changes: object
) -> TrainStep:
    fields = {"tokens": 64, "batch_tokens": 64, "seq_len": 16, "lr": 0.01, "grad_clip": 0.1}
    config = TrainConfig(**{**fields, "table_optimizer": "rowwise", **changes})
    return TrainStep(model, config, passes=passes, autocast=nullcontext, compiled=compiled)


def batches(n: int, *, here: torch.device = CPU) -> list[torch.Tensor]:
    """Return batches of which neighbours share most of their tokens."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(VOCAB, (4, 17 + n), generator=generator)
    return [whole[:, start : start + 17].clone().to(here) for start in range(n)]


def trained(
    step: TrainStep | cuda_graph.CapturedStep, *, foresees: bool = True, here: torch.device = CPU
) -> list[torch.Tensor]:
    """Return the numbers of six steps, the weights and the optimizer's state of the tables."""
    windows = batches(6, here=here)
    found = []
    for batch, upcoming in zip(windows, [*windows[1:], None], strict=True):
        numbers = step(batch, lr=0.01, upcoming=upcoming if foresees else None)
        found += numbers.values()
    step.optimizer.settle()
    found += [p.detach() for p in step.model.parameters()]
    for state in step.optimizer.tables.state_dict()["states"].values():
        found += state.values()
    return found


def assert_same(expected: list[torch.Tensor], found: list[torch.Tensor]) -> None:
    assert len(expected) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("name", registry.architectures())
def test_the_plan_and_the_model_agree_on_which_tables_tokens_name(name):
    module = registry.architecture(name)
    config = module.Config(**module.PRESETS["d16"])
    planned = [
        component
        for n, component in config.components(VOCAB)
        for _ in range(n)
        if isinstance(component, TableComponent) and component.by_token
    ]
    with torch.device("meta"):
        found = token_readers(config.build(VOCAB))

    assert sorted(table.weight.shape for table in found) == sorted(
        (component.n_rows, component.width) for component in planned
    )


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("name", BY_TOKEN)
def test_steps_have_the_bits_of_tables_on_the_device(name, passes):
    host = model_of(name, "host")
    steps = [step_of(model, passes=passes) for model in (model_of(name, "device"), host)]

    expected, found = map(trained, steps)

    tables = [module for module in host.modules() if isinstance(module, MemoryTable)]
    assert tables
    assert all(table.prefetched for table in tables)
    assert_same(expected, found)


@pytest.mark.parametrize(
    ("rule", "precision"),
    [
        ("lazy_adamw", "fp32"),
        ("lazy_adamw", "bf16"),
        ("rowwise", "bf16"),
        ("sgd", "bf16"),
        ("lazy_adamw", "bf16_master"),
        ("rowwise", "bf16_master"),
        ("sgd", "fp32"),
    ],
)
def test_every_rule_that_updates_read_rows_only_keeps_its_bits(rule, precision):
    ways = {"table_optimizer": rule, "table_precision": precision}

    expected, found = (
        trained(step_of(model_of("engram", place), **ways)) for place in ("device", "host")
    )

    assert_same(expected, found)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_numbers_do_not_depend_on_whether_rows_were_foreseen(precision):
    expected, found = (
        trained(step_of(model_of("engram", "host"), table_precision=precision), foresees=foresees)
        for foresees in (False, True)
    )

    assert_same(expected, found)


def test_rows_that_the_step_before_changed_are_the_changed_ones():
    step = step_of(model_of("ngram_input", "host"))
    first, second = batches(2)

    step(first, lr=0.01, upcoming=second)
    table = step.model.memory_table
    table.weight.data[:] = 0.0  # What was fetched meanwhile, and what the last step left, count.
    step.optimizer.begin(second, None)

    shared = set(step.model.ngram_input.token_rows(first[:, :-1]).flatten().tolist())
    shared &= set(step.model.ngram_input.token_rows(second[:, :-1]).flatten().tolist())
    assert shared
    held = table.held.values[table.held.places(torch.tensor(sorted(shared)))]
    assert held.any(dim=1).all()


def test_between_steps_the_tables_themselves_are_read():
    step = step_of(model_of("engram", "host"))
    first, second = batches(2)

    step(first, lr=0.01, upcoming=second)
    step.optimizer.settle()

    assert all(table.held is None for table in step.model.memory_tables)
    with torch.no_grad():
        expected = step.model.eval()(second)
        for table in step.model.memory_tables:
            table.weight.zero_()
        assert not torch.equal(step.model(second), expected)


@pytest.mark.parametrize("way", ["gather", "scatter"])
def test_what_fails_beside_a_step_ends_the_next_one(way, monkeypatch):
    def fail(*_):
        raise RuntimeError(way)

    step = step_of(model_of("engram", "host"))
    monkeypatch.setattr(host_rows, way, fail)

    with pytest.raises(RuntimeError, match=way):
        trained(step)


def test_rules_that_update_every_row_read_the_table_itself():
    step = step_of(model_of("engram", "host"), table_optimizer="deferred_adamw")

    assert not any(table.prefetched for table in step.model.memory_tables)


@pytest.mark.long
def test_a_compiled_block_reads_the_copies_in_one_graph(monkeypatch):
    """Traced and differentiated, not compiled to machine code; a break of the graph is an error."""
    compile_ = torch.compile
    whole = {"backend": "aot_eager", "fullgraph": True}
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_(f, **options, **whole))
    monkeypatch.setattr(compilation, "INDUCTOR_OPTIONS", None)  # other backends refuse them
    monkeypatch.setattr(compilation, "_compiled", {})
    torch._dynamo.reset()
    found = []
    # Not by `monkeypatch`: it deletes the setting, which then is gone for later tests.
    with torch._dynamo.config.patch(suppress_errors=False):
        for place in ("device", "host"):
            model = model_of("engram", place)
            model.recording_usage = False
            step = step_of(model, compiled=True)
            torch._dynamo.config.suppress_errors = False  # which compiling sets
            found.append(trained(step))
    torch._dynamo.reset()

    assert_same(*found)


def test_such_steps_are_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    taken = [
        cuda_graph.capture_if_possible(step_of(model_of(name, "host")), bf16=True)
        for name in ("engram", "memory_plus")
    ]

    assert [isinstance(each, cuda_graph.CapturedStep) for each in taken] == [True, False]


def engram_job(folder: Path, cache: Path, place: Place, precision: str, **changes: Any) -> RankJob:
    section = import_module("workloads.architectures.engram").PRESETS["d8"]
    made = job_in(folder, cache, table_optimizer="rowwise", table_precision=precision)
    return replace(
        made, model={"architecture": "engram", **section}, memory_tables=place, **changes
    )


def recorded(job: RankJob, *, stop_at: int = 10**9) -> dict[int, dict[str, float]]:
    """Return the metrics of a trial by step, up to where it is stopped."""
    recorder = Recorder(stop_at=stop_at)
    with nullcontext() if stop_at == 10**9 else pytest.raises(Interrupted):
        run(job, recorder)
    return recorder.rows


@pytest.mark.parametrize(
    ("begins", "goes_on", "precision"),
    [("host", "host", "bf16"), ("host", "device", "fp32"), ("device", "host", "fp32")],
)
def test_a_stopped_trial_goes_on_bit_for_bit(
    tmp_path, tmp_path_factory, begins, goes_on, precision
):
    cache = tmp_path_factory.getbasetemp() / "cache"
    undisturbed, stopped = tmp_path / "a", tmp_path / "b"

    rows = [
        recorded(engram_job(undisturbed, cache, begins, precision)),
        recorded(engram_job(stopped, cache, begins, precision), stop_at=2)
        | recorded(engram_job(stopped, cache, goes_on, precision)),
    ]

    assert rows[0] == rows[1]
    expected, found = (
        checkpoint.load(folder / "checkpoints" / "final")["weights"]
        for folder in (undisturbed, stopped)
    )
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
