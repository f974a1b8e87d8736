"""AdamW in three groups: memory values, matrices, those without weight decay.

Memory values may have an optimizer of their own instead (`table_optimizer.py`).
"""

from typing import Any

import torch
from torch import Tensor, nn

from workloads.distributed.local_part import LocalParameters
from workloads.distributed.mesh import Mesh, all_reduce_copy
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.param_groups import param_groups
from workloads.sharding.table_shard import table_shards
from workloads.training.config import TrainConfig
from workloads.training.optimizer.table_optimizer import TableOptimizer

VALUES, MATRICES, UNDECAYED = "values", "matrices", "undecayed"


class Optimizer:
    """AdamW over a model's parameters, with the groups' learning rates and separate clipping.

    Memory values get `value_lr_ratio` times the learning rate and a weight decay of their own
    (Berges et al. 2024, section 3.3, train them several times faster than the rest). A table read
    by few tokens has a gradient whose norm says nothing about the rest of the model, so each side
    is clipped by its own norm.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        mesh: Mesh | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """Group the parameters by what their modules declare (`param_groups`).

        Of sharded parameters and tables, this rank's optimizer has its own shard only.

        Args:
            model: Whose parameters.
            config: Learning rates, decay, clipping.
            mesh: The ranks that shard tables or dense parameters; None is one rank alone.
            seed: Of the stochastic rounding of tables stored in bf16.

        Raises:
            ValueError: If `table_optimizer` is not adamw and a memory value is no row of a
                `MemoryTable`; if it is adamw and a table lies in host memory.
        """
        self._mesh = mesh or Mesh()
        groups = group_parameters(model)
        self.tables = _table_optimizer(model, groups[VALUES], config, self._mesh, seed=seed)
        if self.tables is not None:
            groups[VALUES] = []
        name_of = {parameter: name for name, parameter in model.named_parameters()}
        self.names = [name_of[p] for parameters in groups.values() for p in parameters]
        """Of the parameters, in the order in which the optimizer's state numbers them."""
        self._dense = LocalParameters(p for parameters in groups.values() for p in parameters)
        groups = {name: [*map(self._dense.of, kept)] for name, kept in groups.items()}
        self._parts = {p for name, p in model.named_parameters() if name in table_shards(model)}
        decay = {
            VALUES: config.value_weight_decay,
            MATRICES: config.weight_decay,
            UNDECAYED: 0.0,
        }
        self._values = groups[VALUES]
        self._rest = groups[MATRICES] + groups[UNDECAYED]
        self._clip = config.grad_clip
        self._together = config.clip_values == "together"
        self._ratio = {VALUES: config.value_lr_ratio, MATRICES: 1.0, UNDECAYED: 1.0}
        # One fused kernel per group is elementwise, hence as deterministic as the plain loop, and
        # several times faster for models of many small tensors.
        self.adamw = torch.optim.AdamW(
            [
                {"params": parameters, "weight_decay": decay[name], "name": name}
                for name, parameters in groups.items()
                if parameters
            ],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )
        trained = [p for group in self.adamw.param_groups for p in group["params"]]
        self._lr_on_device = all(p.is_cuda for p in trained)
        self._place_learning_rates()

    @property
    def deferred(self) -> set[nn.Parameter]:
        """Parameters that never get a gradient: their reads are kept instead."""
        return set() if self.tables is None else self.tables.parameters

    def clip(self) -> dict[str, Tensor]:
        """Clip gradients by their norm to `grad_clip`.

        Memory values and the rest separately, unless `clip_values` says together.

        Returns:
            The Euclidean norms before clipping, 0-d: `grad_norm` over all but the memory values
            and, for a model that has any, `value_grad_norm` over those, which `table_clip:
            previous` takes from the step before.
        """
        self._dense.take()
        norms = {"grad_norm": self._norm(self._rest)}
        if self._values:
            norms["value_grad_norm"] = self._norm(self._values)
        if self._together:
            of_all = torch.stack([norm.to(self._rest[0].device) for norm in norms.values()]).norm()
            self._scale([*self._rest, *self._values], of_all)
            return norms
        self._scale(self._rest, norms["grad_norm"])
        if self._values:
            self._scale(self._values, norms["value_grad_norm"])
        if self.tables is not None:
            norms["value_grad_norm"] = self.tables.clip()
        return norms

    def begin(self, windows: Tensor, upcoming: Tensor | None) -> None:
        """Bring the rows of host tables that a step reads (`RowPrefetch.begin`)."""
        if self.tables is not None:
            self.tables.prefetch.begin(windows, upcoming)

    def settle(self) -> None:
        """Let what is queued from now on see all tables updated (`RowPrefetch.settle`)."""
        if self.tables is not None:
            self.tables.prefetch.settle()

    def reduce_lookups(self) -> None:
        """Sum the lookups of tables between micro-batches (`TableOptimizer.reduce`)."""
        if self.tables is not None:
            self.tables.reduce()

    def gather(self) -> None:
        """Gather the table reads of all ranks, of which deferred gradients are made."""
        if self.tables is not None:
            self.tables.gather()

    def sum_lookups(self) -> None:
        """Sum what `gather` found, by row (`TableOptimizer.sum_lookups`)."""
        if self.tables is not None:
            self.tables.sum_lookups()

    def _norm(self, parameters: list[nn.Parameter]) -> Tensor:
        """Return the norm of the gradients of whole and sharded parameters."""
        whole = [p for p in parameters if p not in self._parts and p not in self._dense.all]
        norm = _norm(whole)
        for world, held in (
            (self._mesh.memory, [p for p in parameters if p in self._parts]),
            (self._mesh.world, [p for p in parameters if p in self._dense.all]),
        ):
            if held:
                # The norm of a sharded gradient is that of all shards; each rank finds the same.
                of_parts = _norm(held).to(held[0].device)
                squares = of_parts.to(torch.promote_types(of_parts.dtype, torch.float32)).square()
                norm = (norm.square() + all_reduce_copy(world, squares)).sqrt()
        return norm

    def _scale(self, parameters: list[nn.Parameter], norm: Tensor) -> None:
        """Clip the gradients, whose norm is given."""
        largest = self._clip
        # On a CPU the norm is at hand, and a pass over a large table is worth skipping; on a GPU
        # reading it would make the step wait.
        if largest is not None and not (norm.device.type == "cpu" and norm.item() <= largest):
            nn.utils.clip_grads_with_norm_(parameters, largest, norm)

    def step(self, lr: float, *, value_lr_ratio: float | None = None) -> None:
        """Update the parameters with learning rate `lr` and drop the gradients.

        Args:
            lr: Of this step; memory values have their ratio times as much.
            value_lr_ratio: Of this step, where it changes (`lr_schedule.value_lr_ratio`); None is
                the config's.
        """
        self.set_learning_rate(lr, value_lr_ratio=value_lr_ratio)
        self.update()
        self.finish()

    def set_learning_rate(self, lr: float, *, value_lr_ratio: float | None = None) -> None:
        """Set the learning rate of the next `update` (arguments of `step`)."""
        ratio = self._ratio
        if value_lr_ratio is not None:
            ratio = {**ratio, VALUES: value_lr_ratio}
        for group in self.adamw.param_groups:
            rate = lr * ratio[group["name"]]
            if self._lr_on_device:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.tables is not None:
            self.tables.set_learning_rate(lr * ratio[VALUES])

    def update(self) -> None:
        """Update the parameters and drop the gradients."""
        self._dense.take()
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self._dense.drop_gradients()
        if self.tables is not None:
            self.tables.update()

    def finish(self) -> None:
        """End a step whose `update` ran, or was replayed (`TableOptimizer.finish`)."""
        if self.tables is not None:
            self.tables.finish()

    def reset(self) -> None:
        """Clear AdamW's state, in place: a captured step knows its addresses."""
        for state in self.adamw.state.values():
            for value in state.values():
                value.zero_()
        self.adamw.zero_grad(set_to_none=True)

    def load_adamw(self, saved: dict[str, Any]) -> None:
        """Go on from `adamw.state_dict()`, which may be of another kind of device."""
        self.adamw.load_state_dict(saved)
        self._place_learning_rates()

    def _place_learning_rates(self) -> None:
        """Keep learning rates on the GPU, for captured steps (`training/step/cuda_graph.py`)."""
        for group in self.adamw.param_groups:
            group["capturable"] = self._lr_on_device
            if self._lr_on_device:
                group["lr"] = torch.zeros((), device=group["params"][0].device)


def _table_optimizer(
    model: nn.Module,
    values: list[nn.Parameter],
    config: TrainConfig,
    mesh: Mesh,
    *,
    seed: int,
) -> TableOptimizer | None:
    """Return the optimizer of memory values, None where AdamW is theirs too."""
    if config.table_optimizer == "adamw":
        if any(
            isinstance(module, MemoryTable) and module.on_host and module.weight.requires_grad
            for module in model.modules()
        ):
            raise ValueError(
                "table_optimizer: adamw needs a gradient as large as the table beside it, which "
                "memory_tables: host is there to avoid; use lazy_adamw, rowwise or sgd, or "
                "memory_tables: device"
            )
        return None
    if not values:
        return None
    tables = TableOptimizer(model, config, mesh, seed=seed)
    if {*values} != tables.parameters:
        raise ValueError(
            f"table_optimizer: {config.table_optimizer} updates the rows of memory tables only, "
            "and this model has other memory values; use adamw"
        )
    return tables


def group_parameters(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return trainable parameters by group: values, matrices, undecayed; each is in exactly one.

    Undecayed are embeddings, norms and whatever has fewer than two dimensions.
    """
    counted_under = param_groups(model)
    groups: dict[str, list[nn.Parameter]] = {VALUES: [], MATRICES: [], UNDECAYED: []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if counted_under[name] == "memory_values":
            groups[VALUES].append(parameter)
        elif counted_under[name] in ("embedding", "norm") or parameter.ndim < 2:
            groups[UNDECAYED].append(parameter)
        else:
            groups[MATRICES].append(parameter)
    return groups


def _norm(parameters: list[nn.Parameter]) -> Tensor:
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
