"""Which heavy packages an import may bring along; import-linter cannot see imports by name."""

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import analysis
import orchestrator
import workloads.data

HEAVY = ("torch", "ray", "mlflow", "matplotlib", "pandas", "numpy")


def modules(package, *, skip=()):
    names = [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [name for name in names if name not in skip]


ADAPTERS = ("ray", "ray_connect", "ray_detached", "ray_reservations", "ray_supervisors")
"""The files of orchestrator.launchers that import ray."""
STAGES = {
    "the command": ["orchestrator.cli"],
    "orchestrator": modules(
        orchestrator, skip=[f"orchestrator.launchers.{name}" for name in ADAPTERS]
    ),
    "import analysis": ["analysis"],
    "analysis": modules(analysis),
    "data sources": modules(workloads.data),
}
"""Modules, imported one stage after the other: what one brings is there in the next, which may bring as much."""


@pytest.fixture(scope="module")
def heavy():
    """Return, by stage, which heavy packages were there after it."""
    script = f"""
import importlib, json, sys
found = {{}}
for stage, names in {STAGES!r}.items():
    for name in names:
        importlib.import_module(name)
    found[stage] = [m for m in {HEAVY!r} if m in sys.modules]
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {stage: set(found) for stage, found in json.loads(done.stdout).items()}


def test_the_command_imports_nothing_heavy(heavy):
    """Not numpy either: it counts its threads when it is imported (orchestrator/cli/analyse.py)."""
    assert heavy["the command"] == set()


def test_the_orchestrator_imports_without_torch_ray_or_mlflow(heavy):
    assert heavy["orchestrator"] <= {"numpy"}


def test_import_analysis_alone_draws_nothing(heavy):
    assert heavy["import analysis"] <= {"pandas", "numpy"}


def test_analysis_imports_without_torch_ray_or_mlflow(heavy):
    assert heavy["analysis"] <= {"pandas", "matplotlib", "numpy"}


def test_data_sources_are_planned_without_torch(heavy):
    assert "torch" not in heavy["data sources"]


@pytest.mark.parametrize("package", [orchestrator, analysis])
def test_every_module_is_seen(package):
    assert len(modules(package)) > 5


def test_no_class_name_is_defined_twice():
    """`Config` and `Corpus` are what every architecture and data source calls its own."""
    found: dict[str, list[str]] = {}
    for package in (orchestrator, workloads, analysis):
        for folder in package.__path__:
            for file in sorted(Path(folder).rglob("*.py")):
                for node in ast.parse(file.read_text(encoding="utf-8")).body:
                    if isinstance(node, ast.ClassDef):
                        found.setdefault(node.name, []).append(str(file))

    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert set(twice) <= {"Config", "Corpus"}, twice
    assert len(found) > 300
