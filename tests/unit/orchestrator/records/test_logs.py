import itertools
import subprocess
import sys

import pytest

from orchestrator.records import logs
from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import write_json
from orchestrator.records.processes import ProcessId
from orchestrator.records.trial_dir import TrialDir


@pytest.fixture
def trial(tmp_path):
    trial = TrialDir(tmp_path / "s" / "trials" / "dense-0123456789ab")
    trial.path.mkdir(parents=True)
    return trial


def control(trial, **fields):
    """Have this process, which lives, be the sweep's controller."""
    write_json(trial.path.parents[1] / "controller.json", {**ProcessId.own().to_json(), **fields})


def start(trial, why, text=""):
    attempt = trial.new_attempt({"why": why})
    attempt.log.write_text(text, encoding="utf-8")
    return attempt


def end(attempt, *, final, outcome="done", reason="finished"):
    write_json(attempt.path / "end.json", {"outcome": outcome, "reason": reason, "final": final})


def test_the_last_attempt_is_shown_with_its_reasons(trial):
    end(
        start(trial, "first attempt", "old\n"),
        final=False,
        outcome="killed",
        reason="killed by signal 9",
    )
    second = start(trial, "retry after killed", "new\n")
    write_json(
        second.path / "error.json",
        {"kind": "user_error", "message": "boom", "traceback": "Traceback: boom\n"},
    )
    end(second, final=True, outcome="user_error", reason="ValueError: boom")

    text = "".join(logs.read(trial))

    assert "retry after killed" in text
    assert "new\n" in text
    assert "old" not in text
    assert "Traceback: boom" in text
    assert text.endswith("── user_error: ValueError: boom\n")


def test_an_attempt_can_be_chosen(trial):
    end(start(trial, "first attempt", "old\n"), final=False)
    end(start(trial, "retry", "new\n"), final=True)

    assert "old" in "".join(logs.read(trial, attempt=1))
    with pytest.raises(StoreError, match="no attempt 7; there are 1, 2"):
        list(logs.read(trial, attempt=7))


def test_nothing_started_yet_is_said(trial):
    with pytest.raises(StoreError, match="no attempt was started yet"):
        list(logs.read(trial))


def test_following_goes_on_into_the_next_attempt_and_ends_with_the_trial(trial):
    control(trial)
    first = start(trial, "first attempt", "one\n")

    def write(attempt, text):
        with attempt.log.open("a", encoding="utf-8") as log:
            log.write(text)

    second = []
    happenings = iter(
        [
            lambda: write(first, "two\n"),
            lambda: end(first, final=False, outcome="killed", reason="killed"),
            lambda: second.append(start(trial, "retry after killed", "three\n")),
            lambda: end(second[0], final=True),
        ]
    )

    text = "".join(logs.read(trial, follow=True, wait=lambda: next(happenings)()))

    assert [word for word in text.split() if word in ("one", "two", "three")] == [
        "one",
        "two",
        "three",
    ]


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    "controller",
    [
        None,
        {"ended_at": 1.0},
        {"ended_at": 1.0, "trial_ids": None},
        {"trial_ids": ["dense-other"]},
    ],
)
def test_following_ends_where_nothing_will_start_the_trial(trial, started, controller):
    if controller is not None:
        control(trial, **controller)
    if started:
        end(start(trial, "first attempt"), final=False, outcome="interrupted", reason="asked")
    waits = []

    def wait():
        waits.append("")
        assert len(waits) < 3, "it waits for ever"

    texts = logs.read(trial, follow=True, wait=wait)
    if started:
        assert "".join(texts).endswith(f"asked\n{logs.NOTHING_RUNS}")
    else:
        with pytest.raises(StoreError, match="no attempt was started yet"):
            list(texts)


def test_a_controller_of_another_machine_is_believed_gone_after_a_while(trial, monkeypatch):
    """Shared storage shows its heartbeat late."""
    control(trial, host="elsewhere")
    end(start(trial, "first attempt"), final=False, outcome="killed", reason="oom")
    looks, now = [], itertools.count(step=10.0)

    def living(records):
        looks.append(records)
        return {trial.path.parent.parent} if len(looks) == 4 else set()

    monkeypatch.setattr(logs, "living", living)
    texts = logs.read(trial, follow=True, wait=lambda: None, clock=lambda: next(now))

    assert "".join(texts).endswith(f"oom\n{logs.NOTHING_RUNS}")
    assert len(looks) > 4, "the beat was seen after all, and counts anew"


def test_following_waits_for_a_job_in_a_queue(trial):
    left = [True, True, False]

    with pytest.raises(StoreError, match="no attempt was started yet"):
        list(logs.read(trial, follow=True, wait=lambda: None, queued=lambda: left.pop(0)))

    assert not left


def test_following_ends_with_a_killed_controller(trial):
    controller = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = ProcessId.of(controller.pid).to_json()
    attempt = trial.new_attempt({"why": "first attempt", "controller": record})
    waits = []

    def wait():
        waits.append("")
        assert len(waits) < 3, "it waits for ever"
        if len(waits) == 2:
            attempt.log.write_text("last words\n")
            controller.kill()
            controller.communicate()

    text = "".join(logs.read(trial, follow=True, wait=wait))

    assert len(waits) == 2
    assert "last words\n── its controller is gone" in text


def test_a_character_cut_at_the_end_of_what_was_written_is_read_whole_later(trial):
    attempt = start(trial, "first attempt")
    half = "ä".encode()
    attempt.log.write_bytes(b"a" + half[:1])

    def rest():
        attempt.log.write_bytes(b"a" + half)
        end(attempt, final=True)

    assert "aä" in "".join(logs.read(trial, follow=True, wait=rest))


def test_a_log_that_is_shortened_while_it_is_followed_goes_on_at_its_end(trial):
    attempt = start(trial, "first attempt", "long\n" * 1000)

    def shorten():
        attempt.log.write_text("beginning\n")

    def append():
        with attempt.log.open("a", encoding="utf-8") as log:
            log.write("later\n")

    happenings = iter([shorten, append, lambda: end(attempt, final=True)])
    text = "".join(logs.read(trial, follow=True, wait=lambda: next(happenings)()))

    assert text.endswith("long\nlater\n── done: finished\n")
