"""docs/study_figures.py: what the overview pages of two studies and their figures say is one."""

import importlib
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

DOCS = Path(__file__).parents[4] / "docs"
SIZES = ("3m", "10m", "30m", "134m")


@pytest.fixture(scope="module")
def study_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("study_figures")
        del sys.modules["study_figures"]


def _numbers(found):
    """A difference as the pages write it."""
    interval = "" if found.low is None else f" [{found.low:+.3f}, {found.high:+.3f}]"
    return f"{found.value:+.3f}{interval}"


def _cells(page, heading, name):
    """Numbers of one row of the first table below a text, without verdicts."""
    table = page.split(heading)[1]
    row = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [re.sub(r"(?: \w+)? \|?$", "", f"{cell.strip()} |") for cell in row.split("|")[2:-1]]


def test_the_table_of_architectures_has_the_numbers_of_the_figure(study_figures):
    page = (DOCS / "results" / "architectures.md").read_text()
    found = [
        study_figures._less_better(f"architectures_{match}_{size}")
        for match in ("flops", "seconds")
        for size in SIZES[:3]
    ]
    assert len(found[0]) == 18
    for name in found[0]:
        row = "dense, plain" if name == "dense" else name
        assert _cells(page, "## Loss", row) == [_numbers(gains[name]) for gains in found], name


def test_the_tables_of_the_dispute_have_the_numbers_of_the_figure(study_figures):
    page = (DOCS / "results" / "ngram_dispute.md").read_text()
    runs = [study_figures._dispute(size) for size in SIZES]
    for heading, base in (
        ("## Gain over dense by size", study_figures.BETTER),
        ("Less that of plain dense", study_figures.PLAIN),
    ):
        for name, panel in (("engram", "engram"), ("memory_plus", "Memory+")):
            trait = study_figures.PANELS[panel][0]
            expected = [study_figures._less(table, trait, base) for table in runs]
            assert _cells(page, heading, name) == [_numbers(one) for one in expected], name


def test_each_configuration_of_a_panel_is_one_of_as_many_seeds_as_dense(study_figures):
    for size in SIZES:
        runs = study_figures._dispute(size)
        seeds = runs["seed"].nunique()
        for traits in study_figures.PANELS.values():
            assert [len(runs.query(trait.query)) for trait in traits] == [seeds] * len(traits)


def test_one_seed_has_a_hollow_mark_and_no_line(study_figures):
    figure = study_figures.ngram_dispute()
    panel = figure.axes[3]  # Memory+ and experts, less the better dense
    marks = [line for line in panel.lines if line.get_linestyle() == "None"]
    hollow = [mark for mark in marks if mark.get_markerfacecolor() == "white"]

    assert (len(marks), len(hollow), len(panel.collections)) == (8, 2, 6)
    plt.close(figure)
