"""Choice of the next token: greedy, or drawn with temperature, top-k and top-p.

A draw is the inverse of the cumulative distribution at a uniform number. Every sequence has uniform
numbers of its own, one a token, which follow from its seed alone. So what is drawn for a sequence
does not depend on the batch that it is in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 0.0
    """What logits are divided by; 0 is greedy."""
    top_k: int | None = None
    """Draw from this many most probable tokens; None is all."""
    top_p: float | None = None
    """Draw from the fewest most probable tokens that together have this probability (nucleus
    sampling, Holtzman et al. 2020, arXiv 1904.09751); None is all."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature must be 0 (greedy) or a positive number, got {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}; leave it out for all")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                f"top_p must lie above 0 and up to 1, got {self.top_p}; leave it out for all"
            )
        limited = [name for name in ("top_k", "top_p") if getattr(self, name) is not None]
        if self.is_greedy and limited:
            raise ValueError(
                f"{' and '.join(limited)} limit what is drawn, but temperature 0 draws nothing; "
                "set a temperature, say 1"
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self.temperature == 0


GREEDY = Sampling()


def uniform_numbers(seeds: Sequence[int], n_tokens: int) -> Float[Tensor, "batch n_tokens"]:
    """Return numbers in [0, 1) for the tokens of each sequence.

    The first numbers of a seed are the same however many are asked for.
    """
    rows = [
        torch.rand(n_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for seed in seeds
    ]
    return torch.stack(rows)


def choose(
    logits: Float[Tensor, "batch vocab_size"],
    sampling: Sampling,
    uniform: Float[Tensor, " batch"],
) -> Int[Tensor, " batch"]:
    """Return the next token of every sequence. Of equal logits, that of the lower id comes first.

    Args:
        logits: Of the next token.
        sampling: How to choose.
        uniform: A number in [0, 1) for each sequence; of no effect where the choice is greedy.
    """
    if sampling.is_greedy:
        return logits.argmax(dim=-1)
    ordered, ids = (
        logits.double().div(sampling.temperature).sort(dim=-1, descending=True, stable=True)
    )
    if sampling.top_k is not None:
        ordered[:, sampling.top_k :] = -torch.inf
    probability = ordered.softmax(dim=-1)
    if sampling.top_p is not None:
        before = probability.cumsum(dim=-1) - probability
        probability = probability * (before < sampling.top_p)
    cumulative = probability.cumsum(dim=-1)
    place = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(dim=-1)
    # Rounding may lift the product to the whole sum.
    last = (probability > 0).sum(dim=-1) - 1
    return ids.gather(1, torch.minimum(place, last)[:, None])[:, 0]
