"""What is special about `performer`: its features, its kernel, and that no later token has a say."""

import math

import pytest
import torch

from workloads.architectures import pythia
from workloads.architectures.performer import (
    PRESETS,
    Config,
    PerformerAttention,
    orthogonal_vectors,
)
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.cache import Cache
from workloads.layers.context import Context
from workloads.layers.modules.init import initialise

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}


def _model(**fields: object) -> Transformer:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    return model


def _mixer(**fields: object) -> PerformerAttention:
    config = Config(**{**SMALL, "rotary_fraction": 0.0, **fields})
    mixer = config.mixer(
        PerformerAttention,
        eps=config.feature_eps,
        equal_lengths=config.equal_lengths,
        stabilised=config.key_stabiliser is not None,
    ).double()
    initialise(mixer, 0)
    return mixer


def _x(seq: int = 10) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, seq, 16, dtype=torch.float64, generator=generator)


def _context(x: torch.Tensor) -> Context:
    return Context(tokens=torch.zeros(x.shape[:2], dtype=torch.long))


def _by_the_formula(mixer: PerformerAttention, x: torch.Tensor) -> torch.Tensor:
    """Plain autograd, nothing chunked, and no largest exponent subtracted anywhere: it cancels where eps is 0."""
    heads = mixer.query_key_value(x).unflatten(-1, (3, 2, 8)).movedim(2, 0).transpose(2, 3)
    query, key, value = heads
    if mixer.query_norm is not None:
        query, key = mixer.query_norm(query), mixer.key_norm(key)
    features = []
    for y in (query, key):
        y = y / 8**0.25
        exponent = y @ mixer.random_vectors.T - y.square().sum(-1, keepdim=True) / 2
        features.append(exponent.exp())
    weights = (features[0] @ features[1].mT).tril()
    mixed = weights / weights.sum(-1, keepdim=True) @ value
    return mixer.output(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("stabiliser", [None, "running_max"])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("chunk", [3, 64])
def test_equals_the_formula_with_gradients(chunk, qk_norm, stabiliser):
    fields = {"chunk_tokens": chunk, "qk_norm": qk_norm, "key_stabiliser": stabiliser}
    mixer, x = _mixer(feature_eps=0.0, **fields), _x()
    found, expected = mixer(x, _context(x)), _by_the_formula(mixer, x)

    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    parameters = list(mixer.parameters())
    gradients = (torch.autograd.grad(y.square().sum(), parameters) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_eps_is_added_to_every_feature():
    """With eps far above every feature, all weights are equal."""
    mixer, x = _mixer(feature_eps=1e6), _x()
    value = mixer.query_key_value(x)[..., 32:]
    mean = value.cumsum(1) / torch.arange(1, 11)[:, None]

    torch.testing.assert_close(mixer(x, _context(x)), mixer.output(mean), rtol=1e-5, atol=1e-5)


def test_gradients(check_gradients):
    check_gradients(Config(**SMALL, chunk_tokens=2, feature_eps=0.0))


def _kernel_by_hand(vectors, query, key, value):
    """The exact mixture for one head, weight by weight in float64 and by logarithms."""
    width = len(query[0])
    q, k = ([[x / width**0.25 for x in row] for row in rows] for rows in (query, key))

    def exponents(y):
        half = sum(x * x for x in y) / 2
        return [sum(a * b for a, b in zip(w, y, strict=True)) - half for w in vectors]

    of_q, of_k, mixed = [exponents(y) for y in q], [exponents(y) for y in k], []
    for t, one in enumerate(of_q):
        logs = []
        for other in of_k[: t + 1]:
            sums = [a + b for a, b in zip(one, other, strict=True)]
            top = max(sums)
            logs.append(top + math.log(sum(math.exp(s - top) for s in sums)))
        weights = [math.exp(log - max(logs)) for log in logs]
        columns = zip(*value[: t + 1], strict=True)
        mixed.append(
            [sum(w * x for w, x in zip(weights, c, strict=True)) / sum(weights) for c in columns]
        )
    return torch.tensor(mixed, dtype=torch.float64)


@pytest.mark.parametrize(
    ("std", "lost_without"), [(1.0, (0.0, 0.01)), (3.0, (0.3, 1.0)), (6.0, (0.8, 1.1))]
)
def test_a_running_maximum_keeps_the_kernel_of_long_keys(std, lost_without):
    """In fp32, against float64; without it eps and underflow take the place of the features."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 20, 64, generator=generator) for _ in range(3))
    lost = {}
    for stabiliser, eps in ((None, 1e-6), ("running_max", 0.0)):
        fields = {"d_model": 64, "n_heads": 1, "n_features": 64, "chunk_tokens": 7}
        mixer = _mixer(**fields, key_stabiliser=stabiliser, feature_eps=eps).float()
        found = mixer.mix(std * q, std * k, v, _context(v[:, 0])).double()[0, 0]
        rows = [x[0, 0].double().tolist() for x in (std * q, std * k, v)]
        exact = _kernel_by_hand(mixer.random_vectors.double().tolist(), *rows)
        lost[stabiliser] = float((found - exact).norm() / exact.norm())

    assert lost["running_max"] < 1e-4
    assert lost_without[0] <= lost[None] < lost_without[1]


@pytest.mark.parametrize("feature_eps", [0.0, 1e-4])
def test_a_later_token_has_no_say_with_a_running_maximum(feature_eps):
    fields = {"feature_eps": feature_eps, "key_stabiliser": "running_max", "chunk_tokens": 4}
    mixer, x = _mixer(**fields), _x()
    before = mixer(x, _context(x))
    for position in (1, 5, 9):
        changed = x.clone()
        changed[:, position:] *= 30.0

        after = mixer(changed, _context(x))

        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=1e-9, atol=0)
        assert torch.isfinite(after).all()


@pytest.mark.parametrize("feature_eps", [0.0, 1e-4])
def test_a_later_token_has_no_say_however_large_its_key(feature_eps):
    """The source's common largest exponent of all keys would: earlier features would vanish beside it."""
    mixer, x = _mixer(feature_eps=feature_eps, chunk_tokens=4), _x()
    before = mixer(x, _context(x))
    for position in range(1, 10):
        changed = x.clone()
        changed[:, position:] *= 30.0

        after = mixer(changed, _context(x))

        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=1e-9, atol=0)
        assert torch.isfinite(after).all()


@pytest.mark.parametrize("stabiliser", [None, "running_max"])
@pytest.mark.parametrize("feature_eps", [0.0, 1e-4])
def test_decoding_equals_the_full_pass(feature_eps, stabiliser):
    model = _model(feature_eps=feature_eps, key_stabiliser=stabiliser).eval().double()
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))
    cache = Cache(2, 9)

    with torch.no_grad():
        parts = [model(piece, cache) for piece in tokens.split([1, 5, 3], dim=1)]

        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), rtol=1e-9, atol=1e-9)


def test_features_stay_finite_in_fp32_whatever_the_key():
    """The exponent is at most half the squared length of a random vector."""
    mixer = _mixer(d_model=128, n_heads=1, n_features=256).float()
    vectors = mixer.random_vectors
    # The worst of all keys: those that lie on a random vector.
    worst = (vectors * 128**0.25)[:32].reshape(1, 1, 32, 128)
    context = Context(tokens=torch.zeros(1, 32, dtype=torch.long))

    for scale in (1.0, 30.0):
        mixed = mixer.mix(scale * worst, scale * worst, torch.ones(1, 1, 32, 128), context)
        torch.testing.assert_close(mixed, torch.ones(1, 1, 32, 128))


@pytest.mark.parametrize("equal_lengths", [False, True])
@pytest.mark.parametrize("n_features", [3, 8, 21])
def test_random_vectors_are_orthogonal_within_blocks(n_features, equal_lengths):
    generator = torch.Generator().manual_seed(0)
    vectors = orthogonal_vectors(n_features, 8, generator, equal_lengths=equal_lengths)

    assert vectors.shape == (n_features, 8)
    lengths = vectors.norm(dim=1)
    for block in (vectors / lengths[:, None]).split(8):
        torch.testing.assert_close(block @ block.T, torch.eye(len(block), dtype=torch.float64))
    if equal_lengths:
        torch.testing.assert_close(lengths, torch.full_like(lengths, 8**0.5))
    else:
        assert lengths.std() > 0.3


@pytest.mark.parametrize("equal_lengths", [False, True])
def test_random_vectors_have_no_preferred_direction(equal_lengths):
    """Mean 0 and variance 1 in every column; without the signs of QR the means would be off by a third."""
    generator = torch.Generator().manual_seed(0)
    vectors = orthogonal_vectors(40_000, 4, generator, equal_lengths=equal_lengths)

    assert vectors.mean(0).abs().max() < 0.02
    torch.testing.assert_close(
        vectors.T @ vectors / 40_000, torch.eye(4, dtype=torch.float64), rtol=0, atol=0.03
    )
    for block_row in range(4):
        assert vectors[block_row::4].mean(0).abs().max() < 0.05


def test_expected_product_of_features_is_the_exponential_of_the_product():
    """Source: lemma 1 of the paper. Short vectors, so that the average settles."""
    generator = torch.Generator().manual_seed(0)
    vectors = orthogonal_vectors(200_000, 8, generator, equal_lengths=False)
    query, key = 0.5 * torch.randn(2, 8, dtype=torch.float64, generator=generator)

    def features(x: torch.Tensor) -> torch.Tensor:
        y = x / 8**0.25
        return (vectors @ y - y.square().sum() / 2).exp()

    estimate = (features(query) * features(key)).mean().item()
    assert estimate == pytest.approx(math.exp(query @ key / 8**0.5), rel=0.02)


def test_random_vectors_belong_to_the_model_and_not_to_training():
    model = _model()
    names = [name for name, _ in model.named_buffers() if "random_vectors" in name]

    assert len(names) == 2
    assert set(names) <= set(model.state_dict())
    first, second = (model.state_dict()[name] for name in names)
    assert not torch.equal(first, second)
    assert not any("random_vectors" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("d_model", "n_heads", "count"),
    [(512, 8, 256), (256, 8, 110), (8, 2, 5), (8, 8, 1), (2048, 8, 256)],
)
def test_usual_number_of_features(d_model, n_heads, count):
    assert Config(**{**SMALL, "d_model": d_model, "n_heads": n_heads}).feature_count == count


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_features": 0}, "n_features must be at least 1 or null, got 0; the nearest is 1"),
        (
            {"feature_eps": -1.0},
            "feature_eps must be at least 0 and finite, got -1.0; the nearest is 0",
        ),
        ({"feature_eps": math.inf}, "feature_eps must be at least 0 and finite, got inf"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


def test_cost():
    ours, base = Config(**PRESETS["410m"]), pythia.Config(**pythia.PRESETS["410m"])

    assert ours.param_count(50_304) == base.param_count(50_304)
    # Per layer of 16 heads: half a chunk's square, a state of 256 x 65, and two projections to 256
    # features.
    mixing = 16 * (64 * (256 + 65) + 4 * 256 * 65 + 4 * 64 * 256)
    assert ours.flops_per_token(50_304, 2048).attention == 24 * (8 * 1024**2 + mixing)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_with_a_running_maximum_are_about_those_that_autograd_keeps(
    check_activations, precision
):
    config = Config(**SMALL, key_stabiliser="running_max", chunk_tokens=8)

    check_activations(config, precision, rel=0.1)
