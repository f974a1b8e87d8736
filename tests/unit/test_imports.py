"""Which heavy packages an import may bring along; import-linter cannot see imports by name."""

import pkgutil
import subprocess
import sys

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
