"""Mistakes on the command line: one sentence each, exit code 2, nothing written."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.cli import analyse, export
from orchestrator.cli.app import find_trial
from orchestrator.node import hardware
from orchestrator.records.errors import NotFoundError
from orchestrator.tracking.other_trackers import run_copy
from workloads.checkpoint.huggingface.families import FAMILIES

SWEEP = """
name: tiny
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 8_192, batch_tokens: 1_024, seq_len: 64, lr: 3.0e-3}
model: {architecture: dense, preset: d8}
"""


def memscale(*words):
    """Return exit code and all that a person reads, without frames and line breaks."""
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    return result.exit_code, re.sub(r"[\s│╭╮╰╯─]+", " ", result.output).strip()


@pytest.fixture
def tiny(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "quickstart", "--runs"),
        ("submit", "x", "--runs"),
        ("report", "x", "--out"),
        ("export", "x", "--to"),
        ("export", "x", "--format", "wandb", "--to"),
    ],
)
def test_a_file_where_a_folder_belongs(tmp_path, words):
    file = tmp_path / "file"
    file.touch()

    code, said = memscale(*words, file)

    assert code == 2
    assert f"Invalid value for '{words[-1]}'" in said
    assert "is a file" in said


def test_a_folder_below_a_file_is_named(tiny, tmp_path):
    code, said = memscale("plan", tiny, "--runs", tiny / "runs")

    assert code == 2
    assert said.startswith(f"{tiny / 'runs'}")
    assert "not a directory; name another place (--runs, --out, --to)" in said


@pytest.mark.parametrize("runs", ["/proc", "/proc/xx", "/proc/xx/runs"])
def test_runs_where_no_folder_can_be_made(tiny, runs):
    code, said = memscale("submit", tiny, "--runs", runs)

    assert code == 2
    place = "/proc/tiny" if runs == "/proc" else "/proc/xx"
    told = f"{place}: no such file or directory; name another place (--runs, --out, --to), or "
    assert told in said


@pytest.mark.parametrize(
    "words", [("init", "--out"), ("next", "s", "--out"), ("export", "s", "--to")]
)
def test_an_output_that_cannot_be_made_is_one_sentence(tmp_path, monkeypatch, words):
    """Errors as the system raises them, wherever in a command that happens."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "s" / "trials").mkdir(parents=True)
    place = "/proc/zz"
    if words[0] == "next":
        monkeypatch.setattr("analysis.load", lambda *args, **options: Path(place).write_text("x"))
    if words[0] == "export":
        words = (*words[:2], "--format", "wandb", "--to")
        monkeypatch.setattr(
            run_copy,
            "copy_sweep",
            lambda *args, **options: Path(place, "wandb").mkdir(parents=True),
        )

    code, said = memscale(*words, place)

    assert code == 2
    told = f"{place}: no such file or directory; name another place (--runs, --out, --to), or "
    assert said.startswith(told)


def test_a_sweep_is_no_model_to_export(tmp_path):
    (tmp_path / "s" / "trials").mkdir(parents=True)

    code, said = memscale("export", "s", "--to", tmp_path / "to", "--runs", tmp_path)

    assert code == 2
    assert said == (
        "'s' is a sweep; name one of its trials, which `memscale status s` lists, or give "
        "--format wandb or --format trackio"
    )


def test_the_help_of_export_names_what_can_be_exported():
    assert (
        "Write a trained model (dense, pythia, moe) as a folder" in memscale("export", "--help")[1]
    )
    assert {family.architecture for family in FAMILIES.values()} == {*export.EXPORTED}


def test_a_report_with_no_place_is_refused_before_the_fits(tmp_path, monkeypatch):
    (tmp_path / "runs" / "s" / "trials").mkdir(parents=True)
    monkeypatch.setattr(analyse, "_fits", lambda *args, **options: pytest.fail("it fits first"))

    code, said = memscale("report", "s", "--runs", tmp_path / "runs", "--out", "/proc/xx")

    assert code == 2
    assert said == (
        "/proc/xx: cannot be written (no such file or directory); name another place with --out"
    )


@pytest.mark.parametrize(
    ("visible", "fix"),
    [
        ((), "shows 0 GPUs; leave it out to train on the CPU"),
        (("0",), "shows 1 GPU; ask for 1 at most"),
    ],
)
def test_more_gpus_than_there_are(monkeypatch, tmp_path, visible, fix):
    monkeypatch.setattr(hardware, "visible_gpus", lambda: visible)

    code, said = memscale("submit", "quickstart", "--gpus", 3, "--runs", tmp_path / "runs")

    assert code == 2
    assert "Invalid value for --gpus: 3 asked for" in said
    assert fix in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("status", "nowhere"),
        ("status", ".."),
        ("report", "nowhere"),
        ("logs", "dense-000000000000"),
        ("cancel", "s", "dense-000000000000"),
        ("retry", "nowhere"),
        ("plan", "s.yaml"),
    ],
)
def test_names_of_nothing_end_with_the_code_of_a_mistake(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "s" / "trials").mkdir(parents=True)

    code, said = memscale(*words)

    assert code == 2, said
    assert words[-1] in said
    assert "Traceback" not in said


def test_no_trials_at_a_time():
    code, said = memscale("plan", "quickstart", "--slots", 0)

    assert code == 2
    assert "Invalid value for '--slots'" in said


@pytest.mark.parametrize("verb", [(), ("plan",), ("submit",), ("status",)])
def test_help_of_a_flag_asks_for_no_value(verb):
    code, said = memscale(*verb, "--help")

    assert code == 0
    assert "bool" not in said


def commands(command, path=()):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.mark.parametrize("verb", [*commands(get_command(cli.app))], ids=" ".join)
def test_every_command_has_help(verb):
    """Brackets in a help are markup: one that closes nothing is an error."""
    code, said = memscale(*verb, "--help")

    assert code == 0, said
    assert "Usage" in said


def test_a_dry_run_prints_the_plan_and_writes_nothing(tiny, tmp_path):
    def without_times(said):
        return re.sub(r"[\d.]+ (ms|s)\b", "", said)

    planned = memscale("plan", tiny, "--runs", tmp_path / "runs")
    dry = memscale("submit", tiny, "--dry-run", "--runs", tmp_path / "runs")

    assert planned[0] == dry[0] == 0
    assert "tiny: 1 trial " in dry[1]
    assert "To train: 1 trial, " in dry[1]
    assert without_times(dry[1]) == without_times(planned[1])
    assert not (tmp_path / "runs").exists()


def test_a_model_that_fits_no_machine(tiny, tmp_path):
    huge = tiny.with_name("huge.yaml")
    huge.write_text(SWEEP.replace("preset: d8", "preset: 1m, d_model: 8_388_608, n_heads: 64"))
    runs = ("--runs", tmp_path / "runs")

    planned, dry, submitted = (
        memscale(*words, huge, *runs) for words in (("plan",), ("submit", "--dry-run"), ("submit",))
    )

    assert planned[0] == dry[0] == submitted[0] == 2
    for _, said in (planned, dry, submitted):
        assert "huge.yaml: model: 1 trial too large: parameters, gradients and optimizer" in said
        assert "set resources.micro_batch_tokens" not in said, "that would not help"
    assert "and the largest machines have 32.0 TiB; make the model smaller" in planned[1]
    assert "smaller micro batches do not help" in submitted[1]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("list", "--runs", "typo"), "typo: no such folder; is the path of --runs right?"),
        (
            ("list", "--tracking-uri", "foo://bar"),
            "got unsupported URI 'foo://bar'; use http://HOST:PORT, sqlite:///FILE or "
            "postgresql+psycopg2://…",
        ),
        (("next", "gone", "--runs", "typo"), "sweep 'gone': there is no folder typo;"),
    ],
    ids=["no folder", "no tracker", "no sweep"],
)
def test_what_is_not_there_is_one_sentence(tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)

    code, said = memscale(*words)

    assert code == 2, said
    assert said.startswith(sentence)


def test_a_tracker_where_nothing_answers_is_one_sentence():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"

        code, said = memscale("list", "--tracking-uri", f"http://ada:secret@{address}")

    assert code == 1
    assert said == (
        f"nothing answers at http://{address}; start the server there, or correct --tracking-uri "
        "or MLFLOW_TRACKING_URI"
    )


def test_a_name_that_is_no_trial_is_answered_with_what_there_is(tmp_path):
    with pytest.raises(NotFoundError, match="nothing was submitted into"):
        find_trial(tmp_path, "asked")
    for sweep in ("asked", "other"):
        trial = tmp_path / sweep / "trials" / f"dense-{len(sweep)}"
        trial.mkdir(parents=True)
        (trial / "spec.json").touch()

    for name, sentence in {
        "asked": "'asked' is a sweep, and this takes one trial; name one of dense-5",
        "askd": f"'askd': no trial is called so, and no sweep; sweeps in {tmp_path}: asked, other",
    }.items():
        with pytest.raises(NotFoundError, match=re.escape(sentence)):
            find_trial(tmp_path, name)


def test_a_trial_of_two_sweeps_is_named_with_its_sweep(tmp_path):
    for sweep in ("a", "b"):
        trial = tmp_path / sweep / "trials" / "dense-0123456789ab"
        trial.mkdir(parents=True)
        (trial / "spec.json").touch()

    found = find_trial(tmp_path, "b/dense-01")

    assert found.path == tmp_path / "b" / "trials" / "dense-0123456789ab"
    for name in ("dense-01", "dense-0123456789ab"):
        sentence = (
            f"trial {name!r}: 2 sweeps have it; write a/dense-0123456789ab or b/dense-0123456789ab"
        )
        with pytest.raises(NotFoundError, match=f"^{re.escape(sentence)}$"):
            find_trial(tmp_path, name)
    with pytest.raises(NotFoundError, match="'c/dense-01'"):
        find_trial(tmp_path, "c/dense-01")
    (tmp_path / "a" / "trials" / "dense-01ffffffffff").mkdir()
    (tmp_path / "a" / "trials" / "dense-01ffffffffff" / "spec.json").touch()
    with pytest.raises(NotFoundError, match="3 trials begin so .*; write more of the id"):
        find_trial(tmp_path, "dense-01")


def test_a_long_list_of_sweeps_is_cut_with_a_sign(tmp_path):
    for sweep in "abcdef":
        trial = tmp_path / sweep / "trials" / "dense-01"
        trial.mkdir(parents=True)
        (trial / "spec.json").touch()

    with pytest.raises(NotFoundError, match="6 sweeps have it; write a/dense-01 .* or …$"):
        find_trial(tmp_path, "dense-01")


@pytest.mark.parametrize("verb", ["logs", "generate", "evaluate", "export"])
def test_the_help_says_how_to_name_a_trial_of_two_sweeps(verb):
    assert "SWEEP/ID where several sweeps have it" in memscale(verb, "--help")[1]


@pytest.mark.parametrize("which", ["file", "runs"])
def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_written(tmp_path, tiny, which):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    file = tiny.rename(folder / tiny.name) if which == "file" else tiny
    runs = folder / "runs" if which == "runs" else tmp_path / "runs"

    code, said = memscale("submit", file, "--runs", runs, "--launcher", "debug")

    assert code == 2
    assert "caf\\udce9" in said
    assert "this path is not UTF-8, so records cannot hold it; rename" in said
    assert not (runs / "tiny").exists()


def test_a_link_to_nothing_in_the_place_of_a_sweep_is_named(tmp_path):
    (tmp_path / "mine").symlink_to("/nonexistent")

    code, said = memscale("status", "mine", "--runs", tmp_path)

    assert code == 2
    assert "mine: a link to /nonexistent, which is not there; mount that disk" in said


@pytest.mark.parametrize(
    ("encoding", "printed", "shown"),
    [
        ("latin-1", "0.1\u2013\u20ac", b"0.1??\n"),
        ("utf-8", "caf\udce9/\u20ac", b"caf\xe9/\xe2\x82\xac\n"),
    ],
)
def test_what_a_terminal_lacks_is_a_question_mark_and_paths_stay_whole(encoding, printed, shown):
    script = (
        "import sys, typer; from orchestrator import cli; "
        f"cli.app = lambda: typer.echo({printed!a}); cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )

    assert done.stdout == shown
