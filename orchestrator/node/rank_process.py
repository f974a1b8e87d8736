"""Process of a rank: runs one trial, or several of a kind one after another.

What a trial on a GPU needs before its first step stays with the process: CUDA's context, compiled
functions, libraries with their kernels, and of a small trial the model with its CUDA graphs
(`workloads.training.kept_step`). So a rank whose trial is done waits for the next of its kind, as
if it had just been forked: numbers do not depend on what ran before. A trial that ends in any other
way ends its process, and so does one that leaves a setting or GPU memory behind.
"""

import faulthandler
import gc
import json
import logging
import os
import random
import signal
import socket
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.node import worker
from orchestrator.node.forked_rank import DONE, READY
from orchestrator.node.reporter import StopFlag
from orchestrator.records.rank_registry import RankRequest

LOG = logging.getLogger(__name__)
KEPT_BYTES = 2**31
"""GPU memory up to which a process keeps what a trial leaves to the next: eight take a fifth of an
H100. Giving it back and building it anew takes longer than a small trial's first steps."""
LEFT_BYTES = 2**26
"""GPU memory that may stay where more than that is given back to others."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_trials(command: Mapping[str, Any], link: socket.socket | None) -> int:
    """Run the trial of a `start` command, then those that follow; return the exit code of the last.

    Args:
        command: As the fork server got it.
        link: Takes DONE and READY and gives the next command, a JSON line; None: there is none.
    """
    if link is None:
        _enter(command)
        return worker.main(RankRequest.from_json(command["request"]))
    streams = {number: os.dup(number) for number in (1, 2)}
    worker.between_trials = {}
    _enter(command)
    fresh = ProcessState()
    with link, link.makefile("rb") as commands:
        while True:
            stop = StopFlag()
            # Each trial's log gets the warnings that come once per process.
            with warnings.catch_warnings():
                code = worker.main(RankRequest.from_json(command["request"]), stop)
            # Somebody who asked a trial to leave meant the process: it does not take another.
            if code != 0 or stop.requested:
                return code
            # The controller chooses the next trial while this process is put in order.
            link.sendall(DONE)
            if not _restored(fresh):
                return code
            for number, stream in streams.items():
                os.dup2(stream, number)
            try:
                link.sendall(READY)
                line = commands.readline()
            except ConnectionError:  # the fork server wants no more of it
                return 0
            if not line:
                return 0
            command = json.loads(line)
            _enter(command)


def _restored(state: "ProcessState") -> bool:
    try:
        return state.restore()
    except Exception:
        # The trial is done all the same; a broken device, say, is the next process's to meet.
        LOG.exception("this process takes no other trial")
        return False


def _enter(command: Mapping[str, Any]) -> None:
    """Take log, environment and folder of a command."""
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable()  # a crash leaves the stacks of all threads in the log
    os.environ.update(command["env"])
    os.chdir(command["cwd"])


class ProcessState:
    """What a trial may change of its process beside its own objects."""

    def __init__(self) -> None:
        """Keep the state as it is now."""
        self._environment = dict(os.environ)
        self._settings = _settings()
        self._random = random.getstate()
        numpy, torch = _loaded()
        self._numpy_random = numpy and numpy.random.get_state()
        self._torch_random = None if torch is None else torch.get_rng_state()

    def restore(self) -> bool:
        """Put the state back, and memory too; return whether that left nothing changed."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Only what differs: other threads may read variables while one is set.
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        numpy, torch = _loaded()
        settings = _settings()
        if settings != self._settings:
            LOG.info("this process takes no other trial: settings %s", settings)
            return False
        random.setstate(self._random)
        if numpy is not None:
            numpy.random.set_state(self._numpy_random)
        if torch is not None:
            torch.set_rng_state(self._torch_random)
        gc.collect()
        left = _reset_gpu(torch)
        # What is left stays, so that the next collection need not look through the compiler.
        gc.freeze()
        # The peak of resident memory begins anew, where the kernel offers that.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        if left > LEFT_BYTES:
            LOG.info("this process takes no other trial: %d bytes of GPU memory stay", left)
        return left <= LEFT_BYTES


def _loaded() -> tuple[Any, Any]:
    """Return numpy and torch if they are imported: a job that does without them stays without."""
    return sys.modules.get("numpy"), sys.modules.get("torch")


def _settings() -> tuple[object, ...]:
    """Return what a trial sets for its duration, and puts back."""
    numpy, torch = _loaded()
    settings = (*map(signal.getsignal, _SIGNALS), numpy is None, torch is None)
    if torch is None:
        return settings
    return (
        *settings,
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
    )


def _reset_gpu(torch: Any) -> int:
    """Forget draws; give memory back where it is much, and return the bytes that stay even so.

    The peak of a process that keeps its memory is that of all its trials: they are of one kind.
    """
    if torch is None or not torch.cuda.is_initialized():
        return 0
    torch.cuda.synchronize()
    torch.cuda.manual_seed_all(torch.initial_seed())
    if worker.between_trials:
        if torch.cuda.memory_reserved() <= KEPT_BYTES:
            return 0
        # Its graphs know the workspaces of cuBLAS.
        worker.between_trials.clear()
        gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch._C._host_emptyCache()
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_reserved())
