"""The fused step says what the model says, in plain torch; its kernels have tests of their own."""

import pytest
import torch

from workloads.architectures import dense, engram, memory, memory_plus, moe, peer, pythia
from workloads.decoding import fused_model
from workloads.decoding.fused_model import FusedModel, fused
from workloads.layers.cache import Cache
from workloads.layers.modules.init import initialise

BACKBONE = {"d_model": 32, "n_layers": 3, "n_heads": 2}
EXPERTS = {**BACKBONE, "d_expert": 24, "n_experts": 4}
FFN = {**BACKBONE, "d_ff": 40}
CONFIGS = {
    "dense": dense.Config(**FFN),
    "grouped keys, normed heads": dense.Config(**{**FFN, "n_kv_heads": 1}, qk_norm=True),
    "tied": dense.Config(**FFN, tied_embeddings=True),
    "memory_plus": memory_plus.Config(**FFN, n_keys=8, knn=4),
    "memory_plus, normed keys": memory_plus.Config(**FFN, n_keys=8, knn=4, memory_qk_norm=True),
    "memory without gate": memory.Config(**FFN, n_keys=8, knn=4, value_dim=16),
    "memory beside": memory.Config(**FFN, n_keys=8, knn=4, beside_ffn=True),
    "moe": moe.Config(**EXPERTS, top_k=2, n_shared_experts=1, renormalise=True),
    "moe, biased": moe.Config(**EXPERTS, top_k=1, selection_bias=True),
    "engram": engram.Config(**FFN, rows_per_head=64, n_hash_heads=2),
    "peer": peer.Config(**FFN, n_keys=8, knn=4),
}


def _model(config):
    model = config.build(19)
    initialise(model, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            # Gains and biases that do something.
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@torch.inference_mode()
def test_logits_and_cache_are_those_of_the_model(config, monkeypatch):
    # Four sequences are few for one of the mixtures, and many for the other.
    monkeypatch.setattr(fused_model, "MOST_ROUTED", 4)
    model = _model(config)
    tokens = torch.randint(19, (4, 9), generator=torch.Generator().manual_seed(1))
    caches = [Cache(4, 12), Cache(4, 12)]
    for cache in caches:
        model(tokens[:, :5], cache)
    expected = [model(tokens[:, place, None], caches[0]) for place in range(5, 9)]

    step = FusedModel(model)
    found = [step(tokens[:, place, None], caches[1]) for place in range(5, 9)]

    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(caches[1].layers.values(), caches[0].layers.values(), strict=True):
        torch.testing.assert_close(mine.tensors, theirs.tensors, rtol=1e-4, atol=1e-5)


def test_a_model_of_other_blocks_is_left_as_it_is():
    model = _model(pythia.Config(**FFN))

    assert fused(model) is model
