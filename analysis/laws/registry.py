"""Law registry: all laws by name.

A file in `analysis/laws` that makes a law is all that adding one takes.
"""

import importlib
import pkgutil

from analysis import laws
from analysis.fitting.law import Law


def all_laws() -> dict[str, Law]:
    """Return every law made in a file of `analysis/laws`, by its name."""
    found: dict[str, Law] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(laws.__path__)):
        for value in vars(importlib.import_module(f"analysis.laws.{module}")).values():
            if isinstance(value, Law):
                found[value.name] = value
    return found


def law_named(name: str) -> Law:
    """Return the law of that name.

    Raises:
        ValueError: If there is none; the message lists them.

    Example:
        >>> law_named("chinchilla").equation
        'L = E + A/N^alpha + B/D^beta'
    """
    known = all_laws()
    if name not in known:
        raise ValueError(f"law: no {name!r}; there are {', '.join(sorted(known))}")
    return known[name]
