"""A mixture of experts beside a dense feed-forward block of equal active FLOPs, on one GPU.

    python benchmarks/experts.py                 # 64 experts, top 8; d_model 1024 and 2048
    python benchmarks/experts.py --tiles         # besides: every kernel with other tiles

Forward and backward pass of one block on 16,384 tokens, bf16 weights. "grouped" is the layer with
torch's grouped products, gathered copies and sums beside them; "fused" is `kernels/expert_mlp`.
Each is timed as it is launched by the host and as one CUDA graph, which is how training runs it.
The error is that of the fused layer's output and gradients against fp32 experts on the same
routes: |difference| / |expected|.
"""

import argparse
import multiprocessing
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from gpu_required import require_gpu
from gpu_timing import captured, median_ms
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from workloads.kernels.expert_mlp import op
from workloads.kernels.expert_mlp import triton as kernels
from workloads.kernels.expert_mlp.triton import MatmulTile
from workloads.kernels.expert_routing import op as routing
from workloads.layers.context import Context
from workloads.layers.modules.init import initialise
from workloads.layers.modules.moe import MixtureOfExperts, MixtureShape

SHAPES = {1024: 2816, 2048: 5632}
"""d_model and width of the dense block."""
TOKENS, N_EXPERTS, TOP_K = 16_384, 64, 8
NAMES = ("HIDDEN", "OUTPUT", "HIDDEN_GRADIENT", "INPUT_GRADIENT", "PAIR_GRADIENT", "DOWN_GRADIENT")


def _tiles(*sizes: tuple[int, int, int, int]) -> dict[str, MatmulTile]:
    return {
        name: MatmulTile(rows=128, cols=cols, depth=depth, warps=warps, stages=stages)
        for name, (cols, depth, warps, stages) in zip(NAMES, sizes, strict=True)
    }


VARIANTS: dict[str, dict[str, MatmulTile]] = {
    "default": {name: getattr(kernels, name) for name in NAMES},
    "4 stages": _tiles(
        (128, 64, 8, 4), (128, 64, 8, 4), (128, 64, 8, 4), (128, 32, 8, 4), (128, 64, 8, 6), (128, 64, 8, 6)
    ),
    "4 warps": _tiles(
        (64, 64, 4, 3), (128, 64, 4, 3), (64, 64, 4, 3), (128, 32, 4, 3), (64, 64, 4, 3), (128, 64, 4, 3)
    ),
    "wide": _tiles(
        (128, 32, 8, 4), (256, 64, 8, 3), (128, 32, 8, 4), (256, 32, 8, 3), (128, 32, 8, 4), (256, 64, 8, 3)
    ),
    "deep": _tiles(
        (128, 64, 8, 2), (128, 32, 8, 5), (64, 64, 8, 4), (128, 64, 8, 3), (64, 64, 8, 3), (128, 32, 8, 5)
    ),
    "wide, 4 stages": _tiles(
        (64, 64, 8, 4), (256, 64, 8, 4), (64, 64, 8, 3), (256, 32, 8, 4), (128, 32, 8, 6), (256, 64, 8, 4)
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", action="store_true", help="time every kernel with other tiles")
    arguments = parser.parse_args()
    require_gpu()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(
        "\n| d_model | block | launched ms | graph ms | over dense | error |\n|---|---|---|---|---|---|"
    )
    for d_model, d_ff in SHAPES.items():
        compare(d_model, d_ff)
    if arguments.tiles:
        compare_tiles()


def compare(d_model: int, d_ff: int) -> None:
    """Print the times of a dense block, and of the layer by grouped products and fused."""
    x, grad = (torch.randn(TOKENS, d_model, device="cuda").bfloat16() for _ in range(2))
    x.requires_grad_()
    weights = [
        (torch.randn(shape, device="cuda") * shape[1] ** -0.5).bfloat16().requires_grad_()
        for shape in ((d_ff, d_model), (d_ff, d_model), (d_model, d_ff))
    ]

    def dense() -> tuple[Tensor, ...]:
        gate, up, down = weights
        hidden = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
        return torch.autograd.grad(functional.linear(hidden, down), [x, *weights], grad)

    base = graph_ms(dense)
    print(f"| {d_model} | dense | {median_ms(dense):.3f} | {base:.3f} | 1 | |")
    layer = new_layer(d_model, d_ff // TOP_K)
    run = passes(layer, x, grad)
    with (
        mock.patch.object(op, "is_fused", return_value=False),
        mock.patch.object(routing, "uses_triton", return_value=False),
    ):
        row = f"{median_ms(run):.3f} | {(ms := graph_ms(run)):.3f} | {ms / base:.2f}"
    print(f"| {d_model} | grouped | {row} | |")
    row = f"{median_ms(run):.3f} | {(ms := graph_ms(run)):.3f} | {ms / base:.2f}"
    print(f"| {d_model} | fused | {row} | {error(layer, x, grad):.1e} |")
    compiled = passes(layer, x, grad, compile=True)
    row = f"{median_ms(compiled):.3f} | {(ms := graph_ms(compiled)):.3f} | {ms / base:.2f}"
    print(f"| {d_model} | fused, compiled | {row} | |", flush=True)
    times = kernel_times(run)
    print("|  | of these, ms | " + ", ".join(f"{n} {t:.3f}" for n, t in times.items()) + " | | | |")


def new_layer(d_model: int, d_expert: int) -> MixtureOfExperts:
    """Return a layer whose experts are bf16."""
    shape = MixtureShape(
        d_model=d_model, n_experts=N_EXPERTS, d_expert=d_expert, top_k=TOP_K, renormalise=True
    )
    layer = MixtureOfExperts(shape)
    initialise(layer, 0)
    layer.experts.bfloat16()
    return layer.cuda()


def passes(
    layer: MixtureOfExperts, x: Tensor, grad: Tensor, *, compile: bool = False
) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that runs a layer forwards and backwards."""
    context = Context(tokens=torch.zeros(1, len(x), dtype=torch.long, device="cuda"))

    def forward(x: Tensor) -> Tensor:
        output: Tensor = layer(x[None], context)[0]
        return output

    run = torch.compile(forward, dynamic=False) if compile else forward
    return lambda: torch.autograd.grad(run(x), [x, *layer.parameters()], grad)


def error(layer: MixtureOfExperts, x: Tensor, grad: Tensor) -> float:
    """Return the largest relative error of output and gradients against fp32 products."""
    found = [passes(layer, x, grad)()[i] for i in range(5)]
    wide, wide_x = new_layer(x.shape[1], layer.shape.d_expert), x.detach().float().requires_grad_()
    wide.load_state_dict(layer.state_dict())
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    expected = passes(wide.float(), wide_x, grad.float())()
    torch.set_float32_matmul_precision(before)
    return max(
        float((a.float() - b).norm() / b.norm()) for a, b in zip(found, expected, strict=False)
    )


def graph_ms(run: Callable[[], Any]) -> float:
    """Return the median time of one replay of `run`, captured."""
    return median_ms(captured(run))


def kernel_times(run: Callable[[], Any], repeats: int = 10) -> dict[str, float]:
    """Return ms per call of the longest kernels, by name."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    times = {e.key: e.self_device_time_total / repeats / 1e3 for e in seen.key_averages()}
    longest = sorted(times, key=times.__getitem__, reverse=True)[:16]
    return {name[:40].replace("|", ""): times[name] for name in longest}


def compare_tiles() -> None:
    """Print each kernel's ms with each set of tiles, for both widths."""
    context = multiprocessing.get_context("spawn")
    # Compiling takes a minute a set one after the other; Triton's cache on disk shares it.
    with context.Pool(len(VARIANTS)) as pool:
        pool.map(_compile, VARIANTS)
    names = ["_" + name.lower() for name in NAMES]
    for d_model, d_ff in SHAPES.items():
        print(f"\n| d_model {d_model} | " + " | ".join(names) + " |\n|" + "---|" * (1 + len(names)))
        x, grad = (torch.randn(TOKENS, d_model, device="cuda").bfloat16() for _ in range(2))
        run = passes(new_layer(d_model, d_ff // TOP_K), x.requires_grad_(), grad)
        for variant in VARIANTS:
            with mock.patch.multiple(kernels, **VARIANTS[variant]):
                run()
                times = kernel_times(run)
            print(f"| {variant} | " + " | ".join(f"{times.get(n, 0):.3f}" for n in names) + " |")


def _compile(variant: str) -> None:
    d_model, d_ff = next(iter(SHAPES.items()))
    x, grad = (torch.randn(1024, d_model, device="cuda").bfloat16() for _ in range(2))
    with mock.patch.multiple(kernels, **VARIANTS[variant]):
        passes(new_layer(d_model, d_ff // TOP_K), x.requires_grad_(), grad)()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
