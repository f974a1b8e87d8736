"""Reader of tiktoken vocabulary files, as byte-level BPE of `tokenizers`.

A file has a line per token: its bytes in base64, and its rank. Neither the pattern that cuts text
into words nor the special tokens are in it. Of published vocabularies both are known by the size;
of any other, `FILE.json` beside the file says them by tiktoken's own names:

    {"pat_str": "cl100k_base", "special_tokens": {"<|endoftext|>": 50000}}

`pat_str` is a regular expression, or the name of an encoding that has it (`PATTERNS`).
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from workloads.data.readers.problems import DataError
from workloads.data.tiktoken_pattern import PATTERNS, QWEN, for_tokenizers

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n?")


@dataclass(frozen=True)
class PublishedVocabulary:
    """What is not in the file."""

    pattern: str
    separator: str
    separator_id: int


PUBLISHED = {
    50_256: PublishedVocabulary(PATTERNS["r50k_base"], "<|endoftext|>", 50_256),
    # Its ranks leave 50,256 out.
    50_280: PublishedVocabulary(PATTERNS["p50k_base"], "<|endoftext|>", 50_256),
    100_256: PublishedVocabulary(PATTERNS["cl100k_base"], "<|endoftext|>", 100_257),
    128_000: PublishedVocabulary(PATTERNS["cl100k_base"], "<|end_of_text|>", 128_001),
    151_643: PublishedVocabulary(QWEN, "<|endoftext|>", 151_643),
    199_998: PublishedVocabulary(PATTERNS["o200k_base"], "<|endoftext|>", 199_999),
}
"""By number of tokens: r50k_base, p50k_base, cl100k_base, Llama 3, Qwen, o200k_base. Sources: the
pages of tiktoken, of Llama 3 and of Qwen."""
_MOST_SPECIAL = 1 << 16
"""Ids after the last token that special tokens may have."""


def is_tiktoken(path: Path) -> bool:
    """Whether the first line is one of a tiktoken file."""
    with path.open("rb") as file:
        return _LINE.fullmatch(file.readline(1_000)) is not None


def tokenizer_files(path: Path) -> tuple[Path, ...]:
    """Return a tokenizer's file, of any kind, and the one beside it that says how text is cut."""
    beside = _settings_file(path)
    if beside.is_file() and path.is_file() and is_tiktoken(path):
        return path, beside
    return (path,)


def _settings_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _pattern_and_special_tokens(
    path: Path, ranks: Mapping[bytes, int]
) -> tuple[str, dict[str, int]]:
    """Return what is not in the file.

    Raises:
        DataError: If nobody says it, or something that cannot be.
    """
    beside, known = _settings_file(path), PUBLISHED.get(len(ranks))
    if not beside.is_file():
        if known is not None:
            return known.pattern, {known.separator: known.separator_id}
        sizes = ", ".join(f"{size:,}" for size in PUBLISHED)
        example = {
            "pat_str": "cl100k_base",
            "special_tokens": {"<|endoftext|>": 1 + max(ranks.values(), default=-1)},
        }
        raise DataError(
            [
                f"{path}: has {len(ranks):,} tokens, and the published vocabularies have {sizes}; "
                f"write into {beside.name} beside it how text is cut (a regular expression, or "
                f"{', '.join(PATTERNS)}) and the special tokens: {json.dumps(example)}"
            ]
        )
    try:
        settings = json.loads(beside.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError([f"{beside}: is not JSON ({error}); correct it"]) from error
    if not isinstance(settings, dict) or set(settings) != {"pat_str", "special_tokens"}:
        raise DataError([f"{beside}: must hold pat_str and special_tokens, and nothing else"])
    pattern, special = settings["pat_str"], settings["special_tokens"]
    if not isinstance(pattern, str) or not pattern:
        names = ", ".join(PATTERNS)
        raise DataError([f"{beside}: pat_str: must be a regular expression, or one of {names}"])
    most = max(ranks.values(), default=0) + _MOST_SPECIAL
    numbers: list[Any] = list(special.values()) if isinstance(special, dict) else [None]
    if not all(type(n) is int and 0 <= n <= most for n in numbers) or "" in special:
        raise DataError(
            [f"{beside}: special_tokens: must map the text of each token to its id, at most {most}"]
        )
    known_ids = set(ranks.values())
    taken = next((n for n in numbers if n in known_ids or numbers.count(n) > 1), None)
    if taken is not None:
        raise DataError(
            [f"{beside}: special_tokens: id {taken} is also that of another token; correct it"]
        )
    return PATTERNS.get(pattern) or for_tokenizers(pattern, beside), special


def tiktoken_tokenizer(path: Path) -> Any:
    """Return a `tokenizers.Tokenizer` with the same ids.

    Raises:
        DataError: If a line is damaged, or nobody says how text is cut.
    """
    ranks = _read_ranks(path)
    pattern, special = _pattern_and_special_tokens(path, ranks)
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise DataError(
            [
                f"{path}: has no token for byte 0x{missing:02x}, as every such file has; copy it "
                "again"
            ]
        )
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = _byte_letters()
    spelt = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocabulary = {spelt[token]: rank for token, rank in ranks.items()}
    # A word that is spelt like an entry of the vocabulary becomes it. No word of the published
    # patterns is spelt like a special token; of others, those stay outside.
    last = max(ranks.values())
    is_published = not _settings_file(path).is_file()
    vocabulary |= {text: n for text, n in special.items() if is_published or n < last}
    # Other ids belong to special tokens that are not known here.
    used = set(vocabulary.values())
    vocabulary |= {f"<|unused {n}|>": n for n in range(max(used)) if n not in used}
    merges = [
        (spelt[left], spelt[right])
        for token in sorted(ranks, key=ranks.__getitem__)
        if len(token) > 1
        for left, right in [_halves(token, ranks)]
    ]
    model = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_regex(pattern, path), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model.decoder = decoders.ByteLevel()
    # Those outside get the ids after the vocabulary's, one after another.
    texts = {n: text for text, n in special.items()}
    outside = range(max(used) + 1, max(texts, default=0) + 1)
    named = texts | {n: f"<|unused {n}|>" for n in outside if n not in texts}
    model.add_special_tokens([AddedToken(named[n], special=True) for n in sorted(named)])
    return model


def _regex(pattern: str, path: Path) -> Any:
    from tokenizers import Regex

    try:
        return Regex(pattern)
    except Exception as error:  # a bare one
        raise DataError([f"{_settings_file(path)}: pat_str: {error}; correct it"]) from error


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise DataError(
                [f"{path}:{number}: is not `base64 rank` ({error}); copy the file again"]
            ) from error
    return ranks


def _halves(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two tokens whose merge makes this one: what merges of lower rank leave."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(a + b, ranks[token]) for a, b in pairwise(parts)]
        best = min(range(len(joined)), key=joined.__getitem__)
        if joined[best] >= ranks[token]:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], b"".join(parts[1:])


def _byte_letters() -> list[str]:
    """Return the printable letter by which byte-level BPE writes each byte (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    letters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]
