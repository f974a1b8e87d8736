"""A rank that is forked from the fork server imports next to nothing: that is what makes its first step come at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.long]

CODE = """
import importlib, json, sys
from pathlib import Path
from orchestrator.node import worker
from orchestrator.node.fork_server_process import TRAINING_MODULES, workload_modules
from orchestrator.records.rank_registry import RankRequest
from orchestrator.node.reporter import RankReporter
from orchestrator.records.trial_dir import TrialDir
for name in [*TRAINING_MODULES, *workload_modules()]:
    importlib.import_module(name)
there = set(sys.modules)
trial = TrialDir(Path(sys.argv[1]))
attempt = trial.new_attempt({"submission": 1})
request = RankRequest(
    trial_path=str(trial.path), attempt=attempt.number, rank=0, ranks=1, cpus=1, gpus=(), cache=sys.argv[2]
)
worker.run(request, RankReporter(request))
print(json.dumps(sorted(set(sys.modules) - there)))
"""


def test_training_imports_nothing_that_the_fork_server_has_not(tiny, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tiny.memory.path), str(tmp_path / "cache")],
        capture_output=True,
        check=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )

    new = json.loads(done.stdout.splitlines()[-1])

    # A handful of small helpers; torch._inductor with all it drags in would be 850.
    assert len(new) < 30, new
    assert tiny.memory.result() is not None
