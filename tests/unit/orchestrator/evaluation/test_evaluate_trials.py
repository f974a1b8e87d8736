"""Evaluations of trials: kept, not repeated, read as metrics; a table for people."""

import dataclasses
import io
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from analysis.loading.from_folder import read_folder
from orchestrator import cli
from orchestrator.cli.render.evaluation import COUNTED, evaluation_tables
from orchestrator.evaluation import evaluate_trials, trained_trial
from orchestrator.records.errors import UsageError
from orchestrator.records.json_files import read_json, write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import EvaluationSchedule, TrialSpec
from orchestrator.sweep import registry
from orchestrator.tracking.sync_run import TrialSync


@dataclass
class Suite:
    """A prepared suite that measures how often it was asked."""

    name: str
    digest: str = "as it was"
    asked: list = field(default_factory=list)
    needs_text: bool = True

    def measure(self, model, progress, *, step):
        self.asked.append(model)
        progress(f"{self.name}_task", 1, 1)
        task = f"{self.name}_task"
        return {
            "finished_at": 5.0,
            "seconds": 1.0,
            "digest": self.digest,
            "harness": "0",
            "step": step,
            "metrics": {f"eval/{task}/acc": 0.25 * len(self.asked), f"eval/{task}/acc_stderr": 0.1},
            "tasks": {task: {"n": 10, "chance": 0.5, "at_chance": True, "n_truncated": 3}},
        }


NOTHING = {"metrics": {}, "tasks": {}, "digest": "", "step": 2}
"""Record of a model that has nothing of what was to be measured."""


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """A finished trial whose model is never looked at."""

    @contextmanager
    def text_model(trained, *, precision):
        yield (trained.name, precision)

    module = SimpleNamespace(text_model=text_model)
    monkeypatch.setattr(registry, "text_model", lambda: module)
    monkeypatch.setattr(registry, "evaluation", lambda: SimpleNamespace(measure=Suite.measure))
    model = SimpleNamespace(name="the model", step=2)
    monkeypatch.setattr(trained_trial, "load", lambda trial: model)
    spec = TrialSpec(
        sweep="s",
        data={"source": "text"},
        model={"architecture": "dense"},
        train={"tokens": 20, "batch_tokens": 10, "precision": "fp32"},
        seed=0,
    )
    trial = SweepDir(tmp_path / "runs" / "s").trial(spec.trial_id)
    trial.create(spec)
    result = {"trial_id": spec.trial_id, "attempt": 1, "steps": 2, "tokens": 20, "ranks": 1}
    result |= {"device": "cpu", "finished_at": 1.0, "metrics": {"valid/loss": 2.0}}
    write_json(trial.path / "result.json", result)
    return trial


def run(trial, *suites, again=False, keep=True):
    return list(
        evaluate_trials.evaluate_trial(
            trial, suites, again=again, keep=keep, progress=lambda task, done, total: None
        )
    )


def test_evaluations_are_kept_and_not_repeated(trial):
    first, second = Suite("first"), Suite("second")

    run(trial, first)
    assert trial.evaluation_metrics() == {
        "eval/first_task/acc": 0.25,
        "eval/first_task/acc_stderr": 0.1,
    }
    assert [one.suite for one in run(trial, first, second)] == ["first", "second"]
    assert (first.asked, second.asked) == ([("the model", "fp32")], [("the model", "fp32")])

    run(trial, first, again=True)
    run(trial, Suite("second", digest="other rows"))
    assert len(first.asked) == 2
    assert trial.evaluations()["second"]["digest"] == "other rows"
    assert trial.evaluation_metrics()["eval/first_task/acc"] == 0.5


def test_a_checkpoint_is_measured_with_the_trials_precision_and_not_kept(trial, monkeypatch):
    asked = []

    def load_trial(checkpoints, *, name, **sections):
        asked.append((checkpoints, name, sections["model"]))
        return SimpleNamespace(name="by step 1", step=1)

    monkeypatch.setattr(registry, "trained_model", lambda: SimpleNamespace(load_trial=load_trial))
    suite = Suite("first")

    folder = trial.checkpoints / "step-00000001"
    (found,) = evaluate_trials.evaluate_folder(folder, [suite], progress=lambda *_: None)

    assert asked == [(trial.checkpoints, "step-00000001", {"architecture": "dense"})]
    assert suite.asked == [("by step 1", "fp32")]
    assert (found.record["step"], trial.evaluations()) == (1, {})


class CountedReads(Suite):
    """A suite with files beside its record."""

    def measure(self, model, progress, *, precision):
        self.asked.append(model)
        npz = io.BytesIO()
        np.savez(npz, layer_00=np.array([3, 0, 1]))
        tables = b"layer,rows,reads\nlayer_00,3,4\n"
        return {
            "finished_at": 5.0,
            "seconds": 1.0,
            "digest": self.digest,
            "harness": None,
            "step": 2,
            "metrics": {"eval/table_reads/gini": 0.5},
            "tasks": {
                "table_reads": {"n": 4, "chance": None, "at_chance": False, "n_truncated": 0}
            },
            "files": {"table_reads/reads.npz": npz.getvalue(), "table_reads/tables.csv": tables},
        }


def test_files_are_kept_beside_the_record_and_measured_again_if_they_are_gone(trial):
    suite = CountedReads("table reads", needs_text=False)
    folder = trial.path / "table_reads"

    run(trial, suite, keep=False)
    assert not folder.exists()
    run(trial, suite)
    run(trial, suite)
    assert len(suite.asked) == 2
    assert trial.evaluations()["table reads"]["files"] == [
        f"table_reads/{name}" for name in ("reads.npz", "tables.csv")
    ]
    (folder / "reads.npz").unlink()
    run(trial, suite)
    assert len(suite.asked) == 3
    assert np.load(folder / "reads.npz")["layer_00"].tolist() == [3, 0, 1]


def test_the_command_draws_what_was_counted(trial, monkeypatch):
    suite = CountedReads("table reads", needs_text=False)
    monkeypatch.setattr(evaluate_trials, "table_reads", lambda: suite)

    code, said = memscale(
        "evaluate", trial.trial_id, "--table-reads", "--runs", trial.path.parents[2]
    )

    assert code == 0, said
    assert "0.500" in said
    for kind in ("svg", "png", "pdf"):
        assert (trial.path / "table_reads" / f"reads.{kind}").stat().st_size > 1_000
        assert (trial.path / "table_reads" / f"tables.{kind}").stat().st_size > 1_000


def test_the_command_prints_the_records_as_json(trial, monkeypatch):
    suite = Suite("s")
    monkeypatch.setattr(evaluate_trials, "prepare", lambda *args, limit: [suite])
    words = ("evaluate", trial.trial_id, "--suite", "s", "--data", "d", "--json")

    code, said = memscale(*words, "--runs", trial.path.parents[2])

    assert code == 0, said
    found = json.loads(said[said.index("{") :])
    assert found == {"models": {trial.trial_id: trial.evaluations()}, "notes": []}
    assert found["models"][trial.trial_id]["s"]["metrics"]["eval/s_task/acc"] == 0.25


def test_a_trial_without_tables_is_said_to_read_none(trial, monkeypatch):
    suite = SimpleNamespace(name="table reads", needs_text=False, digest="", measure=None)
    suite.measure = lambda model, progress, *, precision: {**NOTHING, "files": {}}
    monkeypatch.setattr(evaluate_trials, "table_reads", lambda: suite)

    code, said = memscale(
        "evaluate", trial.trial_id, "--table-reads", "--runs", trial.path.parents[2]
    )

    assert (code, "dense reads no memory table (1 trial)" in said) == (0, True)

    spec = dataclasses.replace(trial.spec(), seed=9)
    shutil.copytree(trial.path, trial.path.with_name(spec.trial_id))
    write_json(trial.path.with_name(spec.trial_id) / "spec.json", spec.to_json())
    code, said = memscale(
        "evaluate", trial.path.parents[1].name, "--table-reads", "--runs", trial.path.parents[2]
    )
    assert (code, said.count("dense reads no memory table (2 trials)")) == (0, 1)


def test_a_first_look_is_not_kept(trial):
    (one,) = run(trial, Suite("first"), keep=False)

    assert one.record["metrics"]["eval/first_task/acc"] == 0.25
    assert trial.evaluations() == {}


def test_they_are_columns_of_the_table(trial):
    run(trial, Suite("first"))

    (row,) = read_folder(trial.path.parents[2], "s").rows

    assert row["eval/first_task/acc"] == 0.25
    assert row["valid/loss"] == 2.0


def test_a_tracker_gets_them_once(trial):
    class Client:
        uri = "x"
        points = ()

        def log_points(self, run_id, points):
            self.points = (*self.points, *points)

    def sync():
        run = TrialSync(client, trial, "run")
        run.sync_evaluation()

    client = Client()
    sync()
    run(trial, Suite("first"))
    sync()
    sync()
    assert sorted((p.key, p.value, p.step) for p in client.points) == [
        ("eval/first_task/acc", 0.25, 2),
        ("eval/first_task/acc_stderr", 0.1, 2),
    ]
    run(trial, Suite("second"))
    sync()
    assert {p.key for p in client.points[2:]} >= {"eval/second_task/acc"}


def test_what_training_measured_itself_is_not_sent_twice(trial):
    sent = []
    client = SimpleNamespace(uri="x", log_points=lambda run_id, points: sent.extend(points))
    run(trial, Suite("first"))
    measured = trial.evaluation_metrics()
    attempt = trial.new_attempt({"started_at": 0})
    lines = [
        {"t": step, "step": step, "metrics": {**measured, "valid/loss": 2.0}} for step in (1, 2)
    ]
    attempt.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sync = TrialSync(client, trial, "run")
    sync.sync_journals([attempt])
    del sent[:]
    sync.sync_final_metrics()
    sync.sync_evaluation()
    assert sent == []


def test_a_tracker_gets_each_value_of_the_result_once(trial):
    """Evaluated before the first synchronisation; the same value at an earlier step is a point."""
    sent = []
    client = SimpleNamespace(uri="x", log_points=lambda run_id, points: sent.extend(points))
    attempt = trial.new_attempt({"started_at": 0})
    line = {"t": 1, "step": 1, "metrics": {"eval/first_task/acc": 0.25}}
    attempt.journal.write_text(json.dumps(line) + "\n")
    run(trial, Suite("first"))
    sync = TrialSync(client, trial, "run")
    for _ in range(2):
        sync.sync_journals([attempt])
        sync.sync_final_metrics()
        sync.sync_evaluation()
    assert sorted((point.key, point.step, point.t) for point in sent) == [
        ("eval/first_task/acc", 1, 1),
        ("eval/first_task/acc", 2, 5000),
        ("eval/first_task/acc_stderr", 2, 5000),
        ("valid/loss", 2, 1000),
    ]


def test_the_result_holds_what_was_evaluated_later(trial):
    before = read_json(trial.path / "result.json")
    run(trial, Suite("first"))
    written = read_json(trial.path / "result.json")
    metrics = {"valid/loss": 2.0, "eval/first_task/acc": 0.25, "eval/first_task/acc_stderr": 0.1}
    assert written == {**before, "metrics": metrics}
    assert trial.result() == written


def test_whoever_is_killed_between_the_two_files_loses_nothing(trial, monkeypatch):
    """The same as what an earlier version left, which never wrote it into the result."""

    def killed(path, record):
        if path.name == "result.json":
            raise KeyboardInterrupt
        write_json(path, record)

    first = Suite("first")
    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.records.trial_dir.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            run(trial, first)
    assert read_json(trial.path / "result.json")["metrics"] == {"valid/loss": 2.0}
    assert trial.result()["metrics"]["eval/first_task/acc"] == 0.25

    run(trial, first)
    assert len(first.asked) == 1
    assert read_json(trial.path / "result.json") == trial.result()


def test_two_evaluations_at_once_lose_nothing(trial):
    names = [f"suite{i}" for i in range(16)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: run(trial, Suite(name)), names))
    assert sorted(trial.evaluations()) == sorted(names)
    metrics = read_json(trial.path / "result.json")["metrics"]
    assert {f"eval/{name}_task/acc" for name in names} <= set(metrics)


def test_benchmarks_of_the_sweep_file(trial, monkeypatch):
    asked = EvaluationSchedule(suites=("first",), at=(0.5, 1.0), data="/there", rows=7)
    trial.create(dataclasses.replace(trial.spec(), evaluation=asked))
    prepared = []
    monkeypatch.setattr(
        evaluate_trials, "prepare", lambda *args, limit: prepared.append((*args, limit)) or []
    )

    assert evaluate_trials.scheduled(trial) == []
    assert prepared == [(("first",), Path("/there"), None, 7)]
    # Of two steps, the first was asked half-way through, and its weights are gone.
    first = Suite("first")
    assert evaluate_trials.missing_steps(trial, [first]) == [1]
    trial.add_evaluation("first", first.measure(None, lambda *_: None, step=1), final=False)
    assert evaluate_trials.missing_steps(trial, [first]) == []
    assert trial.evaluations() == {}  # only of the trained model


def test_a_later_evaluation_is_part_of_the_curve(trial):
    attempt = trial.new_attempt({"started_at": 0})
    line = {"t": 1, "step": 1, "metrics": {"eval/first_task/acc": 0.125}}
    attempt.journal.write_text(json.dumps(line) + "\n")
    run(trial, Suite("first"))

    assert trial.metrics()["eval/first_task/acc"] == {1: (1, 0.125), 2: (5000, 0.25)}


def test_what_cannot_be_evaluated_is_named(trial, monkeypatch):
    def refuse(trained, *, precision):
        raise ValueError("its data have words of their own")

    monkeypatch.setattr(registry.text_model(), "text_model", refuse)
    with pytest.raises(UsageError, match=f"{trial.trial_id}: its data have words of their own"):
        run(trial, Suite("first"))


def test_the_table_says_what_is_at_chance(trial):
    found = {"dense": run(trial, Suite("first")), "pythia": run(trial, Suite("first"), again=True)}
    found["without its task"] = [evaluate_trials.Evaluation(suite="first", record=NOTHING)]

    out = io.StringIO()
    Console(width=200, file=out).print(evaluation_tables(found))
    lines = [re.sub(r" +", " ", line) for line in out.getvalue().splitlines()]

    assert lines[0].strip() == "first"
    assert lines[2].strip() == (
        "first_task dense 10 0.250 ± 0.100 at chance (0.500), 3 prompts cut to the model's sequence"
    )


def test_the_table_tells_trials_of_a_sweep_apart(trial):
    specs = [
        dataclasses.replace(
            trial.spec(), preset="d8", seed=seed, train={**trial.spec().train, "lr": lr}
        )
        for seed, lr in ((0, 1e-3), (1, 1e-3), (0, 3e-3))
    ]
    found = {spec.trial_id: run(trial, Suite("first"), again=True) for spec in specs}

    def lines(specs):
        out = io.StringIO()
        shown = {spec.trial_id: found[spec.trial_id] for spec in specs}
        Console(width=200, file=out).print(evaluation_tables(shown, specs))
        return [re.sub(r" +", " ", line) for line in out.getvalue().splitlines()][1:]

    heading, *rows = lines(specs)
    assert heading.startswith("task model preset varied seed rows accuracy")
    for spec, row in zip(specs, rows[:3], strict=True):
        label = {1e-3: "lr=1e-3", 3e-3: "lr=3e-3"}[spec.train["lr"]]
        assert row.startswith(f"first_task {spec.trial_id} d8 {label} {spec.seed} 10 ")
    heading, row, *_ = lines(specs[:1])
    assert heading.startswith("task model preset seed rows accuracy")
    assert row.startswith(f"first_task {specs[0].trial_id} d8 0 10 ")


def shown(suite, record, model="dense"):
    """The lines of a table of one record."""
    found = {model: [evaluate_trials.Evaluation(suite=suite, record={**NOTHING, **record})]}
    out = io.StringIO()
    Console(width=200, file=out).print(evaluation_tables(found))
    return [re.sub(r" +", " ", line).strip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("suite", "metric", "heading"),
    [
        ("questions qa", "nll", "task model rows NLL (nats)"),
        ("decode latency", "ms_per_token_batch1", "task model runs ms/token, batch 1"),
        ("decode latency", "ms_per_token_batch64", "task model runs ms/token, batch 64"),
        ("table reads", "rows_read", "task model tokens rows read (share)"),
    ],
)
def test_headings_say_what_is_counted_and_in_what_unit(suite, metric, heading):
    about = {"n": 3904, "chance": None, "at_chance": False, "n_truncated": 0}
    record = {"metrics": {f"eval/t/{metric}": 17.138}, "tasks": {"t": about}}
    with_error = {**record, "metrics": {**record["metrics"], f"eval/t/{metric}_stderr": 5.966}}

    plain, lines = shown(suite, record), shown(suite, with_error)

    assert lines[1:3] == [heading, "t dense 3,904 17.138 ± 5.966"]
    assert lines[-1] == "±: standard error"
    assert "±" not in " ".join(plain)


def test_the_suites_with_counts_of_their_own_are_named_as_they_name_themselves():
    pytest.importorskip("torch")
    names = {evaluate_trials.decode_latency().name, evaluate_trials.table_reads().name}

    assert set(COUNTED) == names


def test_a_model_without_a_memory_table_has_a_sentence_and_no_table():
    assert shown("table reads", {}) == ["table reads: dense has no memory table", ""]
    assert shown("last_word", {}) == ["last_word: no task was measured", ""]


def memscale(*words):
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    return result.exit_code, re.sub(r"\s+", " ", result.output).strip()


def test_trials_whose_sweep_file_asks_nothing_are_skipped(trial, monkeypatch):
    asks = dataclasses.replace(
        trial.spec(),
        seed=1,
        evaluation=EvaluationSchedule(suites=("small",), at=(1.0,), rows=5, data="benchmarks"),
    )
    sweep = SweepDir(trial.path.parents[1])
    other = sweep.trial(asks.trial_id)
    other.create(asks)
    write_json(other.path / "result.json", read_json(trial.path / "result.json"))
    monkeypatch.setattr(
        evaluate_trials, "scheduled", lambda t: [Suite("small")] if t.spec().evaluation else []
    )
    runs = ("--runs", sweep.path.parent)

    code, told = memscale("evaluate", "s", "--json", *runs)
    alone = memscale("evaluate", trial.trial_id, *runs)

    assert code == 0, told
    assert list(json.loads(told)["models"]) == [other.trial_id]
    (note,) = json.loads(told)["notes"]
    assert note == (
        "1 trial skipped, for which the sweep file has no `evaluation`: "
        f"{trial.trial_id}; add it and submit again"
    )
    assert alone[0] == 2
    assert alone[1].startswith(f"{trial.trial_id}: nothing to ask; give --suite")


def test_mistakes_of_the_command(tmp_path, monkeypatch):
    monkeypatch.delenv("MEMSCALE_BENCHMARKS", raising=False)
    pytest.importorskip("lm_eval")
    runs = ("--runs", tmp_path)

    unknown = memscale("evaluate", "s", "--suite", "zero", "--data", tmp_path, *runs)
    missing = memscale("evaluate", "s", "--suite", "last_word", "--data", tmp_path, *runs)

    nothing_asked = memscale("evaluate", tmp_path)
    no_folder = memscale("evaluate", "s", "--suite", "last_word", *runs)

    assert unknown[0] == missing[0] == nothing_asked[0] == no_folder[0] == 2
    assert (
        "nothing to ask; give --suite, --questions, --decode-latency or --table-reads, or add "
        "evaluation" in nothing_asked[1]
    )
    assert "needs the folder of the suites' files" in no_folder[1]
    all_wrong = memscale(
        "evaluate", "s", "--suite", "zero", "--questions", tmp_path / "qa.jsonl", *runs
    )
    for mistake in ("suite 'zero': there", "--data: needs", f"{tmp_path / 'qa.jsonl'}: not there"):
        assert mistake in all_wrong[1]
    assert unknown[1].startswith("suite 'zero': there are code, factual, gsm8k, last_word")
    assert "lastword_pd_novels.jsonl: not there" in missing[1]
