"""Wait for an asynchronous product of tensor cores (wgmma), where Triton does not."""

import triton
from triton import language as tl


@triton.jit
def wait_for_product(acc, ASSEMBLY: tl.constexpr):
    """Return the fp32 sums `acc` once the product that adds to them has ended.

    Tensor cores read a left factor from registers while the program goes on. In a loop, Triton (3.6
    and 3.7) writes the next factor into these registers with up to three products under way: now
    and then a sum was NaN. A use of the sums makes it wait. This one takes no instruction.
    `ASSEMBLY` is false in the interpreter, which knows none and needs no waiting.
    """
    if ASSEMBLY:
        return tl.inline_asm_elementwise("", "=f,0", [acc], dtype=tl.float32, is_pure=True, pack=1)
    return acc
