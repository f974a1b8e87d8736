"""Validation of YAML values against dataclasses: types, keys and rules.

The only file that knows pydantic. Each field is checked on its own in pydantic's strict JSON mode
(no text for numbers, no booleans for integers, lists become tuples); the dataclass's own
`__post_init__` judges the combination.
"""

import contextlib
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
from orchestrator.sweep.parsing.diagnostics import Diagnostic, InvalidError, collecting
from orchestrator.sweep.parsing.yaml_node import YamlNode
from workloads.field_error import FieldError

Record = TypeVar("Record")

_STAND_INS = (1, 2, 8, 64, 1024, 2**16, 2**20, 2**30)
"""Numbers to put into fields that are missing or wrong, to hear what is wrong with the others."""
LARGEST_BITS = 1_000
"""Whole numbers beyond this have no float; nothing that is counted here comes near."""


def field_names(cls: Any) -> list[str]:
    """Return the fields of a config dataclass that a sweep file may write, in order."""
    planned = {field.name for field in dataclasses.fields(cls) if field.metadata.get("planned")}
    return [name for name in messages.field_types(cls) if name not in planned]


def check_field(cls: Any, name: str, value: YamlNode) -> Any:
    """Return the value as the field's type.

    Raises:
        InvalidError: If it is no such value; says what belongs there.
    """
    _check_finite(value)
    try:
        return _adapter(cls, name).validate_json(json.dumps(_whole(value.plain)), strict=True)
    except ValidationError:
        expected = messages.describe(messages.field_types(cls)[name])
        fix = messages.type_fix(cls, name, value)
        raise InvalidError(
            value.diagnostic(f"must be {expected}, got {value.shown}", fix)
        ) from None


def check_text(value: YamlNode) -> str:
    """Return text that stands outside any dataclass (a name, a preset).

    Raises:
        InvalidError: If it is no text.
    """
    if isinstance(value.content, str):
        return value.content
    fix = f"put it in quotes: '{value.text}'" if value.text else "write its name"
    if isinstance(value.content, list):
        fix = messages.one_value(value)
    raise InvalidError(value.diagnostic(f"must be text, got {value.shown}", fix))


def check_whole_number(value: YamlNode, *, at_least: int) -> int:
    """Return a whole number that stands outside any dataclass (a seed, a count).

    Raises:
        InvalidError: If it is none, or a smaller one.
    """
    expected = f"a whole number >= {at_least}"
    return int(_number(value, (int,), expected, lambda number: number >= at_least))


def check_positive(value: YamlNode) -> float:
    """Return a positive number that stands outside any dataclass (a budget, a ratio).

    Raises:
        InvalidError: If it is none.
    """
    return float(_number(value, (int, float), "a positive number", lambda number: number > 0))


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
) -> Record:
    """Return `cls(**values)`.

    Args:
        cls: A frozen dataclass with plain fields.
        values: Field name -> value as written.
        where: The mapping or entry that is blamed for missing keys.
        defaults: Values used where none is written (a preset, a recipe).
        defaults_from: Where `defaults` were asked for.
        elsewhere: Key -> advice, for keys that belong somewhere else.
        also_known: Keys of the same mapping that are no fields (`preset`), to suggest.
        instead_of_missing: What may be written instead of the missing fields.

    Raises:
        InvalidError: With every mistake in the values.
    """
    known = field_names(cls)
    suggested = [*known, *also_known]
    wrong: list[Diagnostic] = []
    guesses = set()
    typed = dict(defaults or {})
    unusable = set()
    for key, value in values.items():
        if key in known:
            unusable.add(key)
            with collecting(wrong):
                typed[key] = check_field(cls, key, value)
                unusable.remove(key)
        else:
            wrong.append(unknown_key(key, value, suggested, elsewhere or {}))
            guesses.add(messages.meant(key, suggested))
    absent = [name for name in _required(cls) if name not in {*typed, *values}]
    # A misspelt key is one mistake, not an unknown key and a missing one.
    missing = [name for name in absent if name not in guesses]
    if missing:
        wrong.append(_missing(cls, missing, where, instead_of_missing))
    from_preset = {
        key: defaults_from for key in defaults or {} if defaults_from and key not in values
    }
    errors = _errors(cls, typed, unusable=unusable | set(absent), written={**values, **from_preset})
    wrong += [_refused(error, values, from_preset, where=where) for error in errors]
    if wrong:
        raise InvalidError(*wrong)
    return cls(**typed)


def broken_rules(
    cls: Any, values: Mapping[str, YamlNode], *, unknown: Set[str] | None = None
) -> list[Diagnostic]:
    """Return the rules that values break without the help of fields that nothing is known of.

    Args:
        cls: A config dataclass.
        values: Field name -> value as written; values of a wrong type, and other keys, are left
            out.
        unknown: Fields that may have any value; None: all that are not among the values.
    """
    typed: dict[str, Any] = {}
    for key in values.keys() & {*field_names(cls)}:
        with contextlib.suppress(InvalidError):
            typed[key] = check_field(cls, key, values[key])
    others = {*field_names(cls)} - typed.keys()
    unusable = others if unknown is None else others & {*_required(cls), *values, *unknown}
    errors = _errors(cls, typed, unusable=unusable, written=typed)
    blamed = [
        e for e in errors if isinstance(e, FieldError) and not typed.keys().isdisjoint(e.fields)
    ]
    return [_refused(error, values, {}, where=values[next(iter(typed))]) for error in blamed]


def unknown_key(
    key: str, value: YamlNode, known: Collection[str], elsewhere: Mapping[str, str]
) -> Diagnostic:
    """Return the diagnostic about a key that nothing reads."""
    return value.diagnostic_at_key(f"unknown key {key!r}", messages.key_fix(key, known, elsewhere))


def mapping_of(value: YamlNode, *, example: str, wrong: list[Diagnostic]) -> dict[str, YamlNode]:
    """Return the entries of a mapping; for anything else add to `wrong` how one is written."""
    if isinstance(value.content, dict):
        return value.content
    fix = f"write for example {example}"
    if value.content is None:
        fix += ", or remove it"
    wrong.append(value.diagnostic(f"must be a mapping, got {value.shown}", fix))
    return {}


def list_of(value: YamlNode, *, example: str, wrong: list[Diagnostic]) -> list[YamlNode]:
    """Return the items of a list; if there are none, add to `wrong` how a list is written."""
    if not isinstance(value.content, list):
        is_scalar = not isinstance(value.content, dict) and value.content is not None
        fix = f"write [{value.shown}]" if is_scalar else f"write for example {example}"
        wrong.append(value.diagnostic(f"must be a list, got {value.shown}", fix))
        return []
    if not value.content:
        fix = "put a value into it, or remove the key"
        wrong.append(value.diagnostic("is an empty list, so nothing would run", fix))
    return value.content


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


def _check_finite(value: YamlNode) -> None:
    if isinstance(value.content, list | dict):
        for item in value.content if isinstance(value.content, list) else value.content.values():
            _check_finite(item)
    number = value.content
    if isinstance(number, float) and not math.isfinite(number):
        message = f"must be a finite number, got {value.shown}"
        raise InvalidError(value.diagnostic(message, "write the number itself"))
    if isinstance(number, int) and number.bit_length() > LARGEST_BITS:
        message = f"is too large a number: {value.shown}"
        raise InvalidError(value.diagnostic(message, "write one below 1.0e+300"))


def _number(
    value: YamlNode, kinds: tuple[type, ...], expected: str, allowed: Callable[[Any], bool]
) -> Any:
    _check_finite(value)
    number = _whole(value.content)
    if isinstance(number, kinds) and not isinstance(number, bool) and allowed(number):
        return number
    fix = messages.number_fix(value) or f"write {expected}"
    raise InvalidError(value.diagnostic(f"must be {expected}, got {value.shown}", fix))


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
            if replaced.isdisjoint(error.fields):
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
    key = path.rpartition(".")[2]
    return key if key in ("recipe", "from_pretrained") else "preset"
