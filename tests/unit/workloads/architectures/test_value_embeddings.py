"""What is special about `value_embeddings`."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from workloads.architectures import dense
from workloads.architectures.value_embeddings import Config
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.modules.init import initialise

SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_ff": 24}


def _model(**fields: Any) -> Transformer:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gate_channels": 17}, r"gate_channels must be at most d_model \(16\), got 17"),
        ({"gate_channels": -1}, "gate_channels must be at least 0, got -1"),
        ({"value_layers": (3,)}, "value_layers.*3"),
        ({"value_layers": ()}, "use `dense` for none"),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


@pytest.mark.parametrize(
    ("n_layers", "layers"), [(1, (0,)), (2, (1,)), (5, (0, 2, 4)), (12, (1, 3, 5, 7, 9, 11))]
)
def test_every_second_layer_has_one_and_the_last_always(n_layers, layers):
    assert Config(**{**SMALL, "n_layers": n_layers}).placement == layers


def test_attention_is_the_equation_head_by_head():
    model = _model(n_layers=1, gate_channels=5).double()
    mixer, tokens = model.layers[0].mixer, torch.tensor([[3, 1, 4, 1, 5, 9]])
    with torch.no_grad():
        mixer.value_embedding.gate.weight.normal_(generator=torch.Generator().manual_seed(1))
    x = torch.randn(1, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    context = model.context(tokens, None)

    found = mixer(x, context)

    query, key, value = mixer.query_key_value.weight.split([16, 8, 8])
    row = model.memory_tables[0].weight[tokens[0]]
    heads = []
    for head in range(4):
        shared = slice(4 * (head // 2), 4 * (head // 2) + 4)
        gate = 2 / (1 + torch.exp(-x[0, :, :5] @ mixer.value_embedding.gate.weight[head // 2]))
        v = x[0] @ value[shared].T + gate[:, None] * row[:, shared]
        q, k = x[0] @ query[4 * head : 4 * head + 4].T, x[0] @ key[shared].T
        q, k = (_turned(each) for each in (q, k))
        scores = (q @ k.T / 2).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ v)
    expected = torch.cat(heads, dim=-1) @ mixer.output.weight.T
    # The rotation's table is fp32.
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-6)


def _turned(x):
    """Pairs of columns i and i + 2 as complex numbers, turned by position * base ** (-i / 2)."""
    angle = torch.arange(6.0).double()[:, None] * torch.tensor([1.0, 1e-2]).double()
    z = torch.complex(x[:, :2], x[:, 2:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), dim=-1)


@pytest.mark.parametrize("gate_channels", [0, 8])
def test_with_empty_tables_it_is_the_dense_model(gate_channels):
    """Same names, same initial values; the gates begin at 1."""
    model, tokens = _model(gate_channels=gate_channels), torch.arange(11)[None]
    plain = dense.Config(**SMALL).build(11)
    initialise(plain, 0)
    with_rows, gated = model(tokens), _model(gate_channels=8 - gate_channels)(tokens)
    with torch.no_grad():
        for table in model.memory_tables:
            table.weight.zero_()

    torch.testing.assert_close(model(tokens), plain(tokens))
    torch.testing.assert_close(with_rows, gated)
    assert not torch.allclose(with_rows, plain(tokens), atol=1e-2)


def test_a_token_reads_its_row_in_every_layer_of_the_placement():
    model = _model()

    model(torch.tensor([[4, 7, 4]])).logsumexp(-1).sum().backward()

    assert len(model.memory_tables) == 2
    for table in model.memory_tables:
        assert table.weight.shape == (11, 8)
        assert table.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist() == [4, 7]


def test_tables_are_counted_by_the_row():
    config = Config(**SMALL)
    count = config.param_count(1000)

    assert count.memory_values == 2 * 1000 * 8
    assert count.memory_keys == 2 * 8 * 2
    assert config.active_param_count(1000) == count.non_embedding - 2 * 999 * 8


def test_flops_are_those_that_torch_counts_but_for_the_rows(check_flops):
    check_flops(Config(**SMALL), seq_len=12, unseen=2 * 2 * 8)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fields", [{"gate_channels": 0}, {"gate_channels": 12}, {"qk_norm": True}])
def test_activations_are_those_that_autograd_keeps(check_activations, precision, fields):
    config = Config(d_model=48, n_layers=3, n_heads=3, d_ff=96, **fields)

    # Of norms of queries and keys the count of `dense` is as far off.
    check_activations(config, precision, rel=0.03 if config.qk_norm else 0.015)


def test_columns_that_the_gate_does_not_read_do_not_move_it():
    embedding = _model(gate_channels=3).layers[2].mixer.value_embedding
    with torch.no_grad():
        embedding.gate.weight.fill_(1.0)
    x = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0))
    other = torch.cat((x[..., :3], functional.pad(x[..., 3:], (1, 0))[..., :-1]), dim=-1)
    context = _model().context(torch.tensor([[1, 2, 3, 4]]), None)

    assert torch.equal(embedding(x, context), embedding(other, context))
