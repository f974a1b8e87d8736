"""Draft trials: dotted keys as written, before any name is looked up."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.sweep.parsing.yaml_node import YamlNode

SECTIONS = ("data", "train", "model", "resources")
"""What may differ between the trials of a sweep."""

SELECTORS = {"model": "architecture", "data": "source"}
"""Section -> its key that says which other keys and presets the section has."""

FREE_DIMENSION = "knob"
"""Value of `solve` for the field that the architecture's Config names (`FREE_DIMENSION` there).
Older sweep files may spell it out, so the word stays as it was."""

Settings = Mapping[str, YamlNode]
"""Dotted key -> value: `model.n_keys`."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One model of an isoFLOP profile."""

    budget: YamlNode
    budget_flops: float
    index: int
    """Which of the sizes, from 0."""
    sizes: int
    span: float
    tokens_per_param: float


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One model of a ladder."""

    size: YamlNode
    non_embedding_params: int | None
    """None: `size` is the name of a preset."""
    tokens_per_param: float


@dataclass(frozen=True, kw_only=True)
class Match:
    """In what the trials of an entry are made equal, to what, and by changing what."""

    where: YamlNode
    quantity: str
    """A key of `quantities.QUANTITIES`."""
    target: YamlNode
    architecture: str | None
    """The counterpart's architecture, or None for a number."""
    target_number: float | None
    solve: str
    """tokens, a field of the model's Config, or FREE_DIMENSION."""
    model: Settings | None = field(default=None, hash=False)
    """The counterpart's model section, where that is written; None is the trial's own, with that
    architecture."""
    solve_where: YamlNode | None = None
    """Where that is written; None where it is the default."""

    @property
    def counterpart(self) -> str | None:
        """The counterpart for people and records: `dense`, `dense 3m; d_ff 512`, or None."""
        if self.model is None:
            return self.architecture
        values = {key.removeprefix("model."): value.plain for key, value in self.model.items()}
        words = [str(values.pop(key)) for key in ("architecture", "preset") if key in values]
        return "; ".join([" ".join(words), *(f"{key} {values[key]}" for key in sorted(values))])


@dataclass(frozen=True, kw_only=True)
class DraftTrial:
    """One trial as written."""

    settings: Settings
    """The base, overlaid with what the entry says."""
    own: frozenset[str]
    """The keys that the entry says itself."""
    where: YamlNode
    """The entry, or the document for the base itself."""
    origin: str
    """Without the seed: `trials[1].grid model.preset=3m`."""
    size: Profile | Rung | None = None
    match: Match | None = None

    @property
    def architecture(self) -> str:
        """The name under model.architecture; only for drafts whose model could be built."""
        return str(self.settings["model.architecture"].content)

    @property
    def chooses_size(self) -> bool:
        """Whether the model comes from `Config.nearest_size` rather than from a preset."""
        if isinstance(self.size, Rung):
            return self.size.non_embedding_params is not None
        return self.size is not None

    @property
    def chooses_tokens(self) -> bool:
        """Whether train.tokens is worked out rather than written."""
        return self.size is not None or (self.match is not None and self.match.solve == "tokens")


@dataclass(frozen=True, kw_only=True)
class AxisPoint:
    """One point of one axis."""

    settings: Settings
    phrase: str
    size: Profile | Rung | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of `trials:`, taken apart. Its axes multiply, the last one fastest."""

    where: YamlNode
    label: str
    fixed: Settings = field(default_factory=dict)
    axes: Sequence[Sequence[AxisPoint]] = ()
    match: Match | None = None

    @property
    def count(self) -> int:
        """How many drafts there are, without making them."""
        return math.prod(len(axis) for axis in self.axes)

    def drafts(self, base: Settings) -> list[DraftTrial]:
        """Return one draft per point of the axes' product."""
        return [self._draft(base, choices) for choices in itertools.product(*self.axes)]

    def written(self) -> list[Settings]:
        """Return every group of settings that the entry writes together.

        One value of one axis at a time, with every architecture and source that it meets.
        """
        names = [f"{section}.{key}" for section, key in SELECTORS.items()]
        selecting: list[Sequence[AxisPoint]] = []
        others: list[AxisPoint] = []
        for axis in self.axes:
            if any(name in choice.settings for choice in axis for name in names):
                selecting.append(axis)
            else:
                others += axis
        groups: list[Settings] = []
        of_names: dict[tuple[str, ...], Settings] = {}
        for choices in itertools.product(*selecting):
            selected = dict(self.fixed)
            for choice in choices:
                selected.update(choice.settings)
            groups.append(selected)
            found = (selected.get(name) for name in names)
            of_names.setdefault(tuple(str(name and name.content) for name in found), selected)
        groups += [{**one, **other.settings} for one in of_names.values() for other in others]
        return groups

    def _draft(self, base: Settings, choices: Sequence[AxisPoint]) -> DraftTrial:
        own = dict(self.fixed)
        for choice in choices:
            own.update(choice.settings)
        phrases = _grouped([choice.phrase for choice in choices])
        return DraftTrial(
            settings={**base, **own},
            own=frozenset(own),
            where=self.where,
            origin=f"{self.label}.{', '.join(phrases)}" if phrases else self.label,
            size=next((choice.size for choice in choices if choice.size), None),
            match=self.match,
        )


def _grouped(phrases: Sequence[str]) -> list[str]:
    """Join `grid a=1`, `grid b=2` into `grid a=1 b=2`."""
    grouped: list[str] = []
    for phrase in phrases:
        if grouped and phrase.startswith("grid ") and grouped[-1].startswith("grid "):
            grouped[-1] += phrase.removeprefix("grid")
        else:
            grouped.append(phrase)
    return grouped
