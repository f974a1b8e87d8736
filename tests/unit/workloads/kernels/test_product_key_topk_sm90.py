"""What the compiler makes of product-key selection for an H100 or H200: nothing spilled, wide copies, tensor cores."""

import pytest

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.product_key_topk import triton as kernels

WIDE = "cp.async.cg.shared.global"
"""Only copies of 16 bytes may go past the first cache."""


@pytest.mark.parametrize("query_parts", [1, 2], ids=["bf16 query", "fp32 query"])
def test_scores_come_from_tensor_cores(compile_for_sm90, query_parts):
    made = compile_for_sm90(
        kernels._score,
        {
            **dict.fromkeys(("query_ptr", "keys_ptr"), "*fp16:16"),
            **dict.fromkeys(("key_scales_ptr", "scores_ptr"), "*fp32:16"),
            **dict.fromkeys(("padded_tokens", "padded_keys", "width"), "i32:16"),
            **dict.fromkeys(("tiles_t", "tiles_n"), "i32"),
        },
        {
            "QUERY_PARTS": query_parts,
            "KEY_PARTS": 2,
            "BLOCK_T": 128,
            "BLOCK_N": 128,
            "BLOCK_D": 64,
        },
        num_warps=8,
    )

    assert made.spills == 0
    assert "wgmma.mma_async" in made.ptx
    assert WIDE in made.ptx
    assert "cp.async.ca" not in made.ptx
    assert "st.global.v4" in made.ptx


def test_candidates_stay_in_their_lanes(compile_for_sm90):
    made = compile_for_sm90(
        kernels._candidates,
        {
            "scores_ptr": "*fp32:16",
            "found_ptr": "*i64:16",
            "counts_ptr": "*i32:16",
            "n_keys": "i32:16",
            **dict.fromkeys(("padded_tokens", "padded_keys", "knn"), "i32"),
        },
        {"SLOTS": 64, "LANES": 32, "DEEP": 32, "FULL": True},
        num_warps=1,
    )

    assert made.spills == 0
    assert made.shared_bytes == 0


def test_a_token_is_sorted_by_one_thread(compile_for_sm90):
    made = compile_for_sm90(
        kernels._order,
        {
            **dict.fromkeys(("found_ptr", "ordered_ptr"), "*i64:16"),
            "counts_ptr": "*i32:16",
            "query_scales_ptr": "*fp32:16",
            **dict.fromkeys(("n_tokens", "padded_tokens"), "i32"),
        },
        {"SLOTS": 64, "LOG": 5, "BLOCK_T": 128},
    )

    assert made.spills == 0
    assert made.shared_bytes == 0
    assert "SHFL" not in made.sass
