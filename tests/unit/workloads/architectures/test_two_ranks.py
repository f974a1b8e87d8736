"""Every architecture on two ranks: the same initial values, and the gradient that one rank alone computes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import catalog

RANK = """
import dataclasses, hashlib, json, sys
from contextlib import nullcontext
from pathlib import Path
import torch
from orchestrator import catalog
from workloads import ranks
from workloads.layers.initialise import initialise
from workloads.train import accumulate_gradients, weights

rank, size, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
torch.set_num_threads(1)
# Measured per sequence, and loud, what layers add to the loss is the same however sequences are shared out.
ADDING = {"moe": {"group": "sequence", "balance_loss": 1.0, "z_loss": 1.0}}
windows = torch.randint(37, (6, 17), generator=torch.Generator().manual_seed(0))
found = {}
with ranks.join(rank=rank, size=size, device=torch.device("cpu"), rendezvous=out.parent / f"meet-{size}") as world:
    share = world.share(len(windows))
    for name in catalog.architectures():
        module = catalog.architecture(name)
        config = module.Config(**module.PRESETS["d16"])
        if name in ADDING:
            config = dataclasses.replace(config, **ADDING[name])
        model = config.build(37)
        initialise(model, 0)
        digest = hashlib.sha256()
        for key, tensor in sorted(weights(model).items()):
            digest.update(key.encode() + tensor.numpy().tobytes())
        losses = accumulate_gradients(
            model, windows[share.start : share.stop], batch_tokens=96, rows=6, autocast=nullcontext
        )
        gradients = {key: p.grad for key, p in model.named_parameters()}
        world.sum_([*losses.values(), *gradients.values()])
        found[name] = {
            "initial": digest.hexdigest(),
            "losses": {key: loss.item() for key, loss in losses.items()},
            "norms": {key: gradient.double().norm().item() for key, gradient in gradients.items()},
        }
out.write_text(json.dumps(found))
"""


def _run(folder: Path, size: int) -> list[dict[str, dict[str, object]]]:
    outs = [folder / f"{rank}-of-{size}.json" for rank in range(size)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(size), str(out)],
            cwd=Path(__file__).parents[4],
        )
        for rank, out in enumerate(outs)
    ]
    try:
        assert [process.wait(timeout=240) for process in processes] == [0] * size
    finally:
        for process in processes:
            process.kill()
    return [json.loads(out.read_text()) for out in outs]


def test_two_ranks_begin_with_one_ranks_values_and_find_its_gradient(tmp_path):
    (alone,) = _run(tmp_path, 1)
    first, second = _run(tmp_path, 2)

    assert set(alone) == set(catalog.architectures())
    for name, expected in alone.items():
        assert first[name]["initial"] == second[name]["initial"] == expected["initial"], name
        assert first[name] == second[name], name
        for kind in ("losses", "norms"):
            assert first[name][kind] == pytest.approx(expected[kind], rel=2e-4, abs=1e-6), name
    assert "auxiliary_loss" in alone["moe"]["losses"]
