"""Time of the weighted bag on one GPU, plain torch, and the bandwidth of a copy.

    python benchmarks/weighted_bag.py                  # all shapes; six took 40 s on an H200
    python benchmarks/weighted_bag.py --tokens 8192    # few reads of a row: the backward pass

Forward: bytes of the rows asked for over the bandwidth of a copy (read and written bytes over
time). More than 1 needs rows from the cache. Backward: time over the floor of one pass sorted by
row, which reads every row that was used and the output's gradient and writes the whole gradient of
the table, at the bandwidth of a copy. Every line's error is that of its own timed inputs against
float64: forward and weights' gradient of 256 bags, table gradient of five rows, the most read one
among them.
"""

import argparse

import gpu_timing
import torch
import triton
from gpu_required import require_gpu
from gpu_timing import median_ms
from reads import Kind, draw_ids
from torch import Tensor
from torch.nn import functional

from workloads.kernels.segment_sum.triton import sort_reads
from workloads.kernels.weighted_bag import triton as kernel

N_ROWS = 2**20
BAG_SIZE = 128
LINE = "{:>8} {:>6} {:>5} {:>9} {:>10} | {:>9} {:>9} {:>8} | {:>9} {:>9} {:>8} {:>8} | {:>9} {:>9} {:>9}"


def main() -> None:
    """Print one line for each shape, type and distribution of ids."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=65536, help="bags; 65536 if not given")
    tokens = parser.parse_args().tokens
    require_gpu()
    copy_gbps = gpu_timing.copy_gbps()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"copy {copy_gbps:,.0f} GB/s; {N_ROWS:,} rows, {BAG_SIZE} reads a token; medians")
    print(
        LINE.format(
            "tokens", "width", "type", "ids", "most read", "fwd ms", "req/copy", "eager x",
            "bwd ms", "x floor", "sort ms", "eager x", "fwd err", "d_w err", "d_V err",
        )
    )  # fmt: skip
    for width, dtype, ids in (
        (256, torch.bfloat16, "uniform"),
        (768, torch.bfloat16, "uniform"),
        (1024, torch.bfloat16, "uniform"),
        (2048, torch.bfloat16, "uniform"),
        (256, torch.bfloat16, "zipf"),
        (1024, torch.bfloat16, "zipf"),
        (2048, torch.bfloat16, "zipf"),
        (1024, torch.float32, "uniform"),
    ):
        _line(tokens, width, dtype, ids, copy_gbps)


def _line(tokens: int, width: int, dtype: torch.dtype, kind: Kind, copy_gbps: float) -> None:
    torch.manual_seed(0)
    table = torch.randn(N_ROWS, width, device="cuda", dtype=dtype)
    ids = draw_ids(kind, tokens, BAG_SIZE, n_rows=N_ROWS)
    weights = torch.rand(tokens, BAG_SIZE, device="cuda").to(dtype)
    grad = torch.randn(tokens, width, device="cuda", dtype=dtype)
    reads = torch.bincount(ids.flatten(), minlength=N_ROWS)

    def backward() -> tuple[Tensor | None, Tensor | None]:
        return kernel.backward(table, ids, weights, grad, needs_table=True, needs_weights=True)

    forward_ms = median_ms(lambda: kernel.forward(table, ids, weights))
    backward_ms = median_ms(backward)
    sort_ms = median_ms(lambda: sort_reads(ids, weights, N_ROWS))
    bag_ms = median_ms(
        lambda: functional.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")
    )
    size = table.element_size()
    used_rows = int((reads > 0).sum())
    floor_bytes = (used_rows + N_ROWS + tokens) * width * size
    requested_bytes = tokens * BAG_SIZE * width * size
    eager_ms = _eager_backward_ms(table, ids, weights, grad)
    errors = _errors(table, ids, weights, grad, reads, backward())
    print(
        LINE.format(
            f"{tokens:,}", width, str(dtype)[6:][:5].replace("bfloa", "bf16").replace("float", "fp32"),
            kind, f"{int(reads.max()):,}", f"{forward_ms:.2f}",
            f"{requested_bytes / forward_ms / 1e6 / copy_gbps:.2f}", f"{bag_ms / forward_ms:.1f}",
            f"{backward_ms:.2f}", f"{backward_ms / (floor_bytes / copy_gbps / 1e6):.2f}",
            f"{sort_ms:.2f}", f"{eager_ms / backward_ms:.1f}", *(f"{e:.1e}" for e in errors),
        ),
        flush=True,
    )  # fmt: skip


def _eager_backward_ms(table: Tensor, ids: Tensor, weights: Tensor, grad: Tensor) -> float:
    """Time torch's own way, index_select and a batched product, both gradients.

    A quarter of the bags, times four.
    """
    t, w = table.requires_grad_(), weights[: len(ids) // 4].contiguous().requires_grad_()
    few, g = ids[: len(ids) // 4].long(), grad[: len(ids) // 4]
    rows = functional.embedding(few.flatten(), t).view(*few.shape, -1)
    out = torch.bmm(w[:, None, :], rows)[:, 0]
    found = median_ms(lambda: torch.autograd.grad(out, (t, w), g, retain_graph=True), repeats=3)
    table.requires_grad_(False)
    return 4 * found


def _errors(
    table: Tensor,
    ids: Tensor,
    weights: Tensor,
    grad: Tensor,
    reads: Tensor,
    found: tuple[Tensor, Tensor],
) -> tuple[float, float, float]:
    few = slice(0, 256)
    rows = table[ids[few].long()].double()
    bags = torch.einsum("bg,bgv->bv", weights[few].double(), rows)
    products = torch.einsum("bgv,bv->bg", rows, grad[few].double())
    worst = 0.0
    for row in (int(reads.argmax()), 0, 1, N_ROWS // 3, N_ROWS - 1):
        at = (ids == row).nonzero()
        expected = torch.zeros(table.shape[1], dtype=torch.float64, device="cuda")
        for part in at.split(65536):
            expected += weights[part[:, 0], part[:, 1]].double() @ grad[part[:, 0]].double()
        worst = max(
            worst,
            _relative(found[0][row], expected) if len(at) else float(found[0][row].abs().max()),
        )
    return (
        _relative(kernel.forward(table, ids, weights)[few], bags),
        _relative(found[1][few], products),
        worst,
    )


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


if __name__ == "__main__":
    main()
