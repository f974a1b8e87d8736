"""Numbers and units as people write them: 70M, 1.4e9, 1,024, billions, GFLOPs."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

SUFFIXES: Mapping[str, float] = {
    "k": 1e3,
    "m": 1e6,
    "mm": 1e6,
    "b": 1e9,
    "bn": 1e9,
    "g": 1e9,
    "t": 1e12,
    "p": 1e15,
    "e": 1e18,
    "z": 1e21,
}
UNIT_WORDS: Mapping[str, float] = {
    **{word + s: 10.0**n for word, n in (("thousand", 3), ("million", 6)) for s in ("", "s")},
    **{word + s: 10.0**n for word, n in (("billion", 9), ("trillion", 12)) for s in ("", "s")},
    **{f"{prefix}flop{s}": SUFFIXES[prefix] for prefix in "gtpez" for s in ("", "s")},
    **dict.fromkeys(("pf_days", "pflops_days", "petaflop_days"), 8.64e19),
}
"""In lower case with underscores."""

_NUMBER = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]{0,2})$", re.IGNORECASE)
_THOUSANDS = re.compile(r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$")
_DECIMAL_COMMA = re.compile(r"^([+-]?\d+,\d+)(e[+-]?\d+|\s*[a-z]{0,2})$", re.IGNORECASE)


def written_number(value: Any) -> float | None:
    """Return 7e7 of 70M, 1024 of 1,024; None of anything that is not clearly a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float | np.number):
        return float(value)
    text = str(value).strip().replace("_", "").replace("\u00a0", "")
    if text.lower() in {"inf", "+inf", "infinity"}:
        return float("inf")
    if text.lower() in {"", "nan", "none", "null", "na", "n/a", "-", "–"}:
        return float("nan")
    if _THOUSANDS.match(text):
        text = text.replace(",", "")
    match = _NUMBER.match(text)
    if match is None:
        return None
    number, suffix = match.groups()
    if not suffix:
        return float(number)
    return float(number) * SUFFIXES[suffix.lower()] if suffix.lower() in SUFFIXES else None


def has_one_comma(value: Any) -> bool:
    """Whether it is 3,9 or 3,900: with a decimal comma, or else one between thousands."""
    return isinstance(value, str) and _DECIMAL_COMMA.match(value.strip()) is not None


def has_decimal_comma(value: Any) -> bool:
    """Whether the comma of 3,9 or 3,9012 cannot stand between thousands."""
    match = _DECIMAL_COMMA.match(value.strip()) if isinstance(value, str) else None
    return match is not None and not _THOUSANDS.match(match.group(1))


def unit_in_brackets(text: str) -> float:
    """Return the unit that a header states in brackets (M, billions, 10^9), 1 of other words."""
    words = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return UNIT_WORDS.get(words, SUFFIXES.get(words, _power_of_ten(text)))


def written_unit(unit: float | str, column: str) -> float:
    """Return 1e9 of 1e9, `1e9`, `B` and `billion`.

    Args:
        unit: As it is given in `units=`.
        column: Whose unit it is, for the message.

    Raises:
        ValueError: If it is none.
    """
    number = written_number(unit)
    if number is None and isinstance(unit, str):
        number = unit_in_brackets(unit)
        if number == 1:
            number = None
    if number is None or not math.isfinite(number) or number <= 0:
        raise ValueError(
            f"units: {column} has no unit {unit!r}; give a number such as 1e9, or K, M, B or T"
        )
    return number


def _power_of_ten(text: str) -> float:
    match = re.fullmatch(r"\s*[x×*]?\s*(?:10\^|1e)\+?(\d+)\s*", text)
    return 10.0 ** int(match.group(1)) if match else 1.0
