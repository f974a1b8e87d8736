"""Times the look-up by signs, forward and backward, on one GPU beside plain torch.

    python benchmarks/hash_bag.py           # all shapes, under a minute on an H200
    python benchmarks/hash_bag.py --tune    # the bag's forward pass in other tilings too
    python benchmarks/hash_bag.py --one-hot --tokens 32768    # small tables, by products

Forward, ms: `hash` makes rows and scores from fp32 numbers, `bag` sums the rows, `both` is the
operation as a layer calls it. Beside it, as multiples of `both`: the same from two kernels of which
the second does not know the tables' structure (`sign_hash` and `weighted_bag`); and, with rows and
scores given, so without the hash, torch's `index_select` and batched product, and its
`embedding_bag`. `req/copy` is the bytes of the rows asked for by `bag` over the bandwidth of a
copy. Backward, ms: the gradients of table and numbers; `sort` is part of it; the multiple is
torch's way, both gradients of `index_select` and product, again without the hash. Errors are those
of the timed inputs against float64: output and numbers' gradient of 256 tokens, table gradient of
five rows, the most read one among them.

With `--one-hot`, MemoryFormer's three layers at 30m, bf16: each product with a one-hot matrix, what
writes the matrix and reads gradients from one, all together, and rows read one by one beside them.
The floor is 2 tokens rows width FLOPs at 989 TFLOP/s. Errors there are against products in fp32 of
the same bf16 numbers: outputs in bf16 are off by about 2e-3.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gpu_timing
import torch
import triton
from gpu_required import require_gpu
from gpu_timing import median_ms
from torch import Tensor
from torch.nn import functional

from workloads.kernels.hash_bag import one_hot
from workloads.kernels.hash_bag import triton as kernel
from workloads.kernels.hash_bag.op import hash_bag
from workloads.kernels.segment_sum.triton import reduce_rows, sort_reads
from workloads.kernels.sign_hash import reference as sign_hash_reference
from workloads.kernels.sign_hash import triton as sign_hash
from workloads.kernels.weighted_bag import triton as weighted_bag

HOW = {"temperature": 1.0, "times_l1": False}
LINE = "{:>28} | {:>6} {:>6} {:>8} {:>6} {:>9} {:>8} {:>7} | {:>7} {:>6} {:>8} | {:>8} {:>8} {:>8}"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one layer, and the type of its tables."""

    chunks: int = 128
    bits: int = 8
    width: int = 1024
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.chunks} x 2^{self.bits} x {self.width} {kind}"


SHAPES = [
    Shape(),
    Shape(dtype=torch.float32),
    # Of MemoryFormer at width 1024: queries, keys and values side by side, and the block's second
    # layer.
    Shape(width=3072),
    Shape(bits=10),
    # Of its own presets and LookupFFN's.
    Shape(chunks=256, bits=4, dtype=torch.float32),
]


# Of MemoryFormer at 30m: queries, keys and values; the block's first and second layer.
ONE_HOT_SHAPES = [
    Shape(bits=4, width=1536),
    Shape(bits=4, width=1280),
    Shape(chunks=256, bits=5, width=512),
]


def main() -> None:
    """Print one line for each shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=65536, help="65536 if not given")
    parser.add_argument("--tune", action="store_true", help="time other tilings of the bag")
    parser.add_argument(
        "--one-hot", action="store_true", help="time products with one-hot matrices"
    )
    arguments = parser.parse_args()
    require_gpu()
    if arguments.one_hot:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
        for shape in ONE_HOT_SHAPES:
            _one_hot(shape, arguments.tokens)
        _marks(ONE_HOT_SHAPES[0], arguments.tokens)
        return
    copy_gbps = gpu_timing.copy_gbps()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"copy {copy_gbps:,.0f} GB/s; {arguments.tokens:,} tokens; medians")
    print(
        LINE.format(
            "chunks x rows x width", "hash", "bag", "req/copy", "both", "2 kernels", "select", "emb_bag",
            "bwd", "sort", "select", "y err", "d_z err", "d_T err",
        )
    )  # fmt: skip
    for shape in SHAPES:
        _line(shape, arguments.tokens, copy_gbps, tune=arguments.tune)


def _line(shape: Shape, tokens: int, copy_gbps: float, *, tune: bool) -> None:
    torch.manual_seed(0)
    table = torch.randn(shape.chunks << shape.bits, shape.width, device="cuda").to(shape.dtype)
    z = torch.randn(tokens, shape.chunks, shape.bits, device="cuda")
    grad = torch.randn(tokens, shape.width, device="cuda").to(shape.dtype)
    rows, scores = sign_hash.forward(z, **HOW)

    def both() -> Tensor:
        return hash_bag(table, z, **HOW)[0]

    def two_kernels() -> Tensor:
        return weighted_bag.forward(table, *sign_hash.forward(z, **HOW, by_chunk=False))

    both_ms = median_ms(both)
    bag_ms = median_ms(lambda: kernel.bag(table, rows, scores))
    requested_bytes = tokens * shape.chunks * shape.width * table.element_size()
    ids, weights = rows.contiguous(), scores.contiguous().to(shape.dtype)
    embedding_bag_ms = median_ms(
        lambda: functional.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")
    )
    select_ms, select_backward_ms = _select_ms(table, ids.long(), weights, grad)
    wanted = (table.requires_grad_(), z.requires_grad_())
    out = both()

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, wanted, grad, retain_graph=True)

    backward_ms = median_ms(gradients)
    errors = _errors(table.detach(), z.detach(), grad, out.detach(), gradients())
    with torch.no_grad():
        print(
            LINE.format(
                str(shape),
                f"{median_ms(lambda: sign_hash.forward(z, **HOW)):.3f}",
                f"{bag_ms:.2f}",
                f"{requested_bytes / bag_ms / 1e6 / copy_gbps:.2f}",
                f"{both_ms:.2f}",
                f"{median_ms(two_kernels) / both_ms:.2f}x",
                f"{select_ms / both_ms:.1f}x",
                f"{embedding_bag_ms / both_ms:.1f}x",
                f"{backward_ms:.2f}",
                f"{median_ms(lambda: sort_reads(rows.T, scores.T, len(table), by_chunk=True)):.2f}",
                f"{select_backward_ms / backward_ms:.1f}x",
                *(f"{error:.1e}" for error in errors),
            ),
            flush=True,
        )
        if tune:
            _tilings(table, rows, scores)


def _tilings(table: Tensor, rows: Tensor, scores: Tensor) -> None:
    expected = kernel.bag(table, rows, scores)
    for tokens, warps in itertools.product((16, 32, 64, 128, 256), (1, 2, 4, 8)):
        # 16 to 128 sums per thread.
        if not 512 <= tokens * 32 // warps <= 4096:
            continue
        how = {"block_tokens": tokens, "num_warps": warps}
        torch.testing.assert_close(kernel.bag(table, rows, scores, **how), expected)
        ms = median_ms(lambda how=how: kernel.bag(table, rows, scores, **how))
        print(f"    {tokens:>4} tokens, {warps:>2} warps: {ms:.3f} ms")


_Run = tuple[str, Callable[[], Any], Tensor | None]
"""What is timed, how it runs, and what it should give."""


def _one_hot(shape: Shape, tokens: int) -> None:
    """Print a line for each of a layer's products, and for those of reading row by row."""
    torch.manual_seed(0)
    table = torch.randn(shape.chunks << shape.bits, shape.width, device="cuda").bfloat16()
    grad = torch.randn(tokens, shape.width, device="cuda").bfloat16()
    z = torch.randn(tokens, shape.chunks, shape.bits, device="cuda").bfloat16()
    rows, scores = sign_hash.forward(z, **HOW)
    matrix = table.new_empty(tokens, len(table))
    sign_hash.write(z, one_hot=matrix, **HOW)
    per_code = (grad @ table.T).view(tokens, shape.chunks, -1)
    tera = 2 * tokens * table.numel() / 1e12
    print(f"\n{shape}, {tokens:,} tokens; floor of each product {tera / 989 * 1e3:.3f} ms")
    print(f"{'':>40} | {'ms':>7} {'TFLOP/s':>8} {'error':>8}")
    t32, g32 = table.float(), grad.float()
    y, table_grad = matrix.float() @ t32, matrix.float().T @ g32
    scores_grad = (g32 @ t32.T).gather(1, rows.long())
    needs = {"needs_table": True, "needs_z": True}
    runs: list[_Run] = [
        ("rows and scores", lambda: sign_hash.forward(z, **HOW)[1], None),
        ("the matrix", lambda: sign_hash.write(z, one_hot=matrix, **HOW), None),
        ("sums, row by row", lambda: kernel.bag(table, rows, scores), y),
        ("sums, row by row, fp32", lambda: kernel.bag(t32, rows, scores), y),
        ("sums, product", lambda: matrix @ table, y),
        ("all of the forward pass", lambda: one_hot.forward(table, z, **HOW)[0], y),
        (
            "both gradients, sorted",
            lambda: _sorted_gradients(table, rows, scores, grad),
            table_grad,
        ),
        (
            "both gradients, sorted, fp32",
            lambda: _sorted_gradients(t32, rows, scores, grad),
            table_grad,
        ),
        ("table gradient, product", lambda: matrix.T @ grad, table_grad),
        ("gradients of all scores, product", lambda: grad @ table.T, None),
        ("gradient of numbers, of scores", lambda: sign_hash.backward(z, scores_grad, **HOW), None),
        (
            "gradient of numbers, of all scores",
            lambda: sign_hash.backward(z, per_code, **HOW),
            None,
        ),
        (
            "all of the backward pass",
            lambda: one_hot.backward(table, z, grad, **HOW, **needs)[0],
            table_grad,
        ),
    ]
    _print_runs(runs, tera)


def _print_runs(runs: list[_Run], tera: float) -> None:
    """Print time, speed and error of each, which takes `tera` TFLOPs."""
    for what, run, expected in runs:
        try:
            error = "" if expected is None else f"{_relative(run(), expected):.1e}"
            ms = median_ms(run)
        except Exception as failure:  # a tile too large for this GPU
            print(f"{what:>40} | {failure!r:.100}", flush=True)
            continue
        print(f"{what:>40} | {ms:7.3f} {1e3 * tera / ms:8.0f} {error:>8}", flush=True)


def _marks(shape: Shape, tokens: int) -> None:
    """Time what notes the rows that a layer reads, compiled as in training."""
    z = torch.randn(tokens, shape.chunks, shape.bits, device="cuda").bfloat16()
    rows, _ = sign_hash.forward(z, **HOW)
    ever = torch.zeros(shape.chunks << shape.bits, dtype=torch.bool, device="cuda")

    def mark(ids: Tensor) -> Tensor:
        return ever.index_fill_(0, ids.reshape(-1).long(), True)

    for name, ids in (("token", rows), ("chunk", rows.T)):
        run = partial(torch.compile(mark), ids)
        print(f"{f'rows marked, {name} by {name}':>40} | {median_ms(run):7.3f}", flush=True)


def _sorted_gradients(table: Tensor, rows: Tensor, scores: Tensor, grad: Tensor) -> Tensor:
    reads = sort_reads(rows.T, scores.T, len(table), by_chunk=True)
    sums, _ = reduce_rows(
        reads, grad, table, sums_dtype=table.dtype, products_dtype=scores.dtype, group=1
    )
    return sums


def _select_ms(table: Tensor, ids: Tensor, weights: Tensor, grad: Tensor) -> tuple[float, float]:
    """Time torch's own way, forward with all tokens.

    Backward with an eighth of them, times eight.
    """

    def sums(t: Tensor, i: Tensor, w: Tensor) -> Tensor:
        picked = t.index_select(0, i.flatten()).view(*i.shape, -1)
        return torch.bmm(w[:, None, :], picked)[:, 0]

    # All rows at once need as much memory as all of them have.
    pieces = 1 if ids.numel() * table.shape[1] * table.element_size() < 40e9 else 4
    forward_ms = median_ms(
        lambda: [
            sums(table, i, w) for i, w in zip(ids.chunk(pieces), weights.chunk(pieces), strict=True)
        ],
        repeats=5,
    )
    few = len(ids) // 8
    t, w = table.detach().requires_grad_(), weights[:few].clone().requires_grad_()
    out = sums(t, ids[:few], w)
    backward_ms = median_ms(
        lambda: torch.autograd.grad(out, (t, w), grad[:few], retain_graph=True), repeats=3
    )
    return forward_ms, 8 * backward_ms


def _errors(
    table: Tensor, z: Tensor, grad: Tensor, out: Tensor, gradients: tuple[Tensor, ...]
) -> tuple[float, float, float]:
    few = slice(0, 256)
    numbers, wide_grad = z[few].double(), grad[few].double()
    rows, scores = sign_hash_reference.forward(numbers, **HOW)
    expected, products = [], []
    for r, s, g in zip(rows.long(), scores, wide_grad, strict=True):
        values = table[r].double()
        expected.append(s @ values)
        products.append(values @ g)
    z_grad = sign_hash_reference.backward(numbers, torch.stack(products), **HOW)
    all_rows, all_scores = sign_hash_reference.forward(z, **HOW)
    reads = torch.bincount(all_rows.flatten(), minlength=len(table))
    worst = 0.0
    for row in (int(reads.argmax()), 0, 1, len(table) // 3, len(table) - 1):
        at = (all_rows == row).nonzero()
        weights = all_scores[at[:, 0], at[:, 1]].double()
        worst = max(worst, _relative(gradients[0][row], weights @ grad[at[:, 0]].double()))
    return (
        _relative(out[few], torch.stack(expected)),
        _relative(gradients[1][few], z_grad),
        worst,
    )


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm().clamp_min(1e-30))


if __name__ == "__main__":
    main()
