"""A short run of `make test-chaos`, and what the long one rests on."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def load(path, monkeypatch):
    """Import a file that lies in no package; its dataclasses look the module up by name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def test_a_seed_says_who_is_struck_and_when(monkeypatch):
    chaos = load(HERE / "chaos.py", monkeypatch)

    strikes = chaos.Plan(seed=3).strikes()

    assert strikes == chaos.Plan(seed=3).strikes()
    assert strikes != chaos.Plan(seed=4).strikes()
    assert sorted(kind for _, _, kind in strikes) == sorted([*chaos.KINDS, "rank"])
    assert all(0 <= share < 0.9 for share, _, _ in strikes)


def test_the_wrong_clock_is_an_hour_ahead(monkeypatch):
    before = time.time
    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "time_ns", time.time_ns)

    monkeypatch.setenv("CHAOS_AHEAD_S", str(load(HERE / "chaos.py", monkeypatch).AHEAD_S))
    load(HERE / "faults" / "sitecustomize.py", monkeypatch)

    assert time.time() - before() == pytest.approx(3600.0, abs=60.0)
    assert time.time_ns() / 1e9 == pytest.approx(time.time(), abs=60.0)


def test_storage_fails_while_the_flag_is_there_and_nowhere_else(tmp_path):
    flag, folder = tmp_path / "flag", tmp_path / "sweep"
    folder.mkdir()
    code = """
import sys, os, errno
from pathlib import Path
from orchestrator.records.json_files import read_json, write_json
flag, folder = map(Path, sys.argv[1:])
open_file = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT)
for name in ("", "EIO", "", "ESTALE"):
    flag.write_text(name) if name else flag.unlink(missing_ok=True)
    for use in (
        lambda: write_json(folder / "x.json", {}),
        lambda: read_json(folder / "x.json"),
        lambda: os.write(open_file, b"x"),
        lambda: list(folder.iterdir()),
        lambda: (folder / "x.json").exists(),
        lambda: write_json(folder.parent / "y.json", {}),
    ):
        try:
            use()
            print("ok", end=" ")
        except OSError as error:
            print(errno.errorcode[error.errno], end=" ")
    print()
"""
    told = subprocess.run(
        [sys.executable, "-c", code, str(flag), str(folder)],
        env={
            **os.environ,
            "CHAOS_STORAGE": f"{flag}:{folder}",
            "PYTHONPATH": os.pathsep.join((str(HERE / "faults"), str(HERE.parents[1]))),
        },
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()

    assert [line.split() for line in told] == [
        ["ok"] * 6,
        [*["EIO"] * 5, "ok"],
        ["ok"] * 6,
        [*["ESTALE"] * 5, "ok"],
    ]


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.timeout(900)
def test_six_trials_through_kills_of_rank_supervisor_and_controller(tmp_path, monkeypatch):
    chaos = load(HERE / "chaos.py", monkeypatch)
    plan = chaos.Plan(
        seed=0,
        trials=6,
        steps=60,
        nodes=2,
        kinds=("rank", "supervisor", "controller"),
        server=False,
    )
    with chaos.chaos_environment():
        measured = chaos.undisturbed(tmp_path, plan)
        disturbed = chaos.Chaos(plan, tmp_path / "disturbed")

        disturbed.run()

        disturbed.check(measured)
    assert sorted(disturbed.struck) == ["controller", "rank", "rank", "supervisor"]
