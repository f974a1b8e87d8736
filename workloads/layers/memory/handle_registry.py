"""Handle registry: objects that custom operations find by a string.

A compiled graph holds tensors, numbers and strings, but no Python objects.
"""

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

_ALL: WeakValueDictionary[str, "Registered"] = WeakValueDictionary()
_NUMBERS = count()


class Registered:
    """An object with a handle that is unique in this process while the object lives."""

    handle: str

    def __init__(self) -> None:
        self._register()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Copies and unpickled objects would otherwise answer to the handle of the original.
        self.__dict__.update(state)
        self._register()

    def _register(self) -> None:
        # Numbered in order, so that graphs of two runs of one program are equal and caches hit.
        self.handle = f"{type(self).__name__} {next(_NUMBERS)}"
        _ALL[self.handle] = self


def resolve(handle: str) -> Any:
    """Return the object with this handle.

    Raises:
        LookupError: If the object is gone.
    """
    found = _ALL.get(handle)
    if found is None:
        raise LookupError(
            f"a compiled graph reads {handle}, which does not exist any more; "
            "keep the model that was compiled"
        )
    return found
