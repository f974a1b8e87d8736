"""State of a trial as its controller keeps it.

It holds past attempts, the running one, and why the trial waits. Nothing here matters after the
controller's end: `recovery.py` reads it back from the folders.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.control.launcher_port import Launch
from orchestrator.control.retry_policy import PastAttempt
from orchestrator.control.status import TrialStatus
from orchestrator.records import storage_errors
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.snapshot import TrialRecord
from orchestrator.records.trial_dir import TrialDir
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
    """Seconds of the controller's monotonic clock."""
    predicted_s: float
    """Seconds that it was predicted to take at its start."""
    first_step: int = 0
    """The optimizer step of the checkpoint that it went on from."""
    gpu_ids: tuple[str, ...] = ()
    stop_outcome: Outcome | None = None
    """What its ranks were asked to stop for; None: they were not."""
    killed: bool = False


@dataclass(kw_only=True)
class ManagedTrial:
    """A trial of the controller's submission."""

    folder: TrialDir
    spec: TrialSpec
    record: TrialRecord | None = None
    """Its files as read at the start, until they have made its first status."""
    past_attempts: list[PastAttempt] = field(default_factory=list)
    best_step: int = 0
    """The furthest optimizer step of any attempt."""
    checkpoint_step: int = 0
    """Where the next attempt begins: steps of its newest checkpoint, 0 without one."""
    budgets_reset_after: int = 0
    """The attempt after which somebody asked for a retry: up to it, none counts against budgets."""
    attempt: RunningAttempt | None = None
    finished: bool = False
    not_before: float = -math.inf
    """When the next attempt may start, monotonic seconds."""
    delay_reason: str = ""
    needs_disk_bytes: float = 0.0
    """Free space that it waits for, after a full disk ended an attempt."""
    attempt_reason: str = "first attempt"
    """Why there is a next attempt, for launch.json."""
    wait: str = "its controller is starting"
    """Why it waits, in one sentence."""
    waiting_status: TrialStatus | None = None
    """Its status, kept while it waits: only `wait` can change then. None: read it."""

    def record_exit(self, attempt: AttemptDir, outcome: Outcome, *, submission: int) -> None:
        """Take note of how an attempt of a submission ended, and how far it got."""
        reached = max((line.step for line in attempt.lines() if line.step is not None), default=0)
        self.past_attempts.append(
            PastAttempt(
                outcome=outcome,
                progressed=reached > self.best_step,
                submission=submission,
                counts=attempt.number > self.budgets_reset_after,
            )
        )
        self.best_step = max(self.best_step, reached)
        self.checkpoint_step = self.folder.checkpoint_step()

    def delay(self, until: float, reason: str) -> None:
        """Let the next attempt wait."""
        self.not_before, self.delay_reason = until, reason

    @property
    def met_gpu_fault(self) -> bool:
        """Whether an attempt ended by a fault of its own or of a neighbour, as clients of MPS."""
        return any(past.outcome is Outcome.GPU_FAULT for past in self.past_attempts)

    @cached_property
    def fixed_demand(self) -> Demand | None:
        """The demand of every attempt; None where it depends on the cluster or on measurements."""
        asked = self.spec.resources
        if isinstance(asked.gpus, str) or max_enlargements(asked.gpus):
            return None
        return Demand(cpus=asked.cpus * asked.ranks, gpus=float(asked.gpus), gang_size=asked.ranks)

    @cached_property
    def prediction_group(self) -> str:
        """The group whose measured run times correct its prediction."""
        return prediction_group(self.spec)

    @cached_property
    def configuration(self) -> str:
        """What its memory depends on: everything but the seed."""
        asked = self.spec.resources
        passes = asked.micro_batch_tokens, asked.activation_checkpointing
        return canonical_json((self.spec.identity() | {"seed": 0}, *passes, asked.ranks))

    @property
    def kind(self) -> str | None:
        """What its code on a GPU depends on: everything but seed and learning rate.

        None for a trial that must not share a process with others: of several ranks, with questions
        during training, or after an attempt that ended otherwise than well.
        """
        spec = self.spec
        asks = spec.evaluation is not None and spec.evaluation.rows is not None
        if spec.resources.ranks > 1 or asks or self.past_attempts:
            return None
        identity = spec.identity()
        train = {name: value for name, value in identity["train"].items() if name != "lr"}
        shared = identity | {"seed": 0, "train": train}, asdict(spec.resources)
        return hashlib.sha256(canonical_json(shared).encode()).hexdigest()


def submission_of(launch: Mapping[str, Any] | None) -> int:
    """Return the number of the submission that started an attempt, from its launch.json."""
    return int((launch or {}).get("submission", 0))


def checkpoint_bytes(trial: ManagedTrial) -> float:
    """Return about how many bytes its next checkpoint takes.

    That is as much as its largest one so far, or weights and two moments of 4 bytes each.
    """
    folder = trial.folder.checkpoints
    sizes = map(storage_errors.folder_bytes, folder.glob("step-*")) if folder.is_dir() else ()
    guess = 12.0 * trial.spec.accounting.get("total_params", 0.0)
    return storage_errors.MARGIN * max(guess, *sizes, storage_errors.LEAST_BYTES)


def next_attempt_reason(end: Mapping[str, Any], *, again: bool, by: str | None = None) -> str:
    """Return why there is another attempt after one that ended.

    Args:
        end: end.json of the last attempt.
        again: Whether a later submission starts it.
        by: Who asked for a retry, if anybody did.
    """
    verb = "submitted again" if again else f"retry ({by})" if by else "retry"
    return f"{verb} after {end['outcome']}: {end['reason']}"
