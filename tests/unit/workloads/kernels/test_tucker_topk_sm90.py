"""What the compiler makes of selection by Tucker-decomposed scores for an H100 or H200.

Nothing spilled, one thread sorts a token.
"""

import pytest
import torch

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
import triton

from workloads.kernels.tucker_topk import backward
from workloads.kernels.tucker_topk import triton as kernels

pytestmark = pytest.mark.long  # without a cache, the compiler takes seconds for each

# Rank, sub-keys, columns of half a key, slots.
SIZES = {"30m": (2, 480, 128, 16), "134m": (2, 1024, 192, 32), "rank 4": (4, 480, 128, 16)}
SIGNATURE = {
    **dict.fromkeys(("ordered_ptr", "ids_ptr"), "*i64:16"),
    "keys_ptr": "*fp16:16",
    **dict.fromkeys(
        ("scales_ptr", "products_ptr", "core_ptr", "scores_ptr", "grad_ptr", "weights_ptr"),
        "*fp32:16",
    ),
    **dict.fromkeys(("core_grads_ptr", "sub_keys_ptr", "out_ptr", "chosen_ptr"), "*fp32:16"),
    **dict.fromkeys(("stride_half", "stride_head", "stride_query", "stride_token"), "i32:16"),
    **dict.fromkeys(("n_keys", "width", "found_slots"), "i32:16"),
    **dict.fromkeys(("n_tokens", "all_tokens", "padded_tokens", "knn"), "i32"),
}
ONE_HEAD = {"n_heads": 1}
"""A constant, as Triton makes of every argument that is one."""


def _signature(query: str) -> dict[str, str]:
    return {**SIGNATURE, **dict.fromkeys(("query_ptr",), f"*{query}:16")}


def _reading(size: str, dtype: torch.dtype) -> tuple[int, int, kernels.SubKeyTile]:
    rank, n_keys, width, slots = SIZES[size]
    sub_keys = torch.empty(2, 1, rank, n_keys, width, device="meta")
    query = torch.empty(2, 1, rank, 1, width, device="meta", dtype=dtype)
    return rank, slots, kernels.reading(sub_keys, query, slots)


def _constants(rank: int, read: kernels.SubKeyTile, *, shared: bool = False) -> dict[str, int]:
    return {
        "RANK": rank,
        "RANKS": read.ranks,
        "SHARED": shared,
        "KEY_PARTS": read.parts,
        "SLOTS": read.slots,
        "COLUMNS": read.columns,
        "BLOCK_D": read.block,
        "TOKENS": kernels.TOKENS,
        **ONE_HEAD,
    }


QUERIES = {"bf16": torch.bfloat16, "fp32": torch.float32}


CASES = [*((size, "bf16") for size in SIZES), ("30m", "fp32")]


@pytest.mark.parametrize(("size", "query"), CASES)
def test_products_of_tokens_stay_in_registers(compile_for_sm90, size, query):
    rank, _, read = _reading(size, QUERIES[query])

    made = compile_for_sm90(
        kernels._multiply,
        _signature(query),
        _constants(rank, read),
        num_warps=kernels.TOKEN_WARPS,
    )

    assert made.spills == 0


@pytest.mark.parametrize(
    ("size", "weights", "together"),
    [*((size, weights, 1) for size in SIZES for weights in ("bf16", "fp32")), ("30m", "bf16", 2)],
)
def test_dense_weights_stay_in_registers(compile_for_sm90, size, weights, together):
    rank, slots, read = _reading(size, torch.bfloat16)

    made = compile_for_sm90(
        backward._dense_weights,
        {**SIGNATURE, "weights_ptr": f"*{weights}:16"},
        {
            "RANK": rank,
            "RANKS": read.ranks,
            "TOGETHER": together,
            "SLOTS": slots,
            "BLOCK_T": backward.COMPARED // slots**2,
            "BLOCK_N": min(1024, triton.next_power_of_2(SIZES[size][1])),
            **ONE_HEAD,
        },
    )

    assert made.spills == 0
    assert "STG.E.128" in made.sass  # zeros, 16 bytes at a time


@pytest.mark.parametrize("size", SIZES)
def test_a_token_is_sorted_by_one_thread(compile_for_sm90, size):
    rank, slots, read = _reading(size, torch.bfloat16)

    made = compile_for_sm90(
        kernels._choose,
        SIGNATURE,
        {"RANK": rank, "RANKS": read.ranks, "LOG": slots.bit_length() - 1, "BLOCK_T": 32}
        | ONE_HEAD,
        num_warps=1,
    )

    assert made.spills == 0
    # Threads exchange numbers to store them side by side, and not before.
    assert "SHFL" not in made.sass
    assert made.shared_bytes == 32 * slots * 8


def test_products_of_chosen_slots_stay_in_registers(compile_for_sm90):
    made = compile_for_sm90(
        kernels._keep_products,
        SIGNATURE,
        {"RANKS": 2, "SLOTS": 16, "BLOCK_T": 32, "BLOCK_G": 16} | ONE_HEAD,
        num_warps=1,
    )

    assert made.spills == 0


def test_sub_keys_are_weighed_in_registers(compile_for_sm90):
    made = compile_for_sm90(
        kernels._weigh,
        SIGNATURE,
        {"RANK": 4, "RANKS": 4, "SHARED": False, "BLOCK_N": 16, "BLOCK_D": 512} | ONE_HEAD,
    )

    assert made.spills == 0
