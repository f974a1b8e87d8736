"""Vocabulary of synthetic biographies, and their templates as tokens.

Tokens: separator, template words, then the pools in the order of the slots. Slots of a person:
three name parts, pronoun, and the values of the five attributes (a birth date takes three).
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.data.biographies import names
from workloads.data.biographies import templates as wordings
from workloads.data.biographies.assembly import FIRST_SLOT, SegmentTable

SEPARATOR = 0
"""Token that begins every document."""
SEPARATOR_TEXT = "<|sep|>"
NAME_SLOTS = (0, 1, 2)
PRONOUN_SLOT = 3
PRONOUNS = ("He", "She")
VALUE_SLOTS = {
    "birth_date": (4, 5, 6),
    "birth_city": (7,),
    "university": (8,),
    "major": (9,),
    "employer": (10,),
}
N_SLOTS = 11

FULL_NAME, SHORT = 0, 1
"""Forms of a statement: with the full name, or with the pronoun (compact: with nothing) in its
place."""
WHOLE, PROMPT = 0, 1
"""Cuts of a statement or question: all of it, or up to the value."""


class PoolSizes(NamedTuple):
    """How many different names and values there are."""

    first_names: int
    middle_names: int
    last_names: int
    years: int
    cities: int
    universities: int
    majors: int
    employers: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which token is what, and where each wording is in the segment table."""

    style: Literal["sentences", "compact"]
    n_wordings: int
    sizes: PoolSizes

    @cached_property
    def prior_bits(self) -> dict[str, float]:
        """Bits of each attribute's value: log2 of the size of its pool."""
        sizes = self.sizes
        return {
            "birth_date": math.log2(len(names.MONTHS) * names.DAYS_PER_MONTH * sizes.years),
            "birth_city": math.log2(sizes.cities),
            "university": math.log2(sizes.universities),
            "major": math.log2(sizes.majors),
            "employer": math.log2(sizes.employers),
        }

    @cached_property
    def pools(self) -> list[list[str]]:
        """Texts of every slot but the pronoun, in slot order."""
        sizes = self.sizes
        return [
            names.first_names(sizes.first_names),
            names.middle_names(sizes.middle_names),
            names.last_names(sizes.last_names),
            list(names.MONTHS),
            [str(day + 1) for day in range(names.DAYS_PER_MONTH)],
            names.years(sizes.years),
            names.cities(sizes.cities),
            names.universities(sizes.universities),
            names.majors(sizes.majors),
            names.employers(sizes.employers),
        ]

    @cached_property
    def template_words(self) -> list[str]:
        """Words of all wordings in use; token i + 1 is word i. Pronouns, where used, come first."""
        found: set[str] = set()
        for attribute in wordings.ATTRIBUTES:
            for text in (
                *wordings.statement_templates(self.style, attribute, self.n_wordings),
                *wordings.question_templates(self.style, attribute),
            ):
                found.update(text.split())
        pronouns = PRONOUNS if self.style == "sentences" else ()
        return [*pronouns, *sorted(found - {"{s}", "{o}"})]

    @cached_property
    def vocabulary(self) -> list[str]:
        """Text of every token."""
        words = [SEPARATOR_TEXT, *self.template_words]
        for pool in self.pools:
            words += pool
        return words

    @cached_property
    def pool_starts(self) -> NDArray[np.int64]:
        """First token of each pool."""
        sizes = [len(pool) for pool in self.pools]
        return np.cumsum([1 + len(self.template_words), *sizes[:-1]], dtype=np.int64)

    @property
    def table(self) -> SegmentTable:
        """Every wording in every form and cut."""
        return self._segments[0]

    @property
    def statements(self) -> list[NDArray[np.int64]]:
        """Per attribute: segments (wording, form, cut); held-out wordings last."""
        return self._segments[1]

    @property
    def questions(self) -> list[NDArray[np.int64]]:
        """Per attribute: segments (wording, cut)."""
        return self._segments[2]

    @cached_property
    def _segments(self) -> tuple[SegmentTable, list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        ids = {word: i for i, word in enumerate(self.template_words, start=1)}
        full_name = [FIRST_SLOT - slot for slot in NAME_SLOTS]
        short = [FIRST_SLOT - PRONOUN_SLOT] if self.style == "sentences" else []
        rows: list[list[int]] = []

        def add(text: str, attribute: str, subject: list[int]) -> list[int]:
            """Add both cuts of a wording; return their segments."""
            slots = {"{s}": subject, "{o}": [FIRST_SLOT - slot for slot in VALUE_SLOTS[attribute]]}
            words = text.split()
            for part in (words, words[: words.index("{o}")]):
                row: list[int] = []
                for word in part:
                    row += slots[word] if word in slots else [ids[word]]
                rows.append(row)
            return [len(rows) - 1, len(rows)]

        statements, questions = [], []
        for attribute in wordings.ATTRIBUTES:
            texts = wordings.statement_templates(self.style, attribute, self.n_wordings)
            forms = [[add(text, attribute, s) for s in (full_name, short)] for text in texts]
            statements.append(np.array(forms))
            texts = wordings.question_templates(self.style, attribute)
            questions.append(np.array([add(text, attribute, full_name) for text in texts]))
        return SegmentTable.of(rows), statements, questions


@lru_cache(maxsize=8)
def layout(style: Literal["sentences", "compact"], n_wordings: int, sizes: PoolSizes) -> Layout:
    """Return the layout, built once per process: a sweep asks for the same one many times."""
    return Layout(style=style, n_wordings=n_wordings, sizes=sizes)
