import csv
import io
import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analysis.formatting import Column, Table
from analysis.report.table_files import as_json, csv_text, latex_text, write_tables

cells = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8)
numbers = st.none() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=True)


def table_of(items):
    columns = [
        Column("name", lambda i: i[0]),
        Column("value (nats)", lambda i: "printed", True, lambda i: {"value": i[1]}),
    ]
    return Table.of("A table", items, columns, ["a note"])


@given(st.lists(st.tuples(cells, numbers), max_size=5))
def test_csv_and_json_hold_the_numbers_to_the_last_digit(items):
    table = table_of(items)

    read = list(csv.DictReader(io.StringIO(csv_text(table))))
    assert [row["name"] for row in read] == [name for name, _ in items]
    rows = json.loads(json.dumps(as_json(table), allow_nan=False))["rows"]
    for (_, value), row, line in zip(items, rows, read, strict=True):
        known = value is not None and math.isfinite(value)
        assert row["value"] == (value if known else None)
        assert line["value"] == (str(value) if known else "")


def test_numpy_numbers_are_numbers():
    assert as_json(table_of([("a", np.float64(0.5)), ("b", np.int64(3))]))["rows"] == [
        {"name": "a", "value": 0.5},
        {"name": "b", "value": 3},
    ]


def test_latex_escapes_what_is_special_and_aligns_numbers():
    table = Table(
        title="T",
        columns=("50% & more", "x_1"),
        rows=(("a_b {c} # $ ~ ^ \\", "2.1× [1, ∞]"), ("[low", "–")),
        numeric=(False, True),
    )

    lines = latex_text(table).splitlines()

    assert lines[1] == r"\begin{tabular}{lr}"
    assert lines[3] == r"50\% \& more & x\_1 \\"
    assert lines[5] == (
        r"a\_b \{c\} \# \$ \textasciitilde{} \textasciicircum{} \textbackslash{}"
        r" & 2.1$\times$ [1, $\infty$] \\"
    )
    assert lines[6] == r"{[low} & -- \\"


def test_files_of_tables_without_rows_are_not_written(tmp_path):
    empty = Table(title="Nothing", columns=("a",), rows=(), numeric=(False,))

    written = write_tables([table_of([("a", 1)]), empty], [empty], tmp_path)

    assert [path.name for path in written] == ["a_table.csv"]
