"""A base of experts under memories."""

import dataclasses
from typing import Any

import pytest
import torch

from workloads.architectures import engram, memory_plus, moe, ngram_input, value_embeddings
from workloads.layers.modules.init import initialise

BACKBONE: dict[str, Any] = {"d_model": 16, "n_layers": 3, "n_heads": 2, "d_ff": 32}
EXPERTS = {"n_experts": 5, "top_k": 3, "n_shared_experts": 1}


def _model(config: Any) -> Any:
    model = config.build(11)
    initialise(model, 0)
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_experts": 4}, "n_experts must be null on a dense base, got 4; add base: moe"),
        ({"base": "moe", "top_k": 17}, r"top_k must lie in 1..n_experts \(16\), got 17"),
        (
            {"base": "moe", "n_experts": 40, "top_k": 32},
            r"d_ff must be at least the number of experts that work on a token \(33\), got 32",
        ),
        (
            {"base": "moe", "n_shared_experts": 0},
            r"d_ff must be a multiple of top_k \(3\) without shared experts, got 32; the nearest "
            "is 33",
        ),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        value_embeddings.Config(**BACKBONE, **fields)


def test_refuses_experts_where_every_layer_is_a_memory():
    with pytest.raises(ValueError, match="base must be null where no layer has a feed-forward"):
        memory_plus.Config(**BACKBONE, n_keys=4, knn=2, memory_layers=(0, 1, 2), base="moe")


def test_with_empty_tables_it_is_the_mixture_of_experts():
    """Logits, losses of the router, and so gradients: one base for both."""
    config = value_embeddings.Config(**BACKBONE, base="moe", **EXPERTS)
    plain = {name: value for name, value in BACKBONE.items() if name != "d_ff"}
    model, same = _model(config), _model(moe.Config(**plain, d_expert=8, **EXPERTS))
    tokens = torch.arange(11)[None]
    with torch.no_grad():
        for table in model.memory_tables:
            table.weight.zero_()

    torch.testing.assert_close(model(tokens), same(tokens))
    torch.testing.assert_close(model.auxiliary_loss(), same.auxiliary_loss())


@pytest.mark.parametrize(
    "config",
    [
        engram.Config(**BACKBONE, rows_per_head=9, n_hash_heads=2),
        memory_plus.Config(**BACKBONE, n_keys=4, knn=2),
        ngram_input.Config(**BACKBONE, rows_per_head=9, n_hash_heads=2),
        value_embeddings.Config(**BACKBONE),
    ],
    ids=lambda config: type(config).__module__.rpartition(".")[2],
)
def test_experts_cost_what_the_dense_base_does_and_the_router(config):
    on_experts = dataclasses.replace(config, base="moe")
    layers = config.n_feed_forward

    more = on_experts.flops_per_token(11, 12).total - config.flops_per_token(11, 12).total
    assert more == layers * 2 * 16 * 16  # logits of 16 experts
    dense, experts = (each.param_count(11) for each in (config, on_experts))
    assert experts.memory_values == dense.memory_values
    # 17 experts of a quarter of d_ff, of which four work on a token.
    assert experts.feed_forward == layers * 17 * 3 * 16 * 8
    active = on_experts.active_param_count(11) - config.active_param_count(11)
    assert active == experts.router == layers * 16 * 16


def test_shared_experts_have_what_d_ff_does_not_divide_into():
    config = value_embeddings.Config(**{**BACKBONE, "d_ff": 35}, base="moe")

    assert (config.mixture.d_expert, config.mixture.shared.d_ff) == (8, 11)


def test_one_row_a_part_is_the_same_for_all_tokens():
    """The control without memory: what is read does not depend on the n-gram."""
    model = _model(ngram_input.Config(**BACKBONE, rows_per_head=1, n_hash_heads=2))
    rows = model.ngram_input.ngrams.rows(torch.arange(11)[None])

    assert model.memory_table.weight.shape[0] == 4
    assert (rows == torch.tensor([0, 1, 2, 3])).all()
