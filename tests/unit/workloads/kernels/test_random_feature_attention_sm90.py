"""What the compiler makes of sums by random features for an H100 or H200.

Nothing spilled, products on the tensor cores' own path, tiles by the copy engine.
"""

import pytest

pytestmark = pytest.mark.long  # without a cache, the compiler takes seconds for each

triton = pytest.importorskip(
    "workloads.kernels.random_feature_attention.triton",
    reason="a CPU build of torch comes without Triton",
)

SHARED_BYTES = 227 * 1024
"""That one program may have."""
FP32 = ("extra", "x_level", "other_level", "level")


@pytest.mark.parametrize("are_keys", [False, True])
@pytest.mark.parametrize("kernel", ["_features", "_input_gradient"])
@pytest.mark.parametrize(("width", "n_features"), [(64, 256), (32, 110)], ids=str)
def test_products_run_on_tensor_cores_and_spill_nothing(
    compile_for_sm90, kernel, are_keys, width, n_features
):
    compiled = getattr(triton, kernel)
    constants = triton.padded(width, n_features)
    constants |= {"ARE_KEYS": are_keys, "N_FEATURES": n_features}
    tokens, launch = ("CHUNK", (8, 2)) if kernel == "_input_gradient" else ("TOKENS", (4, 3))
    constants[tokens] = getattr(triton, tokens)
    tile = f"tensordesc<bf16[1, 1, {constants[tokens]}, {constants['D']}]>"
    signature = {name: "*fp32:16" if name in FP32 else tile for name in compiled.arg_names}
    signature |= {"vectors": f"tensordesc<bf16[{constants['M']}, {constants['D']}]>"}
    signature |= {"eps": "fp32", "seq": "i32:16", "heads": "i32"}
    if kernel == "_features":
        signature["out"] = "*bf16:16"

    made = compile_for_sm90(
        compiled, signature, constants, num_warps=launch[0], num_stages=launch[1]
    )

    print(kernel, made.registers, made.spills, made.shared_bytes)
    assert made.spills == 0
    assert made.shared_bytes <= SHARED_BYTES
    assert "wgmma.mma_async" in made.ptx
    assert "cp.async.bulk.tensor" in made.ptx
