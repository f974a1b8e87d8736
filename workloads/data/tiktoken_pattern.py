"""Patterns by which tiktoken cuts text, translated for `tokenizers`."""

import re
from pathlib import Path

from workloads.data.readers.problems import DataError

_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PATTERNS = {
    "r50k_base": _GPT2,
    "p50k_base": _GPT2,
    "cl100k_base": _WORDS + "{1,3}" + _REST,
    "o200k_base": _CASED,
}
"""By the names that tiktoken has for its encodings."""
QWEN = _WORDS + _REST

_QUANTIFIER = re.compile(r"\{\d*(?:,\d*)?\}")
_FLAGS = re.compile(r"\(\?([a-zA-Z]*-?[a-zA-Z]*)[:)]")


def for_tokenizers(pattern: str, beside: Path) -> str:
    r"""Return a pattern of tiktoken in the dialect of `tokenizers`, which is Oniguruma's.

    There `^` and `$` match at every line, and `x{1,3}+` repeats `x{1,3}` instead of keeping what it
    took; `(?m)` is the flag that tiktoken's dialect calls `(?s)`.

    Args:
        pattern: A regular expression.
        beside: The file that it is from, for messages.

    Raises:
        DataError: If it has other flags than `i`, or a bracket without its other half.
    """
    out: list[str] = []
    groups: list[int] = []
    last = at = 0  # where the last atom begins in `out`; where `pattern` is read
    while at < len(pattern):
        char, size = pattern[at], 1
        quantifier = _QUANTIFIER.match(pattern, at)
        if quantifier is not None and out:
            size = len(quantifier[0])
            out.append(quantifier[0])
            if pattern.startswith("+", at + size):
                out[last:] = ["(?>", *out[last:], ")"]
                size += 1
        elif char in "*+?|":
            out.append(char)
        elif char == "(":
            flags = _FLAGS.match(pattern, at)
            if flags is not None and set(flags[1]) - set("i-"):
                raise DataError(
                    [f"{beside}: pat_str: {flags[0]} at character {at + 1}: only (?i: is read here"]
                )
            size = 2 if pattern.startswith("(?", at) else 1
            groups.append(len(out))
            out.append(pattern[at : at + size])
        elif char == ")":
            if not groups:
                raise DataError([f"{beside}: pat_str: ) at character {at + 1} has no ("])
            last = groups.pop()
            out.append(char)
        else:
            last = len(out)
            size = _atom_size(pattern, at)
            out.append({"^": r"\A", "$": r"\z"}.get(char, pattern[at : at + size]))
        at += size
    return "".join(out)


def _atom_size(pattern: str, at: int) -> int:
    """Return how many characters a literal, an escape or a character class takes."""
    if pattern[at] == "\\":
        named = re.compile(r"\\[pPxu]\{[^}]*\}").match(pattern, at)
        return len(named[0]) if named else 2
    if pattern[at] != "[":
        return 1
    end = at + 1 + pattern.startswith("^", at + 1)
    end += pattern.startswith("]", end)  # a literal one
    while end < len(pattern) and pattern[end] != "]":
        end += _atom_size(pattern, end)
    return end + 1 - at
