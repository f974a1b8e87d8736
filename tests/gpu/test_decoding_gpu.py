"""Decoding by a replayed CUDA graph: what full passes choose, and what plain steps do in bf16."""

import pytest
import torch

from orchestrator.sweep import registry
from workloads.architectures import dense
from workloads.decoding.decoder import Decoder, NotANumberError
from workloads.layers.modules.init import initialise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 0, 2]]
N_TOKENS = 24


def _model(name, preset):
    module = registry.architecture(name)
    with torch.device("cuda"):
        model = module.Config(**module.PRESETS[preset]).build(37)
    initialise(model, 0)
    return model.eval()


@pytest.mark.parametrize("name", registry.architectures())
def test_a_replayed_step_chooses_what_full_passes_do(name):
    torch.set_float32_matmul_precision("highest")
    model = _model(name, "d16")

    found = Decoder(model).generate(PROMPTS, n_tokens=N_TOKENS)

    with torch.no_grad():
        for prompt, continuation in zip(PROMPTS, found, strict=True):
            logits = model(torch.tensor([[*prompt, *continuation]], device="cuda"))[0]
            expected = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
            assert continuation == expected


@pytest.mark.parametrize("bf16", [False, True])
def test_a_replayed_step_notices_nan(bf16):
    with torch.device("cuda"):
        model = dense.Config(d_model=32, n_layers=2, n_heads=2, d_ff=48).build(37)
    initialise(model, 0)
    decoder = Decoder(model, bf16=bf16)
    added = {token: decoder.generate([[token]], n_tokens=1)[0][0] for token in range(37)}
    token, added_to_it = next(pair for pair in added.items() if len({*pair}) == 2)
    with torch.no_grad():  # no prompt holds it, so it is a replayed step that reads it
        model.embedding.weight[added_to_it] = torch.nan

    with pytest.raises(NotANumberError, match="NaN or infinite"):
        Decoder(model, bf16=bf16).generate([[token]], n_tokens=N_TOKENS)


@pytest.mark.parametrize("name", ["dense", "moe", "memory", "memory_plus"])
def test_the_fused_step_follows_the_plain_one_in_bf16(name):
    """A token may differ where two logits are as good as equal; early ones must not all differ."""
    model = _model(name, "10m")

    fused = Decoder(model, bf16=True).generate(PROMPTS, n_tokens=N_TOKENS)
    plain = Decoder(model, bf16=True, capture=False).generate(PROMPTS, n_tokens=N_TOKENS)

    same = [a == b for x, y in zip(fused, plain, strict=True) for a, b in zip(x, y, strict=True)]
    assert sum(same) > 0.5 * len(same)
