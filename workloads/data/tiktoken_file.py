"""Reader of tiktoken's vocabulary files, as byte-level BPE of the `tokenizers` package.

A file has a line per token: its bytes in base64, and its rank. Neither the pattern that cuts text
into words nor the special tokens are in it: both follow from the published vocabulary, which is
known by its size.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from workloads.data.readers.problems import DataError

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n?")
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


@dataclass(frozen=True)
class PublishedVocabulary:
    """What is not in the file."""

    pattern: str
    separator: str
    separator_id: int


PUBLISHED = {
    50_256: PublishedVocabulary(_GPT2, "<|endoftext|>", 50_256),
    50_280: PublishedVocabulary(_GPT2, "<|endoftext|>", 50_256),  # ranks leave 50,256 out
    100_256: PublishedVocabulary(_WORDS + "{1,3}" + _REST, "<|endoftext|>", 100_257),
    128_000: PublishedVocabulary(_WORDS + "{1,3}" + _REST, "<|end_of_text|>", 128_001),
    151_643: PublishedVocabulary(_WORDS + _REST, "<|endoftext|>", 151_643),
    199_998: PublishedVocabulary(_CASED, "<|endoftext|>", 199_999),
}
"""By number of tokens: r50k_base, p50k_base, cl100k_base, Llama 3, Qwen, o200k_base. Sources: the
pages of tiktoken, of Llama 3 and of Qwen."""


def is_tiktoken(path: Path) -> bool:
    """Whether the first line is one of a tiktoken file."""
    with path.open("rb") as file:
        return _LINE.fullmatch(file.readline(1_000)) is not None


def tiktoken_tokenizer(path: Path) -> Any:
    """Return a `tokenizers.Tokenizer` with the same ids.

    Raises:
        DataError: If a line is damaged or the vocabulary is none of the published ones.
    """
    ranks = _read_ranks(path)
    known = PUBLISHED.get(len(ranks))
    if known is None:
        sizes = ", ".join(f"{size:,}" for size in PUBLISHED)
        raise DataError(
            [
                f"{path}: has {len(ranks):,} tokens, and the published vocabularies have {sizes}; "
                "convert it to a tokenizer.json, which also says how text is cut"
            ]
        )
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    letters = _byte_letters()
    spelt = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocabulary = {spelt[token]: rank for token, rank in ranks.items()}
    # Ids between the last token and the separator belong to other special tokens.
    for number in range(len(ranks), known.separator_id):
        vocabulary[f"<|unused {number}|>"] = number
    vocabulary[known.separator] = known.separator_id
    merges = [
        (spelt[left], spelt[right])
        for token in sorted(ranks, key=ranks.__getitem__)
        if len(token) > 1
        for left, right in [_halves(token, ranks)]
    ]
    model = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(known.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken(known.separator, special=True)])
    return model


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
