"""Entry of one rank: spec.json in, journal and result.json out. Everything a rank does besides training.

The work itself is a function `job(request, spec, reporter) -> metrics`, named in the request. `train`, below, is the
one that trains; another one may be given as `module:function` or `/path/to/file.py:function`. It must obey the
contract of `workloads.train.run`: resume from the trial's checkpoints folder, poll `reporter.should_stop()` once per
step, raise `workloads.ports.Interrupted` after checkpointing when asked to stop.
"""

import importlib
import importlib.util
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator import environment
from orchestrator.ending import EXIT_CODES
from orchestrator.journal import Journal
from orchestrator.lease import LeaseHeld, TrialLease
from orchestrator.processes import ProcessId
from orchestrator.records import Outcome, TrialSpec
from orchestrator.trial_dir import AttemptDir, TrialDir, write_json

LOG = logging.getLogger(__name__)
TRAIN = "orchestrator.worker:train"
HEARTBEAT_S = 1.0
"""How often heartbeat.json is replaced at most."""
LEASE_WAIT_S = 30.0
"""How long rank 0 waits for a dying predecessor to let go of the trial."""


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """What one rank must know. Plain values: it travels as JSON."""

    trial_path: str
    attempt: int
    rank: int
    ranks: int
    cpus: int
    """Cores, and torch threads, of this rank."""
    gpus: tuple[str, ...]
    """Ids of the GPUs this rank may use; () is the CPU."""
    cache: str
    """Folder of prepared data, shared by all trials."""
    micro_batch_tokens: int | None = None
    job: str = TRAIN

    @property
    def trial(self) -> TrialDir:
        """The trial's folder."""
        return TrialDir(Path(self.trial_path))

    @property
    def attempt_dir(self) -> AttemptDir:
        """The attempt's folder."""
        return self.trial.attempt(self.attempt)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {**asdict(self), "gpus": list(self.gpus)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "RankRequest":
        """Read what `to_json` wrote."""
        return cls(**{**record, "gpus": tuple(record["gpus"])})


JobFunction = Callable[[RankRequest, TrialSpec, "RankReporter"], dict[str, float]]


def load_job(name: str) -> JobFunction:
    """Return the function that a request names.

    Raises:
        ValueError: If the name has no function, or there is none of that name.
    """
    place, _, function = name.rpartition(":")
    if not place:
        raise ValueError(f"job must be module:function or file.py:function, got {name!r}")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None and spec.loader is not None, "a .py file always has a loader"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    found: JobFunction | None = getattr(module, function, None)
    if found is None:
        raise ValueError(f"job {name!r}: {place} has no function {function}")
    return found


def train(request: RankRequest, spec: TrialSpec, reporter: "RankReporter") -> dict[str, float]:
    """Train the trial with `workloads.train`."""
    trainer = importlib.import_module("workloads.train")
    job = trainer.Job(
        data=spec.data,
        model=spec.model,
        train=spec.train,
        seed=spec.seed,
        checkpoints=request.trial.checkpoints,
        cache=Path(request.cache),
        log_every_steps=spec.logging.every_steps,
        evaluations=spec.logging.evaluations,
        checkpoint_every_s=spec.logging.checkpoint_every_s,
        micro_batch_tokens=request.micro_batch_tokens,
        n_threads=request.cpus,
        device="auto" if request.gpus else "cpu",
        rank=request.rank,
        world_size=request.ranks,
        rendezvous=request.attempt_dir.path / "rendezvous.json" if request.ranks > 1 else None,
    )
    metrics: dict[str, float] = trainer.run(job, reporter)
    return metrics


class RankReporter:
    """Sends what a rank measures to the trial directory. Ranks other than 0 only listen for a stop."""

    def __init__(self, request: RankRequest, *, clock: Callable[[], float] = time.time) -> None:
        """Open the journal (rank 0)."""
        self._request = request
        self._clock = clock
        self._journal = Journal(request.attempt_dir.journal, clock=clock) if request.rank == 0 else None
        self._values: dict[str, float] = {}
        self._beat_at = -HEARTBEAT_S
        self._beat_phase: str | None = None
        self.stop_requested = False
        self.step = 0
        self.steps = 0

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append measurements to the journal."""
        if self._journal is not None:
            self._journal.metrics(step, values)

    def checkpoint(self, step: int, path: Path) -> None:
        """Put everything up to this checkpoint on the disk: a resume must find no gap before it."""
        if self._journal is not None:
            self._journal.event("checkpoint", step=step, path=path.name)
            self._journal.sync()

    def progress(self, step: int, steps: int, phase: str, values: Mapping[str, float]) -> None:
        """Replace heartbeat.json, about once a second and at every change of phase."""
        self.step, self.steps = step, steps
        self._values.update(values)
        now = self._clock()
        if now - self._beat_at >= HEARTBEAT_S or phase != self._beat_phase:
            self._beat_at, self._beat_phase = now, phase
            self._beat(phase)

    def _beat(self, phase: str) -> None:
        if self._request.rank != 0:
            return
        write_json(
            self._request.trial.path / "heartbeat.json",
            {
                "attempt": self._request.attempt,
                "pid": os.getpid(),
                "host": ProcessId.own().host,
                "step": self.step,
                "steps": self.steps,
                "phase": phase,
                "loss": _number(self._values, "loss", "train/loss"),
                "tokens_per_s": _number(self._values, "tokens_per_s", "train/tokens_per_s"),
                "updated_at": self._clock(),
            },
            durable=False,
        )

    def should_stop(self) -> bool:
        """Whether SIGTERM or SIGINT came."""
        return self.stop_requested

    def event(self, name: str, **fields: Any) -> None:
        """Append an event to the journal (rank 0)."""
        if self._journal is not None:
            self._journal.event(name, **fields)

    def close(self) -> None:
        """Put the journal on the disk, and leave the last step in heartbeat.json."""
        if self._journal is not None:
            self._journal.close()
        if self._beat_phase is not None:
            self._beat(self._beat_phase)


def _number(values: Mapping[str, float], *names: str) -> float | None:
    return next((float(values[name]) for name in names if name in values), None)


def main(request: RankRequest) -> int:
    """Run one rank from start to end; return its exit code. The boundary where a failure becomes a record."""
    stop = StopFlag()
    try:
        with stops_on_signal(stop):
            run(request, stop)
    except BaseException as error:  # every way to fail is written down, SystemExit of a library too
        outcome = classify(error)
        if outcome is Outcome.INTERRUPTED:
            LOG.info("trial %s: %s", request.trial.trial_id, error)
        else:
            traceback.print_exc()
            write_error(request, outcome, error, step=stop.step)
        return EXIT_CODES[outcome]
    return EXIT_CODES[Outcome.DONE]


def run(request: RankRequest, stop: "StopFlag | None" = None) -> None:
    """Do a rank's share; what the job raises goes through."""
    trial, leads = request.trial, request.rank == 0
    register(request)
    if trial.result() is not None:
        return
    spec = trial.spec()
    lease = TrialLease(trial)
    if leads:
        lease.acquire(wait_s=LEASE_WAIT_S)
    try:
        reporter = RankReporter(request)
        if stop is not None:
            stop.reporter = reporter
        if leads:
            record_environment(request.attempt_dir)
            reporter.event("start", attempt=request.attempt, ranks=request.ranks, pid=os.getpid())
        try:
            metrics = load_job(request.job)(request, spec, reporter)
            if leads:
                reporter.event("done", step=reporter.step)
        finally:
            reporter.close()
        if leads:
            write_result(request, spec, reporter, metrics)
    finally:
        lease.release()


def register(request: RankRequest) -> None:
    """Append this process to ranks.jsonl, so that whoever comes after a crash can see to its end."""
    line = json.dumps({"rank": request.rank, **ProcessId.own().to_json()}).encode() + b"\n"
    file = os.open(request.attempt_dir.path / "ranks.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def registered(attempt: AttemptDir) -> list[ProcessId]:
    """Return the processes that ran an attempt. A torn last line belongs to a process that was killed writing it."""
    try:
        lines = (attempt.path / "ranks.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [ProcessId.from_json(json.loads(line)) for line in lines if line.endswith("\n")]


def record_environment(attempt: AttemptDir) -> None:
    """Write environment.json: what this attempt ran on."""
    write_json(attempt.path / "environment.json", environment.record_environment())


def write_result(
    request: RankRequest, spec: TrialSpec, reporter: RankReporter, metrics: Mapping[str, float]
) -> None:
    """Write result.json, unless it is there: the first complete result stands.

    The record is written aside and linked, which fails when the name exists: no reader ever sees a part.
    """
    target = request.trial.path / "result.json"
    aside = target.with_name(f".result-{request.attempt:04d}.json")
    steps = reporter.steps or -(-int(spec.train["tokens"]) // int(spec.train["batch_tokens"]))
    write_json(
        aside,
        {
            "trial_id": request.trial.trial_id,
            "attempt": request.attempt,
            "finished_at": time.time(),
            "steps": steps,
            "tokens": steps * int(spec.train["batch_tokens"]),
            "device": device_name(request.gpus),
            "ranks": request.ranks,
            "metrics": {key: float(value) for key, value in metrics.items()},
        },
    )
    try:
        os.link(aside, target)
    except FileExistsError:
        LOG.warning("trial %s: a result is there already; it stands", request.trial.trial_id)
    finally:
        aside.unlink()


def device_name(gpus: tuple[str, ...]) -> str:
    """Return `cpu`, or the product name of the GPU that this rank uses."""
    torch = sys.modules.get("torch")
    if not gpus or torch is None or not torch.cuda.is_available():
        return "cpu"
    return str(torch.cuda.get_device_name(0))


def write_error(
    request: RankRequest, outcome: Outcome, error: BaseException, *, step: int | None
) -> None:
    """Write error.json. An earlier one stands, unless it is a communication error: those follow from others."""
    earlier = request.attempt_dir.error()
    if earlier is not None and (earlier["kind"] != Outcome.COMMUNICATION or outcome is Outcome.COMMUNICATION):
        return
    write_json(
        request.attempt_dir.path / "error.json",
        {
            "kind": outcome.value,
            "message": f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
            "traceback": "".join(traceback.format_exception(error)),
            "step": step,
            "rank": request.rank,
        },
    )


def classify(error: BaseException) -> Outcome:
    """Return the kind of failure an exception stands for, by the names of its classes: torch need not be imported."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"Interrupted", "KeyboardInterrupt"}:
        return Outcome.INTERRUPTED
    if "Diverged" in names:
        return Outcome.DIVERGED
    if isinstance(error, LeaseHeld):
        return Outcome.PREEMPTED
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error):
        return Outcome.HOST_OOM
    if names & {"OutOfMemoryError"} or "CUDA out of memory" in str(error):
        return Outcome.GPU_OOM
    if names & {"CommunicationError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"}:
        return Outcome.COMMUNICATION
    return Outcome.USER_ERROR


class StopFlag:
    """Carries a signal to the reporter, which may not exist yet when it comes."""

    def __init__(self) -> None:
        """Nothing came yet."""
        self._set = False
        self._reporter: RankReporter | None = None

    @property
    def step(self) -> int | None:
        """The step that the run was at, None before its first word."""
        return None if self._reporter is None else self._reporter.step

    @property
    def reporter(self) -> RankReporter | None:
        """Who is told."""
        return self._reporter

    @reporter.setter
    def reporter(self, reporter: RankReporter) -> None:
        self._reporter = reporter
        reporter.stop_requested = self._set

    def raise_flag(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self._set = True
        if self._reporter is not None:
            self._reporter.stop_requested = True


@contextmanager
def stops_on_signal(flag: StopFlag) -> Iterator[None]:
    """Turn SIGTERM and SIGINT into a request to checkpoint and leave."""
    before = {number: signal.signal(number, flag.raise_flag) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
