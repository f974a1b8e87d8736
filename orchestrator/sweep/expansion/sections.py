"""Config objects of a trial's sections, with presets and defaults filled in.

Each section is remembered by the settings it was made from, so one that thousands of trials share
is checked once.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from orchestrator.records.errors import ExperimentError
from orchestrator.records.trial_spec import Logging, Resources, Retries
from orchestrator.sweep.architecture_errors import place_and_error
from orchestrator.sweep.draft_trial import SECTIONS, SELECTORS, DraftTrial, Settings
from orchestrator.sweep.expansion import input_files
from orchestrator.sweep.expansion.hub_commits import HubCommits
from orchestrator.sweep.expansion.recorded_inputs import RecordedInput
from orchestrator.sweep.matching.step_time import Timer
from orchestrator.sweep.parsing import messages, validation
from orchestrator.sweep.parsing.diagnostics import Diagnostic, InvalidError, collecting
from orchestrator.sweep.parsing.yaml_node import YamlNode
from workloads.field_error import message_and_fix

Result = TypeVar("Result")

TORCH_EXTRA = frozenset({"torch", "einops", "jaxtyping", "tokenizers", "safetensors", "triton"})
"""Packages that `pip install 'memscale[torch]'` brings."""

UNSOLVED_TOKENS = 2**62
"""Stands for train.tokens while they are still to be worked out: large enough for every check."""

_DEFAULTS = ("preset", "recipe", "from_pretrained")
"""Keys that give other fields of their section values."""
_KINDS = {"model": "architecture", "data": "data source"}
_EXAMPLES = {
    "model": "architecture: dense, preset: 1m",
    "data": "source: biographies, n_people: 3_000",
}


class Workloads(Protocol):
    """The functions of `registry` that a sweep file needs; tests pass stand-ins."""

    def architectures(self) -> list[str]:
        """Return the names that there are."""

    def architecture(self, name: str) -> Any:
        """Return the module with `Config` and `PRESETS`."""

    def data_sources(self) -> list[str]:
        """Return the names that there are."""

    def data_source(self, name: str) -> Any:
        """Return the module with `Config`."""

    def hub(self) -> Any:
        """Return the module that knows data sets of the Hugging Face hub."""

    def pretrained(self, folder: Path) -> Any:
        """Return what a folder with a trained model holds; ValueError if it holds none."""

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


class PretrainedStart(NamedTuple):
    """A folder with a trained model that a trial starts from."""

    where: YamlNode
    path: Path
    sha256: str
    fields: Mapping[str, Any]
    """Of the Config of the architecture that it holds."""
    vocab_size: int

    @property
    def identity(self) -> dict[str, Any]:
        """The fields of a TrialSpec that name it."""
        return {"from_pretrained": str(self.path), "from_pretrained_sha256": self.sha256}


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
        recorded: Mapping[str, RecordedInput],
        hub_commits: HubCommits,
    ) -> None:
        """Remember what all drafts share.

        Args:
            base: What is written at the top of the file.
            where: Section -> the mapping that is blamed for missing keys.
            drafts: Every draft, to know which architectures and sources the file uses.
            folder: Where relative paths start.
            workloads: Where names are looked up.
            recorded: Inputs of a recorded file (`recorded_inputs.read`).
            hub_commits: What pins data sets of the hub.
        """
        self.warnings: list[str] = []
        self.inputs: dict[str, RecordedInput] = {}
        """Input files that the drafts use, by path as written."""
        self._recorded = recorded
        self._hub_commits = hub_commits
        self._base = base
        self._where = where
        self._folder = folder
        self._workloads = workloads
        self._memory: dict[Any, Any] = {}
        self._used: dict[str, dict[str, YamlNode]] = {"model": {}, "data": {}}
        for settings in [base, *(draft.settings for draft in drafts)]:
            for section, selector in SELECTORS.items():
                name = settings.get(f"{section}.{selector}")
                if name is not None:
                    self._used[section].setdefault(str(name.content), name)

    def data(self, draft: DraftTrial) -> Data:
        """Return the data section with absolute paths and the hashes of its files."""
        return self.once(("data", *_key(draft, "data")), lambda: self._data(draft))

    def train(self, draft: DraftTrial) -> Any:
        """Return the TrainConfig; its tokens are UNSOLVED_TOKENS where the draft chooses them."""
        key = ("train", *_key(draft, "train"), draft.chooses_tokens)
        return self.once(key, lambda: self._train(draft))

    def resources(self, draft: DraftTrial) -> Resources:
        """Return the Resources."""
        values = part(draft.settings, "resources")
        key = ("resources", *_key(draft, "resources"))
        return cast(Resources, self.once(key, lambda: self._build("resources", Resources, values)))

    def model(self, draft: DraftTrial, *, counterpart: YamlNode | None = None) -> Any:
        """Return the model Config of presets and keys. Not for a draft that chooses its size.

        Args:
            draft: As written.
            counterpart: Another architecture to use, with those keys and presets that it knows.
        """
        key = ("model", *_key(draft, "model"), counterpart)
        return self.once(key, lambda: self._model(draft, counterpart))

    def start(self, draft: DraftTrial) -> PretrainedStart | None:
        """Return what `model.from_pretrained` names."""
        written = _chosen(draft.settings.get("model.from_pretrained"))
        if written is None:
            return None
        return self.once(("start", written), lambda: self._start(written))

    def nearest_size(
        self, draft: DraftTrial, *, counterpart: YamlNode | None = None
    ) -> Callable[[int], Any]:
        """Return parameters -> model Config, with the keys as written held fixed."""
        key = ("nearest_size", *_key(draft, "model"), counterpart)
        return self.once(key, lambda: self._nearest_size(draft, counterpart))

    def single_values(
        self, settings: Settings, *, complete: bool = True, unnamed: Set[str] = frozenset()
    ) -> list[Diagnostic]:
        """Return what is wrong with values one by one, whatever they are combined with.

        For values that no trial uses as they stand: a base that every entry overrides, an entry
        that is broken elsewhere.

        Args:
            settings: The values.
            complete: Whether they name the architecture and the source that they are for. If not,
                keys that another one has are no mistakes.
            unnamed: Sections for which they do not, and the base's may be the wrong one.
        """
        wrong: list[Diagnostic] = []
        for section in SECTIONS:
            values = part(settings, section)
            cls = self._config_class(section, values, wrong, unnamed=unnamed)
            if cls is not None:
                self._typed(section, cls, values, wrong, complete=complete)
        return wrong

    def broken_rules(
        self,
        settings: Settings,
        *,
        changed: Set[str] | None = None,
        unnamed: Set[str] = frozenset(),
    ) -> list[Diagnostic]:
        """Return the rules that values written together break in every trial that has them.

        For values of which no trial can be made.

        Args:
            settings: The values.
            changed: Keys that a trial may set to something else, if that is known of all.
            unnamed: As of `single_values`.
        """
        wrong: list[Diagnostic] = []
        for section in SECTIONS:
            values = part({k: v for k, v in settings.items() if k not in (changed or ())}, section)
            unknown = None
            if changed is not None and values.keys().isdisjoint(_DEFAULTS):
                unknown = {key.removeprefix(f"{section}.") for key in changed}
            # `single_values` checks the names.
            cls = self._config_class(section, values, [], unnamed=unnamed)
            if cls is not None:
                wrong += validation.broken_rules(cls, values, unknown=unknown)
        return wrong

    def once(self, key: Any, make: Callable[[], Result]) -> Result:
        """Return what `make` returned, or raise what it raised, the first time for this key."""
        if key not in self._memory:
            try:
                self._memory[key] = make()
            except InvalidError as error:
                self._memory[key] = error
        result = self._memory[key]
        if isinstance(result, InvalidError):
            # A new one: an exception that is raised again and again collects all its tracebacks.
            raise InvalidError(*result.diagnostics)
        return cast(Result, result)

    def _data(self, draft: DraftTrial) -> Data:
        values = part(draft.settings, "data")
        name, module = self._module("data", values)
        values = self._inherited(draft, "data", name, values, module.Config)
        where = self._where["data"]
        source, sha256, inputs = input_files.resolve(
            self._build("data", module.Config, values),
            folder=self._folder,
            written=values,
            where=where,
            recorded=self._recorded,
            hub_commits=self._hub_commits,
        )
        self.inputs |= inputs
        try:
            vocab_size = int(source.vocab_size)
        except (ValueError, OSError) as error:
            message, fix = message_and_fix(error)
            raise InvalidError(where.diagnostic_at_key(message, fix, kind="combination")) from error
        return Data({"source": name.content, **plain(source)}, sha256, vocab_size)

    def _train(self, draft: DraftTrial) -> Any:
        values = part(draft.settings, "train")
        recipe = _chosen(values.pop("recipe", None))
        defaults = {}
        if recipe is not None:
            try:
                self._check_recipe(recipe)
            except InvalidError as error:
                others = {f"train.{key}": value for key, value in values.items()}
                wrong = self.single_values(others)
                raise InvalidError(*error.diagnostics, *wrong) from error
            defaults = dict(self._workloads.recipes()[recipe.content].fields)
        if draft.chooses_tokens:
            values.pop("tokens", None)
            stop = values.get("stop_at_tokens")
            if stop is not None and stop.content is not None:
                message = "isoflop, ladder and solve: tokens choose themselves how long a run is"
                raise InvalidError(stop.diagnostic_at_key(message, "remove stop_at_tokens"))
            defaults["tokens"] = UNSOLVED_TOKENS
        cls = self._workloads.train_config()
        return self._build("train", cls, values, defaults=defaults, defaults_from=recipe)

    def _check_recipe(self, recipe: YamlNode) -> None:
        """Refuse an unknown `train.recipe`: a guess at what was meant, and all there are."""
        validation.check_text(recipe)
        names = list(self._workloads.recipes())
        if recipe.content not in names:
            guess = messages.nearest(str(recipe.content), names)
            meant = f"did you mean {guess!r}? " if guess else ""
            message = f"no recipe is called {recipe.shown}"
            raise InvalidError(recipe.diagnostic(message, f"{meant}there are {', '.join(names)}"))

    def _start(self, written: YamlNode) -> PretrainedStart:
        validation.check_text(written)
        record = self._recorded.get(written.content)
        there = input_files.candidates(written.content, self._folder, record)
        if not there:
            fix = "give the folder of its config.json, beside this file or in the current folder"
            raise InvalidError(written.diagnostic(f"no such folder: {written.content}", fix))
        for place in there:
            try:
                found = self._workloads.pretrained(place)
            except ValueError as error:
                raise InvalidError(written.diagnostic(str(error), "")) from error
            digest = input_files.combined([input_files.content_sha256(f) for f in found.files])
            if record is None or digest == record.sha256:
                self.inputs[written.content] = RecordedInput(paths=(place,), sha256=digest)
                return PretrainedStart(written, place, digest, found.fields, found.vocab_size)
        raise InvalidError(input_files.changed(there[-1], written))

    def _model(self, draft: DraftTrial, counterpart: YamlNode | None) -> Any:
        name, module, values = self._model_values(draft, counterpart)
        preset = values.pop("preset", None)
        start = self.start(draft) if counterpart is None else None
        if start is not None:
            if preset is not None:
                message = "stands beside a preset, and both say how large the model is"
                raise InvalidError(start.where.diagnostic(message, "keep one of them"))
            known = validation.field_names(module.Config)
            defaults = {key: value for key, value in start.fields.items() if key in known}
            return self._build(
                "model", module.Config, values, defaults=defaults, defaults_from=start.where
            )
        bad: list[Diagnostic] = []
        if preset is not None:
            with collecting(bad):
                _check_preset(name, module, preset)
            if not bad:
                return self._build(
                    "model",
                    module.Config,
                    values,
                    where=counterpart,
                    defaults=module.PRESETS[preset.content],
                    defaults_from=preset,
                )
            if counterpart is None:
                others = _only(draft.settings, "model")
                raise InvalidError(*bad, *self.single_values(others))
        instead = f"a preset ({', '.join(module.PRESETS)})" if module.PRESETS else ""
        try:
            return self._build(
                "model", module.Config, values, where=counterpart, instead_of_missing=instead
            )
        except InvalidError as error:
            # A counterpart without that preset will do if the keys alone make it.
            raise InvalidError(*(bad or error.diagnostics)) from error

    def _nearest_size(
        self, draft: DraftTrial, counterpart: YamlNode | None
    ) -> Callable[[int], Any]:
        name, module, values = self._model_values(draft, counterpart)
        preset = values.pop("preset", None)
        if not hasattr(module.Config, "nearest_size"):
            fix = "write model.preset instead, or give its Config that method"
            message = f"{name.content} has no nearest_size, which chooses a size"
            raise InvalidError(name.diagnostic(message, fix))
        if preset is not None and counterpart is None:
            chooser = draft.origin.split(" ")[0]
            self._warn(preset, f"is not used by {chooser}, which chooses the sizes itself")
        wrong: list[Diagnostic] = []
        cls = module.Config
        typed = self._typed("model", cls, values, wrong)
        if wrong:
            raise InvalidError(*wrong)
        return lambda size: cls.nearest_size(size, **typed)

    def _typed(
        self,
        section: str,
        cls: Any,
        values: Settings,
        wrong: list[Diagnostic],
        *,
        complete: bool = True,
    ) -> dict[str, Any]:
        """Return the values as the types of their fields, each checked alone."""
        typed = {}
        for key, value in values.items():
            if key in validation.field_names(cls):
                with collecting(wrong):
                    typed[key] = validation.check_field(cls, key, value)
            elif complete or key not in self._known_to_any(section):
                known = [*validation.field_names(cls), *_names_beside_fields(section)]
                elsewhere = self._elsewhere(section)
                wrong.append(validation.unknown_key(key, value, known, elsewhere))
        return typed

    def _known_to_any(self, section: str) -> list[str]:
        """Return every key that a section can have, whichever architecture or source it names."""

        def make() -> list[str]:
            classes = section_classes(self._workloads)[section].values()
            fields = [name for cls in classes for name in validation.field_names(cls)]
            return list(dict.fromkeys([*_names_beside_fields(section), *fields]))

        return self.once(("known to any", section), make)

    def _known_to_none(self, section: str, values: Settings) -> list[Diagnostic]:
        """Return what is wrong with values whatever architecture or source they are for."""
        known, elsewhere = self._known_to_any(section), self._elsewhere(section)
        wrong = [
            validation.unknown_key(key, value, known, elsewhere)
            for key, value in values.items()
            if key not in known
        ]
        preset = _chosen(values.get("preset")) if section == "model" else None
        if preset is not None and isinstance(preset.content, str):
            presets = self.once(("presets of any",), self._presets_of_any)
            if preset.content not in presets:
                message = f"no architecture has a preset {preset.shown}"
                guess = messages.nearest(preset.content, presets)
                fix = f"did you mean {guess!r}?" if guess else "PRESETS of each lists its own"
                wrong.append(preset.diagnostic(message, fix))
        return wrong

    def _presets_of_any(self) -> list[str]:
        found: list[str] = []
        for name in self._workloads.architectures():
            with contextlib.suppress(Exception):  # as in `section_classes`
                found += self._workloads.architecture(name).PRESETS
        return list(dict.fromkeys(found))

    def _model_values(
        self, draft: DraftTrial, counterpart: YamlNode | None
    ) -> tuple[YamlNode, Any, dict[str, YamlNode]]:
        values = part(draft.settings, "model")
        if counterpart is not None:
            values["architecture"] = counterpart
        name, module = self._module("model", values)
        preset = _chosen(values.pop("preset", None))
        values.pop("from_pretrained", None)
        if counterpart is None:
            values = self._inherited(draft, "model", name, values, module.Config)
        else:
            known = validation.field_names(module.Config)
            values = {key: value for key, value in values.items() if key in known}
        return name, module, values | ({} if preset is None else {"preset": preset})

    def _config_class(
        self,
        section: str,
        values: dict[str, YamlNode],
        wrong: list[Diagnostic],
        *,
        unnamed: Set[str],
    ) -> Any:
        """Return the class behind a section, and check the names in `values` that select it."""
        if section == "train":
            recipe = _chosen(values.pop("recipe", None))
            if recipe is not None:
                with collecting(wrong):
                    self._check_recipe(recipe)
            return self._workloads.train_config()
        if section == "resources":
            return Resources
        selector = SELECTORS[section]
        of_base = self._base.get(f"{section}.{selector}")
        if selector not in values and of_base is not None and section not in unnamed:
            values[selector] = of_base
        if selector not in values:
            wrong += self._known_to_none(section, values)
            return None
        with collecting(wrong):
            name, module = self._module(section, values)
            preset = _chosen(values.pop("preset", None)) if section == "model" else None
            if section == "model":
                values.pop("from_pretrained", None)
            if preset is not None:
                with collecting(wrong):
                    _check_preset(name, module, preset)
            return module.Config
        return None

    def _module(self, section: str, values: dict[str, YamlNode]) -> tuple[YamlNode, Any]:
        """Take the name out of the values and return it with its module.

        Raises:
            InvalidError: If there is no such name; says which names there are.
            ExperimentError: If the module cannot be imported or lacks a name that it must have.
        """
        workloads = self._workloads
        names = workloads.architectures() if section == "model" else workloads.data_sources()
        name = values.pop(SELECTORS[section], None)
        if name is None:
            raise InvalidError(_missing_name(self._where[section], values, section, names))
        validation.check_text(name)
        if name.content not in names:
            fix = messages.suggestion(name.content, names)
            message = f"no {_KINDS[section]} is called {name.shown}"
            others = self._known_to_none(section, values)
            raise InvalidError(name.diagnostic(message, fix), *others)
        load = workloads.architecture if section == "model" else workloads.data_source
        needed = ("Config", "PRESETS") if section == "model" else ("Config",)
        try:
            module = load(name.content)
        except Exception as error:
            message = f"{_KINDS[section]} {name.content}: {_import_error(name.content, error)}"
            raise ExperimentError(message) from error
        if missing := [each for each in needed if not hasattr(module, each)]:
            raise ExperimentError(
                f"{_KINDS[section]} {name.content}: its file has no {' and no '.join(missing)}; "
                "docs/add-an-architecture.md says what they hold"
            )
        return name, module

    def _build(
        self,
        section: str,
        cls: Any,
        values: Settings,
        *,
        where: YamlNode | None = None,
        **options: Any,
    ) -> Any:
        """Return `validation.build` of a section, with advice about keys that belong elsewhere."""
        unknown = any(key not in validation.field_names(cls) for key in values)
        return validation.build(
            cls,
            values,
            where=where or self._where[section],
            elsewhere=self._elsewhere(section) if unknown else {},
            also_known=_names_beside_fields(section),
            **options,
        )

    def _inherited(
        self, draft: DraftTrial, section: str, name: YamlNode, values: Settings, cls: Any
    ) -> dict[str, YamlNode]:
        """Return the values without base keys that only another architecture or source knows."""
        selector = SELECTORS[section]
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
            with contextlib.suppress(InvalidError):
                _, module = self._module(section, {SELECTORS[section]: name})
                if key in validation.field_names(module.Config):
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
    # A trial's seed is not that of invented data.
    advice = {} if section == "data" else {"seed": "write seeds: [0, 1, 2] at the top of the file"}
    for other, classes in section_classes(workloads).items():
        for name, cls in classes.items():
            for key in validation.field_names(cls):
                if other == section:
                    has = f"{SELECTORS.get(other, other)} {name} has it, this one does not"
                    advice.setdefault(key, f"remove it: {has}") if name else None
                else:
                    advice.setdefault(key, f"write it under {other}:")
    return advice


def section_classes(workloads: Workloads) -> dict[str, dict[str, Any]]:
    """Return section -> name of architecture or source (or empty) -> its dataclass.

    A file that cannot be imported is left out: this serves advice, and advice must not fail.
    """
    return {
        "train": {"": workloads.train_config()},
        "model": _importable(workloads.architectures(), workloads.architecture),
        "data": _importable(workloads.data_sources(), workloads.data_source),
        "resources": {"": Resources},
        "logging": {"": Logging},
        "retries": {"": Retries},
    }


def _importable(names: Iterable[str], load: Callable[[str], Any]) -> dict[str, Any]:
    classes = {}
    for name in names:
        with contextlib.suppress(Exception):
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


def _import_error(name: str, error: Exception) -> str:
    """Return what went wrong while the module of that name was imported, and where."""
    place, said = place_and_error(f"{name}.py", error)
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        in_extra = error.name.partition(".")[0] in TORCH_EXTRA
        fix = "pip install 'memscale[torch]'" if in_extra else "look for a typo, or install it"
        return f"the Python package {error.name!r} is not installed ({place}); {fix}"
    return f"{place}: {said}"


def _names_beside_fields(section: str) -> tuple[str, ...]:
    beside = {
        "model": ("architecture", "preset", "from_pretrained"),
        "data": ("source",),
        "train": ("recipe",),
    }
    return beside.get(section, ())


def _chosen(preset: YamlNode | None) -> YamlNode | None:
    """Return the preset or recipe; None for `preset: null`, which drops that of the base."""
    return None if preset is None or preset.content is None else preset


def _check_preset(name: YamlNode, module: Any, preset: YamlNode) -> None:
    names = list(module.PRESETS)
    width = f"d{preset.plain}"
    meant = width if width in names and str(preset.plain) not in names else None
    if meant is None:
        validation.check_text(preset)
    if preset.content not in names:
        fix = f"write {meant}" if meant else f"its presets are {', '.join(names)}"
        message = f"{name.content} has no preset {preset.shown}"
        raise InvalidError(preset.diagnostic(message, fix))


def _missing_name(where: YamlNode, values: Settings, section: str, names: list[str]) -> Diagnostic:
    selector = SELECTORS[section]
    for key, value in values.items():
        if messages.meant(key, [selector]):
            return value.diagnostic_at_key(f"unknown key {key!r}", f"did you mean {selector!r}?")
    fix = f"add for example {section}: {{{_EXAMPLES[section]}}}; there are {', '.join(names)}"
    return where.diagnostic_at_key(f"missing {selector}", fix, kind="missing")
