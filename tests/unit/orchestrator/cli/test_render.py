"""What `memscale plan` prints: everything a configuration costs, side by side, in 160 columns."""

import dataclasses
import io

import pytest
from rich.console import Console

from orchestrator.cli.render import plan as plans
from orchestrator.planning.pricing import make_plan
from orchestrator.planning.runtime_prior import Measurement
from orchestrator.records.trial_dir import SweepDir
from orchestrator.sweep import registry
from orchestrator.sweep.load import load_sweep

SWEEP = """
name: wide
data: {source: biographies, n_people: 100, style: compact}
train: {recipe: memoryformer_tiny_released, tokens: 300_000_000_000}
model: {architecture: memory_plus, preset: 1.3b, n_keys: 4096, tied_embeddings: false}
trials:
  - grid: {model.preset: [134m, 1.3b]}
  - set: {model.architecture: dense, train.recipe: null, train.batch_tokens: 4_194_304, train.seq_len: 2048, train.lr: 1.0e-3}
seeds: [0, 1, 2]
"""
MEASURED = [Measurement(architecture="dense", device="cpu", flops_per_token=1e5, s_per_token=1e-5)]


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "wide.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    return make_plan(load_sweep(file), SweepDir(tmp_path / "runs" / "wide").snapshot(), MEASURED)


def printed(renderable, *, width=160):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(renderable)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def tables(plan, *, width=160):
    """Return the lines of both tables: what is above the reasons."""
    lines = printed(plans.plan_tables(plan, slots=1), width=width)
    return lines[: next(i for i, line in enumerate(lines) if " new: " in line)]


def test_a_plan_fits_160_columns_with_one_line_per_configuration(plan):
    wide, narrow = (tables(plan, width=width) for width in (400, 160))

    assert wide == narrow, "nothing was wrapped or cut"
    assert max(map(len, narrow)) <= 160
    rows = [line for line in narrow if line.lstrip()[:2] in ("1 ", "2 ", "3 ")]
    assert [line.split()[1:3] for line in rows[:3]] == [line.split()[1:3] for line in rows[3:6]]


def test_nothing_that_a_configuration_costs_is_left_out(plan):
    text = "\n".join(tables(plan))

    for column in (
        *("total", "active", "memory", "embedding", "attention", "mem. keys", "head", "recipe"),
        *("FLOPs", "training", "tokens", "alone", "in 64", "activations", "peak", "a step", "each"),
    ):
        assert column in text
    assert "memoryformer_tiny_released" in text
    assert "3 new" in text


def test_without_recipes_there_is_no_column_for_them(plan):
    trials = tuple(
        dataclasses.replace(t, spec=dataclasses.replace(t.spec, recipe=None)) for t in plan.trials
    )
    without = dataclasses.replace(plan, trials=trials)

    assert not [line for line in tables(without) if "recipe" in line]


def test_every_recipe_is_listed_with_its_source():
    text = " ".join(" ".join(printed(plans.recipes_text(registry.recipes_module()))).split())

    for source, names in registry.recipes_module().by_source().items():
        assert f"{', '.join(names)}: {source}" in text
