"""Tokenised pieces of facts and templates, to assemble documents and prompts.

Files of a folder: `pieces` (ragged tokens; piece 0 is the separator alone), `answers` (ragged
object numbers per fact), flat arrays per fact and per wording, `tokenizer.json`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.data.facts.table import Fact
from workloads.data.facts.templates import RelationWordings, Wording
from workloads.data.ragged import Ragged
from workloads.data.tokenizer import TextTokenizer, token_dtype

KINDS = ("train", "heldout", "questions")
"""Kinds of wordings, in the order of the second axis of `wording_range`."""
TRAIN, HELDOUT, QUESTION = range(3)
_ENCODE_AT_ONCE = 100_000


@dataclass(frozen=True, kw_only=True)
class FactArrays:
    """Arrays per fact, per entity and per wording.

    Entity pieces have a spaced and an unspaced form.
    """

    relation: NDArray[np.int64]
    """(facts,)"""
    subject: NDArray[np.int64]
    """(facts, 2) pieces: spaced, unspaced."""
    object_pieces: NDArray[np.int64]
    """(objects, 2) pieces: spaced, unspaced."""
    prior_bits: NDArray[np.float64]
    """(facts,)"""
    asked: NDArray[np.bool_]
    """(facts,) questions about the subject may be part of training."""
    unseen: NDArray[np.bool_]
    """(facts,) never part of training."""
    wording_pieces: NDArray[np.int64]
    """(wordings, 3) pieces before, between and after the entities."""
    wording_flags: NDArray[np.bool_]
    """(wordings, 4) object first, subject spaced, object spaced, ends with the object."""
    wording_range: NDArray[np.int64]
    """(relations, 3 kinds, 2) first wording and one past the last."""
    piece_bytes: NDArray[np.int64]
    """(pieces,) bytes of text."""


@dataclass(frozen=True, kw_only=True)
class FactPieces:
    """Everything that training documents and probes are assembled from."""

    pieces: Ragged
    answers: Ragged
    arrays: FactArrays

    @classmethod
    def load(cls, folder: Path) -> "FactPieces":
        """Map what `save` wrote."""
        arrays = {f.name: np.load(folder / f"{f.name}.npy") for f in fields(FactArrays)}
        return cls(
            pieces=Ragged.load(folder, "pieces"),
            answers=Ragged.load(folder, "answers"),
            arrays=FactArrays(**arrays),
        )

    def save(self, folder: Path) -> None:
        """Write all files but the tokenizer."""
        self.pieces.save(folder, "pieces")
        self.answers.save(folder, "answers")
        for f in fields(FactArrays):
            np.save(folder / f"{f.name}.npy", getattr(self.arrays, f.name))

    def rows(
        self,
        facts: NDArray[np.integer],
        wordings: NDArray[np.integer],
        objects: NDArray[np.integer] | None = None,
    ) -> NDArray[np.int64]:
        """Return documents (n, 6) as pieces: separator, before, entity, middle, entity, after.

        Args:
            facts: (n,) fact numbers.
            wordings: (n,) wording numbers, each of the fact's relation.
            objects: (n,) object to name; None takes each fact's canonical one.
        """
        a = self.arrays
        if objects is None:
            objects = self.answers.values[self.answers.offsets[facts]]
        object_first, subject_spaced, object_spaced, _ = a.wording_flags[wordings].T
        subject = np.where(subject_spaced, a.subject[facts, 0], a.subject[facts, 1])
        obj = np.where(object_spaced, a.object_pieces[objects, 0], a.object_pieces[objects, 1])
        before, middle, after = a.wording_pieces[wordings].T
        first = np.where(object_first, obj, subject)
        second = np.where(object_first, subject, obj)
        return np.stack([np.zeros_like(before), before, first, middle, second, after], axis=1)

    def wordings_of(self, relation: int, kind: int, *, probing: bool = False) -> NDArray[np.int64]:
        """Return a relation's wording numbers; with `probing`, those that end with the object."""
        wordings = np.arange(*self.arrays.wording_range[relation, kind], dtype=np.int64)
        return wordings[self.arrays.wording_flags[wordings, 3]] if probing else wordings


class _PieceNumbers(dict[str, int]):
    """Numbers of pieces, in the order in which they are first met; 0 is the separator."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self) + 1
        return self[text]

    def forms(self, entities: Iterable[str], *, unspaced: bool) -> NDArray[np.int64]:
        """Return (entities, 2) pieces; the unspaced form only where some wording has it."""
        rows = [(self[" " + text], self[text if unspaced else " " + text]) for text in entities]
        return np.array(rows, dtype=np.int64)


def build_pieces(
    facts: Sequence[Fact],
    wordings: dict[str, RelationWordings],
    tokenizer: TextTokenizer,
    *,
    asked: Sequence[bool],
    unseen: Sequence[bool],
    vocab_size: int,
) -> FactPieces:
    """Tokenise every distinct piece once and number everything.

    Args:
        facts: What the corpus knows.
        wordings: Relation id -> wordings, for every relation of `facts`.
        tokenizer: Splits pieces into tokens.
        asked: Per fact.
        unseen: Per fact.
        vocab_size: Decides the type of the token file.
    """
    relations = list(dict.fromkeys(fact.relation for fact in facts))
    relation_number = {relation: i for i, relation in enumerate(relations)}
    relation = np.array([relation_number[fact.relation] for fact in facts], dtype=np.int64)
    flat, wording_range = _flat_wordings([wordings[relation] for relation in relations])
    objects: dict[str, int] = {}
    answers = [[objects.setdefault(a, len(objects)) for a in fact.answers] for fact in facts]
    pieces = _PieceNumbers()
    wording_pieces = [[pieces[text] for text in (w.before, w.middle, w.after)] for w in flat]
    arrays = FactArrays(
        relation=relation,
        subject=pieces.forms(
            (fact.subject for fact in facts), unspaced=not all(w.subject_spaced for w in flat)
        ),
        object_pieces=pieces.forms(objects, unspaced=not all(w.object_spaced for w in flat)),
        prior_bits=prior_bits_of(facts),
        asked=np.array(asked, dtype=np.bool_),
        unseen=np.array(unseen, dtype=np.bool_),
        wording_pieces=np.array(wording_pieces, dtype=np.int64),
        wording_flags=np.array(
            [[w.object_first, w.subject_spaced, w.object_spaced, w.ends_with_object] for w in flat],
            dtype=np.bool_,
        ),
        wording_range=wording_range,
        piece_bytes=np.array([0, *(len(text.encode()) for text in pieces)], dtype=np.int64),
    )
    return FactPieces(
        pieces=Ragged.of(_tokenise([*pieces], tokenizer), token_dtype(vocab_size)),
        answers=Ragged.of(answers, np.int64),
        arrays=arrays,
    )


def _flat_wordings(
    by_relation: Sequence[RelationWordings],
) -> tuple[list[Wording], NDArray[np.int64]]:
    """Return all wordings in one list, and (relations, 3 kinds, 2) ranges in it."""
    flat: list[Wording] = []
    ranges = np.empty((len(by_relation), len(KINDS), 2), dtype=np.int64)
    for r, wordings in enumerate(by_relation):
        for k, kind in enumerate(KINDS):
            of_kind = getattr(wordings, kind)
            ranges[r, k] = len(flat), len(flat) + len(of_kind)
            flat += of_kind
    return flat, ranges


def _tokenise(texts: list[str], tokenizer: TextTokenizer) -> list[list[int]]:
    """Return the separator and the tokens of each text, encoded some at a time to bound memory."""
    tokens = [[tokenizer.separator]]
    for start in range(0, len(texts), _ENCODE_AT_ONCE):
        tokens += tokenizer.encode(texts[start : start + _ENCODE_AT_ONCE])
    return tokens


def prior_bits_of(facts: Sequence[Fact]) -> NDArray[np.float64]:
    """Return bits per fact, those of `prior_bits`."""
    relations: dict[str, int] = {}
    objects: dict[str, int] = {}
    return prior_bits(
        np.array([relations.setdefault(fact.relation, len(relations)) for fact in facts]),
        np.array([objects.setdefault(fact.answers[0], len(objects)) for fact in facts]),
    )


def prior_bits(relations: NDArray[np.integer], objects: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return bits per fact of knowing nothing but how often its object occurs in its relation.

    -log2 of (count + 1) / (facts + distinct objects): add-one smoothing over the relation's
    objects.

    Args:
        relations: (facts,) relation numbers.
        objects: (facts,) object numbers.
    """
    pairs = np.stack([relations, objects], axis=1)
    distinct, which, counts = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    facts_of = np.bincount(relations)
    kinds_of = np.bincount(distinct[:, 0], minlength=len(facts_of))
    share = (counts[which.reshape(-1)] + 1) / (facts_of + kinds_of)[relations]
    return np.asarray(-np.log2(share), dtype=np.float64)
