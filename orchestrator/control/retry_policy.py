"""Retry policy: which outcomes get another attempt, when, with what resources.

| outcome                                        | what follows                             |
|------------------------------------------------|------------------------------------------|
| done, cancelled                                | nothing                                  |
| interrupted                                    | stays waiting; the next `submit` resumes |
| user_error, diverged                           | nothing: it would end the same way again |
| gpu_oom                                        | a larger share of the GPU, then a whole  |
|                                                | one, both free; then the failure budget  |
|                                                | and half the micro-batch, at one         |
|                                                | sequence activation checkpointing        |
| host_oom, hang, communication, time_limit      | failure budget, from the last checkpoint |
| disk_full                                      | waits until the disk has room for a      |
|                                                | checkpoint; then preemption budget       |
| storage                                        | waits until the controller's storage     |
|                                                | answers; then preemption budget          |
| preempted, killed, node_lost                   | preemption budget, from the last         |
|                                                | checkpoint                               |
| gpu_fault                                      | the same, and no longer by MPS: then the |
|                                                | fault is only in the trial that makes it |

All functions are pure. Budgets count attempts of the same submission, since somebody last asked
for a retry. So submitting again renews them, and asking for a retry does too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile

from orchestrator.records.trial_spec import Outcome, Resources, Retries
from orchestrator.scheduling.gpu_sharing import enlarged_share, max_enlargements

FAILURES = frozenset(
    {Outcome.GPU_OOM, Outcome.HOST_OOM, Outcome.HANG, Outcome.COMMUNICATION, Outcome.TIME_LIMIT}
)
"""Outcomes that use the failure budget."""
PREEMPTIONS = frozenset(
    {
        Outcome.PREEMPTED,
        Outcome.KILLED,
        Outcome.NODE_LOST,
        Outcome.GPU_FAULT,
        Outcome.DISK_FULL,
        Outcome.STORAGE,
    }
)
"""Outcomes that use the preemption budget."""
DETERMINISTIC = frozenset({Outcome.USER_ERROR, Outcome.DIVERGED})
STUCK_ATTEMPTS = 5
"""Preempted attempts in a row without a new step, after which the trial is given up."""
LONGEST_DELAY_S = 60.0


class Action(StrEnum):
    """What follows an attempt."""

    RETRY = "retry"
    STOP = "stop"
    """Final: the trial is done, failed or cancelled."""
    WAIT = "wait"
    """Neither: a later submission resumes it."""


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """One ended attempt."""

    outcome: Outcome
    progressed: bool
    """Whether it got further than every attempt before it."""
    submission: int
    counts: bool = True
    """Whether it counts against the budgets: not if somebody asked for a retry after it."""


@dataclass(frozen=True, kw_only=True)
class RetryDecision:
    """What follows an attempt, and why."""

    action: Action
    reason: str
    delay_s: float = 0.0
    """How long to wait before the retry."""


def decide_retry(
    attempts: Sequence[PastAttempt], retries: Retries, *, free_ooms: int = 0
) -> RetryDecision:
    """Return what follows the last attempt.

    Args:
        attempts: All of the trial, oldest first.
        retries: The budgets.
        free_ooms: How many times running out of GPU memory counts against no budget, because the
            trial has a fraction of a GPU and gets more of it.
    """
    last = attempts[-1]
    outcome = last.outcome
    if outcome in (Outcome.DONE, Outcome.CANCELLED):
        return RetryDecision(action=Action.STOP, reason=outcome.value)
    if outcome is Outcome.INTERRUPTED:
        reason = "stopped on request; submit again to resume"
        return RetryDecision(action=Action.WAIT, reason=reason)
    if outcome is Outcome.YIELDED:
        return RetryDecision(action=Action.RETRY, reason="goes on when there is room again")
    if outcome in DETERMINISTIC:
        reason = f"{outcome.value} would end the same way again"
        return RetryDecision(action=Action.STOP, reason=reason)
    ooms = [i for i, past in enumerate(attempts) if past.outcome is Outcome.GPU_OOM]
    free = ooms[:free_ooms]
    if len(attempts) - 1 in free:
        return RetryDecision(action=Action.RETRY, reason="retry with more of the GPU")
    counted = [
        past
        for i, past in enumerate(attempts)
        if past.submission == last.submission and past.counts and i not in free
    ]
    n_stuck = _n_without_progress(counted)
    if outcome in FAILURES:
        budget, kind, allowed = "failure", FAILURES, retries.failure
    else:
        budget, kind, allowed = "preemption", PREEMPTIONS, retries.preemption
        if n_stuck >= STUCK_ATTEMPTS:
            reason = f"ended from outside {n_stuck} times in a row without one new step"
            return RetryDecision(action=Action.STOP, reason=reason)
    used = sum(past.outcome in kind for past in counted)
    if used > allowed:
        reason = f"the {budget} budget of {allowed} retries is used up"
        return RetryDecision(action=Action.STOP, reason=reason)
    return RetryDecision(
        action=Action.RETRY,
        reason=f"retry {used} of {allowed} after {outcome.value}",
        delay_s=_delay_s(n_stuck),
    )


def _n_without_progress(attempts: Sequence[PastAttempt]) -> int:
    """Return how many attempts failed in a row, up to the last, without a new step."""
    return sum(
        1
        for _ in takewhile(
            lambda past: not past.progressed and past.outcome in FAILURES | PREEMPTIONS,
            reversed(attempts),
        )
    )


def _delay_s(n_stuck: int) -> float:
    """Return 0 after the first attempt in vain, then 2, 4, 8 … s: a broken node may come back."""
    return 0.0 if n_stuck < 2 else min(LONGEST_DELAY_S, 2.0 ** (n_stuck - 1))


def resources_for(asked: Resources, outcomes: Sequence[Outcome], *, seq_len: int) -> Resources:
    """Return the resources of the next attempt: `asked`, widened once per earlier gpu_oom.

    A fraction of a GPU is doubled, then becomes a whole one. From then on the micro-batch is
    halved, down to one sequence per forward pass; one that ranks choose by themselves, they halve
    by themselves (`memory_halvings`). The global batch stays the same.

    Args:
        asked: Of the spec, `gpus` already a number.
        outcomes: Of all attempts so far.
        seq_len: Tokens per sequence.
    """
    n_ooms = sum(outcome is Outcome.GPU_OOM for outcome in outcomes)
    n_enlarged = min(n_ooms, max_enlargements(asked.gpus))
    resources = asked
    if n_enlarged:
        assert not isinstance(asked.gpus, str), "auto is no fraction"
        resources = replace(asked, gpus=enlarged_share(asked.gpus, times=n_enlarged))
    for _ in range(n_ooms - n_enlarged):
        if resources.micro_batch_tokens is not None:
            # Whole sequences, at least one.
            halved = max(1, resources.micro_batch_tokens // 2 // seq_len) * seq_len
            resources = replace(resources, micro_batch_tokens=halved)
    return resources


def memory_halvings(asked: Resources, n_ooms: int) -> int:
    """Return how often ranks halve the micro-batch that they choose, after so many gpu_oom.

    One that is asked for they leave alone: `resources_for` halves it.
    """
    return max(0, n_ooms - max_enlargements(asked.gpus))
