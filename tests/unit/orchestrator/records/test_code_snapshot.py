"""The copy of the code that a submission runs: what it holds, and that editing files changes nothing that runs."""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator.control.loop import Controller
from orchestrator.launchers.local import ProcessLauncher
from orchestrator.records import code_snapshot, storage_errors
from orchestrator.records.code_snapshot import disagreement, installed, pinned, take, with_code
from orchestrator.records.errors import StoreError
from orchestrator.records.provenance import code_state
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, TrialSpec

ROOT = Path(orchestrator.__file__).parent.parent
JOB = """
import time
VALUE = {value}

def run(request, spec, reporter):
    while spec.seed == 0 and not (request.trial.path / "go").exists():
        (request.trial.path / "runs").touch()
        time.sleep(0.01)
    from workloads.pinned_later import LATER
    return {{"train/loss": VALUE, "later": LATER}}
"""


@pytest.fixture
def checkout(tmp_path):
    """Somebody's working copy, with a file that git does not know."""
    folder = tmp_path / "checkout"
    for package in code_snapshot.COPIED:
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    (folder / "workloads" / "pinned_job.py").write_text(JOB.format(value=1.0))
    (folder / "workloads" / "pinned_later.py").write_text("LATER = 1.0")
    return folder


def test_a_snapshot_is_named_by_what_it_holds(tmp_path, checkout):
    sweep = SweepDir(tmp_path / "runs" / "s")
    first = take(sweep, source=checkout)
    assert take(sweep, source=checkout) == first
    assert [path.name for path in (sweep.path / "code").iterdir()] == [first.name]

    (checkout / "workloads" / "pinned_job.py").write_text(JOB.format(value=2.0))
    second = take(sweep, source=checkout)

    assert second != first
    assert "VALUE = 1.0" in (first / "workloads" / "pinned_job.py").read_text()
    assert "VALUE = 2.0" in (second / "workloads" / "pinned_job.py").read_text()
    assert not list(second.rglob("__pycache__"))


def test_a_snapshot_says_where_it_is_from(tmp_path, checkout):
    def git(*words):
        subprocess.run(["git", "-C", str(checkout), *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "first")
    (checkout / "workloads" / "pinned_later.py").write_text("LATER = 3.0  # password=hunter22")

    snapshot = take(SweepDir(tmp_path / "runs" / "s"), source=checkout)

    record = json.loads((snapshot / "snapshot.json").read_text())
    assert "+LATER = 3.0" in record["git"]["diff"]
    assert "hunter22" not in record["git"]["diff"]
    assert record["packages"]["numpy"] == __import__("numpy").__version__
    assert code_state(snapshot / "orchestrator")["commit"] == record["git"]["commit"]
    assert pinned(snapshot) == installed()


def test_editing_files_while_a_sweep_runs_changes_nothing_that_runs(tmp_path, checkout):
    sweep = SweepDir(tmp_path / "runs" / "s")
    specs = [
        TrialSpec(
            sweep="s",
            data={"source": "x"},
            model={"architecture": "dense"},
            train={"tokens": 50, "batch_tokens": 10, "seq_len": 10},
            seed=seed,
            resources=Resources(gpus=0),
        )
        for seed in (0, 1)
    ]
    early, late = (sweep.trial(spec.trial_id) for spec in specs)
    for spec in specs:
        sweep.trial(spec.trial_id).create(spec)
    code = take(sweep, source=checkout)
    job = "workloads.pinned_job:run"

    def edit(status):
        """Save other files while the first trial runs and the second waits."""
        if (early.path / "runs").exists() and not (early.path / "go").exists():
            assert late.attempts() == []
            (checkout / "workloads" / "pinned_job.py").write_text(JOB.format(value=2.0))
            (checkout / "workloads" / "pinned_later.py").write_text("LATER = 2.0")
            (early.path / "go").touch()

    status = Controller(
        sweep,
        submission=1,
        trial_ids=[early.trial_id, late.trial_id],
        launcher=ProcessLauncher(sweep, cpus=1, gpus=0, job=job, code=code),
        cache=tmp_path / "cache",
        job=job,
    ).run(edit)

    assert status.complete
    for trial in (early, late):
        metrics = trial.result()["metrics"]
        assert (metrics["train/loss"], metrics["later"]) == (1.0, 1.0)
        assert trial.attempt(1).environment()["git"]["snapshot"] == code.name


def test_a_program_started_with_it_imports_from_it(tmp_path, checkout):
    code = take(SweepDir(tmp_path / "runs" / "s"), source=checkout)
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "import orchestrator, workloads; print(orchestrator.__file__)",
        ],
        env=with_code(code, {"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == code / "orchestrator" / "__init__.py"
    assert with_code(None, {"A": "b"}) == {
        "A": "b",
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
    }


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(StoreError, match="could not be copied"):
        take(SweepDir(tmp_path / "runs" / "s"), source=tmp_path / "absent")
    with pytest.raises(StoreError, match="submit again"):
        pinned(tmp_path)


def test_nodes_with_other_packages_are_told_apart():
    here = {"python": "3.12", "torch": "2.13.0", "triton": "3.7.1"}

    assert disagreement(here, here) == ""
    assert disagreement(here, {"python": "3.12", "torch": "2.13.0"}) == ""  # no GPU, no triton
    assert disagreement(here, {**here, "triton": "3.6.0"}) == "triton 3.6.0 instead of 3.7.1"
    assert (
        disagreement(here, {"python": "3.11"})
        == "python 3.11 instead of 3.12, torch missing instead of 2.13.0"
    )
    assert "+" not in "".join(installed().values())


@pytest.mark.parametrize(
    ("free", "said"),
    [
        (2**40, r"the code could not be copied there \(.*No space left on device: '/here/a.py'\)"),
        (0, "the disk of .*code is full: .* free some there"),
    ],
)
def test_a_copy_that_fails_is_one_sentence(tmp_path, monkeypatch, free, said):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "/here/a.py")

    monkeypatch.setattr(shutil, "copyfile", full)
    monkeypatch.setattr(storage_errors, "free_bytes", lambda place: free)

    with pytest.raises(StoreError, match=said):
        code_snapshot.take(SweepDir(tmp_path / "runs" / "s"))
