"""Lines of files that no formatter keeps: sweep files, pages and the Makefile."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = 100
FILES = [
    *(ROOT / name for name in ("Makefile", "README.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "sweeps").rglob("*.yaml")),
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_lines_fit_but_for_rows_of_tables_and_pictures(file):
    lines = file.read_text(encoding="utf-8").splitlines()

    long = [line for line in lines if len(line) > COLUMNS and not line.startswith(("|", "!["))]
    assert not long


def test_formatting_is_left_out_only_where_triton_is_called():
    """`fmt: skip` keeps arguments of kernels in rows, and is no excuse elsewhere."""
    for package in ("orchestrator", "workloads", "analysis"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            assert "# fmt: skip" not in text or "import triton" in text, file
