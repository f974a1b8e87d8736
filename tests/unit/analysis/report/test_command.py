"""`memscale report` and `fit`, of one sweep and of several."""

import html
import json

import pytest
from typer.testing import CliRunner

from orchestrator.cli import analyse, app


def memscale(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def two_sweeps(synthetic, tmp_path_factory):
    """Runs of two sweeps that differ in architecture."""
    trials = [
        trial
        for name in ("dense", "memory_plus")
        for trial in synthetic.make_sweep(architectures=(name,), sweep=name)
    ]
    return synthetic.write_runs(tmp_path_factory.mktemp("two") / "runs", trials)


@pytest.mark.usefixtures("no_pictures")
def test_several_sweeps_are_reported_as_one(two_sweeps):
    said = memscale("report", "dense", "memory_plus", "dense", "--runs", two_sweeps)

    page = two_sweeps / "dense" / "report+memory_plus" / "report.html"
    assert str(page) in said
    assert not (two_sweeps / "dense" / "report").exists()
    contents = json.loads((page.parent / "report.json").read_text(encoding="utf-8"))
    assert contents["sweep"] == "dense, memory_plus"
    differences = next(t for t in contents["tables"] if t["name"] == "differences_at_equal_cost")
    assert {row["architecture"] for row in differences["rows"]} == {"memory_plus"}


@pytest.mark.usefixtures("no_pictures")
def test_each_sweep_of_several_says_its_costs(two_sweeps, tmp_path):
    words = ("dense", "memory_plus", "--runs", two_sweeps, "--price", "2/core-hour")
    said = memscale("report", *words, "--out", tmp_path / "both")

    assert "dense: spent so far:" in said
    assert "memory_plus: spent so far:" in said
    assert "; together: " in said


@pytest.mark.usefixtures("no_pictures")
def test_next_runs_of_several_sweeps_are_those_of_each(two_sweeps, tmp_path):
    out = tmp_path / "both"
    memscale("report", "dense", "memory_plus", "--runs", two_sweeps, "--out", out)

    page = html.unescape((out / "report.html").read_text(encoding="utf-8"))
    assert "chosen for one sweep at a time: " in page
    assert "memscale next dense<" in page
    assert "memscale next memory_plus<" in page


def test_what_was_spent_is_looked_up_before_the_fits(tmp_path, monkeypatch):
    """A tracker does not know it."""
    monkeypatch.setattr(analyse, "_fits", lambda *_, **__: pytest.fail("fitted"))
    words = ("report", "dense", "--tracking-uri", "sqlite:///no.db", "--price", "2/core-hour")

    done = CliRunner().invoke(app, [*words, "--runs", str(tmp_path), "--out", str(tmp_path / "o")])

    assert done.exit_code != 0
    assert "sweep 'dense': not found" in done.output


def test_several_sweeps_are_fitted_as_one(two_sweeps):
    tables = json.loads(memscale("fit", "dense", "memory_plus", "--runs", two_sweeps, "--json"))

    curves = next(table for table in tables if table["name"] == "fitted_curves")
    assert {row["architecture"] for row in curves["rows"]} == {"dense", "memory_plus"}
