"""Varied settings of a sweep, beside architecture, preset and seed.

They tell its trials apart. Plan, status and reports name trials by them: `lr=3e-3 · n_keys=64`.
Settings are flat, with the names of a sweep file: `train.lr`, `model.n_keys`.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from orchestrator.records.trial_spec import TrialSpec

SIZES = frozenset(
    f"model.{name}"
    for name in ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_expert")
)
"""Settings that a preset stands for. Without one they are the size, which no label repeats."""

_FIRST = ("train.lr", "train.tokens")
"""Named before settings that follow from them, as the number of steps does."""

_ALWAYS_NAMED = ("train.tokens", "train.batch_tokens")
"""Named also where a rate tells the trials apart: it is chosen for one length and batch."""

MATCH = "match."
"""Prefix of what `match` held equal, and of what it solved for: `match.solve`."""


def flat_settings(spec: TrialSpec) -> dict[str, Any]:
    """Return the settings of a trial by their names in a sweep file."""
    sections = {"model": spec.model, "train": spec.train, "data": spec.data}
    sections |= {"match": spec.match or {}}
    return {
        f"{section}.{key}": value
        for section, fields in sections.items()
        for key, value in fields.items()
        if (section, key) != ("model", "architecture")
    }


def varied_settings(
    trials: Iterable[tuple[str, str | None, Mapping[str, Any]]],
) -> tuple[str, ...]:
    """Return the settings by which trials of one architecture and one size differ.

    Settings of the data count wherever they differ: no two data sets are compared in silence. Of
    settings that change together one is named: the learning rate rather than what is derived from
    it, any other setting rather than a dimension of the model. A rate may be chosen for a model,
    never a model for a rate, so what differs in the model is named beside the rate. So are training
    tokens and batch size. Where `match` solved for a setting, what it held equal counts in its
    place.

    Args:
        trials: Architecture, preset and flat settings of each; a setting that is None or absent
            counts as one value.
    """
    groups: dict[Hashable, dict[Hashable, Mapping[str, Any]]] = {}
    for architecture, preset, settings in trials:
        cells = {k: _cell(v) for k, v in without_solved(settings).items() if v is not None}
        size = preset or tuple((key, cells.get(key)) for key in sorted(SIZES))
        identity = frozenset(cells.items())
        groups.setdefault((architecture, size), {})[identity] = cells
    of_one_size = [list(group.values()) for group in groups.values()]
    every = [cells for group in of_one_size for cells in group]
    own = {
        *_telling_apart(of_one_size, lambda key: not key.startswith("data.")),
        *_telling_apart(of_one_size, lambda key: key.startswith((MATCH, "model."))),
        *(name for name in _ALWAYS_NAMED if any(_values(group, name) > 1 for group in of_one_size)),
    }
    return (*sorted(own), *sorted(_telling_apart([every], lambda key: key.startswith("data."))))


def _values(group: Sequence[Mapping[str, Hashable]], name: str) -> int:
    """Return how many values a setting has among trials; where `match` solved for it, none."""
    return len({cells[name] for cells in group if name in cells})


def _telling_apart(
    groups: Sequence[Sequence[Mapping[str, Hashable]]], counts: Callable[[str], bool]
) -> list[str]:
    """Return settings, each of which tells apart what those before it do not."""
    differing = {
        key
        for group in groups
        for key in set().union(*group)
        if counts(key) and len({cells.get(key) for cells in group}) > 1
    }
    chosen: list[str] = []
    told_apart = len(groups)
    for key in sorted(differing, key=_place):
        keys = [*chosen, key]
        n = sum(len({tuple(map(cells.get, keys)) for cells in group}) for group in groups)
        if n > told_apart:
            chosen, told_apart = keys, n
    return chosen


def _place(key: str) -> tuple[bool, bool, bool, str]:
    return key in SIZES, not key.startswith(MATCH), key not in _FIRST, key


def without_solved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat settings without what `match` solved for, which differs with every size."""
    solve = f"{MATCH}solve"
    solved = settings.get(solve)
    left_out = {solve, "train.tokens" if solved == "tokens" else f"model.{solved}"}
    return {key: value for key, value in settings.items() if key not in left_out}


def setting_label(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return `lr=3e-3 · n_keys=64` of the named settings that a trial has, empty for none.

    A name is shortened to its last part where no other named setting ends alike.
    """
    ends = {name: name.rpartition(".")[2] for name in names}
    alike = Counter(ends.values())
    return " · ".join(
        f"{end if alike[end] == 1 else name}={setting_text(settings[name])}"
        for name, end in ends.items()
        if settings.get(name) is not None
    )


def trial_labels(specs: Iterable[TrialSpec]) -> dict[str, str]:
    """Return trial id to the label of what varies in the sweep; empty labels if nothing does."""
    trials = list(specs)
    # Seeds have their settings in common.
    settings = {spec.configuration_id: (spec, flat_settings(spec)) for spec in trials}
    names = varied_settings(
        (spec.architecture, spec.preset, flat) for spec, flat in settings.values()
    )
    labels = {key: setting_label(flat, names) for key, (_, flat) in settings.items()}
    return {spec.trial_id: labels[spec.configuration_id] for spec in trials}


def setting_text(value: Any) -> str:
    """Return a value as short as it can be written: `3e-3`, `64`, `1e6`, `on`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Integral):
        value = int(value)  # NumPy's integers are no int
    if isinstance(value, int | float) and math.isfinite(value) and value != 0:
        plain = f"{value:.12g}"
        exponent = math.floor(math.log10(abs(value)) + 1e-9)
        power = f"{value / 10.0**exponent:.12g}e{exponent}"
        return power if len(power) <= len(plain) and not 0.1 <= abs(value) < 1e5 else plain
    return str(value)


def _cell(value: Any) -> Hashable:
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict | tuple) else value
