"""What the compiler makes of the weighted bag for an H100 or H200.

Nothing spilled, loads of 16 bytes.
"""

import pytest
import torch

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.segment_sum import triton as row_reduction
from workloads.kernels.weighted_bag import triton as kernel

pytestmark = pytest.mark.long  # without a cache, the compiler takes a second for each

TYPES = ["bf16", "fp32"]
IDS = ["i32", "i64"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("gaps", [False, True])
def test_rows_are_read_sixteen_bytes_at_a_time(compile_for_sm90, dtype, ids, gaps):
    table = torch.empty(4, 1024, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    width = kernel._warp_width(table) if gaps else 64
    rows = kernel._GAPS_ROWS if gaps else kernel._block_rows(table, 128, width)
    made = compile_for_sm90(
        kernel._forward,
        {
            **dict.fromkeys(("table", "weights", "out"), f"*{dtype}:16"),
            "ids": f"*{ids}:16",
            **dict.fromkeys(("bag_size", "width"), "i32:16"),
            "spans": "*i32:16",
        },
        {"ROWS": rows, "WIDTH": width, "GAPS": gaps, "EVEN": True},
        num_warps=1,
    )

    assert made.spills == 0
    assert made.registers <= 128
    # Of a warp's load instructions for rows, none is narrower: a block in pieces of 32 lanes x 16
    # bytes.
    assert made.sass.count("LDG.E.128") >= rows * width * table.element_size() // 512


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("first", "last"), [(True, False), (False, False), (False, True)])
def test_products_are_added_up_by_wide_loads(compile_for_sm90, dtype, first, last):
    table = torch.empty(4, 1024, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    rows = kernel._block_rows(table, 128, 64)
    made = compile_for_sm90(
        kernel._add_products,
        {
            **dict.fromkeys(("table", "x", "out"), f"*{dtype}:16"),
            "ids": "*i64:16",
            "sums": "*fp32:16",
            **dict.fromkeys(("bag_size", "width", "left"), "i32:16"),
        },
        {"ROWS": rows, "WIDTH": 64, "FIRST": first, "LAST": last, "EVEN": True},
        num_warps=1,
    )

    assert made.spills == 0
    assert made.registers <= 128
    assert made.sass.count("LDG.E.128") >= rows * 64 * table.element_size() // 512


@pytest.mark.parametrize("ids", IDS)
def test_rows_of_any_width_spill_nothing(compile_for_sm90, ids):
    made = compile_for_sm90(
        kernel._forward,
        {
            **dict.fromkeys(("table", "weights", "out"), "*fp16:16"),
            "ids": f"*{ids}:16",
            "spans": "*i32:16",
            "bag_size": "i32",
            "width": "i32:16",
        },
        {"ROWS": 64, "WIDTH": 64, "GAPS": True, "EVEN": False},
        num_warps=1,
    )

    assert made.spills == 0
    assert made.registers <= 128
    assert made.sass.count("LDG.E.128") >= 64 * 64 * 2 // 512


@pytest.mark.parametrize("dtype", [*TYPES, "fp16"])
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("gaps", [False, True])
def test_products_of_rows_spill_nothing_and_read_sixteen_bytes(compile_for_sm90, dtype, ids, gaps):
    rows, warps = (kernel._GAPS_ROWS, 1) if gaps else (32, 4)
    made = compile_for_sm90(
        kernel._row_products,
        {
            **dict.fromkeys(("table", "x", "out"), f"*{dtype}:16"),
            "ids": f"*{ids}:16",
            **dict.fromkeys(("bag_size", "width"), "i32:16"),
            "spans": "*i32:16",
        },
        {"ROWS": rows, "WIDTH": 128 if dtype == "fp32" else 256, "GAPS": gaps},
        num_warps=warps,
    )

    assert made.spills == 0
    # Rows of 512 bytes, each by 32 lanes of 16 bytes.
    assert made.sass.count("LDG.E.128") >= rows // warps


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "products",
    [True, False],
    ids=["with products", "sums alone"],
)
@pytest.mark.parametrize("name", ["_sum_rows", "_sum_splits"])
def test_sums_over_readers_spill_nothing(compile_for_sm90, name, products, dtype):
    width, pointers = (256 if dtype == "bf16" else 128), ("x", "table", "sums")
    function = getattr(row_reduction, name)
    signature = {
        **dict.fromkeys(pointers, f"*{dtype}:16"),
        **dict.fromkeys(("read_weights", "split_sums", "products"), "*fp32:16"),
        **dict.fromkeys(("read_bags", "starts", "splits_end", "owners"), "*i32:16"),
        **dict.fromkeys(("n_rows", "n_reads", "width"), "i32:16"),
        "max_splits": "i32",
    }
    constants = {
        "CHUNK": 512,
        "READS": 4,
        "WIDTH": width,
        "PRODUCTS": products,
        "EVEN": True,
        "ASSEMBLY": True,
    }
    if name == "_sum_rows":
        constants["GROUP"] = 16

    made = compile_for_sm90(function, signature, constants, num_warps=1)

    assert made.spills == 0
    assert made.registers <= 64
    assert made.sass.count("LDG.E.128") >= 4
