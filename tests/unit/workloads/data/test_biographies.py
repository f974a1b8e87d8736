import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workloads.data.biographies import templates as wordings
from workloads.data.biographies.vocabulary import NAME_SLOTS, PRONOUN_SLOT, VALUE_SLOTS
from workloads.data.sources.biographies import SEPARATOR, Config, Corpus

SMALL = {
    "n_first_names": 7,
    "n_middle_names": 5,
    "n_last_names": 11,
    "n_years": 9,
    "n_cities": 8,
    "n_universities": 6,
    "n_majors": 5,
    "n_employers": 4,
}


def text_of(corpus, tokens):
    vocabulary = corpus.config.layout.vocabulary
    return " ".join(vocabulary[token] for token in tokens)


def prepared(**fields) -> Corpus:
    return Config(**{"n_people": 60, **SMALL, **fields}).prepare(Path("unused"))


def documents(corpus: Corpus, stream: np.ndarray) -> list[str]:
    starts = np.flatnonzero(stream == SEPARATOR)
    assert starts[0] == 0
    return [text_of(corpus, document[1:]) for document in np.split(stream, starts[1:])]


def words(corpus: Corpus, person: int, slots: tuple[int, ...]) -> str:
    return text_of(corpus, corpus.slots[person, list(slots)])


def sentences(corpus: Corpus, person: int, attribute: str, texts: list[str]) -> list[str]:
    """Fill wordings by plain text replacement: first with the name, then with what stands for it later."""
    name = words(corpus, person, NAME_SLOTS)
    compact = corpus.config.style == "compact"
    short = "" if compact else words(corpus, person, (PRONOUN_SLOT,))
    value = words(corpus, person, VALUE_SLOTS[attribute])
    return [
        text.replace("{s}", subject).replace("{o}", value).strip()
        for subject in (name, short)
        for text in texts
    ]


def training_statements(corpus: Corpus, person: int, attribute: str) -> list[str]:
    config = corpus.config
    texts = wordings.statement_templates(config.style, attribute, config.n_wordings)
    if config.style == "sentences":
        return texts[: config.n_wordings]
    held = {(person + i) % len(texts) for i in range(wordings.N_HELDOUT)}
    return [text for i, text in enumerate(texts) if i not in held]


def person_named_in(corpus: Corpus, text: str) -> int:
    parts = text.split()
    names = {" ".join(parts[i : i + 3]) for i in range(len(parts) - 2)}
    (person,) = names & set(people_by_name(corpus))
    return people_by_name(corpus)[person]


def people_by_name(corpus: Corpus) -> dict[str, int]:
    if not hasattr(corpus, "names"):
        n = corpus.config.n_people
        corpus.names = {words(corpus, person, NAME_SLOTS): person for person in range(n)}
    return corpus.names


def is_biography(corpus: Corpus, document: str) -> bool:
    return is_biography_of(corpus, person_named_in(corpus, document), document)


def is_biography_of(corpus: Corpus, person: int, document: str) -> bool:
    """Whether a text is the person's five attributes, each in a training wording, in an allowed order."""
    order = []
    rest = document
    left = list(wordings.ATTRIBUTES)
    while left:
        for attribute in left:
            texts = training_statements(corpus, person, attribute)
            full, short = np.split(np.array(sentences(corpus, person, attribute, texts)), 2)
            fits = [s for s in (short if order else full) if (rest + " ").startswith(s + " ")]
            if fits:
                rest = rest.removeprefix(max(fits, key=len)).strip()
                order.append(attribute)
                left.remove(attribute)
                break
        else:
            return False
    fixed = corpus.config.order == "fixed"
    return not rest and (not fixed or order == list(wordings.ATTRIBUTES))


def questions_about(corpus: Corpus, person: int) -> set[str]:
    return {
        text
        for attribute in wordings.ATTRIBUTES
        for text in sentences(
            corpus, person, attribute, wordings.question_templates(corpus.config.style, attribute)
        )[: wordings.N_QUESTIONS]
    }


VARIANTS = [
    {},
    {"style": "compact", "n_wordings": 3},
    {"order": "fixed", "n_wordings": 2},
    {"style": "compact", "order": "fixed", "questions_per_biography": 5},
    {"question_share": 0.0},
    {"question_share": 1.0, "questions_per_biography": 3},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_an_epoch_is_one_biography_a_person_and_the_questions_of_the_asked(fields):
    corpus = prepared(**fields)
    config = corpus.config
    for epoch in (0, 5):
        texts = documents(corpus, corpus.epoch(epoch, seed=3))
        n_questions = config.n_asked * config.questions_per_biography
        assert len(texts) == config.n_people + n_questions

        described, asked = [], []
        for text in texts:
            person = person_named_in(corpus, text)
            if text in questions_about(corpus, person):
                asked.append(person)
            else:
                assert is_biography_of(corpus, person, text), text
                described.append(person)
        assert sorted(described) == list(range(config.n_people))
        assert sorted(asked) == sorted(list(range(config.n_asked)) * config.questions_per_biography)


def test_documents_change_their_order_and_wording_with_the_epoch_and_with_the_seed():
    corpus = prepared()
    first = documents(corpus, corpus.epoch(0, seed=0))
    for other in (corpus.epoch(1, seed=0), corpus.epoch(0, seed=1), corpus.epoch(0, seed=-1)):
        texts = documents(corpus, other)
        assert texts != first
        assert len(set(texts) & set(first)) < len(first) / 4


def test_windows_do_not_depend_on_what_was_asked_before_or_together():
    corpus, fresh = prepared(), prepared()
    indices = np.arange(400)
    together = corpus.windows(indices, seq_len=32, seed=0)
    shuffled = np.random.default_rng(0).permutation(indices)
    one_by_one = np.concatenate(
        [fresh.windows(shuffled[i : i + 7], seq_len=32, seed=0) for i in range(0, 400, 7)]
    )
    assert (one_by_one == together[shuffled]).all()


def test_windows_of_an_epoch_join_up_to_its_stream():
    corpus = prepared()
    stream = corpus.epoch(2, seed=0)
    per_epoch = -(-len(stream) // 48)
    windows = corpus.windows(np.arange(2 * per_epoch, 3 * per_epoch), seq_len=48, seed=0)
    inputs, targets = windows[:, :-1].reshape(-1), windows[:, 1:].reshape(-1)
    assert (inputs[: len(stream)] == stream).all()
    assert (targets[: len(stream)] == np.roll(stream, -1)).all()
    assert (inputs[len(stream) :] == stream[: len(inputs) - len(stream)]).all()


def test_windows_are_the_same_in_another_process_which_loads_neither_torch_nor_tokenizers():
    code = (
        "import sys, hashlib, numpy as np\n"
        "from workloads.data.sources import biographies, text, triples\n"
        "corpus = biographies.Config(n_people=50).prepare(None)\n"
        "windows = corpus.windows(np.arange(90, 110), seq_len=64, seed=4)\n"
        "assert not {'torch', 'tokenizers', 'pyarrow'} & set(sys.modules)\n"
        "sys.stdout.write(hashlib.sha256(windows.tobytes()).hexdigest())\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    windows = Config(n_people=50).prepare(Path()).windows(np.arange(90, 110), seq_len=64, seed=4)
    assert there == hashlib.sha256(windows.tobytes()).hexdigest()


def test_full_names_are_unique_even_when_every_name_is_taken():
    corpus = prepared(n_people=7 * 5 * 11)
    names = corpus.slots[:, list(NAME_SLOTS)]
    assert len(np.unique(names, axis=0)) == 7 * 5 * 11


def test_values_fill_their_pools_evenly():
    corpus = Config(n_people=20_000, n_cities=10).prepare(Path())
    _, counts = np.unique(corpus.slots[:, VALUE_SLOTS["birth_city"][0]], return_counts=True)
    # Binomial(20000, 0.1): standard deviation 42; six of them on either side.
    assert len(counts) == 10
    assert abs(counts - 2_000).max() < 6 * 42.5


def test_the_corpus_seed_chooses_the_people_and_the_trial_seed_does_not():
    assert (prepared().slots == prepared().slots).all()
    assert (prepared(seed=1).slots != prepared().slots).any()


def test_tokens_are_below_vocab_size_and_every_word_is_one_token():
    for fields in VARIANTS:
        corpus = prepared(**fields)
        vocabulary = corpus.config.layout.vocabulary
        assert len(vocabulary) == len(set(vocabulary)) == corpus.vocab_size
        assert corpus.slots.max() < corpus.vocab_size
        assert corpus.epoch(0, seed=0).max() < corpus.vocab_size


def test_smaller_pools_make_a_smaller_vocabulary():
    assert Config(n_people=10).vocab_size - Config(n_people=10, n_cities=50).vocab_size == 150


def test_bits_of_a_person_are_those_of_the_published_design():
    # 12 x 28 x 200 birth dates, 200 cities, 300 universities, 100 majors, 263 employers.
    assert Config(n_people=1).bits_per_person == pytest.approx(
        np.log2(12 * 28 * 200 * 200 * 300 * 100 * 263)
    )
    probe = prepared(n_people=3).probes[0]
    assert probe.prior_bits.reshape(3, 5).sum(axis=1) == pytest.approx(
        np.log2(12 * 28 * 9 * 8 * 6 * 5 * 4)
    )
    assert probe.prior_bits[:5] == pytest.approx(np.log2([12 * 28 * 9, 8, 6, 5, 4]))


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_probes_ask_for_the_right_values_in_the_right_kind_of_wording(fields):
    corpus = prepared(n_probe_people=20, **fields)
    config = corpus.config
    by_name = {probe.name: probe for probe in corpus.probes}
    has_questions = 0 < config.question_share < 1
    assert set(by_name) == {"train_wording", "heldout_wording"} | (
        {"question"} if has_questions else set()
    )
    assert [p.name for p in corpus.probes if p.counts_as_knowledge] == ["train_wording"]
    for name, probe in by_name.items():
        assert (probe.facts == np.arange(100)).all()
        population = config.n_people - (config.n_asked if name == "question" else 0)
        assert probe.scale * 20 == population
        for row, (prompt, answer) in enumerate(zip(probe.prompts, probe.answers, strict=True)):
            attribute = wordings.ATTRIBUTES[row % len(wordings.ATTRIBUTES)]
            text = text_of(corpus, prompt[1:])
            assert prompt[0] == SEPARATOR
            person = person_named_in(corpus, text)
            assert text_of(corpus, answer) == words(corpus, person, VALUE_SLOTS[attribute])
            trained = training_statements(corpus, person, attribute)
            every = wordings.statement_templates(config.style, attribute, config.n_wordings)
            texts = {
                "train_wording": trained,
                "heldout_wording": [t for t in every if t not in trained],
                "question": wordings.question_templates(config.style, attribute),
            }[name]
            if name == "question":
                assert person >= config.n_asked
            cut = [t[: t.index("{o}")] for t in texts]
            full, short = np.split(np.array(sentences(corpus, person, attribute, cut)), 2)
            if config.order == "permute" or attribute == "birth_date" or name == "question":
                assert text in full
            else:
                assert any(text.endswith(" " + s) for s in short)


def test_with_a_fixed_order_prompts_are_beginnings_of_training_like_biographies():
    corpus = prepared(order="fixed", n_probe_people=5)
    probe = corpus.probes[0]
    for row in range(4, 25, 5):
        text = text_of(corpus, np.concatenate([probe.prompts[row], probe.answers[row]])[1:])
        assert is_biography(corpus, text + " .")


def test_heldout_wordings_use_trained_words_only():
    for attribute in wordings.ATTRIBUTES:
        texts = wordings.statement_templates("sentences", attribute, wordings.MAX_SENTENCE_WORDINGS)
        assert len(set(texts)) == wordings.MAX_SENTENCE_WORDINGS + wordings.N_HELDOUT
        assert all(text.endswith("{o} .") and text.count("{s}") == 1 for text in texts)
    trained = {
        word
        for attribute in wordings.ATTRIBUTES
        for text in wordings.statement_templates("sentences", attribute, 20)[:20]
        for word in text.split()
    }
    for attribute in wordings.ATTRIBUTES:
        for text in wordings.statement_templates("sentences", attribute, 20)[20:]:
            assert set(text.split()) <= trained, text


def test_validation_restates_trained_facts_in_texts_that_training_does_not_have():
    corpus = prepared(n_people=300)
    windows = corpus.validation(seq_len=64)
    assert (windows == corpus.validation(seq_len=64)).all()
    stream = windows[:, :-1].reshape(-1)
    texts = documents(corpus, stream)[:250]
    assert all(is_biography(corpus, text) for text in texts)
    trained = {t for epoch in range(5) for t in documents(corpus, corpus.epoch(epoch, seed=0))}
    assert not trained & set(texts)


def test_validation_stays_small_on_a_large_corpus():
    corpus = Config(n_people=5_000).prepare(Path())
    for seq_len in (64, 2_048):
        windows = corpus.validation(seq_len=seq_len)
        assert 20_000 < windows.shape[0] * seq_len <= 65_536


def test_a_document_has_the_advertised_number_of_tokens():
    sentences_only = Config(n_people=1_000, question_share=0.0)
    assert sentences_only.tokens_per_epoch() / 1_000 == pytest.approx(38, abs=0.5)
    assert Config(n_people=9, style="compact", question_share=0.0).tokens_per_epoch() == 9 * 16


def test_log_gets_one_sentence():
    said: list[str] = []
    Config(n_people=10).prepare(Path(), said.append)
    assert len(said) == 1
    assert said[0].startswith("10 people, ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_people": 0}, r"n_people must lie in 1\.\.160000000 .*, got 0"),
        (
            {"n_people": 9, "n_first_names": 2, "n_middle_names": 2, "n_last_names": 2},
            r"1\.\.8 .*got 9",
        ),
        ({"n_people": 1, "n_majors": 1}, r"n_majors must lie in 2\.\.3500, got 1"),
        ({"n_people": 1, "n_last_names": 5_000}, r"n_last_names must lie in 1\.\.3500, got 5000"),
        ({"n_people": 1, "n_wordings": 21}, r"n_wordings must lie in 1\.\.20, got 21"),
        ({"n_people": 1, "question_share": 1.5}, r"question_share must lie in 0\.\.1, got 1\.5"),
        ({"n_people": 1, "questions_per_biography": 6}, r"questions_per_biography .*1\.\.5, got 6"),
        ({"n_people": 1, "seed": -1}, "seed must lie in .*, got -1"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**fields)


def test_every_pool_can_be_filled_to_its_limit():
    config = Config(
        n_people=1,
        n_years=1_000,
        **{
            f"n_{kind}": 3_500
            for kind in (
                *("first_names", "middle_names", "last_names"),
                *("cities", "universities", "majors", "employers"),
            )
        },
    )
    assert len(set(config.layout.vocabulary)) == config.vocab_size
