"""Verification that input files still have the hashes a trial was named by."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.data.cache import content_sha256
from workloads.data.hub_source import HubSource
from workloads.data.readers.problems import DataError

WHAT_TO_DO = "restore it, or submit again (which makes other trials)"


def require_unchanged(
    named: Mapping[str, Path | tuple[Path | HubSource, ...]], sha256: Mapping[str, str], cache: Path
) -> None:
    """Compare files with the hashes in the trial's identity.

    Costs what `prepare` needs anyway: a hash is remembered until a file's size or modification time
    changes.

    Args:
        named: Field of the data section -> files, as the source's `files()` has them.
        sha256: Field -> hash at submission, of the lines of hashes where there are several files.
        cache: Folder of all caches.

    Raises:
        DataError: One line per field that has other content now.
    """
    problems = []
    for field, expected in sha256.items():
        files = named[field]
        paths = files if isinstance(files, tuple) else (files,)
        gone = [path for path in paths if isinstance(path, Path) and not path.is_file()]
        if gone:
            problems += [
                f"data.{field}: {path} is gone since this trial was submitted; {WHAT_TO_DO}"
                for path in gone
            ]
        elif combined([input_sha256(path, cache) for path in paths]) != expected:
            several = len(paths) > 1
            what = f"one of {len(paths)} files ({paths[0]} …)" if several else str(paths[0])
            problems.append(
                f"data.{field}: {what} changed since this trial was submitted; {WHAT_TO_DO}"
            )
    if problems:
        raise DataError(problems)


def require_still(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise DataError if files changed while they were read.

    What was made of them is neither the old nor the new.

    Args:
        before: Field of the data section -> hash or hashes.
        after: The same, taken again.
    """
    changed = [field for field in before if after[field] != before[field]]
    if changed:
        raise DataError(
            [f"data.{field}: changed while it was read; {WHAT_TO_DO}" for field in changed]
        )


def input_sha256(source: Path | HubSource, cache: Path) -> str:
    """Return the hash of a file, or of the name that a data set of the hub has at its commit."""
    return source.sha256 if isinstance(source, HubSource) else content_sha256(source, cache)


def combined(digests: list[str]) -> str:
    """Return the hash by which one file, or several in their order, enter a trial's identity."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
