"""What is said where there is no trained model to take."""

import re

from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec


def trial_of(runs, **changes):
    spec = TrialSpec(
        sweep="s",
        **{
            "data": {"source": "biographies", "n_people": 5},
            "model": {
                "architecture": "dense",
                "d_model": 8,
                "n_layers": 1,
                "n_heads": 1,
                "d_ff": 8,
            },
            "train": {"tokens": 100, "batch_tokens": 10, "seq_len": 5},
            "seed": 0,
            **changes,
        },
    )
    trial = SweepDir(runs / "s").trial(spec.trial_id)
    trial.create(spec)
    return trial


def export(runs, trial, to):
    words = ["export", trial.trial_id, "--to", str(to), "--runs", str(runs)]
    result = CliRunner().invoke(cli.app, words)
    return result.exit_code, re.sub(r"\s+", " ", result.output).strip()


def test_a_trial_that_has_not_finished(tmp_path):
    trial = trial_of(tmp_path)

    code, said = export(tmp_path, trial, tmp_path / "to")

    assert code == 2
    assert said.startswith(f"trial {trial.trial_id}: is waiting, so it has no final weights; ")


def test_a_trial_whose_weights_are_gone(tmp_path):
    trial = trial_of(tmp_path)
    write_json(trial.path / "result.json", {})

    code, said = export(tmp_path, trial, tmp_path / "to")

    assert code == 2
    assert "checkpoints/final: not there" in said
    assert not (tmp_path / "to").exists()
