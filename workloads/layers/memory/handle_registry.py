"""Handle registry: objects that custom operations find by a number.

A compiled graph holds tensors, numbers and strings, but no Python objects. A number in the graph
makes it the graph of one object, so another object's is compiled anew. A tensor is an input, so one
graph serves all objects.
"""

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from jaxtyping import Int64
from torch import Tensor

_ALL: WeakValueDictionary[int, "Registered"] = WeakValueDictionary()
_NUMBERS = count()


class Registered:
    """An object with a number that is unique in this process while the object lives."""

    number: int
    handle: Int64[Tensor, ""]
    """The number on the host, where reading it waits for no GPU."""

    def __init__(self) -> None:
        self._register()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Copies and unpickled objects would otherwise answer to the number of the original.
        self.__dict__.update(state)
        self._register()

    def _register(self) -> None:
        # Numbered in order, so that graphs of two runs of one program are equal and caches hit.
        self.number = next(_NUMBERS)
        self.handle = torch.tensor(self.number, device="cpu")
        _ALL[self.number] = self


def resolve(handle: int | Int64[Tensor, ""]) -> Any:
    """Return the object with this number or handle.

    Raises:
        LookupError: If the object is gone.
    """
    found = _ALL.get(int(handle))
    if found is None:
        raise LookupError(
            f"a compiled graph reads object {int(handle)}, which does not exist any more; "
            "keep the model that was compiled"
        )
    return found
