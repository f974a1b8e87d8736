import unicodedata

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from workloads.data.readers.problems import DataError
from workloads.data.tokenizer import MIN_VOCAB_SIZE, SEPARATOR_TEXT, load, token_dtype, train

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "Ünïcode – ok\n\ttoo 🐈"] * 3


def test_any_text_comes_back():
    tokenizer = train(TEXTS, vocab_size=300)
    assert MIN_VOCAB_SIZE < tokenizer.size <= 300
    for text in [*TEXTS, "never seen: 日本語 \x00", "", " a  b "]:
        assert tokenizer.decode(tokenizer.encode([text])[0]) == text


def test_the_separator_is_token_zero_and_text_cannot_spell_it():
    tokenizer = train(TEXTS, vocab_size=300)
    assert (tokenizer.separator, tokenizer.separator_text) == (0, SEPARATOR_TEXT)
    text = f"a{SEPARATOR_TEXT}b"
    assert 0 not in tokenizer.encode([text])[0]
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text


def test_training_is_deterministic(tmp_path):
    for name in ("a", "b"):
        train(iter(TEXTS), vocab_size=290).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_few_texts_make_fewer_tokens_than_asked_for():
    assert train(["ab"], vocab_size=5_000).size < 300


def test_a_saved_tokenizer_loads_and_agrees(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = train(TEXTS, vocab_size=300)
    tokenizer.save(path)
    again = load(path, vocab_size=300)
    assert again.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert again.separator == 0
    assert 0 not in again.encode([SEPARATOR_TEXT])[0]


def test_bad_tokenizers_are_refused_with_what_to_do(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer .*expected a tokenizer"):
        load(path, vocab_size=300)
    train(TEXTS, vocab_size=300).save(path)
    with pytest.raises(DataError, match=r"vocab_size is 258; raise data\.vocab_size"):
        load(path, vocab_size=258)
    with pytest.raises(DataError, match=r"has no token <x> to separate documents; set"):
        load(path, vocab_size=300, separator="<x>")
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel()
    bare.save(str(path))
    with pytest.raises(DataError, match=r"has no token <\|sep\|> or <\|endoftext\|> or"):
        load(path, vocab_size=300)


def test_usual_separators_are_found(tmp_path):
    path = tmp_path / "tokenizer.json"
    model = Tokenizer(models.BPE(vocab={"a": 0, "<|endoftext|>": 1}, merges=[]))
    model.save(str(path))
    assert load(path, vocab_size=300).separator == 1


def test_token_files_use_two_bytes_where_they_suffice():
    assert token_dtype(65_536) is np.uint16
    assert token_dtype(65_537) is np.uint32


BYTES = pre_tokenizers.ByteLevel.alphabet()
WITHOUT_ACCENTS = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
METASPACE = pre_tokenizers.Metaspace()
BERT = pre_tokenizers.BertPreTokenizer()
UNKNOWN = "[UNK]"


@pytest.mark.parametrize(
    ("model", "trainer", "normalizer", "splitter", "lost"),
    [
        (models.BPE(), trainers.BpeTrainer(initial_alphabet=BYTES), None, BYTE_LEVEL, 0),
        (
            models.BPE(),
            trainers.BpeTrainer(initial_alphabet=BYTES),
            normalizers.NFC(),
            BYTE_LEVEL,
            0,
        ),
        (
            models.BPE(),
            trainers.BpeTrainer(initial_alphabet=BYTES),
            normalizers.ByteLevel(),
            None,
            0,
        ),
        (models.BPE(), trainers.BpeTrainer(), None, BYTE_LEVEL, 2 / 6),
        (models.BPE(), trainers.BpeTrainer(), None, None, 2 / 6),
        (models.BPE(), trainers.BpeTrainer(), None, METASPACE, 2 / 6),
        (models.BPE(), trainers.BpeTrainer(), None, pre_tokenizers.Whitespace(), 2 / 6),
        (models.BPE(), trainers.BpeTrainer(), WITHOUT_ACCENTS, BYTE_LEVEL, 2 / 6),
        (models.BPE(unk_token=UNKNOWN), trainers.BpeTrainer(), None, BYTE_LEVEL, 2 / 6),
        (models.BPE(unk_token=UNKNOWN, fuse_unk=True), trainers.BpeTrainer(), None, None, 2 / 6),
        (models.WordLevel(unk_token=UNKNOWN), trainers.WordLevelTrainer(), None, BERT, 3 / 6),
        (models.WordPiece(unk_token=UNKNOWN), trainers.WordPieceTrainer(), None, BERT, 3 / 6),
        (
            models.Unigram(),
            trainers.UnigramTrainer(unk_token=UNKNOWN),
            normalizers.NFKC(),
            METASPACE,
            2 / 6,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_lost_text_is_unknown_or_dropped_but_for_white_space(
    tmp_path, model, trainer, normalizer, splitter, lost
):
    made = Tokenizer(model)
    if splitter is not None:
        made.pre_tokenizer = splitter
    if normalizer is not None:
        made.normalizer = normalizer
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer.special_tokens = [UNKNOWN]
    made.train_from_iterator(["ab c d"] * 9, trainer)
    made.add_special_tokens(["[SEP]"])
    made.save(str(tmp_path / "t.json"))
    tokenizer = load(tmp_path / "t.json", vocab_size=None)
    assert tokenizer.lost_share(["ab c dóż"]) == pytest.approx(lost)
    assert tokenizer.lost_share(["ab\n\tc  d"]) == tokenizer.lost_share([" "]) == 0
    assert tokenizer.lost_share([]) == 0


def test_letters_that_are_added_tokens_are_not_lost(tmp_path):
    made = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    made.add_tokens([" ", "\n", "é"])
    made.add_special_tokens(["[SEP]"])
    made.save(str(tmp_path / "t.json"))
    tokenizer = load(tmp_path / "t.json", vocab_size=None)
    assert tokenizer.lost_share(["ab a\né"]) == 0
    assert tokenizer.lost_share(["ab a\néx"]) == 1 / 5


def test_what_a_model_drops_is_told_from_what_comes_behind(tmp_path):
    """Offsets of BPE without an unknown token are shifted by what it drops."""
    made = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    made.add_special_tokens(["[SEP]"])
    made.save(str(tmp_path / "t.json"))
    tokenizer = load(tmp_path / "t.json", vocab_size=None)
    assert tokenizer.lost_share(["a\n\n\nb"]) == 0
    assert tokenizer.lost_share(["a日b \n"]) == 1 / 3


@pytest.mark.parametrize("normalizer", [normalizers.NFC(), normalizers.NFKC()])
def test_characters_that_a_normalizer_joins_are_not_lost(tmp_path, normalizer):
    made = Tokenizer(models.BPE(vocab={"é": 0, "각": 1}, merges=[]))
    made.normalizer = normalizer
    made.add_special_tokens(["[SEP]"])
    made.save(str(tmp_path / "t.json"))
    texts = [unicodedata.normalize("NFD", "é각")]
    assert load(tmp_path / "t.json", vocab_size=None).lost_share(texts) == 0


def test_a_sentencepiece_model_gives_the_ids_of_its_library(tmp_path):
    import sentencepiece

    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS * 20))
    prefix = str(tmp_path / "spm")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"), model_prefix=prefix, vocab_size=26, minloglevel=2
    )
    tokenizer = load(tmp_path / "spm.model", vocab_size=26)
    oracle = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    assert tokenizer.encode(TEXTS) == [oracle.encode(text) for text in TEXTS]
    assert (tokenizer.separator, tokenizer.size) == (oracle.piece_to_id("</s>"), 26)
    assert tokenizer.decode(tokenizer.encode(TEXTS)[0]) == TEXTS[0]
    assert tokenizer.lost_share(TEXTS[:2]) == 0
    known = "".join(TEXTS[0].split())
    # One unknown token stands for all characters of a run.
    for lost in "日", "日本", "日" * len(known):
        share = len(lost) / (len(lost) + len(known))
        assert tokenizer.lost_share([f"{TEXTS[0]} {lost}"]) == pytest.approx(share)
    assert tokenizer.lost_share(["日本"]) == 1
    assert tokenizer.lost_share([" "]) == tokenizer.lost_share([]) == 0
    tokenizer.save(tmp_path / "again.model")
    assert load(tmp_path / "again.model", vocab_size=26).encode(TEXTS) == tokenizer.encode(TEXTS)
    (tmp_path / "bad.model").write_bytes(b"\x00nonsense")
    with pytest.raises(DataError, match=r"bad\.model: not a tokenizer"):
        load(tmp_path / "bad.model", vocab_size=26)
