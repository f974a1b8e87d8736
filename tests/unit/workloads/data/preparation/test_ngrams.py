import re

from hypothesis import given
from hypothesis import strategies as st

from workloads.data.preparation import ngrams
from workloads.data.preparation.ngrams import NGRAM_WORDS, ngram_hashes


def brute_force(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"[^\W_]+", text.lower())
    return [tuple(words[i : i + NGRAM_WORDS]) for i in range(len(words) - NGRAM_WORDS + 1)]


@given(st.lists(st.sampled_from(["a", "B", "ab", "é", "12", "-", "a b"]), max_size=60))
def test_hashes_are_equal_exactly_where_ngrams_are(parts):
    text = " ".join(parts)
    hashes, expected = ngram_hashes(text).tolist(), brute_force(text)
    assert len(hashes) == len(expected)
    assert len(set(hashes)) == len(set(expected))
    assert len(set(zip(hashes, expected, strict=True))) == len(set(expected))


def test_a_hash_does_not_depend_on_what_stands_around(monkeypatch):
    monkeypatch.setattr(ngrams, "_WORDS_AT_ONCE", 5)
    eight = "one two three four five six seven eight"
    (alone,) = ngram_hashes(eight)
    around = ngram_hashes(f"{'filler ' * 23}{eight.title()}, {'more ' * 40}")
    assert around.tolist().count(alone) == 1
    assert len(around) == 23 + 8 + 40 - 7
    assert not len(ngram_hashes("one two three"))
