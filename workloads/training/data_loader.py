"""Data loader: each rank's slice of each global batch, a pure function of (seed, step)."""

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from workloads.data.corpus import Corpus
from workloads.distributed.process_group import RankGroup
from workloads.training.config import TrainConfig


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

    def batch(self, step: int) -> Int64[Tensor, "sequences seq_len+1"]:
        """Return this rank's windows of optimizer step `step`, counted from 1, on the device."""
        start = (step - 1) * self._sequences
        indices = np.arange(start + self._share.start, start + self._share.stop, dtype=np.int64)
        windows = torch.from_numpy(
            self._corpus.windows(indices, seq_len=self._seq_len, seed=self._seed)
        )
        if self._here.type == "cuda":
            # From ordinary memory the copy would wait for the step before.
            windows = windows.pin_memory()
        return windows.to(self._here, non_blocking=True)
