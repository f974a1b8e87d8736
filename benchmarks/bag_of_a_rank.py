"""Kernels of one rank's part of a sharded memory table, by rows and by columns, on one GPU.

    python benchmarks/bag_of_a_rank.py                       # a 373m's table on four ranks
    python benchmarks/bag_of_a_rank.py --ranks 2
    python benchmarks/bag_of_a_rank.py --blocks 64x16,128x16,512x4   # other tilings of the forward pass
    python benchmarks/bag_of_a_rank.py --device cpu --tokens 3 --rows 1024 --repeats 1

Both hold as many bytes and read as many. By rows a rank makes some reads of every bag, chosen as
`workloads/sharding/row_parallel.py` does: hash partitioning, then the reads of a bag in the order
of the ranks. By columns it makes all, of a slice of each row. No messages are sent.

Three kinds of reads: `few` rows, 430 in all, which is what drawn words read after some steps;
`words`, 20,000 of them with as many rows each as a bag has, drawn by Zipf's law; `uniform`. Columns
are the forward pass of the bag, products of rows with the output's gradient, and the sum of the
table's gradient without its sort, as an optimizer of sparse gradients makes it. Times are medians
in ms; "error" is that of 64 bags against float64. On a CPU kernels are interpreted, so that the
script can be tried; its times mean nothing.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import gpu_timing
import torch
from gpu_required import require_gpu
from torch import Tensor

from workloads.distributed.hash_partition import HashPartition
from workloads.distributed.process_group import RankGroup
from workloads.kernels.block_bucketize.op import bucketize, local_ids

WIDTH, BAG_SIZE, FEW, WORDS = 1024, 128, 430, 20_000
HEADS = ("reads", "kernels", "columns x rows at a time", "forward", "products", "gradient", "error")


def main() -> None:
    """Print a line for each kind of reads and layout."""
    arguments = _arguments()
    require_gpu(arguments.device)
    if arguments.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
        name = "CPU, interpreted"
    else:
        name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}; {arguments.tokens:,} tokens of each of", end=" ")
    print(f"{arguments.ranks} ranks, {arguments.rows:,} x {WIDTH} in bf16")
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|", flush=True)
    for kind in ("few", "words", "uniform"):
        torch.manual_seed(0)
        ids = _ids(kind, arguments)
        weights = torch.rand(ids.shape, device=arguments.device).bfloat16()
        _by_columns(kind, ids, weights, arguments)
        _by_rows(kind, ids, weights, arguments)


def _ids(kind: str, arguments: argparse.Namespace) -> Tensor:
    """Return the rows of all ranks' bags, int32."""
    n_bags, device = arguments.tokens * arguments.ranks, arguments.device
    if kind == "uniform":
        return torch.randint(arguments.rows, (n_bags, BAG_SIZE), device=device, dtype=torch.int32)
    if kind == "few":
        pool = torch.randint(arguments.rows, (FEW,), device=device, dtype=torch.int32)
        of_words = pool[torch.rand(WORDS, FEW, device=device).argsort(1)[:, :BAG_SIZE]]
    else:
        of_words = torch.randint(
            arguments.rows, (WORDS, BAG_SIZE), device=device, dtype=torch.int32
        )
    share = torch.arange(1, WORDS + 1, device=device, dtype=torch.float64) ** -1.2
    return of_words[torch.multinomial(share, n_bags, replacement=True)]


def _by_columns(kind: str, ids: Tensor, weights: Tensor, arguments: argparse.Namespace) -> None:
    width = WIDTH // arguments.ranks
    table, grad = _normal(arguments.rows, width, ids), _normal(len(ids), width, ids)
    _print_lines(f"{kind} | by columns", table, ids, weights, grad, arguments, gaps=False)


def _by_rows(kind: str, ids: Tensor, weights: Tensor, arguments: argparse.Namespace) -> None:
    # The second rank: its reads stand in the middle of a bag.
    rows = RankGroup(rank=1, size=arguments.ranks).local_range(arguments.rows)
    places = HashPartition(arguments.rows).places(ids).int()
    placed, moved = bucketize(
        places, [places, weights], n_rows=arguments.rows, n_ranks=arguments.ranks
    )
    own = local_ids([placed], rows)
    table, grad = _normal(len(rows), WIDTH, ids), _normal(len(ids), WIDTH, ids)
    _print_lines(f"{kind} | by rows", table, own, moved, grad, arguments, gaps=True)


def _print_lines(
    name: str,
    table: Tensor,
    ids: Tensor,
    weights: Tensor,
    grad: Tensor,
    arguments: argparse.Namespace,
    *,
    gaps: bool,
) -> None:
    """Time the kernels as they are called, then other tilings of the forward pass by rows."""
    # Imported here, because triton looks at once whether it shall interpret.
    from workloads.kernels.segment_sum import triton as segment_sum
    from workloads.kernels.weighted_bag import triton as bag

    bf16 = torch.bfloat16
    reads = segment_sum.sort_reads(ids, weights, len(table))
    times = [
        _median_ms(arguments, run)
        for run in (
            lambda: bag.forward(table, ids, weights, gaps=gaps),
            lambda: bag.row_products(table, ids, grad, gaps=gaps),
            lambda: segment_sum.reduce_rows(reads, grad, sums_dtype=bf16, products_dtype=bf16),
        )
    ]
    error = _error(bag.forward(table, ids[:64], weights[:64], gaps=gaps), table, ids, weights)
    of_three = " | ".join(f"{ms:.3f}" for ms in times)
    print(f"| {name} | default | {of_three} | {error:.1e} |", flush=True)
    for tiling in arguments.blocks.split(",") if arguments.blocks and gaps else ():
        width, rows = map(int, tiling.split("x"))
        tiled = partial(bag.forward, table, gaps=True, block_width=width, block_rows=rows)
        ms = _median_ms(arguments, partial(tiled, ids, weights))
        error = _error(tiled(ids[:64], weights[:64]), table, ids, weights)
        print(f"| {name} | {tiling} | {ms:.3f} | | | {error:.1e} |", flush=True)


def _error(found: Tensor, table: Tensor, ids: Tensor, weights: Tensor) -> float:
    ids = ids[: len(found)].long()
    made = torch.where(ids < len(table), weights[: len(found)].double(), 0.0)
    rows = table[ids.clamp_max(len(table) - 1)].double()
    expected = torch.einsum("bg,bgv->bv", made, rows)
    return float((found.double() - expected).norm() / expected.norm())


def _normal(rows: int, width: int, like: Tensor) -> Tensor:
    return torch.randn(rows, width, device=like.device).bfloat16()


def _median_ms(arguments: argparse.Namespace, run: Callable[[], object]) -> float:
    if arguments.device == "cuda":
        return gpu_timing.median_ms(run, repeats=arguments.repeats)
    begin = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begin)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, help="two at least")
    parser.add_argument("--tokens", type=int, default=32_768, help="of each rank")
    parser.add_argument("--rows", type=int, default=2**20, help="of the whole table")
    parser.add_argument("--blocks", default="", help="of the forward pass by rows: COLUMNSxROWS,…")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    if arguments.ranks < 2:
        parser.error(f"--ranks must be 2 or more, got {arguments.ranks}")
    return arguments


if __name__ == "__main__":
    main()
