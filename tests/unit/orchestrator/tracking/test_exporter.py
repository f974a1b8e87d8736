"""The loop around the rounds: outages, the way it ends. No tracker, no real time."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.tracking.exporter import (
    LONGEST_BACKOFF_S,
    OUTAGE_S,
    REQUESTS_ROUND_S,
    ExporterCommands,
    export_rounds,
)
from orchestrator.tracking.mlflow_client import TrackerError


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Waits(ExporterCommands):
    """Commands on a clock of their own: waiting makes the time pass, and scripted words come."""

    def __init__(self, clock, script=()):
        super().__init__(clock=clock)
        self.time, self.script, self.waited = clock, list(script), []

    def wait(self, seconds):
        self.waited.append(seconds)
        self.time.now += seconds
        while self.script and self.time.now >= self.script[0][0]:
            self.script.pop(0)[1](self)


class Rounds:
    """Fake SweepSync: each round returns or raises what the script says; the last repeats."""

    def __init__(self, *script, duration_s=0.0, clock=None):
        self.script, self.n, self.looks, self.tags = list(script), 0, 0, {}
        self.duration_s, self.clock = duration_s, clock
        self.in_doubt = False

    def round(self):
        answer = self.script[min(self.n, len(self.script) - 1)]
        self.n += 1
        if self.clock:
            self.clock.now += self.duration_s
        if isinstance(answer, Exception):
            raise answer
        return answer

    def take_cancel_requests(self):
        self.looks += 1
        return []

    def take_retry_requests(self):
        return self.tags.pop(self.looks, [])


def drain(seconds):
    return lambda instructions: instructions.drain(seconds)


def orphan(instructions):
    instructions.orphan()


DOWN = TrackerError("no answer")


def test_it_goes_on_until_told_to_drain_and_sends_once_more():
    clock = Clock()
    rounds = Rounds(True)

    assert export_rounds(rounds, Waits(clock, [(10.0, drain(5))]), clock=clock) is True

    assert rounds.n == 11
    assert rounds.looks == (10 // REQUESTS_ROUND_S - 1) + 1, "and once more at the end"


def test_what_a_tag_changes_at_the_very_end_is_sent_too():
    clock = Clock()
    rounds = Rounds(True)
    rounds.tags = {1: ["1 trial noted"]}

    assert export_rounds(rounds, Waits(clock, [(3.0, drain(5))]), clock=clock) is True

    assert (rounds.n, rounds.looks) == (4 + 1, 1)


def test_the_end_waits_until_no_run_can_be_made_late_any_more():
    clock = Clock()
    rounds = Rounds(True)
    rounds.in_doubt = True

    def no_more(instructions):
        rounds.in_doubt = False

    waits = Waits(clock, [(3.0, drain(5)), (4.2, no_more)])
    assert export_rounds(rounds, waits, clock=clock) is True

    assert clock.now >= 4.2


def test_an_outage_is_waited_out_with_growing_pauses_and_told():
    clock = Clock()
    waits = Waits(clock, [(200.0, drain(5))])
    told = []

    assert export_rounds(Rounds(*[DOWN] * 9, True), waits, clock=clock, report=told.append) is True

    assert waits.waited[:9] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert max(waits.waited) == LONGEST_BACKOFF_S
    assert waits.waited[9] == 1.0
    assert told[:10] == ["no answer"] * 9 + [None]


def test_after_an_outage_the_next_begins_with_short_pauses_again():
    waits = Waits(clock := Clock(), [(60.0, drain(5))])
    rounds = Rounds(*[DOWN] * 5, True, DOWN, DOWN, True)

    assert export_rounds(rounds, waits, clock=clock) is True

    assert waits.waited[:8] == [0.5, 1, 2, 4, 8, 1.0, 0.5, 1]


def test_an_hour_of_outage_does_not_end_it_and_is_told_once(caplog):
    clock = Clock()
    rounds = Rounds(*[DOWN] * 120, True)

    assert export_rounds(rounds, Waits(clock, [(3700.0, drain(5))]), clock=clock) is True

    assert [record.message for record in caplog.records] == ["no answer; trying again"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSPC])
def test_storage_that_fails_is_waited_for_as_an_outage(code):
    clock = Clock()
    failing = OSError(code, os.strerror(code), "/runs/s/tracking.json")
    rounds, told = Rounds(True, *[failing] * 3, True), []

    assert (
        export_rounds(rounds, Waits(clock, [(60.0, drain(5))]), clock=clock, report=told.append)
        is True
    )

    assert told[1:5] == [str(failing)] * 3 + [None]


def test_an_error_of_ours_is_not_waited_for():
    with pytest.raises(PermissionError):
        export_rounds(Rounds(PermissionError(errno.EACCES, "…")), Waits(Clock()), clock=Clock())


def test_the_end_waits_only_a_little_for_a_tracker_that_is_down():
    clock = Clock()
    waits = Waits(clock, [(3.0, drain(120))])

    assert export_rounds(Rounds(DOWN), waits, clock=clock) is False

    assert OUTAGE_S <= clock.now - 3.0 <= OUTAGE_S + 5


def test_the_end_waits_longer_for_one_that_is_slow():
    clock = Clock()
    rounds = Rounds(False, True, duration_s=50.0, clock=clock)

    assert export_rounds(rounds, Waits(clock, [(0.5, drain(120))]), clock=clock) is True


def test_the_end_does_not_wait_for_what_is_refused_for_good():
    clock = Clock()

    assert export_rounds(Rounds(False), Waits(clock, [(1.0, drain(120))]), clock=clock) is False

    assert clock.now < 5


def test_it_stops_at_the_deadline():
    clock = Clock()
    rounds = Rounds(True, DOWN, clock=clock, duration_s=3.0)

    assert export_rounds(rounds, Waits(clock, [(0.1, drain(2.0))]), clock=clock) is False


@pytest.mark.parametrize("answer", [True, False, DOWN])
def test_it_stops_at_once_when_the_parent_is_gone(answer):
    clock = Clock()

    assert export_rounds(Rounds(answer), Waits(clock, [(1.0, orphan)]), clock=clock) is False

    assert clock.now < 2.5


def test_waiting_ends_with_the_first_word():
    instructions = ExporterCommands()
    instructions.drain(0.0)

    instructions.wait(1000.0)

    assert instructions.time_is_up


EXPORTER = [sys.executable, "-m", "orchestrator.tracking.exporter"]


def started(folder, *, words):
    """Run an exporter whose mlflow cannot be imported: only the process itself is tested."""
    (folder / "fake" / "mlflow").mkdir(parents=True)
    (folder / "fake" / "mlflow" / "__init__.py").write_text(
        "raise ImportError('broken on purpose')"
    )
    (folder / "runs" / "s").mkdir(parents=True)
    path = os.pathsep.join([str(folder / "fake"), str(Path.cwd())])
    return subprocess.run(
        [*EXPORTER, str(folder / "runs" / "s")],
        input=words,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/db"},
        timeout=60,
    )


def test_a_process_whose_parent_says_nothing_any_more_ends(tmp_path):
    done = started(tmp_path, words="")

    assert done.returncode != 0


def test_a_process_that_cannot_send_says_why_and_what_to_do(tmp_path):
    done = started(tmp_path, words="drain 0.2\n")

    assert done.returncode != 0
    assert "broken on purpose" in done.stderr
    assert "pip install 'memscale[mlflow]'" in done.stderr
    assert "Traceback" not in done.stderr
