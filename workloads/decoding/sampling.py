"""Choice of the next token: greedy, or drawn with temperature, top-k and top-p.

A draw is the inverse of the cumulative distribution at a uniform number. Every sequence has uniform
numbers of its own, one a token, which follow from its seed alone. So from the same logits the same
token is drawn, whatever else is in the batch. Rounding of the logits may depend on the batch's
shape: of two tokens that are nearly as probable the other may come then, mostly in bf16.
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
) -> tuple[Int[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return the next token of every sequence, and the largest of its logits.

    Of equal logits, that of the lower id comes first. Where the largest is NaN or infinite there
    are no probabilities: the token is one of the vocabulary, but it means nothing.

    Args:
        logits: Of the next token.
        sampling: How to choose.
        uniform: A number in [0, 1) for each sequence; of no effect where the choice is greedy.
    """
    if sampling.is_greedy:
        largest, tokens = logits.max(dim=-1)
        return tokens, largest
    # NaN comes before all numbers.
    descending, ids = logits.double().sort(dim=-1, descending=True, stable=True)
    largest = descending[:, 0]
    # The largest becomes 0, which no temperature however small makes infinite.
    ordered = (descending - largest[:, None]).div(sampling.temperature)
    if sampling.top_k is not None:
        ordered[:, sampling.top_k :] = -torch.inf
    probability = ordered.softmax(dim=-1)
    if sampling.top_p is not None:
        before = probability.cumsum(dim=-1) - probability
        probability = probability * (before < sampling.top_p)
    cumulative = probability.cumsum(dim=-1)
    place = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(dim=-1)
    # Rounding may lift the product to the whole sum. Of NaN none is above 0.
    last = ((probability > 0).sum(dim=-1) - 1).clamp_min(0)
    return ids.gather(1, torch.minimum(place, last)[:, None])[:, 0], largest
