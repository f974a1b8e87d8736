"""Every architecture on CUDA: what the CPU computes, in bf16 too, and without making the host wait."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.sweep import registry
from workloads.layers.cache import Cache
from workloads.layers.modules.init import initialise
from workloads.training.device import gpu_stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

VOCAB_SIZE = 37
NAMES = registry.architectures()


def _config(name: str, preset: str = "d16") -> Any:
    module = registry.architecture(name)
    return module.Config(**module.PRESETS[preset])


def _model(config: Any, device: str) -> nn.Module:
    with torch.device(device):
        model: nn.Module = config.build(VOCAB_SIZE)
    initialise(model, 0)
    return model


def _tokens(seed: int, batch: int = 4, seq: int = 33) -> Tensor:
    return torch.randint(VOCAB_SIZE, (batch, seq), generator=torch.Generator().manual_seed(seed))


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    auxiliary = model.auxiliary_loss()
    return loss if auxiliary is None else loss + auxiliary


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_are_those_of_the_cpu(name):
    torch.set_float32_matmul_precision("highest")
    config, tokens = _config(name), _tokens(0)
    found = {}
    for device in ("cpu", "cuda"):
        model = _model(config, device)
        loss = _loss(model, tokens.to(device))
        loss.backward()
        gradients = {n: p.grad.cpu() for n, p in model.named_parameters()}
        found[device] = (loss.item(), gradients)

    assert found["cuda"][0] == pytest.approx(found["cpu"][0], rel=1e-5)
    for parameter, expected in found["cpu"][1].items():
        gradient = found["cuda"][1][parameter]
        scale = expected.abs().max().clamp_min(1e-6)
        # A row on the edge of being chosen may fall the other way; nearly all agree.
        off = ((gradient - expected).abs() > 1e-3 * scale).double().mean()
        assert off < 0.02, parameter


@pytest.mark.parametrize("name", NAMES)
def test_bf16_training_lowers_the_loss(name):
    model = _model(_config(name), "cuda")
    tokens = _tokens(0).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    for _ in range(30):
        with torch.autocast("cuda", torch.bfloat16):
            loss = _loss(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", ["dense", "latent_attention"])
@pytest.mark.parametrize("preset", ["d8", "d16", "d24"])
def test_narrow_heads_train_with_the_kernels_of_the_training_loop(name, preset):
    model, tokens = _model(_config(name, preset), "cuda"), _tokens(0).cuda()
    with gpu_stream(torch.device("cuda")), torch.autocast("cuda", torch.bfloat16):
        _loss(model, tokens).backward()
        torch.cuda.synchronize()

    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_decoding_with_a_cache_equals_the_full_pass(name):
    model = _model(_config(name), "cuda").eval()
    tokens = _tokens(1, seq=20).cuda()
    cache = Cache(4, 20, device=tokens.device)

    with torch.no_grad():
        whole = model(tokens)
        parts = [model(piece, cache) for piece in tokens.split([7, 1, 1, 11], dim=1)]

    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", NAMES)
def test_a_training_pass_does_not_make_the_host_wait(name, never_waiting):
    # In fp32 experts run in a loop, which reads their loads on the host.
    model = _model(_config(name, "1m"), "cuda")
    tokens = _tokens(0).cuda()

    def one_pass() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = _loss(model, tokens)
        loss.backward()

    one_pass()
    with never_waiting():
        one_pass()
