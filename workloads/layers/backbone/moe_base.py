"""Mixture-of-experts backbone: Llama-style, experts for feed-forward blocks.

Architectures that add a memory beside or between feed-forward blocks derive from it, so that the
same memory can be put on a dense base and on a mixture of experts of equal FLOPs.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from workloads.accounting.counts import Component
from workloads.field_error import FieldError, NonNegativeInt, PositiveInt
from workloads.layers.backbone.llama import LlamaBackbone
from workloads.layers.modules.moe import MixtureOfExperts, MixtureShape

BALANCE_LOSS, Z_LOSS = 0.01, 0.001
"""Coefficients of the routers' losses, those of `moe`'s presets."""


@dataclass(frozen=True, kw_only=True)
class MoeBackbone(LlamaBackbone):
    """The backbone, dense or with fine-grained experts (Dai et al. 2024, arXiv 2401.06066)."""

    base: Literal["moe"] | None = None
    """moe: experts in place of every dense feed-forward block. Those that work on a token are
    together d_ff wide, so FLOPs stay but for the router's; what d_ff does not divide into, the
    shared experts have."""
    n_experts: PositiveInt | None = None
    """With base moe: routed experts in a layer; None is 16."""
    top_k: PositiveInt | None = None
    """With base moe: routed experts that work on a token; None is 3."""
    n_shared_experts: NonNegativeInt | None = None
    """With base moe: experts that work on every token besides; None is 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base is None:
            for name in ("n_experts", "top_k", "n_shared_experts"):
                if (value := getattr(self, name)) is not None:
                    raise FieldError(name, "must be null on a dense base", value, "add base: moe")
            return
        n_experts, top_k, shared = self._experts
        if top_k > n_experts:
            rule = f"must lie in 1..n_experts ({n_experts})"
            raise FieldError("top_k", rule, top_k, f"the nearest is {n_experts}", ("n_experts",))
        if self.d_ff < top_k + shared:
            rule = f"must be at least the number of experts that work on a token ({top_k + shared})"
            fix = f"the nearest is {top_k + shared}"
            raise FieldError("d_ff", rule, self.d_ff, fix, ("top_k", "n_shared_experts"))
        if self.d_ff % top_k and not shared:
            rule = f"must be a multiple of top_k ({top_k}) without shared experts"
            fix = f"the nearest is {top_k * max(1, round(self.d_ff / top_k))}"
            raise FieldError("d_ff", rule, self.d_ff, fix, ("top_k", "n_shared_experts"))
        if self.n_feed_forward == 0:
            raise FieldError("base", "must be null where no layer has a feed-forward block", "moe")

    @property
    def _experts(self) -> tuple[int, int, int]:
        """Routed experts, those of a token, and shared ones, with absent fields filled in."""
        shared = 1 if self.n_shared_experts is None else self.n_shared_experts
        return self.n_experts or 16, self.top_k or 3, shared

    @property
    def mixture(self) -> MixtureShape:
        """Sizes of one mixture, and its part of the losses."""
        n_experts, top_k, shared = self._experts
        d_expert, remainder = divmod(self.d_ff, top_k + shared)
        return MixtureShape(
            d_model=self.d_model,
            n_experts=n_experts,
            d_expert=d_expert,
            top_k=top_k,
            n_shared_experts=shared,
            shared_remainder=remainder,
            balance_loss=BALANCE_LOSS / self.n_feed_forward,
            z_loss=Z_LOSS / self.n_feed_forward,
        )

    def feed_forward(self) -> nn.Module:
        """Return a feed-forward block: experts, or SwiGLU on a dense base."""
        return super().feed_forward() if self.base is None else MixtureOfExperts(self.mixture)

    def frame_components(self, vocab_size: int) -> list[tuple[int, Component]]:
        """Return the parts of the frame, attention in every layer, feed-forward blocks."""
        if self.base is None:
            return super().frame_components(vocab_size)
        return [*self.attention_parts(vocab_size), (self.n_feed_forward, self.mixture)]
