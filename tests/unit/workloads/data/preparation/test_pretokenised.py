import struct

import numpy as np
import pytest

from workloads.data.preparation.manifest import load_split
from workloads.data.preparation.prepare import prepare
from workloads.data.preparation.pretokenised import open_tokens
from workloads.data.preparation.request import PrepareRequest
from workloads.data.readers.problems import DataError
from workloads.data.token_shards import index_name

TOKENS = np.arange(1_000) % 300


def megatron_index(lengths, *, code=8, size=2) -> bytes:
    """As Megatron-LM writes it: a sequence per document."""
    starts = np.cumsum([0, *lengths[:-1]]) * size
    return (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
        + np.array(lengths, np.int32).tobytes()
        + starts.astype(np.int64).tobytes()
        + np.arange(len(lengths) + 1, dtype=np.int64).tobytes()
    )


def write(path, kind):
    if kind == "npy":
        np.save(path.with_suffix(".npy"), TOKENS.astype(np.uint32))
        return path.with_suffix(".npy")
    TOKENS.astype(np.int32 if kind == "megatron32" else np.uint16).tofile(path)
    if kind.startswith("megatron"):
        code, size = (4, 4) if kind == "megatron32" else (8, 2)
        path.with_suffix(".idx").write_bytes(megatron_index([400, 500, 100], code=code, size=size))
    return path


@pytest.mark.parametrize("kind", ["bin", "npy", "megatron", "megatron32"])
def test_tokens_are_taken_as_they_are(tmp_path, kind):
    path, out = write(tmp_path / "t.bin", kind), tmp_path / "out"
    request = PrepareRequest(sources=(str(path),), out=out, vocab_size=300, valid_share=0.2)
    manifest = prepare(request, print)
    train, valid = (load_split(out, manifest, name) for name in ("train", "valid"))
    assert np.concatenate([*train.parts, *valid.parts]).tolist() == TOKENS.tolist()
    assert len(valid) == 200
    assert (out / "train-00000.bin").resolve() == path
    known = kind.startswith("megatron")
    assert np.fromfile(out / index_name("train"), dtype="<i8").tolist() == (
        [0, 400] if known else []
    )
    assert np.fromfile(out / index_name("valid"), dtype="<i8").tolist() == ([100] if known else [])


@pytest.mark.parametrize("name", ["t.bin.gz", "t.npy.zst"])
def test_compressed_tokens_are_refused(tmp_path, name):
    TOKENS.astype(np.uint16).tofile(tmp_path / name)
    request = PrepareRequest(sources=(str(tmp_path / name),), out=tmp_path / "out", vocab_size=300)
    with pytest.raises(DataError, match=f"SOURCE: .*{name} is compressed, .*; unpack it first"):
        prepare(request, print)


def test_ids_beyond_the_vocabulary_are_refused_with_their_place(tmp_path):
    path = write(tmp_path / "t.bin", "bin")
    with pytest.raises(DataError, match=r"t\.bin: token 299 is 299, vocab_size is 299; raise"):
        open_tokens(path, vocab_size=299)


def test_damaged_files_are_refused(tmp_path):
    path = write(tmp_path / "t.bin", "megatron")
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(DataError, match=r"has 1,998 bytes, t\.idx says 2,000"):
        open_tokens(path, vocab_size=300)
    path.with_suffix(".idx").write_bytes(b"MMIDIDX")
    with pytest.raises(DataError, match="is no index of Megatron-LM"):
        open_tokens(path, vocab_size=300)
    path.with_suffix(".idx").write_bytes(megatron_index([1_000])[:-3])
    with pytest.raises(DataError, match="half-written"):
        open_tokens(path, vocab_size=300)
    path.with_suffix(".idx").unlink()
    path.write_bytes(whole[:-1])
    with pytest.raises(DataError, match="no whole number of uint16 tokens"):
        open_tokens(path, vocab_size=300)
    floats = tmp_path / "f.npy"
    np.save(floats, np.zeros(3))
    with pytest.raises(DataError, match="holds float64 of shape"):
        open_tokens(floats, vocab_size=300)
