"""A tiny real sweep, its controller as a process that tests may kill, and what must hold afterwards."""

import contextlib
import dataclasses
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.processes import ProcessId, pids_with_environment
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import Logging, Resources, TrialSpec
from orchestrator.tracking.mlflow_client import TrackingClient
from orchestrator.tracking.tracking_uri import default_tracking_uri
from workloads.checkpoint import checkpoint

STEPS = 100
TIMEOUT_S = 900
RUN_CONTROLLER = Path(__file__).with_name("run_controller.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real processes time on a busy machine."""
    for item in items:
        if item.path.parent != Path(__file__).parent:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def _plain(config: Any) -> dict[str, Any]:
    """Return a config's fields as spec.json holds them."""
    values = dataclasses.asdict(config)
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
    }


def _spec(
    architecture: str,
    seed: int,
    *,
    ranks: int = 1,
    memory_tables: Literal["device", "host"] = "device",
) -> TrialSpec:
    model = import_module(f"workloads.architectures.{architecture}")
    data = import_module("workloads.data.sources.biographies").Config(
        n_people=60, style="compact", n_probe_people=20
    )
    train = import_module("workloads.training.config").TrainConfig(
        tokens=STEPS * 256,
        batch_tokens=256,
        seq_len=32,
        lr=3.0e-3,
        table_optimizer="rowwise" if memory_tables == "host" else "adamw",
    )
    return TrialSpec(
        sweep="tiny",
        data={"source": "biographies", **_plain(data)},
        model={"architecture": architecture, **_plain(model.Config(**model.PRESETS["d16"]))},
        train=_plain(train),
        seed=seed,
        resources=Resources(gpus=0, ranks=ranks, memory_tables=memory_tables),
        logging=Logging(every_steps=1, evaluations=2, checkpoint_every_s=0.1),
    )


class TinySweep:
    """Three trials of a few seconds: one with tables in host memory, one dense, one of two ranks."""

    def __init__(self, folder: Path) -> None:
        self.disk = SweepDir(folder / "tiny")
        self._controllers: list[subprocess.Popen[bytes]] = []
        specs = [
            _spec("engram", 0, memory_tables="host"),
            _spec("dense", 0),
            _spec("dense", 1, ranks=2),
        ]
        self.memory, self.dense, self.pair = [self.disk.trial(spec.trial_id) for spec in specs]
        for spec in specs:
            self.disk.trial(spec.trial_id).create(spec)

    def submit(self, submission: int, launcher: str) -> "subprocess.Popen[bytes]":
        """Start the controller of a submission in a process group of its own."""
        with (self.disk.path / f"controller-{submission}.log").open("wb") as log:
            controller = subprocess.Popen(
                [
                    sys.executable,
                    str(RUN_CONTROLLER),
                    str(self.disk.path),
                    str(submission),
                    launcher,
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._controllers.append(controller)
        return controller

    def log(self, submission: int) -> str:
        """Return what a controller printed."""
        return (self.disk.path / f"controller-{submission}.log").read_text()

    def processes(self) -> list[int]:
        """Return what runs of this sweep: by its mark, and by the sessions of its controllers.

        Some of Ray's processes overwrite their environment, and some start sessions of their own.
        """
        marked = pids_with_environment("MEMSCALE_SWEEP_DIR", str(self.disk.path))
        sessions = {str(controller.pid) for controller in self._controllers}
        return marked + [
            pid for pid, stat in stats() if stat[3] in sessions and stat[0] not in "ZX"
        ]

    def middle(
        self, *, after: int = 10, of: TrialDir | None = None, checkpointed: bool = False
    ) -> tuple[AttemptDir, ProcessId]:
        """Wait until an attempt has made `after` steps of its own; return it and its rank 0.

        Args:
            after: Steps that it has made. Three times as many are left, so that it does not end
                before what is killed next takes it along.
            of: Only attempts of this trial count; None is any.
            checkpointed: Its trial has a whole checkpoint, too.
        """

        def look() -> tuple[AttemptDir, ProcessId] | None:
            for trial in self.disk.trials() if of is None else [of]:
                for attempt in trial.attempts()[-1:]:
                    steps = [line.step for line in attempt.lines() if line.metrics]
                    alive = [process for process in registered(attempt) if process.alive()]
                    if (
                        attempt.end() is None
                        and alive
                        and len(steps) >= after
                        and max(steps) <= STEPS - 3 * after
                        and (not checkpointed or any(trial.checkpoints.glob("step-*")))
                    ):
                        return attempt, alive[0]
            return None

        return wait_until(look)

    def metrics(self) -> dict[str, dict[str, dict[int, float]]]:
        """Return trial -> metric -> step -> value, of what does not measure time."""
        return {
            trial.trial_id: {
                name: {step: value for step, (_, value) in points.items()}
                for name, points in trial.metrics().items()
                if not name.startswith(("time/", "step_time/", "device/", "system/"))
                and name != "train/tokens_per_s"
            }
            for trial in self.disk.trials()
        }

    def weights(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return trial -> name -> weight of its final checkpoint."""
        return {
            trial.trial_id: checkpoint.load(trial.checkpoints / checkpoint.FINAL)["weights"]
            for trial in self.disk.trials()
        }

    def assert_finished_like(self, undisturbed: "TinySweep") -> None:
        """Every trial done once, every step there once, every bit of numbers and weights equal."""
        for trial in self.disk.trials():
            ends = [attempt.end() for attempt in trial.attempts()]
            assert [end["outcome"] for end in ends if end].count("done") == 1, ends
            assert ends[-1]["outcome"] == "done"
            assert trial.result() is not None
            assert sorted(trial.metrics()["train/loss"]) == list(range(1, STEPS + 1))
        assert self.metrics() == undisturbed.metrics()
        expected, found = undisturbed.weights(), self.weights()
        assert expected.keys() == found.keys()
        for trial_id, weights in expected.items():
            assert weights
            assert weights.keys() == found[trial_id].keys()
            differ = [n for n, w in weights.items() if not torch.equal(w, found[trial_id][n])]
            assert not differ, (trial_id, differ)
        for trial in self.disk.trials():
            mine = trial.result()["metrics"]
            theirs = undisturbed.disk.trial(trial.trial_id).result()["metrics"]
            timeless = [
                name
                for name in mine
                if not name.startswith(("time/", "step_time/", "device/", "system/"))
                and name != "train/tokens_per_s"
            ]
            assert {name: mine[name] for name in timeless} == {
                name: theirs[name] for name in timeless
            }

    def assert_nothing_left(self, *ranks: ProcessId) -> None:
        """Wait a little for what is dying; nothing of this sweep may stay, nor these ranks."""
        # A process loses its environment before it is gone, so those known by name are looked up by name.
        wait_until(
            lambda: not self.processes() and not any(rank.alive() for rank in ranks), timeout_s=60.0
        )


def stats() -> Iterator[tuple[int, list[str]]]:
    """Yield every process of this machine: pid and the fields of /proc/PID/stat from the third (state) on."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()


def wait_until(look: Callable[[], Any], timeout_s: float = 280.0) -> Any:
    """Return the first true value of `look`."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., TrialSpec]:
    """Make the spec of a trial that trains a few seconds, from an architecture and a seed."""
    return _spec


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite store with its tables, which take seconds to make: once for all test processes."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    store = shared / "empty.db"
    with (shared / "empty.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not store.exists():
            folder = tmp_path_factory.mktemp("tables")
            TrackingClient(default_tracking_uri(folder)).open()
            (folder / "mlflow.db").rename(store)
    return store


@pytest.fixture(scope="session")
def make_store(empty_store: Path) -> Callable[[Path], None]:
    """Give a runs folder the empty SQLite store that the first submission makes."""

    def make(runs: Path) -> None:
        runs.mkdir(parents=True, exist_ok=True)
        shutil.copy(empty_store, runs / "mlflow.db")

    return make


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[TinySweep]:
    """A sweep that was not submitted yet. Whatever a failing test leaves running is ended."""
    sweep = TinySweep(tmp_path)
    yield sweep
    for pid in sweep.processes():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> TinySweep:
    """The same sweep, run to its end by plain processes."""
    sweep = TinySweep(tmp_path_factory.mktemp("undisturbed"))
    controller = sweep.submit(1, "process")
    assert controller.wait(timeout=200) == 0, sweep.log(1)
    sweep.assert_nothing_left()
    return sweep
