"""What is special about `memoryformer`."""

import math

import pytest
import torch
from torch import Tensor

from workloads.architectures import memoryformer
from workloads.architectures.memoryformer import PRESETS, Config
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.modules.init import initialise

SMALL = {"d_model": 24, "n_layers": 2, "n_heads": 3, "tau": 4}
VOCAB_SIZE = 11


def _config(**fields: object) -> Config:
    return Config(**{**SMALL, **fields})


def _model(**fields: object) -> Transformer:
    model = _config(**fields).build(VOCAB_SIZE)
    initialise(model, 0)
    return model


def _tokens(batch: int = 2, seq: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(VOCAB_SIZE, (batch, seq), generator=generator)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tau": 5}, r"tau must divide d_model \(24\), got 5; the nearest is 4"),
        ({"tau": 25}, r"tau must divide d_model \(24\), got 25; the nearest is 24"),
        ({"tau": 0}, "tau must be at least 1, got 0; the nearest is 1"),
        ({"n_heads": 5}, r"n_heads must divide d_model \(24\), got 5; the nearest is 4"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"n_layers": 0}, "n_layers must be at least 1, got 0"),
        (
            {"n_hidden_chunks": 0},
            "n_hidden_chunks must be at least 1 or null, got 0; the nearest is 1",
        ),
        ({"expand_bits": -1}, "expand_bits must be at least 0, got -1; the nearest is 0"),
        ({"score": "l1"}, "score must be one of prob, l1_prob, got 'l1'"),
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
        ({"table_std": -1.0}, "table_std must be positive or null, got -1.0"),
        ({"rope_base": 0.0}, "rope_base must be positive, got 0.0"),
        ({"norm_eps": 0.0}, "norm_eps must be positive, got 0.0"),
        (
            {"rotary_fraction": 1.5},
            r"rotary_fraction must lie in 0\.\.1, got 1.5; the nearest is 1.0",
        ),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        _config(**fields)


class _Oracle:
    """The architecture from its equations: every row scored, one sequence, position by position."""

    def __init__(self, config: Config, weights: dict[str, Tensor]) -> None:
        self.config, self.weights = config, weights

    def hash_layer(self, path: str, x: Tensor, bits: int) -> Tensor:
        """The most probable row of every chunk, times its probability, from a softmax over all rows."""
        signs = torch.tensor(
            [[1.0 if row & 2**j else -1.0 for j in reversed(range(bits))] for row in range(2**bits)]
        ).double()
        tables = self.weights[f"{path}.table.weight"].unflatten(0, (-1, 2**bits))
        output = self.weights[f"{path}.bias"].clone()
        for chunk, table in zip(x.split(bits), tables, strict=True):
            probabilities = (signs @ chunk / self.config.temperature).softmax(0)
            weight = probabilities.max()
            if self.config.score == "l1_prob":
                weight = weight * chunk.abs().sum()
            output = output + weight * table[probabilities.argmax()]
        return output

    def rms(self, path: str, x: Tensor) -> Tensor:
        mean_square = x.square().mean() + self.config.norm_eps
        return x / mean_square.sqrt() * self.weights[f"{path}.gain"]

    def turn(self, x: Tensor, position: int) -> Tensor:
        """The first quarter of every head, pairs (i, i + half)."""
        heads = x.unflatten(0, (self.config.n_heads, -1)).clone()
        columns = heads.shape[1] // 4
        half = columns // 2
        for i in range(half):
            angle = position * self.config.rope_base ** (-2 * i / columns)
            a, b = heads[:, i].clone(), heads[:, i + half].clone()
            heads[:, i] = a * math.cos(angle) - b * math.sin(angle)
            heads[:, i + half] = b * math.cos(angle) + a * math.sin(angle)
        return heads

    def block(self, path: str, stream: list[Tensor]) -> list[Tensor]:
        config, d = self.config, self.config.d_model
        looked_up = [
            self.hash_layer(
                f"{path}.mixer.query_key_value", self.rms(f"{path}.mixer_norm", x), config.tau
            )
            for x in stream
        ]
        mixed = []
        for t, x in enumerate(stream):
            query = self.turn(looked_up[t][:d], t)
            keys = torch.stack([self.turn(looked_up[s][d : 2 * d], s) for s in range(t + 1)])
            values = torch.stack(
                [looked_up[s][2 * d :].unflatten(0, (config.n_heads, -1)) for s in range(t + 1)]
            )
            scores = torch.einsum("hc,shc->hs", query, keys) / (d / config.n_heads) ** 0.5
            mixed.append(x + torch.einsum("hs,shc->hc", scores.softmax(-1), values).flatten())
        out = []
        for z in mixed:
            hidden = self.hash_layer(
                f"{path}.feed_forward.first",
                self.rms(f"{path}.feed_forward_norm", z),
                config.tau,
            )
            if config.gelu:
                hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
            deviation = (hidden.var(correction=0) + 1e-5).sqrt()
            hidden = (hidden - hidden.mean()) / deviation
            hidden = hidden * self.weights[f"{path}.feed_forward.norm.weight"]
            hidden = hidden + self.weights[f"{path}.feed_forward.norm.bias"]
            out.append(
                z
                + self.hash_layer(
                    f"{path}.feed_forward.second", hidden, config.tau + config.expand_bits
                )
            )
        return out

    def logits(self, tokens: Tensor) -> Tensor:
        stream = [self.weights["embedding.weight"][token] for token in tokens]
        for index in range(self.config.n_layers):
            stream = self.block(f"layers.{index}", stream)
        return torch.stack([self.weights["head.weight"] @ self.rms("norm", x) for x in stream])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"score": "l1_prob", "temperature": 0.6},
        {"n_hidden_chunks": 3, "expand_bits": 1, "gelu": True, "tau": 2},
    ],
    ids=str,
)
def test_is_what_the_equations_say(fields):
    # Two of the eight columns of a head turn. Loud tables, so that no part goes unnoticed.
    config = _config(n_layers=2, table_std=0.5, **fields)
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    model.double()
    tokens = _tokens(batch=1)

    found = model(tokens)[0]

    expected = _Oracle(config, {n: p.detach() for n, p in model.named_parameters()}).logits(
        tokens[0]
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_one_hash_serves_queries_keys_and_values(monkeypatch):
    calls = []
    hashed = memoryformer.HashMemory.forward

    def counted(self, x, context):
        calls.append(self.shape.width)
        return hashed(self, x, context)

    monkeypatch.setattr(memoryformer.HashMemory, "forward", counted)

    _model(n_layers=1)(_tokens())

    assert calls == [3 * 24, 6 * 6, 24]


def test_only_attention_and_the_head_multiply_matrices(check_flops):
    config = _config(tied_embeddings=True)
    flops = config.flops_per_token(VOCAB_SIZE, 7)

    check_flops(config, seq_len=7, unseen=flops.memory)
    assert flops.memory == config.n_layers * 2 * (6 * 3 * 24 + 6 * 36 + 6 * 24)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rotary_fraction": 0.0},
        {"score": "l1_prob", "gelu": True, "n_hidden_chunks": 11, "tau": 2},
    ],
    ids=str,
)
def test_activations_are_those_that_autograd_keeps(check_activations, fields, precision):
    # A CPU keeps weights of rows in bf16, the kernels in fp32.
    rel = 0.01 if precision == "fp32" else 0.04
    check_activations(Config(**{**SMALL, **fields}), precision, rel=rel)


def test_initial_deviations():
    model = _model(d_model=240, n_layers=1)
    block = model.layers[0]

    def deviations() -> list[float]:
        tables = (block.mixer.query_key_value, block.feed_forward.first, block.feed_forward.second)
        return [layer.table.weight.std().item() for layer in tables]

    released = [math.sqrt(2 / (5 * 240)), 0.02, 0.02]
    assert deviations() == pytest.approx(released, rel=0.02)
    block = _model(d_model=240, n_layers=1, table_std=0.1).layers[0]
    assert deviations() == pytest.approx([0.1] * 3, rel=0.02)


def test_statistics_name_the_layer_and_its_tables():
    model = _model()
    model(_tokens())

    report = model.statistics()

    for table in ("query_key_value", "first", "second"):
        for layer in (0, 1):
            label = f"memory/layer_{layer:02d}_{table}"
            assert 0 < report[f"{label}/usage"] <= 1
            # A block's output is that of its last table.
            assert (f"{label}/output_ratio" in report) == (table != "first")
    assert report["memory/usage"] == pytest.approx(
        sum(v for name, v in report.items() if name.count("/") == 2 and name.endswith("/usage")) / 6
    )


def test_released_code_differs_by_its_score():
    assert Config(**PRESETS["tiny_released"]) != Config(**PRESETS["tiny"])
    assert {**PRESETS["tiny_released"], "score": "prob"} == {**PRESETS["tiny"], "score": "prob"}
    assert Config(**PRESETS["tiny"]).score == "prob"


@pytest.mark.parametrize(
    ("size", "overrides"),
    [
        (40_000, {}),
        (1_000_000, {"score": "l1_prob", "temperature": 2.0}),
        (1_000_000, {"tau": 8}),
        (30_000_000, {}),
        (1_000_000_000, {}),
        (1_000_000_000, {"tau": 8}),
    ],
)
def test_sized(size, overrides):
    config = Config.nearest_size(size, **overrides)

    found = config.param_count(1).non_embedding
    assert abs(math.log(found / size)) <= math.log(1.25)
    assert all(getattr(config, name) == value for name, value in overrides.items())


def test_sized_refuses_what_does_not_exist():
    with pytest.raises(ValueError, match="no member of the family with tau as given is near 1000"):
        Config.nearest_size(1_000, tau=8)


@pytest.mark.parametrize("score", ["prob", "l1_prob"])
def test_gradients_by_finite_differences(score, check_gradients):
    check_gradients(
        _config(d_model=8, n_heads=2, n_layers=1, table_std=0.5, score=score, gelu=True)
    )
