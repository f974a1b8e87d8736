"""Quantities that `match` makes equal: words and closed-form counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.sweep.matching import isoflop_ladder
from orchestrator.sweep.matching.isoflop_ladder import Frame


@dataclass(frozen=True)
class Quantity:
    """One key that may stand under `match`."""

    words: str
    """As in `no d_ff gives 2.0e+14 training FLOPs`."""
    example: str
    """A number as it may be written in a sweep file."""
    write: Callable[[float], str]
    """Number -> text that may be pasted into a sweep file."""
    count: Callable[[Any, Frame, int], float] | None
    """Model Config, frame and tokens -> number; None: it is measured (step_time.py)."""
    by_tokens: bool = False
    """Whether `solve: tokens` can change it."""


def _training_flops(model: Any, frame: Frame, tokens: int) -> float:
    return isoflop_ladder.training_flops(model, frame, tokens=tokens)


def _active_params(model: Any, frame: Frame, tokens: int) -> float:
    return float(model.active_param_count(frame.vocab_size))


def _total_params(model: Any, frame: Frame, tokens: int) -> float:
    return float(model.param_count(frame.vocab_size).total)


def _bytes_per_token(model: Any, frame: Frame, tokens: int) -> float:
    return float(sum(model.bytes_per_token(frame.vocab_size).values()))


def _whole(number: float) -> str:
    return f"{round(number):_}"


QUANTITIES = {
    "training_flops": Quantity(
        "training FLOPs", "2.0e+14", isoflop_ladder.flops_text, _training_flops, by_tokens=True
    ),
    "active_params": Quantity("active parameters", "1_000_000", _whole, _active_params),
    "total_params": Quantity("total parameters", "5_000_000", _whole, _total_params),
    "bytes_per_token": Quantity("bytes per token", "2_000_000", _whole, _bytes_per_token),
    "step_time": Quantity(
        "seconds per step", "0.05", lambda seconds: f"{seconds:.3g}", None, by_tokens=True
    ),
}
"""Definitions: docs/metrics.md, "Accounting".

bytes_per_token: read for one token decoded alone, in bf16.
"""
