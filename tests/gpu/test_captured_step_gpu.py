"""Captured steps have the bits of steps that are launched kernel by kernel, tables included."""

from contextlib import nullcontext

import pytest
import torch

from orchestrator.sweep import registry
from workloads.layers.modules.init import initialise
from workloads.training.config import TrainConfig
from workloads.training.device import gpu_stream, numerics
from workloads.training.optimizer.table_optimizer import RULE_OF
from workloads.training.step.cuda_graph import CapturedStep, capture_if_possible
from workloads.training.step.train_step import WARM_UP_STEPS, TrainStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
HERE = torch.device("cuda", 0)
VOCAB_SIZE = 64
N_STEPS = 2 * WARM_UP_STEPS + 4


@pytest.fixture(autouse=True)
def _as_trials_compute():
    with numerics(HERE, n_threads=1, bf16=False), gpu_stream(HERE):
        yield


def step_of(name: str, **changes: object) -> TrainStep:
    config = registry.architecture(name)
    with HERE:
        model = config.Config(**config.PRESETS["d16"]).build(VOCAB_SIZE)
    initialise(model, 0)
    train = {"tokens": 10**6, "batch_tokens": 256, "seq_len": 32, "lr": 0.01, **changes}
    return TrainStep(model.train(), TrainConfig(**train), passes=1, autocast=nullcontext, seed=3)


def trained(step: TrainStep | CapturedStep) -> list[torch.Tensor]:
    """Return the numbers of all steps, under rates that change, and what they leave."""
    draw = torch.Generator().manual_seed(1)
    numbers = []
    for number in range(N_STEPS):
        windows = torch.randint(VOCAB_SIZE, (8, 33), generator=draw).to(HERE)
        torch.cuda.manual_seed(number)
        found = step(windows, lr=0.01 / (1 + number), value_lr_ratio=1.0 + number)
        numbers += [value.clone() for _, value in sorted(found.items())]
    left = [parameter.detach() for parameter in step.model.parameters()]
    tables = step.optimizer.tables
    if tables is not None:
        assert set(tables.state_dict()["steps"].values()) == {N_STEPS}
        left += [
            each for state in tables.state_dict()["states"].values() for each in state.values()
        ]
    return [*numbers, *left]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_master"])
@pytest.mark.parametrize("clip", ["exact", "previous"])
@pytest.mark.parametrize("rule", [*RULE_OF])
@pytest.mark.parametrize("name", ["memory_plus", "ultramem_v2"])
def test_a_captured_step_has_the_bits_of_a_plain_one(name, rule, clip, precision):
    changes = {
        "table_optimizer": rule,
        "table_precision": precision,
        "table_clip": clip,
        "grad_clip": 0.5,
        "value_weight_decay": 0.1,
    }
    captured = capture_if_possible(step_of(name, **changes), bf16=False)
    assert isinstance(captured, CapturedStep)

    expected, found = trained(step_of(name, **changes)), trained(captured)

    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
