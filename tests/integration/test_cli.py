"""The command as a person types it: real processes, a real SQLite tracker, one machine."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialState

pytestmark = pytest.mark.integration

SWEEP = """
# Question: does the command do what it says?
name: tiny
data: {{source: biographies, style: compact, n_people: 60, n_first_names: 10, n_middle_names: 10, n_last_names: 10, n_years: 5, n_cities: 5, n_universities: 5, n_majors: 5, n_employers: 5}}
train: {{tokens: {tokens}, batch_tokens: 256, seq_len: 32, lr: 1.0e-2}}
model: {{architecture: dense, preset: d12}}
trials:
  - grid: {{model.preset: [d12]}}
  - set: {{model.architecture: memory_plus, model.n_keys: 12}}
    match: {{training_flops: dense}}
seeds: {seeds}
logging: {{every_steps: 5, evaluations: 2, checkpoint_every_s: 0.2}}
retries: {{failure: {failure}}}
"""


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


class Place:
    """A folder in which somebody works with the command."""

    def __init__(self, folder):
        self.folder = folder
        self.sweep = SweepDir(folder / "runs" / "tiny")

    def write(self, *, tokens=5_120, seeds="[0]", failure=1):
        text = SWEEP.format(tokens=tokens, seeds=seeds, failure=failure)
        (self.folder / "tiny.yaml").write_text(text, encoding="utf-8")
        # Modules of the user's own shadow nothing, neither here nor in any process of the sweep.
        for name in ("orchestrator", "workloads", "analysis", "mlflow", "typer"):
            file = self.folder / f"{name}.py"
            file.write_text("raise SystemExit('shadowed')", encoding="utf-8")

    def command(self, *words):
        return [sys.executable, "-P", "-m", "orchestrator.cli", *words]

    @property
    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "MEMSCALE_"))}
        return {**kept, "MLFLOW_DISABLE_TELEMETRY": "true", "COLUMNS": "200"}

    def run(self, *words, code=0):
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, *words):
        return subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def losses(self):
        return {
            t.trial_id: {s: v for s, (_, v) in t.metrics()["train/loss"].items()}
            for t in self.sweep.trials()
        }

    def all_beyond(self, step):
        """Return whether every trial has trained beyond a step in its last attempt."""
        beats = [t.heartbeat() for t in self.sweep.trials()]
        return bool(beats) and all(beat and (beat.get("step") or 0) > step for beat in beats)

    def stop_beyond(self, step, number, launcher="process"):
        """Submit, send a signal when every trial is beyond a step, and return what was printed."""
        process = self.start("submit", "tiny.yaml", "--launcher", launcher)
        self.wait_until(lambda: self.all_beyond(step), process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 130, output
        assert {t.state() for t in self.sweep.trials()} == {TrialState.WAITING}
        return output

    def wait_until(self, condition, process=None):
        deadline = time.monotonic() + 280
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            assert process is None or process.poll() is None, process.stdout.read()
            time.sleep(0.05)


@pytest.fixture
def call(place, monkeypatch):
    """Return a function that runs a command here: each process of its own imports everything again."""
    for name in os.environ.keys() - place.environment.keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(place.folder)

    def run(*words, code=0):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done.output

    return run


def test_the_whole_path(place, call):
    place.write()

    first = place.run("submit", "tiny.yaml", "--launcher", "process")

    assert "2 trials, 2 to train" in first
    assert {t.state() for t in place.sweep.trials()} == {TrialState.DONE}
    assert "2 done" in call("status", "tiny")
    assert "attempt 1: first attempt" in call("logs", "dense")
    assert "report.html" in call("report", "tiny")
    page = (place.folder / "runs/tiny/report/report.html").read_text(encoding="utf-8")
    assert "memory_plus" in page
    assert "http://" not in page.replace("http://www.w3.org", "")

    place.write(failure=3)
    assert "Nothing to train" in call("plan", "tiny.yaml")
    place.write(seeds="[0, 1]")
    assert "2 new: seed 0 → 1" in call("plan", "tiny.yaml")
    assert "Fitted curves" in call("fit", "tiny")

    assert "there are: tiny" in place.run("status", "other", code=2)
    assert "no trial is called so, and no sweep" in call("logs", "nothing", code=2)
    assert "trials begin so" in call("logs", "", code=2)
    assert "bundled" in call("plan", "absent.yaml", code=2)


def test_plan_as_json_holds_every_number(place, call):
    place.write()

    rows = json.loads(call("plan", "tiny.yaml", "--json"))

    assert {row["architecture"] for row in rows} == {"dense", "memory_plus"}
    assert all(row["total_params"] > 0 and row["status"] == "new" for row in rows)
    assert rows[0]["training_flops"] == pytest.approx(rows[1]["training_flops"], rel=0.01)


@pytest.mark.long
def test_stopping_checkpoints_and_submitting_again_goes_on_exactly(place, make_store, tmp_path):
    # So many steps that no trial ends before the other one has begun, however slow the machine.
    tokens = 2_560_000
    place.write(tokens=tokens)
    make_store(place.sweep.path.parent)
    furthest = 0
    for number, launcher in (
        (signal.SIGINT, "process"),
        (signal.SIGHUP, "process"),
        (signal.SIGTERM, "ray"),  # which takes this signal for itself
    ):
        output = place.stop_beyond(furthest + 20, number, launcher)
        assert "Submit the same file again to go on" in output
        resumed_after, furthest = furthest, max(t.checkpoint_step() for t in place.sweep.trials())
    assert "resume: goes on after step" in place.run("plan", "tiny.yaml")
    undisturbed = Place(tmp_path / "undisturbed")
    undisturbed.folder.mkdir()
    undisturbed.write(tokens=tokens)
    make_store(undisturbed.sweep.path.parent)
    undisturbed.stop_beyond(furthest, signal.SIGTERM)

    alone = undisturbed.losses()
    for trial, losses in place.losses().items():
        shared = losses.keys() & alone[trial].keys()
        assert {step: losses[step] for step in shared} == {s: alone[trial][s] for s in shared}
        assert max(shared) > resumed_after + 20
    assert {len(t.attempts()) for t in place.sweep.trials()} == {3}


def test_a_sweep_that_is_moved_while_it_trains_ends_and_goes_on_at_its_new_place(place):
    place.write(tokens=256_000)
    process = place.start("submit", "tiny.yaml", "--launcher", "process")
    place.wait_until(lambda: place.all_beyond(20), process)
    old, elsewhere = place.sweep.path, place.folder / "elsewhere"
    elsewhere.mkdir()

    old.rename(elsewhere / "tiny")

    output, _ = process.communicate(timeout=120)
    assert process.returncode == 4, output
    assert f"its folder {old} was moved to {elsewhere / 'tiny'} while it trained" in output
    assert "Traceback" not in output
    assert not old.exists()
    place.sweep = SweepDir(elsewhere / "tiny")
    ranks = [rank for trial in place.sweep.trials() for rank in registered(trial.attempt(1))]
    assert len(ranks) == 2
    assert not any(rank.alive() for rank in ranks)
    place.run("submit", "tiny.yaml", "--launcher", "process", "--runs", "elsewhere")
    assert {t.state() for t in place.sweep.trials()} == {TrialState.DONE}
    assert [t.attempt(1).end()["outcome"] for t in place.sweep.trials()] == ["node_lost"] * 2
    assert {step for losses in place.losses().values() for step in losses} >= {5, 500, 1000}


@pytest.mark.long
def test_detached_sweeps_are_watched_followed_and_cancelled_from_elsewhere(place, make_store):
    place.write(tokens=2_560_000)
    make_store(place.sweep.path.parent)

    assert "in the background" in place.run("submit", "tiny.yaml", "--launcher", "process", "-dq")

    # The command returns when the sweep is there to be watched.
    assert "trial" in place.run("status", "tiny")
    place.wait_until(lambda: all((t.heartbeat() or {}).get("step") for t in place.sweep.trials()))
    assert "Nothing to add: 2 are running" in place.run("plan", "tiny.yaml")
    assert "2 running" in place.run("status", "tiny")
    assert "runs it already" in place.run("submit", "tiny.yaml", "--launcher", "process", code=3)
    follower = place.start("logs", place.sweep.trials()[0].trial_id, "-f")
    assert "2 unfinished trials" in place.run("cancel", "tiny")
    output, _ = follower.communicate(timeout=300)
    assert "cancelled" in output
    place.wait_until(lambda: {t.state() for t in place.sweep.trials()} == {TrialState.CANCELLED})
    assert "2 cancelled" in place.run("plan", "tiny.yaml")


def test_a_broken_sweep_file_starts_nothing(place, call):
    place.write()
    file = place.folder / "tiny.yaml"
    file.write_text(
        file.read_text(encoding="utf-8").replace("seq_len", "seq_length"), encoding="utf-8"
    )

    for verb in ("plan", "submit"):
        output = call(verb, "tiny.yaml", code=2)
        assert "tiny.yaml:5:" in output
        assert "seq_len" in output
    assert not (place.folder / "runs").exists()


def test_the_recipes_are_listed_without_a_sweep(call):
    listed = call("plan", "--recipes")

    assert "pythia_70m" in listed
    assert "arXiv" in listed


@pytest.mark.long
def test_the_installed_wheel_works_in_another_folder(tmp_path):
    source = next(
        p for p in __import__("pathlib").Path(__file__).parents if (p / "pyproject.toml").exists()
    )
    built = tmp_path / "dist"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(built),
            str(source),
        ],
        check=True,
        capture_output=True,
    )
    site = tmp_path / "site"
    [wheel] = built.glob("*.whl")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(site),
            str(wheel),
        ],
        check=True,
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"}

    where = subprocess.run(
        [
            sys.executable,
            "-c",
            "import orchestrator, workloads, analysis; print(orchestrator.__file__, workloads.__file__, analysis.__file__)",
        ],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    plan = subprocess.run(
        [str(site / "bin" / "memscale"), "plan", "quickstart"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert all(path.startswith(str(site)) for path in where.split())
    shipped = {p.relative_to(site) for p in (site / "sweeps").rglob("*.yaml")}
    assert shipped == {p.relative_to(source) for p in (source / "sweeps").rglob("*.yaml")}
    assert plan.returncode == 0, plan.stderr
    assert "memory_plus" in plan.stdout
