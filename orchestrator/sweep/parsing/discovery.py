"""Discovery of sweep files: from command-line arguments to their texts."""

import difflib
import importlib.resources
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.records.errors import ConfigError, ConfigProblem

MAX_BYTES = 2**20
"""A sweep file is written by hand; what is larger is something else (a data set, a log)."""

_MARK = re.compile(r"^--- # file: (.+?)\r?$", re.MULTILINE)
"""Begins a file in the text that `joined` makes."""


class Source(NamedTuple):
    """One sweep file's text."""

    file: Path
    """Where it is read: as typed, or found."""
    text: str
    label: str
    """How the trials of several files call theirs: `dense.yaml`."""
    lines_above: int = 0
    """Lines of `file` above the text, where the file holds several."""


def sources(arguments: Sequence[Path]) -> tuple[list[Source], list[ConfigProblem]]:
    """Return the texts of all files that are meant, in order, and the problems of finding them.

    Each argument is a file, a folder (all its YAML files, by name), or the bare name of a bundled
    sweep or folder of sweeps.
    """
    found: list[Source] = []
    problems: list[ConfigProblem] = []
    seen: set[Path] = set()
    for argument in arguments:
        try:
            meant = files(argument)
        except ConfigError as error:
            problems += error.problems
            continue
        for file in meant:
            try:
                if file.resolve() in seen:
                    raise _refused(file, "is named twice", "name it once")
                seen.add(file.resolve())
                found += split(file, read(file))
            except ConfigError as error:
                problems += error.problems
    names = [source.file.name for source in found if source.label == source.file.name]
    return [
        source._replace(label=str(source.file))
        if source.label == source.file.name and names.count(source.label) > 1
        else source
        for source in found
    ], problems


def files(argument: Path) -> list[Path]:
    """Return the sweep files that one argument means.

    Raises:
        ConfigError: If there is none; lists the bundled sweeps.
    """
    if argument.is_file():
        return [argument]
    inside = _in_folder(argument)
    if inside:
        return inside
    shipped = _shipped(argument)
    if shipped:
        return shipped
    if argument.is_dir():
        raise _refused(
            argument, "is a folder without a .yaml file", "name a file, or put one in it"
        )
    if argument.exists():
        raise _refused(argument, "is not a plain file", "name a YAML file")
    names = bundled()
    listed = ", ".join(names) or "none"
    near = [p.name for p in argument.parent.glob("*.y*ml")] if argument.parent.is_dir() else []
    close = difflib.get_close_matches(argument.name, near, n=1) or difflib.get_close_matches(
        argument.stem, names, n=1
    )
    guess = f"did you mean {close[0]}? " if close else ""
    raise _refused(argument, "no such file", f"{guess}bundled sweeps, by name alone: {listed}")


def bundled() -> dict[str, Path]:
    """Return the sweeps that come with the package: name -> file, or folder of files."""
    root = _root()
    folders = {path.name: path for path in root.iterdir() if _in_folder(path)}
    named = folders | {path.stem: path for path in root.glob("*.yaml")}
    return {name: named[name] for name in sorted(named)}


def _root() -> Path:
    return Path(str(importlib.resources.files("sweeps")))


def _shipped(argument: Path) -> list[Path]:
    """Return the bundled files of a name: `quickstart`, `smoke`, or one file, `smoke/dense`."""
    if argument.is_absolute() or ".." in argument.parts or not argument.name:
        return []
    path = _root() / argument
    for file in (path, path.with_name(f"{path.name}.yaml")):
        if file.is_file() and file.suffix == ".yaml":
            return [file]
    return _in_folder(path)


def _in_folder(path: Path) -> list[Path]:
    """Return the YAML files of a folder, by name, without hidden ones; none if it is no folder."""
    if not path.is_dir():
        return []
    inside = (p for p in path.iterdir() if p.suffix in (".yaml", ".yml") and p.is_file())
    return sorted(p for p in inside if not p.name.startswith("."))


def joined(parts: Sequence[Source]) -> str:
    """Return one text that holds the files of a sweep; `split` is the inverse."""
    if len(parts) == 1 and not parts[0].lines_above:
        return parts[0].text
    asked = questions(part.text for part in parts)
    lines = [f"# Question: {asked}"] if asked else []
    for part in parts:
        lines += [f"--- # file: {part.label}", part.text.rstrip("\n")]
    return "\n".join(lines) + "\n"


def split(file: Path, text: str) -> list[Source]:
    """Return the files that a text holds: itself, or those that `joined` put together."""
    marks = list(_MARK.finditer(text))
    if not marks:
        return [Source(file=file, text=text, label=file.name)]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [
        Source(
            file=file,
            text=text[mark.end() : end].removeprefix("\n"),
            label=mark[1],
            lines_above=text.count("\n", 0, mark.end()) + 1,
        )
        for mark, end in zip(marks, ends, strict=True)
    ]


def read(file: Path) -> str:
    """Return the text of a sweep file.

    Raises:
        ConfigError: If it is too large, unreadable, not UTF-8 or empty.
    """
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise _refused(
                file,
                f"{size / 2**20:.1f} MiB is too large for a sweep file, "
                f"the limit is {MAX_BYTES // 2**20} MiB",
                "keep data in a file of its own and name it under data:",
            )
        content = file.read_bytes()
    except OSError as error:
        raise _refused(
            file, f"cannot be read ({error.strerror})", "check its permissions"
        ) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        raise ConfigError(
            [
                ConfigProblem(
                    file=file,
                    line=before.count(b"\n") + 1,
                    column=error.start - (before.rfind(b"\n") + 1) + 1,
                    key="",
                    message=f"not UTF-8 text: byte 0x{content[error.start]:02X}",
                    fix="save the file as UTF-8",
                )
            ]
        ) from error
    if not text.strip():
        raise _refused(
            file,
            "is empty",
            "begin with name:, data:, train: and model:; "
            "memscale plan --show quickstart shows a sweep that works",
        )
    return text


def question(text: str) -> str | None:
    """Return what the comment `# Question:` at the top asks, its continuation lines joined."""
    asked: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            if line.strip() and not line.startswith("---"):
                break
            if asked:
                break
            continue
        comment = line.lstrip("#").strip()
        label, colon, rest = comment.partition(":")
        if colon and label.lower() == "question":
            asked = [rest.strip()]
        elif asked and ((colon and label.istitle() and " " not in label) or not comment):
            break
        elif asked:
            asked.append(comment)
    return " ".join(part for part in asked if part) or None


def questions(texts: Iterable[str]) -> str | None:
    """Return what several files ask, each question once."""
    asked = dict.fromkeys(filter(None, map(question, texts)))
    if len(asked) < 2:
        return next(iter(asked), None)
    return " ".join(one if one[-1] in ".?!" else f"{one}." for one in asked)


def _refused(file: Path, message: str, fix: str) -> ConfigError:
    return ConfigError(
        [ConfigProblem(file=file, line=None, column=None, key="", message=message, fix=fix)]
    )
