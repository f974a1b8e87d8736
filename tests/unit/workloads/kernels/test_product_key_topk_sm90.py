"""What the compiler makes of product-key selection for an H100 or H200.

Nothing spilled, wide copies, tensor cores.
"""

import pytest

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
import triton

from workloads.kernels.product_key_topk import backward as gradient_kernels
from workloads.kernels.product_key_topk import candidate_pairs
from workloads.kernels.product_key_topk import triton as kernels


def _number(name: str, value: int) -> dict[str, str]:
    return {name: "i32:16" if value % 16 == 0 else "i32"}


@pytest.mark.parametrize(
    ("n_keys", "width", "query_parts", "key_parts"),
    [
        (1024, 128, 1, 1),
        (10_000, 256, 2, 2),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [(1024, 128, 1, 2), (3000, 256, 1, 2), (1024, 512, 1, 2)]
        ),
        *(
            pytest.param(n_keys, width, *parts, marks=pytest.mark.slow)
            for n_keys in (512, 1024, 2000, 2048, 3163, 4096, 10_000, kernels.MAX_KEYS)
            for width in (128, 256, 512)
            for parts in ((1, 1), (1, 2), (2, 1), (2, 2))
        ),
    ],
    ids=str,
)
def test_scores_come_from_tensor_cores_and_are_found_where_they_are(
    compile_for_sm90, n_keys, width, query_parts, key_parts
):
    tile = kernels._tile(width, query_parts, key_parts)
    first_keys = tile.first_keys
    padded_keys = triton.cdiv(n_keys, first_keys) * first_keys
    groups, together, all_groups = kernels._grouping(padded_keys // first_keys, tile, 32)

    made = compile_for_sm90(
        kernels._search,
        {
            "query_ptr": "*fp16:16",
            "first_keys": f"tensordesc<fp16[{first_keys}, {tile.columns}]>",
            "keys": f"tensordesc<fp16[{tile.keys}, {tile.columns}]>",
            "maxima_ptr": "*bf16:16",
            **dict.fromkeys(("query_norms_ptr", "key_scales_ptr", "longest_ptr"), "*fp32:16"),
            "found_ptr": "*i64:16",
            "counts_ptr": "*i32:16",
            **dict.fromkeys(("n_tokens", "padded_tokens", "padded_keys"), "i32:16"),
            **_number("n_keys", n_keys),
            **dict.fromkeys(("knn", "tiles_t"), "i32"),
        },
        {
            "QUERY_PARTS": query_parts,
            "KEY_PARTS": key_parts,
            "GROUPS": groups,
            "TOGETHER": together,
            "ALL_GROUPS": triton.next_power_of_2(all_groups),
            "SLOTS": 64,
            "EVEN": n_keys == padded_keys,
            "ASSEMBLY": True,
            "PACKED": True,
            "HELD": tile.columns == width,
            "WIDTH": width,
            "BLOCK_T": tile.tokens,
            "BLOCK_F": first_keys,
            "BLOCK_N": tile.keys,
            "BLOCK_D": tile.columns,
        },
        num_warps=tile.warps,
        num_stages=tile.stages,
    )

    assert made.spills == 0
    # What a multiprocessor of an H100 has.
    assert made.shared_bytes <= 227 * 1024
    assert "wgmma.mma_async" in made.ptx
    # Sub-keys are brought by the copy engine.
    assert "cp.async.bulk.tensor.2d" in made.ptx


@pytest.mark.parametrize("n_keys", [pytest.param(1024, marks=pytest.mark.slow), 10_000])
def test_a_crowded_row_fits_the_registers(compile_for_sm90, n_keys):
    warps, lanes, deep = kernels._crowded_layout(n_keys)

    made = compile_for_sm90(
        kernels._search_crowded,
        {
            **dict.fromkeys(("query_ptr", "keys_ptr"), "*fp16:16"),
            **dict.fromkeys(("key_scales_ptr", "row_scores_ptr"), "*fp32:16"),
            "found_ptr": "*i64:16",
            "counts_ptr": "*i32:16",
            **dict.fromkeys(("padded_keys", "n_keys", "knn"), "i32:16"),
            **dict.fromkeys(("books", "n_tokens", "padded_tokens"), "i32"),
        },
        {
            "QUERY_PARTS": 2,
            "KEY_PARTS": 2,
            "SLOTS": 64,
            "WIDTH": 256,
            "BLOCK_D": 256,
            "LANES": lanes,
            "DEEP": deep,
            "ROWS": 128,
        },
        num_warps=warps,
    )

    assert made.spills == 0
    # The sixteen warps that `_crowded_programs` begins on a multiprocessor share its 65,536.
    assert made.registers <= 65536 // (32 * 16)


pytestmark = pytest.mark.long  # without a cache, the compiler takes a second for each

SORTED = {
    **dict.fromkeys(("found_ptr", "ordered_ptr", "out_ids_ptr"), "*i64:16"),
    "counts_ptr": "*i32:16",
    **dict.fromkeys(("query_scales_ptr", "out_scores_ptr"), "*fp32:16"),
    **dict.fromkeys(("n_tokens", "padded_tokens", "n_heads", "n_keys", "knn"), "i32"),
}


def test_a_token_is_sorted_by_one_thread(compile_for_sm90):
    made = compile_for_sm90(
        kernels._order,
        SORTED,
        {"SLOTS": 64, "LOG": 5, "BLOCK_T": kernels.WARP},
        num_warps=1,
    )

    assert made.spills == 0
    assert made.shared_bytes == 0
    assert "SHFL" not in made.sass


@pytest.mark.slow
def test_the_pairs_of_a_token_are_sorted_by_one_thread(compile_for_sm90):
    blocks, table, sizes = candidate_pairs.arrange(32, 5)
    made = compile_for_sm90(
        candidate_pairs.choose_pairs,
        SORTED,
        {"BLOCKS": blocks, "TABLE": table, "SIZES": sizes}
        | {"SLOTS": 64, "LOG": 5, "BLOCK_T": kernels.WARP},
        num_warps=1,
    )

    assert made.spills == 0
    # Sums are loaded by ranks that the compiler knows: left and right ones, those after them, and
    # of one tied token.
    assert made.sass.count("LDG") < 200


OF_GRADIENTS = {
    "grad_ptr": "*fp32:16",
    "ids_ptr": "*i64:16",
    **dict.fromkeys(("n_tokens", "n_keys", "knn"), "i32:16"),
    "n_heads": "i32",
}


@pytest.mark.parametrize("slots", [pytest.param(32, marks=pytest.mark.long), 64])
@pytest.mark.parametrize("weights", ["bf16", "fp32"])
def test_weights_are_added_up_in_registers(compile_for_sm90, slots, weights):
    made = compile_for_sm90(
        gradient_kernels._dense_weights,
        {**OF_GRADIENTS, "weights_ptr": f"*{weights}:16"},
        {"SLOTS": slots, "BLOCK_T": gradient_kernels.SCATTERED // slots, "BLOCK_N": 1024},
    )

    assert made.spills == 0
