"""Files of runs: every way in which a table is written to a disk gives the same table."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.loading.table_file import read_table_file, table_suffix

RUNS = {
    "a": {"n_params": 1e7, "tokens": 2e8, "val_loss": 4.0},
    "b": {"n_params": 2e7, "tokens": 4e8, "val_loss": 3.7},
    "c": {"n_params": 4e7, "tokens": 8e8, "val_loss": 3.5},
}
LIST = [{"name": name, **run} for name, run in RUNS.items()]
NESTED = [
    {
        "name": name,
        "arch": {"n_params": run["n_params"]},
        "metrics": {"val_loss": run["val_loss"]},
        "tokens": run["tokens"],
        "curve": [[1, 5.0], [2, run["val_loss"]]],
    }
    for name, run in RUNS.items()
]


def sizes(source, **options):
    table = analysis.load(source, **options).table.sort_values("params")
    return table[["params", "tokens", "loss"]].to_numpy().tolist()


EXPECTED = [list(run.values()) for run in RUNS.values()]


@pytest.mark.parametrize(
    "value",
    [LIST, {"runs": LIST, "made_by": "us"}, RUNS, NESTED, pd.DataFrame(LIST).to_dict(orient="list"), pd.DataFrame(LIST).to_dict()],
    ids=["list", "list in an object", "by name", "nested", "columns", "columns with an index"],
)  # fmt: skip
def test_every_shape_of_json_is_the_same_table(tmp_path, value):
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(value))

    assert sizes(path) == EXPECTED


def test_runs_by_name_keep_their_names(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(RUNS))

    assert sorted(analysis.load(path).table["run"]) == ["a", "b", "c"]


def test_nested_lines_with_a_curve_in_each(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in NESTED) + "\n")

    assert sizes(path) == EXPECTED
    assert analysis.load(path).table["curve"].tolist()[0] == [[1, 5.0], [2, 4.0]]


@pytest.mark.parametrize(
    ("ending", "opened"), [("gz", gzip.open), ("bz2", bz2.open), ("xz", lzma.open)]
)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_compressed_files_are_tables(tmp_path, ending, opened, kind):
    frame = pd.DataFrame(LIST)
    text = (
        frame.to_csv(index=False) if kind == "csv" else frame.to_json(orient="records", lines=True)
    )
    path = tmp_path / f"runs.{kind}.{ending}"
    with opened(path, "wt") as file:
        file.write(text)

    assert sizes(path) == EXPECTED


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a.csv", ".csv"), ("a.CSV.gz", ".csv"), ("a.b.tsv", ".tsv"), ("a.gz", None), ("a.parquet.gz", None), ("runs", None), ("a.db", None)],
)  # fmt: skip
def test_what_names_a_table(name, suffix):
    assert table_suffix(Path(name)) == suffix


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", json.dumps({"dense": LIST, "moe": LIST}), "several lists of runs: dense, moe; save one"),
        ("a.json", "3", "one int is no table"),
        ("a.json", "[1, 2]", "a list of something else than objects.; give one object per run"),
        ("a.jsonl", '{"a": 1}\n{', "not readable as a table"),
        ("a.csv.gz", "params,loss\n1,2\n", "not readable as a table"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_said_in_one_sentence(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(ValueError, match=message) as told:
        read_table_file(path)
    assert str(told.value).startswith(str(path))
