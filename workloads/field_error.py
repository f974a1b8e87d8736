"""`FieldError`, a wrong value of a config field, and range checks of fields.

Every Config declares its ranges in annotations (`n_layers: PositiveInt`) and calls `check_fields`
from `__post_init__`. Rules that join several fields raise `FieldError` themselves. No torch here:
`orchestrator` imports this module to say at which line of a sweep file the field stands.
"""

import dataclasses
import typing
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal

from annotated_types import Interval

PositiveInt = Annotated[int, Interval(ge=1)]
PositiveFloat = Annotated[float, Interval(gt=0)]
NonNegativeInt = Annotated[int, Interval(ge=0)]
NonNegativeFloat = Annotated[float, Interval(ge=0)]
Share = Annotated[float, Interval(ge=0.0, le=1.0)]


class FieldError(ValueError):
    """A field of a config breaks a rule. Its text is `{field} {rule}, got {got}; {fix}`."""

    def __init__(
        self, field: str, rule: str, got: object = None, fix: str = "", others: tuple[str, ...] = ()
    ) -> None:
        """Say what is wrong.

        Args:
            field: Name of the field.
            rule: What holds for it: `must be at least 1`. Follows the name without a space where it
                begins with a colon.
            got: The value, for the text; None where the rule says it already (write "null" for
                None).
            fix: What to write instead, empty where any value that keeps the rule will do.
            others: Further fields that the rule is about, any of which may be changed instead.
        """
        # All arguments, so that the error can be pickled.
        super().__init__(field, rule, got, fix, others)
        self.field = field
        self.rule = rule
        self.got = got
        self.fix = fix
        self.others = others

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields that the rule is about."""
        return (self.field, *self.others)

    @property
    def message(self) -> str:
        """What is wrong, without the fix."""
        got = "" if self.got is None else f", got {self.got}"
        return f"{self.field}{'' if self.rule.startswith(':') else ' '}{self.rule}{got}"

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


def message_and_fix(error: Exception) -> tuple[str, str]:
    """Return what is wrong and what to do; of any other error its text and nothing."""
    return (error.message, error.fix) if isinstance(error, FieldError) else (str(error), "")


def check_fields(config: Any, *, name_nearest: bool = False) -> None:
    """Compare the fields of a dataclass with the ranges and words that their annotations declare.

    Args:
        config: An instance; a field that is None is not compared.
        name_nearest: Whether the fix names the nearest value within the range.

    Raises:
        FieldError: For the first field that holds another value.
    """
    for name, words, interval, or_null in _declared(config.__class__):
        value = getattr(config, name)
        if value is None:
            continue
        if words and value not in words:
            one_of = "one of " if len(words) > 1 else ""
            rule = f"must be {one_of}{', '.join(map(_in_yaml, words))}{or_null}"
            got = _in_yaml(value) if isinstance(value, bool) else repr(value)
            raise FieldError(name, rule, got)
        if interval is not None and not isinstance(value, int | float):
            raise FieldError(name, f"must be a number{or_null}", repr(value))
        if interval is not None and not _inside(value, interval):
            low, high = interval.ge, interval.le
            nearest = low if high is None or (low is not None and value < low) else high
            fix = f"the nearest is {nearest}" if name_nearest and nearest is not None else ""
            raise FieldError(name, f"must {_range_words(interval)}{or_null}", value, fix)


class _Limit(typing.NamedTuple):
    """The words or the range that a field's annotation allows."""

    field: str
    words: tuple[str | bool, ...]
    interval: Interval | None
    or_null: str


@cache
def _declared(cls: Any) -> list[_Limit]:
    """Return the limits of all fields, in their order."""
    limits: list[_Limit] = []
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        members = (hint,)
        if typing.get_origin(hint) in (typing.Union, UnionType):
            members = typing.get_args(hint)
        or_null = " or null" if type(None) in members else ""
        for member in members:
            if typing.get_origin(member) is Literal:
                limits.append(_Limit(field.name, typing.get_args(member), None, or_null))
            for interval in getattr(member, "__metadata__", ()):
                if isinstance(interval, Interval):
                    limits.append(_Limit(field.name, (), interval, or_null))
    return limits


def _in_yaml(word: str | bool) -> str:
    return word if isinstance(word, str) else str(word).lower()


def _inside(value: Any, interval: Interval) -> bool:
    # What must hold, rather than what must not: NaN compares false with everything.
    return (
        (interval.ge is None or value >= interval.ge)
        and (interval.gt is None or value > interval.gt)
        and (interval.le is None or value <= interval.le)
        and (interval.lt is None or value < interval.lt)
    )


def _range_words(interval: Interval) -> str:
    ge, gt, le, lt = (
        f"{bound:g}" if isinstance(bound, float) else bound
        for bound in (interval.ge, interval.gt, interval.le, interval.lt)
    )
    if le is None and lt is None:
        return f"be at least {ge}" if gt is None else "be positive"
    if ge is None and gt is None:
        return f"be at most {le}"
    if ge is None:
        return f"lie between {gt} and {lt}" if le is None else f"be above {gt} and at most {le}"
    return f"lie in {ge}..{le}" if lt is None else f"lie in [{ge}, {lt})"
