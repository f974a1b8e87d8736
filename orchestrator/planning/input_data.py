"""Input data of a plan: checked before anything starts, prepared before any trial does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.planning.pricing import Plan
from orchestrator.records.errors import ConfigError, ConfigProblem
from orchestrator.records.trial_spec import canonical_json
from orchestrator.sweep import registry


def check_data(plan: Plan) -> tuple[str, ...]:
    """Read the input files of the trials to train, without tokenising; return their sources' notes.

    Raises:
        ConfigError: If a file cannot be used; one problem per mistake, with its file and line.
    """
    problems: list[ConfigProblem] = []
    notes: list[str] = []
    for source, file in _sources(plan):
        try:
            source.check(notes.append)
        except ValueError as error:
            problems += _problems(error, file)
    if problems:
        raise ConfigError(problems)
    return tuple(dict.fromkeys(notes))


def prepare_data(plan: Plan, cache: Path, log: Callable[[str], None]) -> None:
    """Prepare the data of the trials to train, so that the first of them need not.

    What was interrupted goes on. Without the packages that it takes, trials prepare the data
    themselves.

    Raises:
        ConfigError: If a file cannot be used; one problem per mistake, with its file and line.
    """
    for source, file in _sources(plan):
        try:
            source.prepare(cache, log)
        except ModuleNotFoundError as error:
            log(f"{error.name} is not installed here: the first trial prepares the data")
        except ValueError as error:
            raise ConfigError(_problems(error, file)) from error


def _sources(plan: Plan) -> Iterator[tuple[Any, Path]]:
    """Yield each source of the trials to train that reads files, and its sweep file."""
    # Trials of one file share what they say about data: to compare thousands takes a second.
    shared = {
        id(t.spec.data): (t.spec.data, file)
        for t, file in zip(plan.trials, plan.sweep.files, strict=True)
        if t.to_train
    }
    sections = {canonical_json(dict(data)): (data, file) for data, file in shared.values()}
    for section, file in sections.values():
        fields = {key: value for key, value in section.items() if key != "source"}
        source = registry.build_config(registry.data_source(str(section["source"])).Config, fields)
        if source.files():  # a generated source has nothing to check and nothing to tokenise
            yield source, file


def _problems(error: ValueError, file: Path) -> list[ConfigProblem]:
    return [
        ConfigProblem(file=file, line=None, column=None, key="data", message=line, fix="")
        for line in str(error).splitlines()
    ]
