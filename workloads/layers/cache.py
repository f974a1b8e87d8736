"""Decoding cache: what a model remembers of the tokens it has read.

Every tensor has its final shape from the first pass on and is written in place. So a pass that
reads one more token has the same shapes and addresses each time, which a CUDA graph needs.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


class Cache:
    """What a model remembers of a batch of sequences, which may differ in length.

    Empty at first. A forward pass that is given a cache continues after the tokens in it and adds
    its own, as many to each sequence.
    """

    def __init__(self, batch: int, capacity: int, *, device: torch.device | None = None) -> None:
        """Make room for `capacity` tokens of each of `batch` sequences."""
        self.capacity = capacity
        self.lengths: Int[Tensor, " batch"] = torch.zeros(batch, dtype=torch.int64, device=device)
        """Tokens read of each sequence."""
        self.longest = 0
        """The largest of them as the host knows it; a replayed graph does not count here."""
        self.layers: dict[int, LayerCache] = {}
        self.rows = torch.arange(batch, device=device)[:, None]

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been read."""
        return self.longest == 0

    def layer(self, index: int) -> "LayerCache":
        """Return what the layer of this index remembers."""
        return self.layers.setdefault(index, LayerCache(self))

    @property
    def embedding(self) -> "LayerCache":
        """Return what the embedding remembers, in models where it reads earlier tokens."""
        return self.layer(_EMBEDDING)

    def positions(self, seq: int) -> Int[Tensor, "batch seq"] | None:
        """Return the positions of the next `seq` tokens; None in an empty cache: 0, 1, ….

        Raises:
            ValueError: If there is no room for them.
        """
        if self.longest + seq > self.capacity:
            raise ValueError(
                f"the cache has room for {self.capacity} tokens, got {self.longest + seq}; "
                "make it larger"
            )
        if self.is_empty:
            return None
        return self.lengths[:, None] + torch.arange(seq, device=self.lengths.device)

    def advance(self, seq: int) -> None:
        """Count `seq` more tokens of every sequence."""
        self.lengths += seq
        self.longest += seq

    def clear(self) -> None:
        """Forget everything; tensors keep their places."""
        self.lengths.zero_()
        self.longest = 0
        for layer in self.layers.values():
            for value in layer.tensors.values():
                # A masked entry is still multiplied by a weight of zero, and 0 · NaN is NaN.
                value.zero_()

    def put(self, rows: Int[Tensor, " rows"], other: "Cache") -> None:
        """Take over the sequences of a cache of the same capacity, as those of these rows."""
        self.lengths[rows] = other.lengths
        self.longest = max(self.longest, other.longest)
        for index, layer in other.layers.items():
            mine = self.layer(index).tensors
            for name, value in layer.tensors.items():
                if name not in mine:
                    mine[name] = value.new_zeros(len(self.lengths), *value.shape[1:])
                mine[name][rows] = value


_EMBEDDING = -1
"""Before the first layer."""


class LayerCache:
    """What one layer remembers, by names of its own; batch is the first dimension.

    Gradients do not pass through it.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.tensors: dict[str, Tensor] = {}

    @property
    def capacity(self) -> int:
        """Tokens of each sequence that there is room for."""
        return self._cache.capacity

    def append(
        self, name: str, new: Tensor, *, dim: int, positions: Int[Tensor, "batch seq"] | None
    ) -> Tensor:
        """Write one entry per token, and return those of all positions up to the capacity.

        Args:
            name: Of the entries.
            new: Of the tokens of this pass, which lie along `dim`.
            dim: Not the first one.
            positions: `Context.positions`. None: the first ones, and only they are returned.
        """
        shape = [*new.shape]
        shape[dim] = self.capacity
        whole, written = self.room(name, shape, new), new.detach()
        if positions is None:
            whole.narrow(dim, 0, new.shape[dim]).copy_(written)
            return new
        whole.movedim(dim, 1)[self._cache.rows, positions] = written.movedim(dim, 1)
        return whole

    def room(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return the tensor of a name; at first zeros of this shape, of the type of `like`."""
        if name not in self.tensors:
            # Not open values: a masked entry is still multiplied by a weight of zero.
            self.tensors[name] = like.new_zeros(shape)
        return self.tensors[name]

    def state(self, name: str) -> Tensor | None:
        """Return a state of fixed size; None if nothing has been read.

        It is the tensor that `set_state` overwrites: use it first.
        """
        return None if self._cache.is_empty else self.tensors.get(name)

    def set_state(self, name: str, value: Tensor) -> None:
        """Keep a state of fixed size, in the place of the earlier one."""
        if name in self.tensors:
            self.tensors[name].copy_(value.detach())
        else:
            self.tensors[name] = value.detach().clone()
