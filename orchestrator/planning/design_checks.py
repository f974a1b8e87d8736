"""Design checks: questions that a sweep's trials cannot answer.

They are reported before compute is spent.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.records.trial_spec import TrialSpec, canonical_json
from orchestrator.records.varied_settings import SIZES
from orchestrator.sweep.registry import FAST_VALUES

COEFFICIENTS = 3
"""Of a power law with a floor. A curve that needs none has two."""
SPARE_SIZES = 4
"""Beyond the coefficients: with fewer a fit has no verdict (`analysis/fitting/lack_of_fit.py`)."""
TUNED = "train.lr"
MOST_NAMED = 3
LARGEST_LR = 1.0
"""Above it, one step of AdamW moves every weight further than any weight is large."""
VALUE_SETTINGS = (
    "value_lr_ratio",
    "value_lr_final_ratio",
    "value_lr_decay_fraction",
    "value_weight_decay",
    "table_optimizer",
    "table_clip",
    "table_precision",
    "clip_values",
)
"""Of `train:`, what acts on memory values alone."""
EQUAL = 0.05
"""Relative difference of equal budgets: tokens are rounded up to whole steps."""


def notes(
    specs: Sequence[TrialSpec],
    *,
    tokens_matched: Collection[str] = (),
    counterparts: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return one sentence per weakness of the design; none for a sweep that can be fitted.

    Args:
        specs: All trials that the fits will see, priced.
        tokens_matched: Ids of those whose tokens `match` chose.
        counterparts: Trial id -> architecture that `match` compares it with.
    """
    budgeted = [spec for spec in specs if spec.trial_id not in tokens_matched]
    return (
        *_few_sizes(specs),
        *_unequal_tuning(specs),
        *_unequal_tokens(budgeted),
        *_same_steps(specs),
        *_idle_settings(specs),
        *_one_seed(specs),
        *_slow_values(specs),
        *_lost_keys(specs),
        *_large_rates(specs),
        *_absent_counterparts(specs, counterparts or {}),
    )


def _few_sizes(specs: Sequence[TrialSpec]) -> list[str]:
    """Name architectures of too few sizes to tell whether a curve fits them."""
    counts = {
        name: len({spec.accounting.get("total_params") for spec in members})
        for name, members in _by_architecture(specs).items()
    }
    if max(counts.values(), default=0) < 2:
        return []  # no curve against size is meant
    few = {name: n for name, n in counts.items() if n < COEFFICIENTS - 1 + SPARE_SIZES}
    return [
        f"{_named([name for name, count in few.items() if count == n])}: {n} "
        f"size{'s' * (n > 1)}, too few to tell whether a curve fits; that takes "
        f"{COEFFICIENTS + SPARE_SIZES}, or {COEFFICIENTS - 1 + SPARE_SIZES} for one without a floor"
        for n in sorted(set(few.values()))
    ]


def _unequal_tuning(specs: Sequence[TrialSpec]) -> list[str]:
    """Say if one architecture tries more learning rates at a size than another."""
    rates: dict[str, int] = {}
    for name, members in _by_architecture(specs).items():
        of_size: defaultdict[Hashable, set[Any]] = defaultdict(set)
        for spec in members:
            of_size[_size(spec)].add(spec.train.get("lr"))
        rates[name] = max(map(len, of_size.values()))
    most, least = max(rates.values(), default=0), min(rates.values(), default=0)
    if most == least:
        return []
    few = _named([name for name, n in rates.items() if n == least])
    many = _named([name for name, n in rates.items() if n == most])
    return [
        f"{TUNED} has {most} values at a size for {many} and {least} for {few}: "
        "the one that was tuned more is favoured; vary it for both"
    ]


def _unequal_tokens(specs: Sequence[TrialSpec]) -> list[str]:
    """Say if architectures train on different tokens.

    Equal FLOPs (isoFLOP profiles) and equal tokens a parameter (ladders) are as fair.
    """
    if any(
        _all_equal([{of(spec) for spec in members} for members in _by_architecture(specs).values()])
        for of in _BUDGETS
    ):
        return []
    arms = {name: {*map(_tokens, members)} for name, members in _by_architecture(specs).items()}
    by_most = sorted(arms, key=lambda name: (max(arms[name]), len(arms[name])))
    few, many = (
        f"{_named([f'{n:,.0f}' for n in sorted(arms[of])])} for "
        f"{_named([name for name in arms if arms[name] == arms[of]])}"
        for of in (by_most[0], by_most[-1])
    )
    return [
        f"train.tokens is {few} and {many}: the one that trains longer is favoured; "
        "write the same for both, or match training_flops"
    ]


def _tokens(spec: TrialSpec) -> float:
    return float(spec.train.get("stop_at_tokens") or spec.train.get("tokens") or 0)


_BUDGETS: tuple[Callable[[TrialSpec], float], ...] = (
    _tokens,
    lambda spec: spec.accounting.get("training_flops", math.nan),
    lambda spec: _tokens(spec) / spec.accounting.get("non_embedding_params", math.nan),
)
"""What a fair comparison holds equal."""


def _all_equal(arms: Sequence[Collection[float]]) -> bool:
    """Return whether all arms have the same values, within `EQUAL`."""
    return all(
        any(math.isclose(one, other, rel_tol=EQUAL) for other in arm)
        for values in arms
        for one in values
        for arm in arms
    )


def _same_steps(specs: Sequence[TrialSpec]) -> list[str]:
    """Say if trials differ in their tokens and not in the steps, which are whole batches."""
    twice: dict[str, None] = {}
    for steps, batch, lengths in _lengths(specs):
        tokens = [
            f"{of_schedule:,}" + (f" (stop_at_tokens {stop:,})" if stop else "")
            for of_schedule, stop in sorted(lengths, key=lambda pair: (pair[0], pair[1] or 0))
        ]
        twice[
            f"train.tokens {_named(tokens)} are the same {steps:,} steps of {batch:,} tokens: "
            "trials that differ in nothing else train twice; keep one of these"
        ] = None
    return list(twice)


def _lengths(specs: Sequence[TrialSpec]) -> Iterator[tuple[int, int, set[tuple[int, int | None]]]]:
    """Yield steps, tokens of a batch, and several `tokens` and `stop_at_tokens` that mean these.

    Once for each group of trials that are equal in all else but the seed.
    """
    alike: defaultdict[tuple[int, int, int], dict[str, TrialSpec]] = defaultdict(dict)
    for spec in specs:
        if spec.train.keys() >= {"tokens", "batch_tokens"}:
            tokens, batch = int(spec.train["tokens"]), int(spec.train["batch_tokens"])
            alike[-(-tokens // batch), spec.steps, batch][spec.configuration_id] = spec
    for (_, steps, batch), members in alike.items():
        if len({_length(spec) for spec in members.values()}) == 1:
            continue  # the usual case, told without the identities
        groups: defaultdict[str, set[tuple[int, int | None]]] = defaultdict(set)
        for spec in members.values():
            train = {k: v for k, v in spec.train.items() if k not in ("tokens", "stop_at_tokens")}
            rest = canonical_json({**spec.identity(), "train": train, "seed": 0})
            groups[rest].add(_length(spec))
        yield from ((steps, batch, lengths) for lengths in groups.values() if len(lengths) > 1)


def _length(spec: TrialSpec) -> tuple[int, int | None]:
    return spec.train["tokens"], spec.train.get("stop_at_tokens")


def _idle_settings(specs: Sequence[TrialSpec]) -> list[str]:
    """Say if trials differ only in settings that their model or schedule ignores."""
    alike: defaultdict[str, dict[str, TrialSpec]] = defaultdict(dict)
    for members in _by_architecture(specs).values():
        if len({canonical_json(_ignored(spec)) for spec in members}) == 1:
            continue  # the usual case, told without the identities
        for spec in members:
            ignored = _ignored(spec)
            train = {key: value for key, value in spec.train.items() if key not in ignored}
            rest = canonical_json({**spec.identity(), "train": train, "seed": 0})
            alike[rest][spec.configuration_id] = spec
    several: defaultdict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for group in alike.values():
        values = [_ignored(spec) for spec in group.values()]
        settings = tuple(
            f"train.{key}" for key in values[0] if any(of[key] != values[0][key] for of in values)
        )
        if settings:
            several[settings][next(iter(group.values())).architecture] = None
    return [
        f"{_named(list(names))} ignore{'s' * (len(names) == 1)} {_named(settings)}, of which there "
        "are several values: the same training runs once for each; keep one"
        for settings, names in several.items()
    ]


def _ignored(spec: TrialSpec) -> dict[str, Any]:
    """Return the settings of `train:` that change nothing in this trial."""
    found = list(VALUE_SETTINGS) if spec.accounting.get("params_memory_values") == 0 else []
    if spec.train.get("schedule", "wsd") != "wsd":
        found.append("decay_fraction")
    return {key: spec.train.get(key) for key in found}


def _one_seed(specs: Sequence[TrialSpec]) -> list[str]:
    """Say if no configuration is trained twice."""
    seeds: defaultdict[str, set[int]] = defaultdict(set)
    for spec in specs:
        seeds[spec.configuration_id].add(spec.seed)
    if not seeds or max(map(len, seeds.values())) > 1:
        return []
    return ["one seed: a difference cannot be told from chance; write seeds: [0, 1, 2]"]


def _slow_values(specs: Sequence[TrialSpec]) -> list[str]:
    """Say if memory values learn at the rate of the rest, and nobody seems to have meant it."""
    slow = [
        name
        for name, members in _by_architecture(specs).items()
        if name in FAST_VALUES
        and all(spec.train.get("value_lr_ratio") == 1 and not spec.recipe for spec in members)
    ]
    if not slow:
        return []
    return [
        f"{_named(sorted(slow))}: train.value_lr_ratio is 1, their papers have 3.3 to 10; "
        "write value_lr_ratio: 4.0, or a recipe"
    ]


def _lost_keys(specs: Sequence[TrialSpec]) -> list[str]:
    """Say if the features that Performer's `key_stabiliser` saves are lost beside eps again."""
    if not any(
        spec.model.get("key_stabiliser") and spec.model.get("feature_eps") for spec in specs
    ):
        return []
    return [
        "performer: key_stabiliser: running_max with model.feature_eps above 0 can be further from "
        "the exact kernel than no key_stabiliser; write feature_eps: 0"
    ]


def _large_rates(specs: Sequence[TrialSpec]) -> list[str]:
    """Say if a learning rate is one with which nothing trains."""
    rates = sorted({float(spec.train.get("lr") or 0) for spec in specs})
    large = [f"{rate:g}" for rate in rates if rate > LARGEST_LR]
    if not large:
        return []
    return [f"{TUNED} is {_named(large)}: above 1 training diverges; write for example 1.0e-2"]


def _absent_counterparts(specs: Sequence[TrialSpec], counterparts: Mapping[str, str]) -> list[str]:
    """Name architectures that `match` compares with and that the sweep does not train."""
    matched: defaultdict[str, dict[str, None]] = defaultdict(dict)
    there = {spec.architecture for spec in specs}
    for spec in specs:
        counterpart = counterparts.get(spec.trial_id)
        if counterpart is not None and counterpart not in there:
            matched[counterpart][spec.architecture] = None
    return [
        f"match makes {_named(list(names))} equal to {counterpart}, of which the sweep has no "
        f"trial to compare with; add trials of {counterpart}, or compare with another sweep's"
        for counterpart, names in matched.items()
    ]


def _size(spec: TrialSpec) -> Hashable:
    """Return what a size is called: its preset, else the dimensions of the model."""
    dimensions = {key: spec.model.get(key.removeprefix("model.")) for key in SIZES}
    return spec.preset or canonical_json(dimensions)


def _by_architecture(specs: Iterable[TrialSpec]) -> Mapping[str, list[TrialSpec]]:
    groups: defaultdict[str, list[TrialSpec]] = defaultdict(list)
    for spec in specs:
        groups[spec.architecture].append(spec)
    return groups


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    if more > 1:
        return f"{', '.join(names[:MOST_NAMED])} and {more} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
