"""How many trials at a time `memscale plan` takes for its predicted time."""

import re

import pytest
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.node import hardware

SWEEP = """
name: tiny
data: {{source: biographies, n_people: 100, style: compact}}
train: {{tokens: 8_192, batch_tokens: 1_024, seq_len: 64, lr: 3.0e-3}}
model: {{architecture: dense, preset: d8}}
resources: {resources}
seeds: [0, 1, 2, 3]
"""


@pytest.mark.parametrize(
    ("resources", "gpus", "slots"),
    [
        ("{gpus: auto}", 0, 16),
        ("{gpus: auto}", 1, 1),
        ("{gpus: auto}", 8, 8),
        ("{gpus: auto, cpus: 4}", 8, 4),
        ("{gpus: auto, ranks: 2}", 8, 4),
        ("{gpus: auto, ranks: 4}", 2, 1),
        ("{gpus: 2}", 8, 4),
        ("{gpus: 0.1}", 1, 10),
        ("{gpus: 0.6}", 2, 2),
        ("{gpus: 0}", 1, 16),
    ],
)
def test_trials_at_a_time_share_cores_and_gpus(tmp_path, monkeypatch, resources, gpus, slots):
    monkeypatch.setattr(hardware, "usable_cores", lambda: 16)
    monkeypatch.setattr(hardware, "visible_gpus", lambda: tuple(map(str, range(gpus))))
    file = tmp_path / "tiny.yaml"
    file.write_text(SWEEP.format(resources=resources), "utf-8")

    result = CliRunner().invoke(cli.app, ["plan", str(file), "--runs", str(tmp_path / "runs")])

    assert f"with {slots} at a time" in re.sub(r"\s+", " ", result.output)
