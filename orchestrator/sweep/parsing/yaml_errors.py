"""Explanations of YAML syntax errors for authors of sweep files."""

import re
from collections.abc import Sequence

import yaml

from orchestrator.sweep.parsing.diagnostics import Diagnostic

_NO_SPACE = re.compile(r"\s*(?:- )*([\w.]+):(?=[^\s:/])")

_COMMENT = re.compile(r"(?:^|\s)#.*")
_BARE = re.compile(r"\s*[A-Za-z_][\w.]*(?:\s+[^\s:,'\"\[\]{}][^:\[\]{}]*)?")
"""A line that can be a key without its colon, and its value."""
_SECTION = re.compile(r"\s*[\w.]+:")

_LINE_ENDS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What YAML counts as the end of a line."""

_EXPLAINED = (
    # (part of PyYAML's words, what is wrong, what to do); {opened} and {quoted} are filled in.
    (
        "mapping values are not allowed",
        "a second colon, or a key indented deeper than its neighbours",
        "align the key with its neighbours, or quote text that holds ': '",
    ),
    ("could not find expected ':'", "the key begun at {opened} has no colon", "write key: value"),
    (
        "expected ',' or ']'",
        "the list opened with [ at {opened} is not closed here",
        "put a comma between its items and ] at its end",
    ),
    (
        "expected ',' or '}'",
        "the mapping opened with {{ at {opened} is not closed here",
        "put a comma between its entries and }} at its end",
    ),
    (
        "expected <block end>",
        "this line does not line up with the block that begins at {opened}",
        "indent it by as many spaces as its neighbours",
    ),
    (
        "undefined alias",
        "alias *{quoted} has no anchor above it",
        "write &{quoted} before the value it should repeat, or quote text that begins with *",
    ),
    (
        "another document",
        "a second YAML document begins here",
        "one file is one sweep: remove the line ---",
    ),
    (
        "cannot start any token",
        "a value cannot begin with {quoted!r}",
        "put the text in quotes",
    ),
)


def explain(error: yaml.MarkedYAMLError, text: str) -> Diagnostic:
    """Return what the YAML parser stumbled over, with its place."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = _LINE_ENDS.split(text)
    written = lines[line] if line < len(lines) else ""
    problem = error.problem or "it cannot be read"
    indent = written[: len(written) - len(written.lstrip())]
    if "\t" in indent or r"'\t'" in problem:
        column = written.index("\t") if "\t" in written else column
        return _diagnostic(
            line, column, "a tab", "indent with spaces: replace the tab by two of them"
        )
    for number in (line, line - 1):
        crowded = _NO_SPACE.match(lines[number]) if 0 <= number < len(lines) else None
        if crowded:
            fix = f"write {crowded[1]}: {lines[number][crowded.end() :].strip()[:40]}"
            return _diagnostic(number, crowded.end(), "no space after a colon", fix)
    # The latter where a comment ends the line without a colon.
    if "mapping values are not allowed" in problem or "'<block mapping start>'" in problem:
        bare = _without_colon(lines, line)
        if bare is not None:
            key, _, value = _COMMENT.sub("", lines[bare]).strip().partition(" ")
            column = len(lines[bare]) - len(lines[bare].lstrip()) + len(key)
            fix = f"write {key}: {value.strip()[:40]}".rstrip()
            return _diagnostic(bare, column, f"line {bare + 1} has no colon after its key", fix)
    words = {
        "opened": f"line {error.context_mark.line + 1}"
        if error.context_mark
        else "an earlier line",
        "quoted": (re.findall(r"'(.*?)'", problem) or [""])[0],
    }
    if "quoted scalar" in (error.context or ""):
        message = f"the quote opened at {words['opened']} is not closed"
        return _diagnostic(line, column, message, "close it, or double it ('') inside quoted text")
    for part, message, fix in _EXPLAINED:
        if part in problem:
            return _diagnostic(line, column, message.format(**words), fix.format(**words))
    return _diagnostic(line, column, problem, "look at this line and the one above it")


def explain_character(error: yaml.reader.ReaderError, text: str) -> Diagnostic:
    """Return which character YAML refuses, with its place."""
    before = text[: error.position]
    column = error.position - (before.rfind("\n") + 1)
    message = f"the character U+{ord(text[error.position]):04X} is not allowed"
    return _diagnostic(
        before.count("\n"), column, message, "remove it; most editors do not show it"
    )


def _without_colon(lines: Sequence[str], number: int) -> int | None:
    """Return which line before this one is a key without a colon; None if none surely is.

    Lines without one may also belong to a list, or to a text of several lines.
    """
    found: int | None = None
    for above in range(number - 1, -1, -1):
        written = _COMMENT.sub("", lines[above]).rstrip()
        if not written or written == "---":
            continue
        if written.lstrip().startswith("-") or not _BARE.fullmatch(written):
            # Right below a key that has no value yet, keys are expected.
            return found if _SECTION.fullmatch(written) else None
        found = above
    return found


def _diagnostic(line: int, column: int, message: str, fix: str) -> Diagnostic:
    return Diagnostic(
        line=line + 1, column=column + 1, key="", message=f"not valid YAML: {message}", fix=fix
    )
