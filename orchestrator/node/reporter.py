"""Reporter of a rank: journal, heartbeat.json, progress board, requests to stop.

`RankReporter` is the orchestrator's side of `workloads.training.metrics.reporter.Reporter`.
"""

import logging
import math
import os
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.node.progress_board import ProgressWriter, RankProgress
from orchestrator.node.start_times import StartTimes
from orchestrator.node.system_metrics import SystemSampler
from orchestrator.records import storage_errors
from orchestrator.records.journal import Journal
from orchestrator.records.json_files import write_json
from orchestrator.records.locks import Fenced
from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import RankRequest, registered

LOG = logging.getLogger(__name__)
LOG_S = 5.0
"""How often training metrics are logged at most; evaluations always are."""
HEARTBEAT_S = 1.0
"""How often heartbeat.json is replaced at most."""
FENCE_S = 1.0
"""How often a rank looks at most whether its attempt was closed; one that stood still looks at
once."""
LAP_S = 1.0
"""Steps are timed over laps of at least this length: on a GPU single steps are only launched, not
awaited."""
LAPS = 31
"""Laps whose median is the time of a step."""


class StopFlag:
    """Whether somebody asked this process to checkpoint and leave."""

    def __init__(self) -> None:
        """Nobody did yet."""
        self.requested = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.requested = True


@contextmanager
def stops_on_signal(stop: StopFlag) -> Iterator[None]:
    """Turn SIGTERM, SIGINT and SIGHUP into a request to checkpoint and leave."""
    before = {
        number: signal.signal(number, stop.request)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LapTimer:
    """Seconds per training step: the median over the last laps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Nothing is known yet."""
        self._clock = clock
        self._laps: deque[float] = deque(maxlen=LAPS)
        self._start: tuple[float, int] | None = None

    @property
    def step_s(self) -> float | None:
        """The median; None before the first lap."""
        return statistics.median(self._laps) if self._laps else None

    def record(self, step: int, phase: str) -> None:
        """Record that `step` is done. Any phase but training ends a lap unfinished."""
        now = self._clock()
        if phase != "train":
            self._start = None
        elif self._start is None:
            self._start = now, step
        elif now - self._start[0] >= LAP_S and step > self._start[1]:
            self._laps.append((now - self._start[0]) / (step - self._start[1]))
            self._start = now, step


class RankReporter:
    """Writes what rank 0 measures to the trial directory. Other ranks only watch for a stop."""

    def __init__(
        self,
        request: RankRequest,
        stop: StopFlag | None = None,
        *,
        progress_writer: ProgressWriter | None = None,
        shares_gpus: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the journal (rank 0).

        Args:
            request: Whose rank.
            stop: Where a signal handler leaves a request to stop.
            progress_writer: Takes this rank's progress for the supervisor.
            shares_gpus: Whether other trials use the same GPUs, whose use is then not this trial's.
            clock: Monotonic seconds, for durations.
            wall_clock: Seconds since 1970, for records.
        """
        self._request = request
        self._stop = stop or StopFlag()
        self._progress_writer = progress_writer
        self._n_reports = 0
        self._lap_timer = LapTimer(clock)
        self._clock = clock
        self._wall_clock = wall_clock
        self._journal = (
            Journal(request.attempt_dir.journal, clock=wall_clock) if request.rank == 0 else None
        )
        launch = request.attempt_dir.launch() or {}
        self._start_times = StartTimes(launch.get("started_at"), wall_clock)
        self._shares_gpus = shares_gpus
        self._sampler: SystemSampler | None = None
        self._logged_at = -math.inf
        self._values: dict[str, float] = {}
        self._beat_at = -math.inf
        self._beat_phase: str | None = None
        self._fence_checked_at = -math.inf
        self._fenced = False
        self.step = 0
        self.steps = 0

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append measurements to the journal, now and then with system metrics."""
        evaluated = any(name.startswith(("valid/", "recall/")) for name in values)
        if self._journal is not None:
            values = {**values, **self._system(now=evaluated)}
        # Just before the line is written: reading system metrics takes a while, and the rank may
        # have stood still in it.
        self._check_fence_when_due()
        if self._journal is None:
            return
        self._journal.metrics(step, values)
        if evaluated or self._clock() - self._logged_at >= LOG_S:
            self._logged_at = self._clock()
            LOG.info("step %d of %d: %s", step, self.steps, _sentence(values))

    def checkpoint(self, step: int, path: Path) -> None:
        """Sync everything up to this checkpoint to disk: a resume must find no gap before it."""
        self.check_fence()
        if self._journal is not None:
            self._journal.event("checkpoint", step=step, path=path.name)
            self._journal.sync()

    def progress(self, step: int, steps: int, phase: str, values: Mapping[str, float]) -> None:
        """Record progress; replace heartbeat.json once a second and at every change of phase."""
        self._check_fence_when_due()
        self.step, self.steps = step, steps
        self._values.update(values)
        self._n_reports += 1
        self._lap_timer.record(step, phase)
        if (seconds := self._start_times.record(phase)) is not None:
            self.event("first_step", step=step, seconds=seconds)
        if self._progress_writer is not None:
            self._progress_writer.write(
                RankProgress(
                    n_reports=self._n_reports,
                    step=step,
                    steps=steps,
                    phase=phase,
                    step_s=self._lap_timer.step_s,
                )
            )
        if phase == "checkpoint" and self._journal is not None:
            # Before the checkpoint has its name: what was measured until then is never repeated.
            self._journal.sync()
        now = self._clock()
        if now - self._beat_at >= HEARTBEAT_S or phase != self._beat_phase:
            self._beat_at, self._beat_phase = now, phase
            self._beat(phase)

    def check_fence(self) -> None:
        """End this rank if its attempt is closed: the node stood still and was taken for dead.

        Raises:
            Fenced: It writes nothing more, since another attempt may train the trial.
        """
        self._fence_checked_at = self._clock()
        if self._fenced or self._request.attempt_dir.is_closed():
            self._fenced = True
            raise Fenced(
                f"attempt {self._request.attempt} was closed while this rank stood still or was "
                "cut off; it ends without writing"
            )

    def _check_fence_when_due(self) -> None:
        if self._fenced or self._clock() - self._fence_checked_at >= FENCE_S:
            self.check_fence()

    def should_stop(self) -> bool:
        """Whether a signal asked for it."""
        return self._stop.requested

    def event(self, name: str, **fields: Any) -> None:
        """Append an event to the journal (rank 0)."""
        if self._journal is not None:
            self._journal.event(name, **fields)

    def close(self) -> None:
        """Put the journal on the disk, and leave the last step in heartbeat.json."""
        if self._journal is not None:
            self._journal.close()
        if self._beat_phase is not None and not self._fenced:
            self._beat(self._beat_phase)

    def _system(self, *, now: bool) -> dict[str, float]:
        """Return system/* metrics when they are due, or now."""
        if self._sampler is None:
            # Made late: once something is measured, all ranks of the trial are registered.
            self._sampler = SystemSampler(
                gpus=self._request.gpus,
                whole_gpus=not self._shares_gpus,
                pids=[p.pid for p in registered(self._request.attempt_dir) if p.here]
                or [os.getpid()],
            )
            return {}
        return self._sampler.sample() if now else self._sampler.sample_when_due()

    def _beat(self, phase: str) -> None:
        if self._request.rank != 0:
            return
        beat = {
            "attempt": self._request.attempt,
            "pid": os.getpid(),
            "host": ProcessId.own().host,
            "step": self.step,
            "steps": self.steps,
            "phase": phase,
            "loss": _number(self._values, "loss", "train/loss"),
            "tokens_per_s": _number(self._values, "tokens_per_s", "train/tokens_per_s"),
            "updated_at": self._wall_clock(),
        }
        try:
            write_json(self._request.trial.path / "heartbeat.json", beat, durable=False)
        except OSError as error:
            # Only people read it; training ends only when it cannot keep what it computes.
            if not storage_errors.is_transient(error):
                raise


def _number(values: Mapping[str, float], *names: str) -> float | None:
    return next((float(values[name]) for name in names if name in values), None)


def _sentence(values: Mapping[str, float]) -> str:
    """Return the measurements for the log, in words."""
    words = {
        "train/loss": "loss {:.4f}",
        "train/tokens_per_s": "{:,.0f} tokens/s",
        "valid/loss": "held-out loss {:.4f}",
        "recall/train_wording/exact_match": "recall {:.3f}",
        "recall/train_wording/answer_nll": "answer NLL {:.3f}",
    }
    return ", ".join(text.format(values[name]) for name, text in words.items() if name in values)
