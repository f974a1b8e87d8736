import json

import numpy as np
import pytest

from workloads.data.token_bytes import target_bytes, token_bytes
from workloads.data.token_shards import TokenShards
from workloads.data.tokenizer import load, train

TEXTS = ["Warsaw lies on the Vistula.", "žluťoučký 🐎 漢字", " two  spaces\n", "x" * 50]


@pytest.fixture
def tokenizer_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    train(TEXTS * 3, vocab_size=300).save(path)
    return path


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_tokens_of_a_text_have_its_bytes(tokenizer_file, normalizer):
    edit(tokenizer_file, normalizer=normalizer)
    sizes, tokenizer = token_bytes(tokenizer_file), load(tokenizer_file, vocab_size=300)
    for text in TEXTS:
        assert sizes[tokenizer.encode([text])[0]].sum() == len(text.encode())
    assert sizes[tokenizer.separator] == 0


def test_added_tokens_have_the_bytes_of_their_text_unless_they_are_special(tokenizer_file):
    rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": 0, "content": "<|sep|>", "special": True, **rest},
        {"id": 300, "content": "  ž", "special": False, **rest},
    ]
    edit(tokenizer_file, added_tokens=added)
    sizes, tokenizer = token_bytes(tokenizer_file), load(tokenizer_file, vocab_size=301)
    assert (sizes[0], sizes[300]) == (0, 4)
    text = "on  ž."
    assert sizes[tokenizer.encode([text])[0]].sum() == len(text.encode())


@pytest.mark.parametrize(
    "changes",
    [{"decoder": None}, {"decoder": {"type": "WordPiece"}}, {"normalizer": {"type": "Lowercase"}}],
)
def test_tokens_of_other_tokenizers_do_not_tell(tokenizer_file, tmp_path, changes):
    edit(tokenizer_file, **changes)
    assert token_bytes(tokenizer_file) is None
    assert token_bytes(tmp_path / "tokenizer.model") is None
    assert token_bytes(None) is None


def test_a_separator_has_no_bytes_whatever_its_text(tokenizer_file):
    sizes = token_bytes(tokenizer_file)
    stream = np.array([5, 6, 7, 5, 8])
    windows = stream[None, :]
    shards = TokenShards((stream,))
    assert target_bytes(windows, shards, sizes) == sizes[[6, 7, 8]].sum() == 3
