"""YAML read with places."""

import pytest
import yaml

from orchestrator.sweep.parsing import yaml_loader
from orchestrator.sweep.parsing.yaml_loader import MAX_DEPTH, parse
from orchestrator.sweep.parsing.yaml_node import YamlNode


def read(text: str) -> YamlNode:
    document, diagnostics = parse(text)
    assert document is not None
    assert not diagnostics
    return document


def told(text: str) -> list[str]:
    return [f"{f.line}:{f.column} {f.message}" for f in parse(text)[1]]


def test_values_keep_key_and_value_places() -> None:
    document = read("a: 1\nb:\n  c: [x, {d: 2.5}]\n")
    d = document.content["b"].content["c"].content[1].content["d"]

    assert (d.line, d.column, d.key_line, d.key_column) == (3, 14, 3, 11)
    assert (d.path, d.text, d.content) == ("b.c[1].d", "2.5", 2.5)
    assert document.plain == {"a": 1, "b": {"c": ["x", {"d": 2.5}]}}


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "-2",
        "1_000",
        "0x1f",
        "1.5",
        "1.0e-3",
        "1e-3",
        "3e18",
        ".5",
        "yes",
        "Off",
        "true",
        "~",
        "null",
        "''",
        "'5'",
        "2018-01-01",
        "x y",
        '"a\\nb"',
    ],
)
def test_scalars_are_read_as_pyyaml_reads_them(text: str) -> None:
    expected = yaml.safe_load(f"a: {text}")["a"]
    if not isinstance(expected, str | int | float | bool | None):
        expected = text  # dates stay text: no field of a sweep file is a date

    assert read(f"a: {text}").plain == {"a": expected}


def test_quotes_show_in_messages() -> None:
    assert read("a: '5'").content["a"].shown == "'5'"
    assert read("a: 5").content["a"].shown == "5"


def test_aliases_and_merges_are_understood() -> None:
    text = "base: &b {lr: 1, wd: 2}\none: *b\ntwo: {<<: *b, lr: 3}\nmany: {<<: [{x: 1}, {x: 2, y: 2}]}\n"

    assert read(text).plain == yaml.safe_load(text)


def test_a_repeated_key_is_told_at_its_second_place() -> None:
    assert told("a: 1\nb: {c: 1,\n    c: 2}\n") == ["3:5 key 'c' is written twice, first at line 2"]


def test_loops_end() -> None:
    assert told("a: &x {b: [1, *x]}") == [
        "1:15 alias *x stands inside its own anchor &x, a loop without end"
    ]
    assert told("a: &x\n  <<: *x\n") == [
        "2:7 alias *x stands inside its own anchor &x, a loop without end"
    ]


def bomb(line: str) -> str:
    return "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} " + line.format(", ".join([f"*a{i - 1}"] * 10)) + "\n" for i in range(1, 12)
    )


@pytest.mark.parametrize("line", ["[{}]", "{{<<: [{}]}}"], ids=["aliases", "merges"])
def test_bombs_do_not_go_off(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_loader, "MAX_VALUES", 2_000)

    (message,) = told(bomb(line))

    assert "more than 2,000 values once aliases (*name) are expanded" in message


@pytest.mark.parametrize("levels", [MAX_DEPTH + 5, 20_000])
def test_depth_is_limited(levels: int) -> None:
    (message,) = told("a: " + "[" * levels + "]" * levels)

    assert "nested" in message


def test_numbers_too_long_for_python_are_told() -> None:
    (message,) = told("a: " + "9" * 5000)

    assert message.startswith("1:4 '9999")
    assert message.endswith("cannot be read as int")


def test_several_mistakes_are_told_together() -> None:
    assert len(told("a: 010\non: 1\nb: !foo x\nc: 1:30\nc: 2\n? [k]\n: v\n")) == 6
