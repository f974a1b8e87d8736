"""`memscale plan SWEEP --simulate CLUSTER`, from the sweep file to what is printed and drawn."""

import dataclasses
import json
import math
import re

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.cli.app import make_plan
from orchestrator.scheduling.gpu_sharing import memory_need
from orchestrator.simulation import cluster_spec
from orchestrator.simulation.planned_trials import waiting_trials

SWEEP = """
name: ladder
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 1_048_576, batch_tokens: 4096, seq_len: 64, lr: 1.0e-3}
model: {architecture: dense, preset: 1m}
trials:
  - set: {resources.gpus: 0.25}
    grid: {model.architecture: [dense, memory_plus], train.lr: [1.0e-3, 2.0e-3]}
  - set: {resources.gpus: 16, resources.ranks: 16, model.preset: 3m}
  - set: {resources.ranks: 2, model.preset: 10m}
seeds: [0, 1]
"""


@pytest.fixture
def sweep(tmp_path):
    file = tmp_path / "ladder.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    return file


def memscale(sweep, *more):
    runs = str(sweep.parent / "runs")
    return CliRunner().invoke(app, ["plan", str(sweep), "--runs", runs, *more])


def simulated(sweep, cluster):
    done = memscale(sweep, "--simulate", cluster, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_every_trial_gets_the_gpus_it_asks_for_and_auto_one_per_rank(sweep):
    found = simulated(sweep, "gpus=16,gpu_flops=1e12")

    assert sorted(t["gpus"] for t in found["trials"]) == [0.25] * 8 + [2] * 2 + [16] * 2
    assert found["gpus"] == 16
    assert {n: a["trials"] for n, a in found["architectures"].items()} == {
        "dense": 8,
        "memory_plus": 4,
    }
    assert found["makespan_s"] == max(t["end_s"] for t in found["trials"])


def test_trials_with_a_checkpoint_start_first(sweep):
    plan = make_plan([sweep], sweep.parent / "runs")
    first, *others = plan.trials
    plan = dataclasses.replace(plan, trials=(*others, dataclasses.replace(first, remaining=0.5)))

    waiting = waiting_trials(plan, cluster_spec.parse("gpus=16"))

    assert [trial.trial_id for trial in waiting if trial.begun] == [first.spec.trial_id]


def test_time_is_flops_over_the_rate_of_the_gpus_a_trial_has(sweep):
    flops = {
        row["trial_id"]: row["training_flops"]
        for row in json.loads(memscale(sweep, "--json").stdout)
    }
    for trial in simulated(sweep, "gpus=16,gpu_flops=1e12")["trials"]:
        seconds = trial["end_s"] - trial["start_s"]
        assert seconds == pytest.approx(flops[trial["trial_id"]] / (1e12 * trial["gpus"]))


def test_estimated_memory_decides_what_shares_a_gpu(sweep):
    runs = sweep.parent / "runs"
    nodes = cluster_spec.parse("gpus=16,gpu_memory=3GB").nodes
    planned = make_plan([sweep], runs, gpus_there=True, nodes=nodes)
    peaks = {t.spec.trial_id: t.spec.accounting["peak_memory_bytes"] for t in planned.trials}
    found = simulated(sweep, "gpus=16,gpu_memory=3GB,gpu_flops=1e12")
    shares = {t["trial_id"]: t["gpus"] for t in found["trials"] if t["gpus"] < 1}

    assert len(shares) == 8
    assert min(shares.values()) > 0.25
    for trial_id, share in shares.items():
        assert share == pytest.approx(math.ceil(100 * memory_need(peaks[trial_id]) / 3e9) / 100)


def test_cluster_without_gpus_runs_what_needs_none_and_says_what_does(sweep):
    found = simulated(sweep, "nodes=2,cpus_per_node=4")

    assert len(found["trials"]) == 2
    assert len(found["impossible"]) == 10
    assert all("needs" in why for why in found["impossible"].values())


def test_picture_and_numbers_are_made_by_one_command(sweep):
    picture = sweep.parent / "out" / "gantt.png"
    done = memscale(sweep, "--simulate", "gpus=16", "--picture", str(picture))

    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    for word in ("makespan", "utilisation", "waiting", "GPU-hours", "a guess", "memory_plus", "█"):
        assert word in done.stdout, word


def test_times_say_what_they_leave_out(sweep):
    done = memscale(sweep, "--simulate", "gpus=16")

    assert "of training alone: start-up and evaluations come on top" in " ".join(
        done.stdout.split()
    )


def test_a_guess_says_how_far_it_may_be_off_and_that_small_models_compile(sweep):
    found = simulated(sweep, "gpus=1")
    said = " ".join(memscale(sweep, "--simulate", "gpus=1").stdout.split())

    assert all(run["end_s"] - run["start_s"] > 3.0 for run in found["trials"])
    low, high = map(float, re.search(r"true times are (\S+) to (\S+) times these", said).groups())
    assert 0 < low < 0.1
    assert 4 < high < 20, "18 s to compile, not 3"


def test_a_picture_that_cannot_be_written_in_the_end_is_one_sentence(sweep, monkeypatch):
    """Its folder took a file before the work, and none after it."""
    monkeypatch.setattr("orchestrator.simulation.gantt.check_place", lambda path: None)

    done = memscale(sweep, "--simulate", "gpus=16", "--picture", "/proc/g.png")

    assert done.exit_code == 1
    assert "/proc/g.png: the picture cannot be written" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--simulate", "gpu=8"], "did you mean gpus?"),
        (["--simulate", "gpus=8", "--picture", "g.doc"], "a picture ends in .png"),
        (["--simulate", "gpus=8", "--picture", "/proc/zz/g.png"], "name another folder"),
        (["--simulate", "gpus=8", "--picture", "/dev/null/g.png"], "name another folder"),
        (["--picture", "g.png"], "needs --simulate"),
    ],
)
def test_wrong_options_are_usage_errors_before_anything_is_read(sweep, options, said):
    sweep.unlink()
    done = memscale(sweep, *options)

    assert done.exit_code == 2
    assert said in re.sub(r"\s*│\s*", " ", done.output)


def test_examples_of_the_help_work(tmp_path):
    epilog = next(c for c in app.registered_commands if c.callback.__name__ == "plan").epilog
    examples = [e for e in epilog.removeprefix("Examples: ").split("  ·  ") if "--simulate" in e]
    assert len(examples) == 2
    for example in examples:
        words = example.replace("gantt.png", str(tmp_path / "gantt.png")).split()[1:]
        done = CliRunner().invoke(app, [*words, "--runs", str(tmp_path / "runs")])
        assert done.exit_code == 0, done.output
    assert (tmp_path / "gantt.png").exists()


def test_faults_are_told_and_drawn(sweep, tmp_path):
    words = ("--simulate", "gpus=16,gpu_flops=1e9", "--mtbf-node-hours", "200")
    words += ("--preemption", "0.5/h", "--checkpoint-s", "30")

    said = memscale(sweep, *words, "--picture", str(tmp_path / "gantt.svg"))
    found = json.loads(memscale(sweep, *words, "--json").stdout)

    assert said.exit_code == 0, said.output
    for row in ("faults", "goodput", "checkpoints"):
        assert f"\n{row} " in said.output
    assert 0 < found["faults"]["goodput"] < 1
    assert {row["outcome"] for row in found["trials"]} >= {"done", "preempted"}
    assert max(row["attempt"] for row in found["trials"]) > 1
    assert sum(a["trials"] for a in found["architectures"].values()) == 12
    assert "preempted (" in (tmp_path / "gantt.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--mtbf-node-hours", "100"), "needs --simulate"),
        (("--simulate", "gpus=8", "--mtbf-node-hours", "0"), "must be at least 0.001, got 0"),
        (("--simulate", "gpus=8", "--mtbf-node-hours", "nan"), "must be at least 0.001, got nan"),
        (("--simulate", "gpus=8", "--preemption", "often"), "as 0.02/h, got 'often'"),
        (("--simulate", "gpus=8", "--seed", "1"), "needs faults"),
    ],
)
def test_faults_that_cannot_be_are_refused(sweep, words, told):
    done = memscale(sweep, *words)

    assert done.exit_code == 2
    assert told in re.sub(r"[\s│]+", " ", done.output)
