"""Data loader: each rank's slice of each global batch, by step number."""

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from workloads.data.corpus import Corpus
from workloads.distributed.process_group import RankGroup
from workloads.training.config import TrainConfig

_MOST_STEPS_AT_ONCE, _BYTES_AT_ONCE = 16, 4 * 2**20
"""Steps whose batches go to a GPU together, and their bytes at most."""


class DataLoader:
    """Loads batches by step number: nothing to save, and a resumed run reads the same tokens."""

    def __init__(
        self,
        corpus: Corpus,
        config: TrainConfig,
        *,
        seed: int,
        world: RankGroup,
        here: torch.device,
    ) -> None:
        """Find this rank's share of the sequences of a step.

        Raises:
            ValueError: If there are more ranks than sequences in a batch.
        """
        self._corpus, self._seed, self._here = corpus, seed, here
        self._seq_len, self._sequences = config.seq_len, config.sequences_per_step
        self._share = world.local_range(self._sequences)
        if not self._share:
            raise ValueError(
                f"train.batch_tokens holds {self._sequences} sequences for {world.size} ranks; "
                "use fewer ranks or a larger batch"
            )
        # A step of a small model takes a GPU less time than the host needs for one gather.
        batch_bytes = 8 * len(self._share) * (self._seq_len + 1)
        many = max(1, min(_MOST_STEPS_AT_ONCE, _BYTES_AT_ONCE // batch_bytes))
        self._steps_at_once = many if here.type == "cuda" else 1
        self._loaded: dict[int, Tensor] = {}

    def batch(self, step: int) -> Int64[Tensor, "sequences seq_len+1"]:
        """Return this rank's windows of optimizer step `step`, counted from 1, on the device."""
        if step not in self._loaded:
            self._loaded = self._load(range(step, step + self._steps_at_once))
        return self._loaded[step]

    def _load(self, steps: range) -> dict[int, Tensor]:
        """Return the batches of some steps, gathered together and sent in one copy."""
        own = np.arange(self._share.start, self._share.stop, dtype=np.int64)
        starts = (np.asarray(steps, dtype=np.int64) - 1) * self._sequences
        indices = (starts[:, None] + own).reshape(-1)
        windows = torch.from_numpy(
            self._corpus.windows(indices, seq_len=self._seq_len, seed=self._seed)
        )
        if self._here.type == "cuda":
            # From ordinary memory the copy would wait for the step before.
            windows = windows.pin_memory()
        batches = windows.to(self._here, non_blocking=True).tensor_split(len(steps))
        return dict(zip(steps, batches, strict=True))
