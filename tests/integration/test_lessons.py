"""The lessons among the notebooks run from top to bottom, without runs, a network or a GPU, and show their pictures."""

import base64
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"

LESSONS = {
    "02_which_architecture": (3, "no multiplier: memory", "best in"),
    "05_next_run": (1, "promised width", "all of them candidates: True"),
}
"""Name: pictures, and words that its answers hold."""

pytestmark = [
    pytest.mark.integration,
    # Jupyter's own start-up, nothing that a notebook or this project can change:
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize("name", LESSONS)
def test_it_is_stored_without_output(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert notebook.cells[0].source.startswith("# ")


@pytest.mark.parametrize("name", LESSONS)
def test_it_runs_and_shows_its_pictures(name, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = NotebookClient(
        notebook,
        timeout=280,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )

    outputs = [o for cell in client.execute().cells for o in cell.get("outputs", [])]

    pictures = [o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    printed = "".join(o.text for o in outputs if o.output_type == "stream")
    n_pictures, *words = LESSONS[name]
    assert len(pictures) == n_pictures
    assert all(len(base64.b64decode(p)) > 20_000 for p in pictures)
    assert all(word in printed for word in words), printed
