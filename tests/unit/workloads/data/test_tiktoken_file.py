import base64

import pytest
import tiktoken

from workloads.data import tiktoken_file
from workloads.data.readers.problems import DataError
from workloads.data.tiktoken_file import PUBLISHED, PublishedVocabulary
from workloads.data.tokenizer import load

WORDS = [
    b"th",
    b"he",
    b"the",
    b" t",
    b" th",
    b" the",
    b"in",
    b"ing",
    b"\xc3\xa9",
    b"12",
    b" a",
    b"  ",
]
RANKS = {token: rank for rank, token in enumerate([*(bytes([b]) for b in range(256)), *WORDS])}
TEXTS = [
    "the thing's in THE  house",
    "  a\n\n 12345 cafés\t!?",
    "",
    "日本語 <|endoftext|> x",
    "\r\n a",
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "v.tiktoken"
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in RANKS.items())
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.parametrize("published", PUBLISHED.values(), ids=map(str, PUBLISHED))
def test_ids_equal_those_of_tiktoken(path, monkeypatch, published):
    size = len(RANKS)
    known = PublishedVocabulary(published.pattern, "<|endoftext|>", size + 1)
    monkeypatch.setattr(tiktoken_file, "PUBLISHED", {size: known})
    tokenizer = load(path, vocab_size=None)
    oracle = tiktoken.Encoding(
        "own",
        pat_str=published.pattern,
        mergeable_ranks=RANKS,
        special_tokens={"<|endoftext|>": size + 1},
    )
    assert tokenizer.encode(TEXTS) == [oracle.encode(text, disallowed_special=()) for text in TEXTS]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(TEXTS)] == TEXTS
    assert (tokenizer.separator, tokenizer.size) == (size + 1, size + 2)
    tokenizer.save(path.with_name("tokenizer.json"))
    again = load(path.with_name("tokenizer.json"), vocab_size=None)
    assert again.encode(TEXTS) == tokenizer.encode(TEXTS)


def test_an_unknown_vocabulary_and_a_damaged_line_are_refused(path):
    with pytest.raises(
        DataError, match="has 268 tokens, and the published vocabularies have 50,256"
    ):
        load(path, vocab_size=None)
    path.write_bytes(path.read_bytes() + b"!!\n")
    with pytest.raises(DataError, match=r"v\.tiktoken:269: is not `base64 rank`"):
        load(path, vocab_size=None)
