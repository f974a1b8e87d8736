"""Sections against dataclasses."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from orchestrator.sweep.parsing import validation
from orchestrator.sweep.parsing.diagnostics import InvalidError
from orchestrator.sweep.parsing.yaml_loader import parse
from orchestrator.sweep.parsing.yaml_node import YamlNode
from workloads.field_error import FieldError


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int
    heads: int
    scale: float = 1.0
    kind: Literal["thick", "thin"] = "thin"
    wide: bool = False
    label: str | None = None
    layers: tuple[int, ...] | None = None
    path: Path | None = None
    places: str | tuple[str, ...] = "everywhere"
    tags: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            rule = f"must divide width ({self.width})"
            raise FieldError("heads", rule, self.heads, others=("width",))
        if self.scale <= 0:
            raise FieldError("scale", "must be positive", self.scale, "write for example 0.5")
        if self.layers is not None and max(self.layers) >= self.width:
            raise FieldError("layers", "must stay below width", self.layers, others=("width",))


def section(text: str) -> YamlNode:
    document, diagnostics = parse(f"shape:\n  {text}\n")
    assert document is not None
    assert not diagnostics
    located: YamlNode = document.content["shape"]
    return located


def build(text: str, **options: Any) -> Any:
    where = section(text)
    return validation.build(Shape, where.content, where=where, **options)


def told(text: str, **options: Any) -> list[str]:
    where = section(text)
    with pytest.raises(InvalidError) as caught:
        validation.build(Shape, where.content, where=where, **options)
    return [f"{f.column} {f.key}: {f.message}; {f.fix}" for f in caught.value.diagnostics]


def test_values_become_the_types_of_the_fields() -> None:
    shape = build(
        "{width: 8, heads: 2, scale: 2, kind: thick, wide: yes, label: x, layers: [0, 3], path: a/b, places: [a, b], tags: {x: 1}}"
    )

    assert shape == Shape(
        width=8,
        heads=2,
        scale=2.0,
        kind="thick",
        wide=True,
        label="x",
        layers=(0, 3),
        path=Path("a/b"),
        places=("a", "b"),
        tags={"x": 1},
    )
    assert isinstance(shape.scale, float)


def test_a_whole_number_may_have_an_exponent() -> None:
    shape = build("{width: 1.0e+3, heads: 2, layers: [1.0, 2]}")

    assert (shape.width, type(shape.width), shape.layers) == (1000, int, (1, 2))


def test_null_is_a_value_where_it_is_allowed() -> None:
    assert build("{width: 8, heads: 2, label: null}").label is None
    assert told("{width: null, heads: 2}") == [
        "11 shape.width: must be a whole number, got null; write for example 1"
    ]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("width: true", "must be a whole number, got true; write for example 1"),
        ("width: yes", "must be a whole number, got yes; YAML reads yes as true: write a number"),
        ("width: 1.5", "must be a whole number, got 1.5; write for example 1"),
        ("width: '8'", "must be a whole number, got '8'; write 8 without quotes"),
        ("width: 3e2", "must be a whole number, got 3e2; write 3.0e+2 (without a point and a signed exponent YAML reads it as text)"),
        ("width: '3e2'", "must be a whole number, got '3e2'; write 3.0e+2 without quotes"),
        ("width: 2k", "must be a whole number, got 2k; write 2_000"),
        ("width: 1.5M", "must be a whole number, got 1.5M; write 1_500_000"),
        ("width: '1,000'", "must be a whole number, got '1,000'; write 1_000"),
        ("scale: 1.5e3", "must be a number, got 1.5e3; write 1.5e+3 (without a point and a signed exponent YAML reads it as text)"),
        ("scale: .inf", "must be a finite number, got .inf; write the number itself"),
        ("kind: thikc", "must be one of thick, thin, got thikc; write thick"),
        ("kind: no", "must be one of thick, thin, got no; write thick"),
        ("wide: 1", "must be true or false, got 1; write for example false"),
        ("label: on", "must be text or null, got on; put it in quotes: 'on'"),
        ("label: 5", "must be text or null, got 5; put it in quotes: '5'"),
        ("layers: 3", "must be a list of whole numbers or null, got 3; write [3]"),
        ("layers: [1, x]", "must be a list of whole numbers or null, got a list; write for example [1]"),
        ("scale: {a: 1}", "must be a number, got a mapping; write for example 1.0"),
        ("width: [1, 2]", "must be a whole number, got a list; write one value here; to try several, write grid: {shape.width: […]} in an entry of trials"),
        ("path: 3", "must be a path or null, got 3; put it in quotes: '3'"),
        ("tags: [1]", "must be a mapping, got a list; write for example {key: value}"),
    ],
)  # fmt: skip
def test_wrong_types_say_what_to_write(value: str, complaint: str) -> None:
    key = value.partition(":")[0]
    others = {"width": "width: 8", "heads": "heads: 2"}
    others.pop(key, None)
    (message,) = told("{" + ", ".join([*others.values(), value]) + "}")

    assert message.partition(": ")[2] == complaint


def test_huge_numbers_are_refused() -> None:
    (message,) = told("{width: 8, heads: 2, scale: 1" + "0" * 400 + "}")

    assert "is too large a number" in message


def test_every_mistake_is_told_at_once() -> None:
    assert told("{widht: 8, heads: x, scale: -1.0, kind: thin, sauce: 3}") == [
        "4 shape.widht: unknown key 'widht'; did you mean 'width'?",
        "21 shape.heads: must be a whole number, got x; write for example 1",
        "49 shape.sauce: unknown key 'sauce'; there are width, heads, scale, kind, wide, label, layers, path, places, tags",
        "31 shape.scale: scale must be positive, got -1.0; write for example 0.5",
    ]


def test_independent_impossible_values_are_all_told() -> None:
    assert told("{width: 8, heads: 3, scale: 0, layers: [9]}") == [
        "21 shape.heads: heads must divide width (8), got 3; change it or width (line 2)",
        "31 shape.scale: scale must be positive, got 0.0; write for example 0.5",
        "42 shape.layers: layers must stay below width, got (9,); change it or width (line 2)",
    ]


def test_no_complaint_is_made_up_by_a_stand_in() -> None:
    # width is missing: whatever stands for it, heads and layers cannot be judged.
    assert told("{heads: 3, layers: [9]}") == [
        "1 shape: missing width; add for example width: 1",
    ]


def test_a_crash_in_the_check_is_told_as_a_mistake() -> None:
    (message,) = told("{width: 8, heads: 0}")

    assert "modulo by zero" in message


def test_missing_keys_are_one_mistake() -> None:
    assert told("{scale: 2.0}") == [
        "1 shape: missing width, heads; add for example width: 1, heads: 1"
    ]


def test_advice_about_keys_of_other_sections_yields_to_a_slip() -> None:
    elsewhere = {"lr": "write it under train:", "head": "write it under face:"}

    assert told("{width: 8, heads: 2, lr: 1, head: 2}", elsewhere=elsewhere) == [
        "24 shape.lr: unknown key 'lr'; write it under train:",
        "31 shape.head: unknown key 'head'; did you mean 'heads'?",
    ]


def test_a_preset_fills_in_and_is_named_where_it_disagrees() -> None:
    preset = section("small")

    assert build("{heads: 4}", defaults={"width": 8}).width == 8
    assert told("{heads: 3}", defaults={"width": 8}, defaults_from=preset) == [
        "11 shape.heads: heads must divide width (8), got 3; change it or width (from the preset)"
    ]
