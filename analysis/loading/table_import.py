"""Table import: anybody's table of runs under this package's column names.

`analysis.load` reads CSV, TSV, parquet and JSON files, DataFrames and dicts through this file.
Columns are found by name; `columns=` says where they differ. Numbers are read as people write them
(70M, 1.4e9, 1,024). Units are those of the header (`params (M)`) or of `units=`. Every such
decision is a note. A row that cannot count is handed back with its reason, never left out in
silence.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.schema import SETTINGS, SHORT_NAMES
from analysis.loading.size_units import check_small_sizes
from analysis.loading.table_file import read_table_file
from analysis.loading.validation import (
    DataWarning,
    check_runs,
    check_size_units,
    refuse_bad_units,
)
from analysis.loading.written_numbers import (
    SUFFIXES,
    UNIT_WORDS,
    has_decimal_comma,
    has_one_comma,
    unit_in_brackets,
    written_number,
    written_unit,
)


def _words(text: str) -> Sequence[str]:
    return text.split()


ALIASES: Mapping[str, Sequence[str]] = {
    "params": _words(
        "n n_params num_params parameters num_parameters n_parameters nparams param_count "
        "parameter_count model_params model_size size dense_parameter_count dense_params "
        "total_params params_total total_parameters total_parameter_count"
    ),
    "active_params": _words(
        "n_active n_act nact active_parameters activated_params params_active num_active_params "
        "active_param_count active_parameter_count"
    ),
    "tokens": _words(
        "d n_tokens num_tokens training_tokens train_tokens tokens_seen total_tokens dataset_size "
        "data_tokens tokens_trained num_train_tokens token_count training_dataset_size"
    ),
    "flops": _words(
        "c flop compute training_flops train_flops training_flop total_flops compute_flops budget "
        "flops_budget compute_budget flop_budget budget_flops training_compute train_compute "
        "total_training_flops"
    ),
    "loss": _words(
        "l val_loss valid_loss validation_loss eval_loss test_loss final_loss final_val_loss "
        "loss_val loss_nats loss_validation cross_entropy cross_entropy_loss val_cross_entropy "
        "test_cross_entropy nll val_nll"
    ),
    "architecture": _words(
        "arch arch_type model_type model_family architecture_name router_type router routing"
    ),
    "experts": ["n_experts", "num_experts", "expert_count", "e"],
    "run": _words("run_id run_name trial_id point_id hyper_id job_name name id"),
    "seed": ["random_seed"],
    "status": ["state", "run_state", "outcome_state"],
}
"""What others call a column, lower case with underscores. The own name always comes first."""

WITHOUT_EMBEDDINGS = frozenset(
    _words(
        "non_embedding_params non_embedding_parameters non_embed_params nonembedding_params "
        "non_emb_params params_no_embed params_non_embedding n_non_embedding"
    )
)
"""N where no other column counts parameters."""

FLOPS_6ND = frozenset(
    _words("flops_6nd flops6nd 6nd 6nd_flops c_6nd training_flops_6nd train_flops_6nd compute_6nd")
)
"""FLOPs where no other column holds them."""

PER_PARAM = frozenset(
    _words("tokens_per_param tokens_per_parameter token_multiplier tokens_to_params d_over_n")
)
"""Tokens over parameters, from which tokens follow where there are none."""

OLD_ROW = "row (as it was)"
SIZES = ("params", "tokens", "flops", "active_params", "total_params", "experts")
POSITIVE = ("loss", *SIZES)
LABELS = frozenset({"run", "status", "architecture", "seed"})
"""Columns of which the first is taken where several could be meant."""

BAD_STATES = frozenset(
    _words(
        "failed failure crashed crash killed cancelled canceled diverged nan error oom running "
        "pending timeout preempted"
    )
)

_SPENT = frozenset({"total", "training", "train"})
_SIZE_NAMES = frozenset(
    n for key in ("params", "tokens", "active_params") for n in (key, *ALIASES[key]) if len(n) > 1
)
_MEASURED = re.compile(
    r"loss|nll|entropy|bpb|bpc|per_byte|ppl|perplexity|acc|err|score|recall|second|time|hour|date"
    r"|curve|grad|(as it was)",
    re.IGNORECASE,
)
"""Columns that hold what came of a run, not what it was."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportedTable:
    """A table in the names of this package."""

    table: pd.DataFrame
    """Rows that can count; `row` is their number in the source, from 0. Other columns are there as
    they were."""
    faults: list[tuple[int, dict[str, Any], str]] = field(default_factory=list)
    """The other rows: number, content, and the reason."""
    notes: list[str] = field(default_factory=list)
    """What was taken for what, and what is doubtful."""
    source_columns: tuple[str, ...] = ()
    """Names of the columns in the source."""


def import_table(
    source: str | os.PathLike[str] | pd.DataFrame | Mapping[str, Any],
    *,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, float | str] | None = None,
    accept: Collection[str] = (),
) -> ImportedTable:
    """Return the table of `source` with this package's column names.

    Args:
        source: File, DataFrame or dict of columns.
        columns: Name here to name there: `{"params": "Non-emb params", "loss": "c4 loss"}`.
        units: How many of the unit here one of theirs is: `{"params": 1e6}` for
            millions, or `{"params": "M"}`.
        accept: Kinds of warning that were looked into (`analysis/loading/validation.py`).

    Raises:
        ValueError: If the file cannot be read, a named column is missing, two columns could be
            meant, or the units cannot be right.
    """
    where = "table" if isinstance(source, pd.DataFrame | Mapping) else os.fspath(source)
    frame = _frame(source, where)
    notes: list[str] = []
    source_columns = tuple(frame.columns)
    frame, scales = _named(frame, dict(columns or {}), where, notes)
    scales |= {name: written_unit(unit, name) for name, unit in (units or {}).items()}
    unknown = sorted(set(scales) - set(frame.columns))
    if unknown:
        there = ", ".join(map(str, frame.columns))
        raise ValueError(f"{where}: units: no column {', '.join(unknown)}; there are {there}")
    faults: dict[int, str] = {}
    for name in (n for n in frame.columns if n in POSITIVE or n in scales):
        frame[name] = _numbers(frame[name], name, scales.get(name, 1.0), faults)
    _impossible(frame, faults)
    # A table that was loaded before, or has numbers of its own, keeps them under another name.
    if "row" in frame:
        frame = frame.drop(columns=OLD_ROW, errors="ignore").rename(columns={"row": OLD_ROW})
    frame.insert(0, "row", np.arange(len(frame)))
    _repeated(frame, faults)
    good = frame[~frame["row"].isin(list(faults))].reset_index(drop=True)
    warnings = _check(good, scales)
    refuse_bad_units(warnings, where=where, accept=accept)
    _derive(good, notes)
    steps = good.drop_duplicates(["run", "step"]) if {"run", "step"} <= set(good) else None
    if steps is not None and steps["run"].duplicated().any():
        notes.append(
            f"{len(good)} rows are checkpoints of {good['run'].nunique()} runs: "
            "a law of final losses needs the last of each "
            "(table.sort_values('step').groupby('run').tail(1)), "
            "one of checkpoints clusters='run'"
        )
    notes += [w.sentence for w in warnings if w.kind not in accept]
    records = frame.to_dict(orient="records")
    content: list[dict[str, Any]] = [{str(k): v for k, v in r.items()} for r in records]
    return ImportedTable(
        table=good,
        faults=[(row, content[row], reason) for row, reason in sorted(faults.items())],
        notes=notes,
        source_columns=source_columns,
    )


def _frame(source: Any, where: str) -> pd.DataFrame:
    if isinstance(source, pd.DataFrame):
        frame = source.reset_index(drop=True).copy()
    elif isinstance(source, Mapping):
        sized = {
            k: v for k, v in source.items() if hasattr(v, "__len__") and not isinstance(v, str)
        }
        if len({len(v) for v in sized.values()}) > 1:
            lengths = ", ".join(f"{k} {len(v)}" for k, v in sized.items())
            raise ValueError(
                f"{where}: columns of different lengths ({lengths}); give one value per run"
            )
        frame = pd.DataFrame({str(k): v for k, v in source.items()})
    else:
        frame = read_table_file(Path(where), column_names=_known_names())
    frame.columns = [
        "/".join(map(str, c)) if isinstance(c, tuple) else str(c).strip() for c in frame.columns
    ]
    twice = sorted({c for c in frame.columns if list(frame.columns).count(c) > 1})
    if twice:
        raise ValueError(
            f"{where}: two columns are named {', '.join(twice)}; "
            "rename one, so that it is clear which counts"
        )
    if not len(frame):
        raise ValueError(f"{where}: has no rows; a table of runs has one row per run")
    return frame


def _named(
    frame: pd.DataFrame, columns: Mapping[str, str], where: str, notes: list[str]
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the frame with this package's names beside its own, and the units in headers."""
    there = list(frame.columns)
    for name, theirs in columns.items():
        if theirs not in there:
            raise ValueError(
                f"{where}: columns: no {theirs!r} for {name}; there are {', '.join(there)}"
            )
    chosen = dict(columns)
    free = [c for c in there if c not in columns.values() and not c.startswith(SETTINGS)]
    for name in ALIASES:
        if name in chosen or name in there:
            continue
        found = _column_for(name, frame, free, where)
        if found is not None:
            chosen[name] = found
            notes.append(f"{name} is column {found!r}")
    if not {"params", "active_params"} & {*chosen, *there}:
        labels = {"model", "model_name", "size_label", "model_size_label"}
        named = [c for c in there if _header(c)[0] in labels and _all_sizes(frame[c])]
        if named:
            chosen["params"] = named[0]
            notes.append(f"params is column {named[0]!r}, whose names are sizes (rounded ones)")
    taken = chosen.get("params", "params" if "params" in there else None)
    others = [c for c in there if c not in {taken, *chosen.values()} and _counts_params(frame, c)]
    if taken in chosen.values() and "params" not in columns and others:
        notes.append(
            f"params is {taken!r}, and {', '.join(map(repr, others[:4]))} too may count "
            "parameters; where another is N, say so with columns={'params': …}"
        )
    scales = {name: _unit(theirs) for name, theirs in chosen.items() if _unit(theirs) != 1}
    notes += [
        f"{name} is times {unit:g}, as the header {chosen[name]!r} says"
        for name, unit in scales.items()
    ]
    replaced = {
        name: f"{name} (as it was)"
        for name, theirs in chosen.items()
        if name in there and name != theirs
    }
    copies = {name: frame[theirs] for name, theirs in chosen.items()}
    return frame.rename(columns=replaced).assign(**copies), scales


def _column_for(name: str, frame: pd.DataFrame, free: list[str], where: str) -> str | None:
    """Return the column that is meant by a name of this package, None if there is none.

    Raises:
        ValueError: If several could be.
    """
    found = _candidates(name, free)
    if name == "params":  # a column of totals is N only where there is no other
        found = [c for c in found if "total" not in _header(c)[0]] or found
    same = len(found) > 1 and all(frame[c].equals(frame[found[0]]) for c in found)
    if len(found) > 1 and not same and name not in LABELS:
        more = f" or {len(found) - 6} more" if len(found) > 6 else ""
        raise ValueError(
            f"{where}: {name} could be {' or '.join(found[:6])}{more}; "
            f"say which with columns={{{name!r}: …}}"
        )
    return found[0] if found else None


def _counts_params(frame: pd.DataFrame, column: str) -> bool:
    return bool(
        re.search("param", column, re.IGNORECASE)
        and _header(column)[0] not in PER_PARAM
        and pd.api.types.is_numeric_dtype(frame[column])
    )


def _known_names() -> frozenset[str]:
    return frozenset([*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases)])


def _unit(name: str) -> float:
    unit = _header(name)[1]
    return unit if unit != 1 else _header(_end(name))[1]


def _end(name: str) -> str:
    """Return `val_loss` of `metrics/val_loss` and of `summary.val_loss`."""
    return re.split(r"[/.]", name)[-1]


def _candidates(name: str, free: list[str]) -> list[str]:
    """Return the columns that could be meant: by their name, then by the end of a path.

    A path is `throughput/total_tokens`.
    """
    headers = {c: _header(c)[0] for c in free}
    found = [c for c in free if headers[c] == name]
    found = found or [c for c in free if headers[c] in ALIASES[name]]
    if not found and not set(SHORT_NAMES.get(name, ())) & set(free):
        ends = {c: _header(_end(c))[0] for c in free if _end(c) != c}
        found = [c for c, end in ends.items() if end == name or end in ALIASES[name]]
    last = {"params": WITHOUT_EMBEDDINGS, "flops": FLOPS_6ND}.get(name, frozenset())
    return found or [c for c in free if headers[c] in last]


def _header(name: str) -> tuple[str, float]:
    """Return a header in lower case with underscores, and the unit that it states.

    The unit stands in brackets or after an underscore.
    """
    text = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", name.strip())
    match = re.match(r"^(.*?)[\s_]*[(\[](.*?)[)\]]\s*$", text)
    stem, inside = (match.group(1), match.group(2)) if match else (text, "")
    plain = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    if match:
        return plain, unit_in_brackets(inside)
    head, _, last = plain.rpartition("_")
    if last in UNIT_WORDS and re.search(r"flops?$", last) and head.rpartition("_")[2] in _SPENT:
        # total_gflops; gflops alone are mostly those per second.
        return f"{head}_flops", UNIT_WORDS[last]
    if head and last in UNIT_WORDS:
        return head, UNIT_WORDS[last]
    short = last in {"m", "b", "bn", "t"} and head in _SIZE_NAMES
    if head and (short or re.search(r"_[MB]$", name.strip())):
        return head, SUFFIXES[last]
    return plain, 1.0


def _numbers(values: pd.Series, name: str, unit: float, faults: dict[int, str]) -> pd.Series:
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        return values.astype("float64") * unit
    read = np.full(len(values), np.nan)
    # 3,900 is 3.9 beside 3,91, and as a loss: none is in the thousands.
    decimal = name == "loss" or any(has_decimal_comma(value) for value in values)
    for i, value in enumerate(values):
        if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
            continue
        comma = decimal and has_one_comma(value)
        number = None if comma else written_number(value)
        if number is not None:
            read[i] = number * unit
            continue
        reason = f"{name} is no number: {value!r}; correct it, or leave the cell empty"
        if comma:
            reason = (
                f"{name} is no number: {value!r} has a decimal comma; write a point, or give "
                "analysis.load the table pandas.read_csv(file, sep=';', decimal=',')"
            )
        faults.setdefault(i, reason)
    return pd.Series(read, index=values.index, name=values.name)


def _all_sizes(values: pd.Series) -> bool:
    """Whether every cell is a size as people name models by it: 70M, 1.4B."""
    return all(
        isinstance(v, str) and v.strip()[-1:].isalpha() and (written_number(v) or 0) >= 1e3
        for v in values
    )


def _impossible(frame: pd.DataFrame, faults: dict[int, str]) -> None:
    """Give a reason to every row whose state or numbers cannot count."""
    if "status" in frame:
        for i, state in enumerate(frame["status"]):
            word = str(state).strip()
            if word.lower() in BAD_STATES:
                reason = (
                    f"status is {word!r}: not a finished run; run it again, or correct the status"
                )
                faults.setdefault(i, reason)
    for name in (n for n in POSITIVE if n in frame):
        values = frame[name].to_numpy(dtype=np.float64)
        diverged = " (diverged)" if name == "loss" else ""
        for i in np.flatnonzero(np.isinf(values)).tolist():
            reason = f"not finite: {name} is {values[i]}{diverged}; run it again, or leave it out"
            faults.setdefault(i, reason)
        for i in np.flatnonzero(values <= 0).tolist():
            reason = f"impossible: {name} is {values[i]:g}; it must be positive, correct the cell"
            faults.setdefault(i, reason)
        if name in {"params", "tokens", "loss"} and np.isfinite(values).any():
            diverged = " (a run that diverged or was not evaluated)" if name == "loss" else ""
            for i in np.flatnonzero(np.isnan(values)).tolist():
                reason = f"missing: no value of {name}{diverged}; fill the cell, or run it again"
                faults.setdefault(i, reason)


def _repeated(frame: pd.DataFrame, faults: dict[int, str]) -> None:
    """Give a reason to every row that repeats an earlier one."""
    good = ~frame["row"].isin(list(faults))
    labels = {"row", OLD_ROW, "run", "trial_id", "Unnamed: 0", "index"}
    content = [c for c in frame.columns if c not in labels]
    if "loss" in frame and any(c in frame for c in SIZES):
        cells = frame.loc[good, content].astype(str)
        for i in cells.index[cells.duplicated(keep="first")]:
            first = int(cells.index[(cells == cells.loc[i]).all(axis=1)][0])
            faults[int(i)] = (
                f"duplicate of row {first}: every cell is the same; "
                "leave one out, or give seeds a column"
            )
    if "run" not in frame:
        return
    # One run at one size twice, with different results: nobody can tell which is right.
    # What else differs makes two runs of it: a learning rate, under a name that is the model's.
    key = [c for c in [*content, "run"] if c != "loss" and not _MEASURED.search(c)]
    rest = frame.loc[good & ~frame["row"].isin(list(faults)), key].astype(str)
    for i in rest.index[rest.duplicated(keep="first")]:
        first = int(rest.index[(rest == rest.loc[i]).all(axis=1)][0])
        faults[int(i)] = (
            f"duplicate: run {frame.loc[i, 'run']} stands in row {first} already, "
            "with another result; keep the right one"
        )


def _derive(table: pd.DataFrame, notes: list[str]) -> None:
    """Add what follows from C = 6 N D, or from tokens per parameter, where one is missing.

    Each is a note.
    """
    active = "active_params" if "active_params" in table else "params"
    if active not in table:
        if {"tokens", "flops"} <= set(table):
            table["params"] = table["flops"] / (6 * table["tokens"])
            notes.append("params = flops / (6 tokens): there is no column of parameters")
        return
    ratios = [
        c
        for c in table
        if _header(str(c))[0] in PER_PARAM and pd.api.types.is_numeric_dtype(table[c])
    ]
    if not {"tokens", "flops"} & set(table) and ratios:
        table["tokens"] = table[ratios[0]] * table[active]
        notes.append(f"tokens = {ratios[0]} x {active}: there is no column of tokens")
    if "tokens" not in table and "flops" in table:
        table["tokens"] = table["flops"] / (6 * table[active])
        notes.append(f"tokens = flops / (6 {active}): there is no column of tokens")
    elif "flops" not in table and "tokens" in table:
        table["flops"] = 6 * table[active] * table["tokens"]
        notes.append(f"flops = 6 {active} x tokens: there is no column of FLOPs")


def _check(table: pd.DataFrame, units: Mapping[str, float]) -> list[DataWarning]:
    """Return the warnings about the table, with the rows of the source.

    Args:
        table: Rows that count.
        units: That its columns were multiplied by.
    """
    sizes = {n: table[n].to_numpy(dtype=np.float64) for n in SIZES if n in table}
    warnings = check_size_units(sizes, rows=table["row"].to_numpy())
    # Of mixed units a median says nothing.
    if not any(w.kind == "units" for w in warnings):
        small = check_small_sizes(sizes, units=units, rows=table["row"].to_numpy())
        if small is not None and small.kind == "units":
            warnings = []  # FLOPs would be blamed for it
        warnings += [] if small is None else [small]
    names = ("params", "active_params", "tokens", "experts")
    inputs = [n for n in names if n in sizes and np.isfinite(sizes[n]).all()]
    if not {"params", "tokens"} <= set(inputs) or "loss" not in table:
        return warnings
    kinds = pd.Series("", index=table.index)
    if "architecture" in table:
        kinds = table["architecture"].astype(str)
    for _, runs in table.groupby(kinds, sort=False):
        warnings += check_runs(
            {n: runs[n].to_numpy(dtype=np.float64) for n in inputs},
            runs["loss"].to_numpy(dtype=np.float64),
            outcome="loss",
            seeds_named="seed" in table,
            rows=runs["row"].to_numpy(),
        )
    return warnings
