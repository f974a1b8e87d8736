"""Vectorised assembly of word-level documents from template rows.

No Python loop goes over people.

A document is the separator followed by up to k segments (sentences). A segment is one row of a
table of codes: a code >= 0 is a token, a code <= FIRST_SLOT stands for a slot of the person (a name
part, a value), EMPTY pads the row. Slot j has the code FIRST_SLOT - j.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EMPTY = -1
FIRST_SLOT = -2
NO_SEGMENT = 0
"""Row of a SegmentTable that adds nothing; fills documents with fewer segments than others."""


@dataclass(frozen=True, kw_only=True)
class SegmentTable:
    """Every template as a padded row of codes."""

    codes: NDArray[np.int32]
    """(n_segments, longest); row NO_SEGMENT is empty."""
    lengths: NDArray[np.int64]
    """(n_segments,) tokens of a row once its slots are filled."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "SegmentTable":
        """Pad rows of codes; row i of the argument becomes segment i + 1."""
        longest = max((len(row) for row in rows), default=0)
        codes = np.full((len(rows) + 1, max(longest, 1)), EMPTY, dtype=np.int32)
        for i, row in enumerate(rows, start=1):
            codes[i, : len(row)] = row
        return cls(codes=codes, lengths=(codes != EMPTY).sum(axis=1).astype(np.int64))

    def documents(
        self,
        segments: NDArray[np.integer],
        people: NDArray[np.integer],
        slots: NDArray[np.integer],
        *,
        separator: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the documents' tokens one after the other, and the length of each.

        Args:
            segments: (documents, k) rows of this table, in reading order.
            people: (documents,) whom each document is about.
            slots: (people, n_slots) tokens that fill the slots.
            separator: Token that begins every document.
        """
        codes = self.codes[segments].reshape(len(segments), -1)
        codes = np.concatenate(
            [np.full((len(segments), 1), separator, dtype=np.int32), codes], axis=1
        )
        document, column = np.nonzero(codes <= FIRST_SLOT)
        slot = FIRST_SLOT - codes[document, column]
        codes[document, column] = slots[people[document], slot]
        return codes[codes != EMPTY], 1 + self.lengths[segments].sum(axis=1)


def split(tokens: NDArray[np.int32], lengths: NDArray[np.int64]) -> list[NDArray[np.int32]]:
    """Return what `documents` gave as one array per document."""
    return np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []
