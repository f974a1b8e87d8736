"""Every architecture on two ranks: the same initial values, and the gradient that one rank alone computes."""

import json

import pytest

from orchestrator.sweep import registry

RANK = """
import dataclasses, hashlib, json
from contextlib import nullcontext
import torch
from orchestrator.sweep import registry
from workloads.distributed import process_group
from workloads.layers.modules.init import initialise
from workloads.training.checkpointing import weights
from workloads.training.step.train_step import accumulate_gradients

# Measured per sequence, and loud, what layers add to the loss is the same however sequences are
# shared out.
ADDING = {"moe": {"group": "sequence", "balance_loss": 1.0, "z_loss": 1.0}}
windows = torch.randint(37, (6, 17), generator=torch.Generator().manual_seed(0))

found = {}
with process_group.join(rank=rank, size=size, device=torch.device("cpu"), rendezvous=folder / f"meet-{size}") as world:
    share = world.local_range(len(windows))
    for name in registry.architectures():
        module = registry.architecture(name)
        config = module.Config(**module.PRESETS["d16"])
        if name in ADDING:
            config = dataclasses.replace(config, **ADDING[name])
        model = config.build(37)
        initialise(model, 0)
        digest = hashlib.sha256()
        for key, tensor in sorted(weights(model).items()):
            digest.update(key.encode() + tensor.numpy().tobytes())
        losses = accumulate_gradients(
            model, windows[share.start : share.stop], batch_tokens=96, passes=1, autocast=nullcontext
        )
        gradients = {key: p.grad for key, p in model.named_parameters()}
        world.all_reduce_sum([*losses.values(), *gradients.values()])
        found[name] = {
            "initial": digest.hexdigest(),
            "losses": {key: loss.item() for key, loss in losses.items()},
            "norms": {key: gradient.double().norm().item() for key, gradient in gradients.items()},
        }
(folder / f"{rank}-of-{size}.json").write_text(json.dumps(found))
"""


def test_two_ranks_begin_with_one_ranks_values_and_find_its_gradient(tmp_path, run_ranks):
    for size in (1, 2):
        run_ranks(RANK, size, {"size": size, "folder": tmp_path})
    alone, first, second = (
        json.loads((tmp_path / f"{name}.json").read_text())
        for name in ("0-of-1", "0-of-2", "1-of-2")
    )

    assert set(alone) == set(registry.architectures())
    for name, expected in alone.items():
        assert first[name]["initial"] == second[name]["initial"] == expected["initial"], name
        assert first[name] == second[name], name
        for kind in ("losses", "norms"):
            assert first[name][kind] == pytest.approx(expected[kind], rel=2e-4, abs=1e-6), name
    assert "auxiliary_loss" in alone["moe"]["losses"]
