"""What a controller remembers of a trial that it runs: what its attempts came to, what runs of it, why it waits.

Nothing here matters after the controller's end: it is read back from the trial's folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.control.launcher_port import Launch
from orchestrator.control.retry_policy import PastAttempt
from orchestrator.control.status import TrialStatus
from orchestrator.records import storage_errors
from orchestrator.records.trial_dir import AttemptDir, TrialDir
from orchestrator.records.trial_spec import Outcome, TrialSpec, canonical_json
from orchestrator.scheduling.demand import Demand
from orchestrator.scheduling.gpu_sharing import max_enlargements
from orchestrator.scheduling.runtime_prediction import prediction_group


@dataclass(kw_only=True)
class RunningAttempt:
    """An attempt whose ranks run."""

    folder: AttemptDir
    launch: Launch
    started_at: float
    predicted_s: float
    gpu_ids: tuple[str, ...] = ()
    asked: Outcome | None = None
    """What the ranks were asked to stop for."""
    hard: bool = False


@dataclass(kw_only=True)
class ManagedTrial:
    """A trial that this submission asked for."""

    folder: TrialDir
    spec: TrialSpec
    past: list[PastAttempt] = field(default_factory=list)
    best_step: int = 0
    """How far its attempts got."""
    renewed_after: int = 0
    """Number of the attempt after which somebody asked for a retry: up to it, none counts against the budgets."""
    attempt: RunningAttempt | None = None
    finished: bool = False
    not_before: float = 0.0
    delay_reason: str = ""
    needs_bytes: float = 0.0
    """Free space that it waits for, after a full disk ended an attempt."""
    why_next: str = "first attempt"
    wait: str = "its controller is starting"
    resting: TrialStatus | None = None
    """Its status while it waits, which only its wait can change; None: not looked at since its last attempt."""

    def remember(self, attempt: AttemptDir, outcome: Outcome) -> None:
        """Take in how an attempt ended, and how far it got."""
        reached = max((line.step for line in attempt.lines() if line.step is not None), default=0)
        self.past.append(
            PastAttempt(
                outcome=outcome,
                progressed=reached > self.best_step,
                submission=submission_of(attempt),
                counts=attempt.number > self.renewed_after,
            )
        )
        self.best_step = max(self.best_step, reached)

    @cached_property
    def fixed_demand(self) -> Demand | None:
        """What every attempt of it needs; None where that depends on the cluster or on what was measured."""
        asked = self.spec.resources
        if isinstance(asked.gpus, str) or max_enlargements(asked.gpus):
            return None
        return Demand(cpus=asked.cpus * asked.ranks, gpus=float(asked.gpus), gang_size=asked.ranks)

    @cached_property
    def prediction_group(self) -> str:
        """Whose measured times correct its prediction."""
        return prediction_group(self.spec)

    @cached_property
    def configuration(self) -> str:
        """What its memory depends on: everything but the seed."""
        asked = self.spec.resources
        parts = (self.spec.identity() | {"seed": 0}, asked.micro_batch_tokens, asked.ranks)
        return canonical_json(parts)


def submission_of(attempt: AttemptDir) -> int:
    """Return the number of the submission that started an attempt."""
    return int((attempt.launch() or {}).get("submission", 0))


def checkpoint_bytes(trial: ManagedTrial) -> float:
    """Return about what its next checkpoint takes: as much as its last one, or weights and two moments of 4 bytes each."""
    folder = trial.folder.checkpoints
    there = (
        [storage_errors.folder_bytes(path) for path in folder.glob("step-*")]
        if folder.is_dir()
        else []
    )
    guess = 12.0 * trial.spec.accounting.get("total_params", 0.0)
    return storage_errors.MARGIN * max(guess, *there, storage_errors.LEAST_BYTES)


def why_next(end: Mapping[str, Any], *, again: bool, by: str | None = None) -> str:
    """Return why there is another attempt after one that ended so; `by`: who asked for it."""
    verb = "submitted again" if again else f"retry ({by})" if by else "retry"
    return f"{verb} after {end['outcome']}: {end['reason']}"
