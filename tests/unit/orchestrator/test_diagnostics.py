import importlib.metadata
import socket
from pathlib import Path

import pytest

from orchestrator import diagnostics
from orchestrator.diagnostics import Severity
from orchestrator.node import private_folder


def by_name(checks):
    return {check.name: check for check in checks}


def test_every_check_reports_and_a_sound_machine_has_no_failures(tmp_path):
    checks = by_name(diagnostics.run_checks(tmp_path / "runs"))

    assert {"python", "torch", "gpus", "ray", "mlflow", "disk", "ui port"} <= set(checks)
    assert "analysis" in checks
    assert [c for c in checks.values() if c.severity is Severity.FAIL] == []


def test_whatever_is_not_ok_says_what_to_do(tmp_path):
    assert all(c.fix for c in diagnostics.run_checks(tmp_path) if c.severity is not Severity.OK)


def test_a_runs_folder_that_cannot_be_made_fails_for_root_too():
    check = by_name(diagnostics.run_checks(Path("/proc/xx")))["runs folder"]

    assert check.severity is Severity.FAIL
    assert check.found == "/proc/xx cannot be written (no such file or directory)"


def test_a_taken_port_is_named(tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        check = by_name(diagnostics.run_checks(tmp_path, port=port))["ui port"]

    assert check.severity is Severity.WARN
    assert str(port) in check.found


def test_missing_packages_are_failures_with_the_command_to_install_them(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnostics, "_version", lambda distribution: None)

    checks = by_name(diagnostics.run_checks(tmp_path))

    for name in ("ray", "mlflow", "torch", "analysis"):
        assert checks[name].severity is Severity.FAIL
        assert f"pip install 'memscale[{name}]'" in checks[name].fix
    assert checks["gpus"].severity is Severity.WARN
    assert checks["gpus"].found == "unknown without torch"


@pytest.mark.parametrize(
    ("extra", "package", "version", "severity", "found"),
    [
        ("torch", "einops", None, Severity.FAIL, "not installed: einops"),
        ("torch", "tokenizers", None, Severity.FAIL, "not installed: tokenizers"),
        ("torch", "torch", "2.10.1+cpu", Severity.FAIL, "torch 2.10.1+cpu, memscale needs >=2.11"),
        ("torch", "torch", "2.14.0", Severity.WARN, "torch 2.14.0, memscale needs <2.14"),
        ("torch", "torch", "2.11.0a0+git1", Severity.OK, "torch 2.11.0a0+git1"),
        ("torch", "torch", "2.11.0rc3", Severity.OK, "torch 2.11.0rc3"),
        ("torch", "torch", "2.14.0.dev2+cu130", Severity.WARN, "2.14.0.dev2+cu130, memscale"),
        ("ray", "grpcio", None, Severity.FAIL, "not installed: grpcio"),  # of ray[client]
        ("ray", "ray", "2.59.0", Severity.FAIL, "ray 2.59.0, memscale needs >=2.60"),
        ("ray", "ray", "2.61.0", Severity.WARN, "ray 2.61.0, memscale needs <2.61"),
        ("mlflow", "mlflow", "3.12.0", Severity.FAIL, "mlflow 3.12.0, memscale needs >=3.13"),
        ("mlflow", "mlflow", "3.18.0", Severity.WARN, "mlflow 3.18.0, memscale needs <3.18"),
        ("analysis", "pandas", None, Severity.FAIL, "not installed: pandas"),
    ],
)
def test_each_extra_is_held_to_its_bounds(
    tmp_path, monkeypatch, extra, package, version, severity, found
):
    installed = diagnostics._version
    monkeypatch.setattr(
        diagnostics, "_version", lambda name: version if name == package else installed(name)
    )

    check = by_name(diagnostics.run_checks(tmp_path))[extra]

    assert check.severity is severity
    assert found in check.found
    assert severity is Severity.OK or f"pip install 'memscale[{extra}]'" in check.fix


def test_without_metadata_of_memscale_the_packages_are_unknown(tmp_path, monkeypatch):
    def requires(distribution):
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(importlib.metadata, "requires", requires)

    check = by_name(diagnostics.run_checks(tmp_path))["torch"]

    assert check.severity is Severity.WARN
    assert check.fix == "in the source tree: pip install -e '.[torch]'"


def test_a_full_disk_fails_and_a_network_file_system_warns(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10_000, "total": 1})()
    monkeypatch.setattr(diagnostics.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(diagnostics, "_file_system", lambda path: "nfs4")

    checks = by_name(diagnostics.run_checks(tmp_path))

    assert checks["disk"].severity is Severity.FAIL
    assert checks["sqlite"].severity is Severity.WARN
    assert "--tracking-uri" in checks["sqlite"].fix


def test_a_temp_folder_too_long_for_sockets_is_replaced_by_tmp(monkeypatch):
    monkeypatch.setattr(diagnostics.tempfile, "gettempdir", lambda: "/" + "x" * 90)

    check = by_name(diagnostics.run_checks(Path("runs")))["temp folder"]

    assert check.severity is Severity.OK
    assert check.found.startswith("/tmp (")


def test_a_temp_folder_in_which_others_may_rename_folders_fails(monkeypatch):
    monkeypatch.setattr(private_folder, "_replaceable", lambda folder: folder)

    check = by_name(diagnostics.run_checks(Path("runs")))["temp folder"]

    assert check.severity is Severity.FAIL
    assert "chmod +t /tmp" in check.found + check.fix


def test_a_check_that_breaks_is_a_failed_check(monkeypatch, tmp_path):
    def broken():
        raise OSError("no such device")

    monkeypatch.setattr(diagnostics, "_memory", broken)

    check = by_name(diagnostics.run_checks(tmp_path))["memory"]

    assert check.severity is Severity.FAIL
    assert "no such device" in check.found
