"""A memory layer whose table is shared out over 1, 2 and 4 GPUs.

Throughput per GPU, and where the time goes.

    python benchmarks/sharding.py                                   # 1, 2, 4 GPUs as far as there are, columns
    python benchmarks/sharding.py --layout rows --gpus 1,4 --markdown
    python benchmarks/sharding.py --device cpu --gpus 1,2 --tokens 64 --n-keys 16 --width 32 --d-model 32 --repeats 3

The script starts its own ranks. Every GPU has the same tokens and the same bytes of the table
whatever their number, so P GPUs hold a table P times as large: with P times the rows (`rows`), or
rows P times as wide (`width`). A layer is query, selection, bag, gate and output projection,
forward and backward, in bf16 autocast with a bf16 table, without the optimizer. `over one GPU`
compares tokens per second and GPU with one GPU that holds the same table alone, "over its bytes"
with one GPU whose table has the bytes that each of several holds.

`pieces` is into how many a read is cut, to send one while another is summed (columns only). Beside
it, on the same shapes and timed by themselves, the same whatever the pieces: `bag` is the local
kernel, forward and backward, on the bags of all ranks; `messages` are those of a forward and a
backward pass, one after another, nothing else going on; `rest` is what of the step they leave, all
else less what they overlap with it. `error` compares the layer's bags with rows summed in fp32. All
seconds are medians, of the slowest rank.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from gpu_required import require_gpu
from own_ranks import spawn_ranks
from torch import Tensor

from workloads.distributed import process_group
from workloads.distributed.mesh import Mesh, make_mesh
from workloads.kernels.weighted_bag.gaps import bag_with_gaps, nearest_rows
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.kernels.weighted_bag.sorted_reads import sorted_reads
from workloads.layers.context import Context
from workloads.layers.memory.product_key_memory import MemoryShape, ProductKeyMemory
from workloads.layers.memory.product_keys import LookupShape
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.init import initialise
from workloads.sharding.materialise import materialise_model
from workloads.sharding.table_route import TableRoute
from workloads.sharding.table_shard import TableShard
from workloads.training import device as devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one table on one number of GPUs, on the slowest rank."""

    gpus: int
    grown: str
    pieces: int
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
    require_gpu(arguments.device)
    sizes = [int(n) for n in arguments.gpus.split(",")]
    there = torch.cuda.device_count() if arguments.device == "cuda" else max(sizes)
    rows: list[Row] = []
    for size in sizes:
        if size > there:
            print(f"{size} GPUs: there are {there}", flush=True)
            continue
        for row in _together(size, arguments):
            rows.append(row)
            _print(row, rows, markdown=arguments.markdown)
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows]))


def _together(size: int, arguments: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spawn_ranks(size, _rank, size, folder, arguments)
        return [Row(**row) for row in json.loads((folder / "rows.json").read_text())]


def _rank(rank: int, size: int, folder: Path, arguments: argparse.Namespace) -> None:
    here = devices.pick(arguments.device, rank=rank)
    meeting = folder / "meet"
    with (
        devices.numerics(here, n_threads=1, bf16=True),
        process_group.join(rank=rank, size=size, device=here, rendezvous=meeting) as world,
    ):
        mesh = make_mesh(world, memory=size)
        found = []
        with mesh.equal_bags():
            if size > 1:
                cases = [("rows", size), ("width", size)]
            else:
                # Beside what each GPU holds, the tables that several hold together, as far as they
                # fit.
                several = [int(n) for n in arguments.gpus.split(",") if n != "1"]
                cases = [("-", 1), *((grown, n) for grown in ("rows", "width") for n in several)]
            for grown, times in cases:
                try:
                    found += _measured(mesh, here, grown, times, arguments)
                except torch.OutOfMemoryError:
                    if size > 1 or grown == "-":
                        raise
                    torch.cuda.empty_cache()
        if world.is_main:
            (folder / "rows.json").write_text(
                json.dumps([dataclasses.asdict(row) for row in found])
            )


def _measured(
    mesh: Mesh, here: torch.device, grown: str, times: int, arguments: argparse.Namespace
) -> list[Row]:
    size, tokens = mesh.memory.size, arguments.tokens
    n_keys, width = arguments.n_keys, arguments.width
    if grown == "rows":
        n_keys = round(n_keys * times**0.5)
    elif grown == "width":
        width *= times
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

    with torch.no_grad(), devices.autocast(bf16=True, device=here):
        ids, weights = layer.select(x[0])
    weights = weights.to(table.weight.dtype)
    bag_s, messages_s = _parts(table, ids, weights, mesh, here, arguments)
    rows = []
    in_pieces = size > 1 and arguments.layout == "columns"
    for pieces in [int(n) for n in arguments.pieces.split(",")] if in_pieces else [1]:
        mesh.n_chunks = pieces
        step_s = _timed(step, mesh, here, arguments)
        rows.append(
            Row(
                gpus=size,
                grown=grown,
                pieces=pieces,
                n_rows=n_keys**2,
                width=width,
                step_s=step_s,
                bag_s=bag_s,
                messages_s=messages_s,
                sent_bytes=max(mesh.world.all_gather_objects(_sent_bytes(table, ids))),
                error=max(mesh.world.all_gather_objects(_error(table, ids, weights))),
                tokens_per_s=tokens / step_s,
                useful_bytes_per_s=tokens
                * lookup.rows_read
                * width
                * table.weight.element_size()
                / step_s,
            )
        )
    return rows


def _layer(
    shape: MemoryShape, mesh: Mesh, here: torch.device, arguments: argparse.Namespace
) -> tuple[MemoryTable, ProductKeyMemory]:
    def make() -> torch.nn.Module:
        return MemoryTable(shape.lookup.n_slots, shape.value_dim)

    table = materialise_model(make, mesh, layout=arguments.layout, here=here)
    assert isinstance(table, MemoryTable)
    # Values of a table's size, though not those that training would begin with, which are drawn on
    # the host.
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
) -> tuple[float, float]:
    """Return seconds of the local bag, and of all messages of a read forward and backward."""
    part = table.weight.detach().requires_grad_()
    shard = table.shard
    held_ids, held_weights, gaps = ids, weights, False
    mesh.n_chunks = 1
    if shard is not None:
        route = _route(shard, ids)
        held_ids, held_weights = route.send_scalars_with_ids(weights)()
        gaps = route.HAS_GAPS
    held_weights = held_weights.detach().requires_grad_()
    sums = torch.randn(len(held_ids), part.shape[1], device=here).to(part.dtype)

    def bag() -> None:
        found = weighted_bag(part, held_ids, held_weights)
        torch.autograd.grad(found, (part, held_weights), sums)

    @torch.no_grad()
    def bag_of_a_part() -> None:
        bag_with_gaps(part, held_ids, held_weights)
        sorted_reads(part, held_ids, held_weights, products=True, gaps=True)(sums)

    bag_s = _timed(bag_of_a_part if gaps else bag, mesh, here, arguments)
    if shard is None:
        return bag_s, 0.0

    def messages() -> None:
        route = _route(shard, ids)
        _, numbers = route.send_scalars_with_ids(weights)()
        output = route.return_vectors(sums)()
        route.send_vectors(output)()
        route.return_scalars(numbers)()

    return bag_s, _timed(messages, mesh, here, arguments)


def _sent_bytes(table: MemoryTable, ids: Tensor) -> float:
    """Return what this rank sends in a forward and a backward pass.

    Ids, weights and their gradients, sums and theirs.
    """
    shard, element = table.shard, table.weight.element_size()
    if shard is None:
        return 0.0
    others = shard.mesh.memory.size - 1
    numbers = others * ids.numel()
    vectors = others * len(ids) * len(shard.columns)
    return float(numbers * (shard.id_dtype.itemsize + 2 * element) + 2 * vectors * element)


@torch.no_grad()
def _error(table: MemoryTable, ids: Tensor, weights: Tensor) -> float:
    """Return the largest error of a few bags over the largest number in them."""
    few, scale = ids[:32], weights[:32]
    found = table(few, scale)
    expected = (
        _summed(table.weight, few, scale)
        if table.shard is None
        else _in_fp32(table.shard, table.weight, few, scale)
    )
    return float((found.float() - expected).abs().max() / expected.abs().max())


def _in_fp32(shard: TableShard, part: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    route = _route(shard, ids)
    reads = route.send_scalars_with_ids(weights)()
    held = nearest_rows(part, *reads) if route.HAS_GAPS else reads
    return route.return_vectors(_summed(part, *held))()


def _route(shard: TableShard, ids: Tensor) -> TableRoute:
    places = ids if shard.partition is None else shard.partition.places(ids)
    return shard.route(places.to(shard.id_dtype))


def _summed(rows: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("bgv,bg->bv", rows[ids.long()].float(), weights.float())


def _timed(
    act: Callable[[], None], mesh: Mesh, here: torch.device, arguments: argparse.Namespace
) -> float:
    """Return the median seconds, on the slowest rank; ranks begin each repeat together."""
    for _ in range(arguments.warmup):
        act()
    seconds = []
    for _ in range(arguments.repeats):
        _wait(here)
        mesh.world.barrier()
        _wait(here)
        start = time.perf_counter()
        for _ in range(arguments.at_once):
            act()
        _wait(here)
        seconds.append((time.perf_counter() - start) / arguments.at_once)
    return float(max(mesh.world.all_gather_objects(statistics.median(seconds))))


def _wait(here: torch.device) -> None:
    if here.type == "cuda":
        torch.cuda.synchronize(here)


COLUMNS = (
    "GPUs", "grown", "pieces", "table (all)", "step ms", "of it bag", "messages", "rest", "sent MB", "tokens/s",
    "useful GB/s", "over one GPU", "over its bytes", "error",
)  # fmt: skip


def _print(row: Row, rows: list[Row], *, markdown: bool) -> None:
    same = next(
        (r for r in rows if (r.gpus, r.n_rows, r.width) == (rows[0].gpus, row.n_rows, row.width)),
        None,
    )
    its_bytes = rows[0] if row.gpus > rows[0].gpus or row is rows[0] else None
    line = "| " + " | ".join(["{}"] * len(COLUMNS)) + " |"
    if not markdown:
        line = "{:>4}  {:5}  {:>6}  {:>16}" + "  {:>9}" * 4 + "  {:>7}" + "  {:>14}" * 4 + "  {:>7}"
    if row is rows[0]:
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        print(f"{name}, torch {torch.__version__}; per GPU, slowest rank\n")
        print(line.format(*COLUMNS))
        if markdown:
            print(line.format(*["---"] * len(COLUMNS)))
    rest = row.step_s - row.bag_s - row.messages_s
    print(
        line.format(
            row.gpus,
            row.grown,
            row.pieces,
            f"{row.n_rows:,} x {row.width}",
            *(f"{1e3 * s:.2f}" for s in (row.step_s, row.bag_s, row.messages_s, rest)),
            f"{row.sent_bytes / 1e6:.1f}",
            f"{row.tokens_per_s:,.0f}",
            f"{row.useful_bytes_per_s / 1e9:,.1f}",
            *(
                f"{row.tokens_per_s / one.tokens_per_s:.3f}" if one else ""
                for one in (same, its_bytes)
            ),
            f"{row.error:.1e}",
        ),
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
    parser.add_argument(
        "--pieces",
        default="1,2",
        help="of a read, each measured; only by columns and over more GPUs than one",
    )
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
    parser.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
