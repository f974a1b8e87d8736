"""Classification of a rank's exceptions: which `Outcome` one stands for."""

import errno
import os
import re

from orchestrator.node.mps import PIPES
from orchestrator.records import storage_errors
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


def short_gpu_memory_message(message: str) -> str:
    """Return what torch's paragraph says of this process; all of it is in the traceback."""
    found = [match[0] for pattern in GPU_MEMORY if (match := re.search(pattern, message))]
    return ", ".join((message.partition(". ")[0], *found))
