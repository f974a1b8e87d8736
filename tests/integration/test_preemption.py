"""A trial that makes way for a sweep of higher priority: real training in processes, with a grant that the test gives and takes."""

import pytest

from orchestrator.control.launcher_port import SharedUsage
from orchestrator.control.loop import Controller
from orchestrator.launchers.local import ProcessLauncher
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.fair_share import Amounts, Grant
from orchestrator.sweep.load import load_sweep

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]
STEPS = 1_500  # so many that the grant is taken while it trains, however fast the machine
SWEEP = """
name: low
data: {source: biographies, style: compact, n_people: 60}
train: {tokens: 384_000, batch_tokens: 256, seq_len: 32, lr: 1.0e-2}
model: {architecture: dense, preset: d12}
resources: {gpus: 0}
logging: {every_steps: 1, evaluations: 1, checkpoint_every_s: 1000}
"""


class SharedProcesses(ProcessLauncher):
    """This machine, as if sweeps of a higher priority came and went: they lack its core for a while."""

    def __init__(self, sweep):
        super().__init__(sweep, cpus=1)
        self.trial, self.n_looks = sweep.trials()[0], 0

    def exchange_usage(self, usage):
        attempts = self.trial.attempts()
        step = (self.trial.heartbeat() or {}).get("step") or 0
        ended = bool(attempts) and attempts[0].end() is not None
        self.n_looks += ended
        if (len(attempts) == 1 and step >= 20 and not ended) or 0 < self.n_looks <= 3:
            return SharedUsage(
                grant=Grant(cpus=0.0, lacking=Amounts(0.0, 1.0), why="another goes first")
            )
        return SharedUsage()


def train(sweep, spec, launcher):
    status = Controller(
        sweep,
        submission=1,
        trial_ids=[spec.trial_id],
        launcher=launcher(sweep),
        cache=sweep.path.parent.parent / "cache",
    ).run()
    assert status.complete
    return sweep.trial(spec.trial_id)


def test_a_preempted_trial_goes_on_where_it_was_with_the_same_numbers(tmp_path):
    (tmp_path / "low.yaml").write_text(SWEEP)
    (spec,) = load_sweep(tmp_path / "low.yaml").trials
    sweeps = [SweepDir(tmp_path / name / "low") for name in ("shared", "alone")]
    for sweep in sweeps:
        sweep.trial(spec.trial_id).create(spec)

    trial = train(sweeps[0], spec, SharedProcesses)
    alone = train(sweeps[1], spec, lambda sweep: ProcessLauncher(sweep, cpus=1))

    first, second = trial.attempts()
    assert (first.end()["outcome"], second.end()["outcome"]) == ("yielded", "done")
    assert "made way for a sweep of higher priority; no step is lost" in first.end()["reason"]
    steps = [
        line.step for a in (first, second) for line in a.lines() if "train/loss" in line.metrics
    ]
    assert steps == list(range(1, STEPS + 1)), "every step once"
    losses = [
        {step: value for step, (_, value) in one.metrics()["train/loss"].items()}
        for one in (trial, alone)
    ]
    assert losses[0] == losses[1]
    assert trial.result()["metrics"]["valid/loss"] == alone.result()["metrics"]["valid/loss"]
