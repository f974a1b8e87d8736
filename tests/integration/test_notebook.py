"""The quickstart notebook runs from top to bottom on a sweep in the real layout."""

import importlib.util
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"

pytestmark = [
    pytest.mark.integration,
    # Jupyter's own start-up, nothing that a notebook or this project can change:
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def synthetic_sweeps():
    path = ROOT / "tests" / "unit" / "analysis" / "conftest.py"
    spec = importlib.util.spec_from_file_location("synthetic_sweeps", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def executed(tmp_path, monkeypatch):
    def execute(**options):
        synthetic = synthetic_sweeps()
        trials = synthetic.make_sweep(sweep="quickstart", **options)
        monkeypatch.setenv("MEMSCALE_RUNS", str(synthetic.write_runs(tmp_path / "runs", trials)))
        monkeypatch.delenv("MEMSCALE_SWEEP", raising=False)
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        client = NotebookClient(
            notebook,
            timeout=120,
            kernel_name="python3",
            resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        )
        return client.execute()

    return execute


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_has_six_cells_and_no_stored_output():
    cells = code_cells(nbformat.read(NOTEBOOK, as_version=4))

    assert len(cells) == 6
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


def test_a_whole_sweep_gives_tables_a_figure_and_predictions(executed):
    load, table, fit, figure, compare, predict = code_cells(executed(seeds=(0, 1)))

    assert load.outputs[0].data["text/plain"].count("12") == 2
    assert "factual_recall" in table.outputs[0].data["text/html"]
    assert "converged" in fit.outputs[0].data["text/html"]
    assert len(figure.outputs[0].data["image/png"]) > 10_000
    assert "memory_plus 192w" in compare.outputs[0].data["text/html"]
    assert "at params" in predict.outputs[0].data["text/html"]


def test_a_sweep_too_small_to_fit_still_runs_through(executed):
    *_, predict = code_cells(executed(seeds=(0,), sizes=(32, 64)))

    text = predict.outputs[0].data["text/plain"]
    assert "underdetermined" in text
    assert "predicted" not in text
