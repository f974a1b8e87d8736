"""`make test` leaves two folders out by name, so that nobody waits for their imports."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def marks(file: Path) -> list[str]:
    """Return the marks of all tests of a file, without their arguments."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            of = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            return [ast.unparse(mark).partition("(")[0] for mark in of]
    return []


@pytest.mark.parametrize("folder", ["integration", "gpu"])
def test_every_test_of_the_folder_bears_its_mark(folder):
    files = sorted((TESTS / folder).rglob("test_*.py"))

    assert len(files) > 5
    assert [file.name for file in files if f"pytest.mark.{folder}" not in marks(file)] == []
