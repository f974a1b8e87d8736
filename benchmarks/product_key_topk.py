"""Time of product-key selection: plain torch, torch.compile and our kernels.

    python benchmarks/product_key_topk.py                         # 64k tokens, 4 heads, 2 x 1,024 sub-keys, top 32
    python benchmarks/product_key_topk.py --half-key-dim 256 --variants
    python benchmarks/product_key_topk.py --many-keys 10000      # of further numbers of sub-keys, 10^8 rows alone

Medians of CUDA event times. Beside each time: the share of ids that are those of float64, and the
largest error of a score, both over the first 2,048 tokens. `--variants` times tiles and chunk
sizes, `--kernels` lists what each kernel takes.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
import triton
from gpu_required import require_gpu
from torch import Tensor
from triton.testing import do_bench

from workloads.kernels.product_key_topk import op, reference
from workloads.kernels.product_key_topk import triton as kernels
from workloads.kernels.product_key_topk.backward import gradients

CHECKED = 2048
SCORE_BYTES = 2**32
"""Most memory for a chunk of the scores of many sub-keys."""


def main() -> None:
    arguments = _arguments()
    require_gpu()
    torch.manual_seed(0)
    tokens, heads, half = arguments.tokens, arguments.heads, arguments.half_key_dim
    n_keys, knn = arguments.n_keys, arguments.knn
    query = torch.randn(tokens, heads, 2 * half, device="cuda")
    sub_keys = torch.randn(2, heads, n_keys, half, device="cuda") / half**0.5
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}; "
        f"{tokens} tokens, {heads} heads, {n_keys} sub-keys of {half} a half, top {knn}"
    )
    rounded = query.bfloat16()
    answer, rounded_answer = (_answer(x, sub_keys, knn) for x in (query, rounded))

    def row(
        name: str, run: Callable[[], object], answer: tuple[Tensor, Tensor] | None = None
    ) -> None:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        checks = _checks(result, answer) if answer is not None else ""
        del result
        milliseconds = do_bench(run, warmup=25, rep=arguments.rep, return_mode="median")
        print(f"{name:<44} {milliseconds:8.3f} ms {peak:8.0f} MiB  {checks}", flush=True)

    products = rounded.view(tokens, heads, 2, half).permute(2, 1, 0, 3).contiguous()
    low_keys = sub_keys.bfloat16()
    row("bare score product, bf16", partial(torch.matmul, products, low_keys.mT))
    row("bare score product, fp32", partial(torch.matmul, products.float(), sub_keys.mT))
    del products
    row("plain torch, fp32 query", lambda: reference.product_key_topk(query, sub_keys, knn), answer)
    row(
        "plain torch, bf16 query",
        lambda: reference.product_key_topk(rounded, sub_keys, knn),
        rounded_answer,
    )
    row("two torch.topk, fp32 scores", lambda: _two_topk(query, sub_keys, knn), answer)
    row(
        "two torch.topk, bf16 scores",
        lambda: _two_topk(rounded, low_keys, knn),
        _answer(rounded, low_keys, knn),
    )
    compiled = torch.compile(reference.product_key_topk)
    try:
        row("torch.compile, fp32 query", lambda: compiled(query, sub_keys, knn), answer)
    except Exception as error:
        print(f"torch.compile, fp32 query: {type(error).__name__}: {str(error)[:200]}")
    row("ours, fp32 query", lambda: op.product_key_topk(query, sub_keys, knn), answer)
    row("ours, bf16 query", lambda: op.product_key_topk(rounded, sub_keys, knn), rounded_answer)
    row(
        "ours, bf16 query and sub-keys",
        lambda: op.product_key_topk(rounded, low_keys, knn),
        _answer(rounded, low_keys, knn),
    )
    if arguments.variants:
        _variants(row, rounded, sub_keys, knn, rounded_answer)
    for name, x in (("fp32", query), ("bf16", rounded)):
        _backward(row, name, x, sub_keys, knn)
    if arguments.variants:
        scores, ids = kernels.select(rounded, sub_keys, knn)
        for size in (2**25, 2**26, 2**27, 2**28, 2**29):
            row(
                f"  backward of ours, bf16, weights {size >> 20} MiB",
                lambda size=size: gradients(scores, ids, rounded, sub_keys, weight_bytes=size),
            )
        del scores, ids
    if arguments.kernels:
        _each_kernel(rounded, sub_keys, knn)
    for more in arguments.many_keys:
        _many_keys(row, more, query, knn)


def _many_keys(row: Callable, n_keys: int, query: Tensor, knn: int) -> None:
    """Time selection among so many rows that its peer has to go chunk by chunk.

    10,000 sub-keys have 21 GB of scores.
    """
    heads, width = query.shape[1:]
    sub_keys = torch.randn(2, heads, n_keys, width // 2, device="cuda") / (width // 2) ** 0.5
    print(f"{n_keys} sub-keys a half, {n_keys**2:.1e} rows:")
    for name, x in (("fp32", query), ("bf16", query.bfloat16())):
        answer = _answer(x, sub_keys, knn)
        # Of fp32 scores for a bf16 query, too, because ours are.
        chunk = max(1, SCORE_BYTES // (2 * heads * n_keys * 4))

        def in_chunks(x: Tensor = x, chunk: int = chunk) -> tuple[Tensor, ...]:
            parts = [_two_topk(part.float(), sub_keys, knn) for part in x.split(chunk)]
            return tuple(torch.cat(part) for part in zip(*parts, strict=True))

        row(f"  two torch.topk, fp32 scores, {name} query", in_chunks, answer)
        row(f"  ours, {name} query", lambda x=x: op.product_key_topk(x, sub_keys, knn), answer)
        _backward(row, name, x, sub_keys, knn, alone=True)


def _variants(
    row: Callable, query: Tensor, sub_keys: Tensor, knn: int, answer: tuple[Tensor, Tensor]
) -> None:
    tiles = [
        kernels.Tile(64, 64, 64, 128, warps=4, stages=3),
        kernels.Tile(64, 32, 64, 128, warps=4, stages=2),
        kernels.Tile(64, 64, 128, 128, warps=4, stages=2),
        kernels.Tile(128, 64, 128, 128, warps=8, stages=3),
        kernels.Tile(128, 64, 64, 256, warps=8, stages=3),
        kernels.Tile(128, 64, 128, 256, warps=8, stages=2),
        kernels.Tile(64, 64, 128, 64, warps=4, stages=4),
    ]
    for tile in tiles:
        try:
            row(
                f"  ours, bf16, {tuple(tile)}",
                lambda tile=tile: kernels.select(query, sub_keys, knn, tile=tile),
                answer,
            )
        except triton.runtime.errors.OutOfResources as error:
            print(f"  ours, bf16, {tuple(tile)}: {error}")
    for size in (2**26, 2**27, 2**28, 2**30):
        row(
            f"  ours, bf16, chunks of {size >> 20} MiB",
            lambda size=size: kernels.select(query, sub_keys, knn, chunk_bytes=size),
            answer,
        )


def _backward(
    row: Callable, name: str, query: Tensor, sub_keys: Tensor, knn: int, *, alone: bool = False
) -> None:
    """Time backward passes alone, and print the error against plain torch if it fits."""
    found = []
    runs = {"plain torch": reference.product_key_topk, "ours": op.product_key_topk}
    for whose, run in list(runs.items())[alone:]:
        leaves = query.clone().requires_grad_(), sub_keys.clone().requires_grad_()
        scores, ids = run(*leaves, knn)
        generator = torch.Generator("cuda").manual_seed(1)
        grad = torch.randn(scores.shape, device="cuda", generator=generator)

        def backward(scores=scores, leaves=leaves, grad=grad) -> tuple[Tensor, ...]:
            return torch.autograd.grad(scores, leaves, grad, retain_graph=True)

        row(f"backward of {whose}, {name} query", backward)
        found.append((ids, backward()))
    if alone:
        return
    same = (found[0][0] == found[1][0]).double().mean().item()
    errors = [
        ((a - b).abs().max() / b.abs().max()).item()
        for a, b in zip(found[1][1], found[0][1], strict=True)
    ]
    print(
        f"    same ids {same:.6f}; largest difference of gradients over the largest number: query {errors[0]:.1e}, "
        f"sub-keys {errors[1]:.1e} (different ids among equal fp32 scores count in full)"
    )


def _each_kernel(query: Tensor, sub_keys: Tensor, knn: int) -> None:
    leaves = query.clone().requires_grad_(), sub_keys.clone().requires_grad_()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        scores, _ = op.product_key_topk(*leaves, knn)
        scores.backward(torch.ones_like(scores))
        torch.cuda.synchronize()
    for event in sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)[:14]:
        print(
            f"    {event.self_device_time_total / 1000:8.3f} ms {event.count:4d} x {event.key[:90]}"
        )


def _two_topk(query: Tensor, sub_keys: Tensor, knn: int) -> tuple[Tensor, Tensor]:
    """Choose as plain torch code does.

    All pairs of the best of both halves, equal scores in any order.
    """
    n_keys = sub_keys.shape[2]
    halves = query.unflatten(-1, (2, -1)).permute(2, 1, 0, 3) @ sub_keys.mT
    (left, left_ids), (right, right_ids) = (half.topk(knn, dim=-1) for half in halves)
    sums = (left[..., :, None] + right[..., None, :]).flatten(-2)
    slots = (left_ids[..., :, None] * n_keys + right_ids[..., None, :]).flatten(-2)
    best, index = sums.topk(knn, dim=-1)
    return best.transpose(0, 1), slots.gather(-1, index).transpose(0, 1)


def _answer(query: Tensor, sub_keys: Tensor, knn: int) -> tuple[Tensor, Tensor]:
    return reference.product_key_topk(query[:CHECKED].double(), sub_keys.double(), knn)


def _checks(result: tuple[Tensor, Tensor], answer: tuple[Tensor, Tensor]) -> str:
    scores, ids = (x[:CHECKED] for x in result)
    same = (ids == answer[1]).double().mean().item()
    error = (scores.double() - answer[0]).abs().max().item()
    return f"same ids {same:.6f}, score error {error:.1e}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--n-keys", type=int, default=1024)
    parser.add_argument("--half-key-dim", type=int, default=128)
    parser.add_argument("--knn", type=int, default=32)
    parser.add_argument(
        "--many-keys",
        type=int,
        nargs="*",
        default=[3163, 10_000],
        help="sub-keys a half of further runs, against two torch.topk alone (default: 1e7 and 1e8 rows)",
    )
    parser.add_argument("--rep", type=int, default=100, help="milliseconds to time each row for")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
