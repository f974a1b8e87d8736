"""What the command says to wrong options of Slurm, before it reads a sweep."""

import re
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.cli import submit_slurm
from orchestrator.launchers.slurm.options import SlurmOptions
from orchestrator.submit.slurm_submission import QueuedJobs


def said(*words):
    """Return exit code and all that a person reads, without the frame and the line breaks."""
    result = CliRunner().invoke(cli.app, ["submit", "quickstart", *words])
    return result.exit_code, re.sub(r"[\s│╭╮╰╯─]+", " ", result.output)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "1:8"], "is for Slurm: add --backend slurm"),
        (["--slurm", "account=me"], "is for Slurm: add --backend slurm"),
        (["--backend", "pbs"], "for '--backend': 'pbs' is not one of 'slurm', 'slurm-direct'"),
        (["--launcher", "k8s"], "'--launcher': 'k8s' is not one of 'ray', 'process', 'debug'."),
        (["--backend", "slurm", "--nodes", "8:1"], "MIN must lie in 1..MAX"),
        (["--backend", "slurm", "--time", "1h"], "must be minutes or a time as Slurm writes it"),
        (["--backend", "slurm", "--slurm", "nodes=2"], "nodes is set by memscale; use --nodes"),
        (["--backend", "slurm", "--slurm", "gpus=2"], "gpus is set by memscale; use --gpus"),
        (["--backend", "slurm-direct", "--gpus", "4"], "asks for what its trial asks for"),
        (["--backend", "slurm", "--launcher", "process"], "leave one of them out"),
    ],
)
def test_wrong_options(words, message):
    code, text = said(*words)
    assert code == 2
    assert message in text


@pytest.mark.parametrize(
    ("option", "shell", "partition"),
    [
        (None, "gpu", "gpu"),
        ("low", "gpu", "low"),
        (None, "", None),
        (None, "gpu,low", None),
    ],
)
def test_the_partition_of_the_shell_is_the_one_that_is_checked(
    monkeypatch, option, shell, partition
):
    monkeypatch.setenv("SBATCH_PARTITION", shell)
    request = submit_slurm.parse_request("slurm", None, option, None, None, None, None, "ray")
    assert request.partition == partition


def test_no_slurm_here(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, text = said("--backend", "slurm")
    assert code == 1
    assert "sbatch, squeue, scancel, scontrol, sinfo, srun not found on PATH" in text
    assert "submit from a login node" in text


def test_a_model_that_no_machine_holds_is_refused_before_the_queue(monkeypatch, tmp_path):
    monkeypatch.setattr("orchestrator.launchers.slurm.commands.require", lambda: None)
    monkeypatch.setattr("orchestrator.launchers.slurm.commands.partition", lambda name: None)
    file = tmp_path / "huge.yaml"
    file.write_text(
        "name: huge\n"
        "data: {source: biographies, n_people: 100, style: compact}\n"
        "train: {tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}\n"
        "model: {architecture: dense, preset: d16, d_model: 4_000_000}\n"
    )

    result = CliRunner().invoke(
        cli.app, ["submit", str(file), "--backend", "slurm", "--runs", str(tmp_path / "runs")]
    )

    assert result.exit_code == 2, result.output
    assert "1 trial too large" in result.output
    assert not (tmp_path / "runs").exists()


def test_a_submission_says_what_its_results_are_not_of(capsys):
    plan = SimpleNamespace(code_notes=("dense changed",), left_over_notes=("not in this file",))

    submit_slurm.print_notes(plan)

    assert capsys.readouterr().out.splitlines() == [
        "note: dense changed",
        "note: not in this file",
    ]


@pytest.mark.parametrize("detach", [False, True])
def test_jobs_that_were_taken_are_followed_though_others_were_refused(
    monkeypatch, tmp_path, capsys, detach
):
    followed = []
    sent = QueuedJobs(job_ids=("7_0", "7_1"), trials=3, queued_before=0, refused="sbatch: no more")
    submission = SimpleNamespace(
        send=lambda: sent,
        follow=lambda update: (followed.append("here"), SimpleNamespace(exit_code=1))[1],
        follow_in_background=lambda: followed.append("background"),
    )
    plan = SimpleNamespace(sweep=SimpleNamespace(name="s"), trials=(1, 2, 3))
    monkeypatch.setattr("orchestrator.launchers.slurm.commands.require", lambda: None)
    monkeypatch.setattr("orchestrator.launchers.slurm.commands.partition", lambda name: None)
    monkeypatch.setattr(submit_slurm, "make_plan", lambda *words, **rest: plan)
    for name in ("check_memory", "prepare_data", "print_notes"):
        monkeypatch.setattr(submit_slurm, name, lambda *words, **rest: None)
    monkeypatch.setattr(
        "orchestrator.submit.slurm_submission.SlurmSubmission", lambda **rest: submission
    )
    monkeypatch.setattr("orchestrator.cli.render.progress.outcome_text", lambda *w, **rest: "over")

    with pytest.raises(typer.Exit) as ended:
        submit_slurm.submit_to_slurm(
            *([], tmp_path, None, SlurmOptions(backend="slurm-direct")),
            register=False,
            detach=detach,
            quiet=True,
        )

    assert ended.value.exit_code == 1
    assert followed == ["background" if detach else "here"]
    said = capsys.readouterr().out
    assert "7_[0-1]" in said
    assert "error: sbatch: no more" in said
