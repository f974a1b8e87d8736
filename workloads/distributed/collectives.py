"""What ranks send each other, on its way while other work goes on.

Both messages start at once and return an `Arrival`: call it where the content is needed. On a GPU the messages travel on
NCCL's own stream, and an arrival makes the current stream wait, not the host.

Content travels bit for bit in the type it has, several tensors in one message: a message costs a tenth of a millisecond
before its first byte.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from jaxtyping import Int64, Shaped
from torch import Tensor

from workloads.distributed.process_group import RankGroup, communication_errors

Arrival: TypeAlias = Callable[[], Tensor]
"""Returns what was sent, once it may be used on the current stream."""
_WORD_BYTES = 8
# torch 2.13 has another name for it, and warns of this one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def gather(world: RankGroup, x: Shaped[Tensor, " n"]) -> Arrival:
    """Send `x`, as long on every rank, to all; [ranks, n] arrives."""
    x = x.contiguous()  # NCCL refuses what is not; gloo takes it
    everybodys = x.new_empty(world.size, len(x))
    if not len(x):
        return lambda: everybodys
    with communication_errors("gather"):
        work = _all_gather(everybodys.view(-1), x, group=world.group, async_op=True)
    return _arrival(work, x, everybodys)


def exchange(
    world: RankGroup, x: Shaped[Tensor, " n"], *, sent: Sequence[int], received: Sequence[int]
) -> Arrival:
    """Send the first `sent[0]` numbers of `x` to rank 0, the next to rank 1; arrives what others sent, in their order."""
    x = x.contiguous()
    result = x.new_empty(sum(received))
    with communication_errors("exchange"):
        work = dist.all_to_all_single(
            result, x, list(received), list(sent), group=world.group, async_op=True
        )
    return _arrival(work, x, result)


def _arrival(work: dist.Work, sent: Tensor, result: Tensor) -> Arrival:
    def arrive() -> Tensor:
        with communication_errors("message"):
            work.wait()
        # Kept until here: what is on its way must not be written over.
        del holds[:]
        return result

    holds = [sent]
    return arrive


Content: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a tensor in a parcel."""


def words(contents: Sequence[Content]) -> int:
    """Return how many words a parcel has. Each tensor begins with a word of its own."""
    return sum(_words(content) for content in contents)


def pack(
    tensors: Sequence[Tensor], contents: Sequence[Content], into: Int64[Tensor, " words"]
) -> None:
    """Write tensors into a parcel, one after another, each in the type that `contents` has for it."""
    regions = torch.split(into, [_words(content) for content in contents])
    for tensor, region, (shape, dtype) in zip(tensors, regions, contents, strict=True):
        _part(region, shape, dtype).copy_(tensor)


def unpack(parcel: Int64[Tensor, " words"], contents: Sequence[Content]) -> list[Tensor]:
    """Return the tensors of a parcel, which they remain parts of."""
    regions = torch.split(parcel, [_words(content) for content in contents])
    return [
        _part(region, shape, dtype)
        for region, (shape, dtype) in zip(regions, contents, strict=True)
    ]


def _words(content: Content) -> int:
    shape, dtype = content
    return -(-torch.Size(shape).numel() * dtype.itemsize // _WORD_BYTES)


def _part(region: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return region.view(dtype)[: torch.Size(shape).numel()].view(shape)
