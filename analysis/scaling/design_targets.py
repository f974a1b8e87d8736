"""Targets of an experimental design: a loss or a multiplier to narrow down."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law
from analysis.loading.written_numbers import written_number
from analysis.scaling.architecture_laws import ArchitectureLaws, Curve
from analysis.scaling.compute_multiplier import multipliers_of
from analysis.scaling.cost_measures import cost_measure

Array = NDArray[np.float64]

USAGE = (
    "write an architecture and the inputs of its law, as in 'memory_plus: params=1e8, tokens=2e9',"
    " or two and an amount, as in 'memory_plus/dense: flops=1e18'"
)


class Target(Protocol):
    """A number that one wants to know better."""

    @property
    def description(self) -> str:
        """As a sentence names it."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Whose laws it rests on."""

    def values(self, curves: Mapping[str, Curve]) -> Array:
        """Return ln(target) (k,) under every set of coefficients; NaN where there is none."""


@dataclass(frozen=True, kw_only=True)
class LossAt:
    """The loss of an architecture at sizes and tokens."""

    architecture: str
    inputs: Mapping[str, float]
    """The law's inputs."""

    @property
    def description(self) -> str:
        """As a sentence names it."""
        at = ", ".join(f"{k}={v:g}" for k, v in self.inputs.items())
        return f"loss of {self.architecture} at {at}"

    @property
    def architectures(self) -> tuple[str, ...]:
        """Whose laws it rests on."""
        return (self.architecture,)

    def values(self, curves: Mapping[str, Curve]) -> Array:
        """Return ln(loss) (k,)."""
        curve = _curve_of(curves, self.architecture)
        return log_loss(curve.law, self.inputs, curve.parameters)


@dataclass(frozen=True, kw_only=True)
class MultiplierAt:
    """How many times a candidate's amount a reference needs for the same loss.

    Source: `analysis/scaling/compute_multiplier.py`.
    """

    candidate: str
    reference: str
    amount: float
    measure: str = "flops"
    tokens: float | None = None

    @property
    def description(self) -> str:
        """As a sentence names it."""
        tokens = "" if self.tokens is None else f" and tokens={self.tokens:g}"
        return (
            f"{self.measure} multiplier of {self.candidate} over {self.reference}"
            f" at {self.measure}={self.amount:g}{tokens}"
        )

    @property
    def architectures(self) -> tuple[str, ...]:
        """Whose laws it rests on."""
        return self.candidate, self.reference

    def values(self, curves: Mapping[str, Curve]) -> Array:
        """Return ln(multiplier) (k,)."""
        candidate, reference = pair = [
            _curve_of(curves, name) for name in (self.candidate, self.reference)
        ]
        measure = cost_measure(self.measure)
        for name, curve in zip((self.candidate, self.reference), pair, strict=True):
            if measure.name in curve.domain.unpriced:
                why = curve.domain.unpriced[measure.name]
                raise ValueError(f"target: {measure.label} of {name}: {why}")
        amounts = np.asarray([self.amount])
        found = multipliers_of(candidate, reference, measure, amounts, self.tokens)
        return np.asarray(np.log(found[:, 0]))


def parse_target(text: str, laws: ArchitectureLaws) -> Target:
    """Read `memory: params=1e8, tokens=2e9` (loss) or `memory/dense: flops=1e18` (multiplier).

    Numbers may be written as 70B. The architecture may be left out where there is one.

    Raises:
        ValueError: If it is neither; the message shows both.
    """
    head, colon, tail = text.rpartition(":")
    pairs = [part.partition("=") for part in re.split(r"[,\s]+", tail.strip()) if part]
    read = {key.strip(): written_number(number) for key, _, number in pairs}
    values = {key: v for key, v in read.items() if v is not None and not math.isnan(v)}
    if len(values) < len(read):
        values = {}
    names = list(laws.by_name)
    if not values or (not colon and len(names) > 1):
        raise ValueError(f"target: cannot read {text!r}; {USAGE}; there are {', '.join(names)}")
    who = head.strip() or names[0]
    if "/" in who:
        candidate, reference = (w.strip() for w in who.split("/", 1))
        for name in (candidate, reference):
            laws.named(name)
        tokens = values.pop("tokens", None)
        if len(values) != 1:
            raise ValueError(f"target: a multiplier is at one amount, got {text!r}; {USAGE}")
        ((measure, amount),) = values.items()
        return MultiplierAt(
            candidate=candidate,
            reference=reference,
            amount=amount,
            measure=cost_measure(measure).name,
            tokens=tokens,
        )
    law = laws.named(who).curve.law
    if set(values) != set(law.inputs):
        raise ValueError(
            f"target: the law {law.name} takes {', '.join(law.inputs)},"
            f" got {', '.join(values)}; {USAGE}"
        )
    return LossAt(architecture=who, inputs={n: values[n] for n in law.inputs})


def log_loss(law: Law, inputs: Mapping[str, float], parameters: Array) -> Array:
    """Return ln(loss) (k,) at one place under parameters (k, p).

    Raises:
        ValueError: If an input of the law is missing or impossible.
    """
    missing = [
        n for n in law.inputs if not (n in inputs and math.isfinite(inputs[n]) and inputs[n] >= 0)
    ]
    if missing:
        raise ValueError(
            f"{', '.join(missing)}: the law {law.name} needs it, positive; got {dict(inputs)}"
        )
    at = {n: np.asarray([float(inputs[n])]) for n in law.inputs}
    return np.asarray(np.log(law.evaluate(at, parameters))[:, 0])


def _curve_of(curves: Mapping[str, Curve], name: str) -> Curve:
    if name not in curves:
        raise ValueError(f"target: no architecture {name!r}; there are {', '.join(curves)}")
    return curves[name]
