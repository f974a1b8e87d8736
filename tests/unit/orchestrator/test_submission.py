"""What a submission writes down before anything starts."""

from pathlib import Path

from orchestrator.plan import make_plan
from orchestrator.submission import Submission
from orchestrator.sweep import load_sweep
from orchestrator.throughput import Measurement
from orchestrator.trial_dir import SweepDir

SWEEP = """# Question: does a {what} help?
name: several
data: {{source: biographies, n_people: 100, style: compact}}
train: {{tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}}
model: {{architecture: {architecture}, preset: d16{keys}}}
"""
MEASURED = [Measurement(architecture="dense", device="cpu", flops_per_token=1e5, s_per_token=1e-5)]


def test_several_files_are_recorded_as_one_text_that_asks_for_the_same_trials(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "questions"
    folder.mkdir()
    for name, fields in {
        "a.yaml": {"what": "width", "architecture": "dense", "keys": ""},
        "b.yaml": {"what": "memory", "architecture": "memory_plus", "keys": ", n_keys: 16"},
    }.items():
        (folder / name).write_text(SWEEP.format(**fields), encoding="utf-8")
    sweep, disk = load_sweep(folder), SweepDir(tmp_path / "runs" / "several")

    Submission(plan=make_plan(sweep, disk, MEASURED), runs=tmp_path / "runs")._record(disk)

    (record,) = disk.submissions()
    assert record["question"] == "does a width help? does a memory help?"
    assert record["files"] == [str(folder / "a.yaml"), str(folder / "b.yaml")]
    assert {t.spec().origin for t in disk.trials()} == {
        "a.yaml: base, seed 0",
        "b.yaml: base, seed 0",
    }
    text = (disk.path / "sweep.yaml").read_text(encoding="utf-8")
    for name in ("a.yaml", "b.yaml"):
        assert (folder / name).read_text(encoding="utf-8") in text
    again = make_plan(load_sweep(disk.path / "sweep.yaml"), disk, MEASURED)
    assert [t.spec.trial_id for t in again.trials] == [t.trial_id for t in sweep.trials]
    assert {t.status for t in again.trials} == {"resume"}
    assert again.sweep.question == record["question"]
