"""Schema of the table of runs: a checked row per trial, and reasons for exclusion.

Readers (`from_folder`, `from_tracker`, `from_table`) hand over plain rows. Everything that decides
which of them count is here.
"""

import ast
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.records.trial_spec import canonical_json
from orchestrator.records.varied_settings import MATCH

IDENTITY = ("trial_id", "sweep", "architecture", "preset", "seed", "configuration")
"""First columns of the table: which trial a row is."""

SHORT_NAMES = {
    "factual_recall": ("recall/train_wording/exact_match",),
    "answer_nll": ("recall/train_wording/answer_nll",),
    "bits_per_param": ("knowledge/bits_per_param",),
    "loss": ("valid/loss", "train/loss"),
    "train_seconds": ("time/train_s",),
}
"""Short column: the metrics it stands for, the first that the trial has."""

OUTCOMES = ("factual_recall", "answer_nll", "bits_per_param", "loss")
"""What curves are drawn of; a trial has to have those that its peers have."""

PARAM_GROUPS = (
    "embedding",
    "attention",
    "feed_forward",
    "memory_keys",
    "memory_values",
    "router",
    "norm",
    "head",
)
"""Groups of parameters, counted apart."""

ACCOUNTING = (
    *(f"params_{group}" for group in PARAM_GROUPS),
    "total_params",
    "non_embedding_params",
    "active_params",
    "memory_params",
    "forward_flops_per_token",
    "training_flops",
    "training_tokens",
    "steps",
    "bytes_read_per_token",
    "bytes_read_per_token_batch64",
    "model_state_bytes",
    "activation_bytes",
    "peak_memory_bytes",
    "vocab_size",
    "paper_block_flops",
)
"""Columns of numbers known before training: sizes and costs."""

SETTINGS = ("model.", "train.", "data.", MATCH)
"""Prefixes of the columns that say how a trial was made."""

NOT_CAUSAL = "not_causal"
"""Column: when and why an output can depend on later tokens, where the architecture declares it."""

EXCLUDED_COLUMNS = ("trial_id", "sweep", "architecture", "seed", "state", "reason")

EXCLUDED_SIZES = ("total_params", "active_params", "training_flops", "training_tokens")
"""Further columns of the second table, where the source knows the sizes of what does not count."""

DIVERGED = "diverged"
"""Word in the reason of every trial that diverged."""

WORSE_THAN_GUESSING = 1.1
"""Factor above the loss of an even guess from which on a run has diverged; an untrained model is a
little above 1."""

FLOPS_OF_TRIALS = (1.0, 1000.0)
"""Training FLOPs per active parameter and token that can be. The upper one is for tables of others.
Our counts include attention scores and the output head, which no active parameter stands for; in
tiny models with a large vocabulary or long sequences they are nearly everything."""

TRAINING_OVER_FORWARD = 3.0
"""FLOPs of a training step over those of its forward pass (`workloads/accounting/counts.py`)."""

_MACHINE_METRICS = "system/"
"""Samples of the machine, logged to the tracker only; no result of a trial."""


@dataclass
class Reading:
    """What a source holds, before anything is checked."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Finished trials, of `plain_row`."""
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """Others, of `exclusion`."""
    diverged: list[dict[str, Any]] = field(default_factory=list)
    """Those of them that diverged and are no rows, of `plain_row`."""
    environments: list[Mapping[str, Any]] = field(default_factory=list)
    """environment.json of finished trials."""
    digests: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """Of a runs folder: sweep and finished trial -> evaluation -> digest of what was asked."""
    question: str | None = None
    """What the sweep says it asks."""
    notes: list[str] = field(default_factory=list)
    """Of anybody's table: what was taken for what, and what is doubtful. Of a runs folder: trials
    of earlier submissions, and seeds that different code trained."""
    call: str | None = None
    """Of anybody's table: how it was loaded."""


def setting(value: Any) -> Any:
    """Return a setting as a table cell, the same whether it came as JSON or as the tracker's text.

    Lists become their JSON text (cells must be hashable), `None` becomes missing.
    """
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, list | tuple | dict):
        return canonical_json(list(value) if isinstance(value, tuple) else value)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1.0 in one place and 1 in the other is one setting
    return value


def _parsed(text: str) -> Any:
    words = {
        "None": None,
        "null": None,
        "": None,
        "True": True,
        "true": True,
        "False": False,
        "false": False,
    }
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text[0] in "[({":
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    return text


def plain_row(
    *,
    trial_id: str,
    sweep: str,
    architecture: str,
    preset: str | None,
    seed: int,
    settings: Mapping[str, Any],
    accounting: Mapping[str, float],
    metrics: Mapping[str, float],
    not_causal: object = None,
) -> dict[str, Any]:
    """Return one trial as a flat row.

    Args:
        trial_id: `<architecture>-<12 hex digits>`.
        sweep: Its sweep.
        architecture: Name in YAML.
        preset: As written, if any.
        seed: Of the trial.
        settings: `model.…`, `train.…`, `data.…`; the tracker's text or JSON values.
        accounting: Numbers known before training, by their names.
        metrics: Last value of every metric.
        not_causal: As recorded (`TrialSpec.not_causal`).
    """
    declared = declaration(not_causal)
    kept = {key: setting(value) for key, value in settings.items() if key != "model.architecture"}
    return {
        "trial_id": trial_id,
        "sweep": sweep,
        "architecture": architecture,
        "preset": preset,
        "seed": seed,
        **({NOT_CAUSAL: declared} if declared else {}),
        **{key: value for key, value in sorted(kept.items()) if value is not None},
        **{key: float(value) for key, value in accounting.items()},
        **{
            key: metric_value(value)
            for key, value in sorted(metrics.items())
            if not key.startswith(_MACHINE_METRICS)
        },
    }


def declaration(value: object) -> str | None:
    """Return when and why a model is not causal, None if nothing is declared.

    It is `in training` if the declaration does not say when.
    """
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    text = str(value).strip()
    if text.lower() in {"", "false", "none", "0", "0.0"}:
        return None
    return "in training" if text.lower() in {"true", "1", "1.0"} else text


def metric_value(value: Any) -> float:
    """Return a measurement as a source holds it as the number that was measured."""
    number = float("nan") if value is None else float(value)
    # MLflow's database stores an infinity as the largest float.
    return math.copysign(math.inf, number) if abs(number) >= 1.7976931348623157e308 else number


def check_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Return the rows that count, completed and sorted, and an exclusion for each that does not.

    Args:
        rows: Finished trials (`plain_row`, or the rows of a user's table).
    """
    complete = [_with_derived(row) for row in rows]
    excluded: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    wanted = _measured_by_peers(complete)
    seen: dict[tuple[str, Any], str] = {}
    for row in complete:
        reason = _fault(row, wanted[_peers(row)])
        key = (str(row["trial_id"]), row["seed"])
        if reason is None and key in seen:
            reason = f"duplicate: the same trial is already in the table, from sweep {seen[key]}"
        if reason is None:
            seen[key] = str(row["sweep"])
            kept.append(row)
        else:
            excluded.append(exclusion(row, state="done", reason=reason))
    return framed(kept), excluded


def diverged_rows(reading: Reading, excluded: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the trials that diverged, as complete rows.

    Args:
        reading: Of a source.
        excluded: Exclusions of its rows, of `check_rows`.
    """
    lost = {row["trial_id"] for row in excluded if DIVERGED in row["reason"]}
    rows = (row for row in reading.rows if row["trial_id"] in lost)
    return [dict(_with_derived(row)) for row in (*reading.diverged, *rows)]


def exclusion(row: Mapping[str, Any], *, state: str, reason: str) -> dict[str, Any]:
    """Return the record of a trial that does not count."""
    known = ("trial_id", "sweep", "architecture", "seed", *EXCLUDED_SIZES)
    named = {key: row.get(key) for key in known}
    return {**named, "state": state, "reason": reason}


def exclusions(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the second table: EXCLUDED_COLUMNS, and EXCLUDED_SIZES (NaN where unknown)."""
    frame = pd.DataFrame(list(records), columns=[*EXCLUDED_COLUMNS, *EXCLUDED_SIZES])
    for name in EXCLUDED_SIZES:
        frame[name] = pd.to_numeric(frame[name], errors="coerce")
    return frame.sort_values(["sweep", "trial_id"], kind="stable").reset_index(drop=True)


def _with_derived(row: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in row.items() if not _missing(value)}
    for short, sources in SHORT_NAMES.items():
        if short not in known:
            found = next((source for source in sources if source in row), None)
            if found is not None:
                known[short] = row[found]
    # NaN that a trial reported is a result (divergence), not a gap: it survives where it was
    # measured.
    for key, value in row.items():
        if isinstance(value, float) and math.isnan(value) and _is_metric(key):
            known[key] = value
    known.setdefault("preset", None)
    groups = [
        known[f"params_memory_{part}"]
        for part in ("keys", "values")
        if f"params_memory_{part}" in known
    ]
    if groups:
        known.setdefault("memory_params", sum(groups))
    known["configuration"] = _configuration(known)
    return known


def _configuration(row: Mapping[str, Any]) -> str:
    """Return one name for all seeds of a configuration: architecture and a hash of its settings."""
    # What was matched says how a setting was chosen, and is none itself.
    chosen = {
        key: value
        for key, value in row.items()
        if key.startswith(SETTINGS) and not key.startswith(MATCH)
    }
    if not chosen:
        chosen = {
            key: row.get(key)
            for key in ("preset", "total_params", "training_flops")
            if row.get(key) is not None
        }
    text = json.dumps({"architecture": row["architecture"], **chosen}, sort_keys=True, default=str)
    return f"{row['architecture']}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _peers(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row["sweep"], row.get("data.source")


def _measured_by_peers(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, Any], list[str]]:
    names = [*OUTCOMES, *(source for short in OUTCOMES for source in SHORT_NAMES[short])]
    groups: dict[tuple[Any, Any], set[str]] = {}
    for row in rows:
        groups.setdefault(_peers(row), set()).update(name for name in names if name in row)
    return {group: [name for name in names if name in found] for group, found in groups.items()}


def _fault(row: Mapping[str, Any], wanted: Sequence[str]) -> str | None:
    for name in wanted:
        if name not in row:
            return f"missing: no value of {name}, which other trials of the sweep have"
    if not any(name in row for name in OUTCOMES):
        return f"missing: none of {', '.join(OUTCOMES)}"
    for name, value in sorted(row.items(), key=lambda item: item[0] not in OUTCOMES):
        counted = name in OUTCOMES or name in ACCOUNTING or name in wanted
        if (
            counted
            and isinstance(value, int | float | np.number)
            and not math.isfinite(float(value))
        ):
            note = f" ({DIVERGED})" if name in {"loss", "train/loss", "valid/loss"} else ""
            return f"not finite: {name} is {value}{note}"
    for name in ("total_params", "training_flops", "training_tokens", "loss"):
        if name in row and not row[name] > 0:
            return f"impossible: {name} is {row[name]:g}; it must be positive"
    if "factual_recall" in row and not 0 <= row["factual_recall"] <= 1:
        return f"impossible: factual_recall is {row['factual_recall']:g}; a share lies in [0, 1]"
    if row.get("vocab_size", 0) > 1 and "loss" in row:
        guess = math.log(row["vocab_size"])
        if row["loss"] > WORSE_THAN_GUESSING * guess:
            return (
                f"{DIVERGED}: loss is {row['loss']:.4g}, and guessing evenly among "
                f"{row['vocab_size']:g} tokens has {guess:.4g}; "
                "lower the learning rate and run it again"
            )
    return _cost_fault(row)


def _cost_fault(row: Mapping[str, Any]) -> str | None:
    """Return why the training FLOPs cannot be those of the sizes, None if they can."""
    names = ("training_flops", "active_params", "training_tokens")
    if not all(name in row and row[name] > 0 for name in names):
        return None
    flops, params, tokens = (float(row[name]) for name in names)
    cost = flops / (params * tokens)
    low, high = FLOPS_OF_TRIALS
    if low <= cost <= high or (cost > high and _counted_here(row)):
        return None
    return (
        f"impossible: training_flops is {flops:.3g}, {cost:.3g} per active parameter and token, "
        "where training takes about 6; "
        "correct the unit of training_flops, active_params or training_tokens"
    )


def _counted_here(row: Mapping[str, Any]) -> bool:
    """Return whether the FLOPs follow from those of a token as memscale counts them."""
    if "forward_flops_per_token" not in row:
        return False
    forward = float(row["forward_flops_per_token"])
    counted = TRAINING_OVER_FORWARD * forward * float(row["training_tokens"])
    return math.isclose(float(row["training_flops"]), counted, rel_tol=1e-6)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or value is pd.NA


def _is_metric(name: str) -> bool:
    return "/" in name or name in OUTCOMES


def framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return complete rows as a table, IDENTITY first, sorted; without rows it has IDENTITY."""
    present = {name for row in rows for name in row}
    front = [*IDENTITY, *SHORT_NAMES, *ACCOUNTING]
    rest = sorted(present - set(front), key=lambda name: (_section(name), name))
    order = [*IDENTITY, *(name for name in front[len(IDENTITY) :] if name in present), *rest]
    frame = pd.DataFrame([dict(row) for row in rows], columns=order)
    by = [
        name
        for name in ("architecture", "total_params", "configuration", "seed", "trial_id")
        if name in frame
    ]
    return frame.sort_values(by, kind="stable").reset_index(drop=True)


def _section(name: str) -> int:
    places = [i for i, prefix in enumerate(SETTINGS) if name.startswith(prefix)]
    if places:
        return places[0]
    return len(SETTINGS) + (1 if "/" in name else 0)
