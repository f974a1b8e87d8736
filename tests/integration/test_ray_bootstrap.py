"""Ray's first node on a machine that stands still while it starts."""

import subprocess
import sys

import pytest

from orchestrator.launchers.slurm import ray_bootstrap
from orchestrator.records.errors import ExperimentError

pytestmark = pytest.mark.integration

GIVES_UP = [sys.executable, "-c", "print('timed out during startup'); raise SystemExit(1)"]


@pytest.fixture
def failing(monkeypatch):
    """Return a function after which so many starts of Ray end at once, as after a standstill."""

    def fail(times):
        real, started = subprocess.Popen, []

        def popen(command, **options):
            if "ray.scripts.scripts" not in command:  # the watchdog
                return real(command, **options)
            started.append(command)
            return real(GIVES_UP if len(started) <= times else command, **options)

        monkeypatch.setattr(ray_bootstrap.subprocess, "Popen", popen)
        return started

    return fail


@pytest.fixture
def node(tmp_path):
    found = ray_bootstrap.RayNode(
        label="1-0", address="127.0.0.1", cpus=1, gpus=0, log=tmp_path / "ray.log", token="0" * 64
    )
    yield found
    found.close()


@pytest.mark.long  # the next one counts the starts, and quick sweeps start Ray
def test_ray_that_gave_up_is_started_again(failing, node):
    started = failing(1)

    address = node.start_head()

    assert len(started) == 2
    assert address.rpartition(":")[2].isdigit()
    assert node.alive()


def test_ray_that_gives_up_each_time_is_an_error_with_its_last_words(failing, node):
    started = failing(100)

    with pytest.raises(ExperimentError, match="Ray ended on 127.0.0.1:\n(timed out.*\n?)+"):
        node.start_head()

    assert len(started) == ray_bootstrap.MOST_STARTS
