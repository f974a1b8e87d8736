"""Documents of facts: the order and wordings of an epoch, and held-out statements."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workloads.data.draws import non_negative, random_stream, spread
from workloads.data.facts.token_pieces import HELDOUT, QUESTION, TRAIN, FactPieces

VALIDATION_TOKENS = 65_536
"""Length of the validation text, about."""
_CHUNK_DOCUMENTS = 65_536
"""Documents put together at a time, so that an epoch's rows need not lie in memory at once."""
_SHORTEST_DOCUMENT = 8
"""Tokens of a short document, about: so many times fewer facts fill the validation text."""

# What a stream of random numbers is for; part of its key, so no two uses share numbers.
_TRAINING_DRAW, PROBE_DRAW, _VALIDATION_DRAW, _VALIDATION_ORDER = range(4)


def epoch_tokens(
    pieces: FactPieces, *, questions_per_fact: int, epoch: int, seed: int
) -> NDArray[np.integer]:
    """Return all tokens of an epoch: every trained fact once, and the questions.

    Order and wordings are new in every epoch.
    """
    rng = random_stream(_TRAINING_DRAW, *non_negative(seed), epoch)
    facts, kinds = _documents(pieces, questions_per_fact)
    wordings = _draw_wordings(pieces, facts, kinds, rng)
    order = rng.permutation(len(facts))
    parts = []
    for start in range(0, len(order), _CHUNK_DOCUMENTS):
        chosen = order[start : start + _CHUNK_DOCUMENTS]
        rows = pieces.rows(facts[chosen], wordings[chosen])
        parts.append(pieces.pieces.concatenated(rows))
    return np.concatenate(parts)


def tokens_per_epoch(pieces: FactPieces, *, questions_per_fact: int) -> int:
    """Return the length of every epoch.

    Exact where all wordings of a relation agree in whether a space precedes an entity, and no
    relation has fewer documents than wordings; else an upper bound.
    """
    a, lengths = pieces.arrays, pieces.pieces.lengths
    facts, kinds = _documents(pieces, questions_per_fact)
    objects = pieces.answers.values[pieces.answers.offsets[facts]]
    total = len(facts)  # separators
    for relation, kind, here in _groups(pieces, facts, kinds):
        choices = pieces.wordings_of(relation, kind)
        tokens = lengths[a.wording_pieces[choices]].sum(axis=1)
        total += max(
            int(tokens[(np.arange(len(here)) + first) % len(choices)].sum())
            for first in range(_rotations(len(here), len(choices)))
        )
        for flag, forms in ((1, a.subject[facts[here]]), (2, a.object_pieces[objects[here]])):
            spaced = a.wording_flags[choices, flag]
            used = [form for form in (0, 1) if (spaced == (form == 0)).any()]
            total += int(lengths[forms[:, used]].max(axis=1).sum())
    return total


def statements(
    pieces: FactPieces, facts: NDArray[np.int64], kind: int
) -> tuple[NDArray[np.integer], int]:
    """Return the tokens of one statement per fact, and the bytes of text they stand for."""
    a = pieces.arrays
    start, end = a.wording_range[a.relation[facts], kind].T
    facts, start, end = facts[end > start], start[end > start], end[end > start]
    draws = random_stream(_VALIDATION_DRAW).random(len(facts))
    wordings = start + np.floor(draws * (end - start)).astype(np.int64)
    rows = pieces.rows(facts, wordings)
    # The space that every document begins with is ours, not the text's.
    n_bytes = int(a.piece_bytes[rows].sum()) - len(facts)
    return pieces.pieces.concatenated(rows), n_bytes


def heldout_statements(pieces: FactPieces) -> tuple[NDArray[np.integer], int]:
    """Return tokens of trained facts in held-out wordings, a sample, and their text bytes."""
    trained = np.flatnonzero(~pieces.arrays.unseen)
    sample = trained[spread(len(trained), VALIDATION_TOKENS // _SHORTEST_DOCUMENT)]
    # Files are often grouped by relation, and validation takes the beginning of this text.
    order = random_stream(_VALIDATION_ORDER).permutation(len(sample))
    return statements(pieces, sample[order], HELDOUT)


def _documents(
    pieces: FactPieces, questions_per_fact: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the facts of an epoch's documents and the kind of each wording, unshuffled."""
    a = pieces.arrays
    trained = np.flatnonzero(~a.unseen)
    can_ask = np.diff(a.wording_range[a.relation[trained], QUESTION], axis=1)[:, 0] > 0
    asked = np.tile(trained[a.asked[trained] & can_ask], questions_per_fact)
    kinds = np.full(len(trained) + len(asked), QUESTION, dtype=np.int64)
    kinds[: len(trained)] = TRAIN
    return np.concatenate([trained, asked]), kinds


def _draw_wordings(
    pieces: FactPieces,
    facts: NDArray[np.int64],
    kinds: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return a wording per document, those of a relation equally often.

    So all epochs are equally long, but for relations of fewer documents than wordings.
    """
    wordings = np.empty(len(facts), dtype=np.int64)
    # Of its own, so that one such relation leaves the draws of all others as they are.
    (rotations,) = rng.spawn(1)
    for relation, kind, here in _groups(pieces, facts, kinds):
        choices = pieces.wordings_of(relation, kind)
        first = rotations.integers(_rotations(len(here), len(choices)))
        wordings[here] = choices[(rng.permutation(len(here)) + first) % len(choices)]
    return wordings


def _rotations(n_documents: int, n_wordings: int) -> int:
    """Return how many wordings an epoch may begin with: all if it cannot use each of them."""
    return n_wordings if n_documents < n_wordings else 1


def _groups(
    pieces: FactPieces, facts: NDArray[np.int64], kinds: NDArray[np.int64]
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Yield (relation, kind, places of such documents), in a fixed order."""
    code = pieces.arrays.relation[facts] * 3 + kinds
    order = np.argsort(code, kind="stable")
    present, starts = np.unique(code[order], return_index=True)
    for group, here in zip(present, np.split(order, starts[1:]), strict=True):
        yield int(group) // 3, int(group) % 3, here
