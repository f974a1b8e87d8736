"""Who may read what a sweep writes: as the umask and the folder say, secrets nobody else."""

import os
import stat
import traceback
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.records import code_snapshot
from orchestrator.records.journal import Journal
from orchestrator.records.json_files import write_json
from orchestrator.records.lock_file import open_lock
from orchestrator.records.locks import ControllerLock, locked
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.submit import submission  # noqa: F401 -- imported before the user changes

pytestmark = pytest.mark.faults

NOBODY = 65534
SPEC = TrialSpec(
    sweep="s",
    data={"source": "x"},
    model={"architecture": "dense"},
    train={"tokens": 100, "batch_tokens": 10},
    seed=0,
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.fixture(params=[0o022, 0o027, 0o002], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def written(tmp_path):
    """Return the folder of a sweep, as its processes write it."""
    sweep = SweepDir(tmp_path / "runs" / "s")
    trial = sweep.trial(SPEC.trial_id)
    trial.create(SPEC)
    sweep.add_submission({"trial_ids": [trial.trial_id], "submitted_at": 0.0})
    lock = ControllerLock(sweep, submission=1)
    lock.acquire()
    attempt = trial.new_attempt({"submission": 1, "why": "first attempt"})
    journal = Journal(attempt.journal)
    journal.metrics(1, {"train/loss": 2.0})
    journal.close()
    attempt.log.write_text("the loss is 2\n")
    write_json(trial.path / "result.json", {"steps": 10, "metrics": {"valid/loss": 2.0}})
    write_json(attempt.path / "end.json", {"outcome": "done", "reason": "ok", "final": True})
    code_snapshot.take(sweep)
    lock.release()
    return sweep


def test_records_follow_the_umask(tmp_path, umask):
    sweep = written(tmp_path)

    for path in sweep.path.rglob("*"):
        right = (0o777 if path.is_dir() else 0o666) & ~umask
        if path.suffix == ".lock":  # who may not write must not hold it
            right = {0o022: 0o600, 0o027: 0o600, 0o002: 0o660}[umask]
        assert mode(path) == right, path


def test_a_copy_of_a_closed_checkout_is_as_open_as_its_sweep(tmp_path, umask):
    source = tmp_path / "checkout"
    for package in code_snapshot.COPIED:
        (source / package / "room").mkdir(parents=True)
        (source / package / "room" / "__init__.py").touch(0o600)
        (source / package / "room").chmod(0o500)
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    sweep.path.chmod(0o2775)

    code = code_snapshot.take(sweep, source=source)

    room = code / "orchestrator" / "room"
    assert mode(room) == 0o2777 & ~umask
    assert mode(room / "__init__.py") == 0o666 & ~umask


def test_a_lock_file_of_an_earlier_version_is_closed_to_readers(tmp_path):
    file = tmp_path / "controller.lock"
    file.touch()
    for before, after in ((0o644, 0o600), (0o664, 0o660), (0o666, 0o666), (0o640, 0o600)):
        file.chmod(before)
        os.close(open_lock(file))
        assert mode(file) == after


@needs_root
def test_who_may_only_read_cannot_hold_a_lock_and_a_member_of_the_group_can(tmp_path):
    before = os.umask(0o002)
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    os.chown(sweep.path, -1, NOBODY)
    sweep.path.chmod(0o2775)
    lock = ControllerLock(sweep, submission=1)
    lock.acquire()
    lock.release()
    os.umask(before)

    def opened_by(group):
        """Return whether a process of another user, of this group, opens the lock's file."""
        child = os.fork()
        if child == 0:
            try:
                os.chdir(sweep.path)  # as root: folders above it may be closed
                os.setgroups([])
                os.setresgid(group, group, group)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                locked(Path("controller.lock"))
                os._exit(0)
            except PermissionError:
                try:
                    os.open("controller.lock", os.O_RDONLY)
                except PermissionError:
                    os._exit(1)
            finally:
                os._exit(99)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert opened_by(NOBODY) == 0
    assert opened_by(NOBODY - 1) == 1


def test_a_secret_is_the_owners_alone(tmp_path, umask):
    write_json(tmp_path / "secret.json", {"token": "x"}, private=True)

    assert mode(tmp_path / "secret.json") == 0o600


@needs_root
def test_records_belong_to_the_group_of_a_setgid_folder(tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    os.chown(runs, -1, NOBODY)
    runs.chmod(0o2775)

    sweep = written(tmp_path)

    assert {path.stat().st_gid for path in sweep.path.rglob("*")} == {NOBODY}


def said_to_nobody(folder, *words):
    """Return exit code and output of a command that another user runs in a folder."""
    # Whatever commands import: the other user may not be able to read this Python.
    CliRunner().invoke(cli.app, ["status", "s", "--runs", str(folder / "runs")])
    CliRunner().invoke(cli.app, ["logs", "none", "--runs", str(folder / "runs")])
    out, into = os.pipe()
    folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)  # as root: folders above it may be closed
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            result = CliRunner().invoke(cli.app, [*words, "--runs", "runs"])
            text = result.output
            if result.exception is not None:
                text += "".join(traceback.format_exception(result.exception))
            os.write(into, text.encode()[:60_000])
            os._exit(result.exit_code)
        finally:
            os._exit(99)
    os.close(into)
    with os.fdopen(out) as output:
        text = output.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


@needs_root
def test_a_colleague_who_may_only_read_sees_status_and_logs(tmp_path):
    before = os.umask(0o022)
    written(tmp_path)
    os.umask(before)

    code, said = said_to_nobody(tmp_path, "status", "s")
    assert (code, "done" in said) == (0, True), said

    code, said = said_to_nobody(tmp_path, "logs", SPEC.trial_id)
    assert (code, "the loss is 2" in said) == (0, True), said


@needs_root
def test_what_a_colleague_may_not_do_is_one_sentence(tmp_path):
    before = os.umask(0o022)
    sweep = written(tmp_path)
    os.umask(before)
    trial = sweep.trial(SPEC.trial_id)
    (trial.path / "result.json").unlink()
    (trial.attempt(1).path / "end.json").unlink()

    code, said = said_to_nobody(tmp_path, "cancel", "s")

    assert code == 2
    told = " ".join(said.split())
    assert "Permission denied for user nobody; runs/s" in told
    assert "belongs to root, and you may read it but not write: use a folder of your own" in told
    assert "o+rX" not in told, "that would change nothing"
    assert "PermissionError" not in said


@needs_root
@pytest.mark.parametrize("verb", ["status", "report"])
def test_who_may_not_read_is_told_how_to_be_let_read(tmp_path, verb):
    before = os.umask(0o022)
    sweep = written(tmp_path)
    os.umask(before)
    sweep.path.chmod(0o700)

    code, said = said_to_nobody(tmp_path, verb, "s")

    told = " ".join(said.split())
    assert code == 2
    assert "runs/s belongs to root, who can let others read it: `chmod -R o+rX`" in told
    assert "write" not in told.partition("Traceback")[0]


@needs_root
def test_a_colleague_who_may_only_read_is_told_where_a_report_can_go(tmp_path):
    before = os.umask(0o022)
    written(tmp_path)
    os.umask(before)

    code, said = said_to_nobody(tmp_path, "report", "s")

    assert code == 2
    assert "runs/s/report: cannot be written (permission denied); name another place with" in said
