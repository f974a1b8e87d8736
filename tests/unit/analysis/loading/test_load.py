import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.loading.from_tracker import _read_run
from analysis.loading.schema import Reading, declaration
from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir

SMALL = {"sizes": (32, 64), "seeds": (0, 1)}


@pytest.mark.integration
def test_a_folder_and_the_tracker_give_the_same_table(synthetic, tracker, tmp_path):
    uri, trials = tracker
    runs = synthetic.write_runs(tmp_path / "runs", trials)

    from_folder = analysis.load(runs, sweep="tracked")
    from_tracker = analysis.load(uri, sweep="tracked")

    assert len(from_folder.table) == 8
    pd.testing.assert_frame_equal(from_folder.table, from_tracker.table)


@pytest.mark.integration
def test_the_tracker_excludes_with_reasons(tracker):
    excluded = analysis.load(tracker[0], sweep="tracked").excluded

    assert excluded["state"].tolist().count("failed") == 1
    assert excluded["reason"].str.contains("not finite: loss is nan").sum() == 1
    assert len(excluded) == 2


@pytest.mark.parametrize("outcome", ["diverged", "user_error"])
def test_a_run_of_the_tracker_that_diverged_keeps_its_settings(outcome):
    tags = {"memscale.trial_id": "dense-1", "memscale.state": "failed", "memscale.outcome": outcome}
    params = {"architecture": "dense", "preset": "d8", "seed": "0", "train.lr": "1.0"}
    data = SimpleNamespace(tags=tags, params=params, metrics={"total_params": 10.0})
    reading = Reading()

    _read_run(SimpleNamespace(data=data, info=SimpleNamespace(run_id="1")), "tracked", reading)

    assert [row["trial_id"] for row in reading.left_out] == ["dense-1"]
    kept = [(row["preset"], row["train.lr"], row["total_params"]) for row in reading.diverged]
    assert kept == ([("d8", 1, 10.0)] if outcome == "diverged" else [])


@pytest.mark.integration
def test_a_tracker_without_that_sweep_names_those_it_has(tracker):
    with pytest.raises(StoreError, match="no sweep 'other' here; there are tracked"):
        analysis.load(tracker[0], sweep="other")


def test_a_missing_database_is_not_created(tmp_path):
    with pytest.raises(StoreError, match="no such database"):
        analysis.load(f"sqlite:///{tmp_path}/none.db")

    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    "uri", ["bogus://there", "file:///nothing/there", "postgresql://me:secret@127.0.0.1:1/runs"]
)
def test_a_tracker_that_cannot_be_read_is_one_sentence_without_its_password(uri):
    with pytest.raises(StoreError, match="cannot be read .*; check the address") as caught:
        analysis.load(uri)

    assert "secret" not in str(caught.value)


def test_columns_of_the_table(runs):
    table = runs.table

    assert len(table) == 36
    row = table[(table["architecture"] == "memory_plus") & (table["preset"] == "64w")].iloc[0]
    assert row["factual_recall"] == row["recall/train_wording/exact_match"]
    assert row["answer_nll"] == row["recall/train_wording/answer_nll"]
    assert row["bits_per_param"] == row["knowledge/bits_per_param"]
    assert row["loss"] == row["valid/loss"]
    assert row["train_seconds"] == 12.5
    assert row["model.d_model"] == 64
    assert row["model.layers"] == "[0,2]"
    assert row["train.lr"] == 0.003
    assert row["params_memory_values"] == 40 * 64**2
    assert row["memory_params"] == 40 * 64**2, "keys and values, where nobody added them up"
    assert "data.path" not in table, "an unset option is no column"
    assert runs.environment == {"git.commit": "abc123", "packages.torch": "2.13.0", "cpus": "2"}


def test_seeds_share_a_configuration(runs):
    groups = runs.table.groupby("configuration")

    assert len(groups) == 12
    assert (groups["seed"].nunique() == 3).all()
    assert (groups["total_params"].nunique() == 1).all()


def test_without_validation_the_loss_is_that_of_training(synthetic, tmp_path):
    trials = synthetic.make_sweep(**SMALL)
    for trial in trials:
        del trial.metrics["valid/loss"]

    table = analysis.load(synthetic.write_runs(tmp_path, trials)).table

    assert (table["loss"] == table["train/loss"]).all()


def test_the_later_attempt_wins_and_result_json_has_the_last_word(synthetic, tmp_path):
    trial = synthetic.make_trial("dense", 32, 0)
    folder = synthetic.write_done(tmp_path, trial)
    second = folder.new_attempt({"started_at": 2.0})
    synthetic.journal(second, [(100, {"train/loss": 1.5, "memory/kl": 0.25})])

    row = analysis.load(tmp_path).table.iloc[0]

    assert row["memory/kl"] == 0.25
    assert row["train/loss"] == trial.metrics["train/loss"]


def test_trials_that_are_not_done_are_listed_with_a_sentence(synthetic, tmp_path):
    done, running, waiting, failed, diverged, cancelled, retried = synthetic.make_sweep(
        sizes=(32, 48, 64, 96, 128, 192, 256), seeds=(0,), architectures=("dense",)
    )
    synthetic.write_done(tmp_path, done)
    folder, attempt = synthetic.start(tmp_path, running)
    write_json(folder.path / "heartbeat.json", {"step": 7, "steps": 100})
    folder, attempt = synthetic.start(tmp_path, failed)
    write_json(
        attempt.path / "end.json",
        {"outcome": "user_error", "reason": "no such file", "final": True},
    )
    folder, attempt = synthetic.start(tmp_path, diverged)
    write_json(
        attempt.path / "end.json", {"outcome": "diverged", "reason": "loss is nan", "final": True}
    )
    folder, attempt = synthetic.start(tmp_path, cancelled)
    write_json(
        attempt.path / "end.json", {"outcome": "cancelled", "reason": "asked", "final": True}
    )
    folder, attempt = synthetic.start(tmp_path, retried)
    write_json(
        attempt.path / "end.json", {"outcome": "killed", "reason": "signal 9", "final": False}
    )
    SweepDir(tmp_path / "synthetic").add_trials([waiting.spec])
    (tmp_path / "synthetic" / "trials" / "dense-000000000000").mkdir()

    loaded = analysis.load(tmp_path)

    assert loaded.table["trial_id"].tolist() == [done.spec.trial_id]
    reasons = dict(zip(loaded.excluded["trial_id"], loaded.excluded["reason"], strict=True))
    assert reasons == {
        running.spec.trial_id: "not finished: attempt 1 had reached step 7 of 100",
        waiting.spec.trial_id: "not started",
        failed.spec.trial_id: "failed in attempt 1: no such file",
        diverged.spec.trial_id: "diverged in attempt 1: loss is nan",
        cancelled.spec.trial_id: "cancelled",
        retried.spec.trial_id: "not finished: waits for another attempt after attempt 1 ended: signal 9",
        "dense-000000000000": "unreadable: the folder has no spec.json; submit the sweep again",
    }
    assert loaded.diverged["trial_id"].tolist() == [diverged.spec.trial_id]
    assert loaded.diverged["configuration"].notna().all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"valid/loss": float("nan")}, r"not finite: loss is nan \(diverged\)"),
        ({"recall/train_wording/answer_nll": float("inf")}, "not finite: answer_nll is inf"),
        ({"recall/train_wording/exact_match": 1.5}, r"impossible: factual_recall is 1.5"),
        ({"knowledge/bits_per_param": "gone"}, "missing: no value of bits_per_param"),
        ({"valid/loss": -1.0}, "impossible: loss is -1; it must be positive"),
        (
            {"vocab_size": 20, "valid/loss": 9.0},
            r"diverged: loss is 9, and guessing evenly among 20 tokens has 2.996",
        ),
        (
            {"training_flops": 1e6},
            r"impossible: training_flops is 1e\+06, 8.14e-06 per active parameter and token",
        ),
    ],
)
def test_results_that_cannot_count_are_excluded(synthetic, tmp_path, change, reason):
    good, bad = synthetic.make_sweep(sizes=(32, 64), seeds=(0,), architectures=("dense",))
    for name, value in change.items():
        if value == "gone":
            del bad.metrics[name]
        elif "/" in name:
            bad.metrics[name] = value
        else:
            accounting = {**bad.spec.accounting, name: value}
            bad = replace(bad, spec=replace(bad.spec, accounting=accounting))
    synthetic.write_runs(tmp_path, [good, bad])

    loaded = analysis.load(tmp_path)

    assert loaded.table["trial_id"].tolist() == [good.spec.trial_id]
    assert loaded.excluded["state"].tolist() == ["done"]
    assert pd.Series(loaded.excluded["reason"]).str.match(reason).all()


@pytest.mark.parametrize(("forward", "counts"), [(1.19e10 / 3 / 8192, True), (2.0, False)])
def test_a_small_model_with_a_large_vocabulary_counts(synthetic, tmp_path, forward, counts):
    """Its head, which is no active parameter, takes nearly all FLOPs; a wrong unit does not."""
    (run,) = synthetic.make_sweep(sizes=(32,), seeds=(0,), architectures=("dense",))
    accounting = {
        **run.spec.accounting,
        "active_params": 850.0,
        "training_tokens": 8192.0,
        "training_flops": 1.19e10,
        "forward_flops_per_token": forward,
    }
    run = replace(run, spec=replace(run.spec, accounting=accounting))
    synthetic.write_runs(tmp_path, [run])

    loaded = analysis.load(tmp_path)

    assert len(loaded.table) == counts
    if not counts:
        assert "1.71e+03 per active parameter and token" in loaded.excluded["reason"][0]


def test_an_altered_spec_is_excluded_not_fatal(synthetic, tmp_path):
    good, altered = synthetic.make_sweep(sizes=(32, 64), seeds=(0,), architectures=("dense",))
    synthetic.write_runs(tmp_path, [good, altered])
    path = tmp_path / "synthetic" / "trials" / altered.spec.trial_id / "spec.json"
    path.write_text(path.read_text().replace('"lr": 0.003', '"lr": 0.3'))

    loaded = analysis.load(tmp_path)

    assert len(loaded.table) == 1
    assert "its content hashes to" in loaded.excluded["reason"][0]


def test_one_trial_under_two_sweeps_counts_once(synthetic, tmp_path):
    trial, twin = (synthetic.make_trial("dense", 32, 0, sweep=name) for name in ("first", "second"))
    synthetic.write_runs(tmp_path, [trial, twin])

    both = analysis.load(tmp_path)

    assert both.table["sweep"].tolist() == ["first"]
    assert both.excluded["reason"].tolist() == [
        "duplicate: the same trial is already in the table, from sweep first"
    ]
    assert len(analysis.load(tmp_path, sweep="second").table) == 1


def test_several_sweeps_are_read_by_name(synthetic, tmp_path):
    names = ("first", "second", "third")
    trials = [synthetic.make_trial("dense", 32, i, sweep=name) for i, name in enumerate(names)]
    synthetic.write_runs(tmp_path, trials)

    both = analysis.load(tmp_path, sweep=["second", "first"])

    assert both.table["sweep"].tolist() == ["first", "second"]
    assert both.sweep == ("second", "first")
    assert repr(both) == "<Runs of second, first: 2 in table, 0 in excluded>"
    assert set(analysis.histories(both, ("train/",))["sweep"]) == {"first", "second"}
    of_table = analysis.load(analysis.load(tmp_path).table, sweep=["first", "second"])
    assert of_table.table["sweep"].tolist() == ["first", "second"]
    assert "sweep=['first', 'second']" in of_table.call
    with pytest.raises(StoreError, match="no sweep 'other' here; there are first, second, third"):
        analysis.load(tmp_path, sweep=["first", "other"])
    with pytest.raises(StoreError, match="no rows of sweep 'other'"):
        analysis.load(both.table, sweep=["first", "other"])
    with pytest.raises(ValueError, match="an empty list names no sweep"):
        analysis.load(tmp_path, sweep=[])


CODE = {
    "0123": "WIDTH = 4\n",
    "4567": '"""A model."""\n\nWIDTH = 4  # wide\n',
    "89ab": "WIDTH = 8\n",
}


@pytest.mark.parametrize(
    ("snapshots", "mixed"),
    [(("0123", "4567"), False), (("0123", "89ab"), True), (("0123", "gone"), False)],
)
def test_seeds_that_different_code_trained_are_told(synthetic, tmp_path, snapshots, mixed):
    """Words about the code do not count; what is gone is not compared."""
    for snapshot, code in CODE.items():
        file = tmp_path / f"synthetic/code/{snapshot}/workloads/architectures/dense.py"
        file.parent.mkdir(parents=True)
        file.write_text(code)
    trials = [synthetic.make_trial("dense", 32, seed) for seed in (0, 1)]
    for trial, snapshot in zip(trials, snapshots, strict=True):
        folder = synthetic.write_done(tmp_path, trial)
        environment = {"git": {"commit": "abc123", "snapshot": snapshot}}
        write_json(folder.attempts()[0].path / "environment.json", environment)

    notes = analysis.load(tmp_path).notes

    first, second = (trial.spec.trial_id for trial in trials)
    told = (
        "synthetic: seeds of dense 32w were trained by different code of"
        f" workloads/architectures/dense.py ({first}; {second}), and a mean over them is of"
        " neither; rename the sweep to train all anew"
    )
    assert list(notes) == ([told] if mixed else [])


@pytest.mark.parametrize("sweeps", [("a", "a"), ("a", "b")])
@pytest.mark.parametrize("factor", [1.0, 0.8])
def test_seeds_that_different_code_counted_are_told(synthetic, tmp_path, sweeps, factor):
    first, second = (
        synthetic.make_trial("dense", 32, seed, sweep=sweep) for seed, sweep in enumerate(sweeps)
    )
    now = first.spec.accounting["training_flops"]
    counts = {**first.spec.accounting, "training_flops": factor * now}
    first = replace(first, spec=first.spec.with_accounting(counts))
    other = synthetic.make_trial("dense", 64, 0, sweep=sweeps[0])
    for trial in (first, second, other):
        synthetic.write_done(tmp_path, trial)

    notes = [note for note in analysis.load(tmp_path).notes if "counted" in note]

    told = (
        f"{' and '.join(sorted({*sweeps}))}: seeds of dense 32w were counted by different code "
        "(training_flops: ",
        f"{factor * now:,.0f} in {first.spec.trial_id}",
        f"{now:,.0f} in {second.spec.trial_id}",
        "), and fits take them for different sizes; rename the sweep to train all anew",
    )
    assert len(notes) == (factor < 1)
    assert all(part in note for note in notes for part in told)


def test_text_and_fact_sweeps_side_by_side_do_not_exclude_each_other(synthetic, tmp_path):
    facts, text = (synthetic.make_trial("dense", 32, 0, sweep=name) for name in ("facts", "text"))
    for name in [n for n in text.metrics if n.startswith(("recall", "knowledge"))]:
        del text.metrics[name]
    synthetic.write_runs(tmp_path, [facts])
    folder, _ = synthetic.start(tmp_path, text)
    write_json(folder.path / "result.json", {"metrics": text.metrics})

    loaded = analysis.load(tmp_path, sweep="text")

    assert len(loaded.table) == 1
    assert "factual_recall" not in loaded.table


def test_the_folder_of_one_sweep_works_too(runs_folder, runs):
    pd.testing.assert_frame_equal(analysis.load(runs_folder / "synthetic").table, runs.table)
    with pytest.raises(StoreError, match="is the folder of sweep synthetic"):
        analysis.load(runs_folder / "synthetic", sweep="other")


def test_a_folder_without_that_sweep_names_those_it_has(runs_folder, tmp_path):
    with pytest.raises(StoreError, match="no sweep 'nope' here; there are synthetic"):
        analysis.load(runs_folder, sweep="nope")
    with pytest.raises(StoreError, match="no sweep in this folder"):
        analysis.load(tmp_path)
    with pytest.raises(StoreError, match="nothing there that can be read"):
        analysis.load(tmp_path / "missing")


def test_a_csv_of_the_table_loads_back(runs, tmp_path):
    path = tmp_path / "export.csv"
    runs.table.to_csv(path, index=False)

    again = analysis.load(path).table

    assert again["trial_id"].tolist() == runs.table["trial_id"].tolist()
    np.testing.assert_array_equal(again["factual_recall"], runs.table["factual_recall"])
    assert again.groupby("configuration").ngroups == 12


def test_a_small_table_of_ones_own(tmp_path):
    frame = pd.DataFrame(
        {"architecture": ["a", "a", "b"], "total_params": [1e5, 0, 1e6], "loss": [3.0, 2.0, np.nan]}
    )

    loaded = analysis.load(frame)

    assert loaded.table["loss"].tolist() == [3.0]
    assert loaded.table["seed"].tolist() == [0]
    assert loaded.excluded["trial_id"].tolist() == ["row 1", "row 2"]
    assert "must be positive" in loaded.excluded["reason"][0]
    assert "missing: no value of loss" in loaded.excluded["reason"][1]


def test_a_table_without_a_needed_column_says_which():
    with pytest.raises(ValueError, match="no column of sizes, got architecture, loss; needed are"):
        analysis.load(pd.DataFrame({"architecture": ["a"], "loss": [1.0]}))


@pytest.mark.parametrize(
    ("groups", "memory_params"),
    [
        ({"params_memory_keys": 7.0, "params_memory_values": 30.0}, 37.0),
        ({"params_memory_keys": 7.0, "params_memory_values": 30.0, "memory_params": 40.0}, 40.0),
        ({}, None),
    ],
)
def test_memory_params_are_added_up_unless_recorded(groups, memory_params):
    row = {"architecture": "a", "total_params": 1e5, "loss": 3.0, **groups}

    assert analysis.load(pd.DataFrame([row])).table.iloc[0].get("memory_params") == memory_params


def test_a_model_that_is_not_causal_says_so(synthetic, tmp_path):
    why = "in training: experts choose among all tokens of the batch"
    plain, told = synthetic.make_sweep(sizes=(32, 64), seeds=(0,), architectures=("moe",))
    told = replace(told, spec=replace(told.spec, not_causal=why))

    table = analysis.load(synthetic.write_runs(tmp_path, [plain, told])).table

    assert table["not_causal"].isna().tolist() == [True, False]
    assert table["not_causal"].iloc[1] == why
    assert "not_causal" not in analysis.load(synthetic.write_runs(tmp_path / "b", [plain])).table


@pytest.mark.parametrize(
    ("recorded", "read"),
    [
        (None, None),
        ("", None),
        (False, None),
        ("False", None),
        (float("nan"), None),
        (True, "in training"),
        ("true", "in training"),
        ("in training: it normalises over the batch", "in training: it normalises over the batch"),
    ],
)
def test_declarations_as_they_may_be_recorded(recorded, read):
    assert declaration(recorded) == read


def test_the_question_comes_from_the_sweep_file(synthetic, tmp_path):
    synthetic.write_runs(tmp_path, [synthetic.make_trial("dense", 32, 0)])
    (tmp_path / "synthetic" / "sweep.yaml").write_text(
        "# Question: does it\n#           grow?\n# Run:      now\nname: synthetic\n"
    )

    assert analysis.load(tmp_path).question == "does it grow?"


def test_import_analysis_is_light():
    script = "import analysis, sys; print(*sorted({'numpy', 'pandas', 'scipy', 'matplotlib', 'mlflow', 'torch', 'ray'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == []


def test_every_name_offered_is_there():
    assert all(
        callable(getattr(analysis, name)) for name in dir(analysis) if name.startswith("fit_")
    )
    assert analysis.law_named("chinchilla").name == "chinchilla"
    assert all(callable(getattr(analysis, name)) for name in analysis._MODULE_OF)


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(
        AttributeError,
        match="fit_law, fit_partial, fit_sweep, frontier, histories, law_named, laws, load",
    ):
        analysis.fti  # noqa: B018


def test_no_column_of_the_accounting_is_named_twice():
    from analysis.loading.schema import ACCOUNTING

    assert len(set(ACCOUNTING)) == len(ACCOUNTING)


def test_trials_that_were_asked_different_rows_under_one_name_are_told(synthetic, tmp_path):
    digests = ("one", "other", "one", None)
    trials = [synthetic.make_trial("dense", 32, seed) for seed in range(len(digests))]
    for trial, digest in zip(trials, digests, strict=True):
        folder = synthetic.write_done(tmp_path, trial)
        for name, of in (("questions qa", digest), ("small", "equal")):
            folder.add_evaluation(name, {"digest": of, "step": None, "metrics": {}, "tasks": {}})

    notes = analysis.load(tmp_path).notes

    ids = sorted(
        (trial.spec.trial_id, digest) for trial, digest in zip(trials, digests, strict=True)
    )
    one, other = ([name for name, of in ids if of == digest] for digest in ("one", "other"))
    assert len(notes) == 1
    assert notes[0].startswith("synthetic: trials were asked 'questions qa' with different rows,")
    assert all(part in notes[0] for part in (" and ".join(one), other[0], "; "))
    assert not any(name in notes[0] for name, of in ids if of is None)
