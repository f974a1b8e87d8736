import dataclasses
import math
import pickle
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from annotated_types import Interval

from workloads.field_error import (
    FieldError,
    PositiveFloat,
    PositiveInt,
    Share,
    check_fields,
    message_and_fix,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    width: PositiveInt = 1
    scale: PositiveFloat | None = None
    share: Share = 0.5
    decay: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    between: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    above: Annotated[float, Interval(gt=0, le=1)] = 1.0
    most: Annotated[int, Interval(le=2**32)] = 1
    rule: Literal["a", "b"] = "a"
    on: Literal[True] | None = None
    off: Literal[False] = False
    free: int = 0


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"width": 0}, "width must be at least 1, got 0; the nearest is 1"),
        ({"width": "4"}, "width must be a number, got '4'"),
        ({"scale": 0.0}, "scale must be positive or null, got 0.0"),
        ({"scale": math.nan}, "scale must be positive or null, got nan"),
        ({"share": 1.5}, "share must lie in 0..1, got 1.5; the nearest is 1.0"),
        ({"share": -1}, "share must lie in 0..1, got -1; the nearest is 0.0"),
        ({"decay": 1}, "decay must lie in [0, 1), got 1; the nearest is 0"),
        ({"between": 1.0}, "between must lie between 0 and 1, got 1.0"),
        ({"above": 0.0}, "above must be above 0 and at most 1, got 0.0; the nearest is 1"),
        ({"most": 2**33}, f"most must be at most {2**32}, got {2**33}; the nearest is {2**32}"),
        ({"rule": "c"}, "rule must be one of a, b, got 'c'"),
        ({"on": False}, "on must be true or null, got false"),
        ({"on": "yes"}, "on must be true or null, got 'yes'"),
        ({"off": True}, "off must be false, got true"),
    ],
)
def test_a_value_out_of_its_declared_range_is_refused(fields, told):
    with pytest.raises(FieldError) as caught:
        check_fields(Config(**fields), name_nearest=True)

    assert str(caught.value) == told
    assert caught.value.field == next(iter(fields))


def test_what_is_in_range_null_or_undeclared_passes():
    check_fields(Config(share=0.0, free=-1))


def test_the_nearest_value_is_left_out_unless_asked_for():
    with pytest.raises(FieldError, match=r"^width must be at least 1, got 0$"):
        check_fields(Config(width=0))


def test_an_error_holds_its_parts_and_can_be_sent_to_another_process():
    error = FieldError("knn", "must lie in 1..n_keys (8)", 9, "the nearest is 8", ("n_keys",))

    copy = pickle.loads(pickle.dumps(error))

    assert str(copy) == "knn must lie in 1..n_keys (8), got 9; the nearest is 8"
    assert (copy.fields, copy.got) == (("knn", "n_keys"), 9)
    assert message_and_fix(copy) == ("knn must lie in 1..n_keys (8), got 9", "the nearest is 8")
    assert message_and_fix(ValueError("a; b")) == ("a; b", "")


def test_a_subclass_declares_ranges_of_its_own():
    @dataclass(frozen=True, kw_only=True)
    class More(Config):
        depth: PositiveInt = 1

    assert dataclasses.fields(More)[-1].name == "depth"
    with pytest.raises(FieldError, match="depth must be at least 1"):
        check_fields(More(depth=-1))
