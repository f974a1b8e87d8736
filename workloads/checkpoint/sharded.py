"""Sharded tensors in files of torch.distributed.checkpoint (DCP).

All ranks write together; each reads alone.

Importing it takes a second, so only sharded checkpoints do. Every rank offers its blocks, cut into
chunks; of chunks that several ranks have, DCP lets the one with the least to do write each.
`.metadata` says which chunk of which tensor is where. Any chunks that cover a tensor make any
rectangle of it, so the ranks that read may be others than those that wrote.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_saver import save

from workloads.checkpoint.safe_load import only_plain_values
from workloads.checkpoint.tensor_block import SavedTensor, TensorBlock
from workloads.distributed.process_group import CommunicationError, RankGroup, communication_errors

METADATA = ".metadata"
CHUNK_BYTES = 2**24
"""A chunk is read as a whole for any part of it, and is copied from a GPU as a whole."""
_ALLOWED = {
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
}
"""What `.metadata`, a pickle, may name besides dtypes."""


def write(folder: Path, blocks: Mapping[str, TensorBlock], world: RankGroup) -> list[Path]:
    """Write the blocks of all ranks of `world`; return the files that this one wrote. Collective.

    Raises:
        CommunicationError: If another rank could not write, which raises what it met.
    """
    files, failures = _Files(), {}
    try:
        # What fails within is a CheckpointException; a RuntimeError is the network's.
        with communication_errors("checkpoint"):
            save(
                {},
                storage_writer=_Writer(folder, files),
                planner=_Saving(blocks),
                process_group=world.group,
            )
    except CheckpointException as failed:
        failures = {rank: error for rank, (error, _) in failed.failures.items()}
    except Exception:
        # torch 2.11 on Python 3.13 cannot send what failed here to the others.
        if files.failure is None:
            raise
    else:
        return files.written
    # Raised out here, and this rank's own rather than the copy that travelled, since both would
    # cost an error what led to it: a full disk may be the OSError behind a RuntimeError.
    if files.failure is not None:
        raise files.failure
    if world.rank in failures:
        raise failures[world.rank]
    rank, error = min(failures.items())
    raise CommunicationError(f"rank {rank} could not write its part of the checkpoint ({error!r})")


def saved(folder: Path) -> dict[str, SavedTensor]:
    """Return the tensors in a folder by name, read lazily.

    Raises:
        ValueError: If `.metadata` holds anything but the places of chunks.
    """
    with only_plain_values(folder / METADATA), (folder / METADATA).open("rb") as file:
        try:
            metadata = _MetadataUnpickler(file).load()
            files = {info.relative_path for info in metadata.storage_data.values()}
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UnpicklingError(f"is no metadata ({error})") from error
        if not isinstance(metadata, Metadata) or any(Path(name).name != name for name in files):
            raise UnpicklingError(f"is a {type(metadata).__name__} of files {sorted(files)}")
    return {
        name: _Stored(folder, metadata, name, tensor)
        for name, tensor in metadata.state_dict_metadata.items()
        if isinstance(tensor, TensorStorageMetadata)
    }


class _Files(FileSystem):
    """DCP's, remembering what it wrote and what went wrong in this process."""

    def __init__(self) -> None:
        self.written: list[Path] = []
        self.failure: BaseException | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        try:
            with super().create_stream(path, mode) as stream:
                yield stream
                # `.metadata` is open here, and DCP would sync it while its end waits in the buffer.
                if not stream.closed:
                    stream.flush()
                    os.fsync(stream.fileno())
        except BaseException as error:
            self.failure = error
            raise
        self.written.append(Path(path))

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written = [Path(new_path) if each == Path(path) else each for each in self.written]


class _Writer(FileSystemWriter):
    def __init__(self, folder: Path, files: _Files) -> None:
        # Copying ahead, DCP makes a context on a GPU that these ranks may not be meant to use.
        super().__init__(folder, per_thread_copy_ahead=0)
        self.fs = files

    def storage_meta(self) -> None:
        """Return nothing: DCP would write down where the folder lay, and a random number."""


class _Saving(DefaultSavePlanner):
    def __init__(self, blocks: Mapping[str, TensorBlock]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        chunks = [chunk for name, block in blocks.items() for chunk in _chunks(name, block)]
        self._items = [item for item, _ in chunks]
        self._tensors = {item.index: tensor for item, tensor in chunks}

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan(self._items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._tensors[index]


def _chunks(name: str, block: TensorBlock) -> Iterator[tuple[WriteItem, Tensor]]:
    """Cut a block along its first dimension into chunks of at most CHUNK_BYTES, or of one row."""
    if not block.tensor.numel():
        return
    first, *others = block.offsets
    rows = max(1, CHUNK_BYTES // block.tensor[0].nbytes)
    for number, chunk in enumerate(torch.split(block.tensor, rows)):
        offsets = torch.Size([first + number * rows, *others])
        item = WriteItem(
            index=MetadataIndex(name, offsets),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(
                chunk=ChunkStorageMetadata(offsets=offsets, sizes=chunk.shape),
                properties=TensorProperties(dtype=chunk.dtype),
                size=torch.Size(block.whole),
            ),
        )
        yield item, chunk


class _Stored(SavedTensor):
    def __init__(
        self, folder: Path, metadata: Metadata, name: str, tensor: TensorStorageMetadata
    ) -> None:
        self._folder, self._metadata, self._name, self._tensor = folder, metadata, name, tensor
        self.whole = tuple(tensor.size)

    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Return a rectangle, copied from all blocks that it meets.

        Raises:
            ValueError: If they do not hold all of it, or if they hold anything but tensors.
            OSError: If the storage fails.
        """
        result = torch.empty(tuple(sizes), dtype=self._tensor.properties.dtype)
        chunk = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=result.shape)
        items = create_read_items_for_chunk_list(self._name, self._tensor, [chunk])
        covered = sum(math.prod(item.lengths) for item in items)
        if covered != result.numel():
            raise ValueError(
                f"{self._name}: the checkpoint's pieces hold {covered} of the {result.numel()} "
                f"numbers of {' × '.join(map(str, sizes))} from {tuple(offsets)} on; delete this "
                "checkpoint to go on from the one before"
            )
        # Not by `dcp.load`, which takes an error of the storage for a missing file, and goes on
        # without.
        reader = FileSystemReader(self._folder)
        reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        with only_plain_values(self._folder):
            reader.read_data(LoadPlan(items), _Into(result)).wait()
        return result


class _Into(DefaultLoadPlanner):
    """Reads into one tensor."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._tensor = tensor

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._tensor


class _MetadataUnpickler(Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return lambda _: torch.strided  # the original keeps its argument
        if (module, name) not in _ALLOWED:
            raise UnpicklingError(f"{module}.{name} says nothing of where tensors lie")
        return super().find_class(module, name)
