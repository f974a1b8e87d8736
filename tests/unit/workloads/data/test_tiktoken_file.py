import base64
import json

import pytest
import tiktoken

from workloads.data import tiktoken_file
from workloads.data.readers.problems import DataError
from workloads.data.sources import triples
from workloads.data.sources.text import Config
from workloads.data.tiktoken_file import PUBLISHED, PublishedVocabulary, tokenizer_files
from workloads.data.tiktoken_pattern import PATTERNS
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


OTHER = [
    "cl100k_base",
    # That of cl100k_base as tiktoken writes it now, with possessive quantifiers and an end of text.
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",
    r"^the|(?:[12]|3){2}+3?|[]!?]{1,2}+|\x{61}+|[^\s[0-9]]+|\s|.",
]


@pytest.mark.parametrize("pattern", OTHER)
def test_a_file_beside_an_unknown_one_says_how_text_is_cut(path, pattern):
    special = {"<|endoftext|>": 300, "<|pad|>": 268}
    path.with_name("v.tiktoken.json").write_text(
        json.dumps({"pat_str": pattern, "special_tokens": special})
    )
    tokenizer = load(path, vocab_size=None)
    oracle = tiktoken.Encoding(
        "own",
        pat_str=PATTERNS.get(pattern, pattern),
        mergeable_ranks=RANKS,
        special_tokens=special,
    )
    texts = [*TEXTS, "thethe\nthe 123123333 a]!?]! aaa \n\n", "1234567 \n 12 <|pad|>  \n  "]
    assert tokenizer.encode(texts) == [oracle.encode(text, disallowed_special=()) for text in texts]
    assert (tokenizer.separator, tokenizer.size) == (300, 301)
    assert load(path, vocab_size=None, separator="<|pad|>").separator == 268
    assert tokenizer_files(path) == (path, path.with_name("v.tiktoken.json"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{", "is not JSON"),
        ({"pat_str": "x"}, "must hold pat_str and special_tokens, and nothing else"),
        ({"pat_str": "", "special_tokens": {}}, "pat_str: must be a regular expression, or one of r50k"),
        ({"pat_str": "(x", "special_tokens": {}}, "pat_str: .*; correct it"),
        ({"pat_str": "x)", "special_tokens": {}}, r"pat_str: \) at character 2 has no \("),
        ({"pat_str": "(?s:.)", "special_tokens": {}}, r"pat_str: \(\?s: at character 1: only \(\?i:"),
        ({"pat_str": "x", "special_tokens": ["a"]}, "special_tokens: must map the text"),
        ({"pat_str": "x", "special_tokens": {"a": True}}, "special_tokens: must map the text"),
        ({"pat_str": "x", "special_tokens": {"a": 10**6}}, "to its id, at most 65803"),
        ({"pat_str": "x", "special_tokens": {"a": 5}}, "id 5 is also that of another token"),
        ({"pat_str": "x", "special_tokens": {"a": 300, "b": 300}}, "id 300 is also that of another"),
        ({"pat_str": "x", "special_tokens": {"a": 300}}, "set data.separator to one of its special"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(path, settings, message):
    text = settings if isinstance(settings, str) else json.dumps(settings)
    path.with_name("v.tiktoken.json").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load(path, vocab_size=None)
    assert "v.tiktoken" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_every_byte_is_refused(path):
    path.with_name("v.tiktoken.json").write_text(
        json.dumps({"pat_str": "cl100k_base", "special_tokens": {"<|endoftext|>": 300}})
    )
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(DataError, match="has no token for byte 0x00"):
        load(path, vocab_size=None)


def test_what_stands_beside_changes_prepared_facts(path, tmp_path):
    (tmp_path / "f.tsv").write_text(
        "subject\trelation\tobject\n" + "".join(f"S{i}\tborn\tO{i % 9}\n" for i in range(20))
    )
    config = triples.Config(path=str(tmp_path / "f.tsv"), tokenizer=str(path), vocab_size=301)
    separators = []
    for number in (268, 300):
        settings = {"pat_str": "cl100k_base", "special_tokens": {"<|endoftext|>": number}}
        path.with_name("v.tiktoken.json").write_text(json.dumps(settings))
        corpus = config.prepare(tmp_path / "cache")
        separators.append(int(corpus.probes[0].prompts[0][0]))
    assert separators == [268, 300]


@pytest.mark.parametrize("config_of", [Config, triples.Config])
def test_what_stands_beside_enters_the_identity(path, config_of):
    config = config_of(path="x.txt", tokenizer=str(path), vocab_size=301)
    alone = config.files()["tokenizer"]
    path.with_name("v.tiktoken.json").write_text("{}")
    assert alone == (path,)
    assert config.files()["tokenizer"] == (path, path.with_name("v.tiktoken.json"))
    other = path.with_name("tokenizer.json")
    other.write_text("{}")
    other.with_name("tokenizer.json.json").write_text("{}")
    assert tokenizer_files(other) == (other,)


def test_an_unknown_vocabulary_and_a_damaged_line_are_refused(path):
    with pytest.raises(
        DataError,
        match=r"has 268 tokens, and the published .* have 50,256.*write into v\.tiktoken\.json beside "
        r'.*cl100k_base.*: \{"pat_str": "cl100k_base", "special_tokens": \{"<|endoftext|>": 268\}\}',
    ):
        load(path, vocab_size=None)
    path.write_bytes(path.read_bytes() + b"!!\n")
    with pytest.raises(DataError, match=r"v\.tiktoken:269: is not `base64 rank`"):
        load(path, vocab_size=None)
