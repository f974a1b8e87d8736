"""What the compiler makes of table updates for an H100 or H200.

Nothing spilled, tables in loads of 16 bytes.
"""

import re

import pytest

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.table_update import triton as kernels

pytestmark = pytest.mark.long  # without a cache, the compiler takes a second for each

POINTERS = {
    **dict.fromkeys(("read_bags", "starts", "splits_end", "row_ids", "numbers"), "*i32:16"),
    **dict.fromkeys(
        ("read_weights", "split_sums", "products", "squares", "sums", "coefficient"), "*fp32:16"
    ),
}
NUMBERS = {
    **dict.fromkeys(("n_rows", "n_reads", "width"), "i32:16"),
    **dict.fromkeys(("origin_row", "origin_column"), "i32"),
}


RULES = [
    ("squares", None),
    ("adamw", None),
    ("lazy_adamw", None),
    ("rowwise", None),
    ("rowwise", "whole row"),
    ("lazy_adamw", "copies"),
    ("rowwise", "copies"),
    ("sgd", None),
]


@pytest.mark.parametrize(
    ("rule", "variant", "table"),
    [
        *((*rule, "bf16_master") for rule in RULES),
        *((*rule, t) for rule in RULES for t in ("bf16", "fp32")),
    ],
)
def test_a_row_is_read_and_written_once_by_wide_loads(compile_for_sm90, rule, variant, table):
    master = table == "bf16_master" and rule != "squares"
    table, moment = ("bf16", "fp32") if table == "bf16_master" else (table, table)
    made = compile_for_sm90(
        kernels._update_rows,
        {
            **POINTERS,
            **NUMBERS,
            "x": "*bf16:16",
            "table": f"*{table}:16",
            "first": "*fp32:16" if rule == "rowwise" else f"*{moment}:16",
            "second": f"*{moment}:16",
            "low": "*i16:16",
        },
        {
            "RULE": rule,
            "MASTER": master,
            "SUMS": kernels.GATHERED,
            "WHOLE_ROW": variant == "whole row",
            "SQUARES": True,
            "COPIES": variant == "copies",
            "GROUP": 16,
            "CHUNK": 512,
            "READS": 4,
            "WIDTH": 256,
            "PRODUCTS": rule != "squares",
            "EVEN": True,
            "ASSEMBLY": True,
        },
        num_warps=1,
    )

    assert made.spills == 0
    # Two or more blocks of eight warps fit a multiprocessor's registers beside what hides latency.
    assert made.registers <= 128
    assert made.shared_bytes == 0
    moments = 2 * ("adamw" in rule)
    # Eight numbers are one access in 16 bits, two in 32.
    accesses = (rule != "squares") * (2 if table == "fp32" else 1)
    accesses += master + moments * (2 if moment == "fp32" else 1)
    # Eight numbers a thread: of the table, its other half and its moments, in and out.
    marked = r"global\.L1::evict_first\.L2::cache_hint"
    for direction in ("ld", "st"):
        assert len(re.findall(rf"{direction}\.{marked}\.v4\.b32", made.ptx)) == accesses
        assert not re.findall(rf"{direction}\.{marked}\.v2\.b32", made.ptx)


@pytest.mark.parametrize("rule", ["squares", "adamw", "rowwise"])
def test_kept_sums_pass_by_wide_accesses(compile_for_sm90, rule):
    stores = rule == "squares"
    made = compile_for_sm90(
        kernels._update_rows,
        {
            **POINTERS,
            **NUMBERS,
            **dict.fromkeys(("x", "table", "second"), "*bf16:16"),
            "first": "*fp32:16" if rule == "rowwise" else "*bf16:16",
            "low": "*i16:16",
        },
        {
            "RULE": rule,
            "MASTER": False,
            "SUMS": kernels.STORED if stores else kernels.LOADED,
            "COPIES": False,
            "WHOLE_ROW": False,
            "SQUARES": stores,
            "GROUP": 16,
            "CHUNK": 512,
            "READS": 4,
            "WIDTH": 256,
            "PRODUCTS": False,
            "EVEN": True,
            "ASSEMBLY": True,
        },
        num_warps=1,
    )

    assert made.spills == 0
    assert made.registers <= 128
    direction = "st" if stores else "ld"
    marked = r"global\.L1::evict_first\.L2::cache_hint"
    others = {"squares": 0, "adamw": 3, "rowwise": 1}[rule]
    assert len(re.findall(rf"{direction}\.{marked}\.v4\.b32", made.ptx)) == 2 + others
