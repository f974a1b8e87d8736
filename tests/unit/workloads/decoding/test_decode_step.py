"""One decoding step, and what its capture must leave alone."""

from contextlib import nullcontext

import torch

from workloads.architectures import dense
from workloads.decoding.decode_step import DecodeStep
from workloads.decoding.sampling import GREEDY
from workloads.layers.cache import Cache
from workloads.layers.modules.init import initialise


def test_the_run_that_is_captured_writes_no_length_of_its_own():
    model = dense.Config(d_model=8, n_layers=1, n_heads=2, d_ff=16).build(11).eval()
    initialise(model, 0)
    cache = Cache(2, 9)
    step = DecodeStep(model, cache, GREEDY, autocast=nullcontext)
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3], [4, 5, 6]]), cache)

        step._run_second()

    # What a CUDA graph repeats: it must go on from the lengths that it finds.
    assert cache.lengths.tolist() == [4, 4]
