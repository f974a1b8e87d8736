"""YAML values -> dataclasses: types, unknown and missing keys, impossible values, each with its place.

The only file that knows pydantic. Each field is checked on its own in pydantic's strict JSON mode (no
text for numbers, no booleans for integers, lists become tuples); the dataclass's own `__post_init__`
judges the combination.
"""

import dataclasses
import json
import math
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.sweep.parsing import messages
from orchestrator.sweep.parsing.diagnostics import Diagnostic
from orchestrator.sweep.parsing.yaml_node import YamlNode
from workloads.field_error import FieldError

Record = TypeVar("Record")

_STAND_INS = (1, 2, 8, 64, 1024, 2**16, 2**20, 2**30)
"""Numbers to put into fields that are missing or wrong, to hear what is wrong with the others."""
LARGEST_BITS = 1_000
"""Whole numbers beyond this have no float; nothing that is counted here comes near."""


def field_names(cls: Any) -> list[str]:
    """Return the fields of a config dataclass, in order."""
    return list(messages.field_types(cls))


def check_field(cls: Any, name: str, value: YamlNode) -> tuple[Any, Diagnostic | None]:
    """Return the value as the field's type, or a diagnostic that says what belongs there."""
    oversized = _not_finite(value)
    if oversized is not None:
        return None, oversized
    try:
        return _adapter(cls, name).validate_json(json.dumps(_whole(value.plain)), strict=True), None
    except ValidationError:
        expected = messages.describe(messages.field_types(cls)[name])
        fix = messages.type_fix(cls, name, value)
        return None, value.diagnostic(f"must be {expected}, got {value.shown}", fix)


def check_text(value: YamlNode) -> tuple[str | None, Diagnostic | None]:
    """Return text that stands outside any dataclass (a name, a preset)."""
    if isinstance(value.content, str):
        return value.content, None
    fix = f"put it in quotes: '{value.text}'" if value.text else "write its name"
    if isinstance(value.content, list):
        fix = messages.one_value(value)
    return None, value.diagnostic(f"must be text, got {value.shown}", fix)


def check_whole_number(value: YamlNode, *, at_least: int) -> tuple[int | None, Diagnostic | None]:
    """Return a whole number that stands outside any dataclass (a seed, a count)."""
    expected = f"a whole number >= {at_least}"
    return _check_number(value, (int,), expected, lambda number: number >= at_least)


def check_positive(value: YamlNode) -> tuple[float | None, Diagnostic | None]:
    """Return a positive number that stands outside any dataclass (a budget, a ratio)."""
    number, diagnostic = _check_number(value, (int, float), "a positive number", lambda n: n > 0)
    return (None if number is None else float(number)), diagnostic


def build(
    cls: type[Record],
    values: Mapping[str, YamlNode],
    *,
    where: YamlNode,
    defaults: Mapping[str, Any] | None = None,
    defaults_from: YamlNode | None = None,
    elsewhere: Mapping[str, str] | None = None,
    also_known: Collection[str] = (),
    instead_of_missing: str = "",
) -> tuple[Record | None, list[Diagnostic]]:
    """Return `cls(**values)` and every mistake in the values; None when there is any.

    Args:
        cls: A frozen dataclass with plain fields.
        values: Field name -> value as written.
        where: The mapping or entry that is blamed for missing keys.
        defaults: Values used where none is written (a preset, a recipe).
        defaults_from: Where `defaults` were asked for.
        elsewhere: Key -> advice, for keys that belong somewhere else.
        also_known: Keys of the same mapping that are no fields (`preset`), to suggest.
        instead_of_missing: What may be written instead of the missing fields.
    """
    known = field_names(cls)
    suggested = [*known, *also_known]
    diagnostics = []
    guesses = set()
    typed = dict(defaults or {})
    unusable = set()
    for key, value in values.items():
        if key in known:
            typed[key], diagnostic = check_field(cls, key, value)
            if diagnostic is not None:
                diagnostics.append(diagnostic)
                unusable.add(key)
        else:
            diagnostics.append(unknown_key(key, value, suggested, elsewhere or {}))
            guesses.add(messages.nearest(key, suggested))
    absent = [name for name in _required(cls) if name not in typed]
    # A misspelt key is one mistake, not an unknown key and a missing one.
    missing = [name for name in absent if name not in guesses]
    if missing:
        diagnostics.append(_missing(cls, missing, where, instead_of_missing))
    from_preset = {
        key: defaults_from for key in defaults or {} if defaults_from and key not in values
    }
    errors = _errors(cls, typed, unusable=unusable | set(absent), written={**values, **from_preset})
    for error in errors:
        diagnostics.append(_refused(error, values, from_preset, where=where))
    return (None, diagnostics) if diagnostics else (cls(**typed), [])


def unknown_key(
    key: str, value: YamlNode, known: Collection[str], elsewhere: Mapping[str, str]
) -> Diagnostic:
    """Return the diagnostic about a key that nothing reads."""
    return value.diagnostic_at_key(f"unknown key {key!r}", messages.key_fix(key, known, elsewhere))


def mapping_of(value: YamlNode, *, example: str) -> tuple[dict[str, YamlNode], list[Diagnostic]]:
    """Return the entries of a mapping, or a diagnostic that shows how one is written."""
    if isinstance(value.content, dict):
        return value.content, []
    fix = f"write for example {example}"
    if value.content is None:
        fix += ", or remove it"
    return {}, [value.diagnostic(f"must be a mapping, got {value.shown}", fix)]


def list_of(value: YamlNode, *, example: str) -> tuple[list[YamlNode], list[Diagnostic]]:
    """Return the items of a list that is not empty, or a diagnostic that shows how one is written."""
    if not isinstance(value.content, list):
        is_scalar = not isinstance(value.content, dict) and value.content is not None
        fix = f"write [{value.shown}]" if is_scalar else f"write for example {example}"
        return [], [value.diagnostic(f"must be a list, got {value.shown}", fix)]
    if not value.content:
        fix = "put a value into it, or remove the key"
        return [], [value.diagnostic("is an empty list, so nothing would run", fix)]
    return value.content, []


@cache
def _adapter(cls: Any, name: str) -> TypeAdapter[Any]:
    return TypeAdapter(messages.field_types(cls)[name])


def _required(cls: Any) -> list[str]:
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]


def _whole(value: Any) -> Any:
    """Return 1.0e+8 as 100000000: YAML has no exponents in integers, and token counts need them."""
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value


def _not_finite(value: YamlNode) -> Diagnostic | None:
    if isinstance(value.content, list | dict):
        items = value.content if isinstance(value.content, list) else value.content.values()
        return next((diagnostic for item in items if (diagnostic := _not_finite(item))), None)
    number = value.content
    if isinstance(number, float) and not math.isfinite(number):
        return value.diagnostic(
            f"must be a finite number, got {value.shown}", "write the number itself"
        )
    if isinstance(number, int) and number.bit_length() > LARGEST_BITS:
        return value.diagnostic(f"is too large a number: {value.shown}", "write one below 1.0e+300")
    return None


def _check_number(
    value: YamlNode, kinds: tuple[type, ...], expected: str, allowed: Callable[[Any], bool]
) -> tuple[Any, Diagnostic | None]:
    oversized = _not_finite(value)
    if oversized is not None:
        return None, oversized
    number = _whole(value.content)
    if isinstance(number, kinds) and not isinstance(number, bool) and allowed(number):
        return number, None
    fix = messages.number_fix(value) or f"write {expected}"
    return None, value.diagnostic(f"must be {expected}, got {value.shown}", fix)


def _missing(cls: Any, names: Iterable[str], where: YamlNode, instead: str) -> Diagnostic:
    """Return one diagnostic for all keys that a mapping lacks."""
    written = ", ".join(f"{name}: {messages.example(cls, name)}" for name in names)
    fix = f"add for example {written}" if where.content else f"add {where.path}: {{{written}}}"
    if instead:
        fix = f"add {instead}, or for example {written}"
    return where.diagnostic_at_key(f"missing {', '.join(names)}", fix, kind="missing")


def _refused(
    error: Exception,
    values: Mapping[str, YamlNode],
    from_preset: Mapping[str, YamlNode],
    *,
    where: YamlNode,
) -> Diagnostic:
    """Return what `__post_init__` refuses as a diagnostic about a field that the error names."""
    if not isinstance(error, FieldError):
        return where.diagnostic_at_key(str(error), "", kind="combination")
    message, fix = error.message, error.fix
    written = [name for name in error.fields if name in values]
    preset = [name for name in error.fields if name in from_preset]
    if not written and not preset:
        return where.diagnostic_at_key(message, fix, kind="combination")
    others = [f"{name} (line {values[name].line})" for name in written[1:]]
    others += [f"{name} (from the {_word(from_preset[name])})" for name in preset]
    if not written:
        return from_preset[preset[0]].diagnostic(message, fix, kind="combination")
    if others:
        change = f"change {'' if fix else 'it or '}{' or '.join(others)}"
        fix = f"{fix}, or {change}" if fix else change
    return values[written[0]].diagnostic(message, fix, kind="combination")


def _errors(
    cls: Any, values: Mapping[str, Any], *, unusable: Set[str], written: Collection[str]
) -> list[Exception]:
    """Return every independent error that a dataclass raises about the values.

    A `__post_init__` raises once. To show an author everything at once, the field that the error
    names is replaced by stand-ins and the class is asked again. A further error counts only if it
    names no replaced field, because it would be about our stand-in.

    Args:
        cls: A config dataclass.
        values: Field -> value of the right type.
        unusable: Fields that are missing or of the wrong type, so nothing can be said about them.
        written: Fields that the author wrote; an error is blamed on one of them if it names one.
    """
    replaced = set(unusable)
    errors: list[Exception] = []
    while len(errors) <= len(field_names(cls)):
        error = next(_raised(cls, values, replaced), None)
        if error is None:
            break
        errors.append(error)
        if not isinstance(error, FieldError):
            break
        replaced.add(next((name for name in error.fields if name in written), error.field))
    return errors


def _raised(cls: Any, values: Mapping[str, Any], replaced: Set[str]) -> Iterator[Exception]:
    """Yield the error for each stand-in of the replaced fields, until one raises none."""
    without_default = replaced & {*_required(cls)}
    for stand_in in _STAND_INS if replaced else (0,):
        tried = {key: value for key, value in values.items() if key not in replaced}
        for name in sorted(without_default):
            tried[name] = _as_type(stand_in, messages.field_types(cls)[name])
        try:
            cls(**tried)
        except FieldError as error:
            if not replaced.intersection(error.fields):
                yield error
        except (ValueError, ArithmeticError, TypeError) as error:
            if isinstance(error, ValueError) or not replaced:
                yield error
        else:
            return


def _as_type(number: int, annotation: Any) -> Any:
    member = messages.options(annotation)[0]
    if member in (int, float):
        return member(number)
    if typing.get_origin(member) is Literal:
        return typing.get_args(member)[0]
    if member is str:
        return "x"
    return Path("x") if member is Path else ()


def _word(defaults_from: YamlNode) -> str:
    """Return what kind of defaults were asked for there."""
    path = defaults_from.path if defaults_from.key_path is None else defaults_from.key_path
    return "recipe" if path.endswith(".recipe") else "preset"
