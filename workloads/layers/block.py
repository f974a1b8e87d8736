"""A pre-norm transformer block with two slots: what mixes positions, and what works on each alone."""

from jaxtyping import Float
from torch import Tensor, nn

from workloads.layers.rms_norm import RMSNorm


class Block(nn.Module):
    """`x + mixer(norm x)`, then `x + feed_forward(norm x)`."""

    def __init__(
        self, *, d_model: int, norm_eps: float, mixer: nn.Module, feed_forward: nn.Module
    ) -> None:
        super().__init__()
        self.mixer_norm = RMSNorm(d_model, eps=norm_eps)
        self.mixer = mixer
        self.feed_forward_norm = RMSNorm(d_model, eps=norm_eps)
        self.feed_forward = feed_forward

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        rotation: Float[Tensor, "2 seq 1 d_head"],
        *shared: Tensor,
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the residual stream after this block; `shared` goes to the feed-forward slot (a memory table)."""
        mixed: Tensor = x + self.mixer(self.mixer_norm(x), rotation)
        output: Tensor = mixed + self.feed_forward(self.feed_forward_norm(mixed), *shared)
        return output
