"""Memory of tables in training on one rank: values, state, reads of a step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from workloads.accounting.counts import Components
from workloads.kernels.table_update.kept_sums import keeps_sums
from workloads.kernels.table_update.update_rules import new_state
from workloads.layers.memory.lookup_grad import sums_bytes
from workloads.layers.memory.sparse_gradient import REDUCED_FROM
from workloads.layers.memory.table import TableComponent
from workloads.layers.modules.usage_stats import MemoryUsage
from workloads.sharding.column_parallel import split_columns
from workloads.sharding.materialise import Layout
from workloads.training.config import TrainConfig
from workloads.training.optimizer.prefetched_rows import N_COPIES
from workloads.training.optimizer.table_optimizer import READ_AS, RULE_OF, prefetches

SORTED_READ_BYTES = 39
"""Per read, what sorting the reads for an update takes beside them: the peaks of docs/kernels.md,
"table_update", less table, state and reads. They include the products of the bags, so it is at most
this."""


@dataclass(frozen=True, kw_only=True)
class TableMemory:
    """Bytes of the tables of one rank; most fields are described in `TrainingMemory`."""

    values: int
    gradients: int
    reader_gradients: int
    optimizer_state: int
    read_whole: int
    """Numbers, not bytes, of tables that a pass reads whole: with bf16 a copy of each exists."""
    exchanged_per_token: int
    """Ids and weights of the other ranks' reads, and the rank's own ids as they were sent."""
    fetched_rows: float
    held_rows: int
    own_reads: int
    all_reads: int
    sorting: int
    usage: int
    recording: int


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """Equal tables of a model, and the largest shard of each, which the most loaded rank has."""

    n: int
    table: TableComponent
    """Whole."""
    rows: int
    width: int


def table_memory(
    components: Components,
    train: TrainConfig,
    *,
    micro_batch_tokens: int,
    ranks: int,
    memory_ranks: int,
    memory_layout: Layout,
    on_host: bool,
) -> TableMemory:
    """Return what the tables among `components` take (arguments of `training_memory`)."""
    tables = list(_tables(components, memory_ranks, memory_layout))
    reads = sum(each.n * each.table.reads for each in tables)
    deferred, fetched, held, read_whole, reader_gradients = _DeferredGradient(), 0.0, 0, 0, 0
    if train.table_optimizer == "adamw":
        stored = 4 * sum(each.n * each.rows * each.width for each in tables)
        values, gradients, state = stored, stored, 2 * stored
        reader_gradients = max(
            (4 * each.rows * each.width * _n_reader_gradients(each) for each in tables), default=0
        )
        if memory_ranks == 1 and not on_host:
            hashed = (each for each in tables if each.table.hashed)
            read_whole = sum(each.n * each.rows * each.width for each in hashed)
    else:
        # The reads of a step are kept in place of a gradient.
        gradients = 0
        values, state = _values_and_state(tables, train, ranks=ranks, on_host=on_host)
        deferred = _deferred_gradients(
            tables,
            train,
            micro_batch_tokens=micro_batch_tokens,
            ranks=ranks,
            memory_ranks=memory_ranks,
        )
        if on_host:
            fetched, held = _rows_on_device(
                tables, train, micro_batch_tokens=micro_batch_tokens, ranks=ranks
            )
    return TableMemory(
        values=values,
        gradients=gradients,
        reader_gradients=reader_gradients,
        optimizer_state=state,
        read_whole=read_whole,
        exchanged_per_token=(8 * (memory_ranks - 1) + 4) * reads if memory_ranks > 1 else 0,
        fetched_rows=fetched,
        held_rows=held,
        own_reads=deferred.own,
        all_reads=deferred.all,
        sorting=deferred.sorting,
        # Use is counted by row on the device, wherever the rows themselves lie.
        usage=int(
            MemoryUsage.BYTES_PER_ROW * sum(each.n * each.table.usage_rows for each in tables)
        ),
        recording=MemoryUsage.RECORDING_BYTES_PER_ROW
        * max((each.table.n_rows for each in tables), default=0),
    )


def _n_reader_gradients(tables: _Tables) -> int:
    """Return how many gradients of a table exist at once, beside the one that they are added to.

    That of one reader. With several, two of theirs and the sum of both: that is inferred from peaks
    of one and of three readers (`docs/results/memory_scaling_text_largest.md`).
    """
    return 1 if tables.table.n_readers == 1 else 3


def _tables(components: Components, memory_ranks: int, layout: Layout) -> Iterator[_Tables]:
    for n, table in components:
        if not n or not isinstance(table, TableComponent):
            continue
        rows, width = table.n_rows, table.width
        if layout == "rows":
            rows = -(-rows // memory_ranks)
        else:
            width = max(map(len, split_columns(width, memory_ranks)))
        yield _Tables(n=n, table=table, rows=rows, width=width)


def _values_and_state(
    tables: Sequence[_Tables], train: TrainConfig, *, ranks: int, on_host: bool
) -> tuple[int, int]:
    """Return bytes of values and optimizer state on the device, with a `table_optimizer`.

    With `on_host` that is what is kept per row, of tables whose rows are not prefetched.
    """
    values = state = 0
    for each in tables:
        shape = each.rows, each.width
        shard = torch.empty(shape, dtype=READ_AS[train.table_precision], device="meta")
        kept = new_state(
            RULE_OF[train.table_optimizer], shard, master=train.table_precision == "bf16_master"
        )
        prefetched = prefetches(train.table_optimizer, by_token=each.table.by_token, ranks=ranks)
        values += 0 if on_host else each.n * shard.nbytes
        state += each.n * sum(
            tensor.nbytes
            for tensor in kept.values()
            if not (on_host and (prefetched or tensor.shape == shard.shape))
        )
    return values, state


def _rows_on_device(
    tables: Sequence[_Tables], train: TrainConfig, *, micro_batch_tokens: int, ranks: int
) -> tuple[float, int]:
    """Return `fetched_rows` and `held_rows` of tables in the host's memory."""
    dtype = READ_AS[train.table_precision]
    master = train.table_precision == "bf16_master"
    fetched, held = 0.0, 0
    for each in tables:
        n, table = each.n, each.table
        if prefetches(train.table_optimizer, by_token=table.by_token, ranks=ranks):
            row = torch.empty(1, table.width, dtype=dtype, device="meta")
            state = new_state(RULE_OF[train.table_optimizer], row, master=master)
            row_bytes = 4 + row.nbytes + sum(tensor.nbytes for tensor in state.values())
            room = min(table.n_rows, table.reads * train.batch_tokens)
            held += n * N_COPIES * room * row_bytes
        elif micro_batch_tokens:
            read = table.bytes_per_token(
                batch_tokens=micro_batch_tokens, element_bytes=dtype.itemsize
            )
            fetched += n * read["memory_values"] * micro_batch_tokens
    return fetched, held


@dataclass(frozen=True)
class _DeferredGradient:
    """Bytes of deferred gradients: `own_reads`, `all_reads` and `sorting` of `TrainingMemory`."""

    own: int = 0
    all: int = 0
    sorting: int = 0


def _deferred_gradients(
    tables: Sequence[_Tables],
    train: TrainConfig,
    *,
    micro_batch_tokens: int,
    ranks: int,
    memory_ranks: int,
) -> _DeferredGradient:
    """Return what the deferred gradients of all tables take."""
    own = all_ranks = sorting = 0
    for each in tables:
        one = _deferred_gradient(
            # Of a row that ranks share by columns, each keeps its columns.
            replace(each.table, width=each.width),
            rows=each.rows,
            element_bytes=READ_AS[train.table_precision].itemsize,
            norm_first=train.table_clip == "exact" or train.table_optimizer == "rowwise",
            batch_tokens=train.batch_tokens,
            micro_batch_tokens=micro_batch_tokens,
            ranks=ranks,
            memory_ranks=memory_ranks,
        )
        own += each.n * one.own
        all_ranks += each.n * one.all
        sorting += each.n * one.sorting
    return _DeferredGradient(own, all_ranks, sorting)


def _deferred_gradient(
    table: TableComponent,
    *,
    rows: int,
    element_bytes: int,
    norm_first: bool,
    batch_tokens: int,
    micro_batch_tokens: int,
    ranks: int,
    memory_ranks: int,
) -> _DeferredGradient:
    """Return what one table's gradient takes, kept as its lookups until they exceed their sums."""

    def sorting(n_reads: int, element_bytes: int) -> int:
        kept = norm_first and keeps_sums(n_reads, rows, element_bytes=element_bytes)
        return SORTED_READ_BYTES * n_reads + (4 * rows * table.width if kept else 0)

    # A shard has the reads of all ranks that hold the table together. By rows this is a bound: all
    # of them could read from this rank.
    per_token = table.sparse_gradient_bytes_per_token(element_bytes=element_bytes) * memory_ranks
    share = -(-batch_tokens // ranks)
    pass_tokens = min(share, micro_batch_tokens)
    one_pass = pass_tokens * per_token
    sums = sums_bytes(rows, table.width)
    if share * per_token - one_pass <= REDUCED_FROM * sums:
        return _DeferredGradient(
            own=share * per_token,
            all=batch_tokens * per_token // memory_ranks,
            sorting=sorting(table.reads * batch_tokens, element_bytes),
        )
    holders = ranks // memory_ranks
    return _DeferredGradient(
        # Lookups that just exceed the limit, those of one layer sorted, two sums that are added.
        own=one_pass
        + SORTED_READ_BYTES * table.bag_size * pass_tokens * memory_ranks
        + (REDUCED_FROM + 3) * sums,
        all=sums * holders,
        sorting=sorting(rows * holders, 4),
    )
