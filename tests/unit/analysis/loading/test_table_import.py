"""Other people's tables: whatever they call their columns and however they write numbers, and every row accounted for."""

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.fitting.fit_law import fit_law
from analysis.fitting.synthetic import make_runs
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.power import POWER
from analysis.loading.column_names import words
from analysis.scaling.series_curves import CURVE_SPECS

MESSY = """\
# my sweep, 2024
Model;Params (M);Tokens (B);Val Loss;status
a;70;1.4;3.9;finished
b;160;3.2;3.4;finished
c;410;8;nan;finished
d;1000;20;NaN;diverged
e;1,400;28;2.6;finished
e;1,400;28;2.6;finished
f;2800;56;-1;finished
"""


def table(n=12, **options):
    return pd.DataFrame(make_runs(CHINCHILLA, n, noise=0.005, **options))


def loaded(text, path, **options):
    path.write_text(text, encoding="utf-8")
    return analysis.load(path, **options)


def test_every_row_of_a_messy_table_counts_or_has_a_reason(tmp_path):
    runs = loaded(MESSY, tmp_path / "sweep.csv")

    assert runs.table["row"].tolist() == [0, 1, 4]
    assert runs.table["params"].tolist() == [70e6, 160e6, 1400e6]
    assert runs.table["tokens"].tolist() == [1.4e9, 3.2e9, 28e9]
    reasons = dict(zip(runs.excluded["trial_id"], runs.excluded["reason"], strict=True))
    assert reasons == {
        "row 2": "missing: no value of loss (a run that diverged or was not evaluated); fill the cell, or run it again",
        "row 3": "status is 'diverged': not a finished run; run it again, or correct the status",
        "row 5": "duplicate of row 4: every cell is the same; leave one out, or give seeds a column",
        "row 6": "impossible: loss is -1; it must be positive, correct the cell",
    }
    assert any("times 1e+06" in note for note in runs.notes)


def test_numbers_as_people_write_them(tmp_path):
    text = "N,D,L\n70M,1.4B,3.9\n1.6e8,3.2e9,3.4\nN,D,L\n300M,6B,oops\n1.4B,28B,2.6\n2B,40_000_000_000,\n"
    runs = loaded(text, tmp_path / "a.csv")

    assert runs.table["params"].tolist() == [70e6, 160e6, 1.4e9]
    assert runs.excluded["reason"].str.split(";").str[0].tolist() == [
        "params is no number: 'N'",
        "loss is no number: 'oops'",
        "missing: no value of loss (a run that diverged or was not evaluated)",
    ]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "json", "jsonl", "dict", "DataFrame"])
def test_every_kind_of_source_gives_the_same_table(tmp_path, kind):
    frame = table()
    path = tmp_path / f"runs.{kind}"
    if kind in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    elif kind.startswith("json"):
        frame.to_json(path, orient="records", lines=kind == "jsonl", double_precision=15)
    source = {"dict": frame.to_dict(orient="list"), "DataFrame": frame}.get(kind, path)

    runs = analysis.load(source)

    got = runs.table.sort_values("row")
    for name in ("params", "tokens", "loss"):
        np.testing.assert_allclose(got[name], frame[name], rtol=1e-12)
    np.testing.assert_allclose(
        runs.table["flops"],
        6 * got["params"].to_numpy()[runs.table["row"].argsort().argsort()] * runs.table["tokens"],
        rtol=1e-9,
    )


def test_columns_and_units_are_those_that_were_said():
    frame = table().rename(columns={"params": "size in M", "loss": "c4"})
    frame["size in M"] /= 1e6
    frame["pile"] = 2 * frame["c4"]

    runs = analysis.load(
        frame, columns={"params": "size in M", "loss": "c4"}, units={"params": 1e6}
    )

    fit, plain = (fit_law(CHINCHILLA, t, n_draws=0, hold_out=False) for t in (runs.table, table()))
    assert fit.parameters == pytest.approx(plain.parameters, rel=1e-6)
    assert runs.table["pile"].tolist() == pytest.approx((2 * runs.table["loss"]).tolist())


@pytest.mark.usefixtures("no_pictures")
def test_what_is_loaded_goes_through_the_report(tmp_path):
    text = table().assign(arch=["a", "b"] * 6).to_csv(index=False)
    runs = loaded(text, tmp_path / "theirs.csv")

    fits = analysis.fit_sweep(
        runs,
        n_draws=20,
        specs=[s for s in CURVE_SPECS if (s.outcome, s.x) == ("loss", "total_params")],
    )
    page = analysis.write_report(runs, fits, tmp_path / "out").read_text(encoding="utf-8")

    assert "architecture is column &#39;arch&#39;" in page
    assert {c.series for c in fits.curves} == {"a", "b"}


def test_tokens_follow_from_flops():
    frame = table()
    compute = 6 * frame["params"] * frame["tokens"]
    without = frame.drop(columns="tokens").assign(C=compute)

    runs = analysis.load(without)

    assert sorted(runs.table["tokens"]) == pytest.approx(sorted(frame["tokens"]))
    assert "tokens = flops / (6 params): there is no column of tokens" in runs.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not readable as a table"),
        ("params,tokens,loss\n", "has no rows"),
        ("params,loss,loss\n1,2,3\n", "two columns are named loss"),
        ("n_params,num_params,loss\n1,2,3\n", "params could be n_params or num_params"),
        ("params,tokens\n1,2\n", "no outcome, got params, tokens; needed is one of"),
        ("params,tokens,ppl\n1,2,33\n", r"the loss is ln\(ppl\)"),
        ("params,tokens,val_ppl\n1,2,33\n", r"the loss is ln\(val_ppl\)"),
        ("lr,loss\n1,2\n", "no column of sizes, got lr, loss; needed are params"),
        ("params,tokens,eval/c4/bpb\n1,2,3\n", r"as columns=\{'loss': 'eval/c4/bpb'\}"),
        ("params,tokens,loss\n70,2e9,3\n1e8,2e9,2.9\n2e8,4e9,2.8\n", r"params: mixed units, row 0 \(row 0: 70\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        loaded(text, tmp_path / "bad.csv")


def test_a_mapped_column_that_is_missing_lists_those_there_are():
    with pytest.raises(ValueError, match="no 'val' for loss; there are params, tokens, loss"):
        analysis.load(table(), columns={"loss": "val"})


@pytest.mark.parametrize("factor", [1e-15, 1e-3, 1e3])
def test_flops_of_another_unit_are_refused_and_the_unit_named(factor):
    frame = table()
    frame["flops"] = 6 * frame["params"] * frame["tokens"] * factor

    with pytest.raises(ValueError, match="flops: all 12 rows") as e:
        analysis.load(frame)
    assert f"with units={{'flops': {1 / factor:g}}} it would be 6" in str(e.value)
    assert "accept={'flops'}" in str(e.value)
    assert len(analysis.load(frame, accept={"flops"}).table) == 12
    assert len(analysis.load(frame, units={"flops": 1 / factor}).table) == 12


def test_one_row_of_impossible_flops_is_named():
    frame = table()
    frame["flops"] = 6 * frame["params"] * frame["tokens"]
    frame.loc[7, "flops"] *= 1e-2

    with pytest.raises(ValueError, match=r"flops: row 7 \(row 7 has 0.06 FLOPs"):
        analysis.load(frame)


def test_total_parameters_are_not_blamed_where_active_ones_are_known():
    frame = table().assign(active_params=lambda t: t["params"] / 16)
    frame["flops"] = 6 * frame["active_params"] * frame["tokens"]

    assert len(analysis.load(frame).table) == 12
    with pytest.raises(ValueError, match="params may hold total instead of active parameters"):
        analysis.load(frame.drop(columns="active_params"))


def test_a_run_twice_with_two_results_is_no_seed():
    frame = table().assign(run=[f"r{i}" for i in range(12)])
    again = frame.iloc[[4]].assign(loss=frame["loss"][4] * 1.01)

    runs = analysis.load(pd.concat([frame, again]))

    assert runs.excluded["reason"].tolist() == [
        "duplicate: run r4 stands in row 4 already, with another result (loss); keep the right one"
    ]
    without_loss = frame.rename(columns={"loss": "factual_recall"}).assign(factual_recall=0.5)
    runs = analysis.load(pd.concat([without_loss, without_loss.iloc[[4]]]))
    assert "r4 stands in row 4 already, with the same result" in runs.excluded["reason"].item()


def test_checkpoints_of_a_run_are_no_duplicates():
    frame = table().assign(run=["a"] * 6 + ["b"] * 6)

    assert len(analysis.load(frame).table) == 12


def test_what_was_loaded_loads_again():
    once = analysis.load(table()).table

    again = analysis.load(analysis.load(once[once["loss"] > 2.5]).table).table

    assert again["loss"].tolist() == once.loc[once["loss"] > 2.5, "loss"].tolist()


@pytest.mark.parametrize(
    ("renamed", "scale"),
    [
        ({"params": "n", "tokens": "throughput/total_tokens", "loss": "eval/c4_en-validation/CrossEntropyLoss"}, {}),
        ({"params": "parameter_count", "tokens": "tokens_b", "loss": "loss_validation"}, {"tokens": 1e9}),
        ({"params": "Params (B)", "tokens": "D_B", "loss": "Final val loss"}, {"params": 1e9, "tokens": 1e9}),
        ({"params": "dense_parameter_count", "tokens": "train_tokens_m", "loss": "val_nll"}, {"tokens": 1e6}),
        ({"params": "non_embedding_params", "tokens": "tokens_seen", "loss": "metrics/val_loss"}, {}),
        ({"params": "config.n_params", "tokens": "config.tokens", "loss": "summary.val_loss"}, {}),
        ({"params": ("size", "params"), "tokens": ("size", "tokens"), "loss": ("out", "val_loss")}, {}),
    ],
)  # fmt: skip
def test_columns_as_published_sweeps_call_them(renamed, scale):
    frame = table()
    theirs = frame.assign(**{n: frame[n] / unit for n, unit in scale.items()}).rename(
        columns=renamed
    )

    got = analysis.load(theirs).table.sort_values("row")

    for name in ("params", "tokens", "loss"):
        np.testing.assert_allclose(got[name], frame[name], rtol=1e-12)


def test_total_gflops_are_flops_and_gflops_alone_are_left():
    frame = table()
    spent = 6 * frame["params"] * frame["tokens"] / 1e9

    runs = analysis.load(frame.assign(**{"throughput/total_gflops": spent, "gflops": 150.0}))

    expected = 6 * runs.table["params"] * runs.table["tokens"]
    np.testing.assert_allclose(runs.table["flops"], expected, rtol=1e-12)


def test_parameters_follow_from_budget_and_tokens_and_tokens_from_their_ratio():
    frame = table()
    budget = 6 * frame["params"] * frame["tokens"]
    without = frame.drop(columns="params").assign(compute_budget=budget)
    ratio = frame.drop(columns="tokens").assign(token_multiplier=frame["tokens"] / frame["params"])

    first, second = (analysis.load(t).table.sort_values("row") for t in (without, ratio))

    np.testing.assert_allclose(first["params"], frame["params"], rtol=1e-12)
    np.testing.assert_allclose(second["tokens"], frame["tokens"], rtol=1e-12)


def test_another_column_that_may_count_parameters_is_noted():
    frame = table().rename(columns={"params": "n_params"})
    notes = analysis.load(frame.assign(non_embedding_params=0.8 * frame["n_params"])).notes

    assert any("'non_embedding_params' too may count parameters" in note for note in notes)


def test_runs_of_one_name_with_other_settings_are_no_duplicates():
    frame = table(6).assign(name="mlp", params=1e8, tokens=2e9, lr=np.geomspace(1e-4, 1e-1, 6))

    assert len(analysis.load(frame).table) == 6
    repeated = analysis.load(frame.assign(lr=1e-3, val_bpb=frame["loss"] / 3))
    assert (
        repeated.excluded["reason"].str.startswith("duplicate: run mlp stands in row 0").sum() == 5
    )


@pytest.mark.parametrize(
    "name",
    words(
        "grad_clip grad_accum gradient_accumulation_steps max_grad_norm loss_weight z_loss "
        "aux_loss loss_type warmup_updates accelerator train.grad_clip weightDecay entropyCoef "
        "loss_scale grad_acc_steps aux_loss_alpha moe_z_loss train.z_loss time_steps"
    ),
)
def test_settings_named_like_measurements_tell_runs_of_one_name_apart(name):
    frame = table(6).assign(run=["70M"] * 3 + ["160M"] * 3, params=[7e7] * 3 + [1.6e8] * 3)
    frame = frame.assign(tokens=2e9, **{name: [0.1, 0.2, 0.3] * 2})

    assert len(analysis.load(frame).table) == 6
    assert len(analysis.load(frame.drop(index=4)).table) == 5  # a hole in the grid


def test_what_measures_like_a_setting_is_named_where_it_decides():
    """Of one model alone, nothing but the name says that a loss scale is a setting."""
    frame = table(3).assign(run="70M", params=7e7, tokens=2e9, loss_scale=[1.0, 2.0, 4.0])

    reasons = analysis.load(frame).excluded["reason"].tolist()

    assert reasons == 2 * [
        "duplicate: run 70M stands in row 0 already, with another result (loss and loss_scale); "
        "keep the right one, or rename a setting among these columns"
    ]


@pytest.mark.parametrize(
    "name",
    words(
        "gradnorm grad_norm_before_clip val_loss_no_weights loss_after_warmup penalty_loss "
        "last_update grad_norm train/loss valloss trainLoss acc1 top1_acc hellaswag_acc_norm step_time runtime "
        "train_seconds updated_at date bits_per_byte train/z_loss eval/CrossEntropyLoss gpu_hours"
    ),
)
def test_measurements_do_not(name):
    again = table(6).assign(run=[*"abc"] * 2, params=1e8, tokens=2e9)
    frame = table(6).assign(run="mlp", params=1e8, tokens=2e9, **{name: np.arange(6) / 7})

    assert len(analysis.load(frame).table) == 1
    assert len(analysis.load(again.assign(**{name: np.arange(6) / 7})).table) == 3


def test_a_flagship_beside_small_runs_is_no_mixed_unit():
    frame = table()
    frame.loc[len(frame)] = {**frame.iloc[-1], "params": 4.05e11, "tokens": 1.56e13, "loss": 1.8}
    frame["flops"] = 6 * frame["params"] * frame["tokens"]
    small = frame["flops"].iloc[:-1]
    frame.loc[frame.index[:-1], ["params", "tokens"]] *= np.sqrt(1e21 / small.max())
    frame["flops"] = 6 * frame["params"] * frame["tokens"]
    assert frame["flops"].iloc[-1] / frame["flops"].iloc[:-1].max() > 1000

    assert len(analysis.load(frame).table) == len(frame)
    frame.loc[3, "flops"] /= 1e9
    with pytest.raises(ValueError, match="flops: mixed units"):
        analysis.load(frame)


def test_a_table_without_parameters_can_be_fitted_and_not_compared():
    """One size is enough for a law of one (a learning curve over data); a comparison needs to know what is compared."""
    data = np.geomspace(1e2, 1e6, 12)
    runs = analysis.load(
        {"Training Dataset Size": data, "Test Cross-Entropy": 0.4 + 20 * data**-0.5}
    )

    fit = fit_law(POWER, runs.table, columns={"x": "tokens"}, n_draws=0, hold_out=False)
    assert fit.parameters["alpha"] == pytest.approx(0.5, rel=1e-4)
    with pytest.raises(ValueError, match="no parameters, by which configurations are compared"):
        analysis.fit_sweep(runs)


def test_checkpoints_of_one_run_are_noted():
    frame = table(8).assign(run=np.repeat(["a", "b"], 4), step=np.tile([10, 20, 30, 40], 2))

    assert any("8 rows are checkpoints of 2 runs" in note for note in analysis.load(frame).notes)
    assert not any("checkpoints" in n for n in analysis.load(frame.drop(columns="run")).notes)


def test_models_named_by_their_sizes_have_parameters():
    frame = pd.DataFrame(
        {"Model": ["70M", "160M", "1.4B"], "tokens": "300B", "loss": [3.5, 3.2, 2.6]}
    )

    runs = analysis.load(frame)

    assert sorted(runs.table["params"]) == [70e6, 160e6, 1.4e9]
    assert "params is column 'Model', whose names are sizes (rounded ones)" in runs.notes
    assert "params" not in analysis.load(frame.assign(Model=["a", "70M", "b2"])).table


def test_a_table_of_which_no_row_counts_says_so_and_so_does_its_fit():
    frame = table(1200)

    runs = analysis.load(frame.assign(loss=-frame["loss"]))

    assert runs.notes[-1].startswith("all 1,200 rows were excluded; the first, row 0: impossible")
    with pytest.raises(ValueError, match="no such column, and no row; the notes"):
        fit_law(CHINCHILLA, runs)


@pytest.mark.parametrize("unit", [1e9, "1e9", "B", "b", "billion", "Bn"])
def test_units_may_be_words(unit):
    frame = table()

    runs = analysis.load(frame.assign(tokens=frame["tokens"] / 1e9), units={"tokens": unit})

    assert sorted(runs.table["tokens"]) == pytest.approx(sorted(frame["tokens"]))


@pytest.mark.parametrize("unit", ["tokens", "", 0, -1e6, float("nan"), True])
def test_a_unit_that_is_none_names_its_column(unit):
    with pytest.raises(ValueError, match="units: tokens has no unit .*; give a number such as 1e9"):
        analysis.load(table(), units={"tokens": unit})


def test_a_table_of_accuracies_is_told_under_which_name_they_go():
    frame = table().rename(columns={"loss": "accuracy"}).assign(accuracy=np.linspace(0.3, 0.8, 12))

    with pytest.raises(ValueError, match=r"which it is, as columns=\{'factual_recall': 'accuracy'"):
        analysis.load(frame)
    with pytest.raises(ValueError, match=r"and units=\{'factual_recall': 0.01\}"):
        analysis.load(frame.assign(accuracy=100 * frame["accuracy"]))
    assert len(analysis.load(frame, columns={"factual_recall": "accuracy"}).table) == 12


def test_messages_list_the_columns_of_the_source():
    with pytest.raises(ValueError, match="no outcome, got N, D, row; needed"):
        analysis.load({"N": [7e7, 1e8], "D": [2e9, 3e9], "row": [1, 2]})


@pytest.mark.parametrize("name", ["flops_6nd", "FLOPs 6ND", "training_flops_6nd"])
def test_flops_by_6nd_are_flops_where_there_are_no_others(name):
    frame = table().assign(**{name: lambda t: 6 * t["params"] * t["tokens"]})

    assert f"flops is column {name!r}" in analysis.load(frame).notes
    both = analysis.load(frame.assign(train_flops=1.1 * frame[name]))
    assert "flops is column 'train_flops'" in both.notes


def test_decimal_commas_are_not_taken_for_thousands(tmp_path):
    text = "params;tokens;loss\n70M;1,5B;3,912\n160M;3.2B;3,4\n1,400,000,000;28B;2.6\n"

    runs = loaded(text, tmp_path / "a.csv")

    assert runs.table["params"].tolist() == [1.4e9]
    assert "tokens is no number: '1,5B' has a decimal comma" in runs.excluded["reason"][0]
    assert runs.excluded["reason"].tolist()[1] == (
        "loss is no number: '3,4' has a decimal comma; write a point, or give analysis.load the "
        "table pandas.read_csv(file, sep=';', decimal=',')"
    )


@pytest.mark.parametrize("active", ["active_params", "n_active"])
@pytest.mark.parametrize("stored", ["total_params", "params_total"])
def test_stored_parameters_are_no_size_beside_active_ones(active, stored):
    loaded = analysis.load(
        {active: [1e8, 2e8], stored: [8e8, 9e8], "tokens": [2e9, 4e9], "loss": [3.5, 3]}
    )

    assert "params" not in loaded.table
    assert loaded.table["active_params"].tolist() == [1e8, 2e8]
    assert loaded.table["total_params"].tolist() == [8e8, 9e8]
    assert loaded.table["flops"].tolist() == [1.2e18, 4.8e18]
    assert any("laws take active_params as params" in note for note in loaded.notes)


def test_a_diverged_run_is_noticed_where_sizes_are_active_ones():
    table = make_runs(CHINCHILLA, 16, noise=0.004)
    table["active_params"] = table.pop("params")
    largest = int(np.argmax(table["active_params"] * table["tokens"]))
    table["loss"][largest] *= 3

    loaded = analysis.load(table)

    assert any(f"row {largest}" in note for note in loaded.notes)


@pytest.mark.parametrize("columns", [None, {"active_params": "n_active"}])
def test_naming_the_column_that_was_guessed_changes_nothing(columns):
    table = {"total_params": [1e9, 2e9], "n_active": [1e8, 2e8], "tokens": [1e9, 2e9]}

    loaded = analysis.load({**table, "loss": [3.0, 2.8]}, columns=columns).table

    assert "params" not in loaded
    assert loaded["active_params"].tolist() == [1e8, 2e8]
    assert loaded["total_params"].tolist() == [1e9, 2e9]
