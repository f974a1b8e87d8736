"""A trial's state in parts, as ranks save it, and put together again for whichever ranks read it.

A part of a checkpoint holds, by parameter name, a piece of each table: where it lies in the whole (`rows`, `columns`,
half-open), and the tensors that have its shape: the values, and what the optimizer keeps of each (`tables`: the one of
tables, which may keep one number per row). Any pieces that cover a table make any others, so ranks may read what another
number of ranks, or another layout, has saved; and a whole table is one piece.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workloads.checkpoint import Part
from workloads.sharding.mesh import Mesh
from workloads.sharding.shard import Shard

State = dict[str, Any]
_VALUES = "values"


def apart(
    state: State, mesh: Mesh, shards: Mapping[str, Shard], names: Sequence[str]
) -> tuple[State, Part | None]:
    """Split a state into what all ranks have alike and this rank's part of the tables.

    Args:
        state: `weights` by name and, if there, `optimizer` as torch gives it and `tables` as `TableOptimizer` does; the
            rest is passed on.
        mesh: Of the ranks that save. Of those that hold the same part, the first one saves it; the others get None.
        shards: Which part of which parameter this rank has.
        names: Of the parameters, as the optimizer numbers them.
    """
    if not shards:
        return state, None
    pieces: dict[str, State] = {}
    for name, shard in shards.items():
        pieces[name] = {
            "whole": list(shard.whole),
            "rows": [shard.rows.start, shard.rows.stop],
            "columns": [shard.columns.start, shard.columns.stop],
            "tensors": {_VALUES: state["weights"][name]},
            "tables": _of_table(state, name),
        }
    alike = {
        **state,
        "weights": {name: t for name, t in state["weights"].items() if name not in shards},
    }
    if "optimizer" in state:
        kept = dict(state["optimizer"]["state"])
        for index, name in enumerate(names):
            if name in shards and index in kept:
                shape = shards[name].shape
                own = {key: t for key, t in kept[index].items() if _has_shape(t, shape)}
                pieces[name]["tensors"] |= own
                kept[index] = {key: t for key, t in kept[index].items() if key not in own}
        alike["optimizer"] = {**state["optimizer"], "state": kept}
    if state.get("tables"):
        states = state["tables"]["states"]
        shared = {_table(name) for name in shards}
        others = {table: kept for table, kept in states.items() if table not in shared}
        alike["tables"] = {**state["tables"], "states": others}
    memory = mesh.memory
    part = Part(index=memory.rank, count=memory.size, state=pieces)
    return alike, part if mesh.data.leads else None


def together(
    state: State, parts: Sequence[State], shards: Mapping[str, Shard], names: Sequence[str]
) -> State:
    """Return a saved state with this rank's part of every table in it.

    Args:
        state: As loaded, with or without `optimizer`; whole tables of ranks that shared none out included.
        parts: As loaded, of all ranks that saved.
        shards: Which part of which parameter this rank has; of others it has all.
        names: Of the parameters, as the optimizer numbers them.

    Raises:
        ValueError: If the checkpoint is of another shape, or does not hold all of a part.
    """
    saved = _pieces(state, parts, shards, names)
    weights, kept = dict(state["weights"]), dict(state.get("optimizer", {}).get("state", {}))
    tables = dict((state.get("tables") or {}).get("states", {}))
    number = {name: index for index, name in enumerate(names)}
    for name, pieces in saved.items():
        whole = tuple(pieces[0]["whole"])
        shard = shards.get(name)
        if shard is not None and shard.whole != whole:
            raise ValueError(
                f"{name}: the checkpoint's table is {whole[0]} × {whole[1]}, the model's {shard.whole[0]} × "
                f"{shard.whole[1]}; delete the trial's checkpoints to train it anew"
            )
        rows = range(whole[0]) if shard is None else shard.rows
        columns = range(whole[1]) if shard is None else shard.columns
        tensors = {
            key: _cut(name, key, pieces, rows=rows, columns=columns) for key in pieces[0]["tensors"]
        }
        weights[name] = tensors.pop(_VALUES)
        if tensors and "optimizer" in state:
            kept[number[name]] = {**kept[number[name]], **tensors}
        if state.get("tables"):
            tables[_table(name)] = {
                key: _cut(name, key, pieces, rows=rows, columns=columns, among="tables")
                for key in pieces[0]["tables"]
            }
    joined = {**state, "weights": weights}
    if "optimizer" in state:
        joined["optimizer"] = {**state["optimizer"], "state": kept}
    if state.get("tables"):
        joined["tables"] = {**state["tables"], "states": tables}
    return joined


def _pieces(
    state: State, parts: Iterable[State], shards: Mapping[str, Shard], names: Sequence[str]
) -> dict[str, list[State]]:
    """Return the pieces of every table that was, or is to be, shared out."""
    pieces: dict[str, list[State]] = {}
    for part in parts:
        for name, piece in part.items():
            pieces.setdefault(name, []).append(piece)
    number = {name: index for index, name in enumerate(names)}
    for name in shards.keys() - pieces.keys():
        values = state["weights"][name]
        # A table that has an optimizer of its own has no number here.
        kept = state.get("optimizer", {}).get("state", {}).get(number.get(name), {})
        n_rows, width = values.shape
        pieces[name] = [
            {
                "whole": [n_rows, width],
                "rows": [0, n_rows],
                "columns": [0, width],
                "tensors": {
                    _VALUES: values,
                    **{key: t for key, t in kept.items() if _has_shape(t, (n_rows, width))},
                },
                "tables": _of_table(state, name),
            }
        ]
    return pieces


def _cut(
    name: str,
    key: str,
    pieces: Sequence[State],
    *,
    rows: range,
    columns: range,
    among: str = "tensors",
) -> Tensor:
    """Return a rectangle, copied from all pieces that it meets; of one number per row, those of the rows."""
    of_rows = pieces[0][among][key].ndim == 1
    if of_rows:
        # Every piece of a row has the same number: that of the first column's is read.
        columns = range(1)
    result: Tensor = pieces[0][among][key].new_empty(len(rows), len(columns))
    covered = 0
    for piece in pieces:
        first, last = _overlap(rows, piece["rows"])
        left, right = _overlap(columns, piece["columns"])
        if first >= last or left >= right:
            continue
        top, edge = piece["rows"][0], piece["columns"][0]
        found = piece[among][key][:, None] if of_rows else piece[among][key]
        result[
            first - rows.start : last - rows.start, left - columns.start : right - columns.start
        ] = found[first - top : last - top, left - edge : right - edge]
        covered += (last - first) * (right - left)
    if covered != result.numel():
        raise ValueError(
            f"{name}: the checkpoint's pieces hold {covered} of {result.numel()} numbers ({key}) of rows "
            f"{rows.start}..{rows.stop}, columns {columns.start}..{columns.stop}; "
            "delete this checkpoint to go on from the one before"
        )
    return result[:, 0] if of_rows else result


def _table(name: str) -> str:
    """Return the name of the table whose values are the parameter `name`."""
    return name.removesuffix(".weight")


def _of_table(state: State, name: str) -> dict[str, Tensor]:
    """Return what the optimizer of tables keeps of a table."""
    kept: dict[str, Tensor] = (state.get("tables") or {}).get("states", {}).get(_table(name), {})
    return kept


def _overlap(wanted: range, there: Sequence[int]) -> tuple[int, int]:
    return max(wanted.start, there[0]), min(wanted.stop, there[1])


def _has_shape(value: object, shape: tuple[int, int]) -> bool:
    return isinstance(value, Tensor) and value.shape == torch.Size(shape)
