"""A short run of `make test-chaos`, and what the long one rests on."""

import importlib.util
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

    load(HERE / "wrong_clock" / "sitecustomize.py", monkeypatch)

    assert time.time() - before() == pytest.approx(3600.0, abs=60.0)
    assert time.time_ns() / 1e9 == pytest.approx(time.time(), abs=60.0)


@pytest.mark.integration
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
    with chaos.surroundings():
        measured = chaos.undisturbed(tmp_path, plan)
        disturbed = chaos.Chaos(plan, tmp_path / "disturbed")

        disturbed.run()

        disturbed.check(measured)
    assert sorted(disturbed.struck) == ["controller", "rank", "rank", "supervisor"]
