"""Transformer frame: embedding, blocks, final norm, head."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from workloads.layers.cache import Cache
from workloads.layers.context import Context, ForwardState
from workloads.layers.mixers.attention import rotation_table
from workloads.layers.modules.autocast import to_autocast_dtype
from workloads.layers.modules.linear import Embedding, Head
from workloads.layers.modules.usage_stats import Usage, rows_ever_read, usage_report


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Which columns of a head turn with the position, and how fast."""

    columns: int
    base: float


class Transformer(nn.Module):
    """Token ids to logits through blocks of (x, context)."""

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: Iterable[nn.Module],
        norm: nn.Module,
        head: Head | None,
        rotary: Rotary | None,
    ) -> None:
        """Put a model together; without `head` the embedding table is the head too."""
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.head = head
        self.rotary = rotary
        self.recording_usage = True
        """Whether training passes record how memories and experts are used."""
        self.document_separator: int | None = None
        """Token that begins a document. Attention stays within documents then, in passes without a
        cache; None lets it cross them."""
        self._auxiliary: list[Tensor] = []
        self.gathered_hidden: Callable[[Tensor], Tensor] | None = None
        """`hidden` where it must gather parameters first (`sharding/fsdp.py`)."""

    @cached_property
    def records_usage(self) -> bool:
        """Whether any part of the model records how it is used."""
        return any(isinstance(module, Usage) for module in self.modules())

    def forward(
        self, tokens: Int[Tensor, "batch seq"], cache: Cache | None = None
    ) -> Float[Tensor, "batch seq vocab_size"]:
        """Return next-token logits.

        Args:
            tokens: With a cache, those that follow the tokens in it.
            cache: What is remembered of earlier tokens; this pass adds its own.
        """
        return self.logits(self.hidden(tokens, cache))

    def hidden(
        self, tokens: Int[Tensor, "batch seq"], cache: Cache | None = None
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the last residual stream, before norm and head (arguments of `forward`)."""
        context = self.context(tokens, cache)
        before = context.for_layer(None if cache is None else cache.embedding)
        # Half the bytes of an fp32 stream pass through every norm and sum of the blocks. Norms
        # compute in fp32 all the same.
        x = to_autocast_dtype(self.embed(tokens, before))
        for index, layer in enumerate(self.layers):
            x = layer(x, context.for_layer(None if cache is None else cache.layer(index)))
        if cache is not None:
            cache.advance(tokens.shape[1])
        self._auxiliary = context.losses
        return x

    def context(self, tokens: Int[Tensor, "batch seq"], cache: Cache | None) -> Context:
        """Return what every block of this pass may look at."""
        positions = None if cache is None else cache.positions(tokens.shape[1])
        rotation = None
        if self.rotary is not None:
            rotation = rotation_table(
                tokens.shape[1],
                self.rotary.columns,
                base=self.rotary.base,
                device=tokens.device,
                positions=positions,
            )
        documents = None
        if self.document_separator is not None and cache is None:
            documents = (tokens == self.document_separator).cumsum(1)
        return Context(
            tokens=tokens,
            documents=documents,
            rotation=rotation,
            positions=positions,
            record_usage=self.training and self.recording_usage,
            # Passed, because torch.compile cannot follow a default's factory.
            forward_state=ForwardState(),
        )

    def embed(
        self, tokens: Int[Tensor, "batch seq"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the first residual stream."""
        x: Tensor = self.embedding(tokens)
        return x

    def logits(
        self, x: Float[Tensor, "batch seq d_model"]
    ) -> Float[Tensor, "batch seq vocab_size"]:
        """Return next-token logits of the last residual stream."""
        x = self.norm(x)
        return functional.linear(x, self.embedding.weight) if self.head is None else self.head(x)

    def auxiliary_loss(self) -> Tensor | None:
        """Return the losses that layers added in the last pass, a mean over its tokens.

        None where no layer does.
        """
        return torch.stack(self._auxiliary).sum() if self._auxiliary else None

    def statistics(self) -> dict[str, float]:
        """Return the usage of memories and experts since the last call (`usage_report`)."""
        return usage_report(self)

    def ever_read(self) -> list[Bool[Tensor, " rows"]]:
        """Return which rows each memory has read in training, in place.

        What is written there is kept.
        """
        return rows_ever_read(self)
