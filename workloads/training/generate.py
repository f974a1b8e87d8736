"""Greedy decoding with a cache, one token a step."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from workloads.layers.context import Cache
from workloads.sharding.fsdp import only_forward


def greedy(
    model: nn.Module, prompt: Int[Tensor, "batch seq"], *, n_tokens: int
) -> Int[Tensor, "batch n_tokens"]:
    """Return the greedy continuation of a prompt; ties go to the lowest id.

    The prompt passes once, then every token alone. The model is put into evaluation mode for it.
    Ranks that hold parameters together must all call this, for as many tokens.

    Raises:
        ValueError: If the prompt is empty, if nothing is asked for, or from an architecture that
            cannot decode token by token (`moe` while experts choose tokens) or not that far (a
            mixer of fixed length).
    """
    if prompt.shape[1] < 1 or n_tokens < 1:
        raise ValueError(
            f"decoding needs a prompt and at least one token to add, got {prompt.shape[1]} and "
            f"{n_tokens}"
        )
    was_training = model.training
    model.eval()
    try:
        with only_forward(model):
            cache, chosen, read = Cache(), [], prompt
            for _ in range(n_tokens):
                read = model(read, cache)[:, -1:].argmax(-1)
                chosen.append(read)
            return torch.cat(chosen, dim=1)
    finally:
        model.train(was_training)
