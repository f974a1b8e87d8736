"""Times Performer's mixing on one GPU: features within the kernels, and beside them.

    python benchmarks/random_features.py            # the shape of one layer of 30m, half a minute
    python benchmarks/random_features.py --chunks   # the gradients' chunk of 64 tokens too

A line is what one layer mixes: 32,768 tokens, 8 heads of 64, 256 features, bf16, compiled and
captured. "Beside" makes features in plain torch and sums them by `linear_attention`; it is the path
of heads wider than 64. "floor" is the bytes that each way reads and writes, once per kernel, over
the bandwidth of a copy. Errors are relative norms against float64: output, and gradients of query,
key and value.
"""

import argparse
from collections.abc import Callable
from functools import partial

import gpu_timing
import torch
from gpu_required import require_gpu
from gpu_timing import captured, median_ms
from torch import Tensor

from workloads.architectures import performer
from workloads.kernels.linear_attention import triton as linear_attention
from workloads.kernels.random_feature_attention import triton as kernels
from workloads.layers.context import Context

HEADS, WIDTH, FEATURES, TOKENS = 8, 64, 256, 32_768
EPS = 1e-6
LINE = "{:>12} {:>10} | {:>8} {:>8} | {:>8} {:>8} | {}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", action="store_true", help="time chunks of 64 tokens too")
    arguments = parser.parse_args()
    require_gpu()
    gbps = gpu_timing.copy_gbps()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {gbps:,.0f} GB/s")
    print(LINE.format("sequence", "features", "forward", "floor", "both", "floor", "errors"))
    torch.set_float32_matmul_precision("high")
    fits = performer.is_fused
    for seq in (512, 2048):
        mixer, inputs, grad = _case(seq)
        for name, fused in (("beside", False), ("within", True)):
            performer.is_fused = fits if fused else lambda *_: False
            torch._dynamo.reset()
            mix = torch.compile(lambda *x, mixer=mixer: _mix(mixer, *x), dynamic=False)
            forward, both = (_ms(mix, inputs, gradient) for gradient in (None, grad))
            first, second = (f"{1e3 * gb / gbps:.3f}" for gb in _floor_gb(fused))
            errors = ", ".join(f"{x:.1e}" for x in _errors(mixer, inputs, grad))
            times = f"{forward:.3f}", first, f"{both:.3f}", second
            print(LINE.format(f"{seq:,}", name, *times, errors), flush=True)
        performer.is_fused = fits
        _each_kernel(mixer, inputs, grad, (32, 64) if arguments.chunks else (32,))


def _case(seq: int) -> tuple[performer.PerformerAttention, list[Tensor], Tensor]:
    torch.manual_seed(0)
    config = performer.Config(**performer.PRESETS["30m"])
    mixer = config.mixer(performer.PerformerAttention, eps=EPS, equal_lengths=False).cuda()
    vectors = performer.orthogonal_vectors(
        FEATURES, WIDTH, torch.Generator().manual_seed(0), equal_lengths=False
    )
    mixer.random_vectors.copy_(vectors)
    x = torch.randn(TOKENS // seq, seq, 4, HEADS, WIDTH, device="cuda").bfloat16()
    *inputs, grad = x.permute(2, 0, 3, 1, 4)
    return mixer, [each.detach().requires_grad_() for each in inputs], grad


def _mix(mixer: performer.PerformerAttention, *inputs: Tensor) -> Tensor:
    batch, _, seq, _ = inputs[0].shape
    tokens = torch.zeros(batch, seq, dtype=torch.long, device="cuda")
    return mixer.mix(*inputs, Context(tokens=tokens))


def _ms(mix: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor | None) -> float:
    def run() -> object:
        if grad is None:
            with torch.no_grad():
                return mix(*inputs)
        return torch.autograd.grad(mix(*inputs), inputs, grad)

    return median_ms(captured(run))


def _floor_gb(fused: bool) -> tuple[float, float]:
    """Return GB moved by a forward pass, and with gradients."""
    x = 2 * HEADS * TOKENS * WIDTH / 1e9
    f = x * FEATURES / WIDTH
    sums = 2 * f + 2 * x
    if fused:
        features = 2 * (x + f)
        # Two gradients read query, key, gradient and value, and write one each.
        return features + sums, features + 2 * sums + 10 * x
    # fp32 copies of the inputs and fp32 exponents: written once, read once, for both of two.
    features = 2 * (x + 4 * x + 4 * f + f)
    slopes = 2 * (3 * f + 2 * f + 2 * x)
    return features + sums, features + 4 * sums + slopes


def _errors(mixer: performer.PerformerAttention, inputs: list[Tensor], grad: Tensor) -> list[float]:
    few = [x[:2].detach().requires_grad_() for x in inputs]
    mixed = _mix(mixer, *few)
    found = [mixed, *torch.autograd.grad(mixed, few, grad[:2])]
    exact = [x.detach().double().requires_grad_() for x in few]
    query, key, value = exact
    vectors = mixer.random_vectors.bfloat16().double() * WIDTH**-0.25
    exponents = query @ vectors.T
    of_query = (exponents - exponents.detach().amax(-1, keepdim=True)).exp() + EPS
    half = key.square().sum(-1, keepdim=True) * (WIDTH**-0.5 / 2)
    weights = (of_query @ ((key @ vectors.T - half).exp() + EPS).mT).tril()
    expected = weights / weights.sum(-1, keepdim=True) @ value
    all_expected = [expected, *torch.autograd.grad(expected, exact, grad[:2].double())]
    return [
        float((x.detach().double() - y.detach()).norm() / y.detach().norm())
        for x, y in zip(found, all_expected, strict=True)
    ]


def _each_kernel(
    mixer: performer.PerformerAttention,
    inputs: list[Tensor],
    grad: Tensor,
    chunks: tuple[int, ...],
) -> None:
    query, key, value = (x.detach() for x in inputs)
    vectors = mixer.random_vectors.bfloat16()
    _, weights, of_query, of_key, *levels = kernels.forward(query, key, value, vectors, EPS)
    query_side, key_side = (query, levels[0]), (key, levels[1])
    rest = vectors, torch.randn_like(weights), EPS
    n_chunks = query.shape[2] // kernels.FEATURE_TOKENS
    totals = torch.empty(*query.shape[:2], n_chunks, FEATURES, device="cuda")
    passes: dict[str, Callable[[], object]] = {
        "features of keys": partial(kernels.features, key, vectors, EPS, totals, None),
        "features of queries": partial(kernels.features, query, vectors, EPS, totals, weights),
        "sums": partial(kernels.sum_up, of_query, of_key, value, weights),
        "gradient of values": partial(kernels.sum_up, of_key, of_query, grad, None),
        "sums by linear_attention": partial(
            linear_attention.forward, of_query, of_key, value, weigh=True
        ),
        "gradient of values by linear_attention": partial(
            linear_attention.mix, of_key, of_query, grad, query.shape[:-1], later=True
        ),
    }
    usual = kernels.GRADIENT_CHUNK
    for name, run in passes.items():
        print(f"    {name}: {median_ms(run):.3f} ms", flush=True)
    for chunk in chunks:
        kernels.GRADIENT_CHUNK = chunk
        for name, sides, are_keys in (
            ("queries", (query_side, key_side, grad, value), False),
            ("keys", (key_side, query_side, value, grad), True),
        ):
            ms = median_ms(partial(kernels._gradient, *sides, *rest, are_keys=are_keys))
            print(f"    gradient of {name}, chunks of {chunk}: {ms:.3f} ms", flush=True)
    kernels.GRADIENT_CHUNK = usual


if __name__ == "__main__":
    main()
