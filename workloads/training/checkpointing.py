"""Checkpointing of a training run: its state, when to save, how to resume."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workloads.checkpoint import checkpoint
from workloads.checkpoint.state_split import local_shards, merge_state, split_state
from workloads.checkpoint.tensor_block import TensorBlock
from workloads.distributed.local_part import local_shard
from workloads.distributed.process_group import RankGroup
from workloads.training.metrics.divergence import DivergenceDetector
from workloads.training.metrics.reporter import Reporter
from workloads.training.optimizer.adamw import Optimizer

MIN_PAUSE_OVER_COST = 10
"""Pause between checkpoints over the seconds that writing the last one took."""
WRITE_BYTES_PER_S = 1e9
"""Guess for the first one: without it a trial of minutes could write a large table after 30 s, for
half a minute."""


@dataclass(kw_only=True)
class TrainState:
    """Everything that one optimizer step hands to the next, on one rank.

    Batches and random draws are no part of it: they are functions of (seed, step, rank).
    """

    model: nn.Module
    optimizer: Optimizer
    seconds: dict[str, float]
    """Seconds spent per activity, over all attempts."""
    warm_ups: int = 0
    """Steps of all attempts that were warm-ups (`TrainStep.is_warm`)."""
    divergence: DivergenceDetector = field(default_factory=DivergenceDetector)
    step: int = 0
    """Optimizer steps done."""

    def restore(self, saved: dict[str, Any], path: Path) -> None:
        """Take over the state that the checkpoint at `path` holds.

        Args:
            saved: What `checkpoint.load` returned.
            path: Holds what ranks saved as shards, of which each reads its own.

        Raises:
            ValueError: If it is of another model or optimizer.
        """
        shards = local_shards(self.model)
        state = merge_state(saved, checkpoint.sharded_tensors(path), shards, self.optimizer.names)
        load_weights(self.model, state["weights"])
        self.optimizer.load_adamw(state["optimizer"])
        if self.optimizer.tables is not None:
            self.optimizer.tables.load_state_dict(state["tables"])
        self.divergence = DivergenceDetector(**state["watch"])
        self.seconds.update(state["seconds"])
        self.warm_ups = state.get("warm_ups", 0)  # files of before have none
        self.step = state["step"]

    def as_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of this step holds; tensors are not copied."""
        tables = self.optimizer.tables
        return {
            "step": self.step,
            "weights": weights(self.model),
            "optimizer": self.optimizer.adamw.state_dict(),
            "tables": tables and tables.state_dict(),
            "watch": asdict(self.divergence),
            "seconds": dict(self.seconds),
            "warm_ups": self.warm_ups,
        }


class Checkpointer:
    """Saves the state of a run, at a pace that its cost allows, and what remains of it."""

    def __init__(
        self,
        state: TrainState,
        folder: Path,
        *,
        every_s: float,
        world: RankGroup,
        reporter: Reporter,
        clock: Callable[[], float],
    ) -> None:
        """Start the clock of the first pause.

        Args:
            state: What is saved.
            folder: Of the trial's checkpoints.
            every_s: Seconds between checkpoints at least; 0 is one after every step.
            world: All ranks.
            reporter: Told of every complete checkpoint.
            clock: Seconds.
        """
        self._state, self._folder, self._reporter = state, folder, reporter
        self._shards = local_shards(state.model)
        # Rank 0 has all there is to save, unless tensors are sharded.
        self._writers = world if self._shards else RankGroup()
        self._writes = world.is_main or self._writers.size > 1
        self._every_s = every_s
        self._cost_s: float | None = None
        """Of writing the last checkpoint."""
        self._clock, self._saved_at = clock, clock()

    def save_if_due(self, *, now: bool, announce: Callable[[], None]) -> None:
        """Save the state if the pause is over, or at once; collective where tensors are sharded.

        Args:
            now: Save without regard to the pause; the same on every rank.
            announce: Called before anything is written.
        """
        start = self._clock()
        due = start - self._saved_at >= self._every_s
        due = due and start - self._saved_at >= self._pause_s()
        if self._writers.size > 1:
            # Clocks of ranks differ: rank 0's decides.
            due = self._writers.broadcast("due" if due else None) is not None
        if not (self._writes and (now or due)):
            return
        announce()
        step = self._state.step
        state, blocks = self._split(self._state.as_dict())
        path = checkpoint.save(self._folder, step, state, blocks=blocks, world=self._writers)
        self._reporter.checkpoint(step, path)
        self._saved_at = self._clock()
        self._cost_s = self._saved_at - start

    def _pause_s(self) -> float:
        if not self._every_s:
            return 0.0
        if self._cost_s is None:
            self._cost_s = _tensor_bytes(self._state.as_dict()) / WRITE_BYTES_PER_S
        return max(self._every_s, MIN_PAUSE_OVER_COST * self._cost_s)

    def save_final(self, metrics: dict[str, float], *, announce: Callable[[], None]) -> None:
        """Save the weights and the last metrics, which outlive the run."""
        if not self._writes:
            return
        announce()
        step = self._state.step
        final = {"step": step, "weights": weights(self._state.model), "metrics": metrics}
        state, blocks = self._split(final)
        path = checkpoint.save_final(self._folder, state, blocks=blocks, world=self._writers)
        self._reporter.checkpoint(step, path)

    def _split(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, TensorBlock]]:
        return split_state(state, self._shards, self._state.optimizer.names)


def latest_checkpoint(folder: Path, world: RankGroup) -> Path | None:
    """Return the newest undamaged checkpoint, the same on every rank; None if there is none."""
    newest = checkpoint.latest(folder) if world.is_main else None
    found = world.broadcast(str(newest or "") if world.is_main else None)
    return Path(found) if found else None


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and all buffers by name, those that a state dict leaves out too."""
    return {name: tensor.detach() for name, tensor in _named_tensors(model)}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write saved values into a model, of a sharded parameter this rank's shard.

    Raises:
        ValueError: If the names differ.
    """
    named = dict(_named_tensors(model))
    if named.keys() != weights.keys():
        names = ", ".join(sorted(named.keys() ^ weights.keys()))
        raise ValueError(
            f"checkpoint and model differ in {names}; put together first what ranks saved in "
            "pieces (checkpoint/state_split.py), or, if the architecture's code changed since, "
            "delete the trial's checkpoints to train it anew"
        )
    with torch.no_grad():
        for name, tensor in named.items():
            local_shard(tensor).copy_(weights[name])


def _tensor_bytes(state: object) -> int:
    """Return the bytes of all tensors in a nested state, of a sharded one this rank's shard."""
    match state:
        case Tensor():
            return local_shard(state).nbytes
        case Mapping():
            return sum(map(_tensor_bytes, state.values()))
        case list() | tuple():
            return sum(map(_tensor_bytes, state))
    return 0


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
