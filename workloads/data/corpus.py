"""Interface of token sources: indexed windows to train on, and probes.

A source is `workloads/data/sources/<name>.py` and exposes one name, `Config`: a frozen dataclass
whose fields are the keys of `data:` in a sweep file, with

    FORMAT              class variable: the expected input in one sentence and a two-line example,
                        for error messages
    FIELD_FORMATS       class variable, optional: field name -> the same, for fields that name other
                        kinds of files
    HUB_FIELDS          class variable, optional: fields that may name data sets of the hub (`hf:…`)
    vocab_size          token ids the model must know, known without preparing anything
    files()             dict field name -> Path, or tuple of Paths, of the input files; patterns are
                        expanded, and stay as they are without a match. Their content is part of a
                        trial's identity. Data sets of the hub are a HubSource (`hub_source.py`),
                        whose commit stands for the content
    tokens_per_epoch()  predicted tokens of one pass over the corpus, or None when unknown before
                        preparing
    check(log)          reads the files without tokenising; raises DataError (`problems.py`), one
                        line per mistake
    facts(log, files_read)
                        optional, of sources of facts: checks as `check` does, and returns the
                        FactCounts of what training states. At most a sample is tokenised.
                        `files_read` is a dict that the caller keeps for a plan: a file that several
                        settings share is read once
    prepare(cache, log) -> Corpus; tokenises or generates, and caches under `cache` (a folder). Safe
                        under concurrent callers and kills; fast when the cache is complete; raises
                        DataError. The corpus of a source of text has `tokenizer_file`, the Path of
                        its tokenizer, and its Config the field `separator`

`log` takes one sentence at a time and may be left out. Importing a source needs numpy only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class ProbeSet:
    """Probe of memorised facts. Row i: `prompts[i]` is followed by `answers[i]`.

    A fact may have several rows (several accepted answers); rows of one fact share its number in
    `facts` and the first of them is the canonical one, whose likelihood is measured.
    """

    name: str
    """train_wording, heldout_wording, question or unseen_subject; becomes the metric prefix
    `recall/<name>/`."""
    prompts: Sequence[NDArray[np.integer]]
    """Token ids, beginning with the document separator."""
    answers: Sequence[NDArray[np.integer]]
    """Token ids of the answer, at least one."""
    facts: NDArray[np.int64]
    """Fact number per row, non-decreasing from 0."""
    prior_bits: NDArray[np.float64]
    """Per fact: bits of its answer before anything was learned (-log2 of the answer's frequency in
    its relation)."""
    counts_as_knowledge: bool = False
    """Whether stored bits are measured here (exactly one set of a corpus says so, the training
    wording)."""
    scale: float = 1.0
    """Facts of the corpus per probed fact: stored bits of a sample are multiplied by it."""


@dataclass(frozen=True, kw_only=True)
class FactCounts:
    """What training states of a source of facts, known before it is prepared."""

    n_subjects: int
    n_facts: int
    """In training; those held out of it are not counted."""
    prior_bits: float
    """Sum over these facts, each as in `ProbeSet.prior_bits`."""
    tokens_per_exposure: float | None
    """Tokens in which training states every fact once, with the questions that it mixes in: those
    of an epoch. None where no tokenizer is installed here."""
    estimated: bool = False
    """Whether these tokens were estimated from a sample of the facts."""
    subject: str = "subject"
    subjects: str = "subjects"
    """What texts for people call one of them, and several."""

    @property
    def answer_prior_nll(self) -> float:
        """Nats of an answer to a model that knows the format and nothing of the subject, mean.

        What `recall/…/answer_nll` is before anything was learned but how often each answer occurs.
        """
        return self.prior_bits / self.n_facts * math.log(2)


class Corpus(Protocol):
    """Tokens to train on, tokens held out, and probes."""

    vocab_size: int
    tokens_per_epoch: int
    probes: Sequence[ProbeSet]

    def windows(self, indices: NDArray[np.int64], *, seq_len: int, seed: int) -> NDArray[np.int64]:
        """Return token ids (len(indices), seq_len + 1): input and shifted target in one.

        A pure function of (index, seq_len, seed), where index counts sequences from the start of
        training over all ranks: step * sequences_per_step + position. Every epoch is shuffled anew.
        """

    def validation(self, *, seq_len: int) -> NDArray[np.int64]:
        """Return held-out windows (n, seq_len + 1), n >= 0; the same for every trial."""

    def validation_bytes_per_token(self, *, seq_len: int) -> float | None:
        """Return bytes of text per target of these windows, for bits per byte.

        None where text has no bytes of its own. Asked if there are windows.
        """
