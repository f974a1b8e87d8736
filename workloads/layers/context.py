"""Context that the blocks of a model share."""

from dataclasses import dataclass, field, replace

from jaxtyping import Float, Int
from torch import Tensor

from workloads.layers.cache import LayerCache


class ForwardState:
    """What layers leave in one pass for others.

    No dataclass: FSDP (`sharding/fsdp.py`) hands a block copies of dataclasses, lists and dicts
    that hold tensors with a gradient, and what the block left in a copy would be lost. It hands on
    an object like this as it is.
    """

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.shared: dict[str, Tensor] = {}

    def copy(self) -> "ForwardState":
        """Return another one that holds the same tensors."""
        made = ForwardState()
        made.losses, made.shared = [*self.losses], {**self.shared}
        return made


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a block may look at besides the residual stream."""

    tokens: Int[Tensor, "batch seq"]
    """Token ids of this pass."""
    rotation: Float[Tensor, "2 *batch seq 1 columns"] | None = None
    """Cosines and sines of this pass's positions (`attention.rotation_table`); None in models
    without rotary positions."""
    positions: Int[Tensor, "batch seq"] | None = None
    """Positions of the tokens; None: 0, 1, … in every sequence."""
    documents: Int[Tensor, "batch seq"] | None = None
    """Number of the document that each token belongs to, which attention stays within; None where
    a row is one document."""
    cache: LayerCache | None = None
    """What this layer remembers; None when the whole sequence passes at once."""
    record_usage: bool = False
    """Whether to record how memories and experts are used."""
    forward_state: ForwardState = field(default_factory=ForwardState)
    """The same object in all layers of a pass."""

    @property
    def losses(self) -> list[Tensor]:
        """Losses that layers add in training, each a mean over the tokens of this pass."""
        return self.forward_state.losses

    @property
    def shared(self) -> dict[str, Tensor]:
        """Tensors that one part of the model shares with others in this pass, by name."""
        return self.forward_state.shared

    def for_layer(self, layer_cache: LayerCache | None) -> "Context":
        """Return the context of one layer."""
        return self if layer_cache is None else replace(self, cache=layer_cache)
