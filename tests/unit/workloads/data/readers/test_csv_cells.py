"""Rows of CSV, their lines, and quotes that are left open."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.data.readers.csv_cells import csv_rows
from workloads.data.readers.problems import DataError, Problems


def read(path):
    """Return rows, problems, and what was said."""
    problems, said = Problems(), []
    rows = list(csv_rows(path, problems, said.append))
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


@pytest.mark.parametrize(("n", "end", "error"), [(50, 50, "end of data"), (40_000, None, "131072")])
def test_an_open_quote_is_a_problem_of_the_line_where_its_row_begins(n, end, error, tmp_path):
    """Whether the file ends in its cell, or the cell passes the reader's limit first."""
    rows = [f"P{i},city{i}" for i in range(n)]
    rows[9] = 'P9,"city9'
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["name,city", *rows, "", "last,row"]))

    found, (problem,), said = read(path)

    up_to = "" if end is None else f"{end + 3} is not CSV"
    assert problem.startswith(f"a.csv:11: the row that begins here and is read up to line {up_to}")
    assert error in problem
    assert "; close every quote" in problem
    assert [line for line, _ in found[:10]] == [*range(1, 11)]
    assert (found[-1] == (n + 3, ["last", "row"])) == (end is None)
    assert said == []


def test_rows_after_a_wrong_one_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a,b\n"x" y,1\nc,d\n5" pipe,e"\n')
    found, (problem,), _ = read(path)
    assert found == [(1, ["a", "b"]), (3, ["c", "d"]), (4, ['5" pipe', 'e"'])]
    assert problem.startswith(
        "a.csv:2: the row that begins here is not CSV (',' expected after '\"')"
    )
