"""Times selection and reads of an UltraMemV2 layer on one GPU beside what they replaced.

    python benchmarks/ultramem_layer.py              # a layer at 30m: 32,768 tokens, 2 x 480 sub-keys
    python benchmarks/ultramem_layer.py --variants   # tiles of each kernel of selection too

Times are of captured CUDA graphs, ms: of the choice, and of it with all gradients. "Plain torch" is
the reference with TF32 products, as a bf16 step has them: eager, and compiled. "same ids" is the
share equal to float64's choice over the first 4,096 tokens. Errors are relative norms against
float64 with the chosen ids: scores, and gradients of query, sub-keys and core. Reads are of uniform
ids; their errors are of the output and of the gradients of values, pre-values, scores and input.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from gpu_required import require_gpu
from gpu_timing import captured, median_ms
from torch import Tensor

from workloads.kernels.gated_bag.op import gated_bag
from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.product_key_topk import triton as product_keys
from workloads.kernels.product_key_topk.triton import Tile
from workloads.kernels.tucker_topk import backward, op, reference
from workloads.kernels.tucker_topk import triton as kernels
from workloads.kernels.weighted_bag.op import weighted_bag

TOKENS, HEADS, RANK, N_KEYS, HALF_KEY_DIM, KNN = 32_768, 1, 2, 480, 128, 16
VALUE_DIM = 128
CHECKED = 4096

Change = tuple[Any, str, Any]
"""A module, the name of a constant there, and another value."""


def _tile(*sizes: int, **others: int) -> Change:
    return product_keys, "_tile", lambda *_: Tile(*sizes, **others)


FORWARD: dict[str, list[Change]] = {
    "64 tokens, 64 keys": [_tile(64, 64, 64, 256, warps=4, stages=2)],
    "64 tokens, 96 keys": [_tile(64, 32, 96, 256, warps=4, stages=2)],
    "128 tokens, 64 and 128 keys": [_tile(128, 64, 128, 256, warps=8, stages=2)],
    "128 tokens, 32 keys": [_tile(128, 32, 32, 256, warps=8, stages=3)],
    **{
        f"{numbers} numbers, {warps} warps a token": [
            (kernels, "MOST_NUMBERS", numbers),
            (kernels, "TOKEN_WARPS", warps),
        ]
        for numbers, warps in ((1024, 1), (4096, 2), (4096, 4), (8192, 4), (8192, 8))
    },
}
BACKWARD: dict[str, list[Change]] = {
    **{
        f"{compared} pairs compared": [(backward, "COMPARED", compared)]
        for compared in (2**11, 2**12, 2**14)
    },
    "one share of the tokens": [(backward, "KEY_PROGRAMS", 0)],
    "256 blocks of products": [(backward, "KEY_PROGRAMS", 256)],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", action="store_true", help="time other tiles too")
    arguments = parser.parse_args()
    require_gpu()
    torch.set_float32_matmul_precision("high")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    inputs = _inputs()
    line = "{:<40} {:>8} {:>9}  {}"
    print(line.format("", "forward", "both", "same ids, errors"))
    runs = {
        "plain torch": reference.tucker_topk,
        "plain torch, compiled": torch.compile(reference.tucker_topk, dynamic=False),
        "ours": op.tucker_topk,
    }
    for name, run in runs.items():
        times = [f"{_time(step):.3f}" for step in _steps(run, inputs)]
        checks = _checks(run, inputs) if "compiled" not in name else ""
        print(line.format(name, *times, checks), flush=True)
    _each_kernel(_steps(op.tucker_topk, inputs)[1])
    _reads(line)
    if arguments.variants:
        for which, variants in ((0, FORWARD), (1, BACKWARD)):
            for name, changes in variants.items():
                cells = ["", ""]
                with _changed(changes):
                    try:
                        cells[which] = f"{_time(_steps(op.tucker_topk, inputs)[which]):.3f}"
                    except Exception as error:
                        name = f"{name}: {type(error).__name__}"
                    print(line.format(f"  {name}", *cells, ""), flush=True)


def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Return query, sub-keys and core as a layer has them when training begins."""
    generator = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(
        2, HEADS, RANK, TOKENS, HALF_KEY_DIM, device="cuda", generator=generator
    ).bfloat16()
    sub_keys = torch.randn(2, HEADS, RANK, N_KEYS, HALF_KEY_DIM, device="cuda", generator=generator)
    core = torch.rand(HEADS, RANK, RANK, device="cuda", generator=generator)
    return query, sub_keys / HALF_KEY_DIM**0.5, core


Run = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


def _steps(run: Run, inputs: tuple[Tensor, ...]) -> tuple[Callable[[], object], ...]:
    """Return a choice without gradients, and one with those of all inputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    grad = torch.randn(TOKENS, HEADS, KNN, device="cuda")

    def choose() -> object:
        with torch.no_grad():
            return run(*inputs, KNN)

    return choose, lambda: torch.autograd.grad(run(*leaves, KNN)[0], leaves, grad)


def _time(step: Callable[[], object]) -> float:
    return median_ms(captured(step))


def _checks(run: Run, inputs: tuple[Tensor, ...]) -> str:
    """Compare with float64."""
    query, sub_keys, core = inputs
    leaves = [x.clone().requires_grad_() for x in (query[:, :, :, :CHECKED], sub_keys, core)]
    scores, ids = run(*leaves, KNN)
    grad = torch.randn_like(scores)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    _, expected_ids = reference.tucker_topk(*exact, KNN)
    expected = _scores_of(*exact, ids)
    found = [scores, *torch.autograd.grad(scores, leaves, grad)]
    expected_grads = torch.autograd.grad(expected, exact, grad.double())
    errors = [
        float((one.detach().double() - other.detach()).norm() / other.detach().norm())
        for one, other in zip(found, (expected, *expected_grads), strict=True)
    ]
    same = float((ids == expected_ids).double().mean())
    return f"{same:.5f}, " + ", ".join(f"{error:.1e}" for error in errors)


def _scores_of(query: Tensor, sub_keys: Tensor, core: Tensor, ids: Tensor) -> Tensor:
    """Return the scores of given slots."""
    rows, columns = reference.half_scores(query, sub_keys)
    slots = ids.transpose(0, 1)[:, None].expand(-1, RANK, -1, -1)
    row, column = rows.gather(-1, slots // N_KEYS), columns.gather(-1, slots % N_KEYS)
    return torch.einsum("hatk,hab,hbtk->thk", row, core, column)


@contextmanager
def _changed(changes: list[Change]) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _reads(line: str) -> None:
    """Time reads of both tables: as two operations, and as one."""
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = (N_KEYS**2, VALUE_DIM), (N_KEYS**2, VALUE_DIM), (TOKENS, KNN), (TOKENS, VALUE_DIM)
    leaves = [
        torch.randn(size, device="cuda", generator=generator).requires_grad_() for size in sizes
    ]
    ids = torch.randint(N_KEYS**2, (TOKENS, HEADS * KNN), device="cuda", generator=generator)
    grad = torch.randn(TOKENS, VALUE_DIM, device="cuda", generator=generator)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    expected = _read_apart(*exact[:2], ids, *exact[2:])
    expected = [expected, *torch.autograd.grad(expected, exact, grad.double())]
    one = lambda *inputs: gated_bag(*inputs)[0]  # noqa: E731
    for name, run in (("reads, two operations", _read_apart), ("reads, one operation", one)):

        def read(run: Callable[..., Tensor] = run) -> Tensor:
            with torch.no_grad():
                return run(*leaves[:2], ids, *leaves[2:])

        def both(run: Callable[..., Tensor] = run) -> list[Tensor]:
            output = run(*leaves[:2], ids, *leaves[2:])
            return [output, *torch.autograd.grad(output, leaves, grad)]

        errors = [
            f"{float((x.detach().double() - y.detach()).norm() / y.detach().norm()):.1e}"
            for x, y in zip(both(), expected, strict=True)
        ]
        times = (f"{_time(step):.3f}" for step in (read, both))
        print(line.format(name, *times, ", ".join(errors)), flush=True)
    _each_kernel(both)


def _read_apart(
    values: Tensor, pre_values: Tensor, ids: Tensor, scores: Tensor, x: Tensor
) -> Tensor:
    return weighted_bag(values, ids, scores * gathered_dot(pre_values, ids, x))


def _each_kernel(both: Callable[[], object]) -> None:
    """Print what each kernel of a pass with gradients takes, ms."""
    both()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        both()
        torch.cuda.synchronize()
    for event in sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)[:12]:
        milliseconds = event.self_device_time_total / 1000
        print(f"    {milliseconds:8.3f} {event.count:3d} x {event.key[:70]}", flush=True)


if __name__ == "__main__":
    main()
