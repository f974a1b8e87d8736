"""A table's backward pass and optimizer step.

Our fused updates beside a dense gradient, its norm and torch's AdamW.

    python benchmarks/table_optimizer.py                        # 64k tokens, 2^20 rows of 1,024, 128 a token, bf16
    python benchmarks/table_optimizer.py --ids zipf --markdown

What is timed begins with the gradient of a weighted bag's output and ends with the gradient of its
weights and a table that has been updated. "step" is what training does: products at once, the
update later from the reads alone, clipped exactly (a pass for the norm) or by the norm of the step
before. "In the backward pass" makes products and update in one, as a table allows that is read once
a step. Dense is our own backward pass, or plain torch's, then norm, clip and fused AdamW.

Beside each time: the ratios to dense and to plain torch, the most memory allocated (table, state
and batch included), the time over that of reading and writing table and state once at the copy
speed measured in the same run, and how far sampled rows are from fp32 updates, in spacings of bf16:
at most 1 is right for stochastic rounding, and a fraction of one, from the order of sums, for
`table_precision: bf16_master`.
"""

import argparse
import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from reads import draw_ids
from torch import Tensor, nn

from workloads.kernels.backend import uses_triton
from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.table_update import reference
from workloads.kernels.table_update.op import row_sums
from workloads.kernels.table_update.split_master import join
from workloads.kernels.table_update.update_rules import Kind, Rule, new_state
from workloads.kernels.weighted_bag import reference as plain_bag

LARGEST_NORM = 1.0
SAMPLED_ROWS = 64
KINDS: dict[str, Kind] = {
    "deferred_adamw": "adamw",
    "lazy_adamw": "lazy_adamw",
    "rowwise": "rowwise",
    "sgd": "sgd",
}
EXACT, PREVIOUS, BACKWARD = "clip exact", "clip previous", "in the backward pass, clip previous"
DENSE, PLAIN = "dense", "dense, plain torch's backward"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """What the backward pass of one bag begins with."""

    ids: Tensor
    weights: Tensor
    grad: Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one way."""

    name: str
    ms: float
    peak_bytes: float | None
    floor_ms: float
    error: float | None
    """Of sampled rows, in spacings of bf16; infinite where the products are wrong, None where
    nothing is compared."""
    largest_error: float
    """That may be."""
    norm: float


def main() -> None:
    arguments = _arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = _batch(arguments, device)
    bandwidth = _copy_bytes_per_s(device, arguments.rows * arguments.width)
    rows = [_dense(batch, arguments, bandwidth, plain=False)]
    if not arguments.no_plain:
        rows.append(_dense(batch, arguments, bandwidth, plain=True))
    for name in KINDS:
        for when in (EXACT, PREVIOUS, BACKWARD):
            rows.append(_fused(name, when, batch, arguments, bandwidth))
        rows.append(_fused(name, EXACT, batch, arguments, bandwidth, master=True))
    _print(rows, arguments, device, bandwidth)
    if _wrong(rows):
        raise SystemExit(1)


def _dense(batch: Batch, arguments: argparse.Namespace, bandwidth: float, *, plain: bool) -> Row:
    table = nn.Parameter(_table(arguments, batch.grad.device))
    adamw = torch.optim.AdamW([table], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> tuple[Tensor, Tensor]:
        implementation: Any = plain_bag
        if not plain and uses_triton(table):
            implementation = import_module("workloads.kernels.weighted_bag.triton")
        table.grad, products = implementation.backward(
            table.detach(),
            batch.ids,
            batch.weights,
            batch.grad,
            needs_table=True,
            needs_weights=True,
        )
        norm = nn.utils.get_total_norm([table.grad])
        nn.utils.clip_grads_with_norm_([table], LARGEST_NORM, norm)
        adamw.step()
        table.grad = None
        return norm, products

    return _measured(
        PLAIN if plain else DENSE,
        step,
        arguments,
        floor_s=2 * 3 * table.nbytes / bandwidth,
        error=None,
        slow=plain,
    )


def _fused(
    name: str,
    when: str,
    batch: Batch,
    arguments: argparse.Namespace,
    bandwidth: float,
    *,
    master: bool = False,
) -> Row:
    table = _table(arguments, batch.grad.device)
    state = new_state(KINDS[name], table, master=master)
    rule = Rule(kind=KINDS[name], lr=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1, step=1, seed=1)
    error = _error(table, state, batch, rule, when)
    previous = table.new_full((), 2.0, dtype=torch.float32)
    steps = 1

    def step() -> tuple[Tensor, Tensor]:
        nonlocal previous, steps
        steps += 1
        now = dataclasses.replace(rule, step=steps)
        if when == BACKWARD:
            sums = row_sums(table, batch.ids, batch.weights, batch.grad)
            previous, products = sums.update_with_products_(state, now, _coefficient(previous))
            return previous, products
        products = gathered_dot(table, batch.ids, batch.grad)
        sums = row_sums(table, batch.ids, batch.weights, batch.grad)
        norm = sums.norm() if when == EXACT else previous
        previous = sums.update_(state, now, _coefficient(norm))
        return previous, products

    kept = table.nbytes + sum(each.nbytes for each in state.values())
    variant = ["bf16_master"] * master
    return _measured(
        ", ".join([name, *variant, when]),
        step,
        arguments,
        floor_s=2 * kept / bandwidth,
        error=error,
        largest_error=0.25 if master else 1.05,
    )


def _coefficient(norm: Tensor) -> Tensor:
    return (LARGEST_NORM / (norm + 1e-6)).clamp(max=1.0)


def _error(table: Tensor, state: dict[str, Tensor], batch: Batch, rule: Rule, when: str) -> float:
    """Make two steps; return the error of sampled rows of table and state, against fp32.

    The products of sampled bags must be the plain ones, to what bf16 keeps.
    """
    device = table.device
    generator = torch.Generator(device).manual_seed(5)
    # Rows that are read, and some that may not be.
    rows = torch.randint(len(table), (SAMPLED_ROWS,), generator=generator, device=device)
    rows = torch.cat([batch.ids.flatten()[:SAMPLED_ROWS].long(), rows]).unique()
    wanted = torch.isin(batch.ids, rows.to(batch.ids.dtype)).nonzero(as_tuple=True)
    hits = (
        torch.searchsorted(rows, batch.ids[wanted].long())[:, None],
        batch.weights[wanted].float()[:, None],
        batch.grad[wanted[0]].float(),
    )
    furthest = 0.0
    for step in (1, 2):
        now = dataclasses.replace(rule, step=step)
        # Moments after the first step are those stored, so that each step is one rounding away.
        exact = _values(table, state, rows)
        exact_state = _moments(state, rows)
        expected_products = plain_bag.row_products(table, batch.ids[:16], batch.grad[:16]).float()
        sums = row_sums(table, batch.ids, batch.weights, batch.grad)
        coefficient = table.new_full((), 0.5, dtype=torch.float32)
        if when == BACKWARD:
            _, products = sums.update_with_products_(state, now, coefficient)
        else:
            products = gathered_dot(table, batch.ids, batch.grad)
            if when == EXACT:
                sums.norm()
            sums.update_(state, now, coefficient)
        reference.ReferenceRowSums(exact, *hits).update_(exact_state, now, coefficient)
        off = (products[:16].float() - expected_products).abs().max()
        if off > 0.02 * expected_products.abs().max():
            return math.inf
        stored = _moments(state, rows)
        pairs = [(stored[name], kept) for name, kept in exact_state.items()]
        for found, expected in [(_values(table, state, rows), exact), *pairs]:
            spacing = 2.0 ** (expected.abs().clamp_min(2.0**-100).log2().floor() - 7)
            # A sum of many reads in another order: its error is relative to the reads, not to the
            # sum.
            spacing = spacing + 1e-6 * expected.abs().max()
            furthest = max(furthest, ((found - expected).abs() / spacing).max().item())
    return furthest


def _moments(state: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Return what is kept of some rows, but for the master, in fp32."""
    return {name: state[name][rows].float() for name in state.keys() - {"low"}}


def _values(table: Tensor, state: dict[str, Tensor], rows: Tensor) -> Tensor:
    """Return rows in fp32, those of the master where there is one."""
    return join(table[rows], state["low"][rows]) if "low" in state else table[rows].float()


def _measured(
    name: str,
    step: Callable[[], tuple[Tensor, Tensor]],
    arguments: argparse.Namespace,
    *,
    floor_s: float,
    error: float | None,
    largest_error: float = 0.0,
    slow: bool = False,
) -> Row:
    cuda = torch.cuda.is_available()
    first_norm = step()[0].float().item()
    step()
    if cuda:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() if cuda else None
    seconds = [_timed(step, cuda=cuda) for _ in range(3 if slow else arguments.repeats)]
    return Row(
        name=name,
        ms=1e3 * statistics.median(seconds),
        peak_bytes=peak,
        floor_ms=1e3 * floor_s,
        error=error,
        largest_error=largest_error,
        norm=first_norm,
    )


def _timed(step: Callable[[], object], *, cuda: bool) -> float:
    if not cuda:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    step()
    events[1].record()
    events[1].synchronize()
    return events[0].elapsed_time(events[1]) / 1e3


def _batch(arguments: argparse.Namespace, device: torch.device) -> Batch:
    generator = torch.Generator(device).manual_seed(0)
    shape = (arguments.tokens, arguments.reads)
    ids = draw_ids(arguments.ids, *shape, n_rows=arguments.rows, device=device, generator=generator)
    weights = torch.rand(shape, generator=generator, device=device) / arguments.reads
    grad = torch.randn(arguments.tokens, arguments.width, generator=generator, device=device)
    return Batch(ids=ids, weights=weights.bfloat16(), grad=(0.01 * grad).bfloat16())


def _table(arguments: argparse.Namespace, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(1)
    table = torch.empty(arguments.rows, arguments.width, dtype=torch.bfloat16, device=device)
    return table.normal_(0.0, arguments.width**-0.5, generator=generator)


def _copy_bytes_per_s(device: torch.device, numbers: int) -> float:
    source = torch.zeros(numbers, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    cuda = device.type == "cuda"
    seconds = [_timed(lambda: target.copy_(source), cuda=cuda) for _ in range(10)]
    return 4 * numbers / statistics.median(seconds)


def _wrong(rows: list[Row]) -> list[str]:
    """Return what is not right.

    A row away from its update, a norm or products away from the dense ones.
    """
    wrong = [
        f"{row.name}: off by {row.error:.2f} spacings, right is up to {row.largest_error}"
        for row in rows
        if row.error is not None and row.error > row.largest_error
    ]
    for row in rows[1:]:
        # Gradients of the dense path are rounded to bf16 before their norm is taken.
        if not math.isclose(row.norm, rows[0].norm, rel_tol=1e-2):
            wrong.append(f"{row.name}: norm {row.norm:.5g}, dense {rows[0].norm:.5g}")
    return wrong


def _print(
    rows: list[Row], arguments: argparse.Namespace, device: torch.device, bandwidth: float
) -> None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(
        f"{name}, torch {torch.__version__}; {arguments.tokens} tokens, {arguments.reads} reads a token "
        f"({arguments.ids}), table {arguments.rows} x {arguments.width} bf16, copy {bandwidth / 1e9:.0f} GB/s\n"
    )
    bar = "|" if arguments.markdown else " "
    header = (
        "update",
        "ms",
        "dense / this",
        "plain torch / this",
        "peak GB",
        "of dense",
        "over floor",
        "error",
    )
    plain = next((row for row in rows if row.name == PLAIN), None)
    lines = [header, *[_cells(row, rows[0], plain) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for number, line in enumerate(lines):
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        print(f"{bar} {f' {bar} '.join(cells)} {bar}".strip())
        if arguments.markdown and number == 0:
            print("|---|" + "---:|" * (len(header) - 1))
    for sentence in _wrong(rows):
        print(f"WRONG {sentence}")


def _cells(row: Row, dense: Row, plain: Row | None) -> tuple[str, ...]:
    memory = ("", "")
    if row.peak_bytes is not None and dense.peak_bytes is not None:
        memory = (f"{row.peak_bytes / 1e9:.2f}", f"{row.peak_bytes / dense.peak_bytes:.2f}")
    error = "" if row.error is None else f"{row.error:.2f}"
    over = f"{row.ms / row.floor_ms:.1f}"
    ratios = (f"{dense.ms / row.ms:.2f}", "" if plain is None else f"{plain.ms / row.ms:.1f}")
    return (row.name, f"{row.ms:.2f}", *ratios, *memory, over, error)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--rows", type=int, default=2**20)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--reads", type=int, default=128, help="rows that a token reads")
    parser.add_argument("--ids", choices=("uniform", "zipf"), default="uniform")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-plain", action="store_true", help="leave plain torch out")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
