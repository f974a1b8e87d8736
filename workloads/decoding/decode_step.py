"""One decoding step: every sequence's last token is read, and its next one chosen.

On a GPU the step is captured as a CUDA graph and replayed. A step of one token is hundreds of
kernels of a few microseconds, which Python cannot launch as fast as they run.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor

from workloads.decoding.sampling import Sampling, choose
from workloads.layers.cache import Cache

_WARM_UPS = 2
"""Runs before the capture. They make the cache's tensors, and libraries choose their kernels."""


class DecodeStep:
    """Adds a token to every sequence of a cache."""

    def __init__(
        self,
        model: Callable[[Tensor, Cache], Tensor],
        cache: Cache,
        sampling: Sampling,
        *,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Make a step that runs kernel by kernel until `capture`."""
        self.model, self.cache, self.sampling = model, cache, sampling
        self._autocast = autocast
        here = cache.lengths.device
        self.tokens = torch.zeros(len(cache.lengths), 1, dtype=torch.int64, device=here)
        """What is read next; the next step overwrites it."""
        self.uniform = torch.zeros(len(cache.lengths), dtype=torch.float64, device=here)
        """A number in [0, 1) for each sequence's choice."""
        self.largest = torch.zeros(len(cache.lengths), 1, dtype=torch.float64, device=here)
        """The largest logit that each of `tokens` was chosen by; NaN or infinite if it means
        nothing. On the device, so that no step waits for a look at it."""
        self._graph: torch.cuda.CUDAGraph | None = None

    def fits(self, batch: int, capacity: int, sampling: Sampling) -> bool:
        """Whether it can be used for such sequences, without twice the room that they need."""
        room = self.cache.capacity
        return (
            len(self.cache.lengths) == batch
            and capacity <= room < 2 * capacity
            and self.sampling == sampling
        )

    def __call__(self) -> None:
        """Read `tokens`, and put the next ones in their place."""
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def capture(self) -> None:
        """Capture the step; the cache is empty afterwards."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._run_second()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may go on with calls that a capture forbids.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._run_second()
        self._graph = graph
        self.cache.clear()

    def read(self, logits: Float[Tensor, "batch vocab_size"]) -> None:
        """Choose the next token of every sequence after a prompt."""
        tokens, largest = choose(logits, self.sampling, self.uniform)
        self.tokens.copy_(tokens[:, None])
        self.largest.copy_(largest[:, None])

    def _run_second(self) -> None:
        """Run as if one token had been read: the path of every step but the first."""
        # Only as the host knows it: a write of `lengths` would be captured, and undo every replay.
        self.cache.longest = 1
        self._run()

    def _run(self) -> None:
        with self._autocast():
            logits = self.model(self.tokens, self.cache)
        self.read(logits[:, -1])
