import dataclasses
import shutil
import sqlite3

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.loading.histories import COLUMNS, HistoryPoint, histories_table
from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import write_json


@pytest.fixture
def reporting(synthetic, tmp_path):
    trials = synthetic.make_sweep(sizes=(32, 64), seeds=(0, 1))
    return synthetic.write_reporting(tmp_path / "runs", trials)


def test_a_row_per_report_with_its_trial_and_tokens(reporting):
    runs = analysis.load(reporting)

    histories = analysis.histories(runs)

    assert tuple(histories.columns) == COLUMNS
    assert set(histories["architecture"]) == {"memory_plus"}
    assert len(histories) == 4 * 5 * 8 * 3, "trials, reports, statistics, two layers and the mean"
    assert not histories.duplicated(["trial_id", "metric", "step"]).any()
    one = histories[
        (histories["metric"] == "memory/layer_03/usage_ever") & (histories["seed"] == 1)
    ]
    one = one[one["trial_id"] == one["trial_id"].iloc[0]]
    assert one["step"].tolist() == [20, 40, 60, 80, 100]
    assert one["tokens"].tolist() == [200_000, 400_000, 600_000, 800_000, 1_000_000]
    np.testing.assert_allclose(one["value"], 0.8 * 1.1 * one["step"] / 100)
    known = runs.table.set_index("trial_id")["configuration"]
    assert (histories["configuration"] == histories["trial_id"].map(known)).all()


def test_metrics_are_chosen_by_how_their_names_begin(reporting):
    runs = analysis.load(reporting)

    assert set(analysis.histories(runs, ("memory/kl", "train/"))["metric"]) == {
        "memory/kl",
        "train/loss",
    }
    assert analysis.histories(runs, ("moe/",)).empty
    assert tuple(analysis.histories(runs, ("moe/",)).columns) == COLUMNS


def test_only_trials_of_the_table_are_read(reporting, synthetic):
    bad = synthetic.make_trial("memory_plus", 96, 0, **{"valid/loss": float("nan")})
    folder = synthetic.write_done(reporting, bad)
    # Excluded, and so unreadable a journal is none of our business.
    folder.attempts()[0].journal.write_text("no json\n")
    runs = analysis.load(reporting)
    assert bad.spec.trial_id in set(runs.excluded["trial_id"])

    histories = analysis.histories(runs)
    small = analysis.histories(
        dataclasses.replace(runs, table=runs.table[runs.table["preset"] == "32w"])
    )

    assert bad.spec.trial_id not in set(histories["trial_id"])
    assert len(small) == len(histories) / 2


def test_a_step_repeated_after_a_resume_appears_once_as_the_kept_weights_have_it(
    synthetic, tmp_path
):
    trial = synthetic.make_trial("memory_plus", 32, 0)
    folder, first = synthetic.start(tmp_path, trial)
    synthetic.journal(first, [(step, {"memory/kl": 1.0}) for step in (20, 40, 60)])
    second = folder.new_attempt({"started_at": 2.0})
    synthetic.journal(second, [(step, {"memory/kl": 2.0}) for step in (40, 60, 80)])
    write_json(folder.path / "result.json", {"metrics": trial.metrics})

    histories = analysis.histories(analysis.load(tmp_path))

    assert histories["step"].tolist() == [20, 40, 60, 80]
    assert histories["value"].tolist() == [1.0, 2.0, 2.0, 2.0]


def test_the_folder_of_one_sweep_works_too(reporting):
    pd.testing.assert_frame_equal(
        analysis.histories(analysis.load(reporting / "synthetic")),
        analysis.histories(analysis.load(reporting)),
    )


def test_a_table_of_ones_own_has_no_histories(reporting, tmp_path):
    table = analysis.load(reporting).table
    table.to_csv(tmp_path / "table.csv", index=False)

    assert analysis.histories(analysis.load(table)).empty
    assert analysis.histories(analysis.load(tmp_path / "table.csv")).empty


def test_a_source_that_is_gone_is_no_empty_history(reporting):
    runs = analysis.load(reporting)
    shutil.rmtree(reporting)

    with pytest.raises(StoreError, match="no longer there; load the runs again"):
        analysis.histories(runs)


def test_without_accounting_there_are_no_tokens():
    table = pd.DataFrame(
        {
            "sweep": ["s"],
            "trial_id": ["t"],
            "architecture": ["a"],
            "configuration": ["a-1"],
            "seed": [0],
        }
    )

    histories = histories_table([HistoryPoint("s", "t", "memory/kl", 3, 0.5)], table)

    assert histories[["step", "value"]].to_numpy().tolist() == [[3, 0.5]]
    assert histories["tokens"].isna().all()


@pytest.mark.integration
def test_a_tracker_gives_what_the_folder_gives(synthetic, tracker, tmp_path):
    uri, trials = tracker
    folder = synthetic.write_runs(tmp_path / "runs", trials)
    metrics = ("train/", "valid/", "recall/")

    from_folder = analysis.histories(analysis.load(folder), metrics)
    from_tracker = analysis.histories(analysis.load(uri), metrics)

    assert len(from_folder) == 8 * 6
    pd.testing.assert_frame_equal(from_folder, from_tracker)


@pytest.mark.integration
def test_the_client_gives_what_the_database_gives(tracker, tmp_path, monkeypatch):
    """Also for steps that a tracker has twice, and for values that are no numbers."""
    from mlflow import MlflowClient

    shutil.copy(tracker[0].removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    runs = analysis.load(uri)
    client = MlflowClient(tracking_uri=uri)
    run = client.search_runs(
        [client.get_experiment_by_name("tracked").experiment_id],
        f"tags.`memscale.trial_id` = '{runs.table['trial_id'][0]}'",
    )[0]
    values = [(20, 1.0, 10), (40, 5.0, 20), (40, 2.0, 30), (60, float("inf"), 40)]
    for step, value, t in [*values, (80, float("nan"), 50)]:
        client.log_metric(run.info.run_id, "memory/kl", value, timestamp=t, step=step)

    from_database = analysis.histories(runs)

    assert from_database["step"].tolist() == [20, 40, 60, 80]
    np.testing.assert_array_equal(from_database["value"], [1.0, 2.0, np.inf, np.nan])

    def refuse(*_, **__):
        raise sqlite3.OperationalError("no such column: run_uuid")

    # MLflow's own connections go through SQLAlchemy, which holds the function already.
    monkeypatch.setattr("analysis.loading.from_tracker.sqlite3.connect", refuse)
    pd.testing.assert_frame_equal(analysis.histories(runs), from_database)

    client.delete_run(run.info.run_id)
    with pytest.raises(StoreError, match="no finished run of .* any more; load the runs again"):
        analysis.histories(runs)
