"""Every value is written, and depends on the seed and its name alone."""

import re
from importlib import import_module

import pytest
import torch
from torch import nn

from workloads.architectures import dense, memory_plus
from workloads.layers.modules.init import initialise
from workloads.layers.modules.linear import Embedding, Linear

BACKBONE = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "qk_norm": True}
MEMORY = {**BACKBONE, "n_keys": 8, "n_memory_heads": 2, "knn": 4, "memory_qk_norm": True}


def _started(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    model = memory_plus.Config(**MEMORY).build(11).to(dtype)
    initialise(model, seed)
    return model.state_dict()


def test_same_seed_gives_the_same_values_and_another_seed_others():
    first, again, other = _started(3), _started(3), _started(4)

    assert all(torch.equal(first[name], again[name]) for name in first)
    changed = {name for name in first if not torch.equal(first[name], other[name])}
    assert {"embedding.weight", "memory_table.weight", "layers.1.feed_forward.sub_keys"} <= changed


def test_values_ignore_the_global_generator_and_leave_it_alone():
    torch.manual_seed(1)
    first = _started()
    torch.manual_seed(2)
    before = torch.get_rng_state()

    second = _started()

    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_architectures_start_alike_where_names_and_shapes_agree():
    plain = dense.Config(**BACKBONE).build(11)
    initialise(plain, 0)
    values = _started()
    shared = {
        n for n, v in plain.state_dict().items() if n in values and values[n].shape == v.shape
    }

    assert {"embedding.weight", "layers.0.feed_forward.down.weight", "head.weight"} <= shared
    assert all(torch.equal(plain.state_dict()[name], values[name]) for name in shared)


@pytest.mark.parametrize("name", ["dense", "memory_plus", "latent_attention", "moe"])
def test_depth_scaled_outputs_are_the_plain_ones_over_the_root_of_twice_the_layers(name):
    architecture = import_module(f"workloads.architectures.{name}")
    shape = {**architecture.PRESETS["d8"], "n_layers": 8}
    plain = architecture.Config(**shape).build(11)
    scaled = architecture.Config(**shape, output_init="depth_scaled").build(11)
    for model in (plain, scaled):
        initialise(model, 0)

    values = scaled.state_dict()
    outputs = {
        key for key in values if re.search(r"mixer\.output|(feed_forward|shared)\.down", key)
    }
    # Memories and routed experts begin as they did.
    outputs = {key for key in outputs if key.endswith("weight")}
    assert {f"layers.{layer}.mixer.output.weight" for layer in range(8)} <= outputs
    for key, value in plain.state_dict().items():
        expected = value / 4.0 if key in outputs else value  # sqrt(2 * 8)
        torch.testing.assert_close(values[key], expected, equal_nan=True)


def test_other_types_get_the_rounded_values():
    single, half = _started(), _started(dtype=torch.bfloat16)

    assert all(torch.equal(single[name].to(half[name].dtype), half[name]) for name in single)


def test_parameters_of_one_model_do_not_repeat_each_other():
    values = _started()

    first, second = (values[f"layers.{i}.mixer.output.weight"] for i in range(2))
    assert not torch.equal(first, second)


def test_scales():
    model = memory_plus.Config(**{**MEMORY, "d_model": 64, "n_keys": 64}).build(500)
    initialise(model, 0)
    values = model.state_dict()

    assert values["memory_table.weight"].std() == pytest.approx(64**-0.5, rel=0.02)
    assert values["embedding.weight"].std() == pytest.approx(64**-0.5, rel=0.03)
    assert values["embedding.weight"].abs().max() <= 3 * 64**-0.5
    sub_keys = values["layers.1.feed_forward.sub_keys"]
    assert sub_keys.abs().max() <= 32**-0.5
    assert sub_keys.abs().max() > 0.95 * 32**-0.5
    biases = [value for name, value in values.items() if name.endswith("bias")]
    assert len(biases) == 3
    assert all(not bias.any() for bias in biases)


def test_a_module_that_does_not_say_how_it_begins_is_named():
    model = nn.Sequential(Linear(2, 2), nn.Linear(2, 2))

    with pytest.raises(TypeError, match="1: Linear owns weight but has no `initialise`"):
        initialise(model, 0)


def test_building_draws_nothing():
    torch.manual_seed(0)
    before = torch.get_rng_state()

    Linear(4, 4)
    Embedding(4, 4)

    assert torch.equal(torch.get_rng_state(), before)
