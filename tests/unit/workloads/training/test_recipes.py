"""Recipes: each makes a TrainConfig, says where it is from, and is on its page."""

import dataclasses
import os
import re
from pathlib import Path

import pytest

from workloads.training.config import TrainConfig
from workloads.training.recipes import RECIPES, cells, markdown

PAGE = Path(__file__).parents[4] / "docs" / "recipes.md"
OPTIONAL = {
    "tokens",
    "stop_at_tokens",
    "clip_values",
    "precision",
    "document_mask",
    "decay_fraction",
    "value_lr_final_ratio",
    "value_lr_decay_fraction",
    "table_clip",
    "table_precision",
    "table_moments",
}
"""Fields that a recipe may leave out: what they do without it is no question of the source."""


def config(name: str) -> TrainConfig:
    return TrainConfig(tokens=10**10, **RECIPES[name].fields)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_a_config_once_tokens_are_given(name: str) -> None:
    made = config(name)

    assert made.steps >= 1
    assert "tokens" not in RECIPES[name].fields


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_leaves_nothing_to_defaults_that_may_change(name: str) -> None:
    fields = RECIPES[name].fields
    missing = {f.name for f in dataclasses.fields(TrainConfig)} - set(fields) - OPTIONAL

    assert not missing
    assert ("decay_fraction" in fields) == (fields["schedule"] == "wsd")


@pytest.mark.parametrize("name", RECIPES)
def test_a_source_is_named_in_whole_sentences(name: str) -> None:
    source = RECIPES[name].source

    assert re.search(r"arXiv \d{4}\.\d{5}|github\.com/", source)
    assert source.endswith(".")
    assert "|" not in source, "the page's table"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memory_layers_134m", {"lr": 3e-4, "schedule": "linear", "final_lr_fraction": 0.01}),
        ("memory_layers_1.3b", {"lr": 3e-4, "warmup_fraction": 4_000 / 128_000}),
        ("memory_layers_8b", {"lr": 1e-4, "value_lr_ratio": 10.0}),
        ("memory_layers_released", {"lr": 1e-4, "value_lr_ratio": 10, "value_weight_decay": 0.1}),
        ("pkm_2019", {"lr": 2.5e-4, "value_lr_ratio": 4, "beta2": 0.98, "value_weight_decay": 0}),
        ("peer", {"batch_tokens": 128 * 2048, "seq_len": 2048}),
        ("olmoe_1b", {"lr": 4e-4, "batch_tokens": 1024 * 4096, "weight_decay": 0.1}),
        ("olmoe_227m", {"lr": 4e-4, "warmup_fraction": 0.021}),
        ("ultramem_151m", {"lr": 6e-4, "value_lr_ratio": 10, "value_lr_final_ratio": 1}),
        ("ultramem_6.5b", {"lr": 1.2e-4, "batch_tokens": 2048 * 2048}),
        ("ultramem_v2", {"value_lr_ratio": 4, "value_lr_final_ratio": 1}),
        ("engram", {"value_lr_ratio": 5, "value_weight_decay": 0}),
        ("sparse_memory_lm", {"lr": 6e-4, "value_lr_ratio": 4, "value_weight_decay": 0}),
        ("pythia_70m", {"lr": 1e-3, "warmup_fraction": 0.01, "final_lr_fraction": 0.1}),
        ("pythia_160m", {"lr": 6e-4, "batch_tokens": 1024 * 2048}),
        ("pythia_410m", {"lr": 3e-4}),
        ("pythia_1b", {"lr": 2.5e-4}),
        ("pythia_1.4b", {"lr": 2e-4}),
        ("memoryformer_tiny", {"lr": 3e-3, "value_weight_decay": 0.1, "value_lr_ratio": 1}),
        ("memoryformer_tiny_released", {"lr": 3e-3, "final_lr_fraction": 0.01}),
        ("lookup_ffn", {"lr": 1e-4, "schedule": "linear", "batch_tokens": 64 * 512}),
        ("all_attention", {"lr": 2.5e-4, "weight_decay": 0, "batch_tokens": 64 * 256}),
    ],
)
def test_numbers_are_those_of_the_source(name: str, expected: dict[str, object]) -> None:
    made = config(name)

    assert {key: getattr(made, key) for key in expected} == expected


@pytest.mark.parametrize(("name", "pythia"), [("tiny", "70m"), ("small", "160m"), ("base", "410m")])
def test_memoryformer_has_three_times_pythias_rate(name: str, pythia: str) -> None:
    ours, theirs = config(f"memoryformer_{name}"), config(f"pythia_{pythia}")

    assert ours.clip_values == "together"
    assert dataclasses.replace(ours, lr=theirs.lr, clip_values=None) == theirs
    assert ours.lr == pytest.approx(3 * theirs.lr)


@pytest.mark.parametrize(
    ("name", "steps"),
    [("pythia_70m", 143_000), ("memoryformer_tiny_released", 106_418), ("ultramem_680m", 238_418)],
)
def test_the_sources_own_run_has_its_steps(name: str, steps: int) -> None:
    assert TrainConfig(tokens=RECIPES[name].tokens, **RECIPES[name].fields).steps == steps


def test_values_of_memory_layers_learn_at_the_released_codes_rate() -> None:
    for name in ("134m", "373m", "720m", "1.3b", "8b"):
        made = config(f"memory_layers_{name}")
        assert made.lr * made.value_lr_ratio == pytest.approx(1e-3)


def test_the_page_holds_what_the_code_says() -> None:
    if os.environ.get("MEMSCALE_UPDATE_GOLDEN"):
        PAGE.write_text(markdown(), encoding="utf-8")

    assert PAGE.read_text(encoding="utf-8") == markdown(), (
        "MEMSCALE_UPDATE_GOLDEN=1 python -m pytest tests/unit/workloads/training/test_recipes.py writes it anew"
    )


def test_a_row_shows_what_falls_and_to_what() -> None:
    assert cells(RECIPES["ultramem_v2"])[:3] == ("0.0004", "4 to 1", "cosine to 0.1")
    assert cells(RECIPES["pkm_2019"])[1:3] == ("4", "constant")
