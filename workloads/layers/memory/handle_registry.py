"""Objects that custom operations of torch find by name: a compiled graph holds tensors, numbers and words, no objects."""

from itertools import count
from typing import Any, TypeVar
from weakref import WeakValueDictionary

_ALL: WeakValueDictionary[str, "Named"] = WeakValueDictionary()
_NUMBERS = count()

N = TypeVar("N", bound="Named")


class Named:
    """What has a name of its own in this process, for as long as it lives; a copy has another."""

    name: str

    def __init__(self) -> None:
        self._enter()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Of copies and pickles, which would otherwise answer to the name of the original.
        self.__dict__.update(state)
        self._enter()

    def _enter(self) -> None:
        # Numbered as made, so that the graphs of two runs of one program have the same names, and caches hit.
        self.name = f"{type(self).__name__} {next(_NUMBERS)}"
        _ALL[self.name] = self


def named(kind: type[N], name: str) -> N:
    """Return what has this name.

    Raises:
        LookupError: If it is gone.
    """
    found = _ALL.get(name)
    if not isinstance(found, kind):
        raise LookupError(
            f"a compiled graph reads {name}, which does not exist any more; keep the model that was compiled"
        )
    return found
