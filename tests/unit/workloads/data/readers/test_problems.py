"""Mistakes of input files: each once, the first twenty, and all of them counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.data.readers.problems import SHOWN, DataError, Problems


def told(added):
    problems = Problems()
    for line, message in enumerate(added, start=1):
        problems.add("f.txt", line, message, "correct it")
    with pytest.raises(DataError) as raised:
        problems.raise_if_any()
    assert raised.value.total == len(added)
    return str(raised.value).splitlines()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=90))
def test_a_mistake_that_many_lines_have_is_one(numbers):
    found = told([f"is {n}" for n in numbers])

    first = dict.fromkeys(numbers)
    shown = list(first)[:SHOWN]
    for number, text in zip(shown, found[:SHOWN], strict=True):
        lines = [at for at, n in enumerate(numbers, start=1) if n == number]
        assert text.startswith(f"f.txt:{lines[0]}: is {number}")
        assert (
            (f"(in {len(lines)} lines, also {lines[1]}" in text) if lines[1:] else "(" not in text
        )
    others = sum(n not in shown for n in numbers)
    end = [f"... and {others} more, {len(numbers)} in all"] if others else []
    assert found[len(shown) :] == end


def test_damage_takes_the_place_of_a_files_other_mistakes():
    problems = Problems()
    for file in ("a", "b"):
        for line in (1, 2):
            problems.add(file, line, "is wrong", "correct it")
    problems.add_damage("a", 3, "is torn")
    with pytest.raises(DataError) as raised:
        problems.raise_if_any()
    assert str(raised.value).splitlines() == [
        "b:1: is wrong (in 2 lines, also 2); correct it",
        "a:3: is torn; copy the file again",
    ]
