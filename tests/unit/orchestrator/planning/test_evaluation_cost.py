"""Benchmarks at planning: rows that fit into a share of the training, the cost, what is missing."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from orchestrator.planning import evaluation_cost
from orchestrator.planning.evaluation_cost import MOST_SHARE, ROWS, PricedTraining, with_schedule
from orchestrator.records.errors import UsageError
from orchestrator.records.trial_spec import EvaluationSchedule, TrialSpec
from orchestrator.sweep import registry

pytest.importorskip("lm_eval")


def trial(tokens, *, source="text", **schedule):
    asked = {"suites": ("own.yaml",), "data": "/data", **schedule}
    return TrialSpec(
        sweep="s",
        data={"source": source},
        model={"architecture": "dense", "n_layers": 3, "d_model": tokens},
        train={"seq_len": 64},
        seed=0,
        accounting={
            "steps": tokens / 1_000,
            "forward_flops_per_token": 5.0,
            "training_flops": 15.0 * tokens,
        },
        evaluation=EvaluationSchedule(**asked),
    )


def planned(specs, *, seconds=100.0, on_gpu=False):
    return with_schedule([PricedTraining(spec, seconds, on_gpu) for spec in specs])


class Suite:
    """Rows of ten tokens, and two that are generated for each."""

    most_rows = 700
    task_names = ()

    def tokens(self, *, seq_len, n_rows):
        assert seq_len == 64
        n = float(min(n_rows, 700))
        return SimpleNamespace(read=10 * n, generated=2 * n, decoding_passes=n)


MODULE = SimpleNamespace(
    prepare=lambda names, data, questions: (Suite(),),
    require_answers=lambda asked, *, model, seq_len: None,
)


@pytest.fixture
def suites(monkeypatch):
    monkeypatch.setattr(evaluation_cost.registry, "evaluation", lambda: MODULE)


@given(
    tokens=st.lists(st.integers(10**4, 10**8), min_size=1, max_size=4),
    at=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
)
def test_rows_fit_into_the_share_of_every_trial(tokens, at):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_cost.registry, "evaluation", lambda: MODULE)
        specs, (cost,) = planned([trial(n, at=tuple(at)) for n in tokens])

    def of(spec, rows):  # 15 read and 40 generated token times a row, of three passes a token
        n = spec.model["d_model"]
        times = len(spec.evaluation.steps(int(spec.accounting["steps"])))
        return times * rows * (10 * 1.5 + 2 * 20.0) / (3 * n)

    rows, fewest = cost.schedule.rows, ROWS[0]
    asked = [one for one in specs if one.evaluation.skipped is None]
    assert {dataclasses.replace(spec.evaluation, skipped=None) for spec in specs} == {cost.schedule}
    for one in specs:
        assert (
            (one.trial_id in cost.skipped) == (one not in asked) == (of(one, fewest) > MOST_SHARE)
        )
        assert one in asked or one.evaluation.skipped == cost.skipped[one.trial_id]
    if not asked:
        assert rows == fewest
        return
    assert rows in ROWS or rows == Suite.most_rows
    assert cost.share == pytest.approx(max(of(one, rows) for one in asked))
    assert cost.share <= MOST_SHARE
    larger = next((n for n in ROWS if n > rows), None)
    assert (
        rows == Suite.most_rows or larger is None or max(of(o, larger) for o in asked) > MOST_SHARE
    )


def test_written_rows_stand_and_what_they_cost_is_said(suites):
    (spec,), (cost,) = planned([trial(55_000, rows=100, at=(0.5, 1.0))])

    assert spec.evaluation.rows == 100
    assert cost.share == pytest.approx(2 * 100 * 55 / (3 * 55_000))
    assert str(cost) == (
        "evaluation: own.yaml at 0.5, 1 of the training, the first 100 rows of each task; about "
        "6.7 % of the training time of dense, less of larger ones. Lower evaluation.rows or ask "
        "less often to stay under 5%"
    )


def test_evaluations_are_stopped_where_rows_were_chosen(suites):
    def most_share(tokens, **more):
        (spec,), (cost,) = planned([trial(tokens, **more)])
        assert ("; stopped at" in str(cost)) == (spec.evaluation.most_share is not None)
        return spec.evaluation.rows, spec.evaluation.most_share

    assert most_share(10**7) == (700, MOST_SHARE)
    assert most_share(10**7, most_share=0.2) == (700, 0.2)
    assert most_share(10**7, rows=100) == (100, None)  # who writes rows wants them
    assert most_share(4_000) == (ROWS[0], MOST_SHARE)  # 4.6 %: the fewest fit


def test_a_training_that_is_too_short_is_not_asked_and_says_why(suites):
    """By default alone: rows that the file sets are asked, and so is what most_share allows."""
    short, long = trial(1_000), trial(10**7)
    (one, other), (cost,) = planned([short, long], seconds=2.0)
    why = (
        "10 rows of each task would take 0.37 s, and 5 % of the training is 0.1 s; set "
        "evaluation.rows, raise evaluation.most_share, or ask the trained models with memscale "
        "evaluate"
    )
    assert (one.evaluation.skipped, other.evaluation.skipped) == (why, None)
    assert one.evaluation.rows == other.evaluation.rows == 700
    assert str(cost) == (
        "evaluation: own.yaml at 1 of the training, the first 700 rows of each task; skipped in 1 "
        f"of 2 trials, such as {short.trial_id}: {why}; about 0.13 % of the training time of dense, "
        "less of larger ones; stopped at 5 %"
    )
    assert one.trial_id == short.trial_id

    (alone,), (cost,) = planned([short], seconds=0.0)
    assert alone.evaluation.skipped.startswith(
        "10 rows of each task would take 18 % of the training time, and the limit is 5 %;"
    )
    assert str(cost).endswith(
        f"skipped in 1 of 1 trials, such as {short.trial_id}: {alone.evaluation.skipped}"
    )
    for more in ({"rows": 10}, {"rows": 100}, {"most_share": 0.2}):
        (asked,), (cost,) = planned([trial(1_000, **more)])
        assert (asked.evaluation.skipped, cost.skipped) == (None, {})
    assert (asked.evaluation.rows, asked.evaluation.most_share) == (10, 0.2)


def test_questions_need_neither_folder_nor_harness(tmp_path, monkeypatch):
    monkeypatch.delenv(evaluation_cost.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(evaluation_cost.importlib.util, "find_spec", lambda name: None)
    path = tmp_path / "qa.jsonl"
    rows = [{"question": f"who is {n}?", "answer": "x", "split": "test"} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"suites": (), "data": None, "questions": str(path)}
    model = {"architecture": "dense", **registry.architecture("dense").PRESETS["d8"]}
    one = dataclasses.replace(trial(10**7, **asked), model=model)

    (spec,), (cost,) = planned([one])

    assert (spec.evaluation.rows, spec.evaluation.data) == (40, None)
    assert spec.trial_id == dataclasses.replace(one, evaluation=None).trial_id
    assert str(cost).startswith("evaluation: qa.jsonl at 1 of the training, the first 40 rows")
    path.write_text('{"question": "x"}\n')
    with pytest.raises(UsageError, match=r"evaluation: .*qa\.jsonl:1: must have either answer"):
        planned([trial(10**7, **asked)])


def test_models_that_cannot_answer_are_refused_before_they_train(tmp_path):
    path = tmp_path / "qa.jsonl"
    rows = [{"question": f"who is {n}?", "answer": "x"} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"suites": (), "data": None, "questions": str(path)}
    chooses = {"top_k": 1, "routing": "expert_choice", "evaluation": "expert_choice"}

    def of(name, *, seq_len=64, tokens=10**7, **fields):
        model = {"architecture": name, **registry.architecture(name).PRESETS["d8"], **fields}
        return dataclasses.replace(trial(tokens, **asked), model=model, train={"seq_len": seq_len})

    assert planned([of("dense"), of("moe", **{**chooses, "evaluation": "top_1"})])
    for wrong, what in (
        (of("dense", seq_len=24), "answers of 24 tokens leave no room for a prompt, train.seq_len"),
        (of("moe", **chooses), "this moe model cannot decode answers token by token, because exp"),
    ):
        with pytest.raises(UsageError) as raised:
            planned([of("dense"), wrong])
        assert str(raised.value).startswith(f"evaluation: trial {wrong.trial_id}: task qa: {what}")
    (skipped,), _ = planned([of("dense", seq_len=24, tokens=1_000)])
    assert skipped.evaluation.skipped is not None  # it is not asked


def test_a_decoding_pass_on_a_gpu_takes_its_time_however_small_the_model(suites):
    spec = trial(10**9, rows=100)
    _, (on_cpu,) = planned([spec], seconds=50.0)
    _, (on_gpu,) = planned([spec], seconds=50.0, on_gpu=True)
    # 100 passes of three layers, 2 ms each.
    assert on_gpu.share - on_cpu.share == pytest.approx(100 * 3 * 2e-3 / 50)


def test_a_task_takes_its_time_however_few_its_rows(suites, monkeypatch):
    """In a training of one second that is what an evaluation costs."""
    spec = trial(10**9, rows=1, at=(0.5, 1.0))
    _, (without,) = planned([spec], seconds=1.0)
    monkeypatch.setattr(Suite, "task_names", ("a", "b"))
    _, (cost,) = planned([spec], seconds=1.0)
    assert cost.share - without.share == pytest.approx(2 * 2 * evaluation_cost.TASK_S)


def test_the_folder_may_come_from_the_environment(suites, tmp_path, monkeypatch):
    monkeypatch.setenv(evaluation_cost.FOLDER_VARIABLE, str(tmp_path))
    (spec,), _ = planned([trial(10**6, data=None)])
    assert spec.evaluation.data == str(tmp_path)

    monkeypatch.delenv(evaluation_cost.FOLDER_VARIABLE)
    with pytest.raises(UsageError, match="no folder of benchmark files"):
        planned([trial(10**6, data=None)])


def test_data_without_text_are_refused(suites):
    with pytest.raises(UsageError, match="source biographies have words of their own"):
        planned([trial(10**6, source="biographies")])


def test_missing_files_are_named(tmp_path):
    own = tmp_path / "own.yaml"
    task = {"file": "a.jsonl", "origin": "Here", "kind": "choices", "prompt": "{{question}}"}
    own.write_text(json.dumps({"about": "a test", "tasks": {"mine": task}}))  # JSON is YAML
    with pytest.raises(UsageError, match=r"a\.jsonl: not there .* suite own needs it"):
        planned([trial(10**6, suites=(str(own),), data=str(tmp_path))])


def test_trials_without_benchmarks_stay_as_they_are():
    spec = TrialSpec(sweep="s", data={}, model={"architecture": "dense"}, train={}, seed=0)
    assert planned([spec]) == ([spec], [])


def test_questions_about_tokens_need_the_tokenizer_of_their_folder(suites, tmp_path):
    """Prepared tokens that came without one are refused at planning, not at the first question."""
    preparation = evaluation_cost.registry.data_preparation()
    np.arange(4_000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    request = {"sources": (str(tmp_path / "a.bin"),), "vocab_size": 5_000}
    given = {"without": None, "with": str(tmp_path / "tokenizer.json")}
    words = {"<|endoftext|>": 0, **{f"w{i}": i for i in range(1, 5_000)}}
    Tokenizer(WordLevel(words, unk_token="w1")).save(given["with"])
    for name, tokenizer in given.items():
        preparation.prepare(
            preparation.PrepareRequest(out=tmp_path / name, tokenizer=tokenizer, **request), print
        )

    def on(*folders):
        data = {"source": "tokens", "path": tuple(str(tmp_path / one) for one in folders)}
        return dataclasses.replace(trial(10**6), data=data)

    assert planned([on("with")])[1]
    with pytest.raises(UsageError, match="without holds tokens without their tokenizer, so suites"):
        planned([on("with", "without")])
