"""What the compiler makes of the fused experts for an H100 or H200.

Nothing spilled, products on the tensor cores' own path, operands copied ahead of their use, 16
bytes at a time whatever the width of an expert.
"""

import pytest
import torch

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.expert_mlp import op
from workloads.kernels.expert_mlp import triton as kernels

pytestmark = pytest.mark.long  # without a cache, the compiler takes a second for each

KERNELS = {
    "_hidden": kernels.HIDDEN,
    "_output": kernels.OUTPUT,
    "_hidden_gradient": kernels.HIDDEN_GRADIENT,
    "_input_gradient": kernels.INPUT_GRADIENT,
    "_pair_gradient": kernels.PAIR_GRADIENT,
    "_down_gradient": kernels.DOWN_GRADIENT,
}
SHARED_BYTES = 227 * 1024
"""That one program may have."""


@pytest.mark.parametrize("d_expert", [224, 220, 154])
@pytest.mark.parametrize("name", KERNELS)
def test_products_run_on_tensor_cores_and_spill_nothing(compile_for_sm90, name, d_expert):
    weights = (torch.empty(2, *sizes) for sizes in ((32, d_expert), (32, d_expert), (d_expert, 32)))
    width = op.padded(*weights)[0].shape[2]
    kernel, tile = getattr(kernels, name), KERNELS[name]
    signature = {
        **dict.fromkeys(kernel.arg_names, "*bf16:16"),
        **dict.fromkeys(("tokens",), "*i64:16"),
        **dict.fromkeys(("tiles", "ends"), "*i32:16"),
        **dict.fromkeys(("weights", "shares"), "*fp32:16"),
        **dict.fromkeys(("n_tiles",), "i32"),
        **dict.fromkeys(("n_rows", "d_model"), "i32:16"),
        "d_expert": "i32" if width % 16 else "i32:16",
    }
    constants = {"ROWS": tile.rows, "COLS": tile.cols, "DEPTH": tile.depth}
    made = compile_for_sm90(
        kernel, signature, constants, num_warps=tile.warps, num_stages=tile.stages
    )

    assert made.spills == 0
    assert made.shared_bytes <= SHARED_BYTES
    assert "wgmma.mma_async" in made.ptx
    assert "cp.async.cg.shared.global" in made.ptx
    # No two-byte loads or stores, of which there are up to 192 where a width is no multiple of 16.
    assert ".E.U16" not in made.sass
