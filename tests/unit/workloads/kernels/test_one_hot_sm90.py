"""What the compiler makes of the kernels that write and read one-hot matrices on an H100 or H200."""

import pytest

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.sign_hash import triton as sign_hash

pytestmark = pytest.mark.long  # without a cache, the compiler takes two seconds for each


@pytest.mark.parametrize("bits", [1, 4, 5])
@pytest.mark.parametrize("kept", [False, True])
def test_writing_a_matrix_spills_nothing_and_stores_it_in_wide_words(compile_for_sm90, bits, kept):
    tile = sign_hash._matrix_tile(bits)
    warps = tile.pop("num_warps")
    strides = dict.fromkeys(("n_tokens", "n_chunks", "token_stride", "chunk_stride"), "i32")
    pointers = {"z": "*bf16:16", "rows": "*i32:16", "scores": "*fp32:16", "one_hot": "*bf16:16"}
    absent = {} if kept else {"rows": None, "scores": None}

    made = compile_for_sm90(
        sign_hash._forward,
        {**pointers, **strides, "n_chunks": "i32:16", "factor": "fp32"},
        {"TIMES_L1": False, **tile, **absent},
        num_warps=warps,
    )

    assert made.spills == 0
    if bits > 3:  # 16 bytes are eight numbers of one chunk
        assert "STG.E.128" in made.sass


@pytest.mark.parametrize("bits", [1, 4, 5])
def test_reading_one_of_a_chunks_gradients_spills_nothing(compile_for_sm90, bits):
    tile = sign_hash._matrix_tile(bits)
    warps = tile.pop("num_warps")
    names = ("n_tokens", "n_chunks", "token_stride", "chunk_stride", "code_stride")

    made = compile_for_sm90(
        sign_hash._backward,
        {
            **dict.fromkeys(("z", "grad", "z_grad"), "*bf16:16"),
            **dict.fromkeys(names, "i32"),
            "factor": "fp32",
        },
        {"TIMES_L1": False, "PER_CODE": True, **tile},
        num_warps=warps,
    )

    assert made.spills == 0
