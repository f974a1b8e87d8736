"""Lines of all files: those that no formatter keeps, and what the formatter is told to leave."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = 100
FILES = [
    *(ROOT / name for name in ("Makefile", "README.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "sweeps").rglob("*.yaml")),
]
PRODUCT = [
    file
    for package in ("orchestrator", "workloads", "analysis")
    for file in sorted((ROOT / package).rglob("*.py"))
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_lines_fit_but_for_rows_of_tables_and_pictures(file):
    lines = file.read_text(encoding="utf-8").splitlines()

    long = [line for line in lines if len(line) > COLUMNS and not line.startswith(("|", "!["))]
    assert not long


def test_lines_of_the_product_fit_also_where_the_linter_excuses_them():
    """It does not count a URL at the end of a line, nor `type: ignore`."""
    long = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in PRODUCT
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not long


def test_formatting_is_left_out_only_in_kernels_and_where_they_are_launched():
    """`fmt: skip` keeps arguments of kernels in rows, and is no excuse elsewhere."""
    wrong = []
    for file in PRODUCT:
        text = file.read_text(encoding="utf-8")
        places = [i for i, line in enumerate(text.splitlines(), 1) if "# fmt:" in line]
        allowed = set(lines_of_kernels(ast.parse(text))) if places else set()
        wrong += [f"{file.relative_to(ROOT)}:{i}" for i in places if i not in allowed]
    assert not wrong


def lines_of_kernels(tree):
    """Yield the lines of `@triton.jit` functions, and the last of each launch `kernel[grid](…)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            if any(ast.unparse(each).startswith("triton.jit") for each in node.decorator_list):
                yield from range(node.lineno, node.end_lineno + 1)
        elif isinstance(node, ast.Expr | ast.Assign):
            match node.value:
                case ast.Call(func=ast.Subscript()):
                    yield node.end_lineno


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("for i in g(\n    x, 1,\n):  # fmt: skip\n    pass", 3),
        ("g(\n    x, 1,\n)  # fmt: skip", 3),
        ("def f(\n    x, y,\n):  # fmt: skip\n    pass", 3),
    ],
)
def test_a_call_or_signature_of_plain_python_is_no_such_place(code, line):
    assert line not in set(lines_of_kernels(ast.parse(code)))
