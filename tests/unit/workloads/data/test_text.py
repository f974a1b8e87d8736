import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from workloads.data import remarks
from workloads.data import tokenizer as tokenizers
from workloads.data.preparation import local_text
from workloads.data.preparation.encoder import unit_hash
from workloads.data.readers.problems import DataError
from workloads.data.sources import text
from workloads.data.sources.text import Config


def document(i: int) -> str:
    return f"Document {i}.\nIt says {'word ' * (i % 17)}{i * i} and ends – ü."


def write_jsonl(path: Path, texts) -> str:
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return str(path)


@pytest.fixture
def corpus_file(tmp_path) -> str:
    return write_jsonl(tmp_path / "corpus.jsonl", map(document, range(300)))


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def tokenizer_of(cache: Path) -> tokenizers.TextTokenizer:
    (path,) = cache.glob("text-*/tokenizer.json")
    return tokenizers.load(path, vocab_size=100_000)


def texts_of(cache: Path, shards) -> list[str]:
    tokens = shards.windows(np.array([0]), len(shards))[0]
    starts = np.flatnonzero(tokens == 0)
    assert starts[0] == 0
    return [tokenizer_of(cache).decode(part[1:]) for part in np.split(tokens, starts[1:])]


def test_every_document_is_in_training_or_held_out_and_comes_back(corpus_file, cache):
    corpus = Config(path=corpus_file, vocab_size=300, valid_share=0.1).prepare(cache)
    trained, held_out = texts_of(cache, corpus.train), texts_of(cache, corpus.valid)
    assert sorted(trained + held_out) == sorted(map(document, range(300)))
    assert 10 < len(held_out) < 60
    assert trained == [t for t in map(document, range(300)) if t in set(trained)]
    assert corpus.probes == ()
    assert corpus.vocab_size == 300


def test_copies_of_a_document_never_stand_on_both_sides(tmp_path, cache):
    path = write_jsonl(tmp_path / "c.jsonl", [document(i % 50) for i in range(200)])
    corpus = Config(path=path, vocab_size=300, valid_share=0.2).prepare(cache)
    trained, held_out = texts_of(cache, corpus.train), texts_of(cache, corpus.valid)
    assert held_out
    assert not set(trained) & set(held_out)


def test_a_corpus_of_few_documents_still_holds_one_out(tmp_path, cache):
    path = write_jsonl(tmp_path / "c.jsonl", map(document, range(3)))
    corpus = Config(path=path, vocab_size=300, valid_share=0.001).prepare(cache)
    assert (len(texts_of(cache, corpus.train)), len(texts_of(cache, corpus.valid))) == (2, 1)


def test_held_out_text_can_be_given(corpus_file, tmp_path, cache):
    valid = [document(i) for i in range(1_000, 1_020)]
    valid_path = write_jsonl(tmp_path / "valid.jsonl", valid)
    corpus = Config(path=corpus_file, valid_path=valid_path, vocab_size=300).prepare(cache)
    assert texts_of(cache, corpus.valid) == valid
    assert len(texts_of(cache, corpus.train)) == 300
    n_bytes = sum(len(t.encode()) for t in valid)
    assert corpus.bytes_per_token == pytest.approx(n_bytes / len(corpus.valid))


@pytest.mark.parametrize("copied", [False, True])
def test_a_held_out_file_that_is_trained_on_is_refused(corpus_file, tmp_path, cache, copied):
    valid = tmp_path / "valid.jsonl"
    write_jsonl(valid, map(document, range(1_000, 1_020)))
    held_out = valid
    if copied:
        held_out = tmp_path / "elsewhere" / "other.jsonl"
        held_out.parent.mkdir()
        held_out.write_bytes(valid.read_bytes())
    config = Config(path=str(tmp_path / "*.jsonl"), valid_path=str(held_out), vocab_size=300)
    message = f"data.valid_path: {held_out} is trained on too" + f", as {valid}" * copied
    for act in (config.check, lambda: config.prepare(cache)):
        with pytest.raises(DataError) as caught:
            act()
        assert str(caught.value).startswith(message + "; name the files of data.path without it")


def test_held_out_documents_that_training_has_too_are_told(corpus_file, tmp_path, cache):
    valid = [*map(document, range(1_000, 1_020)), document(3), document(5)]
    valid_path = write_jsonl(tmp_path / "valid.jsonl", valid)
    config, said = Config(path=corpus_file, valid_path=valid_path, vocab_size=300), []
    corpus = config.prepare(cache, said.append)
    (told,) = [line for line in config.remarks(cache) if "stand there too" in line]
    assert told.startswith("held-out text: 2 documents of the training text stand there too")
    assert told in said
    assert len(texts_of(cache, corpus.train)) == 300


@pytest.mark.parametrize("seq_len", [16, 64])
def test_bytes_per_token_of_an_evaluation_are_those_of_its_targets(tmp_path, cache, seq_len):
    """Half of the held-out text takes a byte a token, the other half more."""
    path = write_jsonl(tmp_path / "c.jsonl", ["river " * 40] * 50)
    valid = ["river " * (i % 40) + "žluťoučký 🐎" * (i % 7) for i in range(60)]
    config = {"valid_path": write_jsonl(tmp_path / "v.jsonl", valid), "vocab_size": 300}
    corpus = Config(path=path, **config, valid_tokens=320).prepare(cache)
    windows, tokenizer = corpus.validation(seq_len=seq_len), tokenizer_of(cache)
    alphabet = {number: len(t) for t, number in tokenizer.model._model.get_vocab().items()}
    n_bytes = sum(alphabet[t] for t in windows[:, 1:].flatten() if t != tokenizer.separator)
    measured = corpus.validation_bytes_per_token(seq_len=seq_len)
    assert measured == pytest.approx(n_bytes / windows[:, 1:].size)
    assert abs(measured / corpus.bytes_per_token - 1) > 0.01


@pytest.mark.parametrize("seq_len", [7, 64, 100_000])
def test_an_epoch_shows_every_window_once_in_an_order_of_its_own(corpus_file, cache, seq_len):
    corpus = Config(path=corpus_file, vocab_size=300).prepare(cache)
    stream = corpus.train.windows(np.array([0]), len(corpus.train))[0]
    per_epoch = -(-len(stream) // seq_len)
    in_order = [
        tuple(np.resize(np.roll(stream, -seq_len * k), seq_len + 1)) for k in range(per_epoch)
    ]
    orders = set()
    for epoch, seed in ((0, 0), (3, 0), (3, 1), (3, -1)):
        indices = np.arange(epoch * per_epoch, (epoch + 1) * per_epoch)
        windows = [tuple(w) for w in corpus.windows(indices, seq_len=seq_len, seed=seed)]
        assert sorted(windows) == sorted(in_order)
        orders.add(tuple(windows))
    assert len(orders) == (4 if per_epoch > 1 else 1)


def test_windows_do_not_depend_on_what_was_asked_before_or_on_the_cache(
    corpus_file, cache, tmp_path
):
    corpus = Config(path=corpus_file, vocab_size=300).prepare(cache)
    other = Config(path=corpus_file, vocab_size=300).prepare(tmp_path / "elsewhere")
    indices = np.random.default_rng(0).integers(0, 5_000, size=100)
    together = corpus.windows(indices, seq_len=32, seed=3)
    for index, window in zip(indices, together, strict=True):
        assert (other.windows(np.array([index]), seq_len=32, seed=3)[0] == window).all()


def test_validation_windows_are_whole_and_spread_over_the_held_out_text(corpus_file, cache):
    config = {"path": corpus_file, "vocab_size": 300, "valid_share": 0.5}
    corpus = Config(**config, valid_tokens=320).prepare(cache)
    windows = corpus.validation(seq_len=32)
    assert windows.shape == (10, 33)
    stream = corpus.valid.windows(np.array([0]), len(corpus.valid))[0]
    starts = [
        next(
            s
            for s in range(0, len(stream), 32)
            if (stream[s : s + 33] == w[: len(stream) - s]).all()
        )
        for w in windows
    ]
    assert starts == sorted(set(starts))
    assert starts[-1] > len(stream) / 2
    assert corpus.validation(seq_len=len(stream) - 1).shape == (1, len(stream))
    assert corpus.validation(seq_len=len(stream)).shape == (0, len(stream) + 1)
    assert len(Config(**config).prepare(cache).validation(seq_len=32)) == (len(stream) - 1) // 32


def test_max_bytes_takes_the_first_documents(corpus_file, cache, tmp_path):
    valid_path = write_jsonl(tmp_path / "valid.jsonl", [document(0)])
    corpus = Config(
        path=corpus_file, valid_path=valid_path, vocab_size=300, max_bytes=1_000
    ).prepare(cache)
    taken = texts_of(cache, corpus.train)
    sizes = np.cumsum([len(t.encode()) for t in taken])
    assert taken == [document(i) for i in range(len(taken))]
    assert sizes[-2] < 1_000 <= sizes[-1]


def test_files_of_several_formats_make_one_corpus(corpus_file, tmp_path, cache):
    plain = tmp_path / "more.txt"
    plain.write_text("Plain text.\n\nMore.")
    paths = (str(tmp_path / "*.jsonl"), str(plain))
    config = Config(path=paths, vocab_size=300)
    assert config.files() == {"path": (Path(corpus_file), plain)}
    corpus = config.prepare(cache)
    every = texts_of(cache, corpus.train) + texts_of(cache, corpus.valid)
    assert len(every) == 301
    assert "Plain text.\n\nMore." in every


def test_a_complete_cache_is_used_wherever_the_file_lies(corpus_file, cache, monkeypatch):
    Config(path=corpus_file, vocab_size=300).prepare(cache)
    moved = Path(corpus_file).rename(Path(corpus_file).with_name("moved.jsonl"))
    built = []
    monkeypatch.setattr(text, "_build", lambda *args: built.append(args))
    Config(path=str(moved), vocab_size=300, valid_tokens=9).prepare(cache)
    assert not built
    with pytest.raises(FileNotFoundError):
        Config(path=str(moved), vocab_size=301).prepare(cache)
    assert len(built) == 1


def test_a_file_is_not_taken_from_the_cache_for_one_that_is_read_otherwise(tmp_path, cache):
    plain = tmp_path / "c.txt"
    plain.write_text("".join(f'{{"body": "Document {i}"}}\n\n' for i in range(2_000)))
    Config(path=str(plain), vocab_size=300).prepare(cache)
    renamed = plain.rename(tmp_path / "c.jsonl")
    with pytest.raises(DataError, match=r"c\.jsonl:1: has no field 'text'; it has 'body'"):
        Config(path=str(renamed), vocab_size=300).prepare(cache)


def test_large_vocabularies_get_wider_files(corpus_file, cache):
    corpus = Config(path=corpus_file, vocab_size=70_000).prepare(cache)
    assert corpus.train.parts[0].dtype == np.uint32
    assert corpus.vocab_size == 70_000


def test_a_tokenizer_can_be_loaded(corpus_file, cache, tmp_path):
    path = tmp_path / "own.json"
    tokenizers.train(["ab"], vocab_size=300).save(path)
    corpus = Config(path=corpus_file, tokenizer=str(path), vocab_size=300).prepare(cache)
    assert texts_of(cache, corpus.train)[0] in set(map(document, range(300)))
    assert corpus.bytes_per_token < 1


def test_mistakes_of_all_files_are_reported_together(corpus_file, tmp_path, cache):
    bad, valid = tmp_path / "bad.jsonl", tmp_path / "valid.jsonl"
    bad.write_text('{"text": "x"}\n{"txt": "x"}\n')
    valid.write_text("no json\n")
    config = Config(path=(corpus_file, str(bad)), valid_path=str(valid), vocab_size=300)
    for act in (config.check, lambda: config.prepare(cache)):
        with pytest.raises(DataError) as caught:
            act()
        first, second = caught.value.problems
        assert (
            "bad.jsonl:2: has no field 'text'; it has 'txt'; set data.text_field (data prepare: --text-field)"
            in first
        )
        assert "valid.jsonl:1: is not JSON" in second
    assert not [path for path in cache.glob("text-*") if path.is_dir()]


def test_missing_files_are_named_with_the_expected_format(corpus_file, tmp_path, cache):
    empty = tmp_path / "empty"
    empty.mkdir()
    config = Config(path=(corpus_file, str(tmp_path / "*.txt")), valid_path=str(empty))
    with pytest.raises(DataError) as caught:
        config.prepare(cache)
    first, second = caught.value.problems
    assert f"data.path: {tmp_path}/*.txt does not exist; expected: JSON lines with" in first
    assert '{"text": "Warsaw is the capital of Poland.' in first
    assert f"data.valid_path: {empty} is a folder" in second


@pytest.mark.parametrize("content", ["", '{"text": ""}\n'])
def test_a_corpus_without_text_is_refused_before_it_is_prepared(tmp_path, content):
    path = tmp_path / "c.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"c\.jsonl: holds no text; give a file"):
        Config(path=str(path), vocab_size=300).check()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no text; give a file with at least one document"),
        ('{"text": ""}\n', "holds no text; give a file"),
        (
            '{"text": "one"}\n',
            "holds 1 document, which leaves none to train on; set data.valid_path or give more "
            "text; each line is one document$",
        ),
    ],
)
def test_a_corpus_with_nothing_to_train_on_is_refused(tmp_path, cache, content, message):
    path = tmp_path / "c.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        Config(path=str(path), vocab_size=300).prepare(cache)


@pytest.mark.parametrize(
    ("options", "n_documents", "refused"),
    [
        ({}, 1, "leaves none to train on; set data.valid_path or give more text; each line"),
        ({}, 2, None),
        ({"max_bytes": 3}, 2, "leaves none to train on; set data.valid_path or raise data.max_b"),
        ({"valid_path": "VALID"}, 1, None),
    ],
)
def test_a_corpus_of_one_document_is_refused_when_it_is_planned(
    tmp_path, cache, options, n_documents, refused
):
    path, valid = tmp_path / "c.jsonl", tmp_path / "v.jsonl"
    path.write_text("".join(f'{{"text": "document {i}"}}\n' for i in range(n_documents)))
    valid.write_text('{"text": "held out"}\n')
    given = {name: str(valid) if v == "VALID" else v for name, v in options.items()}
    config = Config(path=str(path), vocab_size=300, **given)

    if refused is None:
        config.check()
        return
    with pytest.raises(DataError, match=refused) as planned:
        config.check()
    with pytest.raises(DataError) as prepared:
        config.prepare(cache)
    assert str(planned.value) == str(prepared.value)


def test_documents_that_are_all_the_same_are_refused(tmp_path, cache):
    path = write_jsonl(tmp_path / "c.jsonl", [document(1)] * 50)
    with pytest.raises(DataError, match="holds 50 documents, which leaves none to train on"):
        Config(path=path, vocab_size=300).prepare(cache)


def test_plain_text_of_one_document_is_told_what_separates_them(tmp_path, cache):
    path = tmp_path / "c.txt"
    path.write_text("A line of a text without blank lines.\n" * 1_000)
    with pytest.raises(DataError) as caught:
        Config(path=str(path), vocab_size=300).prepare(cache)
    assert str(caught.value) == (
        f"{path}: holds 1 document, which leaves none to train on; set data.valid_path or give "
        "more text; a document ends at the first blank line after 4,096 characters, or at a line "
        "end after 65,536"
    )


def test_documents_that_are_all_held_out_are_told_of_the_share(corpus_file, cache):
    config = Config(path=corpus_file, vocab_size=300, valid_share=0.999999, max_bytes=100)
    with pytest.raises(
        DataError, match=r"documents, .* lower data\.valid_share or raise data\.max"
    ):
        config.prepare(cache)


@pytest.mark.parametrize("tokenizer_bytes", [300, 20_000])
def test_a_tokenizer_is_trained_although_documents_are_large(tmp_path, cache, tokenizer_bytes):
    big = [" ".join(f"word{i}" for i in range(k, k + 9_000)) for k in range(4)]
    path = write_jsonl(tmp_path / "c.jsonl", big)
    said: list[str] = []
    config = Config(path=path, vocab_size=290, tokenizer_bytes=tokenizer_bytes)
    config.prepare(cache, said.append)
    assert tokenizer_of(cache).size == 290
    assert f"trained a tokenizer on {tokenizer_bytes / 1e6:.2f} MB of text" in said


@given(
    texts=st.lists(st.binary(min_size=1, max_size=9), unique=True, max_size=9),
    n_bytes=st.integers(1, 50),
)
def test_the_lowest_ranks_are_taken_and_the_last_is_cut(texts, n_bytes):
    ranked = [((7 * i) % 11 / 11, text) for i, text in enumerate(texts)]
    in_order = b"".join(text for _, text in sorted(ranked))
    assert b"".join(local_text._lowest(ranked, n_bytes)) == in_order[:n_bytes]


@pytest.mark.parametrize(("numbers", "n_bytes"), [(range(300), 4_000), (range(2_600, 2_700), 800)])
def test_a_sample_is_whole_documents_by_hash(tmp_path, cache, monkeypatch, numbers, n_bytes):
    """However few they are: of the second, 209 bytes. No identity names another rule."""
    samples = []

    def train(texts, *, vocab_size):
        samples.append(list(texts))
        return tokenizers.train(samples[-1], vocab_size=vocab_size)

    monkeypatch.setattr(local_text, "train", train)
    texts = [document(i) for i in numbers]
    path = write_jsonl(tmp_path / "c.jsonl", texts)
    corpus = Config(path=path, vocab_size=300, tokenizer_bytes=n_bytes).prepare(cache)
    share = n_bytes / sum(len(text.encode()) for text in texts)
    trained = texts_of(cache, corpus.train)
    assert samples == [[t for t in trained if unit_hash(t.encode(), "tokenizer") < share]]


def test_a_loaded_tokenizer_that_drops_text_is_refused(tmp_path, cache):
    path = write_jsonl(tmp_path / "c.jsonl", (f"Zażółć gęślą jaźń {i}" for i in range(300)))
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(["the quick 0123456789"], trainers.BpeTrainer(special_tokens=["</s>"]))
    made.save(str(tmp_path / "t.json"))
    config = Config(path=path, tokenizer=str(tmp_path / "t.json"), vocab_size=300)
    with pytest.raises(
        DataError, match=r"t\.json: has no tokens for \d\d\.\d% of the text .*dropped"
    ):
        config.prepare(cache)


def test_an_empty_valid_path_is_refused(corpus_file, tmp_path, cache):
    (tmp_path / "empty.txt").write_text("\n")
    config = Config(path=corpus_file, valid_path=str(tmp_path / "empty.txt"))
    with pytest.raises(
        DataError, match=r"empty\.txt: holds no text; give data\.valid_path some text"
    ):
        config.prepare(cache)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 256}, "vocab_size must be at least 257 .*, got 256"),
        ({"vocab_size": 2**33}, "vocab_size must be at most"),
        ({"max_bytes": 0}, "max_bytes must be at least 1 or null, got 0"),
        ({"valid_tokens": 0}, "valid_tokens must be at least 1, got 0"),
        ({"tokenizer_bytes": 0}, "tokenizer_bytes must be at least 1, got 0"),
        ({"valid_share": 0.0}, "valid_share must lie between 0 and 1, got 0.0"),
        ({"separator": "</s>"}, "separator belongs to a loaded tokenizer"),
        ({"valid_path": ()}, "valid_path must name at least one file"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(path="corpus.txt", **fields)


@pytest.mark.parametrize("loaded", [False, True])
def test_embedding_rows_without_a_token_are_told(corpus_file, cache, tmp_path, loaded):
    fields = {}
    if loaded:
        tokenizers.train(map(document, range(300)), vocab_size=2_000).save(tmp_path / "t.json")
        fields["tokenizer"] = str(tmp_path / "t.json")
    config = Config(path=corpus_file, vocab_size=60_000, **fields)
    said: list[str] = []
    config.prepare(cache, said.append)
    again: list[str] = []
    config.prepare(cache, again.append)

    size = tokenizer_of(cache).size
    (told,) = [line for line in said if line.startswith("tokenizer: ")]
    assert told.startswith(
        f"tokenizer: {size:,} tokens; vocab_size 60,000 leaves {60_000 - size:,} unused; "
        "lower data.vocab_size"
    )
    assert told.endswith("or give more text") == (not loaded)
    assert told in again
    assert told in config.remarks(cache)
    fitting = Config(path=corpus_file, vocab_size=size + size // 100, **fields)
    fitting.prepare(cache)
    assert not [line for line in fitting.remarks(cache) if line.startswith("tokenizer: ")]


def test_few_held_out_tokens_are_told(corpus_file, cache, tmp_path, monkeypatch):
    share = Config(path=corpus_file, vocab_size=300)
    valid_path = write_jsonl(tmp_path / "valid.jsonl", map(document, range(1_000, 1_300)))
    given = Config(path=corpus_file, valid_path=valid_path, vocab_size=300)
    few = "held-out text: {} tokens are few: models are compared by their loss on them alone; "
    for config, fix in (
        (share, "raise data.valid_share or give data.valid_path"),
        (given, "give more text in data.valid_path"),
    ):
        (estimate,) = config.remarks(cache)
        corpus = config.prepare(cache)
        (exact,) = config.remarks(cache)
        assert estimate.startswith("held-out text: about ")
        assert exact == f"{few.format(f'{len(corpus.valid):,}')}{fix} for 50,000 or more"
    monkeypatch.setattr(remarks, "FEW_HELD_OUT_TOKENS", len(corpus.valid))
    assert given.remarks(cache) == []
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(corpus_file).read_bytes()))
    assert Config(path=str(packed), vocab_size=300).remarks(cache) == []


def test_a_tokenizer_is_trained_on_training_text_alone(tmp_path, cache):
    """Each document repeats a word of its own, which is one token only if the tokenizer saw it."""
    letters = np.random.default_rng(0).integers(0, 26, (80, 9)) + ord("a")
    words = ["".join(map(chr, row)) for row in letters]
    path = write_jsonl(tmp_path / "c.jsonl", [f"{word} " * 30 for word in words])
    corpus = Config(path=path, vocab_size=1_200, valid_share=0.3).prepare(cache)
    tokenizer = tokenizer_of(cache)

    for shards, seen in ((corpus.train, True), (corpus.valid, False)):
        texts = texts_of(cache, shards)
        assert len(texts) > 10
        assert {len(tokenizer.encode([f" {t.split()[0]}"])[0]) == 1 for t in texts} == {seen}
