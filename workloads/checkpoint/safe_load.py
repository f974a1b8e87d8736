"""Files that hold tensors and plain values, never code."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError


@contextmanager
def only_plain_values(file: Path) -> Iterator[None]:
    """Say of a file which file it is, if reading it met what a restricted unpickler does not take.

    Raises:
        ValueError: In the place of an UnpicklingError.
    """
    try:
        yield
    except UnpicklingError as error:
        raise ValueError(
            f"{file}: holds more than tensors and plain values, so memscale did not write it, and "
            "nothing of it was run; find out who did, and delete it to go on from the checkpoint "
            "before"
        ) from error
