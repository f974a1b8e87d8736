"""The gated feed-forward block."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from workloads.layers.linear import Linear


class SwiGLU(nn.Module):
    """`down(silu(gate x) * up x)`, no biases. Source: Shazeer 2020 (arXiv 2002.05202)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        # Two matrices: halves of one product are strided, and gating those costs a CPU more than a second product.
        self.gate = Linear(d_model, d_ff)
        self.up = Linear(d_model, d_ff)
        self.down = Linear(d_ff, d_model)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return the block's output, to be added to the residual."""
        output: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return output


def llama_d_ff(d_model: int) -> int:
    """Return the usual feed-forward width: 8/3 of `d_model`, rounded up to a multiple of 256."""
    return 256 * -(-(8 * d_model // 3) // 256)
