"""Which controllers live: those of this machine by their process, others by a heartbeat that grows."""

import pytest

from orchestrator.records.json_files import read_json, write_json
from orchestrator.records.liveness import FIRST_LOOK_S, HeartbeatWatch, is_alive, living
from orchestrator.records.locks import STALE_S
from orchestrator.records.processes import ProcessId

DAY_S = 86_400.0


def test_reused_pid_is_not_the_old_controller(tmp_path):
    record = {**ProcessId.own().to_json(), "updated_at": 0.0}

    assert is_alive(tmp_path, record)
    assert not is_alive(tmp_path, {**record, "start_ticks": record["start_ticks"] - 1})
    assert not is_alive(tmp_path, {**record, "ended_at": 1.0})
    assert not is_alive(tmp_path, None)


class Elsewhere:
    """A controller of another machine, whose clock may be wrong, and who watches it from here."""

    def __init__(self, place, *, clock_off_s=0.0):
        self.place, self.off_s = place, clock_off_s
        place.mkdir(exist_ok=True)
        self.now, self.beat, self.lives = 1000.0, 0, True
        self.watch = HeartbeatWatch(clock=lambda: self.now, sleep=self.sleep)
        self.write()

    def write(self, **more):
        self.beat += 1
        record = {"host": "elsewhere", "pid": 1, "start_ticks": 1, "beat": self.beat}
        write_json(
            self.place / "controller.json",
            {**record, "updated_at": self.now + self.off_s, **more},
            durable=False,
        )

    def sleep(self, seconds):
        """Let time pass; a living controller beats once a second."""
        before, self.now = self.now, self.now + seconds
        if self.lives and int(before) != int(self.now):
            self.write()

    def seen_alive(self):
        records = {self.place: read_json(self.place / "controller.json")}
        return self.place in self.watch.beating(records)


@pytest.mark.parametrize("off_s", [0.0, -DAY_S, 7200.0])
def test_a_living_controller_is_seen_whatever_its_clock_says(tmp_path, off_s):
    there = Elsewhere(tmp_path, clock_off_s=off_s)

    assert there.seen_alive()
    assert there.now < 1000.0 + FIRST_LOOK_S, "a heartbeat ends the wait"


@pytest.mark.parametrize("off_s", [0.0, -DAY_S, 7200.0])
def test_a_dead_controller_is_seen_whatever_its_clock_says(tmp_path, off_s):
    there = Elsewhere(tmp_path, clock_off_s=off_s)
    there.lives = False

    assert not there.seen_alive()
    looked_at = there.now
    assert not there.seen_alive()
    assert there.now == looked_at, "only the first look waits"


def test_a_clock_that_is_set_back_while_it_runs_ends_nothing(tmp_path):
    there = Elsewhere(tmp_path)
    assert there.seen_alive()

    there.off_s = -DAY_S
    there.sleep(1.0)

    assert there.seen_alive()


def test_a_silence_is_measured_by_the_watchers_clock(tmp_path):
    there = Elsewhere(tmp_path)
    assert there.seen_alive()
    there.lives = False

    there.sleep(STALE_S - 2)
    assert there.seen_alive()
    there.sleep(3)
    assert not there.seen_alive()


def test_one_that_ends_during_the_first_look_is_dead(tmp_path):
    there = Elsewhere(tmp_path)
    there.write = lambda: Elsewhere.write(there, ended_at=there.now)

    assert not there.seen_alive()


def test_many_are_watched_at_once(tmp_path):
    both = [Elsewhere(tmp_path / name) for name in ("a", "b")]
    records = {one.place: read_json(one.place / "controller.json") for one in both}
    first, second = both
    second.lives = False

    assert first.watch.beating(records) == {first.place}
    assert first.now <= 1000.0 + FIRST_LOOK_S + 0.2
    assert living({tmp_path: None}) == frozenset()
