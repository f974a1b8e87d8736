"""Which endings are worth another attempt, when, and with what resources. Pure.

| outcome                                        | what follows                                        |
|------------------------------------------------|-----------------------------------------------------|
| done, cancelled                                | nothing                                             |
| interrupted                                    | stays waiting; the next `submit` resumes it         |
| user_error, diverged                           | nothing: the same attempt would end the same way    |
| gpu_oom                                        | a larger share of the GPU, then a whole one, both free; then the failure budget and half the micro-batch |
| host_oom, hang, communication, time_limit      | failure budget, from the last checkpoint            |
| disk_full                                      | waits until the disk has room for a checkpoint; then preemption budget |
| storage                                        | waits until the controller's storage answers; then preemption budget |
| preempted, killed, node_lost                   | preemption budget, from the last checkpoint         |

Only attempts of the same submission count, and of those only the ones since somebody last asked for a retry: whoever submits
again, or asks, gets the budgets anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.records.trial_spec import Outcome, Resources, Retries
from orchestrator.scheduling.gpu_sharing import enlarged_share, max_enlargements

FAILURES = frozenset(
    {Outcome.GPU_OOM, Outcome.HOST_OOM, Outcome.HANG, Outcome.COMMUNICATION, Outcome.TIME_LIMIT}
)
PREEMPTIONS = frozenset(
    {
        Outcome.PREEMPTED,
        Outcome.KILLED,
        Outcome.NODE_LOST,
        Outcome.DISK_FULL,
        Outcome.STORAGE,
    }
)
DETERMINISTIC = frozenset({Outcome.USER_ERROR, Outcome.DIVERGED})
STUCK_ATTEMPTS = 5
"""Attempts in a row taken away from outside without one new step, after which it is no accident any more."""
LONGEST_DELAY_S = 60.0


class Action(StrEnum):
    """What becomes of a trial after an attempt."""

    RETRY = "retry"
    STOP = "stop"
    """Final: the trial is done, failed or cancelled."""
    WAIT = "wait"
    """Neither: a later submission takes it up."""


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """One ended attempt."""

    outcome: Outcome
    progressed: bool
    """Whether it got beyond every attempt before it."""
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
    """Return what follows the last of `attempts` (all of the trial, oldest first).

    Args:
        attempts: What became of them.
        retries: The budgets.
        free_ooms: How many times running out of GPU memory counts against none of them, because the trial has a fraction of a
            GPU and gets more of it.
    """
    last = attempts[-1]
    outcome = last.outcome
    if outcome is Outcome.DONE:
        return RetryDecision(action=Action.STOP, reason="done")
    if outcome is Outcome.CANCELLED:
        return RetryDecision(action=Action.STOP, reason="cancelled")
    if outcome is Outcome.INTERRUPTED:
        return RetryDecision(
            action=Action.WAIT, reason="stopped on request; submit again to resume"
        )
    if outcome in DETERMINISTIC:
        return RetryDecision(
            action=Action.STOP, reason=f"{outcome.value} would end the same way again"
        )
    free = [i for i, past in enumerate(attempts) if past.outcome is Outcome.GPU_OOM][:free_ooms]
    if len(attempts) - 1 in free:
        return RetryDecision(action=Action.RETRY, reason="retry with more of the GPU")
    counted = [
        past
        for i, past in enumerate(attempts)
        if past.submission == last.submission and past.counts and i not in free
    ]
    stuck = _trailing_stuck(counted)
    if outcome in FAILURES:
        used, allowed, budget = (
            sum(p.outcome in FAILURES for p in counted),
            retries.failure,
            "failure",
        )
    else:
        used, allowed, budget = (
            sum(p.outcome in PREEMPTIONS for p in counted),
            retries.preemption,
            "preemption",
        )
        if stuck >= STUCK_ATTEMPTS:
            return RetryDecision(
                action=Action.STOP,
                reason=f"ended from outside {stuck} times in a row without one new step",
            )
    if used > allowed:
        return RetryDecision(
            action=Action.STOP, reason=f"the {budget} budget of {allowed} retries is used up"
        )
    return RetryDecision(
        action=Action.RETRY,
        reason=f"retry {used} of {allowed} after {outcome.value}",
        delay_s=_delay_s(stuck),
    )


def _trailing_stuck(attempts: Sequence[PastAttempt]) -> int:
    count = 0
    for past in reversed(attempts):
        if past.progressed or past.outcome not in FAILURES | PREEMPTIONS:
            return count
        count += 1
    return count


def _delay_s(stuck: int) -> float:
    """0 after the first attempt in vain, then 2, 4, 8 … s: what broke may need time to come back."""
    return 0.0 if stuck < 2 else min(LONGEST_DELAY_S, 2.0 ** (stuck - 1))


def resources_for(
    asked: Resources, outcomes: Sequence[Outcome], *, batch_tokens: int, seq_len: int
) -> Resources:
    """Return the resources of the next attempt: `asked`, widened once per earlier gpu_oom.

    A fraction of a GPU is doubled, then becomes a whole one; from then on the micro-batch is halved, down to one sequence
    per forward pass. The global batch stays what it was.

    Args:
        asked: Of the spec, `gpus` already a number.
        outcomes: Of all attempts so far.
        batch_tokens: Tokens per optimizer step over all ranks.
        seq_len: Tokens per sequence.
    """
    now = asked
    shared = max_enlargements(asked.gpus)
    for times in range(1, 1 + sum(outcome is Outcome.GPU_OOM for outcome in outcomes)):
        if times <= shared:
            assert not isinstance(asked.gpus, str), "auto is no fraction"
            now = replace(now, gpus=enlarged_share(float(asked.gpus), times=times))
            continue
        before = now.micro_batch_tokens or max(seq_len, batch_tokens // now.ranks)
        # Whole sequences, at least one.
        now = replace(now, micro_batch_tokens=max(1, before // 2 // seq_len) * seq_len)
    return now
