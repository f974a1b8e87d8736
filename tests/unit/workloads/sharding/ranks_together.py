"""Lookups and training of sharded tables on several ranks, against one process.

    python ranks_together.py OUT.json DEVICE GROUP SIZE...

A script, because ranks are processes: it imports torch once and starts the ranks of every SIZE in
turn. GROUP is which checks (`CHECKS`). OUT.json gets {size: {check: worst relative error over
ranks, or how often something is untrue}}.
"""

import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by optimizers at their first step, which takes each rank two seconds unless it is there when they are forked
from torch import Tensor, nn

from orchestrator.sweep import registry
from workloads.architectures import engram, memory_plus, peer
from workloads.distributed import process_group
from workloads.distributed.mesh import Mesh, make_mesh
from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.memory.lookup_grad import LookupGrad
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.layers.modules.init import initialise
from workloads.sharding.column_parallel import ColumnParallelShard
from workloads.sharding.gradient_allreduce import GradientAllReduce
from workloads.sharding.materialise import materialise_model
from workloads.sharding.row_parallel import RowParallelShard
from workloads.sharding.table_shard import TableShard, count_params, table_shards
from workloads.training.checkpointing import weights
from workloads.training.config import TrainConfig
from workloads.training.device import pick
from workloads.training.optimizer.adamw import Optimizer
from workloads.training.optimizer.table_optimizer import RULE_OF
from workloads.training.step.activation_checkpointing import checkpoint_blocks
from workloads.training.step.compilation import compile_training, compiled_loss
from workloads.training.step.train_step import SummedLoss, accumulate_gradients, even_passes

Found = dict[str, float]
COMPILE = torch.compile
SLOW = 10.0
"""Seconds after which a rank says what it waited for."""
LAYOUTS = {"columns": ColumnParallelShard, "rows": RowParallelShard}
# In one piece, then in three, of which some have no bag.
READ_BY = {
    "columns": (ColumnParallelShard, 1),
    "columns_in_pieces": (ColumnParallelShard, 3),
    "rows": (RowParallelShard, 1),
    "rows_in_pieces": (RowParallelShard, 3),
}
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
# n_rows, width, bag_size, bags of each rank. Widths that no number of ranks divides, or smaller
# than it; tables of fewer rows than ranks; ranks without a bag, and all of them without one; bags
# of one row, most of which are elsewhere.
READS = {
    "even": (37, 64, 5, [6, 6, 6, 6]),
    "uneven": (37, 7, 5, [3, 1, 4, 2]),
    "empty_share": (23, 10, 4, [0, 2, 5, 0]),
    "narrow": (41, 3, 6, [2, 2, 3, 2]),
    "few_rows": (2, 9, 3, [2, 3, 1, 2]),
    "bags_of_one": (50, 12, 1, [5, 4, 4, 3]),
    "nothing_at_all": (11, 5, 2, [0, 0, 0, 0]),
}
READ_AS = {"float32": ("even", "bags_of_one"), "bfloat16": ("uneven",)}
"""Those that are read in few cases only; float64, all."""
BACKBONE = {"d_model": 20, "n_layers": 2, "n_heads": 2, "d_ff": 24, "qk_norm": True}
READING = {"n_keys": 7, "n_memory_heads": 2, "knn": 3, "memory_qk_norm": True}
VOCAB, SEQUENCES, SEQ_LEN = 19, 9, 6
MODELS = {
    "memory_plus": memory_plus.Config(
        **BACKBONE, **READING, memory_layers=(0, 1), key_dim=6, value_dim=11
    ),
    "peer": peer.Config(**BACKBONE, **READING),
    "engram": engram.Config(**engram.PRESETS["d8"]),
    # A table of one number: of the ranks that share it, all but one hold a part without columns, or
    # without rows.
    "one_number": memory_plus.Config(
        **BACKBONE,
        **{**READING, "n_keys": 1, "knn": 1},
        memory_layers=(0, 1),
        key_dim=6,
        value_dim=1,
    ),
}
OTHER_RULES = {
    "rowwise_previous": ("rowwise", "previous"),
    "rowwise_float32": ("rowwise", "exact"),
    "checkpointed_lazy": ("lazy_adamw", "exact"),
    "compiled_lazy": ("lazy_adamw", "exact"),
}
# Not engram in fp32: it magnifies the order of a sum a hundredfold in ten steps, and four ranks
# that share nothing out (4 × 1) are as far from one process, 1.1e-4 in a norm, as four that do.
TRAINED = {
    "memory_plus": (
        *("float64", "float32", "checkpointed", "compiled", "compiled_checkpointed"),
        *RULE_OF,
        *OTHER_RULES,
    ),
    "peer": ("float64", "float32", "rowwise"),
    "engram": ("float64", "rowwise"),
}
# How many ranks take part -> layout -> what is trained where time is short: each way of training,
# and each model, somewhere, and what says most of all everywhere.
Trained = Mapping[str, Mapping[str, tuple[str, ...]]]
SOME: dict[int, Trained] = {
    1: {"columns": {"memory_plus": ("float32",)}},
    2: {
        "columns": {
            "memory_plus": ("float64", "float32", "rowwise_previous", "compiled_checkpointed"),
            "peer": ("float64",),
        },
        "rows": {
            "memory_plus": ("float64", "checkpointed", "checkpointed_lazy", "compiled_lazy"),
            "peer": ("float64",),
        },
    },
    3: {
        "columns": {"memory_plus": ("float64", "lazy_adamw"), "engram": ("float64",)},
        "rows": {"memory_plus": ("float64", "deferred_adamw", "rowwise"), "engram": ("float64",)},
    },
    4: {layout: {"memory_plus": ("float64",)} for layout in LAYOUTS},
}
TWO_BY_TWO: Trained = {
    "columns": {"memory_plus": ("float64", "rowwise"), "one_number": ("rowwise",)},
    "rows": {"memory_plus": ("float64",), "one_number": ("rowwise",)},
}
# Adam turns the rounding of a gradient that should be zero into a step of full length unless eps
# says what is small.
TRAIN = TrainConfig(
    tokens=10 * SEQUENCES * SEQ_LEN,
    batch_tokens=SEQUENCES * SEQ_LEN,
    seq_len=SEQ_LEN,
    lr=0.01,
    value_lr_ratio=3.0,
    value_weight_decay=0.1,
    grad_clip=0.01,
    eps=1.0e-4,
)


def reads(mesh: Mesh, here: torch.device) -> Iterator[tuple[str, float]]:
    """Compare outputs and gradients of single reads."""
    for case, (n_rows, width, bag_size, counts) in READS.items():
        bags = counts[: mesh.memory.size]
        mine = slice(sum(bags[: mesh.memory.rank]), sum(bags[: mesh.memory.rank + 1]))
        draw = torch.Generator().manual_seed(7)
        table, x, grad = (
            torch.randn(n, width, generator=draw, dtype=torch.float64)
            for n in (n_rows, sum(bags), sum(bags))
        )
        ids = torch.randint(n_rows, (sum(bags), bag_size), generator=draw)
        scale, scale_grad = (
            torch.randn(ids.shape, generator=draw, dtype=torch.float64) for _ in range(2)
        )
        for dtype_name, dtype in DTYPES.items():
            if case not in READ_AS.get(dtype_name, READS):
                continue
            to = partial(torch.Tensor.to, device=here, dtype=dtype)
            for operation, second, output_grad in (
                ("bag", scale, grad),
                ("products", x, scale_grad),
            ):
                whole = to(table).requires_grad_()
                other = to(second).requires_grad_()
                op = weighted_bag if operation == "bag" else gathered_dot
                if len(ids):
                    expected = op(whole, ids.to(here), other)
                    wanted = torch.autograd.grad(expected, (whole, other), to(output_grad))
                else:
                    expected = to(output_grad)
                    wanted = (torch.zeros_like(whole), torch.zeros_like(other))
                for layout, (kind, mesh.n_chunks) in READ_BY.items():
                    shard = kind(mesh, n_rows=n_rows, width=width)
                    inside = (
                        shard.row_numbers(),
                        slice(shard.columns.start, shard.columns.stop),
                    )
                    part = to(table)[inside].detach().clone().requires_grad_()
                    own = to(second)[mine].detach().clone().requires_grad_()
                    own_ids = ids[mine].to(here)
                    # Not contiguous, as gradients may be.
                    strided = to(output_grad)[mine].T.contiguous().T
                    read = shard.weighted_bag if operation == "bag" else shard.gathered_dot
                    deferred = SparseGradient()
                    with mesh.equal_bags(len(set(bags)) == 1):
                        found = read(part, own_ids, own)
                        part_grad, own_grad = torch.autograd.grad(found, (part, own), strided)
                        read(part, own_ids, own, deferred).backward(strided)
                    name = f"{dtype_name}/{layout}/{operation}/{case}"
                    yield f"{name}/output", apart(found, expected[mine], like=expected)
                    yield f"{name}/table", apart(part_grad, wanted[0][inside], like=wanted[0])
                    yield f"{name}/second", apart(own_grad, wanted[1][mine], like=wanted[1])
                    hits = deferred.take()
                    assert hits is not None
                    later = left_in(hits, like=part)
                    yield f"{name}/deferred_table", apart(later, wanted[0][inside], like=wanted[0])
                    assert own.grad is not None
                    yield (
                        f"{name}/deferred_second",
                        apart(own.grad, wanted[1][mine], like=wanted[1]),
                    )
                    yield f"{name}/dense_beside_deferred", float(part.grad is not None)
                    yield f"{name}/reads_elsewhere", reads_elsewhere(hits, ids, shard)
                    bits = (found.detach(), part_grad, own_grad, later, own.grad)
                    if mesh.n_chunks == 1:
                        in_one_piece = bits
                    elif here.type == "cpu":
                        same = zip(bits, in_one_piece, strict=True)
                        differ = not all(torch.equal(*both) for both in same)
                        yield f"{name}/same_bits_in_one_piece", float(differ)
                    repeated = read(part, own_ids, own)
                    yield f"{name}/repeats", float(not torch.equal(repeated, found))
                    if operation == "bag" and kind is ColumnParallelShard:
                        exact = found.detach() == expected[mine].detach()
                        if here.type == "cpu":
                            yield f"{name}/same_bits", float((~exact).sum())
    mesh.n_chunks = 1


def compiled(world: process_group.RankGroup, here: torch.device) -> Iterator[tuple[str, float]]:
    """Compare compiled lookups of changing batches, never equally large on all ranks."""
    mesh = make_mesh(world, memory=world.size)
    n_rows, width, bag_size = 23, 10, 4
    draw = torch.Generator().manual_seed(7)
    table = torch.randn(n_rows, width, generator=draw, dtype=torch.float64).to(here)
    for layout, deferred in (("columns_in_pieces", SparseGradient(device=here)), ("rows", None)):
        kind, mesh.n_chunks = READ_BY[layout]
        shard = kind(mesh, n_rows=n_rows, width=width)
        part = inside(table, shard).clone().requires_grad_()
        read = one_graph(shard, part, deferred)
        # In the last, rank 0 has no bag.
        for case, bags in enumerate(([2, 3], [4, 2], [0, 2])):
            name = f"float64/{layout}/{case}"
            yield from one_read(name, read, part, deferred, table, shard, bags, bag_size, draw)
    mesh.n_chunks = 1


def one_graph(
    shard: TableShard, part: Tensor, deferred: SparseGradient | None
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return both operations one after the other, compiled."""
    torch._dynamo.reset()

    @partial(torch.compile, fullgraph=True, backend="aot_eager", dynamic=True)
    def read(ids: Tensor, weights: Tensor, x: Tensor) -> Tensor:
        # The same read twice: what is left must be two.
        sums = shard.weighted_bag(part, ids, weights, deferred) + shard.weighted_bag(
            part, ids, weights, deferred
        )
        return shard.gathered_dot(part, ids, x * sums, deferred)

    return read


def one_read(
    name: str,
    read: Callable[[Tensor, Tensor, Tensor], Tensor],
    part: Tensor,
    deferred: SparseGradient | None,
    table: Tensor,
    shard: TableShard,
    bags: list[int],
    bag_size: int,
    draw: torch.Generator,
) -> Iterator[tuple[str, float]]:
    like = {"generator": draw, "dtype": table.dtype}
    n_bags, mine = (
        sum(bags),
        slice(0, bags[0]) if shard.mesh.memory.is_main else slice(bags[0], None),
    )
    ids = torch.randint(len(table), (n_bags, bag_size), generator=draw).to(table.device)
    shapes = ((n_bags, bag_size), (n_bags, table.shape[1]), (n_bags, bag_size))
    weights, x, grad = (torch.randn(shape, **like).to(table.device) for shape in shapes)
    # What plain indexing finds.
    whole, w, y = (each.clone().requires_grad_() for each in (table, weights, x))
    sums = 2 * (whole[ids] * w[:, :, None]).sum(1)
    expected = (whole[ids] * (y * sums)[:, None, :]).sum(2)
    wanted = torch.autograd.grad(expected, (whole, w, y), grad)

    own = [each[mine].clone().requires_grad_() for each in (weights, x)]
    found = read(ids[mine], *own)
    found.backward(grad[mine])
    yield f"{name}/output", apart(found, expected[mine], like=expected)
    for kind, mine_of, all_of in zip(("weights", "x"), own, wanted[1:], strict=True):
        assert mine_of.grad is not None
        yield f"{name}/{kind}", apart(mine_of.grad, all_of[mine], like=all_of)
    if deferred is None:
        assert part.grad is not None
        gradient, part.grad = part.grad, None
    else:
        hits = deferred.take()
        assert hits is not None
        gradient = left_in(hits, like=part)
    yield f"{name}/table", apart(gradient, inside(wanted[0], shard), like=wanted[0])
    yield f"{name}/dense_beside_deferred", float(part.grad is not None)


def reads_elsewhere(hits: LookupGrad, ids: Tensor, shard: TableShard) -> float:
    """Return how many rows were read here that no bag names, or not read that one names."""
    number_here = {row: number for number, row in enumerate(shard.row_numbers().tolist())}
    named = {number_here[i] for i in ids.flatten().tolist() if i in number_here}
    read = {int(i) for i in hits.ids.flatten() if i < len(shard.rows)}
    return float(len(read ^ named))


def left_in(hits: LookupGrad, *, like: Tensor) -> Tensor:
    """Return the dense gradient that deferred reads make."""
    # Beyond the last row are reads of rows elsewhere.
    gradient = like.new_zeros(len(like) + 1, like.shape[1])
    for i in range(hits.ids.shape[1]):
        gradient.index_add_(0, hits.ids[:, i], hits.weights[:, i, None] * hits.x)
    return gradient[:-1].detach()


def models(mesh: Mesh, here: torch.device, trained: Trained) -> Iterator[tuple[str, float]]:
    """Compare initial values, gradients and ten steps of whole models."""
    shape = f"{mesh.data.size}x{mesh.memory.size}"
    for layout, model_name, how in each(trained):
        model = started(MODELS[model_name], mesh, layout, here, dtype_of(how))
        loss = None
        if "compiled" in how:  # as trials are: block by block, and the head with the loss
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            torch.compile = COMPILE if here.type == "cuda" else traced
            compile_training(model)
            loss = compiled_loss
        if "checkpointed" in how:
            checkpoint_blocks(model)
        expected = alone(model_name, dtype_of(how), here, trained_by(how))
        truth = alone(model_name, torch.float64, here, trained_by(how))
        name = f"{how}/{shape}/{layout}/{model_name}"
        yield from ten_steps(name, model, expected, truth, mesh, trained_by(how), loss)
        if "compiled" in how:
            ran = torch._dynamo.utils.counters["frames"]
            yield f"{name}/never_compiled", float(not 2 <= ran["ok"] == ran["total"])


def traced(function: Callable[..., Any], *, options: object, **others: Any) -> Callable[..., Any]:
    """Compile without machine code: a CPU's takes g++ a minute, and the product never runs it.

    The options are Inductor's, and other backends refuse them.
    """
    return COMPILE(function, backend="aot_eager", **others)


def each(trained: Trained) -> Iterator[tuple[str, str, str]]:
    """Yield layout, model and way of training."""
    for layout, by_model in trained.items():
        for model_name, ways in by_model.items():
            for how in ways:
                yield layout, model_name, how


@dataclass
class Alone:
    """What one process finds."""

    n_params: int
    initial: dict[str, Tensor]
    gradients: dict[str, Tensor]
    trained: dict[str, Tensor]
    seen: list[dict[str, Tensor]]
    """Losses and norms of every step."""


def dtype_of(how: str) -> torch.dtype:
    return torch.float32 if "float32" in how else torch.float64


def trained_by(how: str) -> TrainConfig:
    how, clip = OTHER_RULES.get(how, (how, "exact"))
    return replace(TRAIN, table_optimizer=how, table_clip=clip) if how in RULE_OF else TRAIN


@cache
def alone(model_name: str, dtype: torch.dtype, here: torch.device, train: TrainConfig) -> Alone:
    model = started(MODELS[model_name], Mesh(), "columns", here, dtype)
    initial = copied(weights(model))
    steps = list(steps_of(model, Mesh(), train, rows=SEQUENCES))
    first, seen = steps[0][1], [step for step, _ in steps]
    return Alone(count_params(model), initial, first, copied(weights(model)), seen)


def steps_of(
    model: nn.Module, mesh: Mesh, train: TrainConfig, *, rows: int, loss: SummedLoss | None = None
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Train ten steps; yield losses and norms, and the gradients, of every step."""
    optimizer = Optimizer(model, train, mesh)
    # Small, so that there are several, and some are complete before the pass ends.
    sums = GradientAllReduce(model, mesh, without=optimizer.deferred, bucket_bytes=4096)
    draw = torch.Generator().manual_seed(1)
    share = mesh.world.local_range(SEQUENCES)
    for _ in range(10):
        windows = torch.randint(VOCAB, (SEQUENCES, SEQ_LEN + 1), generator=draw)
        losses = accumulate_gradients(
            model,
            windows[share.start : share.stop].to(next(model.parameters()).device),
            batch_tokens=train.batch_tokens,
            passes=even_passes(SEQUENCES, world=mesh.world, rows=rows),
            autocast=nullcontext,
            before_last=sums.start,
            loss=loss,
        )
        sums.finish(also=list(losses.values()))
        optimizer.gather()
        gradients = {
            name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
        }
        norms = optimizer.clip()
        optimizer.step(train.lr)
        yield {**losses, **norms}, gradients


def ten_steps(
    name: str,
    model: nn.Module,
    alone: Alone,
    truth: Alone,
    mesh: Mesh,
    train: TrainConfig,
    loss: SummedLoss | None = None,
) -> Iterator[tuple[str, float]]:
    """Train ten steps: of an uneven batch this rank's share, in two passes.

    `truth` is `alone` in float64.
    """
    yield f"{name}/counted", float(count_params(model) - alone.n_params)
    yield f"{name}/initial", differing(model, alone.initial)
    rows = -(-SEQUENCES // (2 * mesh.world.size))
    steps = list(steps_of(model, mesh, train, rows=rows, loss=loss))
    yield f"{name}/same_gradients", float(steps[0][1].keys() != alone.gradients.keys())
    # In fp32 on a GPU one process is itself 1.3e-5 from the truth, and ranks, whose sums are
    # shorter, 4e-6: what is as near to the truth as may be is right, whatever one process rounds.
    yield f"{name}/gradients", furthest(model, steps[0][1], alone.gradients, truth.gradients)
    # Of the first step: ten later, what rounding did to the weights is in the norms, magnified.
    for kind, value in alone.seen[0].items():
        yield f"{name}/{kind}", apart(steps[0][0][kind], value)
    norm = "value_grad_norm" if "value_grad_norm" in alone.seen[0] else "grad_norm"
    clipped = sum(float(wanted[norm]) > train.grad_clip for wanted in alone.seen)
    yield f"{name}/never_clipped", float(not clipped)
    yield f"{name}/ten_steps", furthest(model, weights(model), alone.trained)


def some(world: process_group.RankGroup, here: torch.device) -> Iterator[tuple[str, float]]:
    """Compare every read, and what there is time for of training."""
    mesh = make_mesh(world, memory=world.size)
    if world.size > 1:  # alone, nothing is shared out
        yield from reads(mesh, here)
    # Somewhere in pieces.
    mesh.n_chunks = 2 if world.size == 3 else 1
    yield from models(mesh, here, SOME[world.size])
    if world.size == 4:
        yield from models(make_mesh(world, memory=2), here, TWO_BY_TWO)


def training(world: process_group.RankGroup, here: torch.device) -> Iterator[tuple[str, float]]:
    """Compare every model in every way of training, on every mesh."""
    for memory in range(2, world.size + 1):
        if world.size % memory == 0:
            trained = dict.fromkeys(LAYOUTS, TRAINED)
            yield from models(make_mesh(world, memory=memory), here, trained)


def architectures(
    world: process_group.RankGroup, here: torch.device
) -> Iterator[tuple[str, float]]:
    """Compare every architecture that has tables."""
    mesh = make_mesh(world, memory=world.size)
    for name in registry.architectures():
        module = registry.architecture(name)
        config = module.Config(**module.PRESETS["d8"])
        if config.param_count(VOCAB).memory_values:
            MODELS[name] = config
            yield from models(mesh, here, {layout: {name: ("float64",)} for layout in LAYOUTS})


CHECKS = {"compiled": compiled, "some": some, "training": training, "architectures": architectures}


def started(
    config: memory_plus.Config | peer.Config | engram.Config,
    mesh: Mesh,
    layout: str,
    here: torch.device,
    dtype: torch.dtype,
    dense: str = "replicated",
) -> nn.Module:
    make = partial(config.build, VOCAB)
    model = materialise_model(make, mesh, layout=layout, here=here, dense=dense).to(dtype)
    initialise(model, 3)
    model.recording_usage = False
    return model.train()


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def furthest(model: nn.Module, found: dict[str, Tensor], *wanted: dict[str, Tensor]) -> float:
    """Return the largest distance of a tensor from the nearer of those wanted."""
    parts = table_shards(model)
    return max(
        min(
            apart(
                whole(tensor).to(either[name].dtype),
                inside(either[name], parts.get(name)),
                like=either[name],
            )
            for either in wanted
        )
        for name, tensor in found.items()
        if tensor.is_floating_point()
    )


def differing(model: nn.Module, wanted: dict[str, Tensor]) -> float:
    """Return how many tensors differ in a bit."""
    parts = table_shards(model)
    return float(
        sum(
            not torch.equal(whole(tensor), inside(wanted[name], parts.get(name)))
            for name, tensor in weights(model).items()
        )
    )


def whole(tensor: Tensor) -> Tensor:
    """Return all of a parameter that ranks hold together; they must all ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def inside(whole: Tensor, shard: ColumnParallelShard | RowParallelShard | None) -> Tensor:
    if shard is None:
        return whole
    columns = shard.columns
    return whole[shard.row_numbers(), columns.start : columns.stop]


def apart(found: Tensor, wanted: Tensor, *, like: Tensor | None = None) -> float:
    """Return the largest difference, relative to the largest number of `like`."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return math.inf
    if not found.numel():
        return 0.0
    largest = float((wanted if like is None else like).detach().abs().max())
    distance = float((found - wanted).detach().abs().max())
    return distance / (largest or 1.0) if math.isfinite(distance) else math.inf


def alone_or_together(group: str, size: int, device: str, rank: int, folder: Path) -> Found:
    """Return what one rank found."""
    here = pick(device, rank=rank)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    else:
        torch.use_deterministic_algorithms(True)
    found: Found = {}
    with process_group.join(rank=rank, size=size, device=here, rendezvous=folder / "meet") as world:
        before = time.monotonic()
        for name, error in CHECKS[group](world, here):
            found[name] = max(found.get(name, 0.0), error)
            if (took := time.monotonic() - before) > SLOW:
                print(f"rank {rank} of {size}: {took:.0f} s until {name}", file=sys.stderr)
            before = time.monotonic()
    return found


def forked(
    size: int, work: Callable[[int, Path], dict[str, float]], *, start: str = "fork"
) -> list[dict[str, float]]:
    """Return what `work(rank, folder)` returns in each of `size` processes."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context(start)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            context.Process(target=_write, args=(work, rank, folder)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        failed = [rank for rank, process in enumerate(processes) if process.exitcode]
        if failed:
            raise SystemExit(f"of {size} ranks failed {failed}")
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def _write(work: Callable[[int, Path], dict[str, float]], rank: int, folder: Path) -> None:
    (folder / f"{rank}.json").write_text(json.dumps(work(rank, folder)))


def worst(group: str, size: int, device: str, *, known: Iterable[tuple[str, str]] = ()) -> Found:
    """Return the worst that any of `size` ranks found.

    What one process finds of `known`, models and ways of training, is found once for all ranks of
    a CPU.
    """
    # A forked process cannot use a GPU that its parent may have looked at.
    start = "fork" if device == "cpu" else "spawn"
    if start == "fork":
        torch.use_deterministic_algorithms(True)
        for model_name, how in known:
            for dtype in (dtype_of(how), torch.float64):
                alone(model_name, dtype, pick(device, rank=0), trained_by(how))
    of_each = forked(size, partial(alone_or_together, group, size, device), start=start)
    assert all(found.keys() == of_each[0].keys() for found in of_each)
    return {name: max(found[name] for found in of_each) for name in of_each[0]}


def known_of(group: str, size: int) -> list[tuple[str, str]]:
    """Return the models and ways of training that `some` compares."""
    if group != "some":
        return []
    cases = (*each(SOME[size]), *each(TWO_BY_TWO if size == 4 else {}))
    return [(model_name, how) for _, model_name, how in cases]


if __name__ == "__main__":
    out, device, group, *sizes = sys.argv[1:]
    found = {n: worst(group, int(n), device, known=known_of(group, int(n))) for n in sizes}
    Path(out).write_text(json.dumps(found))
