"""Every notebook runs from top to bottom, as it lies there and, where it reads a sweep, on a sweep in the real layout."""

import importlib.util
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

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


def synthetic_sweeps():
    path = ROOT / "tests" / "unit" / "analysis" / "conftest.py"
    spec = importlib.util.spec_from_file_location("synthetic_sweeps", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def execute(tmp_path, monkeypatch):
    for name in ("MEMSCALE_RUNS", "MEMSCALE_SWEEP", "MEMSCALE_SCALING_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "here").mkdir()

    def run(path):
        client = NotebookClient(
            nbformat.read(path, as_version=4),
            timeout=300,
            kernel_name="python3",
            # Elsewhere than the checkout: a notebook must not find somebody's runs by accident.
            resources={"metadata": {"path": str(tmp_path / "here")}},
        )
        return client.execute()

    return run


@pytest.fixture
def on_a_sweep(tmp_path, monkeypatch, execute):
    def run(path, **options):
        synthetic = synthetic_sweeps()
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
def test_it_stores_no_output(path):
    cells = code_cells(nbformat.read(path, as_version=4))

    assert len(cells) >= 4
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


@pytest.mark.long  # of seconds of a core each; the next test is the one of `make test`
@every_notebook
def test_it_runs_through_and_shows_pictures(path, execute):
    notebook = execute(path)

    assert pictures(notebook)
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert all(word in printed for word in ANSWERS.get(path.stem, ())), printed


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
