"""Sweep-file header: name, base sections, seeds, retries, logging, evaluation."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.records.sweep_dir import RESERVED_NAMES, SWEEP_NAME
from orchestrator.records.trial_spec import EvaluationSchedule, Logging, Retries
from orchestrator.sweep.draft_trial import SECTIONS, Settings
from orchestrator.sweep.expansion.entries import ENTRY_KEYS
from orchestrator.sweep.expansion.evaluation_files import beside, suite_beside
from orchestrator.sweep.expansion.sections import Workloads, elsewhere
from orchestrator.sweep.parsing import messages, validation
from orchestrator.sweep.parsing.diagnostics import Diagnostic, collecting
from orchestrator.sweep.parsing.yaml_node import YamlNode

LARGEST_SEED = 2**63 - 1
"""What the random number generators of a trial take."""

HEADER_KEYS = (
    "name",
    "data",
    "train",
    "model",
    "trials",
    "seeds",
    "resources",
    "retries",
    "logging",
    "evaluation",
)

_EXAMPLE = {
    "name": "memory_recall",
    "data": "{source: biographies, n_people: 3_000}",
    "train": "{tokens: 10_000_000, batch_tokens: 8_192, seq_len: 256, lr: 3.0e-3}",
    "model": "{architecture: dense, preset: 1m}",
    "resources": "{gpus: auto}",
    "retries": "{failure: 1, preemption: 100}",
    "logging": "{every_steps: 10, evaluations: 4}",
    "evaluation": "{suites: [small], at: [0.5, 1.0], data: benchmarks}",
}


@dataclass(frozen=True, kw_only=True)
class Header:
    """Everything above `trials:`, and the list itself as written."""

    name: str
    base: Settings
    """Dotted key -> value."""
    where: Mapping[str, YamlNode]
    """Section -> the mapping that is blamed for missing keys."""
    reported: frozenset[str]
    """Sections that are misspelt or no mappings: their missing keys are no second mistake."""
    seeds: Sequence[int]
    retries: Retries
    logging: Logging
    evaluation: EvaluationSchedule | None
    trials: YamlNode | None
    document: YamlNode

    def beside(self, folder: Path) -> "Header":
        """Return the header with absolute paths of benchmarks, relative ones starting here.

        What is not there stays as it is (`evaluation_files.missing` says so).
        """
        schedule = self.evaluation
        if schedule is None:
            return self
        suites = tuple(suite_beside(suite, folder) for suite in schedule.suites)
        data = None if schedule.data is None else beside(schedule.data, folder)
        questions = None if schedule.questions is None else beside(schedule.questions, folder)
        evaluation = dataclasses.replace(schedule, suites=suites, data=data, questions=questions)
        return dataclasses.replace(self, evaluation=evaluation)


def read_header(document: YamlNode, wrong: list[Diagnostic], workloads: Workloads) -> Header | None:
    """Return the header, or None when the document is no mapping; add mistakes to `wrong`."""
    content = document.content
    if not isinstance(content, dict) or not content:
        what = f"must be a mapping of keys, got {document.shown}"
        if content is None:
            what = "holds only comments"
        fix = f"write {', '.join(f'{key}:' for key in HEADER_KEYS[:4])} at the left margin"
        wrong.append(document.diagnostic(what, fix))
        return None
    reported = set()
    for key in content.keys() - set(HEADER_KEYS):
        wrong.append(validation.unknown_key(key, content[key], HEADER_KEYS, _advice(workloads)))
        reported.add(messages.nearest(key, HEADER_KEYS) or "")
    base: dict[str, YamlNode] = {}
    where = {}
    for section in SECTIONS:
        value = content.get(section)
        where[section] = value or _absent(document, section)
        if value is not None:
            example = f"{section}: {_EXAMPLE[section]}"
            before = len(wrong)
            values = validation.mapping_of(value, example=example, wrong=wrong)
            base |= {f"{section}.{key}": setting for key, setting in values.items()}
            if len(wrong) > before:
                reported.add(section)
    return Header(
        name="unnamed" if "name" in reported else _name(content.get("name"), document, wrong),
        base=base,
        where=where,
        reported=frozenset(reported),
        seeds=_seeds(content.get("seeds"), wrong),
        retries=_sweep_wide(Retries, "retries", document, wrong) or Retries(),
        logging=_sweep_wide(Logging, "logging", document, wrong) or Logging(),
        evaluation=_sweep_wide(EvaluationSchedule, "evaluation", document, wrong),
        trials=content.get("trials"),
        document=document,
    )


def _name(value: YamlNode | None, document: YamlNode, wrong: list[Diagnostic]) -> str:
    if value is None:
        place, fix = _absent(document, "name"), f"add name: {_EXAMPLE['name']}"
        wrong.append(place.diagnostic_at_key("is missing", fix, kind="missing"))
        return "unnamed"
    if not isinstance(value.content, str):
        fix = f"write for example {_EXAMPLE['name']}"
        if value.text:
            fix = f"put it in quotes: '{value.text}'"
        wrong.append(value.diagnostic(f"must be text, got {value.shown}", fix))
        return "unnamed"
    if not SWEEP_NAME.fullmatch(value.content):
        fix = "use letters, digits, '_', '-' and '.', at most 100, beginning with a letter or digit"
        wrong.append(value.diagnostic(f"cannot be a folder's name: {value.shown}", fix))
    elif RESERVED_NAMES.fullmatch(value.content):
        message = f"is the name of something else in a runs folder: {value.shown}"
        wrong.append(value.diagnostic(message, f"write for example {value.content[:90]}_sweep"))
    return value.content


def _seeds(value: YamlNode | None, wrong: list[Diagnostic]) -> list[int]:
    if value is None:
        return [0]
    if not isinstance(value.content, list):
        fix = "write for example [0, 1, 2]"
        if isinstance(value.content, int) and not isinstance(value.content, bool):
            fix = f"write [{value.shown}] for that seed, or [0, 1, 2] for three of them"
        wrong.append(value.diagnostic(f"must be a list, got {value.shown}", fix))
        return [0]
    seeds: dict[int, YamlNode] = {}
    for item in validation.list_of(value, example="[0, 1, 2]", wrong=wrong):
        with collecting(wrong):
            seed = validation.check_whole_number(item, at_least=0)
            if seed > LARGEST_SEED:
                message = f"must be at most {LARGEST_SEED}, got {item.shown}"
                wrong.append(item.diagnostic(message, "any small number will do"))
            elif seed in seeds:
                message = f"seed {seed} is written twice"
                wrong.append(item.diagnostic(message, "keep one of them"))
            else:
                seeds[seed] = item
    return list(seeds) or [0]


def _sweep_wide(cls: Any, key: str, document: YamlNode, wrong: list[Diagnostic]) -> Any:
    value = document.content.get(key)
    if value is None:
        return None
    content = validation.mapping_of(value, example=f"{key}: {_EXAMPLE[key]}", wrong=wrong)
    with collecting(wrong):
        return validation.build(cls, content, where=value)
    return None


def _absent(document: YamlNode, key: str) -> YamlNode:
    """Return a place for what is not in the file: line 1, under the key that is missing."""
    return dataclasses.replace(
        document, content={}, path=key, line=1, column=1, key_line=1, key_column=1
    )


def _advice(workloads: Workloads) -> dict[str, str]:
    """Return advice about keys that belong below a section rather than at the top."""
    return {
        **elsewhere(None, workloads),
        "seed": "write seeds: [0, 1, 2]",
        "source": "write it under data:",
        "architecture": "write it under model:",
        "preset": "write it under model:",
        "recipe": "write it under train:",
        **{key: f"write trials: [{{{key}: …}}]" for key in ENTRY_KEYS},
    }
