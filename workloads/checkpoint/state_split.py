"""Training state split into replicated values and shards, and merged again.

The ranks that merge may be others than those that split.

Replicated values stay in the state. Sharded ones become blocks
(`workloads/checkpoint/tensor_block.py`), named `weights/<parameter>/values`,
`optimizer/<parameter>/exp_avg` (what AdamW keeps of a parameter) and `tables/<table>/mean_square`
(what the optimizer of tables keeps, which may be one number per row). Rows that ranks hold in
another order than the table's stay in it, and such a name ends in `/hashed`.

Which part of a parameter a rank has, its `TableShard` says, or the parameter itself where it is a
DTensor (of FSDP2's `fully_shard`). Another kind of sharded tensor is another case in
`local_shards`, `_full_shape` and `_position`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from workloads.checkpoint.hashed_rows import HashedRows, read_rows
from workloads.checkpoint.tensor_block import SavedTensor, TensorBlock
from workloads.distributed.hash_partition import HashPartition
from workloads.distributed.local_part import is_sharded, local_shard, local_slices
from workloads.sharding.table_shard import TableShard, table_shards

State = dict[str, Any]
_HASHED = "/hashed"
LocalShard = TableShard | Tensor
"""Says which part of a parameter a rank holds: the shard of a table, or a DTensor."""


def local_shards(model: nn.Module) -> dict[str, LocalShard]:
    """Return parameter name -> shard, of every parameter that is sharded."""
    sharded = {name: p.detach() for name, p in model.named_parameters() if is_sharded(p)}
    return {**sharded, **table_shards(model)}


def split_state(
    state: State, shards: Mapping[str, LocalShard], names: Sequence[str]
) -> tuple[State, dict[str, TensorBlock]]:
    """Split a state into what all ranks have alike and this rank's shards.

    Args:
        state: `weights` by name and, if there, `optimizer` as torch gives it and `tables` as
            `TableOptimizer` does; the rest is passed on.
        shards: This rank's shards.
        names: Of the parameters, as the optimizer numbers them.
    """
    if not shards:
        return state, {}
    blocks: dict[str, TensorBlock] = {}
    kept = _group_by_owner(state, names)
    for (section, owner), values in kept.items():
        part = shards.get(_parameter_name(section, owner))
        if part is None:
            continue
        for what in list(values):
            block = _block(values[what], part)
            if block is not None:
                key = f"{section}/{owner}/{what}"
                blocks[key if _partition(part) is None else key + _HASHED] = block
                del values[what]
    return _as_state(state, kept, names), blocks


def merge_state(
    state: State,
    saved: Mapping[str, SavedTensor],
    shards: Mapping[str, LocalShard],
    names: Sequence[str],
) -> State:
    """Return a saved state with this rank's shard of every sharded tensor, as plain tensors.

    Args:
        state: As loaded, with or without `optimizer`; what was replicated on the ranks that saved
            it.
        saved: As loaded, what was sharded on them.
        shards: This rank's shards; of other parameters it has all.
        names: Of the parameters, as the optimizer numbers them.

    Raises:
        ValueError: If the checkpoint is of another shape, or does not hold all of a part.
    """
    if not saved and not shards:
        return state
    kept = _group_by_owner(state, names)
    for key, tensor in saved.items():
        section, owner, what = key.removesuffix(_HASHED).split("/")
        if state.get(section) is not None:
            found = HashedRows(tensor) if key.endswith(_HASHED) else tensor
            kept.setdefault((section, owner), {})[what] = found
    for (section, owner), values in kept.items():
        name = _parameter_name(section, owner)
        for what, value in values.items():
            values[what] = _local_value(name, value, shards.get(name))
    return _as_state(state, kept, names)


def _group_by_owner(state: State, names: Sequence[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return (section of the state, parameter or table) -> what is kept of it."""
    sections = {
        "weights": {name: {"values": value} for name, value in state["weights"].items()},
        "optimizer": {
            names[number]: kept
            for number, kept in state.get("optimizer", {}).get("state", {}).items()
            if number < len(names)  # of other models' parameters, which `load_weights` refuses
        },
        "tables": (state.get("tables") or {}).get("states", {}),
    }
    return {
        (section, owner): dict(kept)
        for section, owners in sections.items()
        for owner, kept in owners.items()
    }


def _as_state(
    state: State, kept: Mapping[tuple[str, str], dict[str, Any]], names: Sequence[str]
) -> State:
    """Return a state with what is kept by owner in the place of its own."""

    def of(section: str) -> dict[str, dict[str, Any]]:
        return {owner: values for (where, owner), values in kept.items() if where == section}

    new = {
        **state,
        "weights": {name: values["values"] for name, values in of("weights").items() if values},
    }
    if state.get("optimizer"):
        number = {name: index for index, name in enumerate(names)}
        own = {number[name]: values for name, values in of("optimizer").items() if name in number}
        new["optimizer"] = {**state["optimizer"], "state": own}
    if state.get("tables"):
        new["tables"] = {**state["tables"], "states": of("tables")}
    return new


def _block(value: object, part: LocalShard) -> TensorBlock | None:
    """Return a rank's shard of a tensor as a block, or None if all ranks have it alike."""
    if not isinstance(value, Tensor) or not value.ndim:
        return None
    offsets, sizes = _position(part, value.ndim)
    # What an optimizer keeps of a shard is no DTensor (`local_part.LocalParameters`).
    own = local_shard(value)
    if own.shape != sizes:
        # Kept by one rank only, it would be lost.
        raise ValueError(
            f"a rank keeps {_times(own.shape)} numbers beside its part of {_times(sizes)}, which "
            "no checkpoint can divide"
        )
    return TensorBlock(whole=_full_shape(part, value.ndim), offsets=offsets, tensor=own)


def _local_value(name: str, value: object, part: LocalShard | None) -> object:
    """Return a rank's shard of a saved value: a sharded or whole tensor, or any other value."""
    if isinstance(value, SavedTensor):
        whole = value.whole
    elif part is not None and isinstance(value, Tensor) and value.ndim:
        whole = tuple(value.shape)
    else:
        return value
    if part is None:
        assert isinstance(value, SavedTensor)
        return value.read([0] * len(whole), whole)
    expected = _full_shape(part, len(whole))
    if whole != expected:
        raise ValueError(
            f"{name}: the checkpoint's tensor is {_times(whole)}, the model's {_times(expected)}; "
            "delete the trial's checkpoints to train it anew"
        )
    offsets, sizes = _position(part, len(whole))
    if _partition(part) is not None:
        return _by_places(value, part, offsets, sizes)
    if isinstance(value, SavedTensor):
        return value.read(offsets, sizes)
    assert isinstance(value, Tensor)
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        value = value.narrow(dim, offset, size)
    # Of its own, so that the whole may be dropped.
    return value.clone()


def _by_places(
    value: object, part: LocalShard, offsets: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """Return a rank's shard of a saved value, its rows in the order of a partition."""
    if isinstance(value, HashedRows):
        return value.stored.read(offsets, sizes)
    assert isinstance(part, TableShard)
    rows = part.row_numbers()
    if isinstance(value, SavedTensor):
        return read_rows(value, rows, offsets[1:], sizes[1:])
    assert isinstance(value, Tensor)
    return value[rows]


def _partition(part: LocalShard) -> HashPartition | None:
    return part.partition if isinstance(part, TableShard) else None


def _full_shape(part: LocalShard, ndim: int) -> tuple[int, ...]:
    """Return the shape of the whole: of a table, or of one number per row (`ndim` 1)."""
    return tuple(part.whole if isinstance(part, TableShard) else part.shape)[:ndim]


def _position(part: LocalShard, ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return offsets and shape of a shard: of a table, or of one number per row (`ndim` 1)."""
    if isinstance(part, TableShard):
        return (part.rows.start, part.columns.start)[:ndim], part.shape[:ndim]
    slices = local_slices(part)
    return tuple(each.start for each in slices), tuple(each.stop - each.start for each in slices)


def _parameter_name(section: str, owner: str) -> str:
    """Return the name of the parameter of which something is kept."""
    return f"{owner}.weight" if section == "tables" else owner


def _times(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
