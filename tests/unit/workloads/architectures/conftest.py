"""Checks that several architectures' tests use."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from workloads.layers.modules.init import initialise

VOCAB_SIZE = 7


def _model(config: Any) -> nn.Module:
    model: nn.Module = config.build(VOCAB_SIZE)
    initialise(model, 0)
    return model


@pytest.fixture
def check_gradients() -> Callable[[Any], None]:
    """Compare a tiny model's gradients with central differences of its loss, in float64.

    Every parameter in turn, along one random direction that all of its numbers take part in.
    """

    def check(config: Any) -> None:
        model = _model(config).double()
        names, parameters = zip(*model.named_parameters(), strict=True)
        tokens = torch.randint(VOCAB_SIZE, (2, 6), generator=torch.Generator().manual_seed(0))

        def loss(*values: Tensor) -> Tensor:
            weights = dict(zip(names, values, strict=True))
            logits = torch.func.functional_call(model, weights, (tokens[:, :-1],))
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

        assert torch.autograd.gradcheck(
            loss, parameters, eps=1e-6, atol=1e-8, rtol=1e-5, fast_mode=True
        )

    return check


@pytest.fixture
def check_flops() -> Callable[..., None]:
    """Compare `flops_per_token` with what torch counts in a forward pass of one sequence.

    `unseen` are those that it does not count (sums of rows); it counts scores of later tokens,
    which are masked.
    """

    def check(config: Any, *, seq_len: int = 11, unseen: float = 0) -> None:
        counter = FlopCounterMode(display=False)
        # The fused attention of a CPU is unknown to torch's counter; the plain form is two
        # products.
        with counter, nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            _model(config)(torch.zeros(1, seq_len, dtype=torch.long))

        masked = 2 * seq_len * config.n_layers * config.d_model
        expected = config.flops_per_token(VOCAB_SIZE, seq_len).total - unseen + masked
        assert counter.get_total_flops() == seq_len * expected

    return check


@pytest.fixture
def check_activations(
    bytes_kept: Callable[[nn.Module, Tensor, str], int],
) -> Callable[..., None]:
    """Compare `activation_bytes_per_token` with what autograd keeps of a forward pass."""

    def check(config: Any, precision: str, *, rel: float) -> None:
        model = _model(config)
        model.recording_usage = False
        tokens = torch.zeros(64, 64, dtype=torch.long)

        kept = bytes_kept(model, tokens, precision) / tokens.numel()

        # Logits and probabilities belong to the loss, which is not taken here.
        loss = (8 if precision == "fp32" else 6) * VOCAB_SIZE
        expected = config.activation_bytes_per_token(VOCAB_SIZE, 64, precision=precision) - loss
        assert kept == pytest.approx(expected, rel=rel)

    return check


@register_flop_formula(torch.ops.aten._embedding_bag_per_sample_weights_backward)
def _products_of_rows(x: Any, table: Any, ids: Any, *others: Any, **named: Any) -> int:
    """Count what `row_products` is on a CPU, which torch's counter does not know; arguments are shapes."""
    return 2 * ids[0] * x[1]
