import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from workloads.data import tokenizer as tokenizers
from workloads.data.facts import documents
from workloads.data.facts.documents import heldout_statements
from workloads.data.facts.table import unit_hash
from workloads.data.facts.token_pieces import prior_bits
from workloads.data.readers.problems import DataError
from workloads.data.sources import triples
from workloads.data.sources.triples import Config

TEMPLATES = {
    "P1": {
        "relation": "capital",
        "train_statements": [
            "{s} is governed from {o}.",
            "The capital of {s} is {o}.",
            "{o} is the seat of {s}.",
        ],
        "heldout_statements": ["Ministers of {s} meet in {o}.", "{o} rules {s}."],
        "questions": ["What is the capital of {s}?", "Where do ministers of {s} work?"],
    },
    "P2": {
        "relation": "river",
        "train_statements": ["{s} lies on the river {o}", "Rivers of {s}: {o}"],
        "heldout_statements": ["Through {s} flows {o}"],
        "questions": ["Which river flows through {s}?"],
    },
}
N_SUBJECTS = 40


def rows() -> list[dict]:
    """Every subject has two facts; subjects with an even number are qa_train."""
    made = []
    for i in range(N_SUBJECTS):
        for relation, name, n_objects in (("P1", "capital", 10), ("P2", "river", 4)):
            target = f"{'Old ' * (i % 2)}{name.title()} {i % n_objects}"
            made.append(
                {
                    "subject": f"Land {'of ' * (i % 3)}{i}",
                    "relation_id": relation,
                    "relation": name,
                    "object": target,
                    "all_objects": [target, f"Alias {i % n_objects}"] if i % 4 == 0 else [target],
                    "qa_split": "qa_test" if i % 2 else "qa_train",
                }
            )
    return made


@pytest.fixture
def files(tmp_path):
    facts, templates = tmp_path / "facts.jsonl", tmp_path / "templates.json"
    facts.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    templates.write_text(json.dumps(TEMPLATES, indent=1))
    return {"path": str(facts), "templates": str(templates), "vocab_size": 400}


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def tokenizer_of(cache: Path) -> tokenizers.TextTokenizer:
    (path,) = cache.glob("triples-*/tokenizer.json")
    return tokenizers.load(path, vocab_size=100_000)


def split_documents(stream) -> list[np.ndarray]:
    starts = np.flatnonzero(stream == 0)
    assert starts[0] == 0
    return np.split(stream, starts[1:])


def texts_of(tokenizer, stream) -> list[str]:
    return [tokenizer.decode(document[1:]) for document in split_documents(stream)]


def filled(row: dict, kind: str) -> set[str]:
    templates = TEMPLATES[row["relation_id"]][kind]
    if kind == "questions":
        templates = [f"Question: {text} Answer: {{o}}" for text in templates]
    return {
        " " + text.replace("{s}", row["subject"]).replace("{o}", row["object"])
        for text in templates
    }


def test_an_epoch_states_every_fact_once_and_asks_about_qa_train_only(files, cache):
    corpus = Config(**files).prepare(cache)
    tokenizer = tokenizer_of(cache)
    heldout = {text for row in rows() for text in filled(row, "heldout_statements")}
    for epoch in (0, 7):
        texts = texts_of(tokenizer, corpus.epoch(epoch, seed=0))
        assert not heldout & set(texts)
        for row in rows():
            stated = [text for text in texts if text in filled(row, "train_statements")]
            asked = [text for text in texts if text in filled(row, "questions")]
            assert len(stated) == 1
            assert len(asked) == (row["qa_split"] == "qa_train")
        assert len(texts) == len(rows()) * 3 // 2


def test_every_wording_of_a_fact_is_drawn_sooner_or_later(files, cache):
    corpus = Config(**files).prepare(cache)
    tokenizer = tokenizer_of(cache)
    seen = {t for e in range(40) for t in texts_of(tokenizer, corpus.epoch(e, seed=0))}
    for row in rows():
        assert filled(row, "train_statements") <= seen


def test_prompt_and_answer_are_the_tokens_of_training(files, cache):
    corpus = Config(**files).prepare(cache)
    documents = [
        tuple(document)
        for epoch in range(40)
        for document in split_documents(corpus.epoch(epoch, seed=0))
    ]
    statements = {document[:n] for document in set(documents) for n in range(len(document) + 1)}
    probe = corpus.probes[0]
    canonical = np.unique(probe.facts, return_index=True)[1]
    for row in canonical:
        assert (*probe.prompts[row], *probe.answers[row]) in statements


def test_probes_ask_in_their_own_wordings_about_the_right_subjects(files, cache):
    corpus = Config(**files, heldout_subjects=0.2).prepare(cache)
    tokenizer = tokenizer_of(cache)
    by_name = {probe.name: probe for probe in corpus.probes}
    assert list(by_name) == ["train_wording", "heldout_wording", "question", "unseen_subject"]
    assert [p.name for p in corpus.probes if p.counts_as_knowledge] == ["train_wording"]
    trained = set(texts_of(tokenizer, corpus.epoch(0, seed=0)))
    kinds = {
        "train_wording": "train_statements",
        "heldout_wording": "heldout_statements",
        "question": "questions",
        "unseen_subject": "train_statements",
    }
    for name, probe in by_name.items():
        n_facts = 0
        for row in rows():
            unseen = not (filled(row, "train_statements") & trained)
            wanted = {
                "question": not unseen and row["qa_split"] == "qa_test",
                "unseen_subject": unseen,
            }.get(name, not unseen)
            # What stands before the object, where the object comes last.
            prompts = {
                text[: text.rindex(" " + row["object"])]
                for text in filled(row, kinds[name])
                if text.rstrip(".").endswith(row["object"])
            }
            found = [
                i
                for i, prompt in enumerate(probe.prompts)
                if tokenizer.decode(prompt[1:]) in prompts
            ]
            assert bool(found) == wanted
            if not wanted:
                continue
            n_facts += 1
            answers = [tokenizer.decode(probe.answers[i]) for i in found]
            assert answers == [" " + answer for answer in row["all_objects"]]
            assert len(set(probe.facts[found])) == 1
        assert n_facts == len(probe.prior_bits)
        assert (np.unique(probe.facts) == np.arange(n_facts)).all()
        assert (np.diff(probe.facts) >= 0).all()
        assert all(prompt[0] == 0 for prompt in probe.prompts)
        assert probe.scale == 1
    assert corpus.n_facts == len(by_name["train_wording"].prior_bits)


def test_a_sample_of_facts_stands_for_all(files, cache):
    every = Config(**files).prepare(cache)
    sample = Config(**files, n_probe_facts=16).prepare(cache)
    assert [len(p.prior_bits) for p in sample.probes] == [16, 16, 16]
    assert [p.scale for p in sample.probes] == [5, 5, 2.5]
    bits = sample.probes[0].scale * sample.probes[0].prior_bits.sum()
    assert bits == pytest.approx(every.total_bits, rel=0.1)
    assert len(list(cache.glob("triples-*/tokenizer.json"))) == 1, (
        "n_probe_facts needs no new tokens"
    )


def test_prior_bits_by_hand():
    relations, objects = np.array([0, 0, 0, 1]), np.array([5, 5, 6, 5])
    expected = -np.log2([3 / 5, 3 / 5, 2 / 5, 1.0])
    assert prior_bits(relations, objects) == pytest.approx(expected)


def test_epochs_are_as_long_as_advertised(files, cache):
    corpus = Config(**files).prepare(cache)
    assert {len(corpus.epoch(e, seed=2)) for e in range(20)} == {corpus.tokens_per_epoch}


def test_facts_that_are_fewer_than_wordings_are_stated_in_all_of_them(files, cache):
    """Over epochs; in one there is a statement a fact, so epochs differ in length."""
    kept = [row for row in rows() if row["relation_id"] == "P2" or row["subject"] == "Land 0"]
    Path(files["path"]).write_text("".join(json.dumps(row) + "\n" for row in kept))
    corpus = Config(**files).prepare(cache)
    epochs = [corpus.epoch(e, seed=0) for e in range(40)]
    texts = {t for epoch in epochs for t in texts_of(tokenizer_of(cache), epoch)}
    answer = next(row["object"] for row in kept if row["relation_id"] == "P1")
    for wording in TEMPLATES["P1"]["train_statements"]:
        assert " " + wording.replace("{s}", "Land 0").replace("{o}", answer) in texts
    assert len({len(epoch) for epoch in epochs}) > 1
    assert max(map(len, epochs)) == corpus.tokens_per_epoch
    for question in TEMPLATES["P1"]["questions"]:
        assert any(question.replace("{s}", "Land 0") in text for text in texts)


def test_rare_relations_leave_the_documents_of_others_as_they_are(files, cache, monkeypatch):
    kept = [row for row in rows() if row["relation_id"] == "P2" or row["subject"] == "Land 0"]
    Path(files["path"]).write_text("".join(json.dumps(row) + "\n" for row in kept))
    corpus = Config(**files).prepare(cache)

    def of_others():
        texts = texts_of(tokenizer_of(cache), corpus.epoch(3, seed=0))
        return [text for text in texts if "Land 0" not in text]

    found = of_others()
    monkeypatch.setattr(documents, "_rotations", lambda n_documents, n_wordings: 1)
    assert found == of_others() != []


def test_wordings_without_a_space_before_an_entity_never_push_a_fact_out(files, cache):
    templates = json.loads(Path(files["templates"]).read_text())
    templates["P2"]["train_statements"].append('"{s}" ({o})')
    Path(files["templates"]).write_text(json.dumps(templates))
    corpus = Config(**files).prepare(cache)
    lengths = {len(corpus.epoch(e, seed=0)) for e in range(20)}
    assert max(lengths) <= corpus.tokens_per_epoch <= 1.02 * min(lengths)
    texts = {t for e in range(20) for t in texts_of(tokenizer_of(cache), corpus.epoch(e, seed=0))}
    assert ' "Land 0" (River 0)' in texts


def test_windows_do_not_depend_on_what_was_asked_before_or_on_the_cache(files, cache, tmp_path):
    corpus = Config(**files).prepare(cache)
    other = Config(**files).prepare(tmp_path / "elsewhere")
    indices = np.arange(200)
    together = corpus.windows(indices, seq_len=48, seed=-5)
    assert together.max() < corpus.vocab_size
    for index in (180, 0, 63, 62, 199):
        assert (other.windows(np.array([index]), seq_len=48, seed=-5)[0] == together[index]).all()
    assert (corpus.windows(indices, seq_len=48, seed=5) != together).any()


def test_validation_is_text_in_heldout_wordings(files, cache):
    corpus = Config(**files).prepare(cache)
    windows = corpus.validation(seq_len=32)
    stream = np.concatenate([windows[:, :-1].reshape(-1), windows[-1:, -1]])
    texts = texts_of(tokenizer_of(cache), stream)[:-1]
    heldout = {text for row in rows() for text in filled(row, "heldout_statements")}
    assert len(texts) > 50
    assert set(texts) <= heldout


def test_validation_mixes_relations_that_the_file_keeps_apart(files, cache):
    grouped = sorted(rows(), key=lambda row: row["relation_id"])
    Path(files["path"]).write_text("".join(json.dumps(row) + "\n" for row in grouped))
    corpus = Config(**files).prepare(cache)
    texts = texts_of(tokenizer_of(cache), heldout_statements(corpus.pieces)[0])
    n_rivers = sum("flows" in text for text in texts[: len(texts) // 2])
    # Hypergeometric: 40 of 80 drawn, 40 of them rivers: 20 expected, standard deviation 2.2.
    assert 20 - 6 * 2.2 < n_rivers < 20 + 6 * 2.2


def test_bytes_per_token_are_those_of_heldout_statements(files, cache):
    corpus = Config(**files).prepare(cache)
    n = sum(len(document) for document in split_documents(heldout_statements(corpus.pieces)[0]))
    texts = texts_of(tokenizer_of(cache), heldout_statements(corpus.pieces)[0])
    assert len(texts) == len(rows())
    assert corpus.bytes_per_token * n == pytest.approx(sum(len(t.encode()) - 1 for t in texts))


def test_a_complete_cache_is_not_built_again_until_the_content_changes(files, cache, monkeypatch):
    Config(**files).prepare(cache)
    moved = Path(files["path"]).rename(Path(files["path"]).with_name("moved.jsonl"))
    built = []
    monkeypatch.setattr(triples, "_build", lambda *args: built.append(args))
    Config(**{**files, "path": str(moved)}).prepare(cache)
    assert not built
    moved.write_text(moved.read_text() + json.dumps({**rows()[0], "subject": "new"}) + "\n")
    with pytest.raises(FileNotFoundError):
        Config(**{**files, "path": str(moved)}).prepare(cache)
    assert len(built) == 1


def test_relations_can_be_chosen_by_id_or_name_and_facts_sampled(files, cache):
    for wanted in ("P1", "capital"):
        config = Config(**files, relations=(wanted,))
        assert relations_of(config) == {"capital"}
        assert config.prepare(cache).n_facts == N_SUBJECTS
    config = Config(**files, max_facts=30)
    assert relations_of(config) == {"capital", "river"}
    assert config.prepare(cache).n_facts == 30


def relations_of(config):
    facts, _ = triples._read(config, lambda message: None)
    return {fact.relation_name for fact in facts}


def test_without_questions_there_is_no_question_probe(files, cache):
    corpus = Config(**files, questions_per_fact=0).prepare(cache)
    assert [probe.name for probe in corpus.probes] == ["train_wording", "heldout_wording"]
    texts = texts_of(tokenizer_of(cache), corpus.epoch(0, seed=0))
    assert len(texts) == len(rows())
    assert not any("Question" in text for text in texts)


def test_subjects_are_split_by_hash_where_the_file_does_not_say(tmp_path, cache):
    path = tmp_path / "facts.tsv"
    lines = [f"subject {i}\tsize\t{i % 7}" for i in range(200)]
    path.write_text("\n".join(["subject\trelation\tobject", *lines]))
    said: list[str] = []
    config = Config(path=str(path), vocab_size=400, question_share=0.25)
    corpus = config.prepare(cache, said.append)
    assert any("no templates given" in text for text in said)
    question = next(probe for probe in corpus.probes if probe.name == "question")
    assert 120 < len(question.prior_bits) < 180
    tokenizer = tokenizer_of(cache)
    asked = [t for t in texts_of(tokenizer, corpus.epoch(0, seed=0)) if "Question" in t]
    assert len(asked) == 200 - len(question.prior_bits)
    untouched = {tokenizer.decode(prompt[1:]) for prompt in question.prompts}
    assert not untouched & {text[: text.index(" Answer:") + 8] for text in asked}


def test_a_vocabulary_that_the_facts_cannot_fill_is_told(files, cache):
    told: list[str] = []
    Config(**{**files, "vocab_size": 4_000}).prepare(cache, told.append)

    (remark,) = [line for line in told if line.startswith("tokenizer: ")]
    size = tokenizer_of(cache).size
    assert remark == (
        f"tokenizer: {size:,} tokens; vocab_size 4,000 leaves {4_000 - size:,} unused; "
        "lower data.vocab_size"
    )


def test_a_tokenizer_can_be_loaded(files, cache, tmp_path):
    path = tmp_path / "own.json"
    tokenizers.train(["a Land of ministers"] * 3, vocab_size=300).save(path)
    said: list[str] = []
    corpus = Config(**files, tokenizer=str(path)).prepare(cache, said.append)
    assert any("0 of 80 statements differ" in text for text in said)
    assert corpus.vocab_size == 400
    assert corpus.epoch(0, seed=0).max() < 300


def test_a_tokenizer_without_tokens_for_the_facts_is_refused(files, cache, tmp_path):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(["the quick"], trainers.BpeTrainer(special_tokens=["</s>"]))
    made.save(str(tmp_path / "t.json"))
    config = Config(**files, tokenizer=str(tmp_path / "t.json"))
    with pytest.raises(DataError, match=r"t\.json: has no tokens for \d\d\.\d% of the text"):
        config.prepare(cache)


def test_facts_that_a_tokenizer_loses_may_come_last_in_a_sorted_file(cache, tmp_path):
    known = [f"aa{i:03}\tlives in\tbb\n" for i in range(250)]
    lost = [f"дд{i:03}\tlives in\tжж\n" for i in range(750)]
    (tmp_path / "facts.tsv").write_text("".join(["subject\trelation\tobject\n", *known, *lost]))
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    ascii_text = "".join(map(chr, range(32, 127)))
    made.train_from_iterator([ascii_text], trainers.BpeTrainer(special_tokens=["</s>"]))
    made.save(str(tmp_path / "t.json"))

    with pytest.raises(DataError, match=r"t\.json: has no tokens for \d+\.\d% of the text"):
        Config(path=str(tmp_path / "facts.tsv"), tokenizer=str(tmp_path / "t.json")).prepare(cache)


def test_a_tokenizer_that_loses_spaces_between_pieces_is_refused(files, cache, tmp_path):
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    model.train_from_iterator(
        [
            text.replace("{s}", row["subject"]) + row["object"]
            for row in rows()
            for text in TEMPLATES["P1"]["train_statements"]
        ],
        trainers.BpeTrainer(special_tokens=["</s>"], show_progress=False),
    )
    path = tmp_path / "own.json"
    model.save(str(path))
    config = Config(**files, tokenizer=str(path))
    with pytest.raises(DataError, match=r"own\.json: reads .* in pieces as .*byte-level tokenizer"):
        config.prepare(cache)
    assert not list(cache.glob("triples-*[!k]"))


def test_missing_files_are_named_with_the_expected_format(files, cache):
    config = Config(**{**files, "path": "nowhere.tsv", "templates": "neither.json"})
    with pytest.raises(DataError) as caught:
        config.prepare(cache)
    first, second = caught.value.problems
    assert first.startswith(
        "data.path: nowhere.tsv does not exist; expected: a table with a header"
    )
    assert "Marie Curie<TAB>place of birth<TAB>Warsaw" in first
    assert second.startswith("data.templates: neither.json does not exist")


def test_mistakes_of_both_files_are_reported_together(files, cache):
    Path(files["path"]).write_text(
        Path(files["path"]).read_text()
        + '{"subject": "x", "relation_id": "P9", "object": "y"}\n{"subject": "x"}\n'
    )
    Path(files["templates"]).write_text(json.dumps({**TEMPLATES, "P3": 5}))
    config = Config(**files, relations=("P1", "P9", "P7"))
    for act in (config.check, lambda: config.prepare(cache)):
        with pytest.raises(DataError) as caught:
            act()
        problems = [text.rsplit("/", 1)[1] for text in caught.value.problems]
        assert problems == [
            "facts.jsonl:82: relation, object missing; the row has 'subject'; give every row these "
            "fields, or name yours in data.subject_column, data.relation_column and "
            "data.object_column",
            "facts.jsonl: has no relation 'P7' of data.relations; choose among P1, P2, P9",
            "templates.json:1: P3 must map to train_statements, heldout_statements and questions, "
            "got 5; see the format of relation templates",
            "templates.json: no templates for relation P9 (1 facts); add them, or leave it out with "
            "data.relations",
        ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 100}, "vocab_size must be at least 257 .*, got 100"),
        ({"max_facts": 0}, "max_facts must be at least 1 or null, got 0"),
        ({"n_probe_facts": 0}, "n_probe_facts must be at least 1, got 0"),
        ({"heldout_subjects": 1.0}, r"heldout_subjects must lie in \[0, 1\), got 1.0"),
        ({"question_share": -0.1}, r"question_share must lie in 0\.\.1, got -0\.1"),
        ({"questions_per_fact": -1}, r"questions_per_fact must lie in 0\.\.100, got -1"),
        ({"relations": ()}, "relations must name at least one"),
        ({"separator": "</s>"}, "separator belongs to a loaded tokenizer"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(path="facts.tsv", **fields)


def test_every_fact_of_an_unseen_subject_is_held_out(files, cache):
    """Another fact in training would teach the subject's name."""
    corpus = Config(**files, heldout_subjects=0.4).prepare(cache)
    trained = "\n".join(texts_of(tokenizer_of(cache), corpus.epoch(0, seed=0)))
    by_subject: dict[str, set[bool]] = {}
    for row in rows():
        stated = any(text in trained for text in filled(row, "train_statements"))
        by_subject.setdefault(row["subject"], set()).add(stated)

    assert all(len(stated) == 1 for stated in by_subject.values()), by_subject
    assert 5 < sum(stated == {False} for stated in by_subject.values()) < N_SUBJECTS - 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"relation_column": "r"}, "relation_column belongs to tables with one fact per row"),
        ({"object_column": "o"}, "object_column belongs to tables with one fact per row"),
        ({"subject_column": "born"}, "must name columns, and not that of the subject"),
    ],
)
def test_columns_as_relations_exclude_columns_of_melted_tables(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(path="people.csv", columns_as_relations=("born", "party"), **fields)


def test_the_plan_says_how_far_guessing_gets(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("name,sex,born\n" + "".join(f"P{i},f,{1900 + i}\n" for i in range(10)))
    said = []
    Config(
        path=str(path), subject_column="name", columns_as_relations=("sex", "born"), vocab_size=300
    ).check(said.append)
    assert any("is right for 55% of the facts" in sentence for sentence in said)


def test_facts_of_unseen_subjects_that_training_states_the_other_way_round_are_told(tmp_path):
    path = tmp_path / "people.tsv"
    names = [f"P{i}" for i in range(40)]
    couples = [
        f"{one}\tspouse\t{other}"
        for i in range(0, 40, 2)
        for one, other in (names[i : i + 2], names[i : i + 2][::-1])
    ]
    births = [f"{name}\tborn\t{1900 + i}" for i, name in enumerate(names)]
    path.write_text("\n".join(["subject\trelation\tobject", *couples, *births]))
    config = Config(path=str(path), heldout_subjects=0.3, vocab_size=300)
    unseen = {name for name in names if unit_hash(name, "unseen") < 0.3}
    told = sum(names[i ^ 1] not in unseen for i, name in enumerate(names) if name in unseen)
    assert 0 < told < len(unseen)

    for said, read in (([], config.facts), ([], partial(config.prepare, tmp_path / "cache"))):
        read(said.append)
        assert (
            f"people.tsv: training states {told} of {2 * len(unseen)} facts of unseen subjects with "
            f"subject and object exchanged (spouse {told} of {len(unseen)}); there "
            "recall/unseen_subject has more to go by than names"
        ) in said

    said = []
    Config(path=str(path), vocab_size=300).facts(said.append)
    assert not any("exchanged" in sentence for sentence in said)


def test_the_plan_tells_rows_of_several_lines(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text('subject,relation,object\na,born,"1900\nb,born,1901"\nc,born,1902\n')
    said = []
    Config(path=str(path), vocab_size=300).check(said.append)
    assert any(sentence.startswith("people.csv: rows of several lines: 1,") for sentence in said)
