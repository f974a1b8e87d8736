"""Batches of points from journals, each with the offset that follows it."""

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.errors import StoreError
from orchestrator.records.journal import JournalLine

LOG = logging.getLogger(__name__)

MAX_POINTS = 1000
"""Metrics that one call of MLflow's REST API takes. With names of 250 characters that stays below
its 1 MB."""
MAX_NAME = 250
_NOT_IN_A_NAME = re.compile(r"[^\w\-. :/]", re.ASCII)


class Point(NamedTuple):
    """One measurement as the tracker stores it."""

    key: str
    value: float
    t: int
    """Milliseconds since 1970."""
    step: int


class Mark(NamedTuple):
    """The last point of a metric that was taken up."""

    step: int
    value: float


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Points for one call, and where that leaves the journal."""

    points: Sequence[Point]
    offset: int
    """Byte offset in the attempt's journal just after the batch."""
    marks: Mapping[str, Mark]
    """Every metric's mark after the batch."""


def metric_name(name: str) -> str:
    """Return the name as MLflow accepts it: letters, digits, `_`, `-`, `.`, `:`, `/`, spaces."""
    return _NOT_IN_A_NAME.sub("_", name)[:MAX_NAME]


def batches(
    attempt: AttemptDir, *, offset: int, marks: Mapping[str, Mark], limit: int = MAX_POINTS
) -> Iterator[Batch]:
    """Yield what an attempt's journal holds from byte `offset` on.

    A resume repeats the steps after its checkpoint. The tracker cannot delete points, so only steps
    above a metric's mark are sent: no (metric, step) is ever doubled. What was sent first stays.

    Args:
        attempt: Earlier attempts of the trial must have been read to their end: their marks decide
            what is new.
        offset: As the last batch said; 0 for a new attempt.
        marks: As the last batch said, of whichever attempt.
        limit: Points of one batch at most; one line is never divided.
    """
    current = dict(marks)
    points: list[Point] = []
    end = offset
    for line in readable_lines(attempt, offset):
        fresh = [] if line.step is None else _fresh(line.t, line.step, line.metrics, current)
        if points and len(points) + len(fresh) > limit:
            yield Batch(points=points, offset=end, marks=dict(current))
            points = []
        points += fresh
        current.update({point.key: Mark(point.step, point.value) for point in fresh})
        end = line.end_offset
    if end > offset:
        yield Batch(points=points, offset=end, marks=current)


def final_points(
    metrics: Mapping[str, float], *, step: int, t: int, marks: Mapping[str, Mark]
) -> list[Point]:
    """Return the points that make the tracker's last values those of result.json.

    Usually none: the journal said the same. A metric that was never logged is added. One that a
    repeated last step changed (a kill between the last evaluation and result.json, on a device that
    is not deterministic) gets a second point, later in time, so that tables show the value of the
    weights that were kept.
    """
    points = []
    for name, value in metrics.items():
        key = metric_name(name)
        before = marks.get(key)
        if before is None or (before.step <= step and not _same(before.value, value)):
            points.append(Point(key, float(value), t, step))
    return points


def readable_lines(attempt: AttemptDir, offset: int) -> Iterator[JournalLine]:
    """Yield complete lines from `offset` on; a line that is no JSON is logged and passed over."""
    while True:
        try:
            for line in attempt.lines(offset):
                offset = line.end_offset
                yield line
        except StoreError as error:
            LOG.warning("%s; it is not sent to the tracker", error)
            offset = _next_line(attempt, offset)
        else:
            return


def _next_line(attempt: AttemptDir, offset: int) -> int:
    with attempt.journal.open("rb") as file:
        file.seek(offset)
        return offset + len(file.readline())


def _fresh(
    t: int, step: int, metrics: Mapping[str, float], marks: Mapping[str, Mark]
) -> list[Point]:
    points = []
    for name, value in metrics.items():
        key = metric_name(name)
        before = marks.get(key)
        if before is None or step > before.step:
            points.append(Point(key, float(value), t, step))
    return points


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
