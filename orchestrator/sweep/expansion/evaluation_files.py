"""Files of `evaluation:`: suites, the folder of their rows, questions."""

import os
from pathlib import Path

from orchestrator.sweep import registry
from orchestrator.sweep.expansion.input_files import candidates
from orchestrator.sweep.parsing.diagnostics import Diagnostic
from orchestrator.sweep.parsing.yaml_node import YamlNode

FOLDER_VARIABLE = "MEMSCALE_BENCHMARKS"
_PLACES = "(looked beside the sweep file and in the current folder)"


def beside(path: str, folder: Path) -> str:
    """Return the absolute path of a file that is beside the sweep file or here, else as written."""
    places = candidates(path, folder, None)
    return str(next((place for place in places if place.exists()), path))


def suite_beside(suite: str, folder: Path) -> str:
    """Return a bundled suite's name as it is, and a file as `beside`."""
    return beside(suite, folder) if suite.endswith((".yaml", ".yml")) else suite


def missing(section: YamlNode, folder: Path) -> list[Diagnostic]:
    """Return what is not there. Rows are read at planning, as those of other data are.

    Args:
        section: `evaluation:` as written; values of wrong types are passed over.
        folder: Where relative paths start.
    """
    written = section.content if isinstance(section.content, dict) else {}
    wrong: list[Diagnostic] = []
    named = written.get("suites")
    suites = named.content if named is not None and isinstance(named.content, list) else []
    data = _existing(
        written.get("data"), folder, wrong, "expected: the folder of the suites' files"
    )
    if suites and written.get("data") is None:
        data = os.environ.get(FOLDER_VARIABLE)
        if data is None:
            fix = f"write evaluation: {{data: FOLDER, …}}, or set {FOLDER_VARIABLE}"
            wrong.append(section.diagnostic_at_key("no folder of benchmark files", fix))
    for item in suites:
        if not isinstance(item.content, str):
            continue
        try:
            registry.task_rows().require(
                suite_beside(item.content, folder),
                None if data is None else Path(data).expanduser(),
            )
        except ValueError as error:
            lines = str(error).splitlines()
            wrong += [item.diagnostic(line, "", about=line) for line in lines]
    fix = "expected: JSON lines with question and answer"
    _existing(written.get("questions"), folder, wrong, fix)
    return wrong


def _existing(node: YamlNode | None, folder: Path, wrong: list[Diagnostic], fix: str) -> str | None:
    """Return the path that a value names, None if there is none; say so if it was written."""
    if node is None or not isinstance(node.content, str):
        return None
    path = beside(node.content, folder)
    if Path(path).expanduser().exists():
        return path
    wrong.append(node.diagnostic(f"no such file: {node.content} {_PLACES}", fix))
    return None
