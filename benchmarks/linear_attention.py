"""Times causal linear attention on one GPU beside the same sums in plain torch.

    python benchmarks/linear_attention.py           # the mixers' shapes at 30m, half a minute
    python benchmarks/linear_attention.py --tune    # each pass in other tilings too

A line is what one layer calls with 32,768 tokens in bf16: Performer's and cosFormer's sums with
those of their weights (in torch a column of ones, as eight), and both of Linformer, of which values
or keys are shared by all heads. Times are of captured CUDA graphs, ms; "torch" is
`causal_linear_attention` with its own kernels, eager and compiled (the better one counts in "x").
"req/copy" is the bytes of all arguments and results, each once, over the bandwidth of a copy.
Errors are relative norms against float64 of the timed inputs: output, sums of weights, gradients of
query, key and value; torch's beside them.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import gpu_timing
import torch
import triton
from gpu_required import require_gpu
from gpu_timing import captured, median_ms
from torch import Tensor

from workloads.kernels.linear_attention import triton as kernel
from workloads.kernels.linear_attention.op import linear_attention
from workloads.layers.mixers.linear_attention import chunked_linear_attention

LINE = "{:>17} {:>6} | {:>7} {:>8} {:>7} {:>9} {:>6} | {:>7} {:>8} {:>7} {:>9} {:>6} | {}"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a mixer sums."""

    key_width: int
    value_width: int
    weigh: bool = False
    shared: int | None = None
    """Which argument all heads share: 1 for keys, 2 for values."""


SHAPES = {
    "performer": Shape(key_width=256, value_width=64, weigh=True),
    "cosformer": Shape(key_width=128, value_width=64, weigh=True),
    "linformer scores": Shape(key_width=64, value_width=128, shared=2),
    "linformer mixture": Shape(key_width=128, value_width=64, shared=1),
}
HEADS, TOKENS = 8, 32_768


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tune", action="store_true", help="time other tilings of each pass")
    parser.add_argument("--seq-lens", default="512,2048", help="512,2048 if not given")
    arguments = parser.parse_args()
    require_gpu()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    gbps = gpu_timing.copy_gbps()
    print(f"copy {gbps:,.0f} GB/s; {TOKENS:,} tokens, {HEADS} heads, bf16; medians")
    side = ("ms", "req/copy", "torch", "compiled", "x")
    print(LINE.format("", "seq", *side, *side, "errors of ours; of torch's"))
    print(LINE.format("", "", "forward", *[""] * 4, "both", *[""] * 4, ""))
    for seq in map(int, arguments.seq_lens.split(",")):
        for name, shape in SHAPES.items():
            inputs, grads = _inputs(shape, seq)
            _line(name, shape, inputs, grads, gbps)
            if arguments.tune and seq == 512:
                _tilings(shape, inputs, grads)


def _inputs(shape: Shape, seq: int) -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(0)
    leading = (TOKENS // seq, HEADS, seq)
    inputs = []
    for index, width in enumerate((shape.key_width, shape.key_width, shape.value_width)):
        x = torch.randn(*((seq,) if index == shape.shared else leading), width, device="cuda")
        # Features are positive where their weights are summed.
        x = x.abs() if shape.weigh and index < 2 else x
        inputs.append(x.bfloat16().requires_grad_())
    grads = [torch.randn(*leading, shape.value_width, device="cuda").bfloat16()]
    if shape.weigh:
        grads.append(torch.randn(*leading, device="cuda"))
    return inputs, grads


def _ours(shape: Shape, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    mixed, weights = linear_attention(*inputs, weigh=shape.weigh)
    return (mixed,) if weights is None else (mixed, weights)


def _torchs(shape: Shape, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    query, key, value = inputs
    if shape.weigh:
        ones = value.new_ones(()).expand(*value.shape[:-1], 8)
        value = torch.cat((value, ones), dim=-1)
    mixed = chunked_linear_attention(query, key, value, chunk=64)
    if not shape.weigh:
        return (mixed,)
    return mixed[..., : shape.value_width], mixed[..., shape.value_width].float()


def _exact(shape: Shape, inputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Return results and gradients in float64, of two sequences; shared gradients are theirs."""
    few = [x.detach().double() if x.dim() == 2 else x[:2].detach().double() for x in inputs]
    query, key, value = (x.requires_grad_() for x in few)
    weights = (query @ key.mT).tril()
    results = (weights @ value, weights.sum(-1))[: len(grads)]
    return [
        *results,
        *torch.autograd.grad(results, (query, key, value), [g[:2].double() for g in grads]),
    ]


Way = Callable[[Shape, list[Tensor]], tuple[Tensor, ...]]


def _line(name: str, shape: Shape, inputs: list[Tensor], grads: list[Tensor], gbps: float) -> None:
    torch._dynamo.reset()  # each shape is a program of its own, and dynamo keeps few of a function
    compiled = torch.compile(_torchs, dynamic=False, fullgraph=True)
    ways: tuple[Way, ...] = (_ours, _torchs, compiled)
    forward, both = [], []
    for way in ways:

        def alone(way: Way = way) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return way(shape, inputs)

        def with_gradients(way: Way = way) -> tuple[Tensor, ...]:
            return torch.autograd.grad(way(shape, inputs), inputs, grads)

        forward.append(median_ms(captured(alone)))
        both.append(median_ms(captured(with_gradients)))
    few = [x if x.dim() == 2 else x[:2].detach().requires_grad_() for x in inputs]
    expected = _exact(shape, inputs, grads)
    errors = []
    for way in ways[:2]:
        found = way(shape, few)
        of_inputs = torch.autograd.grad(found, few, [g[:2] for g in grads])
        pairs = zip((*found, *of_inputs), expected, strict=True)
        errors.append(", ".join(f"{_relative(x, y):.1e}" for x, y in pairs))
    read, written = sum(map(_bytes, inputs)), sum(map(_bytes, grads))
    print(
        LINE.format(
            name,
            inputs[0].shape[2],
            *_times(forward, read + written, gbps),
            *_times(both, 3 * read + 2 * written, gbps),
            "; ".join(errors),
        ),
        flush=True,
    )


def _times(found: list[float], moved_bytes: int, gbps: float) -> tuple[str, ...]:
    ours, eager, compiled = found
    share = moved_bytes / ours / 1e6 / gbps
    best = min(eager, compiled)
    return f"{ours:.3f}", f"{share:.2f}", f"{eager:.3f}", f"{compiled:.3f}", f"{best / ours:.2f}"


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _relative(found: Tensor, expected: Tensor) -> float:
    return float(
        (found.detach().double() - expected.detach()).norm()
        / expected.detach().norm().clamp_min(1e-30)
    )


def _tilings(shape: Shape, inputs: list[Tensor], grads: list[Tensor]) -> None:
    query, key, value = (x.detach() for x in inputs)
    grad, weights_grad = grads[0], grads[1] if shape.weigh else None
    leading = query.shape[:-1]
    extra = {"extra": weights_grad}
    weights = torch.empty(leading, device="cuda") if shape.weigh else None
    passes = {
        "forward": ((query, key, value), {"weights": weights}),
        "of query": ((grad, value, key), {**extra, "extra_is": kernel.OF_A}),
        "of key": ((value, grad, query), {**extra, "extra_is": kernel.OF_B, "later": True}),
        "of value": ((key, query, grad), {"later": True}),
    }
    usual = kernel.tile
    for name, (arguments, how) in passes.items():
        own = usual(arguments[0].shape[-1], arguments[2].shape[-1])
        for cols, warps, stages in itertools.product((own.cols // 2, own.cols), (4, 8), (1, 2, 3)):
            tried = replace(own, cols=cols, warps=warps, stages=stages)
            kernel.tile = lambda inner, width, tried=tried: tried
            run = partial(kernel.mix, *arguments, leading, **how)
            try:
                ms = median_ms(run, repeats=7)
                told = f"{ms:.3f} ms{' (ours)' if tried == own else ''}"
            except triton.runtime.errors.OutOfResources:
                told = "more than a program may have"
            print(f"    {name}: {cols} columns, {warps} warps, {stages} stages: {told}", flush=True)
    kernel.tile = usual


if __name__ == "__main__":
    main()
