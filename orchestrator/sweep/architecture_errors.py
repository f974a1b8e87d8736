"""Exceptions of architectures' own code, as one line that says where."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.records.errors import ExperimentError
from orchestrator.sweep import registry


@contextmanager
def as_sentences() -> Iterator[None]:
    """Turn an exception that passes through the code of an architecture into one line.

    Raises:
        ExperimentError: In place of such an exception; names the architecture, file and line.
    """
    try:
        yield
    except ExperimentError:
        raise
    except Exception as error:
        passed = {Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)}
        for name in registry.architectures():
            if any(file.parts[-2:] == ("architectures", f"{name}.py") for file in passed):
                place, said = place_and_error(f"{name}.py", error)
                raise ExperimentError(f"architecture {name}: {place}: {said}") from error
        raise


def place_and_error(file_name: str, error: Exception) -> tuple[str, str]:
    """Return `FILE:LINE` within the file of that name, and `TYPE: MESSAGE` of the error."""
    file, line = file_name, None
    if isinstance(error, SyntaxError):
        file, line = error.filename or file, error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        # A decorator fails within a library; the line that the reader can change is the module's.
        own = [frame for frame in frames if Path(frame.filename).name == file_name]
        for frame in (own or frames)[-1:]:
            file, line = frame.filename, frame.lineno
    return f"{file}:{line}", f"{type(error).__name__}: {error}"
