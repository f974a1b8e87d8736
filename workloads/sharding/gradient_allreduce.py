"""Gradient all-reduce in buckets, overlapped with the backward pass.

Parameters are joined into buckets, because a message costs a round trip whatever its size. A
bucket's message starts as soon as the step's last backward pass has added to each of its gradients,
which are summed where they lie. Messages must start in one order on every rank: in the first step
that is the reverse of the parameters' order, from then on the order in which rank 0 found the
buckets complete. What a bucket holds never changes, so neither do the bits of its sums.

Gradients travel and are summed in the type of their parameter, fp32 unless a model says otherwise.

The method is that of Li et al. 2020, "PyTorch Distributed", section 3.2.
`torch.nn.parallel.DistributedDataParallel` deals its buckets anew after the first step, so a
resumed run of three or more ranks would add in another order than the undisturbed one.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads.distributed.local_part import is_sharded
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup, communication_errors
from workloads.sharding.table_shard import table_shards

BUCKET_BYTES = 25 * 2**20
"""What DistributedDataParallel takes, too: long enough for a link's full speed, short enough to
start early."""


@dataclass(eq=False)
class _Bucket:
    """Parameters whose gradients are summed in one message."""

    world: RankGroup
    parameters: list[nn.Parameter] = field(default_factory=list)
    missing: int = 0
    """Gradients that the step's last pass has not added to yet."""
    work: list[dist.Work] = field(default_factory=list)
    """The messages on their way."""

    def start(self) -> None:
        """Send the gradients there are off to be summed."""
        gradients = []
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.contiguous()  # NCCL refuses what is not
                gradients.append(parameter.grad)
        if not gradients:
            return
        group = self.world.group or dist.group.WORLD
        assert group is not None
        with communication_errors("sum"):
            if gradients[0].is_cuda and dist.get_backend(group) == "gloo":
                # Ranks that share a GPU: gloo sums its tensors, but only one by one.
                self.work = [group.allreduce([gradient]) for gradient in gradients]
            else:
                # One launch for all on a GPU; joining them first took the host longer than messages
                # of their own.
                self.work = [group.allreduce_coalesced(gradients)]

    def wait(self) -> None:
        """Return when the sums may be used on the current stream."""
        with communication_errors("sum"):
            for work in self.work:
                work.wait()
        self.work = []


class GradientAllReduce:
    """Sums a model's gradients in place over the ranks that hold the same parameter.

    In every step: `start` before the last backward pass, `send_rest` after it if there is something
    else to do, and `finish` where the sums are needed.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: Mesh,
        *,
        without: Collection[nn.Parameter] = (),
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """Deal out the parameters. One object per model; each hangs a hook on every parameter.

        Args:
            model: Whose gradients.
            mesh: The ranks. A part of a table that is shared out has the gradient of all tokens of
                its memory group already, so it is summed over the ranks that hold the same part.
            without: Parameters that never get a gradient: a bucket would wait for them until the
                pass ends. Left out are also those that FSDP shards (`sharding/fsdp.py`), whose
                gradients it sums itself.
            bucket_bytes: A bucket's size at most, but for larger gradients.
        """
        self._world = mesh.world
        parts = table_shards(model)
        over_data = [p for name, p in model.named_parameters() if name in parts]
        over_all = [p for name, p in model.named_parameters() if name not in parts]
        self._buckets = [
            bucket
            for world, parameters in ((mesh.world, over_all), (mesh.data, over_data))
            if world.size > 1
            for bucket in _deal(world, _summed(parameters, without), bucket_bytes)
        ]
        self._order = list(range(len(self._buckets)))
        self._agreed = False
        self._completed: list[int] = []
        """Buckets in the order in which this pass completed them."""
        self._next = 0
        """How many of `_order` have started."""
        self._passing = False
        self._sent = False
        if any(is_sharded(parameter) for parameter in over_all):
            # FSDP sends through the same group while the pass goes on. In one order on every rank
            # these messages and ours can only be sent if ours wait for its end: when one of ours
            # starts may differ between ranks.
            return
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket.parameters:
                register: Any = parameter.register_post_accumulate_grad_hook
                register(self._hook(number))

    def start(self) -> None:
        """From now on, until `send_rest`, every gradient that a backward pass adds to is final."""
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
        self._completed.clear()
        self._next = 0
        self._passing, self._sent = True, False

    def send_rest(self) -> None:
        """Start the messages that no hook has started."""
        if not self._passing:
            self.start()
        self._passing = False
        for number in self._order[self._next :]:
            self._buckets[number].start()
        self._sent = True

    def finish(self, also: Sequence[Tensor] = ()) -> None:
        """Return when all gradients are summed, and `also` in place over all ranks."""
        if not self._sent:
            self.send_rest()
        self._sent = False
        for bucket in self._buckets:
            bucket.wait()
        self._world.all_reduce_sum(also)
        if self._buckets and not self._agreed:
            left = [n for n in self._order if n not in self._completed]
            agreed = self._world.broadcast(json.dumps(self._completed + left))
            assert agreed is not None
            self._order, self._agreed = json.loads(agreed), True

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        bucket = self._buckets[number]

        def arrived(_: Tensor) -> None:
            if not self._passing:
                return
            bucket.missing -= 1
            if bucket.missing == 0:
                self._completed.append(number)
                self._start_what_is_complete()

        return arrived

    def _start_what_is_complete(self) -> None:
        while self._next < len(self._order):
            bucket = self._buckets[self._order[self._next]]
            if bucket.missing:
                return
            bucket.start()
            self._next += 1


def _summed(
    parameters: Iterable[nn.Parameter], without: Collection[nn.Parameter]
) -> list[nn.Parameter]:
    left_out = {id(parameter) for parameter in without}
    return [
        p for p in parameters if p.requires_grad and id(p) not in left_out and not is_sharded(p)
    ]


def _deal(world: RankGroup, parameters: list[nn.Parameter], bucket_bytes: int) -> list[_Bucket]:
    """Return buckets of one type and device each, last parameters first.

    The backward pass comes to those first.
    """
    buckets: list[_Bucket] = []
    open_: dict[tuple[torch.dtype, torch.device], tuple[_Bucket, int]] = {}
    for parameter in reversed(parameters):
        kind = parameter.dtype, parameter.device
        bucket, used = open_.get(kind, (None, 0))
        if bucket is None or used + parameter.nbytes > bucket_bytes:
            bucket, used = _Bucket(world), 0
            buckets.append(bucket)
        bucket.parameters.append(parameter)
        open_[kind] = bucket, used + parameter.nbytes
    return buckets
