"""Input data of a plan: checked before anything starts, prepared before trials."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.planning import epochs, exposures
from orchestrator.planning.pricing import Plan
from orchestrator.records.errors import ConfigError, ConfigProblem
from orchestrator.records.trial_spec import canonical_json
from orchestrator.sweep import registry


def check_data(plan: Plan) -> Plan:
    """Read the input files of the trials to train; return the plan with their facts and notes.

    Of the files no more than a sample is tokenised.

    Raises:
        ConfigError: If a file cannot be used; one problem per mistake, with its file and line.
    """
    problems: list[ConfigProblem] = []
    notes: list[str] = []
    cache = (plan.snapshot.path.parent / "cache").absolute()
    facts: dict[str, Any] = {}
    files_read: dict[Any, Any] = {}  # many settings may share one
    specs = {trial.spec.trial_id: trial.spec for trial in plan.trials if trial.to_train}
    for source, file, trial_ids in _sources(plan):
        try:
            if hasattr(source, "facts"):
                facts.update(dict.fromkeys(trial_ids, source.facts(notes.append, files_read)))
            else:
                source.check(notes.append)
                notes += epochs.notes(source, [specs[i] for i in trial_ids if i in specs])
                if hasattr(source, "remarks"):
                    notes += source.remarks(cache)
        except ValueError as error:
            problems += _problems(error, file)
    if problems:
        raise ConfigError([*dict.fromkeys(problems)])
    plan = replace(plan, facts=facts)
    return replace(plan, notes=(*plan.notes, *exposures.notes(plan), *dict.fromkeys(notes)))


def prepare_data(plan: Plan, cache: Path, log: Callable[[str], None]) -> None:
    """Prepare the data of the trials to train, so that the first of them need not.

    What was interrupted goes on. Without the packages that it takes, trials prepare the data
    themselves.

    Raises:
        ConfigError: If a file cannot be used; one problem per mistake, with its file and line.
    """
    for source, file, _ in _sources(plan):
        if not source.files():
            continue  # a generated source has nothing to tokenise
        try:
            source.prepare(cache, log)
        except ModuleNotFoundError as error:
            log(f"{error.name} is not installed here: the first trial prepares the data")
        except ValueError as error:
            raise ConfigError(_problems(error, file)) from error


def _sources(plan: Plan) -> Iterator[tuple[Any, Path, list[str]]]:
    """Yield each source with its sweep file and trials.

    Those that read files only with trials to train.
    """
    # Trials of one file share what they say about data: to compare thousands takes a second.
    shared: dict[int, list[int]] = {}
    for number, trial in enumerate(plan.trials):
        shared.setdefault(id(trial.spec.data), []).append(number)
    sections: dict[str, list[int]] = {}
    for numbers in shared.values():
        data = plan.trials[numbers[0]].spec.data
        sections.setdefault(canonical_json(dict(data)), []).extend(numbers)
    for numbers in sections.values():
        to_train = [number for number in numbers if plan.trials[number].to_train]
        first = (to_train or numbers)[0]
        section = plan.trials[first].spec.data
        fields = {key: value for key, value in section.items() if key != "source"}
        source = registry.build_config(registry.data_source(str(section["source"])).Config, fields)
        if to_train or not source.files():
            trial_ids = [plan.trials[number].spec.trial_id for number in numbers]
            yield source, plan.sweep.files[first], trial_ids


def _problems(error: ValueError, file: Path) -> list[ConfigProblem]:
    return [
        ConfigProblem(file=file, line=None, column=None, key="data", message=line, fix="")
        for line in str(error).splitlines()
    ]
