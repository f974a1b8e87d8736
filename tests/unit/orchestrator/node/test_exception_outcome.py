"""Classification of a rank's exceptions, and its short message about GPU memory."""

import errno

import pytest

from orchestrator.node.exception_outcome import exception_outcome, short_gpu_memory_message
from orchestrator.records.locks import LockHeld
from orchestrator.records.trial_spec import Outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("x"), Outcome.USER_ERROR),
        (SystemExit(3), Outcome.USER_ERROR),
        (KeyboardInterrupt(), Outcome.INTERRUPTED),
        (LockHeld("x"), Outcome.PREEMPTED),
        (RuntimeError("CUDA out of memory. Tried"), Outcome.GPU_OOM),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            Outcome.HOST_OOM,
        ),
        (type("DistNetworkError", (RuntimeError,), {})("x"), Outcome.COMMUNICATION),
        (type("Mine", (type("Diverged", (Exception,), {}),), {})("x"), Outcome.DIVERGED),
        (OSError(errno.ENOSPC, "No space left on device"), Outcome.DISK_FULL),
        (OSError(errno.EFBIG, "File too large"), Outcome.DISK_FULL),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Outcome.HOST_OOM),
        (OSError(errno.EIO, "Input/output error"), Outcome.STORAGE),
        (OSError(errno.ESTALE, "Stale file handle"), Outcome.STORAGE),
        (OSError(errno.EACCES, "Permission denied"), Outcome.USER_ERROR),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), Outcome.USER_ERROR),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Outcome.NODE_LOST),
        (RuntimeError("CUDA error: device-side assert triggered"), Outcome.USER_ERROR),
    ],
)
def test_kinds_of_failure(error, outcome):
    assert exception_outcome(error) is outcome


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server",
        "CUDA driver error: unspecified launch failure",
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
    ],
)
def test_faults_of_a_gpu_shared_by_mps_are_nobodys(message, monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    assert exception_outcome(RuntimeError(message)) is Outcome.USER_ERROR

    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    assert exception_outcome(RuntimeError(message)) is Outcome.GPU_FAULT
    assert exception_outcome(RuntimeError("CUDA error: out of memory")) is Outcome.GPU_OOM
    assert exception_outcome(RuntimeError("shapes do not fit")) is Outcome.USER_ERROR


# As torch 2.11 said on an H200 that fourteen trials shared.
SHARED_GPU = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total "
    "capacity of 139.80 GiB of which 128.63 GiB is free. Process 1712 has 3.06 GiB memory in use. "
    "Including "
    "non-PyTorch memory, this process has 3.37 GiB memory in use. Process 5306 has 734.00 MiB "
    "memory in use. 2.80 GiB allowed; Of the allocated memory 2.68 GiB is allocated by PyTorch, "
    "and 14.66 MiB is reserved by PyTorch but unallocated. See documentation for more"
)


@pytest.mark.parametrize(
    ("message", "short"),
    [
        (
            SHARED_GPU,
            "OutOfMemoryError: CUDA out of memory, Tried to allocate 128.00 MiB, GPU 0 has a total "
            "capacity of 139.80 GiB of which 128.63 GiB is free, this process has 3.37 GiB memory "
            "in use, 2.80 GiB allowed",
        ),
        ("RuntimeError: CUDA out of memory", "RuntimeError: CUDA out of memory"),
    ],
)
def test_reason_of_gpu_memory_is_about_this_process(message, short):
    assert short_gpu_memory_message(message) == short
