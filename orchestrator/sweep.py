"""A sweep file -> its trials, in order, with every default written out; or every mistake in it.

The steps are in `sweep_files/`: `find` the file, `yaml_positions` parses it, `entries` takes the entries of
`trials:` apart and `drafts` multiplies them out, `sections` looks names up, `resolve` solves budgets. A
mistake stops only the part of the file that holds it, so that all are told at once.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import catalog, config
from orchestrator.records import TrialSpec
from orchestrator.sweep_files import find, yaml_positions
from orchestrator.sweep_files.drafts import SECTIONS, Draft, Entry
from orchestrator.sweep_files.entries import read_entry
from orchestrator.sweep_files.findings import Finding, Findings
from orchestrator.sweep_files.header import Header, read_header
from orchestrator.sweep_files.located import Located
from orchestrator.sweep_files.resolve import trial_spec
from orchestrator.sweep_files.sections import Sections, Workloads, section_classes

MAX_TRIALS = 100_000
"""Above this, a sweep file says something its author did not mean."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One question, as its file asks it."""

    name: str
    question: str | None
    """The comment `# Question: …` at the top."""
    path: Path
    """Absolute."""
    text: str
    """The whole file."""
    trials: tuple[TrialSpec, ...]
    """In the order of the file, seeds fastest. `accounting` is empty: `plan.py` fills it."""
    warnings: tuple[str, ...]
    """What the author should know although nothing is wrong: keys that were left out of some trials."""


def load_sweep(path: Path, *, workloads: Workloads = catalog) -> Sweep:
    """Return the sweep in a file.

    Args:
        path: A file, or the bare name of a bundled sweep such as `quickstart`.
        workloads: Where architectures, data sources and the train section are looked up.

    Raises:
        ConfigError: If anything is wrong with the file; holds every mistake.
    """
    file = find.find(path)
    text = find.read(file)
    findings = Findings()
    document, wrong = yaml_positions.parse(text)
    findings.add(wrong)
    if document is None:
        raise findings.error(file, trials=0)
    header = read_header(document, findings, workloads)
    if header is None:
        raise findings.error(file, trials=0)
    entries, broken = _entries(header, findings, workloads)
    if sum(entry.count for entry in entries) * max(1, len(header.seeds)) > MAX_TRIALS:
        findings.add([_too_many(entries, header)])
        raise findings.error(file, trials=0)
    drafts = [draft for entry in entries for draft in entry.drafts(header.base)]
    sections = Sections(
        header.base, where=header.where, drafts=drafts, folder=file.parent, workloads=workloads
    )
    findings.add(sections.single_values(header.base, unknown_keys=True))
    for entry in broken:
        for settings in entry.written():
            findings.add(sections.single_values(settings, unknown_keys=False))
    specs = _specs(drafts, header, sections, findings)
    findings.add(_duplicates(specs))
    if findings:
        raise findings.error(file, trials=len(drafts))
    return Sweep(
        name=header.name,
        question=find.question(text),
        path=file.absolute(),
        text=text,
        trials=tuple(
            dataclasses.replace(spec, seed=seed, origin=f"{spec.origin}, seed {seed}")
            for _, spec in specs
            for seed in header.seeds
        ),
        warnings=tuple(f"{file}:{warning}" for warning in sections.warnings),
    )


def _entries(
    header: Header, findings: Findings, workloads: Workloads
) -> tuple[list[Entry], list[Entry]]:
    """Return the entries that can be expanded, and those that cannot."""
    if header.trials is None:
        return [Entry(where=header.document, label="base")], []
    items, wrong = config.list_of(header.trials, example="[{grid: {model.preset: [1m, 3m]}}]")
    findings.add(wrong)
    good: list[Entry] = []
    broken: list[Entry] = []
    for item in items:
        entry, wrong = read_entry(
            item, architectures=workloads.architectures(), homes=lambda key: _homes(key, workloads)
        )
        findings.add(wrong)
        (broken if wrong else good).append(entry)
    return good, broken


def _too_many(entries: Sequence[Entry], header: Header) -> Finding:
    largest = max(entries, key=lambda entry: entry.count)
    total = sum(entry.count for entry in entries) * len(header.seeds)
    share = largest.count * len(header.seeds)
    return largest.where.finding_at_key(
        f"{total:,} trials, of which this entry makes {share:,}; the limit is {MAX_TRIALS:,}",
        "shorten its lists, or use zip or list where not every combination is wanted",
    )


def _specs(
    drafts: Sequence[Draft], header: Header, sections: Sections, findings: Findings
) -> list[tuple[Draft, TrialSpec]]:
    specs = []
    for draft in drafts:
        spec, wrong = trial_spec(
            draft, sections, sweep=header.name, retries=header.retries, logging=header.logging
        )
        news = [f for f in wrong if f.kind != "missing" or f.key not in header.told]
        findings.add(news, trial=draft.origin)
        if spec is not None:
            specs.append((draft, spec))
    return specs


def _duplicates(specs: Sequence[tuple[Draft, TrialSpec]]) -> list[Finding]:
    """Return one finding per entry that asks for a trial the file already has; seeds aside, they all differ."""
    first: dict[str, str] = {}
    repeated: dict[Located, list[str]] = {}
    for draft, spec in specs:
        name = spec.trial_id
        if name in first:
            again = f"{spec.origin} is the same trial as {first[name]}"
            repeated.setdefault(draft.where, []).append(again)
        else:
            first[name] = spec.origin
    findings = []
    for where, pairs in repeated.items():
        message = pairs[0] + (f" (and {len(pairs) - 1} more)" if len(pairs) > 1 else "")
        fix = "remove one of them; resources, retries and logging do not make a trial another one"
        if ".isoflop" in pairs[0]:
            fix = "the sizes lie too close together: raise span or lower sizes"
        findings.append(where.finding_at_key(message, fix, kind="missing"))
    return findings


def _homes(key: str, workloads: Workloads) -> list[str]:
    """Return the sections in which an entry may set this key."""
    beside = {"architecture": "model", "preset": "model", "source": "data"}
    if key in beside:
        return [beside[key]]
    classes = section_classes(workloads)
    return [
        section
        for section in SECTIONS
        if any(key in config.field_names(cls) for cls in classes[section].values())
    ]
