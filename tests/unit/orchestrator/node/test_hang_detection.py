from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.hang_detection import (
    FLOOR_S,
    LONGEST_INTERVAL_S,
    OTHERWISE_S,
    STEPS,
    HangDetector,
)
from orchestrator.node.progress_board import RankProgress


def progress(n_reports, *, phase="train", step_s=0.5):
    return RankProgress(n_reports=n_reports, step=n_reports, steps=100, phase=phase, step_s=step_s)


def quiet_until_told(watch, ranks, *, start=0.0, look_s=1.0):
    """Return the seconds of silence after which it is a hang."""
    now = start
    while (told := watch.check(now, ranks)) is None:
        now += look_s
        assert now < start + 100_000
    return now - start, told


def test_floor_holds_between_quick_steps():
    seconds, told = quiet_until_told(HangDetector(), {0: progress(9), 1: progress(9)})

    assert FLOOR_S < seconds <= FLOOR_S + 1
    assert told == "no progress for 301 s (limit 300 s: the least between two steps)"


def test_many_medians_hold_for_slow_steps():
    seconds, told = quiet_until_told(HangDetector(), {0: progress(9, step_s=60.0)})

    assert STEPS * 60 < seconds <= STEPS * 60 + 1
    assert "limit 1200 s: 20 steps of 60 s" in told


def test_the_slowest_rank_decides_how_long_steps_may_take():
    ranks = {0: progress(9, step_s=0.1), 1: progress(9, step_s=60.0)}

    seconds, told = quiet_until_told(HangDetector(), ranks)

    assert STEPS * 60 < seconds <= STEPS * 60 + 1
    assert "limit 1200 s: 20 steps of 60 s" in told


def test_more_time_before_the_first_step_and_outside_of_training():
    for ranks in (
        {0: None},
        {0: progress(1, phase="data")},
        {0: progress(9, phase="checkpoint"), 1: progress(9)},
        {0: progress(9), 1: None},
    ):
        assert quiet_until_told(HangDetector(), ranks)[0] > OTHERWISE_S


def test_more_time_where_some_ranks_are_on_another_node():
    watch = HangDetector(sees_all=False)

    assert quiet_until_told(watch, {1: progress(9), 2: progress(9)})[0] > OTHERWISE_S


def test_own_floor_replaces_both_but_never_cuts_slow_steps_short():
    assert quiet_until_told(HangDetector(7.0), {0: progress(9, step_s=0.1)})[0] == 8
    assert quiet_until_told(HangDetector(7.0), {0: progress(1, phase="data", step_s=None)})[0] == 8
    assert quiet_until_told(HangDetector(7.0), {0: progress(9, step_s=10.0)})[0] == 201


def test_a_sign_of_any_rank_starts_the_silence_anew():
    watch = HangDetector(20.0)
    for now in range(20):
        assert watch.check(float(now), {0: progress(9), 1: progress(9)}) is None
    assert watch.check(20.0, {0: progress(9), 1: progress(10)}) is None

    assert quiet_until_told(watch, {0: progress(9), 1: progress(10)}, start=20.0)[0] == 21


@given(st.lists(st.floats(0.0, 1.0e6), min_size=1, max_size=30))
def test_time_in_which_nobody_looked_is_no_silence(gaps):
    watch, now = HangDetector(LONGEST_INTERVAL_S * 40), 0.0
    for gap in gaps:
        now += gap
        assert watch.check(now, {0: progress(9)}) is None


def test_an_attempt_without_ranks_does_not_hang():
    watch = HangDetector(1.0)
    assert [watch.check(float(now), {}) for now in range(100)] == [None] * 100
