"""Times the parts of Memory+'s three memory layers on one GPU: what a step spends beside dense.

    python benchmarks/memory_parts.py                     # 373m and 1.3b, half a minute
    python benchmarks/memory_parts.py --before FILE       # an earlier product_key_topk/backward.py

ms of a step, all three layers: kernels alone, medians. Queries and sub-keys are normal numbers, a
table is bf16, and the rows read are those selected. "floor" is the bytes that each part reads and
writes over the bandwidth of a copy, and its products at 600 TFLOP/s; rows and vectors count as
often as they are named, so where the cache holds them a part can be faster. "gathered" is the
update without kept sums (`keeps_sums`).
"""

import argparse
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import gpu_timing
import torch
from gpu_required import require_gpu
from gpu_timing import median_ms
from torch import Tensor

from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.product_key_topk import backward as selection_gradients
from workloads.kernels.product_key_topk.op import product_key_topk
from workloads.kernels.table_update import kept_sums
from workloads.kernels.table_update import op as table_update
from workloads.kernels.table_update.update_rules import Rule, new_state
from workloads.kernels.weighted_bag import triton as rows_of_table
from workloads.kernels.weighted_bag.op import weighted_bag

LAYERS, HEADS, KNN, KEYS = 3, 4, 32, 1024
FLOPS_PER_S = 6e14
LINE = "{:>5} {:>34} | {:>8} {:>8} {:>7}"


@dataclass(frozen=True, kw_only=True)
class Size:
    """A preset's memory layers and batch."""

    tokens: int
    width: int

    @property
    def reads(self) -> int:
        """Rows named in all layers."""
        return LAYERS * self.tokens * HEADS * KNN


SIZES = {"373m": Size(tokens=32_768, width=1024), "1.3b": Size(tokens=16_384, width=2048)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", help="file of earlier gradients of the selection")
    arguments = parser.parse_args()
    require_gpu()
    before = _module(arguments.before) if arguments.before else None
    gbps = gpu_timing.copy_gbps()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {gbps:,.0f} GB/s")
    print(LINE.format("size", "part", "ms", "floor", "x"))
    for name, size in SIZES.items():
        _parts(name, size, gbps, before)


def _module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("before", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _parts(name: str, size: Size, gbps: float, before: ModuleType | None) -> None:
    torch.manual_seed(0)
    tokens, width = size.tokens, size.width
    half = width // 4
    query = torch.randn(tokens, HEADS, 2 * half, device="cuda").bfloat16()
    sub_keys = torch.randn(2, HEADS, KEYS, half, device="cuda") / half**0.5
    table = torch.randn(KEYS**2, width, device="cuda").bfloat16()
    grad = torch.randn(tokens, width, device="cuda").bfloat16()
    scores, ids = product_key_topk(query, sub_keys, KNN)
    weights = scores.softmax(-1).flatten(1).bfloat16()
    slots = ids.flatten(1)

    def row(part: str, run: Callable[[], object], gb: float, flops: float = 0.0, n: int = 1):
        ms = n * median_ms(run, repeats=7)
        floor = 1e3 * max(gb / gbps, flops / FLOPS_PER_S)
        print(LINE.format(name, part, f"{ms:.2f}", f"{floor:.2f}", f"{ms / floor:.2f}"), flush=True)

    books = LAYERS * tokens * 2 * HEADS
    product = 2.0 * books * KEYS * half
    named, dense = 2e-9 * size.reads * width, 2e-9 * books * KEYS
    queries = 2e-9 * books * half
    row("selection", lambda: product_key_topk(query, sub_keys, KNN), queries, 3 * product, LAYERS)
    arguments = torch.randn_like(scores), ids, query, sub_keys
    if before is not None:
        row("its gradients, before", partial(before.gradients, *arguments), queries, 0, LAYERS)
    now = partial(selection_gradients.gradients, *arguments)
    row("its gradients", now, 2 * queries + 3 * dense, 2 * product, LAYERS)
    row("bag", lambda: weighted_bag(table, slots, weights), named, n=LAYERS)
    usual = rows_of_table.READS_OF_A_ROW
    for how, reads_of_a_row in (("whole rows", math.inf), ("by columns", usual)):
        rows_of_table.READS_OF_A_ROW = reads_of_a_row
        row(f"products, {how}", lambda: gathered_dot(table, slots, grad), named, n=LAYERS)
    reads = [x.repeat(LAYERS, 1) for x in (slots.int(), weights, grad)]
    row("sort of reads", lambda: table_update.row_sums(table, *reads), 1e-9 * 24 * size.reads)
    _update(row, table, reads, named)


def _update(row: Callable[..., None], table: Tensor, reads: list[Tensor], named: float) -> None:
    state, rule = new_state("rowwise", table), Rule(kind="rowwise", lr=1e-4, step=2)
    one = torch.ones((), device="cuda")
    sums = table_update.row_sums(table, *reads)

    def norm() -> None:
        sums._squares = sums._sums = sums._begun = None  # type: ignore[attr-defined]
        sums.norm()

    usual, numbers = kept_sums.KEPT_FROM, 1e-9 * table.numel()
    keeps = kept_sums.keeps_sums(reads[0].numel(), len(table), element_bytes=2)
    for factor in (math.inf, usual) if keeps else (math.inf,):
        kept_sums.KEPT_FROM = factor
        kept = factor == usual
        how = "kept sums" if kept else "gathered"
        row(f"norm, {how}", norm, named + 4 * numbers * kept)
        norm()
        update = partial(sums.update_, state, rule, one)
        row(f"update, {how}", update, 4 * numbers + (4 * numbers if kept else named))
    kept_sums.KEPT_FROM = usual


if __name__ == "__main__":
    main()
