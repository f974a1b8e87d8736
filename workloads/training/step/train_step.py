"""One optimizer step of one rank: forward, backward, all-reduce, clip, update.

The training loop, the step timer and the benchmarks all call `TrainStep`. Its inputs are one batch
and the learning rates of the step, its outputs 0-d tensors on the device. It reads no number back,
so the host runs ahead of a GPU, and a compiled or captured step can stand in its place.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.sharding.gradient_allreduce import GradientAllReduce
from workloads.training.config import TrainConfig
from workloads.training.device import MAX_CPU_LOGITS
from workloads.training.optimizer.adamw import Optimizer
from workloads.training.step.activation_checkpointing import checkpoint_blocks
from workloads.training.step.compilation import compile_training, compiled_loss
from workloads.training.step.loss import summed_cross_entropy
from workloads.training.step.phase_timer import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    OPTIMIZER,
    PhaseTimer,
)

WARM_UP_STEPS = 3
"""First steps of a kind, which compile, allocate optimizer state and let libraries choose their
kernels."""

Autocast = Callable[[], AbstractContextManager[object]]
"""Makes the context of a forward pass."""
SummedLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""From model, tokens and targets to the summed loss of a micro-batch."""


class TrainStep:
    """Takes optimizer steps of one model: it owns the optimizer and the sums of gradients.

    The batch's share of one rank is passed in micro-batches, whose gradients are accumulated. The
    gradients of ranks are summed while the last backward pass still runs.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        mesh: Mesh | None = None,
        *,
        passes: int,
        autocast: Autocast,
        seed: int = 0,
        compiled: bool = False,
        activation_checkpointing: bool = False,
        phases: PhaseTimer | None = None,
    ) -> None:
        """Make the optimizer, and register the sums over the ranks of `mesh`.

        Args:
            model: In training mode; its parameters stay where they are.
            config: Optimizer and batch.
            mesh: None is one rank alone.
            passes: Forward passes of a step (`even_passes`).
            autocast: Precision of the forward passes.
            seed: Of the stochastic rounding of tables in bf16.
            compiled: Whether blocks and loss run compiled (`compilation.py`).
            activation_checkpointing: Whether blocks keep their inputs alone and run again for the
                backward pass (`activation_checkpointing.py`).
            phases: Told where the phases of a step begin; None times nothing.

        Raises:
            ValueError: If the optimizer does not fit the model (`Optimizer`).
        """
        self.mesh = mesh = mesh or Mesh()
        self.model = model
        self.optimizer = Optimizer(model, config, mesh, seed=seed)
        self._gradients = GradientAllReduce(model, mesh, without=self.optimizer.deferred)
        self._autocast = autocast
        self.phases = phases or PhaseTimer()
        self._loss = plain_loss
        if compiled:
            compile_training(model)
            self._loss = compiled_loss
        if activation_checkpointing:
            checkpoint_blocks(model)
        self._batch_tokens = config.batch_tokens
        self.passes = passes
        # With equal shares no rank must ask how many bags the others look up.
        self.equal_shares = config.sequences_per_step % mesh.world.size == 0
        self._taken = {False: 0, True: 0}

    @property
    def records(self) -> bool:
        """Whether the next step records how memories and experts are used: it is another kind."""
        return bool(getattr(self.model, "recording_usage", False))

    @property
    def is_warm(self) -> bool:
        """Whether the next step takes as long as all later ones of its kind."""
        return self._taken[self.records] >= WARM_UP_STEPS

    def __call__(
        self,
        windows: Int64[Tensor, "sequences seq_len+1"],
        *,
        lr: float,
        value_lr_ratio: float | None = None,
        also: Mapping[str, Tensor] | None = None,
        upcoming: Int64[Tensor, "sequences seq_len+1"] | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """Update the parameters once; return the step's numbers, summed over the ranks.

        Args:
            windows: This rank's share of the global batch.
            lr: Learning rate of the step.
            value_lr_ratio: Learning rate of memory values over `lr`; None is the config's.
            also: 0-d tensors to be summed in the same message as the losses, in place.
            upcoming: The `windows` of the next call, whose rows of host tables are fetched
                meanwhile (`training/optimizer/row_prefetch.py`); None fetches none.

        Returns:
            `loss` and, for models that have one, `auxiliary_loss`; `also`; the norms of the
            gradients before clipping (`Optimizer.clip`).
        """
        self.optimizer.set_learning_rate(lr, value_lr_ratio=value_lr_ratio)
        self.optimizer.begin(windows, upcoming)
        numbers = self.update(windows, also=also)
        self.optimizer.finish()
        self._taken[self.records] += 1
        return numbers

    def update(
        self,
        windows: Int64[Tensor, "sequences seq_len+1"],
        *,
        also: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """Take the step of `__call__`, between `Optimizer.begin` and `finish`.

        Where no kernel of it waits for the host, `cuda_graph.py` captures it.
        """
        numbers = self._gradients_of(windows, also)
        self.phases.begin(OPTIMIZER)
        norms = self.optimizer.clip()
        self.optimizer.update()
        self.phases.begin(None)
        return {**numbers, **norms}

    def _gradients_of(
        self, windows: Tensor, also: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        """Run the forward and backward passes; return losses and `also`, summed over the ranks."""
        with self.mesh.equal_bags(self.equal_shares):
            losses = accumulate_gradients(
                self.model,
                windows,
                batch_tokens=self._batch_tokens,
                passes=self.passes,
                autocast=self._autocast,
                between=self.optimizer.reduce_lookups,
                before_last=self._gradients.start,
                loss=self._loss,
                begin_phase=self.phases.begin,
            )
        self.phases.begin(COMMUNICATION)
        self._gradients.send_rest()
        self.optimizer.gather()
        # The sums of tables need no other gradient, so they are made while the last ones travel.
        self.phases.begin(OPTIMIZER)
        self.optimizer.sum_lookups()
        self.phases.begin(COMMUNICATION)
        summed = {**losses, **(also or {})}
        self._gradients.finish(also=[*summed.values()])
        return summed


def accumulate_gradients(
    model: nn.Module,
    windows: Int64[Tensor, "sequences seq_len+1"],
    *,
    batch_tokens: int,
    passes: int,
    autocast: Autocast,
    between: Callable[[], None] = lambda: None,
    before_last: Callable[[], None] = lambda: None,
    loss: SummedLoss | None = None,
    begin_phase: Callable[[str], None] = lambda _: None,
) -> dict[str, Float[Tensor, ""]]:
    """Add the gradient of this rank's part of the loss to the parameters; return that part.

    The loss is the mean over the global batch. The parts of all micro-batches and ranks therefore
    add up to it, whatever their sizes. `auxiliary_loss` is what the layers of a model add: a mean
    over the tokens of each micro-batch, hence over those of the global batch.

    Args:
        model: Called once per micro-batch.
        windows: Inputs and, one position later, targets.
        batch_tokens: Targets of the global batch.
        passes: Forward passes, of micro-batches as even as can be.
        autocast: Precision of the forward passes.
        between: Called after every micro-batch but the last.
        before_last: Called before the backward pass after which no gradient is added.
        loss: Of a micro-batch, summed over its targets; None is `plain_loss`.
        begin_phase: Called with `forward` and `backward` before each pass, and with `optimizer`
            before `between`.
    """
    parts = windows.tensor_split(passes)
    totals = {"loss": torch.zeros((), device=windows.device)}
    for number, part in enumerate(parts, start=1):
        inputs, targets = part[:, :-1], part[:, 1:]
        begin_phase(FORWARD)
        with autocast():
            nll = (loss or plain_loss)(model, inputs, targets)
        losses = {"loss": nll / batch_tokens}
        if hasattr(model, "auxiliary_loss"):
            auxiliary: Tensor | None = model.auxiliary_loss()  # type: ignore[operator]
            if auxiliary is not None:
                losses["auxiliary_loss"] = auxiliary * (targets.numel() / batch_tokens)
        begin_phase(BACKWARD)
        if number == len(parts):
            before_last()
        torch.autograd.backward(tuple(losses.values()))
        for name, term in losses.items():
            totals[name] = totals.get(name, torch.zeros_like(term)) + term.detach()
        if number < len(parts):
            begin_phase(OPTIMIZER)
            between()
    return totals


def plain_loss(
    model: nn.Module, tokens: Int64[Tensor, "batch seq"], targets: Int64[Tensor, "batch seq"]
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy of a model's logits, nats."""
    logits = model(tokens)
    # Autocast leaves fp32 logits alone, so whether it is on does not matter here.
    return summed_cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def rows_per_pass(
    config: TrainConfig,
    *,
    micro_batch_tokens: int | None,
    vocab_size: int,
    here: torch.device,
) -> int:
    """Return sequences per forward pass.

    Raises:
        ValueError: If a micro-batch is smaller than one sequence.
    """
    if micro_batch_tokens is None:
        if here.type == "cpu":
            return max(1, MAX_CPU_LOGITS // (config.seq_len * vocab_size))
        return config.sequences_per_step
    if micro_batch_tokens < config.seq_len:
        raise ValueError(
            f"micro_batch_tokens must be at least one sequence ({config.seq_len}), "
            f"got {micro_batch_tokens}"
        )
    return micro_batch_tokens // config.seq_len


def even_passes(sequences: int, *, world: RankGroup, rows: int) -> int:
    """Return the forward passes of a step, the same number on every rank, of `rows` at most.

    The numbers must agree because a layer may sum over the ranks in each pass (`QueryBatchNorm`).
    Where one sequence per pass does not divide evenly, the ranks with one more pass two at once.
    """
    fewest, most = sequences // world.size, -(-sequences // world.size)
    return min(-(-most // rows), fewest)
