"""Digest of the code in a Python file, without words about it."""

import ast
import hashlib
from pathlib import Path

ARCHITECTURES = Path("workloads", "architectures")
"""Folder of architectures within a copy of the code (`RUNS/SWEEP/code/<hash>`)."""


def code_digest(path: Path) -> str | None:
    """Return 12 hex digits of the code in a file, None if it cannot be read."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Fields have docstrings, too: texts that stand by themselves do nothing.
            kept = [statement for statement in node.body if not _is_text(statement)]
            node.body[:] = kept or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
