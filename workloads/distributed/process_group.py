"""Process group of a trial's ranks: rendezvous, deterministic collectives.

Every rank takes its slice of each global batch, and gradients are summed over the ranks. It holds
the whole model, except for sharded memory tables and sharded dense parameters
(`workloads/sharding`). What is summed, and in which order, depends on the number of ranks alone, so
a repeated run repeats its bits.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore  # where torch.distributed takes it from

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longer than rank 0 needs to write a checkpoint while the others wait."""
_CONNECT_S = 10.0
"""One try to reach rank 0: an old attempt may have left an address where nobody answers."""
_ALONE_ELEMENTS = 2**20
"""Tensors from this size on are summed by themselves; smaller ones are joined into one message."""


class CommunicationError(Exception):
    """The ranks of a trial could not find, or lost, each other."""


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """One rank's view of a group of ranks. In a group of one every method is free."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    """Of torch.distributed; None is the group of all ranks."""

    @property
    def is_main(self) -> bool:
        """Whether this rank reports metrics and writes checkpoints."""
        return self.rank == 0

    def local_range(self, n: int) -> range:
        """Return this rank's contiguous part of 0..n-1; sizes differ by one at most."""
        return range(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its sum over the ranks. Same dtype and order on every rank."""
        if self.size == 1:
            return
        with communication_errors("sum"):
            for tensor in tensors:
                if tensor.numel() >= _ALONE_ELEMENTS:
                    dist.all_reduce(tensor, group=self.group)
            small = [tensor for tensor in tensors if tensor.numel() < _ALONE_ELEMENTS]
            if small:
                flat = torch.cat([tensor.flatten() for tensor in small])
                dist.all_reduce(flat, group=self.group)
                start = 0
                for tensor in small:
                    tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
                    start += tensor.numel()

    def all_reduce_any(self, tensors: Sequence[Tensor]) -> None:
        """Set every element of boolean tensors that is set on some rank.

        Same shapes and order on every rank.
        """
        if self.size == 1:
            return
        with communication_errors("union"):
            for tensor in tensors:
                dist.all_reduce(tensor.view(torch.uint8), op=dist.ReduceOp.MAX, group=self.group)

    def all_gather_rows(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return every tensor concatenated over the ranks along the first dimension.

        All tensors of a rank have the same length, which may differ between ranks; other dimensions
        and types agree. The host waits for the lengths.
        """
        if self.size == 1:
            return list(tensors)
        with communication_errors("gather"):
            lengths: list[int] = [0] * self.size
            dist.all_gather_object(lengths, len(tensors[0]), group=self.group)
            return [_gather(tensor.contiguous(), lengths, self.group) for tensor in tensors]

    def broadcast(self, value: str | None) -> str | None:
        """Return rank 0's value on every rank."""
        if self.size == 1:
            return value
        box = [value]
        with communication_errors("broadcast"):
            dist.broadcast_object_list(box, group=self.group, group_src=0)
        return box[0]

    def all_gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, on every rank. Plain values only."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        with communication_errors("gather"):
            dist.all_gather_object(box, value, group=self.group)
        return box

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        if self.size > 1:
            with communication_errors("barrier"):
                # NCCL waits on a GPU; unless told which, it warns that it guesses.
                on_gpu = dist.get_backend(self.group) == "nccl"
                here = [torch.cuda.current_device()] if on_gpu else None
                dist.barrier(group=self.group, device_ids=here)


def _gather(tensor: Tensor, lengths: list[int], group: dist.ProcessGroup | None) -> Tensor:
    # As bytes, because gloo does not know every type; padded, because it wants equal lengths.
    rows = tensor.new_zeros(max(lengths), *tensor.shape[1:])
    if not rows.numel():  # empty on every rank: a part without columns, or that nobody reads
        return tensor.new_zeros(sum(lengths), *tensor.shape[1:])
    rows[: len(tensor)] = tensor
    flat = rows.flatten().view(torch.uint8)
    found = flat.new_empty(len(lengths), len(flat))
    dist.all_gather(list(found.unbind()), flat, group=group)
    parts = found.view(tensor.dtype).view(len(lengths), *rows.shape)
    return torch.cat([part[:n] for part, n in zip(parts, lengths, strict=True)])


def all_reduce_default_group(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all ranks, if this process belongs to a group.

    For layers that need a sum inside a pass. Every rank must call it as often, in the same order.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        with communication_errors("sum"):
            dist.all_reduce(tensor)


@contextmanager
def join(
    *,
    rank: int,
    size: int,
    device: torch.device,
    rendezvous: Path,
    address: str | None = None,
    timeout_s: float = 300.0,
) -> Iterator[RankGroup]:
    """Enter the process group of a trial's ranks; leave it at the end.

    Rank 0 listens on a free port and writes its address to `rendezvous`, a path on storage that all
    ranks share; the others wait for that file. It is removed once all ranks are there, so a later
    attempt may reuse the path. `address` is what rank 0 writes for ranks on other machines, which
    may not know this machine by its host name.

    Raises:
        CommunicationError: If they have not met after `timeout_s` seconds.
    """
    if size == 1:
        yield RankGroup()
        return
    if not 0 <= rank < size:
        raise ValueError(f"rank must lie in 0..{size - 1}, got {rank}")
    deadline = time.monotonic() + timeout_s
    if rank == 0:
        store = _listen(rendezvous, size=size, address=address, timeout_s=timeout_s)
    else:
        store = _find(rendezvous, rank=rank, size=size, own=address, deadline=deadline)
    with communication_errors("start"):
        places = _exchange_places(store, rank=rank, size=size, device=device, deadline=deadline)
        if len({place["host"] for place in places}) == 1:
            # gloo otherwise binds to the address of the host's name, which need not exist in a
            # container.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        # NCCL reads the store at its first collective, which rank 0 may reach much later.
        store.set_timeout(COLLECTIVE_TIMEOUT)
        gpus = {(place["host"], place["gpu"]) for place in places if place["gpu"]}
        dist.init_process_group(
            # NCCL wants a GPU for each rank; ranks that share one talk through gloo.
            backend="nccl" if len(gpus) == size else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=COLLECTIVE_TIMEOUT,
        )
    if rank == 0:
        rendezvous.unlink(missing_ok=True)
    try:
        yield RankGroup(rank=rank, size=size)
    finally:
        dist.destroy_process_group()


def _listen(rendezvous: Path, *, size: int, address: str | None, timeout_s: float) -> TCPStore:
    host = socket.gethostname()
    store = TCPStore(
        "localhost",
        0,
        size,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )
    aside = rendezvous.with_name(f".{rendezvous.name}-{os.getpid()}")
    rendezvous.parent.mkdir(exist_ok=True)
    aside.write_text(json.dumps({"host": host, "address": address or host, "port": store.port}))
    aside.replace(rendezvous)
    return store


def _find(
    rendezvous: Path, *, rank: int, size: int, deadline: float, own: str | None = None
) -> TCPStore:
    """Return a connection to rank 0's store.

    The file is read again at each try: an old attempt may have left one.
    """
    problem = "the file never appeared"
    while time.monotonic() < deadline:
        try:
            address = json.loads(rendezvous.read_text())
            here = address["host"] == socket.gethostname() and (
                own is None or own == address["address"]
            )
            return TCPStore(
                "localhost" if here else address["address"],
                address["port"],
                size,
                is_master=False,
                timeout=timedelta(seconds=min(_CONNECT_S, max(0.2, deadline - time.monotonic()))),
                wait_for_workers=False,
            )
        except FileNotFoundError:
            time.sleep(0.02)
        except RuntimeError as error:
            problem = f"{address['host']}:{address['port']} did not answer ({_first_line(error)})"
    raise CommunicationError(
        f"rank {rank} of {size}: could not reach rank 0 through {rendezvous}: {problem}; "
        "see whether rank 0 started, and whether this path is on storage that both share"
    )


def _exchange_places(
    store: TCPStore, *, rank: int, size: int, device: torch.device, deadline: float
) -> list[dict[str, str]]:
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    place = json.dumps({"host": socket.gethostname(), "gpu": gpu})
    places = _exchange(store, "place", place, rank=rank, size=size, deadline=deadline)
    # A rank may have given up before the last one came. Without this, the others would wait for it
    # as long as a collective may take.
    _exchange(store, "met", "", rank=rank, size=size, deadline=deadline)
    return [json.loads(place) for place in places]


def _exchange(
    store: TCPStore, what: str, value: str, *, rank: int, size: int, deadline: float
) -> list[bytes]:
    """Return the values of all ranks, by rank."""
    store.set(f"{what}/{rank}", value)
    values = []
    for other in range(size):
        store.set_timeout(timedelta(seconds=max(0.01, deadline - time.monotonic())))
        try:
            values.append(store.get(f"{what}/{other}"))
        except dist.DistStoreError as error:
            raise CommunicationError(
                f"rank {rank} of {size}: rank {other} did not come in time; see whether it "
                "started, and whether it reaches rank 0's machine"
            ) from error
    return values


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return "lo" if "lo" in names else "lo0"


@contextmanager
def communication_errors(what: str) -> Iterator[None]:
    """Turn torch's network errors, some of them plain RuntimeErrors, into CommunicationError."""
    try:
        yield
    except RuntimeError as error:
        raise CommunicationError(f"{what} between ranks failed: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
