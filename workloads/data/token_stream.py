"""Windows of input and shifted target, cut from a token stream by epoch."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


def windows_per_epoch(n_tokens: int, seq_len: int) -> int:
    """Return how many windows show every token of a stream as a target at least once."""
    return max(1, -(-n_tokens // seq_len))


def gather_windows(
    stream: NDArray[np.integer], positions: NDArray[np.integer], *, seq_len: int
) -> NDArray[np.int64]:
    """Return windows (len(positions), seq_len + 1); window k begins at token k * seq_len.

    Neighbouring windows share one token: the last target of one is the first input of the next.
    Past the end the stream begins again.
    """
    starts = np.asarray(positions, dtype=np.int64)[:, None] * seq_len
    tokens = stream[(starts + np.arange(seq_len + 1)) % len(stream)]
    return np.asarray(tokens, dtype=np.int64)


@dataclass
class EpochCache:
    """Cache of the last two epochs' token streams; a batch may straddle an epoch's end."""

    _streams: dict[tuple[int, int], NDArray[np.integer]] = field(default_factory=dict)

    def windows(
        self,
        indices: NDArray[np.integer],
        *,
        seq_len: int,
        seed: int,
        n_tokens: int,
        generate: Callable[[int, int], NDArray[np.integer]],
    ) -> NDArray[np.int64]:
        """Return windows (len(indices), seq_len + 1) counted from the start of training.

        Args:
            indices: Sequence numbers over all epochs.
            seq_len: Tokens per sequence.
            seed: Handed on to `generate`.
            n_tokens: Length of every epoch's stream.
            generate: (epoch, seed) -> all tokens of that epoch, a pure function.
        """
        per_epoch = windows_per_epoch(n_tokens, seq_len)
        epochs, positions = np.divmod(np.asarray(indices, dtype=np.int64), per_epoch)
        windows = np.empty((len(epochs), seq_len + 1), dtype=np.int64)
        for epoch in np.unique(epochs):
            key, here = (int(epoch), seed), epochs == epoch
            if key not in self._streams:
                while len(self._streams) >= 2:
                    del self._streams[next(iter(self._streams))]
                self._streams[key] = generate(*key)
            windows[here] = gather_windows(self._streams[key], positions[here], seq_len=seq_len)
        return windows
