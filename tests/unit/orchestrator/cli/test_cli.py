"""What the command says, to mistakes and to requests, before anything runs."""

import dataclasses
import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator import cli, diagnostics
from orchestrator.cli.app import runs_option
from orchestrator.diagnostics import Check, Severity
from orchestrator.records.json_files import write_json
from orchestrator.records.locks import ControllerLock
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec, TrialState


def memscale(*words):
    """Return exit code and all that a person reads, without frames and line breaks."""
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    return result.exit_code, re.sub(r"[\s│╭╮╰╯─]+", " ", result.output).strip()


@pytest.fixture
def submitted(tmp_path):
    """A submitted sweep: a trial that failed, one that waits."""
    sweep = SweepDir(tmp_path / "runs" / "s")
    for seed in (0, 1):
        spec = TrialSpec(
            sweep="s",
            data={"source": "x"},
            model={"architecture": "dense"},
            train={"tokens": 100, "batch_tokens": 10},
            seed=seed,
        )
        sweep.trial(spec.trial_id).create(spec)
    failed, waiting = sweep.trials()
    attempt = failed.new_attempt({"submission": 1})
    write_json(attempt.path / "end.json", {"outcome": "user_error", "reason": "", "final": True})
    sweep.add_submission({"trial_ids": [failed.trial_id, waiting.trial_id], "submitted_at": 0.0})
    return sweep, failed, waiting


def test_version_is_that_of_the_distribution():
    assert memscale("--version") == (0, f"memscale {version('memscale')}")


@pytest.mark.parametrize("option", [("--priority", "0"), ("--weight", "2")])
@pytest.mark.parametrize("more", [(), ("--backend", "slurm"), ("--launcher", "process")])
def test_a_share_of_no_cluster_is_refused(option, more):
    code, said = memscale("submit", "no-such-sweep.yaml", *option, *more)

    assert code == 2
    assert f"Invalid value for {option[0]}" in said
    assert "is among the sweeps of one Ray cluster: add --address, or leave it out" in said


def test_a_folder_that_is_not_there_is_told_from_one_without_the_sweep(tmp_path):
    (tmp_path / "empty").mkdir()

    missing = memscale("status", "s", "--runs", tmp_path / "missing")
    empty = memscale("status", "s", "--runs", tmp_path / "empty")

    assert missing[0] == empty[0] != 0
    assert "there is no folder" in missing[1]
    assert "say where the sweeps are with --runs or MEMSCALE_RUNS" in missing[1]
    assert "nothing was submitted into" in empty[1]


def test_one_trial_is_one_trial(submitted):
    sweep, _, waiting = submitted
    runs = ("--runs", sweep.path.parent)

    assert memscale("cancel", "s", *runs) == (0, "Asked 1 unfinished trial of s to stop.")

    assert waiting.state() is TrialState.CANCELLED
    assert memscale("cancel", "s", *runs) == (0, "Nothing of s is unfinished.")


def test_a_trial_that_has_ended_is_not_stopped_and_said_to_have(submitted):
    sweep, failed, waiting = submitted

    code, said = memscale("cancel", "s", failed.trial_id, "--runs", sweep.path.parent)

    assert (code, said) == (0, f"Nothing to stop: {failed.trial_id} (failed).")
    assert waiting.state() is TrialState.WAITING


@pytest.mark.parametrize("verb", ["cancel", "retry", "status"])
def test_a_trial_in_the_place_of_its_sweep_is_told_whose_it_is(submitted, verb):
    sweep, _, waiting = submitted
    asked = waiting.trial_id[:-2]

    code, said = memscale(verb, asked, "--runs", sweep.path.parent)

    assert code != 0
    assert "trials of s begin so: write the name of the sweep, and with cancel and retry" in said
    assert said.endswith(f"as in `s {asked}`")
    assert waiting.state() is TrialState.WAITING


def test_retry_without_a_controller_is_noted(submitted):
    sweep, failed, _ = submitted

    code, said = memscale("retry", "s", "--runs", sweep.path.parent)

    assert code == 0
    assert said == (
        "s: 1 trial noted; no controller is at work on that, so submit the sweep again "
        "(not the others: 1 waiting)."
    )
    assert failed.state() is TrialState.WAITING


def test_retry_beside_a_controller_and_what_ignores_it(submitted):
    sweep, failed, waiting = submitted
    waiting.request_cancel("test")
    lock = ControllerLock(sweep, submission=1)
    lock.acquire()
    runs = ("--runs", sweep.path.parent)
    try:
        said = [
            memscale("retry", "s", *trials, *runs)[1]
            for trials in ([failed.trial_id], [failed.trial_id], [], [])
        ]
    finally:
        lock.release()

    assert said == [
        "s: 1 trial back in the queue.",
        "s: nothing to retry: 1 waiting.",
        "s: 1 trial back in the queue (not the others: 1 waiting).",
        "s: nothing to retry: 2 waiting.",
    ]
    assert not waiting.cancel_requested()


def test_examples_of_retry_are_calls_that_it_takes(submitted):
    sweep, failed, _ = submitted
    command = next(c for c in cli.app.registered_commands if c.callback.__name__ == "retry")

    for example in command.epilog.removeprefix("Examples: ").split("  ·  "):
        _, verb, name, *trials = example.split()
        assert (verb, name) == ("retry", "quickstart")
        words = ["s", *(failed.trial_id for _ in trials)]
        assert memscale(verb, *words, "--runs", sweep.path.parent)[0] == 0


def test_the_shell_completes_names_of_sweeps(submitted, monkeypatch):
    sweep, _, _ = submitted
    monkeypatch.setenv("MEMSCALE_RUNS", str(sweep.path.parent))
    environment = {
        "_MEMSCALE_COMPLETE": "complete_bash",
        "COMP_WORDS": "memscale status ",
        "COMP_CWORD": "2",
    }

    result = CliRunner().invoke(cli.app, env=environment, prog_name="memscale")

    assert result.output.split() == ["s"]


def test_a_log_reaches_a_terminal_without_escapes_and_raw_as_it_is(submitted):
    sweep, failed, _ = submitted
    log = b"loss \x1b[31m3.5\xff\n"
    failed.attempts()[0].log.write_bytes(log)
    words = ["logs", failed.trial_id, "--runs", str(sweep.path.parent)]

    shown, raw = (CliRunner().invoke(cli.app, [*words, *more]) for more in ((), ("--raw",)))

    assert b"\nloss \\x1b[31m3.5" in shown.stdout_bytes
    assert b"\x1b" not in shown.stdout_bytes
    assert log in raw.stdout_bytes


@pytest.fixture
def crowded(submitted):
    """The sweep with 30 more trials that wait, and none that runs."""
    sweep, failed, waiting = submitted
    trial_ids = [failed.trial_id, waiting.trial_id]
    for seed in range(2, 32):
        spec = dataclasses.replace(waiting.spec(), seed=seed)
        sweep.trial(spec.trial_id).create(spec)
        trial_ids.append(spec.trial_id)
    sweep.add_submission({"trial_ids": trial_ids, "submitted_at": 0.0})
    return sweep


def test_long_tables_are_cut_and_shared_reasons_counted(crowded):
    runs = ("--runs", crowded.path.parent)
    code, short = memscale("status", "s", *runs)
    _, whole = memscale("status", "s", "--all", *runs)

    assert code == 0
    assert short.count("dense-") == 24
    assert "… and 8 more (memscale status s --all)" in short
    assert whole.count("dense-") == 32
    assert short.count("no controller runs this sweep") == 1
    assert "31 waiting: no controller runs this sweep" in short


def test_status_as_json_has_every_trial_that_the_filter_leaves(crowded):
    words = ["status", "s", "--json", "--runs", str(crowded.path.parent)]

    every, failed = (
        json.loads(CliRunner().invoke(cli.app, [*words, *more]).output)
        for more in ((), ("--where", "state=failed,seed=0,seed=1"))
    )

    assert len(every["trials"]) == 32
    assert every["totals"] == {"failed": 1, "waiting": 31}
    assert [trial["state"] for trial in failed["trials"]] == ["failed"]
    assert memscale(*words, "--where", "sate=failed")[0] == 2


def test_list_names_the_sweeps_of_a_folder(submitted, tmp_path):
    sweep, _, _ = submitted
    words = ["list", "--runs", str(sweep.path.parent)]

    code, table = memscale(*words)
    (row,) = json.loads(CliRunner().invoke(cli.app, [*words, "--json"]).output)

    assert code == 0
    assert table.startswith("sweep trials waiting failed submitted state s 2 1 1 ")
    assert (row["name"], row["trials"], row["counts"]) == ("s", 2, {"failed": 1, "waiting": 1})
    (tmp_path / "empty").mkdir()
    nothing = memscale("list", "--runs", tmp_path / "empty")
    assert nothing == (0, f"Nothing was submitted into {tmp_path}/empty yet.")
    missing = memscale("list", "--runs", tmp_path / "none")
    assert missing == (2, f"{tmp_path}/none: no such folder; is the path of --runs right?")


def test_the_doctor_answers_as_json(monkeypatch, tmp_path):
    checks = [Check(name="disk", severity=Severity.FAIL, found="full", fix="free some")]
    monkeypatch.setattr(diagnostics, "run_checks", lambda runs, port: checks)

    result = CliRunner().invoke(cli.app, ["doctor", "--json", "--runs", str(tmp_path)])

    assert result.exit_code == 1
    (check,) = json.loads(result.output)
    assert check["name"] == "disk"
    assert check["fix"] == "free some"


@pytest.mark.parametrize(
    ("runs", "option"),
    [("runs", ""), ("my runs", " --runs 'my runs'"), ("/r/x", " --runs /r/x")],
)
def test_printed_commands_can_be_typed(runs, option):
    assert runs_option(Path(runs)) == option
