import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.data.preparation.manifest import TokenManifest
from workloads.data.preparation.prepare import prepare
from workloads.data.preparation.request import PrepareRequest
from workloads.data.readers.problems import DataError
from workloads.data.sources.tokens import Config, Corpus, epoch_places, mixture_places
from workloads.data.token_shards import TokenShards
from workloads.data.tokenizer import train
from workloads.field_error import FieldError


def corpus(*sizes, shares=None) -> Corpus:
    """Stream s holds the numbers s * 10_000, s * 10_000 + 1, ..."""
    streams = tuple(TokenShards((np.arange(n) + 10_000 * s,)) for s, n in enumerate(sizes))
    shares = shares or tuple(n / sum(sizes) for n in sizes)
    return Corpus(
        train=streams,
        valid=streams,
        shares=shares,
        vocab_size=100_000,
        tokens_per_epoch=sum(sizes),
        bytes_per_token=(None,) * len(sizes),
        valid_tokens=64,
    )


@given(
    n_tokens=st.integers(1, 400),
    seq_len=st.integers(1, 90),
    seed=st.integers(-3, 3),
    epochs=st.integers(1, 4),
)
def test_no_token_is_repeated_or_skipped_within_an_epoch(n_tokens, seq_len, seed, epochs):
    """The targets of the windows of some epochs are those epochs' tokens, each exactly once."""
    n_windows = -(-epochs * n_tokens // seq_len)
    numbers = np.arange(n_windows)
    places = epoch_places(numbers, n_tokens=n_tokens, seq_len=seq_len, seed=seed)
    targets = (places[:, None] * seq_len + np.arange(seq_len)).reshape(-1)
    assert sorted(targets.tolist()) == list(range(n_windows * seq_len))
    epoch_of = places * seq_len // n_tokens
    assert (np.diff(epoch_of) >= 0).all()

    windows = corpus(n_tokens).windows(numbers, seq_len=seq_len, seed=seed)
    expected = (places[:, None] * seq_len + np.arange(seq_len + 1)) % n_tokens
    assert (windows == expected).all()


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = set()
    for epoch, seed in ((0, 0), (1, 0), (0, 1)):
        numbers = np.arange(epoch * 100, (epoch + 1) * 100)
        places = epoch_places(numbers, n_tokens=1_000, seq_len=10, seed=seed)
        orders.add(tuple(places - epoch * 100))
    assert len(orders) == 3


SHARES = st.lists(st.floats(0.001, 1.0), min_size=2, max_size=5)


@given(weights=SHARES, start=st.integers(0, 10**9), n=st.integers(1, 3_000))
def test_a_mixture_numbers_each_stream_without_gap_and_keeps_its_shares(weights, start, n):
    shares = tuple(weight / sum(weights) for weight in weights)
    streams, numbers = mixture_places(np.arange(start, start + n), shares=shares)
    for stream, share in enumerate(shares):
        own = numbers[streams == stream]
        assert (np.diff(own) == 1).all()
        assert abs(len(own) - share * n) <= len(shares) + 1
        if len(own):
            assert abs(own[0] - share * start) <= len(shares) + 1


@given(weights=SHARES)
def test_a_mixture_is_the_merge_of_what_is_due(weights):
    """Against the definition, counted up from the start."""
    shares = tuple(weight / sum(weights) for weight in weights)
    due = sorted(
        ((j + 0.5) / share, stream, j) for stream, share in enumerate(shares) for j in range(2_600)
    )
    index = np.random.default_rng(0).permutation(2_500)
    streams, numbers = mixture_places(index, shares=shares)
    assert [(due[i][1], due[i][2]) for i in index] == list(zip(streams, numbers, strict=True))


def test_adding_a_stream_leaves_the_order_within_the_others():
    def shown(c, stream):
        windows = c.windows(np.arange(400), seq_len=8, seed=5)
        return [tuple(w) for w in windows if w[0] // 10_000 == stream]

    two, three = corpus(800, 500), corpus(800, 500, 900)
    alone = corpus(800)
    for stream in (0, 1):
        before, after = shown(two, stream), shown(three, stream)
        assert after
        assert after == before[: len(after)]
    assert shown(two, 0) == shown(alone, 0)[: len(shown(two, 0))]


def test_windows_do_not_depend_on_how_a_batch_is_split():
    """What makes a run resume exactly on another number of ranks."""
    c = corpus(800, 500, shares=(0.7, 0.3))
    together = c.windows(np.arange(3_000), seq_len=16, seed=1)
    for ranks in (2, 3):
        parts = [
            c.windows(part, seq_len=16, seed=1) for part in np.array_split(np.arange(3_000), ranks)
        ]
        assert (np.concatenate(parts) == together).all()
    assert (c.windows(np.arange(2_999, -1, -1), seq_len=16, seed=1) == together[::-1]).all()


@given(
    parts=st.lists(st.tuples(st.integers(2, 3_000), st.floats(0.05, 1.0)), min_size=2, max_size=4),
    seq_len=st.integers(1, 40),
    valid_tokens=st.integers(1, 4_000),
)
def test_held_out_windows_of_a_mixture_hold_its_shares(parts, seq_len, valid_tokens):
    sizes, weights = zip(*parts, strict=True)
    shares = tuple(weight / sum(weights) for weight in weights)
    mixed = replace(corpus(*sizes, shares=shares), valid_tokens=valid_tokens)
    whole = [(size - 1) // seq_len for size in sizes]
    expected = min(
        [valid_tokens / seq_len, *(n / s for n, s in zip(whole, shares, strict=True) if n)]
    )
    streams = mixed.validation(seq_len=seq_len)[:, 0] // 10_000
    for stream, (n, share) in enumerate(zip(whole, shares, strict=True)):
        count = (streams == stream).sum()
        assert (count > 0) == (n > 0)
        assert count <= max(1, share * expected + 1e-6)
        assert not n or count > share * expected - 1


@given(size=st.integers(2, 3_000), seq_len=st.integers(1, 90), valid_tokens=st.integers(1, 4_000))
def test_a_single_stream_is_evaluated_on_as_many_tokens_as_there_are(size, seq_len, valid_tokens):
    alone = replace(corpus(size), valid_tokens=valid_tokens)
    expected = alone.valid[0].evenly_spread(seq_len, at_most_tokens=valid_tokens)
    assert (alone.validation(seq_len=seq_len) == expected).all()


def test_bytes_per_token_of_a_mixture_are_those_of_the_windows_that_are_read(tmp_path):
    """Words of one folder are tokens of many bytes; the digits of the other have no such tokens."""
    words, tokenizer = "river lake seaside bay", tmp_path / "tokenizer.json"
    train([words] * 5, vocab_size=300).save(tokenizer)
    texts = {"words": f"{words} " * 40, "digits": "0123456789 " * 10}
    for name, text in texts.items():
        lines = "".join(json.dumps({"text": f"{text}{i}"}) + "\n" for i in range(200))
        (tmp_path / f"{name}.jsonl").write_text(lines)
        source, out = (str(tmp_path / f"{name}.jsonl"),), tmp_path / name
        request = PrepareRequest(sources=source, out=out, tokenizer=str(tokenizer), workers=1)
        prepare(replace(request, valid_share=0.2), lambda line: None)
    paths = tuple(str(tmp_path / name) for name in texts)
    mixed = Config(path=paths, weights=(1.0, 3.0)).prepare(tmp_path / "cache")
    windows = mixed.validation(seq_len=32)
    vocabulary = json.loads(tokenizer.read_text())["model"]["vocab"]
    n_bytes = dict.fromkeys(range(300), 0) | {i: len(t) for t, i in vocabulary.items() if i}
    targets = windows[:, 1:].flatten().tolist()
    measured = mixed.validation_bytes_per_token(seq_len=32)
    assert measured == pytest.approx(sum(map(n_bytes.__getitem__, targets)) / len(targets))

    mixed.tokenizer_file = None
    del mixed._token_bytes
    per_stream = [len(own) for own in mixed._held_out(32)]
    roughly = np.average(mixed.bytes_per_token, weights=per_stream)
    assert mixed.validation_bytes_per_token(seq_len=32) == pytest.approx(roughly)
    assert roughly == pytest.approx(measured, rel=0.02)


@pytest.fixture
def folders(tmp_path):
    made = []
    for name, length in (("a", 900), ("b", 400)):
        tokens = np.arange(length, dtype=np.uint16) % 300
        tokens.tofile(tmp_path / f"{name}.bin")
        out = tmp_path / name
        source = str(tmp_path / f"{name}.bin")
        prepare(PrepareRequest(sources=(source,), out=out, vocab_size=300, valid_share=0.1), print)
        made.append(str(out))
    return made


def test_few_held_out_tokens_of_all_folders_are_told(folders, tmp_path):
    (told,) = Config(path=tuple(folders)).remarks(tmp_path)

    assert told.startswith("held-out text: 130 tokens are few")
    assert "--valid-share" in told


def test_a_folder_that_limits_an_evaluation_is_told(folders, tmp_path):
    few, limited = Config(path=tuple(folders), weights=(1.0, 3.0)).remarks(tmp_path)

    assert few.startswith("held-out text: 53 tokens are few")
    assert limited.startswith(f"held-out text: {folders[1]} has so little that evaluations")
    assert "take 53 tokens in all" in limited


def test_prepared_folders_are_mixed_as_told(folders, tmp_path):
    config = Config(path=tuple(folders), weights=(1.0, 3.0), valid_tokens=80)
    config.check()
    mixed = config.prepare(tmp_path)
    assert (config.vocab_size, config.tokens_per_epoch(), mixed.shares) == (
        300,
        1_170,
        (0.25, 0.75),
    )
    assert mixed.validation_bytes_per_token(seq_len=10) is None
    assert mixed.validation(seq_len=10).shape == (1 + 3, 11)
    assert Config(path=folders[0]).prepare(tmp_path).shares == (1.0,)
    assert {p.name for p in config.files()["path"]} == {"manifest.json"}


def test_a_tokenizer_that_is_not_the_tokens_own_is_refused(folders):
    folder = Path(folders[0])
    (folder / "tokenizer.json").write_text("{}")

    with pytest.raises(DataError, match=r"tokenizer\.json: is not what the tokens were made with"):
        Config(path=str(folder)).check()


@pytest.mark.parametrize("foreign", [True, False])
def test_a_shard_edited_at_equal_size_is_refused(folders, foreign, tmp_path):
    folder, cache = Path(folders[0]), tmp_path / "cache"
    if not foreign:
        text = tmp_path / "text.jsonl"
        text.write_text("".join(f'{{"text": "{i} of many words"}}\n' for i in range(2_000)))
        folder = tmp_path / "text"
        prepare(PrepareRequest(sources=(str(text),), out=folder, tokenizer="bpe:300"), print)
    config = Config(path=str(folder))
    config.prepare(cache)
    shard = (folder / "train-00000.bin").resolve()
    tokens = bytearray(shard.read_bytes())
    tokens[0] ^= 1
    shard.write_bytes(tokens)
    config.check()  # `plan` looks at sizes alone
    with pytest.raises(DataError, match=r"train-00000\.bin: is not what manifest\.json says"):
        config.prepare(cache)


def test_wrong_folders_and_weights_are_refused(folders, tmp_path):
    with pytest.raises(FieldError, match="must hold one weight per folder"):
        Config(path=tuple(folders), weights=(1.0,))
    with pytest.raises(FieldError, match="weights"):
        Config(path=tuple(folders), weights=(1.0, 0.0))
    with pytest.raises(
        DataError, match="expected: a folder that `memscale data prepare` has finished"
    ):
        Config(path=str(tmp_path / "none")).check()
    b = tmp_path / "b"
    manifest = TokenManifest.load(b / "manifest.json")
    replace(manifest, tokenizer={"sha256": "other"}).save(b)
    with pytest.raises(DataError, match="was made with another tokenizer than"):
        Config(path=tuple(folders)).check()
    for name, separator in (("a", "</s>"), ("b", "<s>")):
        tokenizer = {"sha256": "one", "separator": 1, "separator_text": separator}
        replace(manifest, tokenizer=tokenizer).save(tmp_path / name)
    with pytest.raises(DataError, match="documents begin with '<s>', those of .* with '</s>'"):
        Config(path=tuple(folders)).check()
    (b / "manifest.json").write_text(json.dumps({"version": 0}))
    with pytest.raises(DataError, match="version is 0, this program reads 1"):
        Config(path=folders[1]).check()
