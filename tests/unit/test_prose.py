"""Prose: lengths of sentences in the documentation, and of first lines of docstrings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [
    file
    for package in ("orchestrator", "workloads", "analysis")
    for file in sorted((ROOT / package).rglob("*.py"))
]

WORDS = 30
"""Of one sentence, at most."""
CHARACTERS = 80
"""Of the first line of a module's docstring, at most."""

FENCED = re.compile(r"^\s*```.*?^\s*```|<!--.*?-->", re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"\s*(?:[*+-]|\d+\.)\s+")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|et al|cf|vs|Fig|approx)\.")
END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\")])\s+")


def paragraphs(page: str) -> Iterator[str]:
    """Yield paragraphs and items of lists; no tables, headings, pictures, code and formulas."""
    lines: list[str] = []
    after_blank, in_list = True, False
    for line in FENCED.sub("\n", page).splitlines():
        item = ITEM.match(line)
        left_out = line.lstrip().startswith(("#", "|", "![")) or (
            line.startswith("    ") and after_blank and not in_list
        )
        if item or left_out or not line.strip():
            yield " ".join(lines)
            lines = []
        if not left_out and line.strip():
            lines.append(line[item.end() :] if item else line.strip())
            if item or not line.startswith(" "):
                in_list = bool(item) or (in_list and not after_blank)
        after_blank = left_out or not line.strip()
    yield " ".join(lines)


def long_sentences(page: str) -> list[str]:
    """Return the sentences of more than WORDS words. Code is one word, a link its text's."""
    found = []
    for paragraph in paragraphs(page):
        text = re.sub(r"`[^`]*`", "code", paragraph)
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        text = re.sub(r"(?<!\w)\*+(?=\S)|(?<=\S)\*+(?!\w)", "", text)
        for sentence in END.split(ABBREVIATION.sub(r"\1", text)):
            if sum(bool(re.search(r"\w", word)) for word in sentence.split()) > WORDS:
                found.append(sentence)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page):
    assert not long_sentences(page.read_text(encoding="utf-8"))


def test_first_lines_of_docstrings_are_short():
    long = []
    for file in MODULES:
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        if len(docstring.partition("\n")[0]) > CHARACTERS:
            long.append(str(file.relative_to(ROOT)))
    assert not long


HALF = " ".join(["word"] * 16)


@pytest.mark.parametrize(
    "page",
    [
        f"{HALF} {HALF}.",
        f"{HALF}\n{HALF}.",
        f"{HALF}; {HALF}.",
        f"{HALF}: 3 {HALF}.",
        f"{HALF} [{HALF}](page.md#heading).",
        f"{HALF} (Berges et al. 2024) {HALF}.",
        f"A table:\n\n| a |\n|---|\n| b |\n\n{HALF} {HALF}.",
        f"* **Item.** {HALF}\n  {HALF}.",
        f"* Item.\n\n    {HALF} {HALF}.",
        f"* Item.\n\nText.\n\n1. {HALF}\n   {HALF}.",
    ],
)
def test_a_long_sentence_is_found(page):
    assert len(long_sentences(page)) == 1


@pytest.mark.parametrize(
    "page",
    [
        f"{HALF}. {HALF}.",
        f"**{HALF}.** {HALF}.",
        f"({HALF}.) {HALF}.",
        f"{HALF}\n\n{HALF}.",
        f"* {HALF}\n* {HALF}",
        f"`{HALF}` {HALF}.",
        f"[Link]({HALF}) {HALF}.",
        f"# {HALF} {HALF}",
        f"| {HALF} {HALF} |",
        f"```\n{HALF} {HALF}\n```",
        f"1. Item:\n\n   ```\n   {HALF} {HALF}\n   ```",
        f"A formula:\n\n    {HALF}\n    {HALF}\n\nMore.",
        f"* Item.\n\nA formula:\n\n    {HALF} {HALF}",
    ],
)
def test_short_sentences_tables_code_and_formulas_are_not(page):
    assert not long_sentences(page)
