"""Pre-norm transformer blocks with slots for mixer and feed-forward.

A slot is a module of (x, context). One that keeps account of its use has a method
`record_usage(output, residual)`, which is called where the context asks for it.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from workloads.layers.context import Context


class Block(nn.Module):
    """`x + mixer(norm x)`, then `x + feed_forward(norm x)`.

    With `parallel` both read the same x and are added at once.
    """

    def __init__(
        self,
        *,
        norm: Callable[[], nn.Module],
        mixer: nn.Module,
        feed_forward: nn.Module | None,
        parallel: bool = False,
    ) -> None:
        """Fill the slots; each gets a norm of its own from `norm`.

        Without `feed_forward` there is only the mixer.
        """
        super().__init__()
        self.mixer_norm = norm()
        self.mixer = mixer
        self.feed_forward_norm = norm() if feed_forward is not None else None
        self.feed_forward = feed_forward
        self.parallel = parallel

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the residual stream after this block."""
        mixed = x + apply_slot(self.mixer, self.mixer_norm(x), context, residual=x)
        if self.feed_forward is None or self.feed_forward_norm is None:
            return mixed
        read = x if self.parallel else mixed
        return mixed + apply_slot(
            self.feed_forward, self.feed_forward_norm(read), context, residual=read
        )


def apply_slot(slot: nn.Module, x: Tensor, context: Context, *, residual: Tensor) -> Tensor:
    """Return a slot's output for `x`, to be added to `residual`, in its type.

    Record usage if the context asks.
    """
    output: Tensor = slot(x, context)
    record: Callable[[Tensor, Tensor], None] | None = getattr(slot, "record_usage", None)
    if context.record_usage and record is not None:
        record(output, residual)
    # A memory's sums may be fp32; they would widen the stream of every later block.
    return output.to(residual.dtype)
