"""Encoder of document batches: tokens, sizes, split hashes, evaluation n-grams."""

import hashlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.data.preparation.ngrams import ngram_hashes
from workloads.data.tokenizer import load, token_dtype


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """What every encoder process needs to know."""

    tokenizer: Path
    separator: str
    """Text of the token that begins every document."""
    vocab_size: int
    evaluation_ngrams: NDArray[np.uint64] | None = None
    """Sorted hashes to look for; None looks for nothing."""


@dataclass(frozen=True, kw_only=True)
class EncodedBatch:
    """What one batch of documents became."""

    tokens: NDArray[np.integer]
    """(tokens,) of all documents, each begun by the separator."""
    lengths: NDArray[np.int64]
    """(documents,) tokens with the separator."""
    n_bytes: NDArray[np.int64]
    """(documents,) UTF-8 bytes of text."""
    places: NDArray[np.float64]
    """(documents,) hashes in [0, 1): which split a document belongs to."""
    found_ngrams: NDArray[np.uint64]
    """Hashes of evaluation n-grams that these documents hold; sorted, once each."""

    def where(self, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
        """Return tokens and lengths of the chosen documents."""
        if chosen.all():
            return self.tokens, self.lengths
        return self.tokens[np.repeat(chosen, self.lengths)], self.lengths[chosen]


class Encoder:
    """Encodes batches in the process that calls it."""

    def __init__(self, settings: EncoderSettings) -> None:
        """Load the tokenizer."""
        self._settings = settings
        self._dtype = token_dtype(settings.vocab_size)
        self._tokenizer = load(
            settings.tokenizer, vocab_size=settings.vocab_size, separator=settings.separator
        )

    def encode(self, texts: list[str]) -> EncodedBatch:
        """Return what the texts become."""
        ids = self._tokenizer.encode(texts)
        lengths = np.fromiter((len(row) + 1 for row in ids), dtype=np.int64, count=len(ids))
        separator = (self._tokenizer.separator,)
        flat = chain.from_iterable(chain.from_iterable((separator, row) for row in ids))
        encoded = [text.encode() for text in texts]
        return EncodedBatch(
            tokens=np.fromiter(flat, dtype=self._dtype, count=int(lengths.sum())),
            lengths=lengths,
            n_bytes=np.array([len(text) for text in encoded], dtype=np.int64),
            places=np.array([unit_hash(text, "valid") for text in encoded]),
            found_ngrams=self._found(texts),
        )

    def _found(self, texts: list[str]) -> NDArray[np.uint64]:
        wanted = self._settings.evaluation_ngrams
        if wanted is None or not len(wanted):
            return np.empty(0, dtype=np.uint64)
        here = np.concatenate([ngram_hashes(text) for text in texts])
        places = np.minimum(np.searchsorted(wanted, here), len(wanted) - 1)
        return np.unique(here[wanted[places] == here])


def unit_hash(text: bytes, purpose: str) -> float:
    """Return a hash in [0, 1) of UTF-8 text, one for each purpose."""
    digest = hashlib.blake2b(text, digest_size=8, person=purpose.encode()).digest()
    return int.from_bytes(digest, "big") / 2**64
