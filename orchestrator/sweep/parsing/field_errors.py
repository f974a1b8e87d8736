"""What a dataclass's `__post_init__` has against some values: not only its first complaint.

A `__post_init__` raises once. To tell an author everything at once, the value that a complaint names is
replaced by stand-ins and the class is asked again; what it says then counts only if it names no replaced
field, because such a complaint would be about our stand-in.
"""

import dataclasses
import re
import typing
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Literal

from orchestrator.sweep.parsing.messages import field_types, options

_STAND_INS = (1, 2, 8, 64, 1024, 2**16, 2**20, 2**30)


def complaints(
    cls: Any, values: Mapping[str, Any], *, unusable: Set[str], written: Collection[str]
) -> list[str]:
    """Return every independent complaint about the values.

    Args:
        cls: A config dataclass.
        values: Field -> value of the right type.
        unusable: Fields that are missing or of the wrong type, so that nothing can be said about them.
        written: Fields that the author wrote; a complaint is blamed on one of them if it names one.
    """
    names = list(field_types(cls))
    replaced = set(unusable)
    heard: list[str] = []
    while len(heard) <= len(names):
        complaint = next(_said(cls, values, replaced, names), None)
        if complaint is None:
            return heard
        heard.append(complaint)
        fields = named(complaint, names)
        blamed = next((name for name in fields if name in written), next(iter(fields), None))
        if blamed is None:
            return heard
        replaced.add(blamed)
    return heard


def named(complaint: str, names: Collection[str]) -> list[str]:
    """Return the fields that a complaint names, in its order."""
    return list(dict.fromkeys(word for word in re.findall(r"\w+", complaint) if word in names))


def _said(
    cls: Any, values: Mapping[str, Any], replaced: Set[str], names: list[str]
) -> Iterator[str]:
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    }
    for stand_in in _STAND_INS if replaced else (0,):
        tried = {key: value for key, value in values.items() if key not in replaced}
        for name in sorted(replaced - defaults.keys()):
            tried[name] = _as_type(stand_in, field_types(cls)[name])
        try:
            cls(**tried)
        except (ValueError, ArithmeticError, TypeError) as error:
            about_stand_in = replaced & set(named(str(error), names))
            if not about_stand_in and (isinstance(error, ValueError) or not replaced):
                yield str(error)
        else:
            return


def _as_type(number: int, annotation: Any) -> Any:
    member = options(annotation)[0]
    if member in (int, float):
        return member(number)
    if typing.get_origin(member) is Literal:
        return typing.get_args(member)[0]
    if member is str:
        return "x"
    return Path("x") if member is Path else ()
