"""Law registry: all laws by name.

A file in `analysis/laws` that makes a law is all that adding one takes.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from analysis import laws
from analysis.fitting.law import Law
from analysis.laws.power import PowerLaw
from analysis.laws.saturating import Saturating

CURVES: Mapping[str, Law] = MappingProxyType(
    {curve.name: curve for curve in (PowerLaw(), Saturating())}
)
"""Curves of one size in the units of the outcome, by name, as `memscale fit` and reports print it.

They are no candidates of `choose_law`: `power_law` is `power` by another objective, and accuracies
are no losses."""


def all_laws() -> dict[str, Law]:
    """Return every law made in a file of `analysis/laws`, by its name."""
    found: dict[str, Law] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(laws.__path__)):
        for value in vars(importlib.import_module(f"analysis.laws.{module}")).values():
            if isinstance(value, Law):
                found[value.name] = value
    return found


def law_named(name: str) -> Law:
    """Return the law of that name, one of `all_laws` or `CURVES`.

    Raises:
        ValueError: If there is none; the message lists them, similar ones first.

    Example:
        >>> law_named("chinchilla").equation
        'L = E + A/N^alpha + B/D^beta'
    """
    known = {**all_laws(), **CURVES}
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"law: no {name!r}; {hint}there are {', '.join(sorted(known))}")
    return known[name]
