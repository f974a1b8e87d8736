"""Reader of a trial's log: whole, or followed as it grows."""

import codecs
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.errors import NotFoundError
from orchestrator.records.liveness import living
from orchestrator.records.locks import STALE_S
from orchestrator.records.processes import ProcessId
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir

CHUNK_BYTES = 1 << 16
NOTHING_RUNS = "── its controller is gone, so nothing runs it; submit the sweep again to go on\n"


def read(
    trial: TrialDir,
    *,
    attempt: int | None = None,
    follow: bool = False,
    wait: Callable[[], None] = lambda: time.sleep(0.3),
    queued: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[str]:
    """Yield the log of an attempt piece by piece, then why the attempt ended.

    Bytes that are not UTF-8 are lone surrogates, so that encoding with surrogateescape restores
    them.

    Args:
        trial: Whose log.
        attempt: Which attempt; None is the last one, and following it goes on into the next ones.
        follow: Keep yielding until the trial has ended, or nothing runs it any more.
        wait: Called between looks at a log that did not grow.
        queued: Whether a batch system may still start it; asked while no controller lives.
        clock: Monotonic seconds.

    Raises:
        NotFoundError: If there is no such attempt.
    """
    attempts = trial.attempts()
    runner, goes_on = _Runner(trial, queued, clock), follow
    while not attempts and goes_on:
        wait()
        # First: what has ended by now starts no other attempt.
        goes_on = runner.may_go_on()
        attempts = trial.attempts()
    if not attempts:
        raise NotFoundError(
            f"trial {trial.trial_id}: no attempt was started yet; "
            "`memscale status` says what it waits for"
        )
    by_number = {a.number: a for a in attempts}
    if attempt is not None and attempt not in by_number:
        raise NotFoundError(
            f"trial {trial.trial_id}: no attempt {attempt}; "
            f"there are {', '.join(map(str, by_number))}"
        )
    chosen = by_number[attempt] if attempt is not None else attempts[-1]
    yield from _one(chosen, follow=follow, wait=wait)
    while follow and attempt is None:
        goes_on = runner.may_go_on()
        later = [a for a in trial.attempts() if a.number > chosen.number]
        end = chosen.end()
        if later:
            chosen = later[0]
            yield from _one(chosen, follow=True, wait=wait)
        elif (
            end is None
            or end.get("final")
            or trial.result() is not None
            or trial.cancel_requested()
        ):
            return
        elif not goes_on:
            yield NOTHING_RUNS
            return
        else:
            wait()


class _Runner:
    """What may start another attempt of a trial: a live controller, or a queued job."""

    def __init__(
        self, trial: TrialDir, queued: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._trial, self._queued, self._clock = trial, queued, clock
        self._sweep = SweepDir(trial.path.parent.parent)
        self._silent_since: float | None = None

    def may_go_on(self) -> bool:
        """Whether one is there.

        A controller of another machine is believed gone after STALE_S: shared storage may show its
        heartbeat late.
        """
        records = {self._trial.path: self._trial.controller()}
        of_sweep = self._sweep.controller() or {}
        if self._trial.trial_id in (of_sweep.get("trial_ids") or (self._trial.trial_id,)):
            records[self._sweep.path] = of_sweep or None
        if living(records) or self._queued():
            self._silent_since = None
            return True
        elsewhere = any(
            record.get("ended_at") is None and not ProcessId.from_json(record).here
            for record in records.values()
            if record is not None
        )
        if self._silent_since is None:
            self._silent_since = self._clock()
        return elsewhere and self._clock() - self._silent_since < STALE_S


def _one(attempt: AttemptDir, *, follow: bool, wait: Callable[[], None]) -> Iterator[str]:
    launch = attempt.launch() or {}
    yield f"── attempt {attempt.number}: {launch.get('why', 'no launch.json')}\n"
    offset = 0
    while True:
        abandoned = follow and _abandoned(launch)
        ended = attempt.end() is not None
        for text, end_offset in _from(attempt, offset):
            offset = end_offset
            yield text
        if ended or abandoned or not follow:
            break
        wait()
    error, end = attempt.error(), attempt.end()
    if error is not None and error.get("traceback"):
        yield f"── error\n{error['traceback'].rstrip()}\n"
    if end is not None:
        yield f"── {end['outcome']}: {end['reason']}\n"
    elif abandoned:
        yield NOTHING_RUNS


def _abandoned(launch: Mapping[str, Any]) -> bool:
    """Whether the controller of an attempt ran on this machine, and is gone."""
    controller = launch.get("controller")
    if controller is None:
        return False
    process = ProcessId.from_json(controller)
    return process.here and not process.alive()


def _from(attempt: AttemptDir, offset: int) -> Iterator[tuple[str, int]]:
    if not attempt.log.exists():
        return
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    with attempt.log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < offset:
            yield "", size  # shortened meanwhile (node/log_cap.py): it is read on from its end
        file.seek(min(offset, size))
        while chunk := file.read(CHUNK_BYTES):
            # A character that is still being written stays for the next read.
            text = decoder.decode(chunk)
            held = len(decoder.getstate()[0])
            yield text, file.tell() - held
