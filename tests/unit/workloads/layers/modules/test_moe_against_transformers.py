"""The mixture of experts against one that is not ours: OLMoE's of the transformers library.

With weights over the chosen experts it is Mixtral's rule. Its router takes the softmax in fp32, for
the comparison in float64.
"""

import pytest
import torch
from torch.nn import functional

from workloads.layers.context import Context
from workloads.layers.modules.init import initialise
from workloads.layers.modules.moe import MixtureOfExperts, MixtureShape


@pytest.mark.parametrize("renormalise", [False, True], ids=["olmoe", "mixtral"])
def test_outputs_and_gradients_are_those_of_olmoe(renormalise, monkeypatch):
    from transformers.models.olmoe import modeling_olmoe  # seconds, so only where a test runs

    monkeypatch.setattr(functional, "softmax", lambda x, dim, dtype: x.softmax(dim))
    shape = MixtureShape(d_model=6, n_experts=5, d_expert=4, top_k=2, renormalise=renormalise)
    ours = MixtureOfExperts(shape).double()
    initialise(ours, 0)
    config = modeling_olmoe.OlmoeConfig(
        hidden_size=6,
        intermediate_size=4,
        num_experts=5,
        num_experts_per_tok=2,
        norm_topk_prob=renormalise,
    )
    theirs = modeling_olmoe.OlmoeSparseMoeBlock(config).double()
    gate, up, down = (p.detach() for p in (ours.experts.gate, ours.experts.up, ours.experts.down))
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.weight)
        theirs.experts.gate_up_proj.copy_(torch.cat((gate.mT, up.mT), dim=1))
        theirs.experts.down_proj.copy_(down.mT)
    x = torch.randn(2, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    context = Context(tokens=torch.zeros(2, 9, dtype=torch.long))

    found, expected = ours(x, context), theirs(x)

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    routers = [ours.router.weight, theirs.gate.weight]
    downs = [ours.experts.down, theirs.experts.down_proj]
    of = [
        torch.autograd.grad(y.square().sum(), list(parameters))
        for y, parameters in zip((found, expected), zip(routers, downs, strict=True), strict=True)
    ]
    torch.testing.assert_close(of[0][0], of[1][0], rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(of[0][1], of[1][1].mT, rtol=1e-11, atol=1e-13)
