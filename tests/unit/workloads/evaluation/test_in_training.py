"""Benchmarks during training: the same weights, and the numbers of an evaluation afterwards."""

import json
import sys
from contextlib import contextmanager
from dataclasses import asdict
from unittest.mock import Mock

import pytest

from workloads.architectures import dense, moe
from workloads.decoding.decoder import NotANumberError
from workloads.evaluation import in_training
from workloads.evaluation.measure import measure, prepare
from workloads.evaluation.text_model import TextModel, text_model
from workloads.training.rank_job import RankJob
from workloads.training.train import run
from workloads.training.trained_model import load_trial

TASKS = {
    "town": {
        "file": "town.jsonl",
        "origin": "here",
        "kind": "choices",
        "prompt": "Person {{n}} was born in 1900 in town",
    },
    "year": {"file": "year.jsonl", "origin": "here", "kind": "answer", "prompt": "Person {{n}}"},
}
ROWS = {
    "town.jsonl": [{"n": n, "choices": ["1", "2 or 3"], "label": n % 2} for n in range(9)],
    "year.jsonl": [{"n": n, "answers": [f"was born in {1900 + n}"]} for n in range(5)],
}


@pytest.fixture
def job(tmp_path):
    texts = [f"Person {i} was born in {1900 + i} in town {i % 7}." for i in range(60)]
    file = tmp_path / "text.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for name, rows in ROWS.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.yaml").write_text(json.dumps({"about": "a test", "tasks": TASKS}))
    return {
        "data": {"source": "text", "path": str(file), "vocab_size": 300},
        "model": {"architecture": "dense", **asdict(dense.Config(**dense.PRESETS["d8"]))},
        "train": {"tokens": 256, "batch_tokens": 64, "seq_len": 64, "lr": 1e-2},
        "cache": tmp_path / "cache",
    }


def model_of(job):
    return {"model": job["model"], "seq_len": job["train"]["seq_len"]}


def trained(job, folder, benchmarks=None):
    """Return metric -> step -> value."""
    found = {}
    reporter = Mock(should_stop=lambda: False)
    reporter.metrics = lambda step, values: [
        found.setdefault(name, {}).update({step: value}) for name, value in values.items()
    ]
    run(
        RankJob(**job, seed=0, checkpoints=folder, log_every_steps=1),
        reporter,
        benchmarks=benchmarks,
    )
    return found


def test_benchmarks_in_training(job, tmp_path):
    records = []
    own = str(tmp_path / "own.yaml")
    benchmarks = in_training.load(
        [own],
        tmp_path,
        **model_of(job),
        rows=4,
        steps=frozenset({2, 4}),
        keep=lambda suite, record: records.append((suite, record)),
    )
    without = trained(job, tmp_path / "without")

    found = trained(job, tmp_path / "with", benchmarks)

    assert found["train/loss"] == without["train/loss"]
    assert [(suite, record["step"]) for suite, record in records] == [("own", 2), ("own", 4)]
    metrics = {name: steps for name, steps in found.items() if name.startswith("eval/")}
    assert set(metrics) == set(records[0][1]["metrics"])
    assert all(set(steps) == {2, 4} for steps in metrics.values())
    assert len(set(metrics["eval/town/bits_per_byte"].values())) == 2
    assert found["time/benchmarks_s"][4] > 0

    after = load_trial(**job, data_sha256={}, checkpoints=tmp_path / "with")
    (prepared,) = prepare([own], tmp_path, limit=4)
    with text_model(after, device_name="cpu") as model:
        record = measure(prepared, model, step=after.step)
    assert record["metrics"] == {name: steps[4] for name, steps in metrics.items()}
    assert (record["digest"], record["tasks"]) == (records[1][1]["digest"], records[1][1]["tasks"])


def test_suites_are_asked_with_attention_for_many_shapes(job, tmp_path, monkeypatch):
    within = []

    @contextmanager
    def varying_shapes(device):
        within.append(device.type)
        yield
        within.append("left")

    def asked(*arguments, **more):
        assert within[-1] == "cpu"
        return measure(*arguments, **more)

    monkeypatch.setattr(in_training.device, "varying_shapes", varying_shapes)
    monkeypatch.setattr(in_training, "measure", asked)
    own = [str(tmp_path / "own.yaml")]
    more = {**model_of(job), "rows": 4, "steps": frozenset({4}), "keep": Mock()}
    hook = in_training.load(own, tmp_path, **more)

    trained(job, tmp_path / "with", hook)

    assert within == ["cpu", "left"]


def test_a_model_of_nan_is_asked_nothing_and_trains_on(job, tmp_path, monkeypatch, caplog):
    def no_number(*arguments, **more):
        raise NotANumberError("the model gives NaN for 8 of 8 continuations")

    monkeypatch.setattr(in_training, "measure", no_number)
    own = [str(tmp_path / "own.yaml")]
    more = {**model_of(job), "rows": 4, "steps": frozenset({2}), "keep": Mock()}
    hook = in_training.load(own, tmp_path, **more)

    found = trained(job, tmp_path / "with", hook)

    assert set(found["train/loss"]) == {1, 2, 3, 4}
    assert not any(name.startswith("eval/") for name in found)
    assert "benchmarks after step 2 are left out: the model gives NaN for 8 of 8" in caplog.text


def test_the_harness_is_imported_before_the_clock_of_the_limit_runs(tmp_path, job, monkeypatch):
    """That takes a second, of which a short training would never ask anything."""
    harness = "workloads.evaluation.evaluate_suites"
    monkeypatch.delitem(sys.modules, harness, raising=False)
    more = {"rows": 1, "steps": frozenset({4}), "keep": Mock(), "most_share": 0.05}
    more |= model_of(job)
    (tmp_path / "qa.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 2)

    in_training.load((), None, questions=tmp_path / "qa.jsonl", **more)
    assert harness not in sys.modules  # questions go without it
    in_training.load([str(tmp_path / "own.yaml")], tmp_path, **more)
    assert harness in sys.modules


def test_questions_in_training_and_their_limit(job, tmp_path):
    path = tmp_path / "qa.jsonl"
    rows = [{"question": f"Person {n}", "answer": f"was born in {1900 + n}"} for n in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def asked(**more):
        records = []
        hook = in_training.load(
            (),
            None,
            questions=path,
            **model_of(job),
            rows=4,
            steps=frozenset({4}),
            keep=lambda suite, record: records.append(record),
            **more,
        )
        found = trained(job, tmp_path / f"with{len(more)}", hook)
        return found, records

    found, (record,) = asked()
    stopped, (cut,) = asked(most_share=1e-9)

    assert found["train/loss"] == stopped["train/loss"]
    assert found["eval/qa/nll"] == {4: record["metrics"]["eval/qa/nll"]}
    assert record["tasks"]["qa"]["n"] == 4
    assert "eval/unfinished_tasks" not in found
    assert stopped["eval/unfinished_tasks"] == {4: 1.0}
    assert "eval/qa/nll" not in stopped
    assert (cut["unfinished"], cut["digest"]) == (["qa"], None)


EXPERTS_CHOOSE = {"top_k": 1, "routing": "expert_choice", "evaluation": "expert_choice"}


@pytest.mark.parametrize(
    ("model", "seq_len", "what"),
    [
        ({}, 24, "task qa: answers of 24 tokens leave no room for a prompt, train.seq_len is 24"),
        ({}, 25, None),
        (EXPERTS_CHOOSE, 64, "task qa: this moe model cannot decode answers token by token, beca"),
        ({**EXPERTS_CHOOSE, "evaluation": "top_1"}, 64, None),
    ],
)
def test_answers_that_cannot_be_generated_are_refused_before_training(
    model, seq_len, what, job, tmp_path
):
    (tmp_path / "qa.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 2)
    if model:
        model = {"architecture": "moe", **moe.PRESETS["d8"], **model}
    more = {"model": model or job["model"], "seq_len": seq_len}
    more |= {"rows": 1, "steps": frozenset({1}), "keep": Mock()}

    def load(names=(), questions=None):
        return in_training.load(names, tmp_path, questions=questions, **more)

    town = {"about": "a test", "tasks": {"town": TASKS["town"]}}
    (tmp_path / "town.yaml").write_text(json.dumps(town))
    load([str(tmp_path / "town.yaml")])  # generates nothing
    if what is None:
        load(questions=tmp_path / "qa.jsonl")
        return
    with pytest.raises(ValueError, match=what):
        load(questions=tmp_path / "qa.jsonl")
    with pytest.raises(ValueError, match=what.replace("qa", "year")):
        load([str(tmp_path / "own.yaml")])


def test_what_cannot_be_measured_is_unfinished_and_the_trial_is_done(
    job, tmp_path, monkeypatch, caplog
):
    def refuse(self, prompts):
        raise ValueError("no answer today")

    monkeypatch.setattr(TextModel, "continuations", refuse)
    (tmp_path / "qa.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 2)
    records = []
    hook = in_training.load(
        [str(tmp_path / "own.yaml")],
        tmp_path,
        questions=tmp_path / "qa.jsonl",
        **model_of(job),
        rows=4,
        steps=frozenset({4}),
        keep=lambda suite, record: records.append((suite, record)),
    )

    found = trained(job, tmp_path / "with", hook)

    assert (tmp_path / "with" / "final").is_dir()
    assert found["eval/unfinished_tasks"] == {4: 2.0}
    assert found["eval/town/acc"].keys() == {4}
    assert [(one, of["unfinished"], of["digest"], [*of["tasks"]]) for one, of in records] == [
        ("own", ["year"], None, ["town"]),
        ("questions qa", ["qa"], None, []),
    ]
    assert "after step 4: year cannot be measured, and training goes on: no answer" in caplog.text
    assert "stopped at" not in caplog.text


def test_data_without_text_are_refused(job, tmp_path):
    more = {**model_of(job), "rows": 1, "steps": frozenset({1}), "keep": Mock()}
    benchmarks = in_training.load([str(tmp_path / "own.yaml")], tmp_path, **more)
    job["data"] = {"source": "biographies", "n_people": 20}
    with pytest.raises(ValueError, match="words of their own and no tokenizer"):
        trained(job, tmp_path / "none", benchmarks)
