"""Real (subject, relation, object) facts as training statements and probes.

One exposure of a fact is one statement in a wording drawn anew; facts are shuffled over the whole
corpus in every epoch, so wordings of one fact practically never share a window. Questions about the
subjects of `qa_train` are mixed in; questions about `qa_test` never. Held-out wordings occur in
probes and in the validation text only. How texts become tokens:
`workloads/data/facts/templates.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from workloads.data.cache import cache_key, cached_folder, content_sha256
from workloads.data.corpus import FactCounts, ProbeSet
from workloads.data.draws import spread
from workloads.data.facts.documents import (
    VALIDATION_TOKENS,
    epoch_tokens,
    heldout_statements,
    statements,
    tokens_per_epoch,
)
from workloads.data.facts.probes import probe_sets
from workloads.data.facts.table import (
    QA_TRAIN,
    Fact,
    FactColumns,
    MergedRows,
    guessing_share,
    read_facts,
    unit_hash,
)
from workloads.data.facts.templates import RelationWordings, generic_wordings, read_wordings
from workloads.data.facts.token_pieces import TRAIN, FactPieces, build_pieces, prior_bits_of
from workloads.data.file_hashes import combined, require_still
from workloads.data.preparation.lost_text import LOOKED_AT, check_lost_text
from workloads.data.readers.problems import DataError, Problems, require_files
from workloads.data.remarks import unused_tokens
from workloads.data.tiktoken_file import tokenizer_files
from workloads.data.token_stream import EpochCorpus, gather_windows
from workloads.data.tokenizer import TextTokenizer, check_vocabulary, load, saved_tokenizer, train
from workloads.field_error import FieldError, PositiveInt, Share, check_fields

_CACHE_VERSION = 2
_CHECKED_STATEMENTS = 500
_COUNTED_FACTS = 10_000
"""Tokenised at most to estimate the tokens of an exposure. A tokenizer trained on the sample fits
it better: of 140,000 facts it finds 2 % too few tokens, with a vocabulary of 32,768 15 %."""
_TOLD_GUESSING = 0.1
"""Recall of constant guessing from which on the plan mentions it."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Which facts, in which words, in which tokens."""

    FORMAT: ClassVar[str] = (
        "a table with a header (tabs without quoting, or .csv), or one JSON object per line, plain "
        "or compressed, with subject, relation and object, e.g.\n"
        "  subject<TAB>relation<TAB>object\n"
        "  Marie Curie<TAB>place of birth<TAB>Warsaw"
    )

    FIELD_FORMATS: ClassVar[Mapping[str, str]] = {
        "templates": "a JSON object, relation -> wordings with {s} for the subject and {o} for the "
        "object, e.g.\n"
        '  {"place of birth": {"train_statements": ["{s} was born in {o}."],\n'
        '   "heldout_statements": ["It was in {o} that {s} was born."], '
        '"questions": ["Where was {s} born?"]}}',
        "tokenizer": "a tokenizer.json of the `tokenizers` library, byte-level, or a tiktoken file",
    }
    """Formats of the fields that name other files than facts."""

    path: str
    """Facts. Optional columns: relation_id, all_objects_json (accepted answers), qa_split
    (qa_train, qa_test)."""
    templates: str | None = None
    """JSON: relation id -> {relation, train_statements, heldout_statements, questions} with {s} and
    {o}. None makes plain wordings from each relation's name."""
    format: Literal["auto", "tsv", "csv", "jsonl"] = "auto"
    """auto goes by the extension."""
    subject_column: str = "subject"
    relation_column: str | None = None
    """None: relation_id where there is one, else relation."""
    object_column: str = "object"
    columns_as_relations: tuple[str, ...] | None = None
    """Of a table with one row per subject: the columns that are relations, whose empty cells are no
    facts. None: each row is one fact."""
    relations: tuple[str, ...] | None = None
    """Identifiers or names of the relations to keep; None keeps all."""
    max_facts: PositiveInt | None = None
    """Keep a fair sample of this many facts, chosen by hash of subject and relation."""
    heldout_subjects: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Share of subjects never trained on: the probe `unseen_subject` shows what names alone give
    away."""
    question_share: Share = 0.5
    """Share of subjects whose questions are part of training, where the file has no qa_split."""
    questions_per_fact: Annotated[int, Interval(ge=0, le=100)] = 1
    """Questions per epoch about each fact of these subjects; 0 trains on statements only."""
    n_probe_facts: PositiveInt = 2_000
    """Facts per probe, at most; spread evenly over the corpus."""
    vocab_size: int = 8_192
    """Tokens the model knows; a tokenizer trained here has at most as many."""
    tokenizer: str | None = None
    """A tokenizer.json or tiktoken's file to use instead of training one."""
    separator: str | None = None
    """Text of the loaded tokenizer's token between documents; None looks for a usual one."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_vocabulary(self.vocab_size, tokenizer=self.tokenizer, separator=self.separator)
        if self.relations is not None and not self.relations:
            rule = "must name at least one relation or be null"
            raise FieldError("relations", rule, [])
        if self.columns_as_relations is None:
            return
        if not self.columns_as_relations or self.subject_column in self.columns_as_relations:
            rule = "must name columns, and not that of the subject"
            raise FieldError("columns_as_relations", rule, list(self.columns_as_relations))
        for name, default in (("relation_column", None), ("object_column", "object")):
            if getattr(self, name) != default:
                rule = "belongs to tables with one fact per row"
                fix = "drop it, or columns_as_relations"
                raise FieldError(name, rule, fix=fix, others=("columns_as_relations",))

    def files(self) -> dict[str, Path | tuple[Path, ...]]:
        """Return the input files by field; of a tokenizer, what says how it cuts text too."""
        texts = {"path": self.path, "templates": self.templates}
        named: dict[str, Path | tuple[Path, ...]] = {
            name: Path(p).expanduser() for name, p in texts.items() if p is not None
        }
        if self.tokenizer is not None:
            named["tokenizer"] = tokenizer_files(Path(self.tokenizer).expanduser())
        return named

    def tokens_per_epoch(self) -> None:
        """Return None: how many tokens the facts have is known after `prepare`."""

    def check(self, log: Callable[[str], None] = lambda message: None) -> None:
        """Read facts and templates without tokenising.

        Raises:
            DataError: One line per mistake, with file and line.
        """
        _read(self, log)

    def facts(
        self,
        log: Callable[[str], None] = lambda message: None,
        files_read: MutableMapping[Any, Any] | None = None,
    ) -> FactCounts:
        """Check, and return what training states; a sample of the facts is tokenised.

        Raises:
            DataError: One line per mistake, with file and line.
        """
        facts, wordings = _read(self, log, files_read)
        unseen = _unseen(self, facts)
        _require_trained(self, unseen)
        _tell_inverses(self, facts, unseen, log)
        trained = np.flatnonzero(~np.array(unseen))
        sample = [facts[i] for i in spread(len(facts), _COUNTED_FACTS)]
        return FactCounts(
            n_subjects=len({facts[i].subject for i in trained}),
            n_facts=len(trained),
            prior_bits=float(prior_bits_of(facts)[trained].sum()),
            tokens_per_exposure=_tokens_of_sample(self, sample, wordings, of=len(facts)),
            estimated=len(sample) < len(facts),
        )

    def prepare(self, cache: Path, log: Callable[[str], None] = lambda message: None) -> "Corpus":
        """Tokenise once, then map the result.

        Raises:
            DataError: If a file is missing or wrong; one line per mistake.
        """
        require_files(self.files(), self.FORMAT)
        content = self._content(cache)
        settings = {k: v for k, v in asdict(self).items() if k not in (*content, "n_probe_facts")}
        key = cache_key("triples", {"version": _CACHE_VERSION, **settings, "content": content})

        def build(scratch: Path) -> None:
            _build(self, scratch, log)
            require_still(content, self._content(cache))

        folder = cached_folder(cache, key, build, log)
        corpus = _corpus(self, FactPieces.load(folder), saved_tokenizer(folder))
        log(
            f"{corpus.n_facts:,} facts, {corpus.total_bits / 1e6:.3g} Mbit, "
            f"{corpus.tokens_per_epoch:,} tokens per exposure"
        )
        return corpus

    def _content(self, cache: Path) -> dict[str, str]:
        return {
            name: combined(
                [content_sha256(p, cache) for p in (of if isinstance(of, tuple) else (of,))]
            )
            for name, of in self.files().items()
        }


@dataclass(kw_only=True)
class Corpus(EpochCorpus):
    """Statements and questions as token windows, and probes.

    An epoch is every fact once, and the questions. Where wordings of a relation differ in whether a
    space precedes an entity, `tokens_per_epoch` is an upper bound, and the epoch's beginning fills
    the gap.
    """

    pieces: FactPieces
    vocab_size: int
    bytes_per_token: float | None
    """On held-out wordings, or on training wordings where there are none held out; separators count
    as tokens."""
    probes: tuple[ProbeSet, ...]
    n_facts: int
    """Facts in training."""
    total_bits: float
    """Prior bits of all facts in training."""
    questions_per_fact: int
    tokenizer_file: Path | None
    """What statements and questions were tokenised by."""

    def epoch(self, epoch: int, seed: int) -> NDArray[np.integer]:
        """Return all tokens of an epoch, documents shuffled. Does not depend on earlier epochs."""
        return epoch_tokens(
            self.pieces, questions_per_fact=self.questions_per_fact, epoch=epoch, seed=seed
        )

    def validation(self, *, seq_len: int) -> NDArray[np.int64]:
        """Return windows of trained facts in held-out wordings, at most 65,536 tokens.

        This loss falls when facts are learned so that they survive a new wording. Empty if no
        relation has held-out wordings.
        """
        stream = heldout_statements(self.pieces)[0]
        count = min(len(stream) // seq_len, max(1, VALIDATION_TOKENS // seq_len))
        if not count:
            return np.empty((0, seq_len + 1), dtype=np.int64)
        return gather_windows(stream, np.arange(count), seq_len=seq_len)


def _read(
    config: Config,
    log: Callable[[str], None],
    files_read: MutableMapping[Any, Any] | None = None,
) -> tuple[list[Fact], dict[str, RelationWordings]]:
    """Return the facts in use and their wordings, or raise with every mistake of both files."""
    require_files(config.files(), config.FORMAT)
    path, problems = Path(config.path).expanduser(), Problems()
    facts, merged = _rows(config, path, problems, log, {} if files_read is None else files_read)
    if merged.other_answers:
        log(
            f"{merged.first} (rows of that kind: {merged.other_answers:,}); all are right answers, "
            "the first is stated in training"
        )
    if merged.copies:
        log(f"{path.name}: copies of earlier rows left out: {merged.copies:,}")
    facts = _selected(config, facts, path, problems)
    wordings = _wordings(config, facts, problems, log)
    problems.raise_if_any()
    guessed = guessing_share(facts)
    if guessed >= _TOLD_GUESSING:
        log(
            f"{path.name}: always guessing a relation's most common object is right for "
            f"{guessed:.0%} of the facts; recall up to that needs no stored bits"
        )
    return facts, wordings


def _wordings(
    config: Config, facts: list[Fact], problems: Problems, log: Callable[[str], None]
) -> dict[str, RelationWordings]:
    """Return the wordings of the facts' relations: from the file of templates, or plain ones."""
    n_facts = Counter(fact.relation for fact in facts)
    if config.templates is None:
        log("no templates given: statements and questions are made from the relations' names")
        names = {fact.relation: fact.relation_name for fact in facts}
        return {relation: generic_wordings(names[relation]) for relation in n_facts}
    path = Path(config.templates).expanduser()
    wordings = read_wordings(path, problems)
    if not wordings:
        return {}
    for relation, count in n_facts.items():
        if relation not in wordings:
            problems.add(
                path,
                None,
                f"no templates for relation {relation} ({count:,} facts)",
                "add them, or leave it out with data.relations",
            )
    if not problems.total:
        for name in ("heldout", "questions"):
            bare = [relation for relation in n_facts if not getattr(wordings[relation], name)]
            if bare:
                log(f"{path.name}: no {name} wordings for {', '.join(bare)}; not probed there")
    return wordings


def _rows(
    config: Config,
    path: Path,
    problems: Problems,
    log: Callable[[str], None],
    files_read: MutableMapping[Any, Any],
) -> tuple[list[Fact], MergedRows]:
    """Return the facts of the file, and its merged rows, from `files_read` if they are there."""
    columns = FactColumns(
        subject=config.subject_column,
        relation=config.relation_column,
        object=config.object_column,
        as_relations=config.columns_as_relations,
    )
    key = (path, columns, config.format)
    if key in files_read:
        found: tuple[list[Fact], MergedRows] = files_read[key]
        return found
    found = read_facts(path, columns=columns, layout=config.format, problems=problems, log=log)
    if not problems.total:  # a file with mistakes is refused for each setting
        files_read[key] = found
    return found


def _selected(config: Config, facts: list[Fact], path: Path, problems: Problems) -> list[Fact]:
    if config.relations is not None and facts:
        known = {name for fact in facts for name in (fact.relation, fact.relation_name)}
        for name in config.relations:
            if name not in known:
                problems.add(
                    path,
                    None,
                    f"has no relation {name!r} of data.relations",
                    f"choose among {', '.join(sorted({f.relation for f in facts})[:30])}",
                )
        wanted = set(config.relations)
        facts = [fact for fact in facts if wanted & {fact.relation, fact.relation_name}]
    if config.max_facts is not None and len(facts) > config.max_facts:
        rank = [unit_hash(f"{fact.relation}\0{fact.subject}", "max_facts") for fact in facts]
        chosen = sorted(sorted(range(len(facts)), key=rank.__getitem__)[: config.max_facts])
        facts = [facts[i] for i in chosen]
    return facts


def _build(config: Config, folder: Path, log: Callable[[str], None]) -> None:
    facts, wordings = _read(config, log)
    unseen = _unseen(config, facts)
    _require_trained(config, unseen)
    _tell_inverses(config, facts, unseen, log)
    pieces, tokenizer = _pieces(config, facts, wordings, log)
    pieces.save(folder)
    tokenizer.save_in(folder)


def _pieces(
    config: Config,
    facts: list[Fact],
    wordings: dict[str, RelationWordings],
    log: Callable[[str], None],
) -> tuple[FactPieces, TextTokenizer]:
    unseen = _unseen(config, facts)
    asked = [_is_asked(fact, config.question_share) for fact in facts]
    if config.tokenizer is None:
        log(f"training a tokenizer on {len(facts):,} facts")
        tokenizer = train(_statements(facts, wordings), vocab_size=config.vocab_size)
        fix = "lower data.vocab_size"
        for remark in unused_tokens(tokenizer.size, vocab_size=config.vocab_size, fix=fix):
            log(remark)
    else:
        path = Path(config.tokenizer).expanduser()
        tokenizer = load(path, vocab_size=config.vocab_size, separator=config.separator)
        _check_pieces(tokenizer, facts, wordings, path, log)
        # Files of facts are often sorted. Each fact has up to two of the statements looked at.
        spread = facts[:: max(1, -(-2 * len(facts) // LOOKED_AT))]
        check_lost_text(path, tokenizer, [lambda: _statements(spread, wordings)], log)
    pieces = build_pieces(
        facts,
        wordings,
        tokenizer,
        asked=asked,
        unseen=unseen,
        vocab_size=config.vocab_size,
    )
    return pieces, tokenizer


def _tokens_of_sample(
    config: Config, sample: list[Fact], wordings: dict[str, RelationWordings], *, of: int
) -> float | None:
    """Return the tokens of an epoch over `of` facts, by those of a sample of them."""
    try:
        pieces, _ = _pieces(config, sample, wordings, lambda message: None)
    except ModuleNotFoundError:
        return None
    tokens = tokens_per_epoch(pieces, questions_per_fact=config.questions_per_fact)
    return tokens * of / len(sample)


def _unseen(config: Config, facts: list[Fact]) -> list[bool]:
    """Return which facts are held out of training, by their subjects."""
    return [unit_hash(fact.subject, "unseen") < config.heldout_subjects for fact in facts]


def _require_trained(config: Config, unseen: list[bool]) -> None:
    if all(unseen):
        raise DataError(
            [f"{config.path}: heldout_subjects leaves no fact to train on; lower it or add facts"]
        )


def _tell_inverses(
    config: Config, facts: list[Fact], unseen: list[bool], log: Callable[[str], None]
) -> None:
    """Log how many facts of unseen subjects training states about their objects."""
    asked = [fact for fact, held_out in zip(facts, unseen, strict=True) if held_out]
    if not asked:
        return
    stated = {
        (fact.subject, fact.answers[0])
        for fact, held_out in zip(facts, unseen, strict=True)
        if not held_out
    }
    told = Counter(
        fact.relation_name
        for fact in asked
        if any((answer, fact.subject) in stated for answer in fact.answers)
    )
    if told:
        of = Counter(fact.relation_name for fact in asked)
        relations = [f"{name} {n:,} of {of[name]:,}" for name, n in told.most_common(3)]
        log(
            f"{Path(config.path).name}: training states {told.total():,} of {len(asked):,} facts "
            f"of unseen subjects with subject and object exchanged ({', '.join(relations)}); there "
            "recall/unseen_subject has more to go by than names"
        )


def _is_asked(fact: Fact, question_share: float) -> bool:
    if fact.split is not None:
        return fact.split == QA_TRAIN
    return unit_hash(fact.subject, "questions") < question_share


def _statements(facts: list[Fact], wordings: dict[str, RelationWordings]) -> Iterator[str]:
    """Yield text in the proportions of training: each fact in one wording, and as a question."""
    for i, fact in enumerate(facts):
        of = wordings[fact.relation]
        for choices in (of.train, of.questions):
            if choices:
                text = choices[i % len(choices)].text
                yield " " + text.replace("{s}", fact.subject).replace("{o}", fact.answers[0])


def _check_pieces(
    tokenizer: TextTokenizer,
    facts: list[Fact],
    wordings: dict[str, RelationWordings],
    path: Path,
    log: Callable[[str], None],
) -> None:
    """Refuse a tokenizer that changes text given in pieces (no byte-level spaces)."""
    step = max(1, len(facts) // _CHECKED_STATEMENTS)
    n_differ, sample = 0, facts[::step]
    for fact in sample:
        wording = wordings[fact.relation].train[0]
        entities = [
            " " * wording.subject_spaced + fact.subject,
            " " * wording.object_spaced + fact.answers[0],
        ]
        first, second = entities[:: -1 if wording.object_first else 1]
        texts = [wording.before, first, wording.middle, second, wording.after]
        pieces = [token for ids in tokenizer.encode(texts) for token in ids]
        whole = tokenizer.encode(["".join(texts)])[0]
        if tokenizer.decode(pieces).split() != tokenizer.decode(whole).split():
            raise DataError(
                [
                    f"{path}: reads {''.join(texts)!r} in pieces as {tokenizer.decode(pieces)!r}; "
                    "use a byte-level tokenizer, in which a space belongs to the word behind it"
                ]
            )
        n_differ += pieces != whole
    log(f"{path.name}: {n_differ} of {len(sample)} statements differ when tokenised in one piece")


def _corpus(config: Config, pieces: FactPieces, tokenizer_file: Path | None) -> Corpus:
    trained = np.flatnonzero(~pieces.arrays.unseen)
    tokens, n_bytes = heldout_statements(pieces)
    if not len(tokens):
        tokens, n_bytes = statements(pieces, trained[spread(len(trained), 2_000)], TRAIN)
    return Corpus(
        pieces=pieces,
        vocab_size=config.vocab_size,
        tokens_per_epoch=tokens_per_epoch(pieces, questions_per_fact=config.questions_per_fact),
        bytes_per_token=n_bytes / len(tokens),
        probes=probe_sets(
            pieces,
            with_questions=config.questions_per_fact > 0,
            at_most=config.n_probe_facts,
        ),
        n_facts=len(trained),
        total_bits=float(pieces.arrays.prior_bits[trained].sum()),
        questions_per_fact=config.questions_per_fact,
        tokenizer_file=tokenizer_file,
    )
