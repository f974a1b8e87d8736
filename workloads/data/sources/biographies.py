"""Synthetic biographies: facts of exactly known bits, in a vocabulary of our own.

Each person has a unique full name and five attributes, drawn independently and uniformly: birth
date (month, day, year), birth city, university, major, employer. With the default pools these are
46.6 bits a person. The design follows the bioS corpus of "Physics of Language Models" 3.1 and 3.3
(arXiv 2309.14316, 2404.05405): a new choice of wordings and a new order of sentences for every
exposure, documents shuffled over the whole corpus. Departures: every name, value and template word
is one token; the employer's city is left out (it is a function of the employer); the pronoun is a
function of the first name, so it carries no bits; wordings and vocabularies are new.

Stored bits count the values only, not the names: prior_bits of a fact is log2 of its pool.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from workloads.data.biographies import names
from workloads.data.biographies import templates as wordings
from workloads.data.biographies import vocabulary as tokens_of
from workloads.data.biographies.assembly import NO_SEGMENT, split
from workloads.data.biographies.vocabulary import (
    FULL_NAME,
    PROMPT,
    SEPARATOR,
    SHORT,
    WHOLE,
    PoolSizes,
)
from workloads.data.corpus import FactCounts, ProbeSet
from workloads.data.draws import non_negative, random_stream, spread
from workloads.data.permutation import shuffled
from workloads.data.token_stream import EpochCorpus, gather_windows, windows_per_epoch
from workloads.field_error import FieldError, Share, check_fields

_N_ATTRIBUTES = len(wordings.ATTRIBUTES)
_VALIDATION_TOKENS = 65_536
_CHUNK_DOCUMENTS = 32_768

_NamePool = Annotated[int, Interval(ge=1, le=names.MAX_POOL)]
_ValuePool = Annotated[int, Interval(ge=2, le=names.MAX_POOL)]

# What a stream of random numbers is for; part of its key, so no two uses share numbers.
_PEOPLE, _NAMES, _TRAINING, _VALIDATION, _PROBES = range(5)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Synthetic people, their facts and the texts about them."""

    FORMAT: ClassVar[str] = (
        "biographies are generated and need no file, e.g.\n"
        "  data: {source: biographies, n_people: 3_000}\n"
        "  data: {source: biographies, n_people: 200_000, order: permute, seed: 0}"
    )

    n_people: int
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0
    """Chooses the people and their facts; separate from the seed of a trial."""
    style: Literal["sentences", "compact"] = "sentences"
    """sentences: about 38 tokens of text. compact: name, then marker and value pairs, 16 tokens."""
    order: Literal["permute", "fixed"] = "permute"
    """permute: attributes in a new random order for every exposure."""
    n_wordings: int = 20
    """Training wordings per attribute; 3 held-out and 3 question wordings come on top. With few of
    them, words that only held-out wordings use stay untrained."""
    question_share: Share = 0.5
    """Share of people whose questions are part of training. The others' questions are the
    `question` probe, which exists only for a share strictly between 0 and 1."""
    questions_per_biography: Annotated[int, Interval(ge=1, le=_N_ATTRIBUTES)] = 1
    """Question documents per epoch for each of these people, about different attributes, at most
    5."""
    n_probe_people: Annotated[int, Interval(ge=1, le=1_000_000)] = 1_000
    """People probed, at most; spread evenly over the corpus."""
    n_first_names: _NamePool = 400
    n_middle_names: _NamePool = 400
    n_last_names: _NamePool = 1_000
    n_years: Annotated[int, Interval(ge=1, le=1_000)] = 200
    """Years of birth; 12 months and 28 days each."""
    n_cities: _ValuePool = 200
    n_universities: _ValuePool = 300
    n_majors: _ValuePool = 100
    n_employers: _ValuePool = 263

    def __post_init__(self) -> None:
        check_fields(self)
        compact = self.style == "compact"
        most = wordings.MAX_COMPACT_WORDINGS if compact else wordings.MAX_SENTENCE_WORDINGS
        if not 1 <= self.n_wordings <= most:
            raise FieldError("n_wordings", f"must lie in 1..{most}", self.n_wordings)
        n_names = self.n_first_names * self.n_middle_names * self.n_last_names
        if not 1 <= self.n_people <= n_names:
            rule = (
                f"must lie in 1..{n_names} (n_first_names x n_middle_names x n_last_names, "
                "so that full names differ)"
            )
            others = ("n_first_names", "n_middle_names", "n_last_names")
            raise FieldError("n_people", rule, self.n_people, others=others)

    @property
    def layout(self) -> tokens_of.Layout:
        """Vocabulary and templates."""
        return tokens_of.layout(
            self.style,
            self.n_wordings,
            PoolSizes(*(getattr(self, f"n_{pool}") for pool in PoolSizes._fields)),
        )

    @property
    def vocab_size(self) -> int:
        """Separator, template words, names and values."""
        return len(self.layout.vocabulary)

    @property
    def bits_per_person(self) -> float:
        """Bits of all attributes of one person; the name is not counted."""
        return sum(self.layout.prior_bits.values())

    @property
    def n_asked(self) -> int:
        """People whose questions are part of training: persons 0..n_asked-1."""
        return round(self.question_share * self.n_people)

    def files(self) -> dict[str, Path | tuple[Path, ...]]:
        """Return the input files: none."""
        return {}

    def tokens_per_epoch(self) -> int:
        """Return tokens of one pass over all biographies and questions; the same every epoch."""
        layout, lengths = self.layout, self.layout.table.lengths
        usage = _usage(self.n_people, self.n_wordings)
        tokens = self.n_people  # separators
        for rows in layout.statements:
            tokens += int(usage @ lengths[rows[: self.n_wordings, SHORT, WHOLE]])
        full_name, short = layout.statements[0][0, :, WHOLE]
        tokens += int(lengths[full_name] - lengths[short]) * self.n_people  # once a biography
        for rows, n in zip(layout.questions, _question_counts(self), strict=True):
            tokens += n + int(_usage(n, wordings.N_QUESTIONS) @ lengths[rows[:, WHOLE]])
        return tokens

    def check(self, log: Callable[[str], None] = lambda message: None) -> None:
        """Find nothing wrong: there is no file to read."""

    def facts(
        self,
        log: Callable[[str], None] = lambda message: None,
        files_read: MutableMapping[Any, Any] | None = None,
    ) -> FactCounts:
        """Return what an epoch states: every person's attributes once."""
        del log, files_read
        return FactCounts(
            n_subjects=self.n_people,
            n_facts=self.n_people * _N_ATTRIBUTES,
            prior_bits=self.n_people * self.bits_per_person,
            tokens_per_exposure=self.tokens_per_epoch(),
            subject="person",
            subjects="people",
        )

    def prepare(self, cache: Path, log: Callable[[str], None] = lambda message: None) -> "Corpus":
        """Draw the people. Nothing is written to the cache: a million take about a second."""
        del cache
        slots = _draw_people(self)
        corpus = Corpus(
            config=self,
            slots=slots,
            vocab_size=self.vocab_size,
            tokens_per_epoch=self.tokens_per_epoch(),
            probes=_probes(self, slots),
        )
        log(
            f"{self.n_people:,} people, {self.bits_per_person * self.n_people / 1e3:,.1f} kbit of "
            f"facts, {corpus.tokens_per_epoch:,} tokens per exposure, {self.vocab_size:,} words"
        )
        return corpus


@dataclass(kw_only=True)
class Corpus(EpochCorpus):
    """Biographies as token windows, and probes of every attribute."""

    config: Config
    slots: NDArray[np.int32]
    """(n_people, 11) tokens: three name parts, pronoun, then the values."""
    vocab_size: int
    probes: tuple[ProbeSet, ...]

    def epoch(self, epoch: int, seed: int) -> NDArray[np.int32]:
        """Return all tokens of an epoch, documents shuffled. Does not depend on earlier epochs."""
        config, table = self.config, self.config.layout.table
        rng = random_stream(config.seed, _TRAINING, *non_negative(seed), epoch)
        biographies = _biographies(config, np.arange(config.n_people), rng)
        questions = _questions(config, rng)
        asked = np.tile(np.arange(config.n_asked), config.questions_per_biography)
        order = rng.permutation(len(biographies) + len(questions))
        stream = np.empty(self.tokens_per_epoch, dtype=np.int32)
        end = 0
        for start in range(0, len(order), _CHUNK_DOCUMENTS):
            chosen = order[start : start + _CHUNK_DOCUMENTS]
            is_question = chosen >= config.n_people
            question = chosen[is_question] - config.n_people
            people = chosen.copy()
            people[is_question] = asked[question]
            segments = np.full((len(chosen), _N_ATTRIBUTES), NO_SEGMENT, dtype=np.int64)
            segments[~is_question] = biographies[chosen[~is_question]]
            segments[is_question, 0] = questions[question]
            tokens, _ = table.documents(segments, people, self.slots, separator=SEPARATOR)
            stream[end : end + len(tokens)] = tokens
            end += len(tokens)
        assert end == len(stream), "even use of wordings makes every epoch equally long"
        return stream

    def validation(self, *, seq_len: int) -> NDArray[np.int64]:
        """Return windows about the same people that training never uses.

        Draws of wordings and order are others.

        The facts are those of training: this loss falls when facts are learned, not when texts are
        learned word by word. No questions; at most 65,536 tokens, people spread evenly over the
        corpus.
        """
        config, table = self.config, self.config.layout.table
        longest = 1 + _N_ATTRIBUTES * int(table.lengths.max())
        people = spread(config.n_people, max(1, _VALIDATION_TOKENS // longest))
        rng = random_stream(config.seed, _VALIDATION)
        segments = _biographies(config, people, rng)
        order = rng.permutation(len(people))
        stream, _ = table.documents(segments[order], people[order], self.slots, separator=SEPARATOR)
        count = min(windows_per_epoch(len(stream), seq_len), max(1, _VALIDATION_TOKENS // seq_len))
        return gather_windows(stream, np.arange(count), seq_len=seq_len)


def _draw_people(config: Config) -> NDArray[np.int32]:
    """Return the slots of every person, (n_people, 11).

    Names are unique, values independent and uniform.
    """
    layout = config.layout
    sizes, starts = [len(pool) for pool in layout.pools], layout.pool_starts
    n_first, n_middle, n_last = sizes[:3]
    full_name = shuffled(
        np.arange(config.n_people), n=n_first * n_middle * n_last, key=(config.seed, _NAMES)
    )
    rest, last = np.divmod(full_name, n_last)
    first, middle = np.divmod(rest, n_middle)
    slots = np.empty((config.n_people, tokens_of.N_SLOTS), dtype=np.int32)
    for slot, part in zip(tokens_of.NAME_SLOTS, (first, middle, last), strict=True):
        slots[:, slot] = starts[slot] + part
    slots[:, tokens_of.PRONOUN_SLOT] = 1 + first % len(tokens_of.PRONOUNS)
    rng = random_stream(config.seed, _PEOPLE)
    value_pools = zip(sizes[3:], starts[3:], strict=True)
    for slot, (size, start) in enumerate(value_pools, start=tokens_of.PRONOUN_SLOT + 1):
        slots[:, slot] = start + rng.integers(size, size=config.n_people)
    return slots


def _biographies(
    config: Config, people: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return segments (people, 5) of one biography each, in reading order."""
    shape = (len(people), _N_ATTRIBUTES)
    if config.order == "fixed":
        order = np.broadcast_to(np.arange(_N_ATTRIBUTES), shape)
    else:
        order = np.argsort(rng.random(shape, dtype=np.float32), axis=1)
    by_attribute = np.empty(shape, dtype=np.int64)
    for attribute, rows in enumerate(config.layout.statements):
        form = np.where(order[:, 0] == attribute, FULL_NAME, SHORT)
        by_attribute[:, attribute] = rows[_train_wordings(config, people, rng), form, WHOLE]
    return np.take_along_axis(by_attribute, order, axis=1)


def _questions(config: Config, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the segment of each question, ordered by question and then by person."""
    first = _evenly(config.n_asked, _N_ATTRIBUTES, rng)
    attribute = np.concatenate(
        [(first + shift) % _N_ATTRIBUTES for shift in range(config.questions_per_biography)]
    )
    segments = np.empty(len(attribute), dtype=np.int64)
    for a, rows in enumerate(config.layout.questions):
        here = np.flatnonzero(attribute == a)
        segments[here] = rows[_evenly(len(here), wordings.N_QUESTIONS, rng), WHOLE]
    return segments


def _question_counts(config: Config) -> list[int]:
    """Return the question documents of an epoch per attribute."""
    usage = _usage(config.n_asked, _N_ATTRIBUTES)
    shifts = range(config.questions_per_biography)
    return [int(sum(usage[a - shift] for shift in shifts)) for a in range(_N_ATTRIBUTES)]


def _train_wordings(
    config: Config, people: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    drawn = _evenly(len(people), config.n_wordings, rng)
    if config.style == "sentences":
        return drawn
    # A marker that nobody ever saw would be an untrained token, so each person has own held-out
    # markers: person p never meets the three from p on (cyclically).
    return (people + wordings.N_HELDOUT + drawn) % (config.n_wordings + wordings.N_HELDOUT)


def _heldout_wordings(
    config: Config, people: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    drawn = _evenly(len(people), wordings.N_HELDOUT, rng)
    if config.style == "sentences":
        return config.n_wordings + drawn
    return (people + drawn) % (config.n_wordings + wordings.N_HELDOUT)


def _usage(n: int, n_kinds: int) -> NDArray[np.int64]:
    """Return how often each of n_kinds is used among n, as evenly as possible.

    The same in every epoch.

    Even use makes the tokens of an epoch a constant although wordings differ in length.
    """
    return np.bincount(np.arange(n) % n_kinds, minlength=n_kinds)


def _evenly(n: int, n_kinds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a random assignment of n things to n_kinds with the counts of `_usage`."""
    return rng.permutation(n) % n_kinds


def _probes(config: Config, slots: NDArray[np.int32]) -> tuple[ProbeSet, ...]:
    """Return the probe sets of a corpus of biographies.

    `train_wording`, `heldout_wording`, and `question` for people never asked about in training.

    With `order: permute` a prompt is the separator and one sentence about the full name, up to the
    value (one sentence in five of training looks like that). With `order: fixed` only birth dates
    ever follow the name directly, so there the prompt is the biography up to the value.
    """
    people = spread(config.n_people, config.n_probe_people)
    prompts = {
        "train_wording": _statement_prompts(config, people, heldout=False),
        "heldout_wording": _statement_prompts(config, people, heldout=True),
    }
    probes = [_probe_set(config, slots, name, people, rows) for name, rows in prompts.items()]
    n_unasked = config.n_people - config.n_asked
    if config.n_asked and n_unasked:
        people = config.n_asked + spread(n_unasked, config.n_probe_people)
        prompts_of = _question_prompts(config, people)
        probes.append(_probe_set(config, slots, "question", people, prompts_of))
    return tuple(probes)


def _statement_prompts(
    config: Config, people: NDArray[np.int64], *, heldout: bool
) -> NDArray[np.int64]:
    """Return segments (people * 5, 5), all attributes of a person next to each other."""
    rng = random_stream(config.seed, _PROBES, int(heldout))
    segments = np.full((len(people), _N_ATTRIBUTES, _N_ATTRIBUTES), NO_SEGMENT, dtype=np.int64)
    draw = _heldout_wordings if heldout else _train_wordings
    for attribute, rows in enumerate(config.layout.statements):
        n_before = attribute if config.order == "fixed" else 0
        before = _biographies(config, people, rng)[:, :n_before]
        form = SHORT if n_before else FULL_NAME
        segments[:, attribute, :n_before] = before
        segments[:, attribute, n_before] = rows[draw(config, people, rng), form, PROMPT]
    return segments.reshape(-1, _N_ATTRIBUTES)


def _question_prompts(config: Config, people: NDArray[np.int64]) -> NDArray[np.int64]:
    rng = random_stream(config.seed, _PROBES, 2)
    wording = rng.integers(wordings.N_QUESTIONS, size=(len(people), _N_ATTRIBUTES))
    rows = [r[wording[:, a], PROMPT] for a, r in enumerate(config.layout.questions)]
    return np.stack(rows, axis=1).reshape(-1, 1)


def _probe_set(
    config: Config,
    slots: NDArray[np.int32],
    name: str,
    people: NDArray[np.int64],
    segments: NDArray[np.int64],
) -> ProbeSet:
    layout = config.layout
    tokens, lengths = layout.table.documents(
        segments, np.repeat(people, _N_ATTRIBUTES), slots, separator=SEPARATOR
    )
    population = config.n_people - (config.n_asked if name == "question" else 0)
    value_slots = [list(tokens_of.VALUE_SLOTS[a]) for a in wordings.ATTRIBUTES]
    return ProbeSet(
        name=name,
        prompts=split(tokens, lengths),
        answers=[slots[person, of] for person in people for of in value_slots],
        facts=np.arange(len(segments), dtype=np.int64),
        prior_bits=np.tile([layout.prior_bits[a] for a in wordings.ATTRIBUTES], len(people)),
        counts_as_knowledge=name == "train_wording",
        scale=population / len(people),
    )
