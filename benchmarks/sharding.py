"""A memory layer whose table is shared out over 1, 2 and 4 GPUs: throughput per GPU, and where the time goes.

    python benchmarks/sharding.py                                   # 1, 2, 4 GPUs, columns
    python benchmarks/sharding.py --layout rows --gpus 1,4
    python benchmarks/sharding.py --device cpu --gpus 1,2 --tokens 64 --n-keys 16 --width 32 --d-model 32 --repeats 3

The script starts its own ranks. Every GPU has the same tokens and the same bytes of the table whatever their number,
so P GPUs hold a table P times as large: with P times the rows (`rows`), or rows P times as wide (`width`). A layer is
query, selection, bag, gate and output projection, forward and backward, in bf16 autocast with a bf16 table, without
the optimizer. With wider rows a token costs P times as much; so what is compared is useful bytes, tokens x rows read
x bytes of a row, per second and GPU. With more rows that is the same as tokens.

Beside it, on the same shapes and timed by themselves: `bag` is the local kernel, forward and backward, on the bags of
all ranks; `messages` are those of a forward and a backward pass. Where they overlap with other work, the parts add up
to more than the step. `error` compares the layer's bags with rows summed in fp32.
"""

import argparse
import dataclasses
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from workloads import device as devices
from workloads import ranks
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.context import Context
from workloads.layers.initialise import initialise
from workloads.layers.memory_table import MemoryTable
from workloads.layers.product_key_memory import MemoryShape, ProductKeyMemory
from workloads.layers.product_keys import LookupShape
from workloads.sharding.mesh import Mesh, mesh_of
from workloads.sharding.share_out import build


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one table on one number of GPUs, on the slowest rank."""

    gpus: int
    grown: str
    n_rows: int
    width: int
    step_s: float
    bag_s: float
    messages_s: float
    sent_bytes: float
    error: float
    tokens_per_s: float
    useful_bytes_per_s: float


def main() -> None:
    arguments = _arguments()
    sizes = [int(n) for n in arguments.gpus.split(",")]
    there = torch.cuda.device_count() if arguments.device == "cuda" else max(sizes)
    rows: list[Row] = []
    for size in sizes:
        if size > there:
            print(f"{size} GPUs: there are {there}", flush=True)
            continue
        for grown in ("rows", "width") if size > 1 else ("-",):
            rows.append(_together(size, grown, arguments))
            _print(rows[-1], rows[0])
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows]))


def _together(size: int, grown: str, arguments: argparse.Namespace) -> Row:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            context.Process(target=_rank, args=(rank, size, grown, folder, arguments))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"{size} GPUs, {grown}: a rank failed")
        return Row(**json.loads((folder / "row.json").read_text()))


def _rank(rank: int, size: int, grown: str, folder: Path, arguments: argparse.Namespace) -> None:
    here = devices.pick(arguments.device, rank=rank)
    meeting = folder / "meet"
    with (
        devices.numerics(here, n_threads=1, bf16=True),
        ranks.join(rank=rank, size=size, device=here, rendezvous=meeting) as world,
    ):
        mesh = mesh_of(world, memory=size)
        with mesh.even():
            found = _measured(mesh, here, grown, arguments)
        if world.leads:
            (folder / "row.json").write_text(json.dumps(dataclasses.asdict(found)))


def _measured(mesh: Mesh, here: torch.device, grown: str, arguments: argparse.Namespace) -> Row:
    size, tokens = mesh.memory.size, arguments.tokens
    n_keys, width = arguments.n_keys, arguments.width
    if grown == "rows":
        n_keys = round(n_keys * size**0.5)
    elif grown == "width":
        width *= size
    lookup = LookupShape(
        d_model=arguments.d_model,
        n_keys=n_keys,
        n_heads=arguments.heads,
        knn=arguments.knn,
        key_dim=arguments.key_dim,
        qk_norm=True,
    )
    table, layer = _layer(MemoryShape(lookup=lookup, value_dim=width), mesh, here, arguments)
    draw = torch.Generator(here).manual_seed(mesh.memory.rank)
    x = torch.randn(1, tokens, arguments.d_model, generator=draw, device=here, requires_grad=True)
    grad = torch.randn(1, tokens, arguments.d_model, generator=draw, device=here)
    context = Context(tokens=torch.zeros(1, tokens, dtype=torch.long, device=here))

    def step() -> None:
        with devices.autocast(bf16=True, device=here):
            output = layer(x, context)
        output.backward(grad.to(output.dtype))
        for parameter in (x, table.weight, *layer.parameters()):
            parameter.grad = None

    step_s = _timed(step, mesh, here, arguments)
    with torch.no_grad(), devices.autocast(bf16=True, device=here):
        ids, weights = layer.select(x[0])
    weights = weights.to(table.weight.dtype)
    bag_s, messages_s, sent = _parts(table, ids, weights, mesh, here, arguments)
    useful = tokens * lookup.rows_read * width * table.weight.element_size() / step_s
    return Row(
        gpus=size,
        grown=grown,
        n_rows=n_keys**2,
        width=width,
        step_s=step_s,
        bag_s=bag_s,
        messages_s=messages_s,
        sent_bytes=sent,
        error=max(mesh.world.all(_error(table, ids, weights))),
        tokens_per_s=tokens / step_s,
        useful_bytes_per_s=useful,
    )


def _layer(
    shape: MemoryShape, mesh: Mesh, here: torch.device, arguments: argparse.Namespace
) -> tuple[MemoryTable, ProductKeyMemory]:
    def make() -> torch.nn.Module:
        return MemoryTable(shape.lookup.n_slots, shape.value_dim)

    table = build(make, mesh, layout=arguments.layout, here=here)
    assert isinstance(table, MemoryTable)
    # Values of a table's size, though not those that training would begin with, which are drawn on the host.
    draw = torch.Generator(here).manual_seed(mesh.memory.rank)
    table = table.to(torch.bfloat16)
    with torch.no_grad():
        table.weight.normal_(0.0, table.std, generator=draw)
    with here:
        layer = ProductKeyMemory(shape, table)
    initialise(layer, 0)
    return table, layer.train()


def _parts(
    table: MemoryTable,
    ids: Tensor,
    weights: Tensor,
    mesh: Mesh,
    here: torch.device,
    arguments: argparse.Namespace,
) -> tuple[float, float, float]:
    """Return seconds of the local bag, seconds of all messages, and the bytes that a rank sends in them."""
    part = table.weight.detach().requires_grad_()
    shard = table.shard
    if shard is None:
        messages, all_ids, all_weights = None, ids, weights
    else:
        messages = shard.messages(len(ids))
        all_ids, all_weights = messages.ids(ids, n_rows=shard.n_rows), messages.gather(weights)
    if arguments.layout == "rows" and shard is not None:
        from workloads.sharding.rows import held_here

        held = held_here(all_ids, shard.rows)
        found = all_weights.flatten().gather(0, held.places.flatten()).view(held.places.shape)
        all_ids, all_weights = held.ids, found.masked_fill(~held.real, 0.0)
    all_weights = all_weights.detach().requires_grad_()
    slices_grad = torch.randn(len(all_ids), part.shape[1], device=here).to(part.dtype)

    def bag() -> None:
        slices = weighted_bag(part, all_ids, all_weights)
        torch.autograd.grad(slices, (part, all_weights), slices_grad)

    bag_s = _timed(bag, mesh, here, arguments)
    if messages is None or shard is None:
        return bag_s, 0.0, 0.0

    own = weights.detach().requires_grad_()
    n_bags = sum(messages.bags)
    columns = shard.width if arguments.layout == "rows" else part.shape[1]
    slices = torch.randn(n_bags, columns, device=here).to(part.dtype).requires_grad_()
    output_grad = torch.randn(len(ids), shard.width, device=here).to(part.dtype)

    def messages_of_a_step() -> None:
        messages.ids(ids, n_rows=shard.n_rows)
        gathered = messages.gather(own)
        back = messages.add_up if arguments.layout == "rows" else messages.to_bags
        output = back(slices)
        torch.autograd.grad((gathered, output), (own, slices), (gathered.detach(), output_grad))

    others = mesh.memory.size - 1
    # ids; weights there and their gradients back; slices of outputs there and of their gradients back.
    sent = others * ids.numel() * (4 + 2 * own.element_size())
    sent += 2 * others * len(ids) * columns * part.element_size()
    return bag_s, _timed(messages_of_a_step, mesh, here, arguments), float(sent)


@torch.no_grad()
def _error(table: MemoryTable, ids: Tensor, weights: Tensor) -> float:
    """Return the largest error of a few bags over the largest number in them."""
    few, scale = ids[:32], weights[:32]
    found = table(few, scale)
    shard = table.shard
    if shard is None:
        rows = table.weight[few].float()
        expected = torch.einsum("bgv,bg->bv", rows, scale.float())
    else:
        messages = shard.messages(len(few))
        all_ids = messages.ids(few, n_rows=shard.n_rows).long()
        all_weights = messages.gather(scale).float()
        here = (all_ids >= shard.rows.start) & (all_ids < shard.rows.stop)
        rows = table.weight[(all_ids - shard.rows.start).clamp(0, len(shard.rows) - 1)].float()
        sums = torch.einsum("bgv,bg->bv", rows, all_weights * here)
        by_rows = len(shard.columns) == shard.width
        expected = messages.add_up(sums) if by_rows else messages.to_bags(sums)
    return float((found.float() - expected).abs().max() / expected.abs().max())


def _timed(
    act: Callable[[], None], mesh: Mesh, here: torch.device, arguments: argparse.Namespace
) -> float:
    """Return the median seconds, on the slowest rank; ranks begin each repeat together."""
    for _ in range(arguments.warmup):
        act()
    seconds = []
    for _ in range(arguments.repeats):
        _wait(here)
        mesh.world.wait()
        _wait(here)
        start = time.perf_counter()
        for _ in range(arguments.at_once):
            act()
        _wait(here)
        seconds.append((time.perf_counter() - start) / arguments.at_once)
    return float(max(mesh.world.all(statistics.median(seconds))))


def _wait(here: torch.device) -> None:
    if here.type == "cuda":
        torch.cuda.synchronize(here)


def _print(row: Row, one: Row) -> None:
    if row is one:
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        print(f"{name}, torch {torch.__version__}; per GPU, slowest rank")
        print(
            "gpus  grown        table  step ms   bag ms  messages ms  sent MB  other ms     tokens/s  useful GB/s  "
            "over one GPU  error"
        )
    other = row.step_s - row.bag_s - row.messages_s
    ratio = row.useful_bytes_per_s / one.useful_bytes_per_s
    print(
        f"{row.gpus:4d}  {row.grown:5s} {row.n_rows:8d}x{row.width:<5d} {1e3 * row.step_s:6.2f} {1e3 * row.bag_s:8.2f} "
        f"{1e3 * row.messages_s:12.3f} {row.sent_bytes / 1e6:8.1f} {1e3 * other:9.2f} {row.tokens_per_s:12,.0f} "
        f"{row.useful_bytes_per_s / 1e9:12,.1f} {ratio:13.3f}  {row.error:.1e}",
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--gpus",
        default="1,2,4",
        help="numbers of ranks; the first is what others are compared with",
    )
    parser.add_argument("--layout", choices=("columns", "rows"), default="columns")
    parser.add_argument("--tokens", type=int, default=16_384, help="per GPU")
    parser.add_argument("--d-model", type=int, default=1024)
    parser.add_argument(
        "--n-keys", type=int, default=1024, help="of one GPU; its table has n_keys**2 rows"
    )
    parser.add_argument("--width", type=int, default=1024, help="of a row, on one GPU")
    parser.add_argument("--key-dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--knn", type=int, default=32)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=3, help="steps timed together")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
