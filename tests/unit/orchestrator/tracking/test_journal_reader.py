"""Journals to batches: nothing missing, nothing doubled, whatever the interruptions."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.tracking.journal_reader import Mark, batches, final_points, metric_name

NAMES = ("train/loss", "valid/loss", "train/lr")


def write(folder, number, lines):
    attempt = AttemptDir(folder / f"{number:04d}")
    attempt.path.mkdir()
    text = "".join(
        json.dumps(
            {
                "t": 1000 * number + step,
                "step": step,
                "metrics": dict.fromkeys(names, step + number / 10),
            }
        )
        + "\n"
        for step, names in lines
    )
    attempt.journal.write_text(text)
    return attempt


def resumed_attempts():
    """Lines of several attempts: each begins anywhere up to where the last one got."""
    line = st.lists(st.sampled_from(NAMES), unique=True)
    return st.lists(
        st.tuples(st.integers(0, 12), st.lists(line, max_size=15)), min_size=1, max_size=4
    )


@given(attempts=resumed_attempts(), limit=st.integers(1, 7), stop_after=st.integers(0, 10))
def test_every_measured_step_is_sent_once_from_its_first_attempt(
    tmp_path_factory, attempts, limit, stop_after
):
    folder = tmp_path_factory.mktemp("attempts")
    written = []
    for number, (start, lines) in enumerate(attempts, 1):
        steps = list(enumerate(lines, start))
        written.append((write(folder, number, steps), steps))
    expected = {}
    for number, (_, steps) in enumerate(written, 1):
        marks = {name: max((s for n, s in expected if n == name), default=-1) for name in NAMES}
        for step, names in steps:
            for name in names:
                if step > marks[name]:
                    expected[name, step] = (1000 * number + step, step + number / 10)

    sent, offsets, marks = [], {}, {}
    # A exporter that is killed after some batches, then one that reads the rest from what was kept.
    for allowed in (stop_after, math.inf):
        taken = 0
        for attempt, _ in written:
            for batch in batches(
                attempt, offset=offsets.get(attempt.number, 0), marks=marks, limit=limit
            ):
                if taken >= allowed:
                    break
                taken += 1
                sent += batch.points
                offsets[attempt.number], marks = batch.offset, dict(batch.marks)
            if taken >= allowed:
                break

    assert {(p.key, p.step): (p.t, p.value) for p in sent} == expected
    assert len(sent) == len(expected)


def test_batches_hold_at_most_the_limit_and_whole_lines(tmp_path):
    attempt = write(tmp_path, 1, [(step, NAMES) for step in range(10)])

    sizes = [len(batch.points) for batch in batches(attempt, offset=0, marks={}, limit=7)]

    assert sizes == [6, 6, 6, 6, 6]


def test_a_torn_last_line_waits_for_its_end(tmp_path):
    attempt = write(tmp_path, 1, [(0, NAMES)])
    with attempt.journal.open("a") as file:
        file.write('{"t": 1, "step": 1, "met')

    (batch,) = batches(attempt, offset=0, marks={})
    assert {point.step for point in batch.points} == {0}

    with attempt.journal.open("a") as file:
        file.write('rics": {"train/loss": 2.0}}\n')
    (rest,) = batches(attempt, offset=batch.offset, marks=batch.marks)
    assert [(p.key, p.value, p.t, p.step) for p in rest.points] == [("train/loss", 2.0, 1, 1)]


def test_a_broken_line_costs_itself_only(tmp_path, caplog):
    attempt = write(tmp_path, 1, [(0, ["train/loss"])])
    with attempt.journal.open("a") as file:
        file.write('no json\n{"t": 1, "step": 1, "metrics": {"train/loss": 2.0}}\n')

    points = [point for batch in batches(attempt, offset=0, marks={}) for point in batch.points]

    assert [point.step for point in points] == [0, 1]
    assert "is not sent to the tracker" in caplog.text


def test_events_are_passed_over_and_their_bytes_counted(tmp_path):
    attempt = write(tmp_path, 1, [])
    attempt.journal.write_text('{"t": 1, "event": "checkpoint", "step": 5}\n')

    (batch,) = batches(attempt, offset=0, marks={})

    assert list(batch.points) == []
    assert batch.offset == attempt.journal.stat().st_size


@pytest.mark.parametrize(
    ("name", "accepted"),
    [("valid/loss", "valid/loss"), ("kl(p|q)", "kl_p_q_"), ("ä", "_"), ("x" * 300, "x" * 250)],
)
def test_names_become_those_that_mlflow_accepts(name, accepted):
    assert metric_name(name) == accepted


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({}, [("loss", 1.0)]),
        ({"loss": Mark(9, 1.0)}, []),
        ({"loss": Mark(9, 1.5)}, [("loss", 1.0)]),
        # The journal went further than the result says it did: its value stands.
        ({"loss": Mark(11, 1.5)}, []),
    ],
)
def test_final_points_are_those_the_journal_did_not_say(marks, expected):
    points = final_points({"loss": 1.0}, step=10, t=5, marks=marks)

    assert [(point.key, point.value) for point in points] == expected
    assert all((point.step, point.t) == (10, 5) for point in points)


def test_a_final_nan_is_the_same_as_the_journals_nan():
    assert final_points({"loss": math.nan}, step=3, t=5, marks={"loss": Mark(3, math.nan)}) == []
