"""Registry of workloads by name: architectures, data sources, the train section.

Nothing is registered: `architecture: memory_plus` imports workloads/architectures/memory_plus.py
when it is first asked for. What such a
module must offer is written in docs/architecture.md, "Workload contracts".
"""

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestrator.sweep.matching.step_timer import StepTimer

FAST_VALUES = ("engram", "memory", "memory_plus", "ultramem_v2")
"""Architectures whose papers train memory values at 3.3 to 10 times the rate of the rest
(`workloads/training/recipes.py`)."""


def architectures() -> list[str]:
    """Return every name that `model.architecture` may have, without importing any of them."""
    return _names("workloads.architectures")


def architecture(name: str) -> ModuleType:
    """Return the module of an architecture (`Config`, `PRESETS`).

    Raises:
        ValueError: If there is none of that name; lists those there are.
    """
    found = f"workloads.architectures.{name}"
    if found not in sys.modules and name not in architectures():  # listing a folder takes a while
        raise ValueError(f"architecture must be one of {', '.join(architectures())}, got {name!r}")
    return importlib.import_module(found)


def data_sources() -> list[str]:
    """Return every name that `data.source` may have, without importing any of them."""
    return _names("workloads.data.sources")


def data_source(name: str) -> ModuleType:
    """Return the module of a data source (`Config`).

    Raises:
        ValueError: If there is none of that name; lists those there are.
    """
    found = f"workloads.data.sources.{name}"
    if found not in sys.modules and name not in data_sources():
        raise ValueError(f"source must be one of {', '.join(data_sources())}, got {name!r}")
    return importlib.import_module(found)


def data_preparation() -> ModuleType:
    """Return workloads.data.preparation.prepare: corpora to token shards."""
    return importlib.import_module("workloads.data.preparation.prepare")


def hub() -> ModuleType:
    """Return workloads.data.preparation.hugging_face: data sets of the hub, by name and commit."""
    return importlib.import_module("workloads.data.preparation.hugging_face")


def pretrained(folder: Path) -> Any:
    """Return what a folder in Hugging Face's or Meta's format holds, without its weights.

    Raises:
        ValueError: If it holds no model, or one that no architecture here computes.
    """
    return importlib.import_module("workloads.checkpoint.huggingface.folder").read(folder)


def train_config() -> Any:
    """Return the dataclass of the `train:` section."""
    return importlib.import_module("workloads.training.config").TrainConfig


def recipes() -> Mapping[str, Any]:
    """Return name -> recipe of the `train:` section: `fields`, `source`."""
    found: Mapping[str, Any] = recipes_module().RECIPES
    return found


def recipes_module() -> ModuleType:
    """Return workloads.training.recipes: the recipes, and the columns of tables of them."""
    return importlib.import_module("workloads.training.recipes")


def step_timer() -> StepTimer:
    """Return the timer of optimizer steps; its process starts with the first request."""
    return StepTimer()


def _names(package: str) -> list[str]:
    path = importlib.import_module(package).__path__
    return sorted(
        module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_")
    )


def build_config(cls: Any, fields: Any) -> Any:
    """Return `cls(**fields)` for a stored section; lists become tuples.

    Raises:
        ValueError: If a field is unknown, missing or impossible.
    """
    known = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ValueError(
            f"{cls.__module__}: no field {', '.join(unknown)}; "
            "this trial was made by another version"
        )
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.__module__}: {error}") from error


def accounting() -> ModuleType:
    """Return workloads.accounting.counts: training FLOPs from a config's closed forms."""
    return importlib.import_module("workloads.accounting.counts")


def training_memory() -> ModuleType:
    """Return workloads.training.memory_estimate.peak_memory: what training holds on one rank."""
    return importlib.import_module("workloads.training.memory_estimate.peak_memory")


def micro_batch() -> ModuleType:
    """Return workloads.training.memory_estimate.micro_batch: passes that fit a GPU's memory."""
    return importlib.import_module("workloads.training.memory_estimate.micro_batch")


def trained_model() -> ModuleType:
    """Return workloads.training.trained_model: what trials have learned, and its export."""
    return importlib.import_module("workloads.training.trained_model")


def generation() -> ModuleType:
    """Return workloads.decoding.generate_text: texts that trained models continue prompts with."""
    return importlib.import_module("workloads.decoding.generate_text")


def evaluation() -> ModuleType:
    """Return workloads.evaluation.measure: suites and questions with their files."""
    return importlib.import_module("workloads.evaluation.measure")


def task_rows() -> ModuleType:
    """Return workloads.evaluation.task_rows: whether suites and their files are there."""
    return importlib.import_module("workloads.evaluation.task_rows")


def text_model() -> ModuleType:
    """Return workloads.evaluation.text_model: models that are evaluated on text."""
    return importlib.import_module("workloads.evaluation.text_model")


def table_reads() -> ModuleType:
    """Return workloads.evaluation.table_reads: how often each row of a table is read."""
    return importlib.import_module("workloads.evaluation.table_reads")


def decode_latency() -> ModuleType:
    """Return workloads.evaluation.decode_latency: milliseconds per decoded token."""
    return importlib.import_module("workloads.evaluation.decode_latency")


def harness() -> ModuleType:
    """Return workloads.evaluation.evaluate_suites: suites through lm-evaluation-harness."""
    return importlib.import_module("workloads.evaluation.evaluate_suites")
