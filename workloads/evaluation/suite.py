"""Evaluation suites: tasks, their files and their form of question.

A suite is a data file in `suites/`, or a user's own.
"""

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Interval
from jinja2 import Environment, meta

from workloads.field_error import FieldError, NonNegativeInt, PositiveInt, check_fields

FOLDER = Path(__file__).with_name("suites")
BLANK_LINE = "\n\n"
Kind = Literal["choices", "contexts", "answer", "continuation"]


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One task of a suite."""

    name: str
    """Of its metrics: `eval/NAME/acc`."""
    file: str
    """JSON lines in the data folder; `.gz` may follow."""
    origin: str
    """Which data set that is, for whoever lacks the file."""
    kind: Kind
    """choices: one of `choices` continues the prompt. contexts: `continuation` follows one of
    `contexts`. answer: one of `answers` is generated, and the first one's likelihood measured.
    continuation: the likelihood of `target`."""
    prompt: str = ""
    """Jinja template over a row's fields; empty with contexts."""
    target: str = "{{continuation}}"
    """Jinja template of what follows the prompt, for continuation."""
    delimiter: str = " "
    """Between prompt and target, for continuation; no byte of the target."""
    description: str = ""
    """Text before everything else."""
    shots: NonNegativeInt = 0
    """Solved examples before the prompt."""
    shots_file: str | None = None
    """Where they come from, the first ones."""
    shots_origin: str | None = field(default=None, repr=False)
    """Which data set they are; None is the task's. Not part of a digest: it only helps whoever
    lacks the file."""
    shots_delimiter: str = field(default=BLANK_LINE, repr=False)
    """After each solved example."""
    shots_of: str | None = None
    """Field that an example must share with the row (MMLU's subject)."""
    n_options: Annotated[int, Interval(ge=2)] | None = field(default=None, repr=False)
    """How many `choices` or `contexts` every row and example has; None: two or more. Not part of a
    digest, since it only refuses rows."""
    max_tokens: PositiveInt = 24
    """Tokens that are generated for an answer, at most."""
    ignore_articles: bool = False
    """Whether a, an and the are left out of answers before they are compared."""
    whole_line: bool = field(default=False, repr=False)
    """Whether a generated answer goes on to the end of its line, past `.` and `,`."""

    def __post_init__(self) -> None:
        check_fields(self)
        if bool(self.shots) != (self.shots_file is not None):
            raise FieldError("shots_file", "must be given with shots, and only then", self.shots)
        if self.delimiter != " " and self.kind != "continuation":
            raise FieldError("delimiter", "must be left out, except with continuation", self.kind)
        if self.shots_delimiter != BLANK_LINE and not self.shots:
            raise FieldError("shots_delimiter", "must be left out without shots", self.shots)
        if (self.kind == "contexts") == bool(self.prompt):
            raise FieldError("prompt", "must be given, except with kind contexts", self.prompt)
        if self.whole_line and self.kind != "answer":
            raise FieldError("whole_line", "must be left out, except with answer", self.kind)
        if self.n_options is not None and self.options_field is None:
            raise FieldError("n_options", "must be left out where no row has options", self.kind)

    @cached_property
    def options_field(self) -> str | None:
        """Field of a row that holds its options; None if it has none."""
        return next((name for name in ("contexts", "choices") if name in self.row_fields), None)

    @cached_property
    def row_fields(self) -> frozenset[str]:
        """Fields that a row must have."""
        templates = self.prompt + (self.target if self.kind == "continuation" else "")
        named = set(meta.find_undeclared_variables(Environment().parse(templates)))
        if self.shots_of is not None:
            named.add(self.shots_of)
        own = {
            "choices": {"choices", "label"},
            "contexts": {"contexts", "continuation", "label"},
            "answer": {"answers"},
            "continuation": set[str](),
        }
        return frozenset(named | own[self.kind])


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tasks that are evaluated together."""

    name: str
    about: str
    """What it is for, one sentence."""
    tasks: tuple[TaskSpec, ...] = field(repr=False)


def names() -> list[str]:
    """Return the names of the bundled suites."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Suite:
    """Return a bundled suite by its name, or one of a YAML file.

    Raises:
        ValueError: If there is none, or it is written wrongly; names file, task and field.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(
            f"suite {name!r}: there are {', '.join(names())}; or give a YAML file of your own"
        )
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
        about, tasks = record["about"], record["tasks"]
        specs = tuple(_task(task, values) for task, values in tasks.items())
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML ({error})") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected `about: text` and `tasks: {{NAME: {{file: …, kind: …}}}}` ({error})"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Suite(name=path.stem, about=str(about), tasks=specs)


def _task(name: str, values: dict[str, Any]) -> TaskSpec:
    known = [one.name for one in fields(TaskSpec) if one.name != "name"]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"{name}: no field {', '.join(unknown)}; there are {', '.join(known)}")
    try:
        return TaskSpec(name=name, **values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from error
