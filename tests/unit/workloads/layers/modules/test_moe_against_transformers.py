"""The mixture of experts against ones that are not ours: those of the transformers library.

OLMoE; Mixtral, whose weights are over the chosen experts; and DeepSeek-V2, which has shared experts
besides. Their routers work in fp32, for the comparison in float64.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.layers.context import Context
from workloads.layers.modules.init import initialise
from workloads.layers.modules.moe import MixtureOfExperts, MixtureShape

OLMOE = MixtureShape(d_model=6, n_experts=5, d_expert=4, top_k=2)
MIXTRAL = MixtureShape(d_model=6, n_experts=5, d_expert=4, top_k=2, renormalise=True)
DEEPSEEK_V2 = MixtureShape(d_model=6, n_experts=5, d_expert=4, top_k=2, n_shared_experts=3)


def _theirs(shape: MixtureShape) -> nn.Module:
    """Return their block, its values open."""
    # Seconds to import, so only where a test of this file runs.
    from transformers.models.deepseek_v2 import modeling_deepseek_v2
    from transformers.models.mixtral import modeling_mixtral
    from transformers.models.olmoe import modeling_olmoe

    fields = {
        "hidden_size": shape.d_model,
        "num_attention_heads": 1,
        "num_experts_per_tok": shape.top_k,
    }
    block: nn.Module
    if shape.n_shared_experts:
        block = modeling_deepseek_v2.DeepseekV2Moe(
            modeling_deepseek_v2.DeepseekV2Config(
                **fields,
                n_routed_experts=shape.n_experts,
                moe_intermediate_size=shape.d_expert,
                n_shared_experts=shape.n_shared_experts,
            )
        )
    elif shape.renormalise:
        block = modeling_mixtral.MixtralSparseMoeBlock(
            modeling_mixtral.MixtralConfig(
                **fields, num_local_experts=shape.n_experts, intermediate_size=shape.d_expert
            )
        )
    else:
        block = modeling_olmoe.OlmoeSparseMoeBlock(
            modeling_olmoe.OlmoeConfig(
                **fields, num_experts=shape.n_experts, intermediate_size=shape.d_expert
            )
        )
    return block.double()


def _to_theirs(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return our numbers, or their gradients, under their names and in their layout."""
    renamed = {
        "gate.weight": ours["router.weight"],
        "experts.gate_up_proj": torch.cat((ours["experts.gate"].mT, ours["experts.up"].mT), dim=1),
        "experts.down_proj": ours["experts.down"].mT,
    }
    for part in ("gate", "up", "down"):
        if f"shared.{part}.weight" in ours:
            renamed[f"shared_experts.{part}_proj.weight"] = ours[f"shared.{part}.weight"]
    return renamed


@pytest.mark.parametrize(
    "shape", [OLMOE, MIXTRAL, DEEPSEEK_V2], ids=["olmoe", "mixtral", "deepseek_v2"]
)
def test_outputs_and_gradients(shape, monkeypatch):
    ours, theirs = MixtureOfExperts(shape).double(), _theirs(shape)
    initialise(ours, 0)
    theirs.load_state_dict(_to_theirs(ours.state_dict()))
    x = torch.randn(2, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    context = Context(tokens=torch.zeros(2, 9, dtype=torch.long))

    found = ours(x, context)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(Tensor, "float", Tensor.double)
        patch.setattr(functional, "softmax", lambda x, dim, dtype=None: x.softmax(dim))
        expected = theirs(x)

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    gradients = []
    for model, y in ((ours, found), (theirs, expected)):
        y.square().sum().backward()
        gradients.append({name: value.grad for name, value in model.named_parameters()})
    torch.testing.assert_close(_to_theirs(gradients[0]), gradients[1], rtol=1e-11, atol=1e-13)
