import pytest

from orchestrator.node.start_times import StartTimes


def recorded(start, phases, now):
    found = []
    for at, phase in phases:
        now[0] = at
        found.append(start.record(phase))
    return found


def test_seconds_go_to_the_phase_that_they_passed_in_and_are_told_once():
    now = [102.0]
    start = StartTimes(100.0, lambda: now[0])
    phases = [(102.5, "data"), (103.5, "data"), (105.5, "model"), (106.0, "start")]

    assert recorded(start, phases, now) == [None] * 4
    assert recorded(start, [(110.0, "train"), (111.0, "evaluate")], now) == [
        {"launch": 2.0, "rank": 0.5, "data": 3.0, "model": 0.5, "start": 4.0, "total": 10.0},
        None,
    ]


@pytest.mark.parametrize(("launched_at", "launch"), [(None, 0.0), (6.5, 0.5)])
def test_a_job_without_phases_before_its_steps_has_a_total_too(launched_at, launch):
    now = [7.0]
    start = StartTimes(launched_at, lambda: now[0])

    assert recorded(start, [(9.0, "train")], now) == [
        {"launch": launch, "rank": 2.0, "total": launch + 2.0}
    ]
