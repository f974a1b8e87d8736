"""One optimizer step captured as a CUDA graph: no kernel launch waits for Python.

A small model's step is a thousand kernels of a few microseconds. Launched one by one they take
several times as long as they run; replayed as one graph they follow one another on the GPU.

A graph fixes the addresses of all tensors, so what changes from step to step is copied into fixed
tensors first: the batch, and the learning rates and rules of tables
(`Optimizer.set_learning_rate`). Random draws of the model follow the seed that is set before the
replay, as they do without a graph.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn

from workloads.kernels.expert_mlp import op as expert_mlp
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.moe import Experts
from workloads.training.step.phase_timer import Bound
from workloads.training.step.train_step import TrainStep


class _Kind(NamedTuple):
    """What distinguishes the graphs of a step."""

    records: bool
    """Whether it records how memories and experts are used."""
    timed: bool
    """Whether it times its phases."""


def capture_if_possible(step: TrainStep, *, bf16: bool) -> "TrainStep | CapturedStep":
    """Return a step on a GPU that is captured, or the step itself where it cannot be.

    A step cannot that waits for the host: for the rows of tables in its memory, for the number of
    rows whose lookups are summed between micro-batches (`SparseGradient.reduce`), for the loads of
    experts where these run one after another (`kernels/grouped_mm.py`), or for what other ranks
    say there (`ranks_wait_for_host`).
    """
    if step.optimizer.tables is not None and step.passes > 1:
        return step
    if waits_for_host(step.model, bf16=bf16) or ranks_wait_for_host(step):
        return step
    return CapturedStep(step)


def ranks_wait_for_host(step: TrainStep) -> bool:
    """Whether the messages of a step's ranks need the host; one rank sends none.

    A graph holds messages of NCCL whose lengths are known before. Ranks that hold the same table or
    part, and update it from the reads of all, and ranks with unequal shares of the batch tell each
    other lengths.
    """
    mesh, model = step.mesh, step.model
    if mesh.world.size == 1:
        return False
    if dist.get_backend() != "nccl" or not step.equal_shares:
        return True
    shards = [module.shard for module in model.modules() if isinstance(module, MemoryTable)]
    return step.optimizer.tables is not None and (None in shards or mesh.data.size > 1)


def waits_for_host(model: nn.Module, *, bf16: bool) -> bool:
    """Whether a pass waits for the host to find rows or loads (see `capture_if_possible`)."""
    dtype = torch.bfloat16 if bf16 else torch.float32
    for module in model.modules():
        if isinstance(module, MemoryTable) and module.on_host and not module.prefetched:
            return True
        if isinstance(module, Experts):
            weights = module.gate.new_empty(0, dtype=dtype)
            if not expert_mlp.is_fused(weights):
                return True
    return False


class CapturedStep:
    """Takes the steps of a `TrainStep` by replaying CUDA graphs of them.

    The first `WARM_UP_STEPS` steps of each kind run as they are; the next is captured, which runs
    nothing, and replayed. Steps that record usage are of another kind than steps that do not, and
    so are steps whose phases are timed, whose graphs have events between the kernels: at most four
    graphs. They share their memory, since they never run at once. What they hold no other step can
    use, so where a step that runs as it is might not fit beside them, they are dropped before it,
    and captured again.

    Each rank of several captures its own graphs, in the same steps, so that all replay the same
    messages. A graph of several ranks must be dropped before they part (`drop_graphs`).
    """

    def __init__(self, step: TrainStep) -> None:
        """Take over the steps of `step`; nobody else may call it."""
        self._step = step
        self.model, self.optimizer = step.model, step.optimizer
        self.phases = step.phases
        self._graphs: dict[_Kind, torch.cuda.CUDAGraph] = {}
        self._outputs: dict[_Kind, dict[str, Tensor]] = {}
        self._bounds: dict[_Kind, tuple[Bound, ...]] = {}
        self._windows: Tensor | None = None
        self._also: dict[str, Tensor] = {}
        """What is summed over the ranks with the losses; one rank sums nothing."""
        self._pool = torch.cuda.graph_pool_handle()
        self._pool_bytes = 0

    def __call__(
        self,
        windows: Int64[Tensor, "sequences seq_len+1"],
        *,
        lr: float,
        value_lr_ratio: float | None = None,
        also: Mapping[str, Tensor] | None = None,
        upcoming: Int64[Tensor, "sequences seq_len+1"] | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """Update the parameters once (arguments and result of `TrainStep.__call__`)."""
        if not self._step.is_warm:
            self._make_room()
            self.phases.wanted = False  # these steps are not taken as the others are
            return self._step(
                windows, lr=lr, value_lr_ratio=value_lr_ratio, also=also, upcoming=upcoming
            )
        if self._windows is None:
            self._windows = torch.empty_like(windows)
        self._windows.copy_(windows, non_blocking=True)
        if self._step.mesh.world.size > 1:
            given = (also or {}).keys()
            assert not self._also or self._also.keys() == given, "summed in every step or in none"
            for name, value in (also or {}).items():
                self._also.setdefault(name, torch.empty_like(value)).copy_(value)
        self.optimizer.set_learning_rate(lr, value_lr_ratio=value_lr_ratio)
        self.optimizer.begin(windows, upcoming)
        kind = self._next_kind()
        if kind not in self._graphs:
            self._capture(kind)
        self._graphs[kind].replay()
        self.phases.extend(self._bounds[kind])
        # The next replay overwrites the outputs, and nobody may have read them by then.
        values = torch.stack([*self._outputs[kind].values()])
        numbers = dict(zip(self._outputs[kind], values.unbind(), strict=True))
        self.optimizer.finish()
        return {**(also or {}), **numbers}

    @property
    def is_warm(self) -> bool:
        """Whether the next step takes as long as all later ones of its kind: it has its graph."""
        return self._next_kind() in self._graphs

    def _next_kind(self) -> _Kind:
        return _Kind(records=self._step.records, timed=self.phases.wanted)

    def drop_graphs(self) -> None:
        """Forget all graphs; steps are captured again.

        NCCL ends a group of ranks only when no graph holds messages of it.
        """
        for of_graphs in (self._graphs, self._outputs, self._bounds):
            of_graphs.clear()
        self._pool, self._pool_bytes = torch.cuda.graph_pool_handle(), 0

    def _make_room(self) -> None:
        """Drop the graphs if as much memory as theirs is not left for a step without one."""
        if not self._graphs:
            return
        _, total = torch.cuda.mem_get_info()
        allowed = torch.cuda.get_per_process_memory_fraction() * total
        full = torch.cuda.memory_reserved() + self._pool_bytes > allowed
        # If one rank does, all do: NCCL wants a graph's messages captured on every rank.
        if not any(self._step.mesh.world.all_gather_objects(full)):
            return
        self.drop_graphs()
        torch.cuda.empty_cache()

    def _capture(self, kind: _Kind) -> None:
        assert self._windows is not None
        torch.cuda.empty_cache()  # as `graph` does first; what is added from here on is the pool's
        before = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        failures: list[Exception] = []
        try:
            # Capturing in "thread_local" mode lets other threads of this process, which train
            # other models or copy batches, go on with calls that a capture forbids.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
            ):
                try:
                    self._outputs[kind] = self._step.update(self._windows, also=self._also)
                except Exception as error:
                    failures.append(error)
        except Exception as error:  # ending a capture that failed fails too, by another name
            failures.append(error)
        if failures:
            graph.reset()  # the error's frames hold it, and with it NCCL's group of ranks
            raise failures[0]
        self._pool_bytes += torch.cuda.memory_reserved() - before
        self._bounds[kind] = self.phases.take()
        self._graphs[kind] = graph
