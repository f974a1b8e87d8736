"""Rows of CSV, their lines, and quotes that are left open."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.data.readers.csv_cells import csv_cells
from workloads.data.readers.lines import numbered_lines
from workloads.data.readers.problems import DataError, Problems


def read(path):
    """Return rows, problems, and what was said."""
    problems, said = Problems(), []
    rows = list(csv_cells(numbered_lines(path, problems), path, problems, said.append))
    try:
        problems.raise_if_any()
    except DataError as error:
        return rows, [text.replace(f"{path.parent}/", "") for text in error.problems], said
    return rows, [], said


CELL = st.text(st.sampled_from("ab,\"\n 'ß"), max_size=5)


@given(rows=st.lists(st.lists(CELL, min_size=2, max_size=4), max_size=6))
def test_what_a_writer_wrote_is_read_with_the_lines_on_which_rows_begin(rows, tmp_path_factory):
    file, lines = io.StringIO(), []
    writer = csv.writer(file, lineterminator="\n")
    for row in rows:
        lines.append(file.getvalue().count("\n") + 1)
        writer.writerow(row)
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text(file.getvalue())

    found, problems, said = read(path)

    assert (found, problems) == (list(zip(lines, rows, strict=True)), [])
    several = [n for n, row in zip(lines, rows, strict=True) if "\n" in "".join(row)]
    assert [
        f"lines: {len(several)}, the first begins on line {several[0]};" in s for s in said
    ] == ([True] if several else [])


@pytest.fixture
def limit():
    """The reader's limit of a cell, which is the process's."""
    before = csv.field_size_limit(5_000)
    yield
    csv.field_size_limit(before)


@pytest.mark.parametrize(("n", "limited"), [(50, False), (40_000, False), (3_000, True)])
def test_an_open_quote_is_a_problem_of_the_line_where_its_row_begins(n, limited, tmp_path, request):
    """Whether the file ends in its cell, or the cell passes the reader's limit first."""
    if limited:
        request.getfixturevalue("limit")
    rows = [f"P{i},city{i}" for i in range(n)]
    rows[9] = 'P9,"city9'
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["name,city", *rows, "", "last,row"]))

    found, (problem,), said = read(path)

    up_to = "" if limited else f"{n + 3:,} has a quote that is never closed; close every quote"
    assert problem.startswith(f"a.csv:11: the row that begins here and is read up to line {up_to}")
    assert ("has a cell of more than 5,000 characters; close every quote" in problem) == limited
    assert [line for line, _ in found[:10]] == [*range(1, 11)]
    assert (found[-1] == (n + 3, ["last", "row"])) == limited
    assert said == []


def test_text_after_a_closing_quote_is_read_and_told(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('"Weird Al" Yankovic,1\n"x" ,2\nc,d\n5" pipe,e"\n"a" b"\nc","d\ne"\nf,g\n')
    found, problems, said = read(path)
    assert problems == []
    assert found == [
        (1, ["Weird Al Yankovic", "1"]),
        (2, ["x ", "2"]),
        (3, ["c", "d"]),
        (4, ['5" pipe', 'e"']),
        (5, ['a b"']),
        (6, ['c"', "d\ne"]),
        (8, ["f", "g"]),
    ]
    several, after_quote = said
    assert "rows of several lines: 1, the first begins on line 6;" in several
    assert "rows with text after a closing quote: 3, the first begins on line 1;" in after_quote


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_long_cell_is_read(quote, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"{quote}{'x' * 200_000}{quote},1\n")
    assert read(path) == ([(1, ["x" * 200_000, "1"])], [], [])


def test_a_carriage_return_is_told_from_an_open_quote(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'a\rb,1\n"a\rb",2\r\nc,d\n')
    found, (problem,), _ = read(path)
    assert found == [(2, ["a\rb", "2"]), (3, ["c", "d"])]
    assert problem == (
        r"a.csv:1: the row that begins here has a carriage return (\r) in a cell without quotes; "
        "delete it, or put quotes around its cell"
    )
