"""Real ranks that save together, fail and die.

    python saved_together.py OUT.json FOLDER

Leaves checkpoints in FOLDER/whole for others to read, and in OUT.json what became of saves in which
a rank failed or was killed, and how DTensors came back.
"""

import contextlib
import errno
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from ranks_together import forked
from test_state_split import LAYOUTS, NAMES, SHAPES, seen_by, state_of
from torch import Tensor, nn

from workloads.checkpoint import checkpoint
from workloads.checkpoint.state_split import local_shards, merge_state, split_state
from workloads.distributed import process_group
from workloads.distributed.local_part import LocalParameters
from workloads.distributed.process_group import RankGroup
from workloads.training.checkpointing import load_weights, weights

N_ROWS, WIDTH = 100, 500
"""Of the table in saves that fail: larger than what a file keeps back before it writes."""


def imports_without_pieces(folder: Path) -> list[str]:
    """Return which slow modules a replicated state imported while it came and went."""
    before = set(sys.modules)
    state, pieces = split_state(state_of(4, 10), {}, NAMES)
    path = checkpoint.save(folder, 3, state, blocks=pieces)
    merge_state(checkpoint.load(path), checkpoint.sharded_tensors(path), {}, NAMES)
    slow = ("torch.distributed.checkpoint", "torch.distributed.tensor")
    return [name for name in slow if name in sys.modules.keys() - before]


def write_whole(folder: Path, rank: int, meeting: Path) -> dict[str, Any]:
    """Save tables of every shape, by every layout and number of ranks; of four, also two by two."""
    folder.mkdir(exist_ok=True)  # a checkpoint's trial has a folder already
    with joined(rank, 4, meeting) as world:
        worlds = {1: RankGroup(), 4: world}
        for size in (2, 3):
            group = dist.new_group(list(range(size)))
            worlds[size] = RankGroup(rank=rank, size=size, group=group)
        upper = dist.new_group([2, 3])
        for n_rows, width in SHAPES:
            state = state_of(n_rows, width)
            for layout in LAYOUTS:
                for size, own in worlds.items():
                    if rank < size:
                        _, shards, state_here = seen_by(state, layout, rank, size)
                        alike, pieces = split_state(state_here, shards, NAMES)
                        path = folder / f"{layout}-{size}-{n_rows}-{width}"
                        checkpoint.save(path, 3, alike, blocks=pieces, world=own)
                # Each two hold what the other two do; and where ranks 2 and 3 are all there are, 2
                # is the first.
                _, shards, state_here = seen_by(state, layout, rank % 2, 2)
                alike, pieces = split_state(state_here, shards, NAMES)
                path = folder / f"{layout}-2x2-{n_rows}-{width}"
                checkpoint.save(path, 3, alike, blocks=pieces, world=world)
                if rank >= 2:
                    path = folder / f"{layout}-upper-{n_rows}-{width}"
                    own = RankGroup(rank=rank - 2, size=2, group=upper)
                    checkpoint.save(path, 3, alike, blocks=pieces, world=own)
        # Two steps, for whoever tears the second.
        for step in (1, 2):
            if rank < 2:
                save(folder.parent / "steps", step, worlds[2])
    return {}


def save(folder: Path, step: int, world: RankGroup, *, last: bool = False) -> None:
    """Save a table that is full of `step`."""
    _, shards, own = seen_by(state_of(N_ROWS, WIDTH), "rows", world.rank, world.size)
    own["weights"]["table.weight"].fill_(step)
    alike, pieces = split_state({"step": step, "weights": own["weights"]}, shards, NAMES)
    if last:
        checkpoint.save_final(folder, alike, blocks=pieces, world=world)
    else:
        checkpoint.save(folder, step, alike, blocks=pieces, world=world)


def joined(rank: int, size: int, meeting: Path) -> contextlib.AbstractContextManager[RankGroup]:
    return process_group.join(
        rank=rank, size=size, device=torch.device("cpu"), rendezvous=meeting / "meet"
    )


def two(folder: Path, spoil: dict[int, Callable[[], Any]], *, last: bool = False) -> list[Any]:
    """Return how two ranks end that save step 3.

    None, or what they raised, or the signal that killed them.

    Args:
        folder: Of the checkpoints.
        spoil: By rank, what returns a context in which it saves.
        last: Whether it is the final checkpoint.
    """
    ends = folder.with_name(f"{folder.name}-ends")
    ends.mkdir()

    def rank(number: int) -> None:
        end: dict[str, Any] | None = None
        with joined(number, 2, ends) as world:
            try:
                world.barrier()  # else one may be gone before the other has found it
                with spoil.get(number, contextlib.nullcontext)():
                    save(folder, 3, world, last=last)
            except Exception as error:
                found = error
                end = {"kind": type(found).__name__, "says": str(found), "errno": code_of(found)}
            # Written before this rank leaves, so that nobody's end hangs on another's.
            (ends / str(number)).write_text(json.dumps(end))

    processes = [
        multiprocessing.get_context("fork").Process(target=rank, args=(n,)) for n in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    hung = [process.pid for process in processes if process.exitcode is None]
    for process in processes:
        process.kill()
    assert not hung, f"{hung} did not end"
    return [
        json.loads((ends / str(number)).read_text())
        if (ends / str(number)).exists()
        else {"signal": -(process.exitcode or 0)}
        for number, process in enumerate(processes)
    ]


def code_of(error: BaseException | None) -> str | None:
    """Return the name of the system error behind an error, as the orchestrator does."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return None if error is None else errno.errorcode.get(error.errno)


OPEN, FSYNC, MKDIR = Path.open, os.fsync, Path.mkdir


def full_disk(suffix: str) -> Any:
    """Return a context in which a real full device takes the files that end so."""

    def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if path.name.endswith(suffix) and "w" in mode:
            return OPEN(Path("/dev/full"), mode, *args, **kwargs)
        return OPEN(path, mode, *args, **kwargs)

    return mock.patch.object(Path, "open", opened)


class NoRoomForMuch(io.BufferedWriter):
    """Takes no tensor, but what is written after it: torch then makes another error of it."""

    def write(self, content: Any) -> int:
        if len(content) > 8192:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)


def no_room_for_tensors() -> Any:
    def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if path.name.endswith(".distcp") and "w" in mode:
            return NoRoomForMuch(io.FileIO(path, "w"))
        return OPEN(path, mode, *args, **kwargs)

    return mock.patch.object(Path, "open", opened)


@contextlib.contextmanager
def full_and_speechless() -> Any:
    """As in torch 2.11 on Python 3.13, where what failed cannot be sent to the other ranks."""
    sent = "torch.distributed.checkpoint.utils._wrap_exception"
    with full_disk(".distcp"), mock.patch(sent, lambda error: (error, lambda: None)):
        yield


def failing(owner: Any, name: str, code: int) -> Any:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return mock.patch.object(owner, name, fail)


FAILURES = {
    "full_block": (1, partial(full_disk, ".distcp"), "ENOSPC"),
    "full_first": (0, partial(full_disk, ".distcp"), "ENOSPC"),
    "full_for_a_moment": (1, no_room_for_tensors, "ENOSPC"),
    "full_and_speechless": (1, full_and_speechless, "ENOSPC"),
    "full_metadata": (0, partial(full_disk, ".tmp"), "ENOSPC"),
    "full_state": (0, partial(full_disk, ".pt"), "ENOSPC"),
    "stale_fsync": (1, partial(failing, os, "fsync", errno.ESTALE), "ESTALE"),
    "unread": (1, partial(failing, hashlib, "file_digest", errno.EIO), "EIO"),
    "unreadable": (1, partial(failing, Path, "stat", errno.EIO), "EIO"),
    "read_only": (0, partial(failing, Path, "mkdir", errno.EROFS), "EROFS"),
}
"""Which rank fails, how, and with what."""


def failures(folder: Path, before: Path) -> dict[str, Any]:
    """Return how both ranks ended, and what was in the folder then."""
    found = {}
    for name, (rank, spoil, code) in FAILURES.items():
        shutil.copytree(before, folder / name)
        ends = two(folder / name, {rank: spoil})
        left = sorted(path.name for path in (folder / name).iterdir())
        found[name] = {"failed": ends[rank], "other": ends[1 - rank], "code": code, "left": left}
    return found


@contextlib.contextmanager
def killed_at(act: int) -> Any:
    """Be killed at the act of that number on the disk."""
    acts = iter(range(act))

    def killing(function: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if next(acts, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    with contextlib.ExitStack() as stack:
        for owner, name in (
            (Path, "rename"),
            (Path, "mkdir"),
            (os, "fsync"),
            (shutil, "rmtree"),
            (torch, "save"),
            (pickle, "dump"),
            (json, "dump"),
        ):
            stack.enter_context(mock.patch.object(owner, name, killing(getattr(owner, name))))
        yield


def kills(
    folder: Path, before: Path, *, victim: int, last: bool, act: int = 0
) -> list[dict[str, Any]]:
    """Kill a rank at its first act on the disk (or act `act`), then the next, to the end."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["ends"][victim] is not None:
        here = folder / f"{victim}-{last}-{act}"
        shutil.copytree(before, here)
        ends = two(here, {victim: partial(killed_at, act)}, last=last)
        act += 1
        path = checkpoint.latest(here)
        assert path is not None
        state = merge_state(checkpoint.load(path), checkpoint.sharded_tensors(path), {}, [])
        table = state["weights"]["table.weight"]
        found.append(
            {
                "ends": ends,
                "found": path.name,
                "step": state["step"],
                "values": [float(table.min()), float(table.max()), *table.shape],
                "left": sorted(each.name for each in here.glob(".tmp-*")),
            }
        )
        shutil.rmtree(here)
    return found


def model() -> nn.Module:
    """Return a model whose tensors no number of ranks divides."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


class Trained:
    """A model and an optimizer of what this rank holds of it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names = [name for name, _ in model.named_parameters()]
        self._own = LocalParameters(model.parameters())
        self.optimizer = torch.optim.AdamW(
            map(self._own.of, model.parameters()), lr=0.1, fused=True
        )

    def steps(self, n: int) -> None:
        for _ in range(n):
            self.model(torch.linspace(-1, 1, 24).view(4, 6)).square().mean().backward()
            self._own.take()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self._own.drop_gradients()

    def whole(self) -> dict[str, Tensor]:
        """Return everything whole, as torch puts DTensors together."""
        found = {}
        for (name, parameter), own in zip(
            self.model.named_parameters(), self.optimizer.param_groups[0]["params"], strict=True
        ):
            found[name] = _whole(parameter.detach(), parameter)
            # A rank without a number of a parameter keeps nothing of it.
            kept = self.optimizer.state[own] or dict.fromkeys(("exp_avg", "exp_avg_sq"), own)
            for key in ("exp_avg", "exp_avg_sq"):
                found[f"{name}/{key}"] = _whole(kept[key].detach(), parameter)
        return found


def _whole(value: Tensor, like: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    if not isinstance(like, DTensor):
        return value.clone()
    if not isinstance(value, DTensor):
        value = DTensor.from_local(
            value,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )
    return value.full_tensor()


def fully_sharded(size: int) -> Trained:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    trained = model()
    for layer in (trained[0], trained[2], trained):
        fully_shard(layer, mesh=mesh)
    return Trained(trained)


def trained_and_saved(folder: Path, trained: Trained, world: RankGroup) -> int:
    """Save after the second step of three; return how many tensors were saved in pieces."""
    trained.steps(2)
    state = {"weights": weights(trained.model), "optimizer": trained.optimizer.state_dict()}
    alike, pieces = split_state(state, local_shards(trained.model), trained.names)
    checkpoint.save(folder, 2, alike, blocks=pieces, world=world)
    whole = {"loaded": trained.whole()}
    trained.steps(1)
    whole["went_on"] = trained.whole()
    if world.is_main:
        torch.save(whole, folder / "whole.pt")
    return len(pieces)


def two_fsdp_ranks(folder: Path, rank: int, meeting: Path) -> dict[str, float]:
    with joined(rank, 2, meeting) as world:
        n_pieces = trained_and_saved(folder, fully_sharded(2), world)
        world.barrier()
        return {"pieces": n_pieces, **gone_on(folder, fully_sharded(2))}


def three_fsdp_ranks(folder: Path, alone: Path, rank: int, meeting: Path) -> dict[str, float]:
    with joined(rank, 3, meeting):
        of_alone = gone_on(alone, fully_sharded(3))
        return {
            **gone_on(folder, fully_sharded(3)),
            **{f"alone_{name}": value for name, value in of_alone.items()},
        }


def gone_on(folder: Path, trained: Trained) -> dict[str, float]:
    """Return the errors of loaded against saved state, and of the step after it."""
    path = folder / "step-00000002"
    state = merge_state(
        checkpoint.load(path),
        checkpoint.sharded_tensors(path),
        local_shards(trained.model),
        trained.names,
    )
    load_weights(trained.model, state["weights"])
    trained.optimizer.load_state_dict(state["optimizer"])
    whole = torch.load(folder / "whole.pt")

    def distance(when: str) -> float:
        found = trained.whole()
        assert found.keys() == whole[when].keys()
        return max(float((found[name] - value).abs().max()) for name, value in whole[when].items())

    loaded = distance("loaded")
    trained.steps(1)
    return {"loaded": loaded, "went_on": distance("went_on")}


def one_process(folder: Path) -> dict[str, float]:
    return gone_on(folder, Trained(model()))


if __name__ == "__main__":
    out, name = sys.argv[1:]
    folder = Path(name)
    found: dict[str, Any] = {"imports": imports_without_pieces(folder / "alone")}
    # Once, and known to all that are forked.
    import_module("torch.distributed.fsdp")
    # The tables are small, and larger ones are cut.
    with mock.patch.object(import_module("workloads.checkpoint.sharded"), "CHUNK_BYTES", 150):
        forked(4, partial(write_whole, folder / "whole"))
    before = folder / "steps"
    found["failures"] = failures(folder / "failures", before)
    first = kills(folder / "kills", before, victim=0, last=False)
    # Up to its name the final checkpoint is written as any other.
    named = [kill["step"] for kill in first].index(3)
    found["kills"] = {
        "first": first,
        "second": kills(folder / "kills", before, victim=1, last=False),
        "last": kills(folder / "kills", before, victim=0, last=True, act=named - 1),
    }
    of, alone = folder / "dtensors", folder / "no-dtensors"
    assert not trained_and_saved(alone, Trained(model()), RankGroup())
    found["dtensors"] = {
        "2": forked(2, partial(two_fsdp_ranks, of)),
        "3": forked(3, partial(three_fsdp_ranks, of, alone)),
        "1": [one_process(of)],
    }
    Path(out).write_text(json.dumps(found))
