import json

import numpy as np
import pytest

from workloads.data.token_shards import ShardWriter, TokenShards


def written(folder, parts, **kwargs):
    with ShardWriter(folder, "train", dtype=np.uint16, **kwargs) as writer:
        for part in parts:
            writer.append(part)
    return TokenShards.load(folder, "train")


def test_tokens_come_back_across_files(tmp_path):
    shards = written(tmp_path, [[1, 2, 3], [], np.arange(4, 12), [65_535]], shard_tokens=5)
    assert [len(part) for part in shards.parts] == [5, 5, 2]
    assert len(shards) == 12
    stream = [*range(1, 12), 65_535]
    windows = shards.windows(np.arange(12), 7)
    assert windows.dtype == np.int64
    assert windows.tolist() == [[stream[(i + j) % 12] for j in range(7)] for i in range(12)]


def test_a_window_longer_than_the_stream_repeats_it(tmp_path):
    shards = written(tmp_path, [[7, 8, 9]], shard_tokens=2)
    assert shards.windows(np.array([1]), 8).tolist() == [[8, 9, 7, 8, 9, 7, 8, 9]]


def test_tokens_are_mapped_and_not_read(tmp_path):
    shards = written(tmp_path, [range(10)])
    assert isinstance(shards.parts[0], np.memmap)
    assert (tmp_path / "train-00000.bin").stat().st_size == 20
    assert json.loads((tmp_path / "train.json").read_text()) == {"dtype": "uint16", "counts": [10]}


def test_an_interrupted_writer_lists_nothing(tmp_path):
    def torn():
        yield [1, 2]
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        written(tmp_path, torn())
    assert (tmp_path / "train-00000.bin").exists()
    assert not (tmp_path / "train.json").exists()
