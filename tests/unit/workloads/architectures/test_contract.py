"""What every architecture promises, whatever it is. A new file in workloads/architectures is under test by being there.

The cases are the smallest presets. What is special about an architecture stands in its own test
file.
"""

import ast
import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from orchestrator.sweep import registry
from workloads.accounting.counts import ParamCount
from workloads.checkpoint import checkpoint
from workloads.decoding.decoder import Decoder
from workloads.layers.backbone.llama import SMALL, TINY
from workloads.layers.cache import Cache
from workloads.layers.modules.init import initialise
from workloads.layers.modules.param_groups import param_groups
from workloads.layers.modules.usage_stats import MemoryUsage
from workloads.training.checkpointing import load_weights, weights
from workloads.training.config import TrainConfig
from workloads.training.optimizer.adamw import Optimizer

VOCAB_SIZE = 37
CACHE_HINT = (
    "A layer of this model does not go on from its cache as it does within one pass. Does it call "
    "set_state before it has used what state returned? docs/add-an-architecture.md"
)
NAMES = registry.architectures()


@functools.cache
def _smallest(name: str) -> Any:
    """The Config of an architecture's smallest preset."""
    module = registry.architecture(name)
    configs = [module.Config(**fields) for fields in module.PRESETS.values()]
    return min(configs, key=lambda config: config.param_count(VOCAB_SIZE).total)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # What presets leave off and what has parameters, buffers or state of its own.
    "memory with batch norm": ("memory", {"query_batch_norm": True}),
    "moe with a selection bias": ("moe", {"selection_bias": True}),
    "moe, experts choose": (
        "moe",
        {"routing": "expert_choice", "top_k": 1, "n_shared_experts": 1},
    ),
    "memory_plus with tables and a gate of its own": (
        "memory_plus",
        {"share_values": False, "n_layers": 6, "gate": "scalar", "score": "softmax_sink"},
    ),
    "engram with a shared table": ("engram", {"shared_table": True}),
    "engram without memory, on experts": ("engram", {"rows_per_head": 1, "base": "moe"}),
    "memory_plus on experts": ("memory_plus", {"base": "moe", "n_layers": 3}),
}


@pytest.fixture(params=[*NAMES, *VARIANTS])
def config(request: pytest.FixtureRequest) -> Any:
    name, changes = VARIANTS.get(request.param, (request.param, {}))
    return dataclasses.replace(_smallest(name), **changes)


def _model(config: Any, seed: int = 0) -> nn.Module:
    model: nn.Module = config.build(VOCAB_SIZE)
    initialise(model, seed)
    return model


def _tokens(seed: int, batch: int = 3, seq: int = 12) -> Tensor:
    return torch.randint(VOCAB_SIZE, (batch, seq), generator=torch.Generator().manual_seed(seed))


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    auxiliary = model.auxiliary_loss()  # type: ignore[operator]
    return loss if auxiliary is None else loss + auxiliary


def _train(config: Any, steps: int) -> list[float]:
    model, tokens = _model(config), _tokens(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = _loss(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_there_are_architectures():
    assert {"dense", "memory_plus"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_a_config_and_counts_its_meta_device_model_group_by_group(name):
    module = registry.architecture(name)
    for preset, fields in module.PRESETS.items():
        config = module.Config(**fields)
        with torch.device("meta"):
            model = config.build(VOCAB_SIZE)
        found = dict.fromkeys(ParamCount().as_dict(), 0)
        groups = param_groups(model)
        for parameter_name, parameter in model.named_parameters():
            found[groups[parameter_name]] += parameter.numel()

        assert config.param_count(VOCAB_SIZE).as_dict() == found, preset


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_has_the_small_presets(name):
    module = registry.architecture(name)

    assert {*TINY, *SMALL} <= set(module.PRESETS)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_activations_are_about_those_that_autograd_keeps(name, precision, bytes_kept):
    module = registry.architecture(name)
    config = module.Config(**module.PRESETS["d32"])
    model = _model(config)
    model.recording_usage = False
    tokens = torch.zeros(16, 64, dtype=torch.long)

    kept = bytes_kept(model, tokens, precision) / tokens.numel()

    # Logits and probabilities belong to the loss, which is not taken here.
    loss = (8 if precision == "fp32" else 6) * VOCAB_SIZE
    expected = config.activation_bytes_per_token(VOCAB_SIZE, 64, precision=precision) - loss
    assert kept == pytest.approx(expected, rel=0.15)


def test_the_residual_stream_has_the_type_of_autocast(config):
    model, types = _model(config), []
    for layer in model.layers:
        layer.register_forward_hook(lambda layer, inputs, output: types.append(output.dtype))

    with torch.autocast("cpu", torch.bfloat16):
        model(_tokens(0, batch=2, seq=5))
    in_autocast = set(types)
    types.clear()
    model(_tokens(0, batch=2, seq=5))

    assert in_autocast == {torch.bfloat16}
    assert set(types) == {torch.float32}


def test_maps_tokens_to_logits(config):
    logits = _model(config)(_tokens(0, batch=2, seq=5))

    assert logits.shape == (2, 5, VOCAB_SIZE)
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()


def test_one_token_is_a_sequence_and_one_sequence_a_batch(config):
    assert _model(config)(_tokens(0, batch=1, seq=1)).shape == (1, 1, VOCAB_SIZE)


def test_initialise_writes_every_parameter_and_buffer(config):
    model = config.build(VOCAB_SIZE)
    never = -7  # where there is no NaN
    with torch.no_grad():
        for tensor in model.state_dict(keep_vars=True).values():
            tensor.fill_(torch.nan if tensor.is_floating_point() else never)
    unsaved = {name for name, _ in model.named_buffers()} - set(model.state_dict())

    initialise(model, 0)

    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.dtype == torch.bool:
            assert not tensor.any(), f"{name}: what is recorded begins empty"
            continue
        written = torch.isfinite(tensor) if tensor.is_floating_point() else tensor != never
        assert written.all(), name
    assert not unsaved, "buffers outside the state dict are lost on resume"


def test_every_row_read_in_training_counts_as_ever_read_recorded_or_not(config):
    ever = {}
    for observing, training in ((True, True), (False, True), (False, False)):
        model = _model(config).train(training)
        model.recording_usage = observing
        model(_tokens(0))
        ever[observing, training] = model.ever_read()
        if observing:
            read = [part.reads > 0 for part in model.modules() if isinstance(part, MemoryUsage)]

    for rows, *marked, in_evaluation in zip(read, *ever.values(), strict=True):
        assert rows.any()
        assert all(torch.equal(found, rows) for found in marked)
        assert not in_evaluation.any()


def test_a_model_from_the_meta_device_equals_one_built_in_place(config):
    with torch.device("meta"):
        model = config.build(VOCAB_SIZE)
    model = model.to_empty(device="cpu")
    initialise(model, 0)

    assert torch.equal(model(_tokens(0)), _model(config)(_tokens(0)))


def _leaks(config: Any) -> dict[str, str]:
    """Mode -> why an output can depend on later tokens there; empty for a causal architecture."""
    return getattr(config, "non_causal_reasons", {})


@pytest.mark.parametrize("training", [True, False])
def test_later_tokens_leave_earlier_logits_unchanged(config, training):
    if ("training" if training else "evaluation") in _leaks(config):
        pytest.skip("declared not to be causal in this mode")
    model = _model(config).train(training)
    tokens = _tokens(0, seq=9)
    before = model(tokens)
    later = torch.arange(9) >= torch.arange(1, 9)[:, None]  # one row for each first position

    # In one pass: which sequences are read together changes no logit of a causal architecture.
    changed = (tokens + later[:, None]) % VOCAB_SIZE
    after = model(changed.flatten(0, 1)).unflatten(0, (8, 3))

    for position, found in enumerate(after, start=1):
        torch.testing.assert_close(found[:, :position], before[:, :position], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found[:, position], before[:, position], atol=1e-3)


def test_decoding_with_a_cache_equals_the_full_pass(config):
    model = _model(config).eval()
    tokens = _tokens(0, seq=8)
    with torch.no_grad():
        whole = model(tokens)
        for pieces in ([1] * 8, [3, 1, 1, 3]):
            cache = Cache(3, 8)

            parts = [model(piece, cache) for piece in tokens.split(pieces, dim=1)]

            assert cache.lengths.tolist() == [8] * 3
            torch.testing.assert_close(
                torch.cat(parts, dim=1),
                whole,
                rtol=1e-4,
                atol=1e-5,
                msg=lambda said: f"{said}\n\n{CACHE_HINT}",
            )


def test_greedy_decoding_adds_what_a_full_pass_says(config):
    model = _model(config)
    prompts = [row[:length].tolist() for row, length in zip(_tokens(1), (5, 2, 5), strict=True)]

    added = Decoder(model).generate(prompts, n_tokens=4)

    model.eval()
    for prompt, found in zip(prompts, added, strict=True):
        # One pass says what follows each token: evaluation is causal, as the test above shows.
        following = model(torch.tensor([prompt + found]))[0].argmax(-1).tolist()
        assert following[len(prompt) - 1 : -1] == found


def test_position_matters(config):
    model = _model(config).eval()
    tokens = torch.tensor([[1, 2, 3, 4]])

    swapped = model(tokens[:, [1, 0, 2, 3]])

    assert not torch.allclose(swapped[:, -1], model(tokens)[:, -1], atol=1e-4)


def test_every_parameter_gets_a_finite_gradient(config):
    model = _model(config)

    _loss(model, _tokens(0, batch=8, seq=32)).backward()

    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


def test_starts_near_an_even_guess(config):
    guess = torch.tensor(VOCAB_SIZE).log().item()

    assert _loss(_model(config), _tokens(0, batch=16, seq=32)).item() == pytest.approx(
        guess, abs=1.0
    )


def test_ten_steps_on_one_batch_lower_the_loss_the_same_way_bit_for_bit(config):
    losses = _train(config, 10)

    assert losses[-1] < 0.8 * losses[0]
    assert _train(config, 2) == losses[:2]


def test_a_run_that_is_saved_and_resumed_is_the_undisturbed_one_bit_for_bit(config, tmp_path):
    train_config = TrainConfig(tokens=64, batch_tokens=8, seq_len=8, lr=3e-3)

    def steps(model: nn.Module, optimizer: Optimizer, which: range) -> list[float]:
        losses = []
        for step in which:
            torch.manual_seed(step)
            loss = _loss(model, _tokens(step))
            loss.backward()
            optimizer.clip()
            optimizer.step(3e-3)
            losses.append(loss.item())
        return losses

    whole = _model(config)
    expected = steps(whole, Optimizer(whole, train_config), range(4))
    first = _model(config)
    optimizer = Optimizer(first, train_config)
    steps(first, optimizer, range(2))
    state = {"weights": weights(first), "optimizer": optimizer.adamw.state_dict()}
    state = checkpoint.load(checkpoint.save(tmp_path, 2, state))
    second = _model(config, seed=1)
    optimizer = Optimizer(second, train_config)
    load_weights(second, state["weights"])
    optimizer.adamw.load_state_dict(state["optimizer"])

    assert steps(second, optimizer, range(2, 4)) == expected[2:]
    assert _statistics(second) == _statistics(whole)


def test_state_dict_carries_a_model_over(config):
    first, second = _model(config, seed=0), _model(config, seed=1)
    _loss(first, _tokens(0)).backward()

    second.load_state_dict(first.state_dict())

    assert torch.equal(first.eval()(_tokens(1)), second.eval()(_tokens(1)))
    assert _statistics(first) == _statistics(second)


def test_two_models_share_nothing(config):
    first, second = _model(config), _model(config)
    storages = {parameter.untyped_storage().data_ptr() for parameter in first.parameters()}

    assert not storages & {p.untyped_storage().data_ptr() for p in second.parameters()}


def _statistics(model: nn.Module) -> dict[str, float]:
    return model.statistics() if hasattr(model, "statistics") else {}  # type: ignore[operator]


def test_statistics_start_anew_after_each_call(config):
    model = _model(config)
    model(_tokens(0))
    values = _statistics(model)

    assert all(name.startswith(("memory/", "moe/")) for name in values)
    assert all(isinstance(v, float) and math.isfinite(v) for v in values.values())
    assert _statistics(model) == {}


def _touched(config: Any, n_tokens: int, draw: int = 0) -> dict[str, Tensor]:
    """Which parameters outside of embedding and head get a gradient from equal tokens, by name."""
    model = _model(config)
    generator = torch.Generator().manual_seed(draw)
    with torch.no_grad():
        for parameter in model.parameters():  # some begin at zero, which hides others
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    last = model(torch.full((1, n_tokens), 3))[:, -1]
    (last * torch.randn(last.shape, generator=generator)).sum().backward()
    groups = param_groups(model)
    return {
        name: parameter.grad != 0
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and groups[name] not in ("embedding", "head")
    }


def _touched_by_a_draw(config: Any, n_tokens: int, n_draws: int = 8) -> int:
    """How many get a gradient in one of several draws of the weights: a ReLU is off in half of them.

    Rows of memory tables count in the first draw alone, and all of a model with a router: another
    draw reads other rows and routes to other experts.
    """
    if getattr(config, "routing", None) is not None:
        return _total(_touched(config, n_tokens))
    touched = _touched(config, n_tokens)
    groups = param_groups(_model(config))
    for draw in range(1, n_draws):
        for name, mask in _touched(config, n_tokens, draw).items():
            if groups[name] != "memory_values":
                touched[name] = touched.get(name, False) | mask
    return _total(touched)


def _total(touched: dict[str, Tensor]) -> int:
    return sum(int(mask.sum()) for mask in touched.values())


def test_active_parameters_are_those_that_a_token_touches(config):
    count = config.param_count(VOCAB_SIZE)
    active = config.active_param_count(VOCAB_SIZE)

    assert active <= count.non_embedding, "active_params exceeds non_embedding_params"
    # Queries of rows that nobody scores with, and a position's own part, get no gradient here.
    found, untouched = _touched_by_a_draw(config, 4), count.attention + count.memory_keys
    assert active <= found + untouched, (
        f"active_params is {active}; 4 equal tokens give {found} parameters a gradient, and at most "
        f"{untouched} of attention and memory keys have none: components() counts too many as active"
    )
    if (
        getattr(config, "routing", None) != "expert_choice"
    ):  # then every expert takes the only token
        found = _total(_touched(config, 1))
        assert active >= found, (
            f"active_params is {active}; one token gives {found} parameters a gradient: "
            "components() counts too few as active"
        )


def test_a_relu_that_is_off_in_one_draw_is_touched_in_another(monkeypatch):
    """Its unit has no gradient for the equal tokens of that draw: no reason to refuse the count."""
    monkeypatch.setattr(nn.functional, "silu", nn.functional.relu)
    config = _smallest("dense")
    count = config.param_count(VOCAB_SIZE)
    assert _total(_touched(config, 4)) + count.attention < count.non_embedding

    test_active_parameters_are_those_that_a_token_touches(config)


def test_flops_are_about_those_that_torch_counts(config):
    seq_len = 11
    counter = FlopCounterMode(display=False)
    # The fused attention of a CPU is unknown to torch's counter; the plain form is two products.
    with counter, nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        _model(config)(_tokens(0, batch=1, seq=seq_len))
    # Torch also counts scores of later tokens, which are masked.
    masked = 2 * seq_len * config.n_layers * config.d_model
    counted = counter.get_total_flops() / seq_len - masked

    expected = config.flops_per_token(VOCAB_SIZE, seq_len).total

    if expected != pytest.approx(counted, rel=0.12):
        # It does not count rows that are read, nor kernels. Then the architecture's own test does.
        own = _own_test(type(config).__module__.rpartition(".")[2])
        assert _checks_flops(own), (
            f"flops_per_token is {expected:.0f}, torch counts {counted:.0f} FLOPs a token; correct "
            "it, or, where torch cannot count this layer, compare it with the equation in a test "
            f"of {own.name} that calls check_flops or flops_per_token"
        )


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_test_of_the_architectures_own(name):
    own = _own_test(name)

    assert own.exists(), (
        f"{own} is missing: write it, with what is special about {name} (docs/add-an-architecture.md)"
    )


def _own_test(name: str) -> Path:
    return Path(__file__).with_name(f"test_{name}.py")


def _checks_flops(file: Path) -> bool:
    """Whether a test in the file calls what FLOPs are compared with."""
    tests = [
        node
        for node in ast.walk(ast.parse(file.read_text() if file.exists() else ""))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for test in tests
        for node in ast.walk(test)
        if isinstance(node, ast.Call)
    }
    return not called.isdisjoint({"check_flops", "flops_per_token"})


def test_only_a_call_in_a_test_checks_flops(tmp_path):
    file = tmp_path / "test_mine.py"
    assert not _checks_flops(file)
    for text, checks in {
        "# TODO: check_flops": False,
        "def test_it(check_flops):\n    'flops_per_token'\n": False,
        "def helper(config):\n    config.flops_per_token(7, 5)\n": False,
        "def test_it(check_flops):\n    check_flops(Config())\n": True,
        "def test_it():\n    assert Config().flops_per_token(7, 5).total == 9\n": True,
    }.items():
        file.write_text(text)
        assert _checks_flops(file) == checks, text


def test_bytes_per_token_name_the_groups_and_fall_with_the_batch(config):
    alone = config.bytes_per_token(VOCAB_SIZE)
    together = config.bytes_per_token(VOCAB_SIZE, batch_tokens=64)
    wide = config.bytes_per_token(VOCAB_SIZE, element_bytes=4)

    assert alone.keys() == ParamCount().as_dict().keys()
    assert all(together[group] <= alone[group] for group in alone)
    assert sum(together.values()) < sum(alone.values()) / 8
    assert wide == {group: 2 * number for group, number in alone.items()}


def test_the_free_dimension_is_an_integer_field_that_raises_the_flops(config):
    field = type(config).FREE_DIMENSION
    value = getattr(config, field)
    costs = [
        dataclasses.replace(config, **{field: value + more}).flops_per_token(VOCAB_SIZE, 64).total
        for more in (0, 1, 8)
    ]

    assert isinstance(value, int)
    assert costs == sorted(set(costs))


def test_longer_sequences_cost_no_less(config):
    assert (
        config.flops_per_token(VOCAB_SIZE, 512).total
        >= config.flops_per_token(VOCAB_SIZE, 64).total
    )


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_size_near_every_number_of_parameters(name):
    for n_params in (100_000, 3_000_000):
        config = registry.architecture(name).Config.nearest_size(n_params)

        assert config.param_count(VOCAB_SIZE).non_embedding == pytest.approx(n_params, rel=0.25)


def test_survives_yaml(config):
    text = yaml.safe_dump(
        {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(config).items()}
    )

    again = TypeAdapter(type(config)).validate_python(yaml.safe_load(text), extra="forbid")

    assert again == config


def test_fields_are_plain_and_frozen(config):
    plain = (int, float, bool, str, tuple, type(None))

    assert all(isinstance(v, plain) for v in dataclasses.asdict(config).values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 1


@pytest.mark.parametrize("name", NAMES)
def test_a_document_mask_gives_what_each_document_alone_gives(name):
    module = registry.architecture(name)
    config = module.Config(**module.PRESETS["d12"])
    model = _model(config).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # far from the start, where all tokens are alike
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).double())
    separator = 0
    lengths = [(3, 6, 2, 1), (12,), (1, 1, 10)]
    documents = [
        [[separator, *(1 + i % (VOCAB_SIZE - 1) for i in range(7 * k, 7 * k + n - 1))] for n in row]
        for k, row in enumerate(lengths)
    ]
    rows = torch.tensor([[token for one in row for token in one] for row in documents])

    with torch.no_grad():
        crossing = model(rows)
        model.document_separator = separator
        within = model(rows)
        alone = [torch.cat([model(torch.tensor([one]))[0] for one in row]) for row in documents]
    # Positions turn by angles in fp32, and differ by where a document begins.
    equal = torch.allclose(within, torch.stack(alone), rtol=0, atol=1e-5)

    assert equal == config.DOCUMENT_MASK
    assert not torch.allclose(crossing[0], alone[0], rtol=0, atol=1e-2)
