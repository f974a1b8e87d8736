"""Warm-up of the compiler in the fork server, once for all ranks.

It imports and works out what a rank's first compilation needs. None of it may open CUDA, which
would forbid forking.
"""

import contextlib

import torch._dynamo.backends.inductor
import torch._dynamo.repro.after_dynamo
import torch._functorch.aot_autograd
import torch._inductor.codegen.triton
import torch._inductor.compile_fx
import torch._inductor.runtime.triton_heuristics  # noqa: F401 -- for what importing does
from torch._inductor.codecache import torch_key

# Both keys are hashes over the compilers' own source files, 0.3 s and 0.4 s, kept by their makers.
torch_key()
with contextlib.suppress(ImportError):  # a CPU's torch comes without Triton
    from triton.runtime.cache import triton_key

    triton_key()
