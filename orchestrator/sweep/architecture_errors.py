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
        ExperimentError: In place of such an exception; names the architecture, file and line. Of
            architectures that call each other, it names the first, and where in the last it was.
    """
    try:
        yield
    except ExperimentError:
        raise
    except Exception as error:
        names = registry.architectures()
        passed = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
        models = [
            file for file in passed if file.parent.name == "architectures" and file.stem in names
        ]
        if not models:
            raise
        caller, said = place_and_error(models[0].name, error)
        place, _ = place_and_error(models[-1].name, error)
        called = "" if place == caller else f", called in {caller}"
        message = f"architecture {models[0].stem}: {place}{called}: {said}"
        raise ExperimentError(message) from error


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
