"""Asynchronous collectives and packed messages of torch.distributed.

A collective starts at once and returns a `Pending`; call it where the content is needed. On a GPU,
messages travel on NCCL's own stream, and the call makes the current stream wait, not the host.

Tensors are sent bit for bit. Several are packed into one message, because a message takes a tenth
of a millisecond before its first byte.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from jaxtyping import Int64, Shaped
from torch import Tensor

from workloads.distributed.process_group import RankGroup, communication_errors

Pending: TypeAlias = Callable[[], Tensor]
"""Waits for a message; returns what arrived, ready for use on the current stream."""
_WORD_BYTES = 8
# torch 2.13 has another name for it, and warns of this one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_gather(world: RankGroup, x: Shaped[Tensor, " n"]) -> Pending:
    """Send `x`, equally long on every rank, to all ranks; [ranks, n] arrives."""
    x = x.contiguous()  # NCCL refuses what is not; gloo takes it
    result = x.new_empty(world.size, len(x))
    if not len(x):
        return lambda: result
    with communication_errors("gather"):
        work = _all_gather(result.view(-1), x, group=world.group, async_op=True)
    return _pending(work, x, result)


def all_to_all(
    world: RankGroup, x: Shaped[Tensor, " n"], *, sent: Sequence[int], received: Sequence[int]
) -> Pending:
    """Send the first `sent[0]` numbers of `x` to rank 0, the next `sent[1]` to rank 1, and so on.

    What the ranks sent here arrives in their order, `received[i]` numbers of rank i.
    """
    x = x.contiguous()
    result = x.new_empty(sum(received))
    with communication_errors("exchange"):
        work = dist.all_to_all_single(
            result, x, list(received), list(sent), group=world.group, async_op=True
        )
    return _pending(work, x, result)


def _pending(work: dist.Work, sent: Tensor, result: Tensor) -> Pending:
    def wait() -> Tensor:
        with communication_errors("message"):
            work.wait()
        # Held until here: nobody may write over what is being sent.
        del held[:]
        return result

    held = [sent]
    return wait


TensorSpec: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a tensor in a packed message."""


def packed_words(specs: Sequence[TensorSpec]) -> int:
    """Return the length of a packed message. Each tensor begins at a word of 8 bytes."""
    return sum(_words(spec) for spec in specs)


def pack(
    tensors: Sequence[Tensor], specs: Sequence[TensorSpec], into: Int64[Tensor, " words"]
) -> None:
    """Write tensors into a message, one after another, each in the type of its spec."""
    regions = torch.split(into, [_words(spec) for spec in specs])
    for tensor, region, spec in zip(tensors, regions, specs, strict=True):
        _viewed(region, spec).copy_(tensor)


def unpack(message: Int64[Tensor, " words"], specs: Sequence[TensorSpec]) -> list[Tensor]:
    """Return the tensors of a message as views of it."""
    regions = torch.split(message, [_words(spec) for spec in specs])
    return [_viewed(*each) for each in zip(regions, specs, strict=True)]


def _words(spec: TensorSpec) -> int:
    shape, dtype = spec
    return -(-torch.Size(shape).numel() * dtype.itemsize // _WORD_BYTES)


def _viewed(region: Tensor, spec: TensorSpec) -> Tensor:
    shape, dtype = spec
    return region.view(dtype)[: torch.Size(shape).numel()].view(shape)
