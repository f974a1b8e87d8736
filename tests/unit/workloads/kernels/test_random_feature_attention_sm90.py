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
FP32 = ("extra", "x_level", "other_level", "level", "totals", "weights")
KERNELS = {
    # Constant that says how many tokens a tile has, warps, stages.
    "_features": ("TOKENS", 4, 3),
    "_sums": ("CHUNK", 8, 2),
    "_input_gradient": ("CHUNK", 8, 2),
}


@pytest.mark.parametrize("other_way", [False, True])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("width", "n_features"), [(64, 256), (32, 110)], ids=str)
def test_products_run_on_tensor_cores_and_spill_nothing(
    compile_for_sm90, name, other_way, width, n_features
):
    kernel, (tokens, warps, stages) = getattr(triton, name), KERNELS[name]
    sizes = triton.padded(width, n_features) | {"N_FEATURES": n_features}
    sizes |= {"ARE_KEYS": other_way, "LATER": other_way}
    sizes[tokens] = triton.CHUNK if name == "_input_gradient" else triton.TOKENS
    constants = {key: value for key, value in sizes.items() if key in kernel.arg_names}
    rows = {key: f"tensordesc<bf16[1, 1, {sizes[tokens]}, {sizes[key]}]>" for key in "DM"}
    signature = dict.fromkeys(kernel.arg_names, rows["D"]) | dict.fromkeys(FP32, "*fp32:16")
    signature |= {"vectors": f"tensordesc<bf16[{sizes['M']}, {sizes['D']}]>"}
    signature |= {"eps": "fp32", "seq": "i32:16", "heads": "i32"}
    if name == "_features":
        signature["out"] = "*bf16:16"
    if name == "_sums":
        signature |= {"a": rows["M"], "b": rows["M"]}

    made = compile_for_sm90(kernel, signature, constants, num_warps=warps, num_stages=stages)

    print(name, made.registers, made.spills, made.shared_bytes)
    assert made.spills == 0
    assert made.shared_bytes <= SHARED_BYTES
    assert "wgmma.mma_async" in made.ptx
    assert "cp.async.bulk.tensor" in made.ptx
