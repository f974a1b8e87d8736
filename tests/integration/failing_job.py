"""Real training that runs into real failures: `spec.origin` names one for each of the first attempts, in order."""

import os
import resource
import shutil
import signal
import socket
import threading
from pathlib import Path

import torch

from orchestrator.node.worker import train

AT = (10, 13, 16)
"""After which step each attempt fails: beyond what the one before may have saved."""
MEBIBYTE = 2**20


class Failing:
    """The reporter of a rank, which fails when training says that the attempt's step of AT is done."""

    def __init__(self, reporter, request, causes):
        self.reporter, self.request = reporter, request
        self.cause = dict(enumerate(causes.split(), 1)).get(request.attempt)
        self.metrics, self.checkpoint = reporter.metrics, reporter.checkpoint
        self.should_stop = reporter.should_stop

    def progress(self, step, steps, phase, values):
        self.reporter.progress(step, steps, phase, values)
        if self.cause in CAUSES and phase == "train" and step == AT[self.request.attempt - 1]:
            print(f"rank {self.request.rank}: {self.cause}", flush=True)
            CAUSES[self.cause](self)


def gpu_oom(trial):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def host_oom(trial):
    """The process may not grow by more than a little, and wants more: malloc fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MEBIBYTE, resource.RLIM_INFINITY))
    torch.zeros(1024 * MEBIBYTE)


def kernel_oom(trial):
    """The cgroup may not grow by more than a little: the kernel kills what does."""
    (Path(os.environ["TEST_CGROUP"]) / "cgroup.procs").write_text(str(os.getpid()))
    torch.ones(512 * MEBIBYTE)


def hang(trial):
    """Rank 1 never comes to the next collective; rank 0 waits for it there."""
    if trial.request.rank == 1:
        threading.Event().wait()


def lost_connection(trial):
    """What a switch that fails does to the sockets between ranks."""
    if trial.request.rank == 1:
        for link in list(Path("/proc/self/fd").iterdir()):
            shut(link)


def shut(link):
    try:
        if not str(link.readlink()).startswith("socket:"):
            return
        with socket.socket(fileno=os.dup(int(link.name))) as end:
            end.getpeername()  # a listening socket has none: shutting that down would abort the process
            end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def killed(trial):
    if trial.request.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def stopped(trial):
    """SIGSTOP, as of a debugger or a frozen container: it runs no line, and answers nothing."""
    os.kill(os.getpid(), signal.SIGSTOP)


def preempted(trial):
    """Only one rank is told."""
    if trial.request.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def slow(trial):
    """Longer than its time limit, but it listens."""
    pause = threading.Event()
    while not trial.should_stop():
        pause.wait(0.05)


def disk_full(trial):
    """Somebody else takes all that is left."""
    filler = trial.request.trial.path.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (MEBIBYTE, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def storage(trial):
    """The trial's folder can be neither read nor written until the flag is gone (tests/chaos/faults)."""
    Path(os.environ["CHAOS_STORAGE"].partition(":")[0]).write_text("EIO")


def removed(trial):
    """Somebody deletes the trial's folder while it trains."""
    shutil.rmtree(trial.request.trial.path)


CAUSES = {
    cause.__name__: cause
    for cause in (
        gpu_oom,
        host_oom,
        kernel_oom,
        hang,
        lost_connection,
        killed,
        stopped,
        preempted,
        slow,
        disk_full,
        storage,
        removed,
    )
}


def run(request, spec, reporter):
    return train(request, spec, Failing(reporter, request, spec.origin))
