"""The sections of one trial -> config objects: names looked up, presets expanded, defaults filled in.

Each section is remembered by the settings it was made from, so one that thousands of trials share is
checked once.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from orchestrator.records.errors import ExperimentError
from orchestrator.records.trial_spec import Logging, Resources, Retries
from orchestrator.sweep.draft_trial import SECTIONS, DraftTrial, Settings
from orchestrator.sweep.expansion import input_files
from orchestrator.sweep.matching.step_time import Timer
from orchestrator.sweep.parsing import messages, validation
from orchestrator.sweep.parsing.diagnostics import Diagnostic
from orchestrator.sweep.parsing.yaml_node import YamlNode
from workloads.field_error import message_and_fix

Result = TypeVar("Result")

UNSOLVED_TOKENS = 2**62
"""Stands for train.tokens while they are still to be worked out: large enough for every check."""

_SELECTORS = {"model": "architecture", "data": "source"}
_KINDS = {"model": "architecture", "data": "data source"}
_EXAMPLES = {
    "model": "architecture: dense, preset: 1m",
    "data": "source: biographies, n_people: 3_000",
}


class Workloads(Protocol):
    """The part of orchestrator/sweep/registry.py that a sweep file needs; the module itself is one."""

    def architectures(self) -> list[str]:
        """Return the names that there are."""

    def architecture(self, name: str) -> Any:
        """Return the module with `Config` and `PRESETS`."""

    def data_sources(self) -> list[str]:
        """Return the names that there are."""

    def data_source(self, name: str) -> Any:
        """Return the module with `Config`."""

    def train_config(self) -> Any:
        """Return the dataclass of `train:`."""

    def recipes(self) -> Mapping[str, Any]:
        """Return name -> recipe: `fields` of that dataclass by a name in `train.recipe`."""

    def step_timer(self) -> contextlib.AbstractContextManager[Timer]:
        """Return what measures optimizer steps; nothing starts before it is asked."""


class Data(NamedTuple):
    """A resolved `data:` section."""

    record: dict[str, Any]
    sha256: dict[str, str]
    vocab_size: int


class Sections:
    """Builds the sections of the drafts of one file. Collects warnings."""

    def __init__(
        self,
        base: Settings,
        *,
        where: Mapping[str, YamlNode],
        drafts: Iterable[DraftTrial],
        folder: Path,
        workloads: Workloads,
    ) -> None:
        """Take what all drafts share.

        Args:
            base: What is written at the top of the file.
            where: Section -> the mapping that is blamed for missing keys.
            drafts: Every draft, to know which architectures and sources the file uses.
            folder: Where relative paths start.
            workloads: Where names are looked up.
        """
        self.warnings: list[str] = []
        self._base = base
        self._where = where
        self._folder = folder
        self._workloads = workloads
        self._memory: dict[Any, Any] = {}
        self._used: dict[str, dict[str, YamlNode]] = {"model": {}, "data": {}}
        for settings in [base, *(draft.settings for draft in drafts)]:
            for section, selector in _SELECTORS.items():
                name = settings.get(f"{section}.{selector}")
                if name is not None:
                    self._used[section].setdefault(str(name.content), name)

    def data(self, draft: DraftTrial) -> tuple[Data | None, list[Diagnostic]]:
        """Return the data section with absolute paths and the hashes of its files."""
        return self.once(("data", *_key(draft, "data")), lambda: self._data(draft))

    def train(self, draft: DraftTrial) -> tuple[Any, list[Diagnostic]]:
        """Return the TrainConfig; its tokens are UNSOLVED_TOKENS where the draft chooses them."""
        return self.once(
            ("train", *_key(draft, "train"), draft.chooses_tokens), lambda: self._train(draft)
        )

    def resources(self, draft: DraftTrial) -> tuple[Resources | None, list[Diagnostic]]:
        """Return the Resources."""
        values = part(draft.settings, "resources")
        return self.once(
            ("resources", *_key(draft, "resources")),
            lambda: self._build("resources", Resources, values),
        )

    def model(
        self, draft: DraftTrial, *, counterpart: YamlNode | None = None
    ) -> tuple[Any, list[Diagnostic]]:
        """Return the model Config that presets and keys make. Not for a draft that chooses its size.

        Args:
            draft: As written.
            counterpart: Another architecture to use, with those keys and presets that it knows.
        """
        key = ("model", *_key(draft, "model"), counterpart)
        return self.once(key, lambda: self._model(draft, counterpart))

    def nearest_size(
        self, draft: DraftTrial, *, counterpart: YamlNode | None = None
    ) -> tuple[Callable[[int], Any] | None, list[Diagnostic]]:
        """Return parameters -> model Config for a draft that chooses its size; keys as written held fixed."""
        key = ("nearest_size", *_key(draft, "model"), counterpart)
        return self.once(key, lambda: self._sized(draft, counterpart))

    def single_values(self, settings: Settings, *, unknown_keys: bool) -> list[Diagnostic]:
        """Return what is wrong with values one by one, whatever they are combined with.

        For values that no trial uses as they stand: a base that every entry overrides, an entry that
        is broken elsewhere.
        """
        diagnostics = []
        for section in SECTIONS:
            values = part(settings, section)
            cls, wrong = self._config_class(section, values)
            diagnostics += wrong
            if cls is None:
                continue
            for key, value in values.items():
                if key in validation.field_names(cls):
                    _, bad = validation.check_field(cls, key, value)
                    diagnostics += [bad] if bad is not None else []
                elif unknown_keys:
                    diagnostics.append(self._unknown(section, cls, key, value))
        return diagnostics

    def once(self, key: Any, make: Callable[[], Result]) -> Result:
        """Return what `make` returned the first time it was asked for under this key."""
        if key not in self._memory:
            self._memory[key] = make()
        result: Result = self._memory[key]
        return result

    def _data(self, draft: DraftTrial) -> tuple[Data | None, list[Diagnostic]]:
        values = part(draft.settings, "data")
        name, module, diagnostics = self._module("data", values)
        if module is None:
            return None, diagnostics
        values = self._inherited(draft, "data", name, values, module.Config)
        source, diagnostics = self._build("data", module.Config, values)
        if source is None:
            return None, diagnostics
        where = self._where["data"]
        source, sha256, diagnostics = input_files.resolve(
            source, folder=self._folder, written=values, where=where
        )
        if diagnostics:
            return None, diagnostics
        try:
            vocab_size = int(source.vocab_size)
        except (ValueError, OSError) as error:
            message, fix = message_and_fix(error)
            return None, [where.diagnostic_at_key(message, fix, kind="combination")]
        return Data({"source": name.content, **plain(source)}, sha256, vocab_size), []

    def _train(self, draft: DraftTrial) -> tuple[Any, list[Diagnostic]]:
        values = part(draft.settings, "train")
        recipe = _chosen(values.pop("recipe", None))
        bad = None if recipe is None else self._check_recipe(recipe)
        if bad is not None:
            others = {f"train.{key}": value for key, value in values.items()}
            return None, [bad, *self.single_values(others, unknown_keys=True)]
        defaults = {}
        if recipe is not None:
            defaults = dict(self._workloads.recipes()[recipe.content].fields)
        if draft.chooses_tokens:
            values.pop("tokens", None)
            defaults["tokens"] = UNSOLVED_TOKENS
        return self._build(
            "train",
            self._workloads.train_config(),
            values,
            defaults=defaults,
            defaults_from=recipe,
        )

    def _check_recipe(self, recipe: YamlNode) -> Diagnostic | None:
        """Return what is wrong with `train.recipe`: a guess at what was meant, and all there are."""
        _, bad = validation.check_text(recipe)
        names = list(self._workloads.recipes())
        if bad is not None or recipe.content in names:
            return bad
        guess = messages.nearest(str(recipe.content), names)
        meant = f"did you mean {guess!r}? " if guess else ""
        return recipe.diagnostic(
            f"no recipe is called {recipe.shown}", f"{meant}there are {', '.join(names)}"
        )

    def _model(
        self, draft: DraftTrial, counterpart: YamlNode | None
    ) -> tuple[Any, list[Diagnostic]]:
        name, module, values, diagnostics = self._model_values(draft, counterpart)
        if module is None:
            return None, diagnostics
        preset = values.pop("preset", None)
        bad = None if preset is None else _check_preset(name, module, preset)
        if preset is not None and bad is None:
            return self._build(
                "model",
                module.Config,
                values,
                where=counterpart,
                defaults=module.PRESETS[preset.content],
                defaults_from=preset,
            )
        if bad is not None and counterpart is None:
            others = _only(draft.settings, "model")
            return None, [bad, *self.single_values(others, unknown_keys=True)]
        instead = f"a preset ({', '.join(module.PRESETS)})" if module.PRESETS else ""
        model, diagnostics = self._build(
            "model", module.Config, values, where=counterpart, instead_of_missing=instead
        )
        # A counterpart without that preset will do if the keys alone make it.
        return model, [bad] if diagnostics and bad is not None else diagnostics

    def _sized(
        self, draft: DraftTrial, counterpart: YamlNode | None
    ) -> tuple[Callable[[int], Any] | None, list[Diagnostic]]:
        _, module, values, diagnostics = self._model_values(draft, counterpart)
        if module is None:
            return None, diagnostics
        preset = values.pop("preset", None)
        if preset is not None and counterpart is None:
            chooser = draft.origin.split(" ")[0]
            self._warn(preset, f"is not used by {chooser}, which chooses the sizes itself")
        cls = module.Config
        typed = {}
        for key, value in values.items():
            if key in validation.field_names(cls):
                typed[key], bad = validation.check_field(cls, key, value)
                diagnostics += [bad] if bad is not None else []
            else:
                diagnostics.append(self._unknown("model", cls, key, value))
        if diagnostics:
            return None, diagnostics
        return lambda size: cls.nearest_size(size, **typed), []

    def _model_values(
        self, draft: DraftTrial, counterpart: YamlNode | None
    ) -> tuple[YamlNode, Any, dict[str, YamlNode], list[Diagnostic]]:
        values = part(draft.settings, "model")
        if counterpart is not None:
            values["architecture"] = counterpart
        name, module, diagnostics = self._module("model", values)
        if module is None:
            return name, None, {}, diagnostics
        preset = _chosen(values.pop("preset", None))
        if counterpart is None:
            values = self._inherited(draft, "model", name, values, module.Config)
        else:
            known = validation.field_names(module.Config)
            values = {key: value for key, value in values.items() if key in known}
        return name, module, values | ({} if preset is None else {"preset": preset}), []

    def _config_class(
        self, section: str, values: dict[str, YamlNode]
    ) -> tuple[Any, list[Diagnostic]]:
        """Return the class behind a section, and what is wrong with the names in `values` that select it."""
        if section == "train":
            recipe = _chosen(values.pop("recipe", None))
            bad = None if recipe is None else self._check_recipe(recipe)
            return self._workloads.train_config(), [] if bad is None else [bad]
        if section == "resources":
            return Resources, []
        selector = _SELECTORS[section]
        if selector not in values and f"{section}.{selector}" in self._base:
            values[selector] = self._base[f"{section}.{selector}"]
        if selector not in values:
            return None, []
        name, module, diagnostics = self._module(section, values)
        preset = _chosen(values.pop("preset", None)) if section == "model" else None
        if module is None:
            return None, diagnostics
        bad = _check_preset(name, module, preset) if preset is not None else None
        return module.Config, ([] if bad is None else [bad])

    def _module(
        self, section: str, values: dict[str, YamlNode]
    ) -> tuple[YamlNode, Any, list[Diagnostic]]:
        """Take the name out of the values and return it with its module, or say which names there are."""
        names = (
            self._workloads.architectures()
            if section == "model"
            else self._workloads.data_sources()
        )
        where = self._where[section]
        name = values.pop(_SELECTORS[section], None)
        if name is None:
            return where, None, [_missing_name(where, values, section, names)]
        if not isinstance(name.content, str):
            _, bad = validation.check_text(name)
            return name, None, [] if bad is None else [bad]
        if name.content not in names:
            fix = messages.suggestion(name.content, names)
            return (
                name,
                None,
                [name.diagnostic(f"no {_KINDS[section]} is called {name.shown}", fix)],
            )
        return name, self._load(section, name.content), []

    def _load(self, section: str, name: str) -> Any:
        load = self._workloads.architecture if section == "model" else self._workloads.data_source
        try:
            return load(name)
        except ModuleNotFoundError as error:
            raise ExperimentError(
                f"{_KINDS[section]} {name}: the Python package {error.name!r} is not installed; "
                "pip install 'memscale[torch]'"
            ) from error

    def _build(
        self,
        section: str,
        cls: Any,
        values: Settings,
        *,
        where: YamlNode | None = None,
        **options: Any,
    ) -> tuple[Any, list[Diagnostic]]:
        """Return `config.build` of a section, with advice about keys that belong elsewhere."""
        unknown = any(key not in validation.field_names(cls) for key in values)
        return validation.build(
            cls,
            values,
            where=where or self._where[section],
            elsewhere=self._elsewhere(section) if unknown else {},
            also_known=_names_beside_fields(section),
            **options,
        )

    def _unknown(self, section: str, cls: Any, key: str, value: YamlNode) -> Diagnostic:
        known = [*validation.field_names(cls), *_names_beside_fields(section)]
        return validation.unknown_key(key, value, known, self._elsewhere(section))

    def _inherited(
        self, draft: DraftTrial, section: str, name: YamlNode, values: Settings, cls: Any
    ) -> dict[str, YamlNode]:
        """Return the values without base keys that only another architecture or source of this file knows."""
        selector = _SELECTORS[section]
        base_name = self._base.get(f"{section}.{selector}")
        if base_name is not None and base_name.content == name.content:
            return dict(values)
        kept = {}
        for key, value in values.items():
            inherited = f"{section}.{key}" not in draft.own
            if key not in validation.field_names(cls) and inherited and self.used_by(section, key):
                what = f"is left out where the {selector} is {name.content}, which has no such key"
                self._warn(value, what)
            else:
                kept[key] = value
        return kept

    def used_by(self, section: str, key: str) -> bool:
        """Whether some architecture or source that the file uses has the key."""
        for name in self._used[section].values():
            _, module, _ = self._module(section, {_SELECTORS[section]: name})
            if module is not None and key in validation.field_names(module.Config):
                return True
        return False

    def _elsewhere(self, section: str) -> dict[str, str]:
        """Return advice about keys of other architectures or sources, and of other sections."""
        return self.once(("elsewhere", section), lambda: elsewhere(section, self._workloads))

    def _warn(self, value: YamlNode, what: str) -> None:
        warning = f"{value.key_line}:{value.key_column}: {value.path} {what}"
        if warning not in self.warnings:
            self.warnings.append(warning)


def elsewhere(section: str | None, workloads: Workloads) -> dict[str, str]:
    """Return key -> advice for the keys of every other section, and of other names in this one.

    Args:
        section: The section that was written to; None at the top of the file.
        workloads: Where the sections' classes are looked up.
    """
    advice: dict[str, str] = {}
    for other, classes in section_classes(workloads).items():
        for name, cls in classes.items():
            for key in validation.field_names(cls):
                if other == section:
                    has = f"{_SELECTORS.get(other, other)} {name} has it, this one does not"
                    advice.setdefault(key, f"remove it: {has}") if name else None
                else:
                    advice.setdefault(key, f"write it under {other}:")
    return advice


def section_classes(workloads: Workloads) -> dict[str, dict[str, Any]]:
    """Return section -> name of architecture or source (or empty) -> its dataclass.

    What is not installed is left out: this serves advice, and advice must not fail.
    """
    return {
        "train": {"": workloads.train_config()},
        "model": _installed(workloads.architectures(), workloads.architecture),
        "data": _installed(workloads.data_sources(), workloads.data_source),
        "resources": {"": Resources},
        "logging": {"": Logging},
        "retries": {"": Retries},
    }


def _installed(names: Iterable[str], load: Callable[[str], Any]) -> dict[str, Any]:
    classes = {}
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            classes[name] = load(name).Config
    return classes


def part(settings: Settings, section: str) -> dict[str, YamlNode]:
    """Return the settings of a section, without its name."""
    prefix = f"{section}."
    return {
        key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)
    }


def plain(record: Any) -> dict[str, Any]:
    """Return a config's fields as JSON has them: tuples become lists, paths text."""
    return {field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _only(settings: Settings, section: str) -> dict[str, YamlNode]:
    return {key: value for key, value in settings.items() if key.startswith(f"{section}.")}


def _key(draft: DraftTrial, section: str) -> tuple[Any, ...]:
    settings = _only(draft.settings, section)
    return tuple(sorted(settings.items(), key=lambda item: item[0])), frozenset(
        settings.keys() & draft.own
    )


def _names_beside_fields(section: str) -> tuple[str, ...]:
    beside = {"model": ("architecture", "preset"), "data": ("source",), "train": ("recipe",)}
    return beside.get(section, ())


def _chosen(preset: YamlNode | None) -> YamlNode | None:
    """Return the preset or recipe, or None for `preset: null`: an entry that wants none of the base's."""
    return None if preset is None or preset.content is None else preset


def _check_preset(name: YamlNode, module: Any, preset: YamlNode) -> Diagnostic | None:
    _, bad = validation.check_text(preset)
    if bad is not None or preset.content in module.PRESETS:
        return bad
    fix = f"its presets are {', '.join(module.PRESETS)}"
    return preset.diagnostic(f"{name.content} has no preset {preset.shown}", fix)


def _missing_name(where: YamlNode, values: Settings, section: str, names: list[str]) -> Diagnostic:
    selector = _SELECTORS[section]
    for key, value in values.items():
        if messages.nearest(key, [selector]):
            return value.diagnostic_at_key(f"unknown key {key!r}", f"did you mean {selector!r}?")
    fix = f"add for example {section}: {{{_EXAMPLES[section]}}}; there are {', '.join(names)}"
    return where.diagnostic_at_key(f"missing {selector}", fix, kind="missing")
