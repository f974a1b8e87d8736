"""Size families: models of any requested size.

The members of an architecture's family, and the one nearest to a number of parameters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from workloads.accounting.counts import ParamCount
from workloads.field_error import FieldError


@runtime_checkable
class Counted(Protocol):
    """A config that knows its size."""

    def param_count(self, vocab_size: int) -> ParamCount:
        """Count per group."""


C = TypeVar("C", bound=Counted)

WIDTHS = (*range(16, 64, 8), *range(64, 256, 16), *range(256, 1024, 64), *range(1024, 8193, 128))
"""`d_model` of the members."""


def backbone_fields(d_model: int) -> dict[str, Any]:
    """Return the fields of the member of this width.

    The rules are our own. About 40 columns per layer, 2 to 24 layers. Few heads where the model is
    small: their count, not their width, costs time on a CPU. d_ff is 8/3 of d_model. Embeddings are
    tied, because below some ten million parameters a second vocabulary matrix would be most of the
    model.
    """
    if d_model <= 64:
        n_heads = 2
    elif d_model <= 256:
        n_heads = 4
    else:
        n_heads = d_model // 64
    return {
        "d_model": d_model,
        "n_layers": max(2, min(24, round(d_model / 40))),
        "n_heads": n_heads,
        "d_ff": 8 * round(d_model / 3),
        "tied_embeddings": True,
    }


def without_d_ff(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a backbone for a model that has no dense feed-forward block."""
    return {name: value for name, value in fields.items() if name != "d_ff"}


@dataclass(frozen=True, kw_only=True)
class FreeDimension:
    """A field that may differ from its usual value, to meet a size between two widths."""

    name: str
    lowest: float
    highest: float
    """Bounds, as multiples of the usual value."""
    step: int
    """Values are multiples of it."""

    def values(self, usual: int) -> range:
        """Return the multiples of `step` within the bounds, and at least one."""
        first = max(1, math.ceil(self.lowest * usual / self.step))
        last = max(first, math.floor(self.highest * usual / self.step))
        return range(first * self.step, last * self.step + 1, self.step)


_NEAREST = 3
"""Widths to try: between two of them the bounds of the free dimensions may leave a gap that the
next width covers."""
_NEAR_ENOUGH = math.log(1.05)
"""A usual shape within 5 % of the size is better than an odd one nearer to it."""

D_FF = FreeDimension(name="d_ff", lowest=0.375, highest=1.5, step=8)
"""From 1 to 4 times d_model."""


def nearest_member(
    make: Callable[..., C],
    fields: Callable[[int], Mapping[str, Any]],
    free_dimensions: Sequence[FreeDimension],
    non_embedding_params: int,
    overrides: Mapping[str, Any],
) -> C:
    """Return the member nearest to a size, on a logarithmic scale.

    The nearest width, then each free dimension in turn.

    Args:
        make: The Config class.
        fields: Fields of the usual member of a given d_model.
        free_dimensions: Fields that then bring the size nearer; the size must rise with each.
        non_embedding_params: The size.
        overrides: Fields that every candidate has; they are not searched.

    Raises:
        ValueError: If no member has these overrides, or the nearest is off by more than a quarter.
    """
    if non_embedding_params < 1:
        raise FieldError("non_embedding_params", "must be at least 1", non_embedding_params)
    members: list[dict[str, Any]] = []
    refusal = ValueError("no widths to choose from")
    for d_model in (overrides["d_model"],) if "d_model" in overrides else WIDTHS:
        member = {**fields(d_model), **overrides}
        try:
            make(**member)
        except ValueError as error:
            refusal = error
        else:
            members.append(member)
    if not members:
        raise refusal

    def distance(member: Mapping[str, Any]) -> float:
        return abs(math.log(make(**member).param_count(1).non_embedding / non_embedding_params))

    fitted = []
    for member in sorted(members, key=distance)[:_NEAREST]:
        for dimension in free_dimensions:
            if dimension.name not in overrides:
                member = _fitted(member, dimension, distance)
        fitted.append(member)
        if distance(member) <= _NEAR_ENOUGH:
            break
    best = min(fitted, key=distance)
    config = make(**best)
    if distance(best) > math.log(1.25):
        held = f" with {', '.join(sorted(overrides))} as given" if overrides else ""
        count = config.param_count(1).non_embedding
        rule = (
            f": no member of the family{held} is near {non_embedding_params}, "
            f"the nearest has {count}"
        )
        fix = "ask for a size nearer to that"
        raise FieldError("non_embedding_params", rule, fix=fix)
    return config


def _fitted(
    member: dict[str, Any], dimension: FreeDimension, distance: Callable[[Mapping[str, Any]], float]
) -> dict[str, Any]:
    """Return `member` with the value of the dimension that brings the size nearest.

    The distance falls, then rises, so the first value whose successor is no nearer is found by
    bisection.
    """
    values = dimension.values(member[dimension.name])
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        here, next_ = (
            distance({**member, dimension.name: values[k]}) for k in (middle, middle + 1)
        )
        low, high = (low, middle) if here <= next_ else (middle + 1, high)
    return {**member, dimension.name: values[low]}
