"""Notes on finished trials whose architecture was edited since."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.planning.changed_code import notes
from orchestrator.records.snapshot import AttemptRecord, SweepSnapshot, TrialRecord
from orchestrator.records.trial_spec import TrialSpec

CODE = '"""A model."""\n\nWIDTH = 4  # wide\n\n\ndef forward(x):\n    """Mix."""\n    return x * WIDTH\n'


@pytest.fixture
def snapshot(tmp_path) -> SweepSnapshot:
    """Two finished trials of one submission and one that runs."""
    copy = tmp_path / "sweep" / "code" / "0123" / "workloads" / "architectures" / "dense.py"
    copy.parent.mkdir(parents=True)
    copy.write_text(CODE)
    trials = {}
    for seed, result in ((0, {"attempt": 2}), (1, {"attempt": 2}), (2, None)):
        model = {"architecture": "dense", "d_model": 8}
        spec = TrialSpec(sweep="s", data={}, model=model, train={"lr": 0.1}, seed=seed)
        path = tmp_path / "sweep" / "trials" / spec.trial_id
        attempts = tuple(
            AttemptRecord(path=path / f"{n:04d}", launch={"submission": n}, end={}) for n in (1, 2)
        )
        trials[spec.trial_id] = TrialRecord(
            path=path, spec_source=spec, attempts=attempts, result=result
        )
    return SweepSnapshot(
        path=tmp_path / "sweep",
        # Where the sweep lay when it was submitted; the first submission's copy is gone.
        submissions=tuple(
            {"number": n, "run": {"code": f"/elsewhere/sweep/code/{code}"}}
            for n, code in ((1, "4567"), (2, "0123"))
        ),
        trials=trials,
    )


def noted(snapshot: SweepSnapshot, code: str, tmp_path: Path) -> list[str]:
    file = tmp_path / "dense.py"
    file.write_text(code)
    specs = [trial.spec for trial in snapshot.trials.values()]
    return notes(specs, snapshot, file_of=lambda name: tmp_path / f"{name}.py")


def test_other_code_is_told_with_the_number_of_trials(snapshot, tmp_path):
    (told,) = noted(snapshot, CODE.replace("WIDTH = 4", "WIDTH = 8"), tmp_path)

    assert told.startswith("dense: workloads/architectures/dense.py changed since 2 of its trials")


@pytest.mark.parametrize(
    "code",
    [CODE, CODE.replace("# wide", ""), CODE.replace("A model", "The model").replace("Mix", "Sum")],
)
def test_comments_and_docstrings_are_no_change(snapshot, tmp_path, code):
    assert noted(snapshot, code, tmp_path) == []


def test_without_a_copy_nothing_is_said(snapshot, tmp_path):
    old = replace(snapshot, submissions=snapshot.submissions[:1])

    assert noted(old, CODE.replace("WIDTH = 4", "WIDTH = 8"), tmp_path) == []
