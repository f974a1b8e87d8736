"""Classification of a rank's exceptions, and its short message about GPU memory."""

import errno
from pathlib import Path

import pytest
import torch

from orchestrator.node.exception_outcome import exception_outcome, place, short_gpu_memory_message
from orchestrator.records.locks import LockHeld
from orchestrator.records.trial_spec import Outcome
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.norms import RMSNorm


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


def caught(function, *arguments):
    with pytest.raises(Exception) as info:  # noqa: PT011 -- of any kind
        function(*arguments)
    return info.value


def test_an_error_of_a_library_has_the_place_in_the_architecture_that_led_there(tmp_path):
    model = tmp_path / "workloads" / "architectures" / "mine.py"
    model.parent.mkdir(parents=True)
    model.write_text("def forward(layer, x):\n    return layer(x)\n")
    code = {}
    exec(compile(model.read_text(), str(model), "exec"), code)
    x = torch.ones(2, 16)

    of_torch, of_memscale = (
        place(caught(code["forward"], layer, x))
        for layer in (Linear(12, 16), RMSNorm(12, eps=1e-6))
    )

    assert of_torch == f"{model}:2"
    assert of_memscale.startswith("workloads/layers/modules/norms.py:")
    assert of_memscale.endswith(f", called in {model}:2")


def test_an_error_of_python_has_the_place_of_its_line():
    def unpack():
        a, b, c = torch.ones(2, 3).shape
        return a, b, c

    found = place(caught(unpack))

    assert found == f"tests/unit/orchestrator/node/{Path(__file__).name}:" + found.split(":")[-1]


def test_what_our_code_raises_says_itself_what_is_wrong():
    def refuse(message):
        raise ValueError(message)

    assert place(caught(refuse, "knn must be positive")) == ""
    assert place(caught(refuse, "")) != ""
    assert place(ValueError("never raised")) == ""


def refuse_width(x):
    raise ValueError(f"d_model must be 8, got {x.shape[-1]}")


def wrong_shape(x):
    return x @ torch.ones(3, 4)


@pytest.mark.parametrize("function", [refuse_width, wrong_shape])
def test_an_error_while_torch_translates_has_the_place_of_the_translated_line(function):
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    line = function.__code__.co_firstlineno + 1

    found = place(caught(compiled, torch.ones(2, 8)))

    assert found == f"tests/unit/orchestrator/node/{Path(__file__).name}:{line}"


@pytest.mark.parametrize("compiler", ["_inductor/output_code.py", "_dynamo/convert_frame.py"])
def test_an_error_of_code_that_torch_wrote_has_no_place(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    generated = tmp_path / "inductor" / "xn" / "cxn.py"
    library = tmp_path / "site-packages" / "torch" / compiler
    code = {}
    for file, text in ((generated, "def call(x): x @ x.ones(3)"), (library, "def run(x): call(x)")):
        exec(compile(text, str(file), "exec"), code)

    assert place(caught(lambda: code["run"](torch.ones(2)))) == ""
