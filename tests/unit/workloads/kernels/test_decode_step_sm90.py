"""What the compiler makes of the kernels of a decoding step for an H100 or H200.

Nothing spilled, matrices loaded sixteen bytes at a time.
"""

import pytest

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.decode_step import attention, experts, linear, product_keys

pytestmark = pytest.mark.long  # without a cache, the compiler takes a second for each


def _of(names, kind):
    return dict.fromkeys(names.split(), kind)


@pytest.mark.parametrize(
    ("gate", "rows", "most"),
    [(0, 8, 128), *((gate, 4, 128) for gate in (0, 2)), (1, 4, 128)],
)
def test_rows_of_a_matrix(compile_for_sm90, gate, rows, most):
    made = compile_for_sm90(
        linear._one_token,
        {
            **_of("x gain residual", "*fp32:16"),
            **_of("weight up factor out bias", "*bf16:16"),
            **_of("n k", "i32:16"),
            "eps": "fp32",
        },
        {
            "ROWS": rows,
            "DEPTH": linear.DEPTH,
            "NORM": True,
            "BIAS": gate == 2,
            "GATE": gate,
            "RESIDUAL": gate == 0,
            "EVEN": True,
        },
        num_warps=linear.WARPS,
    )

    assert made.spills == 0
    assert made.registers <= most
    matrices = 2 if gate == 1 else 1
    assert made.sass.count("LDG.E.128") >= matrices * rows * linear.DEPTH * 2 // 16 // 128


@pytest.mark.parametrize(("block", "warps"), [(128, 8), (64, 4)])
def test_attention(compile_for_sm90, block, warps):
    made = compile_for_sm90(
        attention._attend,
        {
            **_of("query_key_value keys values out", "*bf16:16"),
            **_of("rotation query_gain key_gain", "*fp32:16"),
            "positions": "*i64:16",
            **_of("capacity places", "i32"),
            **_of("eps scale", "fp32"),
        },
        {"HEADS": 16, "KV_HEADS": 16, "HALF": 64, "BLOCK": block, "NORM": False},
        num_warps=warps,
    )

    assert made.spills == 0
    assert made.registers <= 255
    # Keys and values of a block of positions.
    assert made.sass.count("LDG.E.128") >= 2 * block * 128 * 2 // 16 // (32 * warps)


@pytest.mark.parametrize("tokens", [16, 64])
@pytest.mark.parametrize("normalise", [False, True])
def test_scores_of_product_keys(compile_for_sm90, tokens, normalise):
    made = compile_for_sm90(
        product_keys._scores,
        {
            **_of("query sub_keys", "*bf16:16"),
            "scores": "*fp32:16",
            "tokens": "i32",
            **_of("n_keys half", "i32:16"),
        },
        {"HEADS": 4, "KEYS": 64, "TOKENS": tokens, "WIDTH": 256, "NORMALISE": normalise},
    )

    assert made.spills == 0
    assert "LDG.E.128" in made.sass


def test_choice_of_rows(compile_for_sm90):
    made = compile_for_sm90(
        product_keys._choose,
        {
            **_of("scores weights", "*fp32:16"),
            "ids": "*i64:16",
            "n_keys": "i32:16",
            "knn": "i32:16",
        },
        {"HEADS": 4, "KEYS": 1024, "BEST": 32},
    )

    assert made.spills == 0


def test_experts(compile_for_sm90):
    sizes = {"COLS": experts.COLS, "DEPTH": experts.DEPTH}
    hidden = compile_for_sm90(
        experts._hidden,
        {
            **_of("x gain weights", "*fp32:16"),
            **_of("gate up hidden", "*bf16:16"),
            "chosen": "*i32:16",
            **_of("width d_expert", "i32:16"),
            "top_k": "i32",
            "eps": "fp32",
        },
        sizes,
        num_warps=experts.WARPS,
    )
    outputs = compile_for_sm90(
        experts._outputs,
        {
            "sums": "*fp32:16",
            **_of("hidden down", "*bf16:16"),
            "chosen": "*i32:16",
            "tokens": "i32",
            **_of("d_expert width part", "i32:16"),
        },
        {**sizes, "TOP_K": 1},
        num_warps=experts.WARPS,
    )

    for made, matrices in ((hidden, 2), (outputs, 1)):
        assert made.spills == 0
        loads = matrices * experts.COLS * experts.DEPTH * 2 // 16 // (32 * experts.WARPS)
        assert made.sass.count("LDG.E.128") >= loads
