"""Probes of facts: prompts that end where the answer begins, and their answers."""

import math

import numpy as np
from numpy.typing import NDArray

from workloads.data.corpus import ProbeSet
from workloads.data.draws import random_stream, spread
from workloads.data.facts.documents import PROBE_DRAW
from workloads.data.facts.token_pieces import HELDOUT, QUESTION, TRAIN, FactPieces


def probe_sets(pieces: FactPieces, *, with_questions: bool, at_most: int) -> tuple[ProbeSet, ...]:
    """Return the probe sets of a corpus of facts.

    train_wording, heldout_wording, question (subjects never asked about) and unseen_subject.

    A set without any fact is left out, and so is `question` when training has no questions at all.
    """
    a = pieces.arrays
    trained, unseen = np.flatnonzero(~a.unseen), np.flatnonzero(a.unseen)
    sets = [("train_wording", trained, TRAIN), ("heldout_wording", trained, HELDOUT)]
    if with_questions and a.asked[trained].any():
        sets.append(("question", trained[~a.asked[trained]], QUESTION))
    sets.append(("unseen_subject", unseen, TRAIN))
    probes = (_probe_set(pieces, name, facts, kind, at_most) for name, facts, kind in sets)
    return tuple(probe for probe in probes if probe is not None)


def _probe_set(
    pieces: FactPieces, name: str, facts: NDArray[np.int64], kind: int, at_most: int
) -> ProbeSet | None:
    a = pieces.arrays
    choices = [pieces.wordings_of(r, kind, probing=True) for r in range(len(a.wording_range))]
    askable = np.array([len(c) > 0 for c in choices], dtype=np.bool_)
    facts = facts[askable[a.relation[facts]]]
    if not len(facts):
        return None
    population = len(facts)
    facts = facts[spread(population, at_most)]
    draws = random_stream(PROBE_DRAW, kind).random(len(facts))
    prompts, answers, numbers = [], [], []
    for number, (fact, draw) in enumerate(zip(facts, draws, strict=True)):
        of_relation = choices[a.relation[fact]]
        wording = of_relation[math.floor(draw * len(of_relation))]
        accepted = pieces.answers[int(fact)]
        rows = pieces.rows(
            np.repeat(fact, len(accepted)), np.repeat(wording, len(accepted)), accepted
        )
        for row in rows:
            prompts.append(pieces.pieces.concatenated(row[:4]))
            answers.append(pieces.pieces.concatenated(row[4:5]))
            numbers.append(number)
    return ProbeSet(
        name=name,
        prompts=prompts,
        answers=answers,
        facts=np.array(numbers, dtype=np.int64),
        prior_bits=np.asarray(a.prior_bits[facts]),
        counts_as_knowledge=name == "train_wording",
        scale=population / len(facts),
    )
