"""A job for tests: counts steps with a running sum instead of training, and can be told to misbehave.

Behaves like `workloads.training.train.run`: resumes from the checkpoints folder, polls `should_stop` once per step, checkpoints
and raises Interrupted when asked to leave. What it does beyond that is said in `spec.data`:

    fail          {attempt: kind}  raise that kind of error at half of the steps
    gate_at       step before which rank 0 of attempt 1 waits for a file `go` in the trial's folder (`at-gate` says it is there)
    gate_all      with gate_at: the other ranks wait there too (`at-gate-1`, …)
    deaf          with gate_at: do not listen for a stop while waiting
    writes        with gate_at: when asked to stop, write a checkpoint without end, until `go` says it is complete; while there
                  is a file `stuck`, without a byte
    segfaults     die at once of a segmentation fault
    dies_where    die at once where this variable is in the environment: on a node that is started with it
"""

import json
import os
import signal
import threading
from pathlib import Path

from workloads.training.metrics.reporter import Diverged, Interrupted

POLL_S = 0.005


class CommunicationError(Exception):
    """Named like the one in workloads.distributed.process_group."""


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


ERRORS = {
    "user": ValueError("train.lr: must be positive"),
    "oom": OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
    "host_oom": MemoryError("cannot allocate"),
    "diverged": Diverged("loss is nan at step 3"),
    "communication": CommunicationError("barrier between ranks failed: closed"),
}


def run(request, spec, reporter):
    steps = spec.train["tokens"] // spec.train["batch_tokens"]
    every = spec.data.get("checkpoint_every", 2)
    folder = request.trial.checkpoints
    saved = sorted(folder.glob("step-*")) if folder.is_dir() else []
    state = json.loads(saved[-1].read_text()) if saved else {"step": 0, "sum": float(spec.seed)}
    print(f"rank {request.rank} of {request.ranks} goes on from step {state['step']}", flush=True)
    with (request.attempt_dir.path / f"seen-{request.rank}.json").open("w") as file:
        json.dump(
            {
                "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
                "mps": os.environ.get("CUDA_MPS_PIPE_DIRECTORY"),
                "cwd": str(Path.cwd()),
                "pid": os.getpid(),
            },
            file,
        )
    if spec.data.get("segfaults"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if spec.data.get("dies_where", "") in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    reporter.progress(state["step"], steps, "train", {})
    metrics = {}
    while state["step"] < steps:
        step = state["step"] + 1
        if request.rank == 0 or spec.data.get("gate_all"):
            _wait_at_gate(request, spec, reporter, state)
        if request.rank == 0 and reporter.should_stop():
            if spec.data.get("writes"):
                _write_until_go(request, state, steps, reporter)
            _save(folder, state, reporter)
            raise Interrupted(state["step"])
        kind = spec.data.get("fail", {}).get(str(request.attempt))
        if kind and step > steps // 2:
            raise ERRORS[kind]
        state = {"step": step, "sum": state["sum"] * 1.000001 + 1.0 / (step + spec.seed)}
        metrics = {"train/loss": state["sum"]}
        reporter.progress(step, steps, "train", {"loss": state["sum"], "tokens_per_s": 1000.0})
        reporter.metrics(step, metrics)
        if request.rank == 0 and step % every == 0:
            _save(folder, state, reporter)
    return metrics


def _write_until_go(request, state, steps, reporter):
    reporter.progress(state["step"], steps, "checkpoint", {})
    (request.trial.path / "at-checkpoint").touch()
    pause, piece = threading.Event(), bytes(2**24)
    with (request.trial.path / "large").open("wb", buffering=0) as file:
        while not (request.trial.path / "go").exists():
            if (request.trial.path / "stuck").exists():
                (request.trial.path / "is-stuck").write_text("a heartbeat")
            else:
                os.pwrite(file.fileno(), piece, 0)
            pause.wait(POLL_S)


def _save(folder, state, reporter):
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{state['step']:08d}"
    aside = folder / ".tmp"
    aside.write_text(json.dumps(state))
    aside.rename(path)
    reporter.checkpoint(state["step"], path)


def _wait_at_gate(request, spec, reporter, state):
    if request.attempt > 1 or state["step"] + 1 != spec.data.get("gate_at"):
        return
    (request.trial.path / ("at-gate" if request.rank == 0 else f"at-gate-{request.rank}")).touch()
    pause, gate = threading.Event(), request.trial.path / "go"
    while not gate.exists():
        if reporter.should_stop() and not spec.data.get("deaf"):
            return
        pause.wait(POLL_S)
