"""Benchmark hook: what a training run asks of benchmarks, and what it hands them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from workloads.data.tokenizer import TextTokenizer
from workloads.distributed.process_group import RankGroup


@dataclass(frozen=True, kw_only=True)
class ModelInTraining:
    """A model between two steps, on one rank."""

    model: nn.Module
    tokenizer: TextTokenizer
    vocab_size: int
    seq_len: int
    """Tokens of a training sequence, the longest that the model has seen."""
    step: int
    """Optimizer steps done."""
    n_steps: int
    """Of the whole run."""
    training_s: float
    """Seconds of optimizer steps so far."""
    benchmarks_s: float
    """Seconds of benchmarks so far."""
    world: RankGroup
    here: torch.device
    bf16: bool
    """Whether training computes in bf16."""
    progress: Callable[[], None]
    """Called between passes: a sign of life."""


class BenchmarkHook(Protocol):
    """Benchmarks that are asked during training (`workloads.evaluation.in_training`)."""

    @property
    def steps(self) -> frozenset[int]:
        """After which steps they are asked."""

    def measure(self, trained: ModelInTraining) -> dict[str, float]:
        """Return metrics, the same on every rank; the model is as it was. Collective."""
