"""What the compiler makes of product-key selection for an H100 or H200: nothing spilled, wide copies, tensor cores."""

import pytest

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.product_key_topk import triton as kernels

WIDE = "cp.async.cg.shared.global"
"""Only copies of 16 bytes may go past the first cache."""


@pytest.mark.parametrize(
    ("query_parts", "width", "tokens"),
    [(1, 128, 64), (1, 256, 128), (2, 256, 64)],
    ids=["bf16 query", "wide bf16 query", "wide fp32 query"],
)
def test_scores_come_from_tensor_cores_and_are_found_where_they_are(
    compile_for_sm90, query_parts, width, tokens
):
    made = compile_for_sm90(
        kernels._search,
        {
            **dict.fromkeys(("query_ptr", "keys_ptr"), "*fp16:16"),
            **dict.fromkeys(
                ("query_norms_ptr", "key_scales_ptr", "key_norms_ptr", "maxima_ptr"), "*fp32:16"
            ),
            "found_ptr": "*i64:16",
            "counts_ptr": "*i32:16",
            **dict.fromkeys(("n_tokens", "padded_tokens", "padded_keys", "n_keys"), "i32:16"),
            **dict.fromkeys(("knn", "tiles_t"), "i32"),
        },
        {
            "QUERY_PARTS": query_parts,
            "KEY_PARTS": 2,
            "GROUPS": 8,
            "ALL_GROUPS": 128,
            "SLOTS": 64,
            "EVEN": True,
            "ASSEMBLY": True,
            "HELD": True,
            "WIDTH": width,
            "BLOCK_T": tokens,
            "BLOCK_N": 64,
            "BLOCK_D": width,
        },
        num_warps=tokens // 16,
        num_stages=2,
    )

    assert made.spills == 0
    # What a multiprocessor of an H100 has.
    assert made.shared_bytes <= 227 * 1024
    assert "wgmma.mma_async" in made.ptx
    # The keys' scales, a number per key, come in words.
    assert made.ptx.count(WIDE) > 4 * made.ptx.count("cp.async.ca")


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
