"""Classification of a rank's exceptions by `Outcome`, and where they came from."""

import errno
import itertools
import os
import re
import traceback
from pathlib import Path

import orchestrator
from orchestrator.node.mps import PIPES
from orchestrator.node.progress_board import is_ours
from orchestrator.records import storage_errors
from orchestrator.records.code_digest import ARCHITECTURES
from orchestrator.records.locks import Fenced, LockHeld
from orchestrator.records.trial_spec import Outcome

BROKEN_DEVICE = (
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "is/are busy or unavailable",
    "hardware error",
    "system not yet initialized",
    "Unable to determine the device handle",
)
"""Messages of CUDA (cudaError_t) and NVML when the GPU is at fault and not the program."""
COMMUNICATION = {
    "CommunicationError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "DistError",
}
"""Class names of errors that follow from another rank's."""
FROM_GPU = re.compile(
    r"CUDA (driver )?error|Triton Error \[CUDA\]|CUBLAS_STATUS|CUDNN_STATUS|cuDNN"
)
"""Messages of torch and Triton on errors that the GPU, or the way to it, reports."""
GPU_MEMORY = (
    r"Tried to allocate [\d.]+ \w+",
    r"GPU \d+ has a total capacity of [\d.]+ \w+ of which [\d.]+ \w+ is free",
    r"this process has [\d.]+ \w+ memory in use",
    r"[\d.]+ \w+ allowed",
)
"""What torch's message on CUDA memory says of this process; the rest is on others, and hints."""
COMPILER = ("/torch/_dynamo/convert_frame", "/torch/_inductor/")
"""What torch.compile's own frames have in their paths while it translates, and runs its code."""


def exception_outcome(error: BaseException) -> Outcome:
    """Return the kind of failure, by the names of the classes: torch need not be imported."""
    names = {kind.__name__ for kind in type(error).__mro__}
    message = str(error)
    if names & {"Interrupted", "KeyboardInterrupt"}:
        return Outcome.INTERRUPTED
    if "Diverged" in names:
        return Outcome.DIVERGED
    if isinstance(error, LockHeld):
        return Outcome.PREEMPTED
    if isinstance(error, Fenced):
        return Outcome.NODE_LOST
    if storage_errors.is_full(error):
        return Outcome.DISK_FULL
    if storage_errors.is_failing(error):
        return Outcome.STORAGE
    if (
        isinstance(error, MemoryError)
        or "DefaultCPUAllocator: can't allocate memory" in message
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    ):
        return Outcome.HOST_OOM
    if "OutOfMemoryError" in names or re.search(r"CUDA( error:)? out of memory", message):
        return Outcome.GPU_OOM
    if any(phrase in message for phrase in BROKEN_DEVICE):
        return Outcome.NODE_LOST
    if PIPES in os.environ and FROM_GPU.search(message):
        # MPS tells every client of a fault, and none whose it was.
        return Outcome.GPU_FAULT
    if names & COMMUNICATION:
        return Outcome.COMMUNICATION
    return Outcome.USER_ERROR


def place(error: BaseException) -> str:
    """Return the innermost line of ours that led to an error, and that of the architecture.

    `workloads/layers/modules/norms.py:173, called in workloads/architectures/mine.py:55`. Empty
    where there is none, and for what our own code raises: its message says what is wrong. Empty,
    too, where the code that torch.compile made failed: it does not know the line it came from.
    """
    # The lines that dynamo was translating are not on Python's stack.
    translated = getattr(error, "real_stack", None) or ()
    frames = [*traceback.extract_tb(error.__traceback__), *translated]
    ours = [frame for frame in frames if is_ours(frame.filename)]
    if not ours:
        return ""
    if str(error) and not translated and frames[-1] is ours[-1] and _raises(ours[-1]):
        return ""
    below = itertools.takewhile(lambda frame: frame is not ours[-1], reversed(frames))
    if any(part in frame.filename for frame in below for part in COMPILER):
        return ""
    models = (one for one in ours[::-1] if Path(one.filename).parent.match(str(ARCHITECTURES)))
    caller = next(models, ours[-1])
    called = "" if caller is ours[-1] else f", called in {_at(caller)}"
    return f"{_at(ours[-1])}{called}"


def _raises(frame: traceback.FrameSummary) -> bool:
    return (frame.line or "").startswith("raise ")


def _at(frame: traceback.FrameSummary) -> str:
    root, file = Path(orchestrator.__file__).parent.parent, Path(frame.filename)
    return f"{file.relative_to(root) if file.is_relative_to(root) else file}:{frame.lineno}"


def short_gpu_memory_message(message: str) -> str:
    """Return what torch's paragraph says of this process; all of it is in the traceback."""
    found = [match[0] for pattern in GPU_MEMORY if (match := re.search(pattern, message))]
    return ", ".join((message.partition(". ")[0], *found))
