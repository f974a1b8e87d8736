"""Seconds of a training step by kind of work: selection, bag, products, communication, optimizer.

    python benchmarks/step_profile.py memory_plus 3m                     # on a GPU
    python benchmarks/step_profile.py moe 3m --table-optimizer adamw
    python benchmarks/step_profile.py memory_plus d16 --device cpu --batch-tokens 512 --seq-len 64
    python benchmarks/step_profile.py memory_plus 373m --seq-len 2048 --vocab-size 32000 --top 25

A trial records its phases (docs/metrics.md, "Step time"); selection and bags lie inside of forward
and backward, and inside of compiled blocks. Here torch's profiler adds up the durations of kernels
by the operation that launched them, whatever graph they are in. Steps run compiled and not
captured: the kernels of a captured step are the same. Between kernels nothing counts, so the sum is
less than the wall time of an uncaptured step. On a CPU operations count with their own time, and
selection, which is plain torch there, is among others. `--top` lists single kernels too.
"""

import argparse
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from orchestrator.sweep import registry
from workloads.training import device as devices
from workloads.training.config import TrainConfig
from workloads.training.step.step_time import fresh_step
from workloads.training.step.usage_schedule import set_usage_recording

KINDS = {
    "selection": (
        "product_key_topk",
        "tucker_topk",
        "sign_hash",
        "best_experts",
        "rows_by_expert",
        "_SignHash",
    ),
    "bag": (
        "weighted_bag",
        "gathered_dot",
        "gated_bag",
        "hash_bag",
        "_WeightedBag",
        "_RowDot",
        "_SparseLookup",
    ),
    "experts": ("expert_mlp", "_grouped_mm", "_GroupedMM"),
    "communication": ("c10d::", "nccl", "gloo"),
    "attention": (
        "scaled_dot_product",
        "_attention",
        "_AllAttention",
        "_Chunked",
        "random_feature_sums",
    ),
    "optimizer": ("step optimizer", "Optimizer.step"),
    "products": ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"),
}
"""Parts of the names of operations, the first that fits an operation or one around it."""


def main() -> None:
    """Print milliseconds and share of the step for each kind of work."""
    arguments = _arguments()
    here = devices.pick(arguments.device, rank=0)
    bf16 = devices.uses_bf16("auto", here)
    with devices.numerics(here, n_threads=1, bf16=bf16), devices.gpu_stream(here):
        step = _step(arguments, here, bf16)
        for _ in range(4):
            step()
        activities = [ProfilerActivity.CPU]
        if here.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize()
        with profile(activities=activities) as found:
            for _ in range(arguments.steps):
                step()
            if here.type == "cuda":
                torch.cuda.synchronize()
    times = by_kind(found.events(), on_gpu=here.type == "cuda")
    total = sum(times.values())
    name = torch.cuda.get_device_name(here) if here.type == "cuda" else "CPU"
    print(f"{arguments.architecture} {arguments.preset} on {name}, torch {torch.__version__}")
    print("| kind | ms a step | share |\n|---|---|---|")
    for kind, microseconds in sorted(times.items(), key=lambda item: -item[1]):
        milliseconds = microseconds / arguments.steps / 1000
        print(f"| {kind} | {milliseconds:.3f} | {microseconds / total:.2f} |")
    if arguments.top:
        _print_kernels(found.events(), arguments.steps, arguments.top)


def _print_kernels(events: Iterable[Any], steps: int, top: int) -> None:
    """Print the kernels that take most of a step, of all launches together."""
    times: dict[str, list[float]] = {}
    for event in events:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times.setdefault(event.name, []).append(event.self_device_time_total)
    print("| kernel | launches a step | ms a step |\n|---|---|---|")
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:top]:
        print(f"| {name[:90]} | {len(each) / steps:g} | {sum(each) / steps / 1000:.3f} |")


def by_kind(events: Iterable[Any], *, on_gpu: bool) -> dict[str, float]:
    """Return microseconds per kind of work, of kernels or, on a CPU, of operations themselves."""
    times: dict[str, float] = {}
    for event in events:
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if own and event.device_type == torch.autograd.DeviceType.CPU:
            kind = _kind(event)
            times[kind] = times.get(kind, 0.0) + own
    return times


def _kind(event: Any) -> str:
    around = event
    while around is not None:
        for kind, parts in KINDS.items():
            if any(part in around.name for part in parts):
                return kind
        around = around.cpu_parent
    return "other"


def _step(arguments: argparse.Namespace, here: torch.device, bf16: bool) -> Any:
    """Return what takes one step on one batch."""
    module = registry.architecture(arguments.architecture)
    train = TrainConfig(
        tokens=arguments.batch_tokens,
        batch_tokens=arguments.batch_tokens,
        seq_len=arguments.seq_len,
        lr=1e-3,
        table_optimizer=arguments.table_optimizer,
        table_precision=arguments.table_precision,
    )
    training = fresh_step(
        module.Config(**module.PRESETS[arguments.preset]),
        train,
        vocab_size=arguments.vocab_size,
        here=here,
        passes=1,
        autocast=partial(devices.autocast, bf16=bf16, device=here),
        compiled=here.type == "cuda",
    )
    set_usage_recording(training.model, now=False)
    shape = (train.sequences_per_step, arguments.seq_len + 1)
    draw = torch.Generator().manual_seed(0)
    windows = torch.randint(arguments.vocab_size, shape, generator=draw).to(here)
    update = training.optimizer.update

    def named_update() -> None:
        with record_function("step optimizer"):
            update()

    training.optimizer.update = named_update  # type: ignore[method-assign]
    return partial(training, windows, lr=train.lr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("architecture", nargs="?", default="memory_plus")
    parser.add_argument("preset", nargs="?", default="3m")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--batch-tokens", type=int, default=16384)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--table-optimizer", default="rowwise")
    parser.add_argument("--table-precision", default="fp32")
    parser.add_argument("--top", type=int, default=0, help="kernels listed one by one")
    parser.add_argument("--steps", type=int, default=2, help="profiled, after four that warm up")
    return parser.parse_args()


if __name__ == "__main__":
    main()
