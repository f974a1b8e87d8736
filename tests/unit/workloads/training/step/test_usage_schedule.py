"""Usage statistics of several ranks, against those of one process."""

import json

import pytest
import torch

from workloads.architectures import memory_plus, moe
from workloads.layers.modules.init import initialise
from workloads.training.step.usage_schedule import usage_statistics

WINDOWS = torch.randint(37, (3, 5, 16), generator=torch.Generator().manual_seed(0))
CONFIGS = {
    "memory_plus": memory_plus.Config(
        d_model=16, n_layers=2, n_heads=2, d_ff=24, n_keys=6, knn=2, key_dim=4, memory_layers=(0, 1)
    ),
    "moe": moe.Config(d_model=16, n_layers=2, n_heads=2, n_experts=4, d_expert=8, top_k=1),
}
RANK = """
import json
import torch
from workloads.distributed import process_group
from workloads.layers.modules.init import initialise
from workloads.layers.modules.usage_stats import Usage
from workloads.training.step.usage_schedule import usage_of_all_ranks, usage_statistics

def model_of(config):
    model = config.build(37)
    initialise(model, 0)
    return model.train()

found = {}
here = torch.device("cpu")
with process_group.join(rank=rank, size=2, device=here, rendezvous=folder / "meet") as world:
    share = world.local_range(5)
    for name, config in configs.items():
        model = model_of(config)
        found[name] = []
        for step, batch in enumerate(windows):
            with usage_of_all_ranks(model, world):
                model(batch[share.start : share.stop])
            if step == 1:
                found[name].append(usage_statistics(model))
            if step == 0:  # resume from rank 0's checkpoint
                state = [model.state_dict()]
                torch.distributed.broadcast_object_list(state)
                model = model_of(config)
                model.load_state_dict(state[0])
        found[name].append(usage_statistics(model))
(folder / f"{rank}.json").write_text(json.dumps(found))
"""


def of_one_process(config):
    """Return the statistics of steps 1 and 2, then of step 3, in passes of the ranks' sizes."""
    model = config.build(37)
    initialise(model, 0)
    model.train()
    reports = []
    for step, batch in enumerate(WINDOWS):
        for share in (batch[:2], batch[2:]):
            model(share)
        if step >= 1:
            reports.append(usage_statistics(model))
    return reports


def recorded(report):
    """Return a report without the flags of rows ever read, which the trainer joins elsewhere."""
    return {name: value for name, value in report.items() if not name.endswith("usage_ever")}


def test_ranks_report_the_use_by_all_tokens_also_after_a_resume(tmp_path, run_ranks):
    run_ranks(RANK, 2, {"folder": tmp_path, "windows": WINDOWS, "configs": CONFIGS})

    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for name, config in CONFIGS.items():
        expected = of_one_process(config)
        assert len(first[name]) == len(second[name]) == len(expected) == 2
        for one, other, alone in zip(first[name], second[name], expected, strict=True):
            assert recorded(one) == recorded(other)
            assert recorded(one) == pytest.approx(recorded(alone), rel=1e-5)
