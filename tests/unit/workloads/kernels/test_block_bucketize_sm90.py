"""What the compiler makes of block bucketize for an H100 or H200.

Nothing spilled, wide loads, one scan for four ranks of 128 reads a bag.
"""

import pytest
import torch

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.block_bucketize import triton as kernel

pytestmark = pytest.mark.long  # without a cache, the compiler takes a second for each


def _constants(bag_size: int, n_ranks: int, n_rows: int = 2**20) -> tuple[dict[str, object], int]:
    _, constants = kernel._launch(torch.empty(8, bag_size, device="meta"), n_rows, n_ranks)
    return constants, constants.pop("num_warps")


@pytest.mark.parametrize("ids", ["i32", "i64"])
@pytest.mark.parametrize("scalars", ["i16", "i32"])
@pytest.mark.parametrize("n_ranks", [4, 8, 16])
def test_bags_are_read_sixteen_bytes_at_a_time(compile_for_sm90, ids, scalars, n_ranks):
    constants, num_warps = _constants(128, n_ranks, 2**20 if ids == "i32" else 2**33)
    lengths = {"n_rows": ids, "n_bags": "i32:16", "bag_size": "i32:16"}

    put = compile_for_sm90(
        kernel._bucketize,
        {
            **dict.fromkeys(("ids", "first", "first_out"), f"*{ids}:16"),
            **dict.fromkeys(("second", "second_out"), f"*{scalars}:16"),
            **lengths,
        },
        constants,
        num_warps=num_warps,
    )
    taken = compile_for_sm90(
        kernel._unbucketize,
        {"ids": f"*{ids}:16", **dict.fromkeys(("parts", "taken"), f"*{scalars}:16"), **lengths},
        constants,
        num_warps=num_warps,
    )

    for made in (put, taken):
        assert made.spills == 0
        assert made.registers <= 128
    # Of each of the 128 threads, 8 reads.
    widths = {"i16": 2, "i32": 4, "i64": 8}
    assert put.sass.count("LDG.E.128") >= (2 * widths[ids] + widths[scalars]) // 2
    assert taken.sass.count("LDG.E.128") >= widths[ids] // 2
    if n_ranks == 4:
        # One scan for all ranks: a count for each would take four times as many.
        assert max(made.sass.count("SHFL.UP") for made in (put, taken)) <= 12


@pytest.mark.parametrize("bag_size", [1, 7, 100, 600, 4000])
def test_bags_of_any_size_spill_nothing(compile_for_sm90, bag_size):
    constants, num_warps = _constants(bag_size, 8)
    lengths = {"n_rows": "i32", "n_bags": "i32", "bag_size": "i32"}

    made = compile_for_sm90(
        kernel._bucketize,
        {
            **dict.fromkeys(("ids", "first", "first_out"), "*i32"),
            **dict.fromkeys(("second", "second_out"), "*i16"),
            **lengths,
        },
        constants,
        num_warps=num_warps,
    )

    assert made.spills == 0


@pytest.mark.parametrize("ids", ["i32", "i64"])
def test_ids_are_made_local_sixteen_bytes_at_a_time(compile_for_sm90, ids):
    made = compile_for_sm90(
        kernel._local_ids,
        {
            **dict.fromkeys(("ids", "local"), f"*{ids}:16"),
            **dict.fromkeys(("first", "n_here"), ids),
            "n_reads": "i32:16",
        },
        {"READS": kernel._READS},
    )

    width = 4 if ids == "i32" else 8
    assert made.spills == 0
    assert made.sass.count("LDG.E.128") == made.sass.count("STG.E.128") == width // 2
