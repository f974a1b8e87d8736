"""Causality check: earlier logits do not change with later tokens.

A model that sees the token it is asked for loses next to nothing and wins every comparison. The
contract tests ask all architectures at small sizes. This asks the model that trains, whose code may
have changed since: before its first step, and at each evaluation, as a part that begins at zero
hides what it reads.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from workloads.sharding.fsdp import only_forward

_TOKENS = 16
_CHANGE = 0.05
"""Of the logits' standard deviation. A choice: above what bf16 rounding is taken to change, and
below what a later token changes that is seen. Tests hold all architectures to it, in fp32 and
bf16."""


def require_causal(
    model: nn.Module,
    vocab_size: int,
    *,
    seq_len: int,
    here: torch.device,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Change the tokens from each position on, and compare the logits of all earlier positions.

    Collective: every rank calls it. A model with one token, or sequences of one, passes.

    Raises:
        ValueError: If the logits of earlier positions change in most of these sequences. A router
            whose choice is a near tie may change some.
    """
    n = min(_TOKENS, seq_len)
    if n < 2 or vocab_size < 2:
        return
    places = torch.arange(n, device=here)
    tokens = (7 * places + 1) % vocab_size
    first_changed = torch.arange(1, n, device=here)[:, None]
    changed = (tokens + (places >= first_changed)) % vocab_size
    was_training = model.training
    model.eval()
    try:
        with only_forward(model), autocast():
            logits = model(torch.cat([tokens[None], changed])).float()
    finally:
        model.train(was_training)
    found = (logits[1:] - logits[0]).abs().amax(-1)
    earlier = found.masked_fill(places >= first_changed, 0.0).amax(-1)
    if earlier.median() > _CHANGE * logits[0].std():
        raise ValueError(
            "model: its outputs change with tokens that come later, so it sees what it is asked "
            "for; mend its code, or declare `non_causal_reasons` in its Config "
            "(docs/add-an-architecture.md)"
        )
