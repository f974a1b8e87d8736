"""Input files of a data source: paths, and hashes for the trial's identity."""

import dataclasses
import difflib
import glob
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.sweep.expansion.hub_commits import PREFIX, HubCommits
from orchestrator.sweep.expansion.recorded_inputs import RecordedInput
from orchestrator.sweep.parsing.diagnostics import Diagnostic, InvalidError
from orchestrator.sweep.parsing.yaml_node import YamlNode

_CHUNK_BYTES = 2**20
_digests: dict[tuple[Path, int, int], str] = {}
"""Hashes by path, size and time of change: a sweep asks for the same file once per trial."""


class InputFiles(NamedTuple):
    """The files of a data source."""

    source: Any
    """With absolute paths."""
    sha256: dict[str, str]
    """Content hash of every field that names files."""
    inputs: dict[str, RecordedInput]
    """Every path as written -> what it means."""


def resolve(
    source: Any,
    *,
    folder: Path,
    written: Mapping[str, YamlNode],
    where: YamlNode,
    recorded: Mapping[str, RecordedInput],
    hub_commits: HubCommits,
) -> InputFiles:
    """Find and hash the files of a data source.

    A relative path is looked for beside the sweep file first, then in the current folder. A field
    may hold a glob or a list; the hash of several files is that of the ordered list of their
    hashes. A path that was recorded is also looked for where it was, and must hold what it held. A
    data set of the hub is named with its commit from here on.

    Args:
        source: A data source's Config.
        folder: Where the sweep file lies.
        written: Fields of the source as written, for the places of mistakes.
        where: Blamed when a field was not written.
        recorded: The inputs of a recorded sweep file, by path as written.
        hub_commits: What pins data sets of the hub.

    Raises:
        InvalidError: If a file is not there, cannot be read or has changed since it was recorded.
    """
    places: dict[str, Path] = {}
    wrong: list[Diagnostic] = []
    absolute: dict[str, Any] = {}
    for name in source.files():
        value = getattr(source, name)
        is_list = isinstance(value, list | tuple)
        found: list[Any] = []
        for index, path in enumerate(value if is_list else (value,)):
            place = _item(written.get(name, where), index if is_list else None)
            if name in getattr(source, "HUB_FIELDS", ()) and str(path).startswith(PREFIX):
                pinned = hub_commits.pinned(str(path), place)
                if isinstance(pinned, Diagnostic):
                    wrong.append(pinned)
                else:
                    found.append(pinned)
                continue
            record, expected = recorded.get(str(path)), _expected(source, name)
            located = _locate(str(path), folder, record, place=place, expected=expected)
            if isinstance(located, Diagnostic):
                wrong.append(located)
            else:
                places[str(path)] = located
                found.append(located if isinstance(path, Path) else str(located))
        absolute[name] = tuple(found) if is_list else next(iter(found), value)
    if wrong:
        raise InvalidError(*wrong)
    source = dataclasses.replace(source, **absolute)
    digests = _digests_of(source, written, where)
    inputs = {
        path: RecordedInput(paths=(place,), sha256=_place_sha256(place))
        for path, place in places.items()
    }
    return InputFiles(source, digests, inputs)


def _digests_of(source: Any, written: Mapping[str, YamlNode], where: YamlNode) -> dict[str, str]:
    """Return the hash of every field that names files.

    Raises:
        InvalidError: If a file cannot be read.
    """
    wrong: list[Diagnostic] = []
    digests = {}
    for name, paths in source.files().items():
        several = list(paths) if isinstance(paths, list | tuple) else [paths]
        place = written.get(name, where)
        refused = [
            diagnostic
            for path in several
            if isinstance(path, Path)
            if (diagnostic := _unreadable(path, place, _expected(source, name)))
        ]
        wrong += refused
        if not refused:
            digests[name] = combined(
                [content_sha256(p) if isinstance(p, Path) else p.sha256 for p in several]
            )
    if wrong:
        raise InvalidError(*wrong)
    return digests


def content_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, read once per process unless it changes."""
    status = path.stat()
    key = (path.absolute(), status.st_size, status.st_mtime_ns)
    if key not in _digests:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        _digests[key] = digest.hexdigest()
    return _digests[key]


def combined(digests: Sequence[str]) -> str:
    """Return the hash of one file, or of several from theirs, in their order."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _item(place: YamlNode, index: int | None) -> YamlNode:
    if index is None or not isinstance(place.content, list):
        return place
    item: YamlNode = place.content[index]
    return item


def _locate(
    path: str, folder: Path, record: RecordedInput | None, *, place: YamlNode, expected: str
) -> Path | Diagnostic:
    """Return the absolute path or glob that is meant, or why there is none."""
    there = candidates(path, folder, record)
    for candidate in there:
        if record is None or _holds(candidate, record):
            return candidate
    if there:
        return changed(there[-1], place)
    return _missing(path, folder, place=place, expected=expected)


def candidates(path: str, folder: Path, record: RecordedInput | None) -> list[Path]:
    """Return the absolute paths or globs that may be meant and match something, best first."""
    expanded = Path(path).expanduser()
    places = [folder.absolute() / expanded, Path.cwd() / expanded]
    places += [] if record is None else record.paths
    found = []
    for candidate in places:
        if candidate.exists():
            # A link is not followed: its target may lack the extension that tells the format.
            found.append(candidate.parent.resolve() / candidate.name)
        elif glob.has_magic(path) and next(_matches(candidate), None) is not None:
            found.append(candidate)
    return found


def _holds(place: Path, record: RecordedInput) -> bool:
    """Whether a file or glob has the recorded content."""
    try:
        return _place_sha256(place) == record.sha256
    except OSError:
        return False


def _place_sha256(place: Path) -> str:
    """Return the hash of a file or folder, or of what an absolute glob matches, by name."""
    places = [place] if place.exists() else sorted(_matches(place))
    return combined([content_sha256(file) for each in places for file in _files_of(each)])


def _files_of(place: Path) -> list[Path]:
    """Return a file, or the files that tell what a folder holds.

    A manifest has the hashes of all tokens beside it, which may be hundreds of gigabytes.
    """
    if not place.is_dir():
        return [place]
    manifest = place / "manifest.json"
    if manifest.exists():
        return [manifest]
    return sorted(file for file in place.rglob("*") if file.is_file())


def _matches(pattern: Path) -> Iterator[Path]:
    """Yield the files of an absolute glob."""
    fixed = next(parent for parent in pattern.parents if not glob.has_magic(str(parent)))
    return fixed.glob(str(pattern.relative_to(fixed)))


def _expected(source: Any, field: str) -> str:
    """Return the format of the files that a field names, the source's own by default."""
    return str(getattr(source, "FIELD_FORMATS", {}).get(field, source.FORMAT))


def _missing(path: str, folder: Path, *, place: YamlNode, expected: str) -> Diagnostic:
    beside = folder / Path(path).parent
    names = [p.name for p in beside.iterdir()] if beside.is_dir() else []
    close = difflib.get_close_matches(Path(path).name, names, n=1)
    guess = f"did you mean {Path(path).parent / close[0]}? It should be" if close else "expected:"
    kind = "no file matches" if glob.has_magic(path) else "no such file:"
    return place.diagnostic(
        f"{kind} {path} (looked beside the sweep file and in the current folder)",
        f"{guess} {expected}",
    )


def changed(file: Path, place: YamlNode) -> Diagnostic:
    """Return that a recorded input is another one now."""
    return place.diagnostic(
        f"{file} does not hold what it held when the sweep was submitted",
        "restore it, or submit the sweep file that names the new content",
    )


def _unreadable(path: Path, place: YamlNode, expected: str) -> Diagnostic | None:
    if path.is_dir():
        return place.diagnostic(f"{place.shown} is a folder", f"expected: {expected}")
    if not path.is_file():
        if path.parent.is_file():  # of a folder, the file that says what it holds
            return place.diagnostic(
                f"{place.shown}: {path.parent} is a file", f"expected: {expected}"
            )
        kind = "is no plain file" if path.exists() else "is not there"
        return place.diagnostic(f"{place.shown}: {path} {kind}", f"expected: {expected}")
    try:
        with path.open("rb"):
            return None
    except OSError as error:
        return place.diagnostic(
            f"{place.shown} cannot be read ({error.strerror})", "check its permissions"
        )
