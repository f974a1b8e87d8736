import pytest

from orchestrator.records.errors import StoreError
from orchestrator.records.sweep_dir import RESERVED_NAMES, SWEEP_NAME, SweepDir, sweep_dir


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a" * 101])
def test_sweep_name_must_be_a_folder_of_its_own(tmp_path, name):
    with pytest.raises(StoreError, match="sweep name"):
        sweep_dir(tmp_path, name)


def test_submissions_are_numbered(tmp_path):
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    assert [
        sweep.add_submission({"trial_ids": []}),
        sweep.add_submission({"trial_ids": ["t"]}),
    ] == [1, 2]
    assert [s["number"] for s in sweep.submissions()] == [1, 2]


def test_a_lost_submission_has_no_later_one_overwritten(tmp_path):
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    for _ in range(3):
        sweep.add_submission({"trial_ids": []})
    (sweep.path / "submissions" / "0001.json").unlink()

    assert sweep.add_submission({"trial_ids": []}) == 4
    assert [s["number"] for s in sweep.submissions()] == [2, 3, 4]


@pytest.mark.parametrize(
    ("name", "reserved"),
    [
        *((name, True) for name in ("cache", "mlartifacts", "mlflow.db", "MLflow.db-wal")),
        *((name, False) for name in ("cached", "mlflow-baseline", "mlflow", "my_mlartifacts")),
    ],
)
def test_names_of_what_lies_beside_sweeps_are_reserved(name, reserved):
    assert SWEEP_NAME.fullmatch(name)
    assert bool(RESERVED_NAMES.fullmatch(name)) is reserved
