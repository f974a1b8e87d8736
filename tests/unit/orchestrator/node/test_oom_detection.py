from pathlib import Path

from orchestrator.node.oom_detection import JUST_NOW_S, OomKillCounter


def test_only_a_count_that_has_just_risen_accuses_the_kernel(tmp_path):
    counters, now = tmp_path / "vmstat", [0.0]
    counters.write_text("pgfault 7\noom_kill 3\npswpin 0\n")
    oom = OomKillCounter(lambda: now[0], counters=counters)

    assert not oom.just_killed()
    counters.write_text("pgfault 9\noom_kill 4\npswpin 0\n")
    assert oom.just_killed()
    now[0] = JUST_NOW_S - 0.1
    assert oom.just_killed()
    now[0] = JUST_NOW_S
    assert not oom.just_killed()


def test_a_kernel_that_does_not_count_is_never_accused(tmp_path):
    assert not OomKillCounter(lambda: 0.0, counters=tmp_path / "none").just_killed()


def test_this_kernel_counts_or_has_no_such_line():
    counters = Path("/proc/vmstat")

    assert not OomKillCounter(lambda: 0.0, counters=counters).just_killed()
