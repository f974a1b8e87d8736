"""What `memscale plan` prints: everything a configuration costs, side by side, in 160 columns."""

import dataclasses
import io
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from orchestrator.cli.render import plan as plans
from orchestrator.cli.render import results
from orchestrator.cli.render.wide_table import blocks
from orchestrator.planning.pricing import make_plan
from orchestrator.planning.runtime_prior import Measurement
from orchestrator.records.sweep_dir import SweepDir
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


def test_a_model_without_a_preset_is_named_by_its_width(plan):
    trial = plan.trials[0]
    chosen = dataclasses.replace(trial, spec=dataclasses.replace(trial.spec, preset=None))

    lines = tables(dataclasses.replace(plan, trials=(chosen, *plan.trials[1:])))

    width = trial.spec.model["d_model"]
    assert sum(f"  d_model {width}  " in line for line in lines) == 2


def test_trials_that_left_the_file_are_noted(plan):
    lines = printed(plans.plan_tables(dataclasses.replace(plan, left_over=("dense-0",)), slots=1))

    assert any(
        line.startswith("note: not in this file: 1 trial of earlier submissions: ")
        for line in lines
    )


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
        *("forward", "training", "tokens", "alone", "in 64", "activations", "peak", "a step"),
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


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=15), st.integers(40, 200), st.integers(1, 4)
)
def test_every_column_is_in_one_block_and_those_that_name_the_row_in_each(widths, room, keys):
    found = blocks(widths, room, keys=keys)

    names = list(range(min(keys, len(widths))))
    assert all(block[: len(names)] == names for block in found)
    assert [i for block in found for i in block[len(names) :]] == list(
        range(len(names), len(widths))
    )
    for block in found:
        alone = len(block) <= len(names) + 1  # one column beside the names has nowhere to go
        assert alone or sum(widths[i] + 2 for i in block) - 2 <= room


@pytest.mark.parametrize("width", [60, 100, 124, 200])
def test_prose_beside_long_names_wraps_and_loses_no_word(width):
    name, prose = "a name of two words " * 4, "a curve through too few sizes " * 6
    table = SimpleNamespace(
        title="Prose",
        columns=("architecture", "outcome", "against", "why"),
        rows=[(name, name, name, prose)],
        numeric=(False,) * 4,
        notes=(),
    )

    lines = printed(results.printed([table]), width=width)

    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert words.count("curve") == words.count("through") == words.count("few") == 6


@pytest.mark.parametrize("width", [60, 100, 200])
def test_no_number_and_no_name_of_a_wide_table_is_cut(width):
    rows = [
        (f"memory_plus (n_keys={k})", "d8", *(f"{k}.{i}e+09" for i in range(12))) for k in (8, 16)
    ]
    table = SimpleNamespace(
        title="Wide",
        columns=("architecture", "preset", *(f"amount {i}" for i in range(12))),
        rows=rows,
        numeric=(False, False, *(True,) * 12),
        notes=(),
    )

    text = "\n".join(printed(results.printed([table]), width=width))

    assert "…" not in text
    for row in rows:
        assert all(cell in text for cell in row[1:])
    assert text.count("(n_keys=16)") == (1 if width == 200 else text.count("(n_keys=8)"))
