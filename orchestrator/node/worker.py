"""Entry point of one rank: spec.json in, journal and result.json out.

The work itself is a function `job(request, spec, reporter) -> metrics`, named in the request.
`train`, below, is the one that trains; another one may be given as `module:function` or
`/path/to/file.py:function`. It must obey the contract of `workloads.training.train.run`: resume
from the trial's checkpoints folder, poll `reporter.should_stop()` once per step, and raise
`workloads.training.metrics.reporter.Interrupted` after checkpointing when asked to stop.
"""

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.control.failure_classifier import EXIT_CODES
from orchestrator.node.exception_outcome import (
    exception_outcome,
    place,
    short_gpu_memory_message,
)
from orchestrator.node.progress_board import ProgressWriter
from orchestrator.node.reporter import RankReporter, StopFlag, stops_on_signal
from orchestrator.records import provenance, storage_errors
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.json_files import write_json
from orchestrator.records.locks import TrialLock
from orchestrator.records.rank_registry import RankRequest, register
from orchestrator.records.trial_spec import GPU_PEAK, RSS_PEAK, Outcome, TrialSpec

LOG = logging.getLogger(__name__)
LOCK_WAIT_S = 30.0
"""How long rank 0 waits for a dying predecessor to release the trial."""


between_trials: dict[str, Any] | None = None
"""What a trial leaves to the next one of its kind in this process; None: there is no next one."""
JobFunction = Callable[[RankRequest, TrialSpec, RankReporter], dict[str, float]]


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
        assert spec is not None, "a .py file always has a spec"
        assert spec.loader is not None, "and a loader"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    found: JobFunction | None = getattr(module, function, None)
    if found is None:
        raise ValueError(f"job {name!r}: {place} has no function {function}")
    return found


def train(request: RankRequest, spec: TrialSpec, reporter: RankReporter) -> dict[str, float]:
    """Train the trial with `workloads.training.train`."""
    trainer = importlib.import_module("workloads.training.train")
    cap_gpu_memory(request)
    job = trainer.RankJob(
        data=spec.data,
        data_sha256=spec.data_sha256,
        model=spec.model,
        train=spec.train,
        seed=spec.seed,
        from_pretrained=Path(spec.from_pretrained) if spec.from_pretrained else None,
        from_pretrained_sha256=spec.from_pretrained_sha256,
        checkpoints=request.trial.checkpoints,
        cache=Path(request.cache),
        log_every_steps=spec.logging.every_steps,
        evaluations=spec.logging.evaluations,
        checkpoint_every_s=spec.logging.checkpoint_every_s,
        usage_every_steps=spec.logging.usage_every_steps,
        micro_batch_tokens=request.micro_batch_tokens,
        memory_halvings=request.memory_halvings,
        activation_checkpointing=spec.resources.activation_checkpointing,
        n_threads=request.cpus,
        device="auto" if request.gpus else "cpu",
        gpus=(request.attempt_dir.launch() or {}).get("gpus") if request.gpus else None,
        rank=request.rank,
        world_size=request.ranks,
        memory_ranks=spec.resources.memory_ranks,
        memory_layout=spec.resources.memory_layout,
        memory_tables=spec.resources.memory_tables,
        dense_parameters=spec.resources.dense_parameters,
        compile=spec.resources.compile,
        rendezvous=request.attempt_dir.path / "rendezvous.json" if request.ranks > 1 else None,
        address=request.address,
    )
    metrics: dict[str, float] = trainer.run(
        job, reporter, benchmarks=benchmarks(request, spec), between=between_trials
    )
    return {**metrics, **host_memory_peak(), **gpu_memory_peak(request)}


def benchmarks(request: RankRequest, spec: TrialSpec) -> Any:
    """Return the benchmarks that the trial's sweep asks during training; None if it asks none.

    Raises:
        ValueError: If a suite, or a file of one, is not there, or the model cannot answer.
    """
    schedule = spec.evaluation
    if schedule is None or schedule.rows is None or schedule.skipped is not None:
        return None
    steps = spec.steps

    def keep(suite: str, record: dict[str, Any]) -> None:
        request.trial.add_evaluation(suite, record, final=record["step"] == steps)

    return importlib.import_module("workloads.evaluation.in_training").load(
        schedule.suites,
        Path(schedule.data) if schedule.data is not None else None,
        questions=Path(schedule.questions) if schedule.questions is not None else None,
        model=spec.model,
        seq_len=int(spec.train["seq_len"]),
        rows=schedule.rows,
        steps=schedule.steps(steps),
        keep=keep,
        most_share=schedule.most_share,
    )


def cap_gpu_memory(request: RankRequest) -> None:
    """Make a rank on a share of a GPU run out of memory itself rather than its neighbours."""
    torch = sys.modules.get("torch")
    if request.gpu_memory_share is not None and torch is not None and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(request.gpu_memory_share)


def host_memory_peak() -> dict[str, float]:
    """Return the peak resident memory of this process, libraries included, as a metric."""
    return {RSS_PEAK: 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def gpu_memory_peak(request: RankRequest) -> dict[str, float]:
    """Return the peak memory of torch on this rank's GPU, as a metric; nothing on a CPU."""
    torch = sys.modules.get("torch")
    if not request.gpus or torch is None or not torch.cuda.is_available():
        return {}
    return {GPU_PEAK: float(torch.cuda.max_memory_reserved())}


def main(request: RankRequest, stop: StopFlag | None = None) -> int:
    """Run one rank from start to end; return its exit code.

    The boundary where a failure becomes a record. Afterwards `stop` says whether a signal came.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    stop = stop or StopFlag()
    reporter: RankReporter | None = None
    progress_writer = ProgressWriter()
    progress_writer.dump_on_signal()
    with contextlib.closing(progress_writer), stops_on_signal(stop):
        try:
            gpus = request.trial.spec().resources.gpus
            shares_gpus = not isinstance(gpus, str) and gpus / request.ranks < 1
            reporter = RankReporter(
                request, stop, progress_writer=progress_writer, shares_gpus=shares_gpus
            )
            run(request, reporter)
        # Every way to fail is written down, SystemExit of a library too.
        except BaseException as error:
            outcome = exception_outcome(error)
            # What fails after the attempt was closed has no say in how it ended.
            if outcome is Outcome.INTERRUPTED or request.attempt_dir.is_closed():
                LOG.info("trial %s: %s", request.trial.trial_id, error)
            else:
                # The exit code gives the outcome where storage takes neither log nor record.
                with contextlib.suppress(OSError):
                    traceback.print_exc()
                with contextlib.suppress(OSError):
                    write_error(request, outcome, error, step=reporter.step if reporter else None)
            return EXIT_CODES[outcome]
    return EXIT_CODES[Outcome.DONE]


def run(request: RankRequest, reporter: RankReporter) -> None:
    """Run a rank's job; what it raises goes through."""
    trial, leads = request.trial, request.rank == 0
    register(request)
    if trial.result() is not None:
        return
    spec = trial.spec()
    lock = TrialLock(trial, attempt=request.attempt)
    if leads:
        lock.acquire(wait_s=LOCK_WAIT_S)
    try:
        reporter.check_fence()
        if leads:
            record_environment(request.attempt_dir)
        reporter.event("start", attempt=request.attempt, ranks=request.ranks, pid=os.getpid())
        try:
            metrics = load_job(request.job)(request, spec, reporter)
            reporter.event("done", step=reporter.step)
        finally:
            reporter.close()
        reporter.check_fence()
        if leads:
            write_result(request, spec, reporter, metrics)
    finally:
        lock.release()


def record_environment(attempt: AttemptDir) -> None:
    """Write environment.json: what this attempt ran on. For one process it is found out once."""
    record = {**_environment(), "recorded_at": time.time()}
    write_json(attempt.path / "environment.json", record)


_environment = functools.cache(provenance.record_environment)


def write_result(
    request: RankRequest, spec: TrialSpec, reporter: RankReporter, metrics: Mapping[str, float]
) -> None:
    """Write result.json, unless it is there: the first complete result stands.

    The record is written aside and linked, which fails when the name exists: no reader sees a part.
    """
    target = request.trial.path / "result.json"
    aside = target.with_name(f".result-{request.attempt:04d}.json")
    steps = reporter.steps or spec.steps
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
    """Write error.json.

    An earlier one stands, unless it is a communication error: those follow from others.
    """
    earlier = request.attempt_dir.error()
    if earlier is not None and (
        earlier["kind"] != Outcome.COMMUNICATION or outcome is Outcome.COMMUNICATION
    ):
        return
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if outcome is Outcome.DISK_FULL:
        message = storage_errors.full_message(error, request.trial.path, Path(request.cache))
    elif outcome is Outcome.STORAGE:
        message = storage_errors.failing_message(error, request.trial.path)
    elif outcome is Outcome.GPU_OOM:
        message = short_gpu_memory_message(message)
    elif outcome is Outcome.USER_ERROR and (found := place(error)):
        first, line_end, rest = message.partition("\n")
        message = f"{first} (at {found}){line_end}{rest}"
    write_json(
        request.attempt_dir.path / "error.json",
        {
            "kind": outcome.value,
            "message": message,
            "traceback": "".join(traceback.format_exception(error)),
            "step": step,
            "rank": request.rank,
        },
    )
