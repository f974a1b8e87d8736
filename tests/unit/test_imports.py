"""Which heavy packages an import may bring along; import-linter cannot see imports by name."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import analysis
import orchestrator
import workloads.data

HEAVY = ("torch", "ray", "mlflow", "matplotlib", "pandas")


def modules(package, *, skip=()):
    names = [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [name for name in names if name not in skip]


def heavy_after_importing(names):
    script = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_orchestrator_imports_without_torch_ray_or_mlflow():
    # The files that import ray.
    names = ("ray", "ray_connect", "ray_detached", "ray_reservations", "ray_supervisors")
    adapters = tuple(f"orchestrator.launchers.{name}" for name in names)
    assert heavy_after_importing(modules(orchestrator, skip=adapters)) <= set()


def test_analysis_imports_without_torch_ray_or_mlflow():
    assert heavy_after_importing(modules(analysis)) <= {"pandas", "matplotlib"}


def test_import_analysis_alone_draws_nothing():
    assert heavy_after_importing(["analysis"]) <= {"pandas"}


def test_the_command_imports_nothing_heavy():
    assert heavy_after_importing(["orchestrator.cli"]) == set()


def test_data_sources_are_planned_without_torch():
    assert "torch" not in heavy_after_importing(modules(workloads.data))


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
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        found.setdefault(node.name, []).append(str(file))

    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert set(twice) <= {"Config", "Corpus"}, twice
    assert len(found) > 300
