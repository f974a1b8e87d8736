"""From what was typed on the command line to the text of a sweep file."""

import difflib
import importlib.resources
from pathlib import Path

from orchestrator.errors import ConfigError, Problem

MAX_BYTES = 2**20
"""A sweep file is written by hand; what is larger is something else (a data set, a log)."""


def find(argument: Path) -> Path:
    """Return the sweep file that is meant: a path, or the bare name of a bundled sweep.

    Raises:
        ConfigError: If there is none; lists the bundled sweeps.
    """
    if argument.is_file():
        return argument
    names = bundled()
    if len(argument.parts) == 1 and argument.name.removesuffix(".yaml") in names:
        return names[argument.name.removesuffix(".yaml")]
    listed = ", ".join(names) or "none"
    if argument.is_dir():
        inside = sorted(p.name for pattern in ("*.yaml", "*.yml") for p in argument.glob(pattern))
        choice = (
            f"one of its files: {', '.join(inside[:10])}"
            if inside
            else "a file; it holds no .yaml file"
        )
        raise _refused(argument, "is a folder", f"name {choice}")
    if argument.exists():
        raise _refused(argument, "is not a plain file", "name a YAML file")
    near = [p.name for p in argument.parent.glob("*.y*ml")] if argument.parent.is_dir() else []
    close = difflib.get_close_matches(argument.name, near, n=1) or difflib.get_close_matches(
        argument.stem, names, n=1
    )
    guess = f"did you mean {close[0]}? " if close else ""
    raise _refused(argument, "no such file", f"{guess}bundled sweeps, by name alone: {listed}")


def bundled() -> dict[str, Path]:
    """Return the sweeps that come with the package: name -> file."""
    folder = Path(str(importlib.resources.files("sweeps")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


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
                f"{size / 2**20:.1f} MiB is too large for a sweep file, the limit is {MAX_BYTES // 2**20} MiB",
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
                Problem(
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
            "begin with name:, data:, train: and model:; memscale plan quickstart shows a sweep that works",
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


def _refused(file: Path, message: str, fix: str) -> ConfigError:
    return ConfigError(
        [Problem(file=file, line=None, column=None, key="", message=message, fix=fix)]
    )
