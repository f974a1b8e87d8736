"""Windows of input and shifted target, cut from a token stream by epoch."""

from abc import ABC, abstractmethod
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


@dataclass(kw_only=True)
class EpochCorpus(ABC):
    """A corpus that makes the tokens of every epoch anew, and keeps those of the last two.

    A batch may straddle an epoch's end.
    """

    tokens_per_epoch: int
    """Length of every epoch."""
    bytes_per_token: float | None = None
    """On held-out text; None where tokens are words of an invented vocabulary."""
    _streams: dict[tuple[int, int], NDArray[np.integer]] = field(default_factory=dict, repr=False)

    @abstractmethod
    def epoch(self, epoch: int, seed: int) -> NDArray[np.integer]:
        """Return all tokens of an epoch, documents shuffled. Does not depend on earlier epochs."""

    def validation_bytes_per_token(self, *, seq_len: int) -> float | None:
        """Return that of all held-out text: documents are shuffled, so windows differ little."""
        del seq_len
        return self.bytes_per_token

    def windows(self, indices: NDArray[np.int64], *, seq_len: int, seed: int) -> NDArray[np.int64]:
        """Return token ids (len(indices), seq_len + 1), a pure function of (index, seq_len, seed).

        An epoch is cut into ceil(tokens_per_epoch / seq_len) windows; the last one is filled up
        from the epoch's beginning, so no fact is ever left out.
        """
        per_epoch = windows_per_epoch(self.tokens_per_epoch, seq_len)
        epochs, positions = np.divmod(np.asarray(indices, dtype=np.int64), per_epoch)
        windows = np.empty((len(epochs), seq_len + 1), dtype=np.int64)
        for epoch in np.unique(epochs):
            key, here = (int(epoch), seed), epochs == epoch
            if key not in self._streams:
                while len(self._streams) >= 2:
                    del self._streams[next(iter(self._streams))]
                self._streams[key] = self.epoch(*key)
            windows[here] = gather_windows(self._streams[key], positions[here], seq_len=seq_len)
        return windows
