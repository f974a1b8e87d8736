"""What a submission writes down before anything starts."""

import json
import os
import re
from pathlib import Path

import pytest

from orchestrator.planning.pricing import Plan, make_plan
from orchestrator.planning.runtime_prior import Measurement
from orchestrator.records.errors import BusyError, ExperimentError, StoreError
from orchestrator.records.locks import ControllerLock, submitting
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.submit import submission
from orchestrator.submit.submission import Submission
from orchestrator.sweep.load import load_sweep

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
    loaded, sweep = load_sweep(folder), SweepDir(tmp_path / "runs" / "several")

    Submission(
        plan=make_plan(loaded, sweep.snapshot(), MEASURED), runs=tmp_path / "runs"
    ).write_records(sweep)

    (record,) = sweep.submissions()
    assert record["question"] == "does a width help? does a memory help?"
    assert record["files"] == [str(folder / "a.yaml"), str(folder / "b.yaml")]
    assert {t.spec().origin for t in sweep.trials()} == {
        "a.yaml: base, seed 0",
        "b.yaml: base, seed 0",
    }
    text = (sweep.path / "sweep.yaml").read_text(encoding="utf-8")
    for name in ("a.yaml", "b.yaml"):
        assert (folder / name).read_text(encoding="utf-8") in text
    again = make_plan(load_sweep(sweep.path / "sweep.yaml"), sweep.snapshot(), MEASURED)
    assert [t.spec.trial_id for t in again.trials] == [t.trial_id for t in loaded.trials]
    assert {t.status for t in again.trials} == {"waiting"}
    assert again.sweep.question == record["question"]


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan of one trial."""
    folder = tmp_path_factory.mktemp("priced")
    file = folder / "one.yaml"
    file.write_text(
        SWEEP.format(what="width", architecture="dense", keys="").replace("several", "one"),
        encoding="utf-8",
    )
    return make_plan(load_sweep(file), SweepDir(folder / "runs" / "one").snapshot(), MEASURED)


def test_what_is_recorded_is_enough_for_another_process_to_run_it(
    tmp_path: Path, priced: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = SweepDir(tmp_path / "runs" / "one")
    asked = Submission(
        plan=priced,
        runs=tmp_path / "runs",
        address="auto",
        priority=3,
        weight=2.0,
        tracking_uri="http://user:secret@host",
        argv=("memscale", "submit", "--tracking-uri", "http://user:secret@host"),
    )
    record = asked.write_records(sweep)
    number = record["number"]

    how = sweep.submission(number)["run"]

    assert (how["address"], how["priority"], how["weight"]) == ("auto", 3, 2.0)
    code = Path(how["code"])
    assert (code / "orchestrator" / "cli").is_dir()
    assert set(how["predicted_s"]) == {trial.trial_id for trial in sweep.trials()}
    assert "secret" not in json.dumps(sweep.submission(number))
    seen = {}

    def launcher(sweep: SweepDir, how: dict) -> None:
        seen.update(how)
        raise KeyboardInterrupt

    monkeypatch.setattr(submission, "_launcher", launcher)
    with pytest.raises(KeyboardInterrupt):
        submission.run_recorded(sweep, record, print, address="10.0.0.1:6379")
    assert seen["address"] == "10.0.0.1:6379"
    assert Path(seen["code"]) == code


def test_specs_are_on_the_disk_together_before_a_submission_names_them(
    tmp_path: Path, priced: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = SweepDir(tmp_path / "runs" / "one")
    synced: list[str] = []

    def sync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        synced.append(str(path.relative_to(sweep.path.absolute())).rpartition("-")[0])

    monkeypatch.setattr("os.fsync", sync)
    Submission(plan=priced, runs=tmp_path / "runs").write_records(sweep)

    assert synced.count(".specs.jsonl") == 1
    assert synced.index(".specs.jsonl") < synced.index("submissions/.0001.json")
    assert sweep.trial_folders() == set()
    assert [trial.spec() for trial in sweep.trials()] == [trial.spec for trial in priced.trials]


def test_a_sweep_that_runs_is_refused_with_a_way_to_end_it_and_go_on(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "s")
    (sweep.path / "trials").mkdir(parents=True)
    lock = ControllerLock(sweep, submission=1)
    lock.acquire()
    try:
        with pytest.raises(BusyError) as refused:
            submission.refuse_if_busy(sweep.snapshot())
    finally:
        lock.release()

    said = str(refused.value)
    assert "runs it already, and nothing of this submission was taken up; watch it with" in said
    assert (
        f"end it with Ctrl-C or `kill {os.getpid()}` there, which writes checkpoints, and" in said
    )
    assert "cancel" not in said


def test_a_submission_writes_nothing_once_another_has_begun_since_its_plan(
    tmp_path: Path, priced: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "_detach_here", lambda *arguments: pytest.fail("detached"))
    sweep = SweepDir(tmp_path / "one")
    first = ControllerLock(sweep, submission=1)
    Submission(plan=priced, runs=tmp_path).write_records(sweep)
    (sweep.path / "sweep.yaml").write_text("as the first submission left it", encoding="utf-8")
    (sweep.path / "cancel.json").write_text("{}", encoding="utf-8")
    first.acquire()
    later = Submission(plan=priced, runs=tmp_path)
    try:
        for submit in (later.detach, lambda: later.run(print)):
            with pytest.raises(BusyError, match="nothing of this submission was taken up"):
                submit()
    finally:
        first.release()

    assert [record["number"] for record in sweep.submissions()] == [1]
    assert (sweep.path / "sweep.yaml").read_text("utf-8") == "as the first submission left it"
    assert sweep.cancel_requested()


def test_no_other_submission_writes_until_the_detached_one_runs(
    tmp_path: Path, priced: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = SweepDir(tmp_path / "one")

    def start(*arguments: object) -> Path:
        with pytest.raises(BusyError, match="writing its records"), submitting(sweep, wait_s=0.0):
            pass
        return tmp_path / "log"

    monkeypatch.setattr(submission, "_detach_here", start)
    assert Submission(plan=priced, runs=tmp_path).detach() == tmp_path / "log"

    with submitting(sweep, wait_s=0.0):
        pass


def test_nothing_is_written_where_there_is_no_cluster(
    tmp_path: Path, priced: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ray:
        @staticmethod
        def ping(address: str) -> None:
            raise ExperimentError(f"--address {address}: nobody there")

    monkeypatch.setattr(submission, "_ray", lambda name: Ray)
    asked = Submission(plan=priced, runs=tmp_path / "none", address="127.0.0.1:1")

    for submit in (asked.detach, lambda: asked.run(print)):
        with pytest.raises(ExperimentError, match="nobody there"):
            submit()

    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("address", ["auto", "head:6379", "ray://10.0.0.1:10001", "[::1]:6379"])
def test_addresses_that_ray_takes(tmp_path: Path, priced: Plan, address: str) -> None:
    assert Submission(plan=priced, runs=tmp_path, address=address).address == address


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "head"}, "must be auto, HOST:PORT or ray://HOST:PORT"),
        ({"address": "http://head:8265"}, "must be auto, HOST:PORT or ray://HOST:PORT"),
        ({"address": "auto", "launcher": "process"}, "leave one of them out"),
        ({"address": "auto", "cpus": 4}, "--cpus and --gpus are of this machine"),
    ],
)
def test_options_that_contradict_an_address(
    tmp_path: Path, priced: Plan, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Submission(plan=priced, runs=tmp_path, **options)


def test_a_submission_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="submit again"):
        SweepDir(tmp_path).submission(1)


def test_a_recorded_sweep_is_submitted_again_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("One line of text. Another line of text.\n" * 50)
    (project / "one.yaml").write_text(
        SWEEP.format(what="width", architecture="dense", keys="")
        .replace(
            "source: biographies, n_people: 100, style: compact", "source: text, path: notes.txt"
        )
        .replace("several", "one"),
        encoding="utf-8",
    )
    monkeypatch.chdir(project)
    loaded, sweep = load_sweep(Path("one.yaml")), SweepDir(tmp_path / "runs" / "one")
    plan = make_plan(loaded, sweep.snapshot(), MEASURED)
    Submission(plan=plan, runs=tmp_path / "runs").write_records(sweep)
    monkeypatch.chdir(tmp_path)

    again = make_plan(load_sweep(sweep.path / "sweep.yaml"), sweep.snapshot(), MEASURED)

    assert {t.status for t in again.trials} == {"waiting"}
    assert [t.spec.trial_id for t in again.trials] == [t.trial_id for t in loaded.trials]
