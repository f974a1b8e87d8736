"""Every notebook runs from top to bottom, as it lies there and, where it reads a sweep, on a sweep in the real layout."""

import importlib.util
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ANSWERS = {
    "02_which_architecture": ("no multiplier: memory", "best in"),
    "05_next_run": ("promised width", "all of them candidates: True"),
}
"""Notebook: words that it prints."""
FIRST_CURVES = ROOT / "notebooks" / "01_first_curves.ipynb"

pytestmark = [
    pytest.mark.integration,
    # Jupyter's own start-up, nothing that a notebook or this project can change:
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


notebooks = load(ROOT / "docs" / "notebooks.py")


@pytest.fixture
def execute(tmp_path, monkeypatch):
    for name in notebooks.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "here").mkdir()
    # Elsewhere than the checkout: a notebook must not find somebody's runs by accident.
    return lambda path: notebooks.execute(path, tmp_path / "here")


@pytest.fixture
def on_a_sweep(tmp_path, monkeypatch, execute):
    def run(path, **options):
        synthetic = load(ROOT / "tests" / "unit" / "analysis" / "conftest.py")
        trials = synthetic.make_sweep(sweep="quickstart", **options)
        monkeypatch.setenv("MEMSCALE_RUNS", str(synthetic.write_runs(tmp_path / "runs", trials)))
        return execute(path)

    return run


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(notebook):
    return [
        output
        for cell in code_cells(notebook)
        for output in cell.outputs
        if "image/png" in output.get("data", {}) and len(output.data["image/png"]) > 10_000
    ]


@every_notebook
def test_it_has_a_question_stored_outputs_and_a_conclusion(path):
    notebook = nbformat.read(path, as_version=4)
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    cells = code_cells(notebook)

    assert "**Question.**" in prose[0]
    assert prose[-1].startswith("**What to conclude**")
    assert len(cells) >= 4
    assert all(cell.execution_count is not None for cell in cells)
    assert any("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs)
    assert path.stat().st_size < 600_000, "docs/notebooks.py stores small pictures"


@pytest.mark.long
@every_notebook
def test_it_runs_through_and_shows_what_is_stored(path, execute):
    notebook = execute(path)

    assert pictures(notebook)
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert all(word in printed for word in ANSWERS.get(path.stem, ())), printed
    kept = nbformat.read(path, as_version=4)
    assert notebooks.differences(kept, notebook) == []


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        ("loss 1.7623 [1.68, 1.83]", "loss 1.7630 [1.68, 1.83]", True),
        ("loss 1.7623", "loss 1.9", False),
        ("loss 1.7623", "nats 1.7623", False),
        ("Styler at 0x7fa21147a1d0", "Styler at 0x55", True),
        ("report.html: 812 KiB", "report.html: 815 KiB", True),
        ("1,000 resamples", "999 resamples", True),
        ("3 runs", "3", False),
        ("1e-05", "2e-05", False),
    ],
)
def test_outputs_differ_by_words_and_by_numbers_beyond_the_tolerance(one, other, are_alike):
    assert notebooks.alike(one, other, tolerance=notebooks.TOLERANCE) is are_alike


OWN_TABLE = """runs = make_runs().rename(columns={"tokens": "training_tokens", "active_params": "params"})
runs = runs.drop(columns=["train_seconds", "total_params", "memory_params", "bytes_read_per_token"])
runs = runs[runs["architecture"] != "memory"].replace({"dense": "base", "moe": "mine"})"""


@pytest.mark.long
def test_architectures_are_compared_in_a_table_of_ones_own(execute, tmp_path):
    path = ROOT / "notebooks" / "02_which_architecture.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.source = cell.source.replace("runs = make_runs()", OWN_TABLE)
        cell.source = cell.source.replace('REFERENCE = "dense"', 'REFERENCE = "base"')
    nbformat.write(notebook, tmp_path / "own.ipynb")

    done = execute(tmp_path / "own.ipynb")  # a cell that raises is an error

    printed = "".join(o.get("text", "") for cell in code_cells(done) for o in cell.outputs)
    assert "mine has loss" in printed
    assert "base needs" in printed
    assert "seconds" not in printed
    assert len(pictures(done)) == 3


@pytest.mark.long
def test_first_curves_of_a_whole_sweep(on_a_sweep):
    load, table, fit, figure, doubt, compare, predict, page = code_cells(
        on_a_sweep(FIRST_CURVES, seeds=(0, 1))
    )

    assert load.outputs[0].data["text/plain"].count("12") == 2
    assert "factual_recall" in table.outputs[0].data["text/html"]
    assert "converged" in fit.outputs[0].data["text/html"]
    assert len(figure.outputs[0].data["image/png"]) > 10_000
    assert "condition number" in doubt.outputs[1].data["text/html"]
    assert "memory_plus 192w" in compare.outputs[0].data["text/html"]
    assert "at params" in predict.outputs[0].data["text/html"]
    assert "report.html" in page.outputs[0].data["text/plain"]


@pytest.mark.long
def test_first_curves_of_a_sweep_too_small_to_fit(on_a_sweep):
    *_, predict, _ = code_cells(on_a_sweep(FIRST_CURVES, seeds=(0,), sizes=(32, 64)))

    text = predict.outputs[0].data["text/plain"]
    assert "underdetermined" in text
    assert "predicted" not in text
