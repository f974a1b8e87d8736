from dataclasses import replace

import pytest

from orchestrator.control.retry_policy import (
    STUCK_ATTEMPTS,
    Action,
    PastAttempt,
    decide_retry,
    memory_halvings,
    resources_for,
)
from orchestrator.records.trial_spec import Outcome, Resources, Retries
from orchestrator.scheduling.gpu_sharing import max_enlargements


def past(*outcomes, submission=1, progressed=True):
    return [PastAttempt(outcome=o, progressed=progressed, submission=submission) for o in outcomes]


@pytest.mark.parametrize("outcome", [Outcome.USER_ERROR, Outcome.DIVERGED])
def test_what_would_end_the_same_way_is_never_retried(outcome):
    decision = decide_retry(past(outcome), Retries(failure=9, preemption=9))

    assert decision.action is Action.STOP
    assert decision.reason == f"{outcome.value} would end the same way again"


@pytest.mark.parametrize(
    "outcome",
    [Outcome.GPU_OOM, Outcome.HOST_OOM, Outcome.HANG, Outcome.COMMUNICATION, Outcome.TIME_LIMIT],
)
def test_failures_use_up_the_failure_budget(outcome):
    retries = Retries(failure=1, preemption=0)

    first, second = (
        decide_retry(past(outcome), retries),
        decide_retry(past(outcome, outcome), retries),
    )

    assert (first.action, first.reason) == (Action.RETRY, f"retry 1 of 1 after {outcome.value}")
    assert (second.action, second.reason) == (
        Action.STOP,
        "the failure budget of 1 retries is used up",
    )


@pytest.mark.parametrize(
    "outcome",
    [Outcome.PREEMPTED, Outcome.KILLED, Outcome.NODE_LOST, Outcome.DISK_FULL, Outcome.STORAGE],
)
def test_what_comes_from_outside_uses_up_the_preemption_budget(outcome):
    retries = Retries(failure=0, preemption=2)

    assert decide_retry(past(*[outcome] * 2), retries).action is Action.RETRY
    assert decide_retry(past(*[outcome] * 3), retries).action is Action.STOP


def test_the_two_budgets_are_apart():
    retries = Retries(failure=1, preemption=1)

    assert decide_retry(past(Outcome.KILLED, Outcome.GPU_OOM), retries).action is Action.RETRY


def test_attempts_of_earlier_submissions_do_not_count():
    retries = Retries(failure=1, preemption=0)
    earlier = past(Outcome.GPU_OOM, Outcome.GPU_OOM, submission=1)

    assert (
        decide_retry([*earlier, *past(Outcome.GPU_OOM, submission=2)], retries).action
        is Action.RETRY
    )


def test_interrupted_waits_for_the_next_submission_and_costs_nothing():
    assert (
        decide_retry(past(Outcome.INTERRUPTED), Retries(failure=0, preemption=0)).action
        is Action.WAIT
    )
    assert (
        decide_retry(past(*[Outcome.INTERRUPTED] * 9, Outcome.KILLED), Retries(preemption=1)).action
        is Action.RETRY
    )


def test_cancelled_and_done_are_final():
    assert decide_retry(past(Outcome.CANCELLED), Retries()).action is Action.STOP
    assert decide_retry(past(Outcome.DONE), Retries()).action is Action.STOP


def test_killed_again_and_again_without_one_new_step_is_no_accident():
    in_vain = past(*[Outcome.KILLED] * STUCK_ATTEMPTS, progressed=False)

    assert decide_retry(in_vain[:-1], Retries()).action is Action.RETRY
    stopped = decide_retry(in_vain, Retries())
    assert stopped.action is Action.STOP
    assert "5 times in a row" in stopped.reason


def test_progress_in_between_starts_the_count_anew():
    in_vain = past(*[Outcome.KILLED] * (STUCK_ATTEMPTS - 1), progressed=False)

    assert (
        decide_retry([*in_vain, *past(Outcome.KILLED), *in_vain], Retries()).action is Action.RETRY
    )


def test_first_retry_comes_at_once_and_later_ones_in_vain_ever_later():
    delays = [
        decide_retry(past(*[Outcome.KILLED] * n, progressed=False), Retries()).delay_s
        for n in range(1, STUCK_ATTEMPTS)
    ]

    assert delays == [0.0, 2.0, 4.0, 8.0]


def widened(*outcomes, **asked):
    return resources_for(Resources(**asked), outcomes, seq_len=128)


def test_gpu_oom_first_doubles_the_share_then_takes_a_whole_gpu_then_halves_the_micro_batch():
    oom = Outcome.GPU_OOM

    assert widened(oom, gpus=0.25) == Resources(gpus=0.5)
    assert widened(oom, oom, gpus=0.25) == Resources(gpus=1.0)
    assert widened(oom, oom, oom, gpus=0.25) == Resources(gpus=1.0)
    assert widened(oom, gpus=0.5) == Resources(gpus=1.0)
    assert widened(oom, oom, gpus=1.0, micro_batch_tokens=1024).micro_batch_tokens == 256


def test_getting_more_of_the_gpu_costs_no_retry_and_what_follows_does():
    oom, hang = Outcome.GPU_OOM, Outcome.HANG
    retries = Retries(failure=1)

    def action(*outcomes):
        return decide_retry(past(*outcomes), retries, free_ooms=max_enlargements(0.25)).action

    assert action(oom) is action(oom, oom) is action(oom, oom, oom) is Action.RETRY
    assert action(oom, oom, oom, oom) is Action.STOP
    assert action(oom, hang, oom) is Action.RETRY
    assert action(hang, oom, hang) is Action.STOP
    assert decide_retry(past(oom, oom), retries).action is Action.STOP


def test_micro_batch_stays_whole_sequences_and_at_least_one():
    def halved(times, tokens):
        return widened(*[Outcome.GPU_OOM] * times, gpus=1.0, micro_batch_tokens=tokens)

    assert halved(9, 4096).micro_batch_tokens == 128
    assert halved(1, 384).micro_batch_tokens == 128


@pytest.mark.parametrize(("gpus", "n_ooms", "times"), [(0.25, 2, 0), (0.25, 3, 1), (1.0, 2, 2)])
def test_ranks_halve_what_they_chose_once_the_gpu_is_whole(gpus, n_ooms, times):
    for asked in (None, 512):  # of one that is asked for they gather sharded parameters twice
        resources = Resources(gpus=gpus, micro_batch_tokens=asked)
        assert memory_halvings(resources, n_ooms) == times


def test_other_endings_leave_the_resources_alone():
    assert widened(Outcome.KILLED, Outcome.HANG, gpus=0.5) == Resources(gpus=0.5)


@pytest.mark.parametrize("outcome", [Outcome.HANG, Outcome.PREEMPTED])
def test_attempts_before_somebody_asked_for_a_retry_do_not_count(outcome):
    retries = Retries(failure=1, preemption=1)
    used_up = past(outcome, outcome)
    assert decide_retry(used_up, retries).action is Action.STOP

    before = [replace(one, counts=False) for one in used_up]

    assert decide_retry([*before, *past(outcome)], retries).action is Action.RETRY
    assert decide_retry([*before, *used_up], retries).action is Action.STOP
