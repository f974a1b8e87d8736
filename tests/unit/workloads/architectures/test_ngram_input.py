"""What is special about `ngram_input`."""

from typing import Any

import pytest
import torch

from workloads.architectures import dense
from workloads.architectures.ngram_input import PRESETS, Config
from workloads.layers.cache import Cache
from workloads.layers.modules.init import initialise

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 24,
    "rows_per_head": 20,
    "n_hash_heads": 2,
}
DENSE = {name: SMALL[name] for name in ("d_model", "n_layers", "n_heads", "d_ff")}


def _model(**fields: Any) -> Any:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_hash_heads": 3}, r"n_hash_heads must divide ngram_dim \(8, an even share of d_model"),
        ({"ngram_dim": 9}, r"n_hash_heads must divide ngram_dim \(9\), got 2; the nearest is 1"),
        ({"max_order": 1}, "max_order must be at least 2, got 1"),
        ({"rows_per_head": 0}, "rows_per_head must be at least 1, got 0"),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


def test_the_first_stream_is_the_sum_over_orders_and_heads():
    config = Config(**SMALL)
    model, tokens = _model().double(), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    ngrams, weight = config.hash(11), model.ngram_input.projection.weight
    with torch.no_grad():
        found = model.embed(torch.tensor([tokens]), model.context(torch.tensor([tokens]), None))[0]

    parts = [prime for heads in ngrams.primes for prime in heads]
    assert parts == [23, 29, 31, 37]
    padded = [11, 11, *tokens]
    for place in range(len(tokens)):
        total = model.embedding.weight[tokens[place]].clone()
        for part in range(4):
            mixed = 0
            for distance in range(2 + part // 2):
                mixed ^= padded[place + 2 - distance] * ngrams.multipliers[distance]
            row = model.memory_table.weight[sum(parts[:part]) + mixed % parts[part]]
            total += weight[:, 4 * part : 4 * part + 4] @ row
        torch.testing.assert_close(found[place], total / 5**0.5, rtol=0, atol=1e-12)


def test_without_rows_it_is_the_dense_model_with_smaller_embeddings():
    model, tokens = _model(), torch.arange(11)[None]
    plain = dense.Config(**DENSE).build(11)
    initialise(plain, 0)
    with torch.no_grad():
        model.memory_table.weight.zero_()
        plain.embedding.weight *= 5**-0.5

    torch.testing.assert_close(model(tokens), plain(tokens))


def test_the_sum_begins_with_the_variance_of_a_token_embedding():
    model = _model(d_model=256, n_heads=4, rows_per_head=3000, n_hash_heads=4)
    tokens = torch.randint(11, (4, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first = model.embed(tokens, model.context(tokens, None))

    # 11 own embeddings and some 1,400 different n-grams: 800 x 256 numbers, to a few per cent.
    assert float(first.square().mean() * 256) == pytest.approx(1.0, rel=0.06)


def test_decoding_remembers_the_tokens_before():
    model, tokens = _model(max_order=4, n_hash_heads=1).eval(), torch.tensor([[1, 2, 3, 4, 5, 6]])
    cache = Cache(1, 6)
    with torch.no_grad():
        whole = model(tokens)
        parts = [model(tokens[:, start:stop], cache) for start, stop in ((0, 2), (2, 3), (3, 6))]

    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_active_parameters_count_the_rows_that_a_token_reads():
    config = Config(**SMALL)
    count = config.param_count(50)

    assert count.memory_values == (23 + 29 + 31 + 37) * 4
    assert count.memory_keys == 16 * 16
    assert config.active_param_count(50) == count.non_embedding - count.memory_values + 4 * 4


def test_presets_hold_as_much_as_engram_does():
    from workloads.architectures import engram

    for name, fields in PRESETS.items():
        mine = Config(**fields).param_count(1).memory_values
        theirs = engram.Config(**engram.PRESETS[name]).param_count(1).memory_values
        assert mine == pytest.approx(theirs, rel=0.02), name


@pytest.mark.parametrize("seq_len", [1, 12])
def test_flops_are_those_that_torch_counts(check_flops, seq_len):
    check_flops(Config(**SMALL), seq_len=seq_len)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_those_that_autograd_keeps(check_activations, precision):
    config = Config(d_model=48, n_layers=3, n_heads=3, d_ff=96, rows_per_head=50, n_hash_heads=4)

    check_activations(config, precision, rel=0.015)
