"""Loader of sweep files: all trials with defaults written out, or all mistakes.

The steps: `parsing.discovery` finds the files, `parsing.yaml_loader` parses each,
`expansion.entries` reads the entries of `trials:`, `draft_trial` multiplies them out,
`expansion.sections` looks names up, `expansion.resolve` solves budgets. A mistake stops only the
part of the file that holds it, so that all are reported at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.records.errors import ConfigError, ConfigProblem
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.sweep import registry
from orchestrator.sweep.draft_trial import SECTIONS, SELECTORS, DraftTrial, Entry
from orchestrator.sweep.expansion import evaluation_files, recorded_inputs, resolve
from orchestrator.sweep.expansion.entries import read_entry
from orchestrator.sweep.expansion.header import Header, read_header
from orchestrator.sweep.expansion.hub_commits import HubCommits
from orchestrator.sweep.expansion.recorded_inputs import RecordedInput
from orchestrator.sweep.expansion.resolve import ResolvedTrial
from orchestrator.sweep.expansion.sections import Sections, Workloads, section_classes
from orchestrator.sweep.matching.match import Matched
from orchestrator.sweep.matching.step_time import NotMeasuredError, StepTimeCache, Timer
from orchestrator.sweep.parsing import discovery, messages, validation, yaml_loader
from orchestrator.sweep.parsing.diagnostics import Diagnostic, Diagnostics, InvalidError
from orchestrator.sweep.parsing.yaml_node import YamlNode

MAX_TRIALS = 100_000
"""Above this, a sweep file says something its author did not mean."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The trials of one or several sweep files of one name."""

    name: str
    question: str | None
    """The comments `# Question: …` at the top of the files."""
    text: str
    """The whole file; several files as one text that can be loaded again (`find.joined`)."""
    trials: tuple[TrialSpec, ...]
    """In the order of the files, seeds fastest. `accounting` is empty: `plan.py` fills it."""
    files: tuple[Path, ...]
    """The absolute path of each trial's file."""
    warnings: tuple[str, ...]
    """Notes for the author: keys that were left out of some trials."""
    matches: Mapping[str, Matched] = field(default_factory=dict)
    """Trial id -> what `match` chose for it."""
    step_times: Mapping[str, Any] = field(default_factory=dict)
    """The measured step times that the trials rest on (`sweep/matching/step_time.py`)."""
    hub_commits: Mapping[str, str] = field(default_factory=dict)
    """Data sets of the Hugging Face hub as written -> the commits that the trials read."""
    inputs: tuple[Mapping[str, RecordedInput], ...] = ()
    """Of each file: its input files, by path as written."""


def load_sweep(
    paths: Path | Sequence[Path],
    *,
    workloads: Workloads = registry,
    on_name: Callable[[str], None] | None = None,
    evaluates: bool = True,
) -> Sweep:
    """Return the sweep in a file, or in several that carry the same name.

    Args:
        paths: Files, folders of files, or the bare names of bundled ones such as `quickstart`.
        workloads: Where architectures, data sources and the train section are looked up.
        on_name: Called with the sweep's name once that is known, long before the trials are. Not
            for a sweep whose steps are timed: nothing may run beside that.
        evaluates: Whether the files that `evaluation` names must be there.

    Raises:
        ConfigError: If anything is wrong with the files; holds every mistake.
        ValueError: If no file is named.
    """
    arguments = [paths] if isinstance(paths, Path) else paths
    if not arguments:
        raise ValueError("name at least one sweep file, got none")
    sources, problems = discovery.sources(arguments)
    files = [_File(source, workloads, evaluates=evaluates) for source in sources]
    # Files of several names do not form one sweep, but duplicates within each file are reported.
    groups = [files] if _have_one_name(files) else [[file] for file in files]
    timed = any("step_time" in source.text for source in sources)
    if on_name is not None and not timed and not problems and files and files[0].readable:
        on_name(files[0].header.name)
    if not _too_many(files):
        for group in groups:
            for file in group:
                file.expand(workloads, sweep=[other.source.file for other in group])
            _find_duplicates(group)
    problems += [problem for file in files for problem in file.problems()]
    if problems:
        raise ConfigError(problems)
    if any(file.waits for file in files):
        # Minutes of measuring, so only for files that are right in everything else.
        with workloads.step_timer() as timer:
            for file in files:
                file.resolve(timer)
        _find_duplicates(files)
        problems = [problem for file in files for problem in file.problems()]
        if problems:
            raise ConfigError(problems)
    several = len(files) > 1
    trials = [(trial, file) for file in files for trial in file.trials(named=several)]
    return Sweep(
        name=files[0].header.name,
        question=discovery.questions(source.text for source in sources),
        text=discovery.joined(sources),
        trials=tuple(trial for trial, _ in trials),
        files=tuple(file.source.file.absolute() for _, file in trials),
        warnings=tuple(warning for file in files for warning in file.warnings),
        matches={
            trial.trial_id: file.matched[trial.configuration_id]
            for trial, file in trials
            if trial.configuration_id in file.matched
        },
        step_times={key: answer for file in files for key, answer in file.step_times.items()},
        hub_commits={text: commit for file in files for text, commit in file.hub_commits.items()},
        inputs=tuple(file.inputs for file in files),
    )


class _File:
    """One file of a sweep while it is read, and its diagnostics."""

    def __init__(self, source: discovery.Source, workloads: Workloads, *, evaluates: bool) -> None:
        """Read the file as far as single entries."""
        self.source = source
        self.diagnostics = Diagnostics()
        self.readable = False
        """Whether there is a header: without one nothing below exists."""
        self.header: Header
        self.entries: list[Entry] = []
        self.drafts: list[DraftTrial] = []
        self.specs: list[tuple[DraftTrial, TrialSpec]] = []
        """Without seeds."""
        self.matched: dict[str, Matched] = {}
        """By the trial's name with seed 0."""
        self.waits = False
        """Whether trials are left out until their step times are measured."""
        self.step_times: dict[str, Any] = {}
        self.hub_commits: dict[str, str] = {}
        self.inputs: dict[str, RecordedInput] = {}
        self.warnings: list[str] = []
        self._broken: list[Entry] = []
        # The lines above are another file's: with as many empty ones every mistake has its place.
        document, wrong = yaml_loader.parse("\n" * source.lines_above + source.text)
        header = None if document is None else read_header(document, wrong, workloads)
        if header is not None:
            self.readable = True
            self.header = header.beside(source.file.parent)
            self.entries, self._broken = _entries(header, wrong, workloads)
            asked = header.document.content.get("evaluation")
            if evaluates and asked is not None:
                wrong += evaluation_files.missing(asked, source.file.parent)
        self.diagnostics.add(wrong)

    @property
    def n_trials(self) -> int:
        """How many trials the file asks for, without making them."""
        if not self.readable:
            return 0
        return sum(entry.count for entry in self.entries) * max(1, len(self.header.seeds))

    def expand(self, workloads: Workloads, *, sweep: Sequence[Path]) -> None:
        """Make the trials; `sweep` names all its files."""
        if not self.readable:
            return
        header, file = self.header, self.source.file
        self.drafts = [draft for entry in self.entries for draft in entry.drafts(header.base)]
        pinned = HubCommits(file, sweep, lambda: workloads.hub())
        self._sections = sections = Sections(
            header.base,
            where=header.where,
            drafts=self.drafts,
            folder=file.parent,
            workloads=workloads,
            recorded=recorded_inputs.read(file, self.source.label),
            hub_commits=pinned,
        )
        self._sweep = sweep
        self.diagnostics.add(sections.single_values(header.base))
        for key, value in header.base.items():
            # A value that every trial overrides meets none of their rules. Models and data are left
            # out: their classes are anyone's, and may be slow or wrong about a field on its own.
            ours = key.startswith(("train.", "resources."))
            if ours and all(key in draft.own for draft in self.drafts):
                self.diagnostics.add(sections.broken_rules({key: value}))
        for entry in self._broken:
            unnamed = _unnamed(entry)
            for settings in entry.written():
                found = sections.single_values(settings, complete=False, unnamed=unnamed)
                self.diagnostics.add(found)
        self.resolve()
        if self._broken:
            # What is wrong with their values shows in no trial.
            changed = {key for entry in self._broken for key in _keys(entry.where)}
            self.diagnostics.add(sections.broken_rules(header.base, changed=changed))
            for entry in self._broken:
                unnamed = _unnamed(entry)
                for settings in entry.written():
                    self.diagnostics.add(sections.broken_rules(settings, unnamed=unnamed))
        self.hub_commits = pinned.used
        warnings = [*sections.warnings, *_matches_with_themselves(self.drafts)]
        self.warnings = [f"{file}:{warning}" for warning in warnings]

    def resolve(self, timer: Timer | None = None) -> None:
        """Work the trials out; where step times must be measured first, only with a timer."""
        step_times = StepTimeCache(self.source.file, timer, sweep=self._sweep)
        trials = _trials(self.drafts, self.header, self._sections, step_times, self.diagnostics)
        self.specs = [(draft, trial.spec) for draft, trial in trials if trial is not None]
        self.waits = len(self.specs) < len(trials)
        self.matched = {
            trial.spec.configuration_id: trial.matched
            for _, trial in trials
            if trial is not None and trial.matched is not None
        }
        self.step_times = step_times.used
        self.inputs = self._sections.inputs

    def problems(self) -> tuple[ConfigProblem, ...]:
        """Return everything that is wrong with the file, in its order."""
        return self.diagnostics.error(self.source.file, trials=len(self.drafts)).problems

    def trials(self, *, named: bool) -> list[TrialSpec]:
        """Return the trials with their seeds.

        Args:
            named: Whether their origin says which file they are from.
        """
        file = f"{self.source.label}: " if named else ""
        return [
            trial
            for _, spec in self.specs
            for trial in spec.with_seeds(self.header.seeds, origin=f"{file}{spec.origin}")
        ]


def _matches_with_themselves(drafts: Sequence[DraftTrial]) -> list[str]:
    """Say which `match` names the one architecture of its own trials."""
    alone: dict[YamlNode, bool] = {}
    for draft in drafts:
        if draft.match is not None and draft.match.model is None:
            own, target = draft.settings.get("model.architecture"), draft.match.target
            same = own is not None and own.content == target.content
            alone[target] = same and alone.get(target, True)
    return [
        f"{target.line}:{target.column}: {target.path} compares {target.shown} with itself, which "
        "changes nothing; name another architecture, or leave match out"
        for target, same in alone.items()
        if same
    ]


def _entries(
    header: Header, wrong: list[Diagnostic], workloads: Workloads
) -> tuple[list[Entry], list[Entry]]:
    """Return the entries that can be expanded, and those that cannot."""
    if header.trials is None:
        return [Entry(where=header.document, label="base")], []
    example = "[{grid: {model.preset: [1m, 3m]}}]"
    good: list[Entry] = []
    broken: list[Entry] = []
    for item in validation.list_of(header.trials, example=example, wrong=wrong):
        before = len(wrong)
        entry = read_entry(
            item,
            architectures=workloads.architectures(),
            homes=lambda key: _homes(key, workloads),
            wrong=wrong,
        )
        (broken if len(wrong) > before else good).append(entry)
    return good, broken


def _unnamed(entry: Entry) -> set[str]:
    """Return the sections whose architecture or source a broken entry may name in a wrong way."""
    keys = [key.rpartition(".") for key in _keys(entry.where)]
    return {
        section
        for section, selector in SELECTORS.items()
        if any(home in ("", section) and messages.meant(key, [selector]) for home, _, key in keys)
    }


def _keys(node: YamlNode) -> Iterator[str]:
    """Yield every key of a mapping, and of what is in it."""
    if isinstance(node.content, dict):
        yield from node.content
    if isinstance(node.content, dict | list):
        inner = node.content.values() if isinstance(node.content, dict) else node.content
        for one in inner:
            yield from _keys(one)


def _too_many(files: Sequence[_File]) -> bool:
    """Whether there are more than MAX_TRIALS trials; if so, report the largest entry."""
    total = sum(file.n_trials for file in files)
    if total <= MAX_TRIALS:
        return False
    asked = [
        (entry.count * max(1, len(file.header.seeds)), file, entry)
        for file in files
        for entry in file.entries
    ]
    share, file, largest = max(asked, key=lambda one: one[0])
    diagnostic = largest.where.diagnostic_at_key(
        f"{total:,} trials, of which this entry makes {share:,}; the limit is {MAX_TRIALS:,}",
        "shorten its lists, or use zip or list where not every combination is wanted",
    )
    file.diagnostics.add([diagnostic])
    return True


def _trials(
    drafts: Sequence[DraftTrial],
    header: Header,
    sections: Sections,
    step_times: StepTimeCache,
    diagnostics: Diagnostics,
) -> list[tuple[DraftTrial, ResolvedTrial | None]]:
    """Return the trials without mistakes; None for one whose step time is not measured yet."""
    trials: list[tuple[DraftTrial, ResolvedTrial | None]] = []
    for draft in drafts:
        try:
            trial = resolve.trial(
                draft,
                sections,
                step_times,
                sweep=header.name,
                retries=header.retries,
                logging=header.logging,
                evaluation=header.evaluation,
            )
        except NotMeasuredError:
            trials.append((draft, None))
        except InvalidError as error:
            news = [
                one
                for one in error.diagnostics
                if one.kind != "missing" or one.key not in header.reported
            ]
            diagnostics.add(news, trial=draft.origin)
        else:
            trials.append((draft, trial))
    return trials


def _find_duplicates(files: Sequence[_File]) -> None:
    """Report once per entry that its trials repeat others; seeds of one file all differ."""
    first: dict[str, list[tuple[_File, str]]] = {}
    for file in files:
        repeated: dict[YamlNode, list[str]] = {}
        for draft, spec in file.specs:
            known = first.setdefault(spec.trial_id, [])
            twin = next((one for one in known if _share_a_seed(one[0], file)), None)
            if twin is None:
                known.append((file, spec.origin))
                continue
            where = "" if twin[0] is file else f" of {twin[0].source.label}"
            again = f"{spec.origin} is the same trial as {twin[1]}{where}"
            if not where and spec.origin == twin[1]:
                again = f"{spec.origin} is there twice"
            repeated.setdefault(draft.where, []).append(again)
        file.diagnostics.add(_duplicate(where, pairs) for where, pairs in repeated.items())


def _share_a_seed(one: _File, other: _File) -> bool:
    return one is other or not set(one.header.seeds).isdisjoint(other.header.seeds)


def _duplicate(where: YamlNode, pairs: Sequence[str]) -> Diagnostic:
    message = pairs[0] + (f" (and {len(pairs) - 1} more)" if len(pairs) > 1 else "")
    fix = "remove one of them; resources, retries and logging do not make a trial another one"
    if pairs[0].endswith(" is there twice"):
        fix = "remove one of them"
    elif ".isoflop" in pairs[0]:
        fix = "the sizes lie too close together: raise span or lower sizes"
    return where.diagnostic_at_key(message, fix, kind="missing")


def _have_one_name(files: Sequence[_File]) -> bool:
    """Whether the files carry one name, as far as names can be read; tells once which says what."""
    written: dict[str, list[_File]] = {}
    for file in files:
        name = file.header.document.content.get("name") if file.readable else None
        if name is not None and name.content == file.header.name:
            written.setdefault(file.header.name, []).append(file)
    if len(written) < 2:
        return True
    said = "; ".join(
        f"{name} in {', '.join(file.source.label for file in group)}"
        for name, group in written.items()
    )
    other = list(written.values())[1][0]
    diagnostic = other.header.document.content["name"].diagnostic(
        f"the files of one sweep carry one name, got {said}",
        "write the same name: in all of them, or name only files that belong together",
    )
    other.diagnostics.add([diagnostic])
    return False


def _homes(key: str, workloads: Workloads) -> list[str]:
    """Return the sections in which an entry may set this key."""
    beside = {"architecture": "model", "preset": "model", "source": "data", "recipe": "train"}
    if key in beside:
        return [beside[key]]
    classes = section_classes(workloads)
    return [
        section
        for section in SECTIONS
        if any(key in validation.field_names(cls) for cls in classes[section].values())
    ]
