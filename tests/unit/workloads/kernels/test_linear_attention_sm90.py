"""What the compiler makes of causal linear attention for an H100 or H200.

Nothing spilled, products on the tensor cores' own path, chunks copied ahead of their use.
"""

import pytest

pytestmark = pytest.mark.long  # without a cache, the compiler takes a second for each

triton = pytest.importorskip(
    "workloads.kernels.linear_attention.triton", reason="a CPU build of torch comes without Triton"
)

PASSES = {
    # Inner width, width of what is summed, later positions, extra column, sums of weights.
    "performer": (256, 64, False, triton.NOTHING, True),
    "performer query gradient": (64, 256, False, triton.OF_A, False),
    "performer key gradient": (64, 256, True, triton.OF_B, False),
    "performer value gradient": (256, 64, True, triton.NOTHING, False),
    "cosformer": (128, 64, False, triton.NOTHING, True),
    "cosformer key gradient": (64, 128, True, triton.OF_B, False),
    "linformer scores": (64, 128, False, triton.NOTHING, False),
    "linformer mixture": (128, 64, False, triton.NOTHING, False),
    "widest": (256, 256, False, triton.NOTHING, False),
}
SHARED_BYTES = 227 * 1024
"""That one program may have."""


@pytest.mark.parametrize("name", PASSES)
def test_products_run_on_tensor_cores_and_spill_nothing(compile_for_sm90, name):
    inner, width, later, extra, weigh = PASSES[name]
    held, kernel = triton.tile(inner, width), triton._chunks
    signature = {
        **dict.fromkeys(("a", "b", "c", "out"), "*bf16:16"),
        "extra": "*bf16:16" if extra == triton.NOTHING else "*fp32:16",
        "weights": "*fp32:16" if weigh else "*bf16:16",
        "heads": "i32",
        "seq": "i32:16",
        **{f"{x}_{step}": "i32:16" for x in "abc" for step in ("batch", "head")},
    }
    constants = {
        "A_ROW": inner,
        "B_ROW": inner,
        "C_ROW": width,
        "EVEN": True,
        "A_WIDTH": inner,
        "WIDTH": width,
        "CHUNK": triton.CHUNK,
        "INNER": held.inner,
        "COLS": held.cols,
        "LATER": later,
        "EXTRA": extra,
        "WEIGH": weigh,
    }
    made = compile_for_sm90(
        kernel, signature, constants, num_warps=held.warps, num_stages=held.stages
    )

    print(name, held, made.registers, made.spills, made.shared_bytes)
    assert made.spills == 0
    assert made.shared_bytes <= SHARED_BYTES
    assert "wgmma.mma_async" in made.ptx
    assert "cp.async.cg.shared.global" in made.ptx
