"""Column names of other people's tables, and units in their headers."""

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.loading.schema import SETTINGS, SHORT_NAMES
from analysis.loading.written_numbers import SUFFIXES, UNIT_WORDS, unit_in_brackets, written_number


def words(text: str) -> Sequence[str]:
    """Return the words of a text: shorter to read than a list of strings."""
    return text.split()


ALIASES: Mapping[str, Sequence[str]] = {
    "params": words(
        "n n_params num_params parameters num_parameters n_parameters nparams param_count "
        "parameter_count model_params model_size size dense_parameter_count dense_params "
        "total_params params_total total_parameters total_parameter_count"
    ),
    "total_params": words("params_total total_parameters total_parameter_count"),
    "active_params": words(
        "n_active n_act nact active_parameters activated_params params_active num_active_params "
        "active_param_count active_parameter_count"
    ),
    "tokens": words(
        "d n_tokens num_tokens training_tokens train_tokens tokens_seen total_tokens dataset_size "
        "data_tokens tokens_trained num_train_tokens token_count training_dataset_size"
    ),
    "flops": words(
        "c flop compute training_flops train_flops training_flop total_flops compute_flops budget "
        "flops_budget compute_budget flop_budget budget_flops training_compute train_compute "
        "total_training_flops"
    ),
    "loss": words(
        "l val_loss valid_loss validation_loss eval_loss test_loss final_loss final_val_loss "
        "loss_val loss_nats loss_validation cross_entropy cross_entropy_loss val_cross_entropy "
        "test_cross_entropy nll val_nll"
    ),
    "architecture": words(
        "arch arch_type model_type model_family architecture_name router_type router routing"
    ),
    "experts": ["n_experts", "num_experts", "expert_count", "e"],
    "run": words("run_id run_name trial_id point_id hyper_id job_name name id"),
    "seed": ["random_seed"],
    "status": ["state", "run_state", "outcome_state"],
}
"""What others call a column, lower case with underscores. The own name always comes first."""

WITHOUT_EMBEDDINGS = frozenset(
    words(
        "non_embedding_params non_embedding_parameters non_embed_params nonembedding_params "
        "non_emb_params params_no_embed params_non_embedding n_non_embedding"
    )
)
"""N where no other column counts parameters."""

FLOPS_6ND = frozenset(
    words("flops_6nd flops6nd 6nd 6nd_flops c_6nd training_flops_6nd train_flops_6nd compute_6nd")
)
"""FLOPs where no other column holds them."""

PER_PARAM = frozenset(
    words("tokens_per_param tokens_per_parameter token_multiplier tokens_to_params d_over_n")
)
"""Tokens over parameters, from which tokens follow where there are none."""

LABELS = frozenset({"run", "status", "architecture", "seed"})
"""Columns of which the first is taken where several could be meant."""

SIZED_MODELS = frozenset({"model", "model_name", "size_label", "model_size_label"})
"""Headers of names that may be sizes, as 70M and 1.4B are."""

MOST_NAMED = 6
"""Columns that a message names; of more it says how many."""

_SPENT = frozenset({"total", "training", "train"})
"""What stands before the FLOPs of a whole run."""
_SIZE_NAMES = frozenset(
    n for key in ("params", "tokens", "active_params") for n in (key, *ALIASES[key]) if len(n) > 1
)
"""Names after which a unit may be one letter: `params_m`."""


def with_own_names(
    frame: pd.DataFrame, columns: Mapping[str, str], where: str
) -> tuple[pd.DataFrame, dict[str, float], list[str]]:
    """Return the frame with this package's names beside its own, units in headers, and notes.

    Args:
        frame: As it was read.
        columns: Names here to names there, of those that the caller named.
        where: The source, for messages.

    Raises:
        ValueError: If a named column is missing, or several columns could be meant.
    """
    there = list(frame.columns)
    for name, theirs in columns.items():
        if theirs not in there:
            raise ValueError(
                f"{where}: columns: no {theirs!r} for {name}; there are {', '.join(there)}"
            )
    guessed = _guessed(frame, columns, where)
    chosen = {**columns, **guessed}
    notes = [f"{name} is column {theirs!r}" for name, theirs in guessed.items()]
    if not {"params", "active_params"} & {*chosen, *there}:
        models = [c for c in there if header(c)[0] in SIZED_MODELS and _all_sizes(frame[c])]
        if models:
            chosen["params"] = models[0]
            notes.append(f"params is column {models[0]!r}, whose names are sizes (rounded ones)")
    if "params" not in columns:
        notes += _other_params(frame, chosen)
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
    return frame.rename(columns=replaced).assign(**copies), scales, notes


def _guessed(frame: pd.DataFrame, columns: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the columns that have another name of what is neither there nor named by the caller.

    Raises:
        ValueError: If several could be meant.
    """
    free = [c for c in frame.columns if c not in columns.values() and not c.startswith(SETTINGS)]
    wanted = [name for name in ALIASES if name not in columns and name not in frame.columns]
    active = "active_params"
    knows_active = active in {*columns, *frame.columns} or bool(_candidates(active, free))
    found = {name: _column_for(name, frame, free, where, plain=knows_active) for name in wanted}
    return {name: theirs for name, theirs in found.items() if theirs is not None}


def _other_params(frame: pd.DataFrame, chosen: Mapping[str, str]) -> list[str]:
    """Return a note where parameters were found in one column, and others may count them too."""
    there = list(frame.columns)
    taken = chosen.get("params", "params" if "params" in there else None)
    if taken is None and "active_params" in {*chosen, *there}:
        return [
            "laws take active_params as params; where another column is N, say so with "
            "columns={'params': …}"
        ]
    others = [c for c in there if c not in {taken, *chosen.values()} and _counts_params(frame, c)]
    if taken not in chosen.values() or not others:
        return []
    return [
        f"params is {taken!r}, and {', '.join(map(repr, others[:4]))} too may count "
        "parameters; where another is N, say so with columns={'params': …}"
    ]


def _column_for(
    name: str, frame: pd.DataFrame, free: list[str], where: str, *, plain: bool
) -> str | None:
    """Return the column that is meant by a name of this package, None if there is none.

    With `plain` no column of stored parameters is N, since there is one of active ones.

    Raises:
        ValueError: If several could be.
    """
    found = _candidates(name, free)
    if name == "params":  # a column of totals is N only where there is no other
        others = [c for c in found if not _is_stored(c)]
        found = others if others or plain else found
    same = len(found) > 1 and all(frame[c].equals(frame[found[0]]) for c in found)
    if len(found) > 1 and not same and name not in LABELS:
        more = f" or {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise ValueError(
            f"{where}: {name} could be {' or '.join(found[:MOST_NAMED])}{more}; "
            f"say which with columns={{{name!r}: …}}"
        )
    return found[0] if found else None


def _is_stored(column: str) -> bool:
    """Whether a column counts what is stored, or leaves out embeddings, rather than just N."""
    name = header(column)[0]
    return "total" in name or name in WITHOUT_EMBEDDINGS


def _counts_params(frame: pd.DataFrame, column: str) -> bool:
    return bool(
        re.search("param", column, re.IGNORECASE)
        and header(column)[0] not in PER_PARAM
        and pd.api.types.is_numeric_dtype(frame[column])
    )


def _candidates(name: str, free: list[str]) -> list[str]:
    """Return the columns that could be meant: by their name, then by the end of a path.

    A path is `throughput/total_tokens`.
    """
    headers = {c: header(c)[0] for c in free}
    found = [c for c in free if headers[c] == name]
    found = found or [c for c in free if headers[c] in ALIASES[name]]
    if not found and not set(SHORT_NAMES.get(name, ())) & set(free):
        ends = {c: header(_end(c))[0] for c in free if _end(c) != c}
        found = [c for c, end in ends.items() if end == name or end in ALIASES[name]]
    last = {"params": WITHOUT_EMBEDDINGS, "flops": FLOPS_6ND}.get(name, frozenset())
    return found or [c for c in free if headers[c] in last]


def _all_sizes(values: pd.Series) -> bool:
    """Whether every cell is a size as people name models by it: 70M, 1.4B."""
    return all(
        isinstance(v, str) and v.strip()[-1:].isalpha() and (written_number(v) or 0) >= 1e3
        for v in values
    )


def known_names() -> frozenset[str]:
    """Return all names that a column is found by."""
    return frozenset([*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases)])


def _unit(name: str) -> float:
    """Return the unit that a header states, at its end or at the end of its path."""
    unit = header(name)[1]
    return unit if unit != 1 else header(_end(name))[1]


def _end(name: str) -> str:
    """Return `val_loss` of `metrics/val_loss` and of `summary.val_loss`."""
    return re.split(r"[/.]", name)[-1]


def header(name: str) -> tuple[str, float]:
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
