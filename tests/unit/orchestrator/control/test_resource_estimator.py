"""What the next attempt of a trial is predicted to need."""

import json

import pytest

from orchestrator.control.resource_estimator import ResourceEstimator
from orchestrator.control.trial_state import ManagedTrial
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome, TrialSpec


@pytest.mark.parametrize(("checkpoint", "left_s"), [(0, 100.0), (20, 80.0), (90, 10.0)])
def test_steps_after_the_last_checkpoint_are_left_once_more(tmp_path, checkpoint, left_s):
    """A lost machine's attempt was at step 99, and the next one begins at its checkpoint."""
    train = {"tokens": 6_400, "batch_tokens": 64, "seq_len": 16}
    model = {"architecture": "dense"}
    spec = TrialSpec(sweep="s", data={"source": "x"}, model=model, train=train, seed=0)
    folder = SweepDir(tmp_path / "s").trial(spec.trial_id)
    folder.create(spec)
    attempt = folder.new_attempt({"submission": 1, "why": "first attempt"})
    line = {"t": 1, "step": 99, "metrics": {"train/loss": 1.0}}
    attempt.journal.write_text(json.dumps(line) + "\n")
    if checkpoint:
        (folder.checkpoints / f"step-{checkpoint}").mkdir(parents=True)
    trial = ManagedTrial(folder=folder, spec=spec)

    trial.record_exit(attempt, Outcome.NODE_LOST, submission=1)

    estimator = ResourceEstimator({spec.trial_id: 100.0})
    assert (trial.best_step, trial.checkpoint_step) == (99, checkpoint)
    assert estimator.left_s(trial) == pytest.approx(left_s)
    assert estimator.left_s_now(trial) == pytest.approx(left_s)
