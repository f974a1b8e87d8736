"""Invented names for synthetic biographies.

People, cities, universities, majors, employers, dates.

Every entry is one token of a word-level vocabulary. Names are put together from the syllables
of `names.json`, so they read like names and belong to nobody. Entry i of a pool does not depend on
the pool's size: a smaller pool is a prefix of a larger one.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

MAX_POOL = 3_500
"""Largest pool that every kind of name can fill with distinct words."""
DAYS_PER_MONTH = 28
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
FIRST_YEAR = 1900
_PARTS: Mapping[str, list[str]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)


def first_names(n: int) -> list[str]:
    """Return n distinct first names."""
    return _take("first names", _coined(*_PARTS["first_name_ends"]), n)


def middle_names(n: int) -> list[str]:
    """Return n distinct middle names, none of them a first name."""
    return _take("middle names", _coined(*_PARTS["middle_name_ends"]), n)


def last_names(n: int) -> list[str]:
    """Return n distinct family names."""
    return _take("last names", _coined(*_PARTS["last_name_ends"]), n)


def cities(n: int) -> list[str]:
    """Return n distinct city names."""
    return _take("cities", _coined(*_PARTS["city_ends"]), n)


def universities(n: int) -> list[str]:
    """Return n distinct university names; each is one token although it has several words."""
    return _take("universities", _dressed(_PARTS["university_forms"]), n)


def employers(n: int) -> list[str]:
    """Return n distinct company names; each is one token although it has two words."""
    return _take("employers", _dressed(_PARTS["employer_forms"]), n)


def majors(n: int) -> list[str]:
    """Return n distinct subjects of study."""
    pairs = itertools.product(_PARTS["major_modifiers"], _PARTS["major_fields"])
    subjects = (" ".join(pair).strip() for pair in pairs)
    return _take("majors", subjects, n)


def years(n: int) -> list[str]:
    """Return n consecutive years of birth from 1900."""
    return [str(FIRST_YEAR + i) for i in range(n)]


def _take(kind: str, names: Iterable[str], n: int) -> list[str]:
    taken = list(itertools.islice(names, n))
    if len(taken) < n:
        raise ValueError(f"only {len(taken)} distinct {kind} can be made, got {n}; ask for fewer")
    return taken


@cache
def _coined(*endings: str) -> tuple[str, ...]:
    """Return every start + middle + ending once, neighbours differing in all three parts.

    A step coprime to the number of combinations visits each exactly once.
    """
    starts, middles = _PARTS["starts"], _PARTS["middles"]
    n = len(starts) * len(middles) * len(endings)
    step = 7_919  # a prime that divides no product of the list lengths above
    words: dict[str, None] = {}
    for i in range(n):
        rest, start = divmod(i * step % n, len(starts))
        ending, middle = divmod(rest, len(middles))
        words.setdefault(starts[start] + middles[middle] + endings[ending])
    return tuple(words)


def _dressed(forms: Sequence[str]) -> Iterator[str]:
    """Yield each form around coined stems; a stem is used once, so one word is unique."""
    stems = _coined("", "nd", "ve")
    extra = _coined("st", "rk", "lm", "nt", "sk")
    for i, stem in enumerate((*stems, *extra)):
        yield forms[i % len(forms)].format(stem)
