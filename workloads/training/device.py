"""Device, threads, precision and determinism of a rank."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from workloads.distributed.process_group import RankGroup
from workloads.field_error import FieldError

MAX_CPU_LOGITS = 6_000_000
"""Logits of one forward pass on a CPU: 24 MB, reusable memory that mostly fits a cache. See
`_keep_freed_memory`."""
MAX_LOGITS = {"cpu": MAX_CPU_LOGITS, "cuda": 2**28}
"""Logits of one forward pass of an evaluation; bounds memory (fp32 on a GPU: 1 GiB)."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def pick(name: str, *, rank: int) -> torch.device:
    """Return the device of a rank; `auto` is a GPU where torch sees one.

    Ranks take the visible GPUs in turn.

    Raises:
        FieldError: If the name is unknown, or asks for a GPU where there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise FieldError("device", "must be auto, cpu or cuda", repr(name))
    visible = torch.cuda.device_count() if name != "cpu" and torch.cuda.is_available() else 0
    if name == "cuda" and not visible:
        rule = ": cuda was asked for, but torch sees no GPU"
        raise FieldError("device", rule, fix="use auto or cpu")
    return torch.device("cuda", rank % visible) if visible else torch.device("cpu")


def distinct_gpus(world: RankGroup, here: torch.device) -> list[str]:
    """Return the product names of the GPUs that the ranks of a trial use, each once.

    Every rank must call this. Empty on a CPU.
    """
    if here.type != "cuda":
        return []
    found: Any = torch.cuda.get_device_properties(here)
    own = (str(getattr(found, "uuid", f"{platform.node()} {here.index}")), str(found.name))
    return [*dict(world.all_gather_objects(own)).values()]


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether matrix products run in bf16: when asked for, or `auto` on a GPU with bf16 units."""
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16"


def autocast(*, bf16: bool, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass: bf16 autocast, or nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16)


@contextmanager
def numerics(device: torch.device, *, n_threads: int, bf16: bool) -> Iterator[None]:
    """Set threads, fp32 matrix precision and determinism for a run; put them back afterwards.

    fp32 means fp32: TF32 is allowed only where bf16 was chosen anyway. On a CPU only deterministic
    kernels are used, which costs nothing there; filling fresh memory, which would, is left out.

    On a GPU matrix products repeat bit for bit (`_fix_cublas_workspace`), and so do our kernels.
    So do compiled blocks (`INDUCTOR_OPTIONS`). In the last bits torch's sums with atomics may not:
    in scatters of some architectures, whose deterministic forms are several times slower, and in
    attention's backward pass over more than two blocks of keys (measured: docs/benchmarks.md,
    "Whether steps repeat to the bit").
    """
    deterministic: Any = torch.utils.deterministic
    before = (
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        deterministic.fill_uninitialized_memory,
    )
    torch.set_num_threads(n_threads)
    torch.set_float32_matmul_precision("high" if bf16 and device.type == "cuda" else "highest")
    torch.use_deterministic_algorithms(device.type == "cpu")
    deterministic.fill_uninitialized_memory = False
    if device.type == "cuda":
        _fix_cublas_workspace()
        torch.cuda.set_device(device)
    else:
        _keep_freed_memory()
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
        torch.use_deterministic_algorithms(before[2])
        deterministic.fill_uninitialized_memory = before[3]


@contextmanager
def for_inference(name: str, precision: str) -> Iterator[tuple[torch.device, bool]]:
    """Set the numerics for a trained model; yield its device, and whether it computes in bf16.

    Args:
        name: auto, cpu or cuda.
        precision: auto, fp32 or bf16, as in training.
    """
    here = pick(name, rank=0)
    bf16 = uses_bf16(precision, here)
    with numerics(here, n_threads=torch.get_num_threads(), bf16=bf16):
        yield here, bf16


@contextmanager
def gpu_stream(device: torch.device) -> Iterator[None]:
    """Compute with the attention kernels that suit a GPU, and on a stream of its own.

    CUDA graphs cannot be captured on the default stream. Fused attention prefers cuDNN's kernels:
    forward and backward take 0.5 to 0.6 of the time of flash attention's on an H200 where both can
    run. On a CPU nothing changes.
    """
    if device.type != "cuda":
        yield
        return
    with (
        torch.cuda.stream(_own_stream(device)),
        _attention(SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION),
    ):
        yield


def varying_shapes(device: torch.device) -> AbstractContextManager[object]:
    """Compute with the attention kernels that suit inputs of many shapes on a GPU.

    cuDNN makes a plan for each new shape, and every batch of a suite has its own. A 3m model was
    asked its first suite and questions in 8.6 s with flash attention, in 16.2 s with cuDNN's
    (docs/benchmarks.md, "Suites asked during training"). On a CPU nothing changes.
    """
    if device.type != "cuda":
        return nullcontext()
    return _attention(SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)


def _attention(*first: SDPBackend) -> AbstractContextManager[object]:
    """Attend with the first of these kernels that can run, or else with plainer ones."""
    order = [*first, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    context: AbstractContextManager[object] = sdpa_kernel(order, set_priority=True)
    return context


@cache
def _own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream of this process: cuBLAS keeps a workspace for each, and graphs know it."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _fix_cublas_workspace() -> None:
    """Let a matrix product have the same bits whatever the process's other streams compute.

    cuBLAS promises that only for a workspace that is fixed ("Results reproducibility" in its
    documentation). Without it 16 of 16 resumed trials with prefetched rows differed from ones that
    went through, with it none of 24. Compile caches were filled. With empty ones some still did,
    since each trial of a process compiled its blocks anew, and a second compilation may differ. Now
    a process's trials share one, and six of six comparisons were equal (docs/benchmarks.md, as for
    `numerics`).

    This is the size that torch takes on Hopper anyway. cuBLAS reads it when a process first
    multiplies, so it stays for the process. So does a user's setting, and that of an attempt's
    rank, which has it from its start (`orchestrator/node/hardware.py`).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _keep_freed_memory() -> None:
    """Tell glibc, where that is the allocator, to keep freed blocks for the next step.

    By default it returns them to the kernel, which hands out zeroed pages again: measured at up to
    a quarter of a step. Blocks of 32 MiB and more are always returned, so the trainer keeps its own
    below that (`MAX_CPU_LOGITS`).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(_M_TRIM_THRESHOLD, 2**30)


def seed(value: int, device: torch.device) -> None:
    """Seed what a model may draw from.

    Called at every step with a number that names the step, so that a resumed run draws what the
    undisturbed one drew; `torch.manual_seed` would do the same and takes 0.1 ms.
    """
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU's current stream has done all it was given; a CPU works in order."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
