"""A sweep on disk as the controller and the trainer leave it, written step by step."""

import json
import time
from pathlib import Path

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.json_files import write_json
from orchestrator.records.processes import ProcessId
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialSpec

T0 = 1_700_000_000_000
"""Milliseconds since 1970 of step 0."""


def make_spec(seed=0, architecture="dense", *, sweep="demo", **changes):
    accounting = {"total_params": 1_234_567, "training_flops": 1.5e12}
    fields = {
        "sweep": sweep,
        "data": {"source": "biographies", "n_people": 100},
        "model": {"architecture": architecture, "d_model": 64, "layers": [1, 2]},
        "train": {"tokens": 1000, "batch_tokens": 10, "lr": 3e-3},
        "seed": seed,
        "preset": "1m",
        "origin": f"seeds[{seed}]",
        "accounting": accounting,
        **changes,
    }
    return TrialSpec(**fields)


class DiskSweep:
    """Writes what the controller and rank 0 would."""

    def __init__(self, runs: Path, name: str = "demo") -> None:
        self.disk = SweepDir(runs / name)
        self.disk.path.mkdir(parents=True)

    def submit(self, specs, *, at_s=T0 / 1000 - 10) -> int:
        self.disk.add_trials(specs)
        return self.disk.add_submission(
            {
                "submitted_at": at_s,
                "user": "ada",
                "argv": ["memscale", "submit"],
                "question": "Does it grow?",
                "trial_ids": [spec.trial_id for spec in specs],
                "new": {spec.trial_id: "new: not there yet" for spec in specs},
            }
        )

    def control(self, submission=1) -> None:
        """Pretend that this very process is the controller."""
        record = {**ProcessId.own().to_json(), "submission": submission, "updated_at": time.time()}
        write_json(self.disk.path / "controller.json", record)

    def uncontrol(self) -> None:
        record = self.disk.controller() or {}
        write_json(self.disk.path / "controller.json", {**record, "ended_at": time.time()})

    def start(self, spec, *, submission=1, at_s=T0 / 1000) -> AttemptDir:
        self.disk.trial(spec.trial_id).start(spec)
        attempt = self.disk.trial(spec.trial_id).new_attempt(
            {"started_at": at_s, "submission": submission, "why": "first attempt"}
        )
        write_json(attempt.path / "environment.json", {"git": {"commit": "c0ffee"}})
        attempt.log.write_text(f"log of attempt {attempt.number}\n")
        return attempt

    def measure(self, attempt: AttemptDir, steps, *, late_ms=0, names=("train/loss", "train/lr")):
        with attempt.journal.open("a", encoding="utf-8") as file:
            for step in steps:
                metrics = {name: value(name, step) for name in names}
                record = {"t": T0 + 10 * step + late_ms, "step": step, "metrics": metrics}
                file.write(json.dumps(record) + "\n")

    def end(self, attempt: AttemptDir, outcome="done", *, final=True, at_s=T0 / 1000 + 100) -> None:
        record = {"outcome": outcome, "reason": f"it was {outcome}", "exit_codes": {"0": 0}}
        write_json(attempt.path / "end.json", {**record, "ended_at": at_s, "final": final})

    def finish(self, attempt: AttemptDir, *, step, metrics=None, at_s=T0 / 1000 + 99) -> None:
        trial = TrialDir(attempt.path.parent.parent)
        named = metrics or {name: value(name, step) for name in ("train/loss", "train/lr")}
        record = {"trial_id": trial.trial_id, "attempt": attempt.number, "finished_at": at_s}
        write_json(trial.path / "result.json", {**record, "steps": step, "metrics": named})
        self.end(attempt, at_s=at_s + 0.5)


def value(name, step):
    return len(name) / (1.0 + step)


def expected_points(trial: TrialDir):
    """Points that a tracker must hold: (key, step) -> (t, value); the first attempt's stay."""
    merged = {}
    for attempt in trial.attempts():
        for line in attempt.lines():
            for key, number in line.metrics.items():
                merged.setdefault((key, line.step), (line.t, number))
    return merged


def stored_points(client, run_id):
    """What the tracker holds: one tuple per point, doubled ones twice."""
    run = client.get_run(run_id)
    return [
        (key, point.step, point.timestamp, point.value)
        for key in run.data.metrics
        for point in client.get_metric_history(run_id, key)
    ]
