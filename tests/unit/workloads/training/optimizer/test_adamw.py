import pytest
import torch
from torch import nn

from workloads.architectures import dense, memory_plus
from workloads.layers.modules.init import initialise
from workloads.layers.modules.param_groups import param_groups
from workloads.training.config import TrainConfig
from workloads.training.optimizer.adamw import (
    MATRICES,
    UNDECAYED,
    VALUES,
    Optimizer,
    group_parameters,
)

DENSE = dense.Config(d_model=8, n_layers=2, n_heads=2, d_ff=16)
MEMORY = memory_plus.Config(
    d_model=8, n_layers=2, n_heads=2, d_ff=16, n_keys=4, memory_layers=(1,), n_memory_heads=2, knn=2
)


def train_config(**changes: object) -> TrainConfig:
    fields = {
        "tokens": 8,
        "batch_tokens": 8,
        "seq_len": 8,
        "lr": 0.1,
        "weight_decay": 0.0,
        "eps": 1e-20,
    }
    return TrainConfig(**{**fields, **changes})


@pytest.mark.parametrize("config", [DENSE, MEMORY], ids=["dense", "memory_plus"])
def test_every_parameter_is_in_exactly_one_group(config):
    model = config.build(vocab_size=11)

    groups = group_parameters(model)
    counted_under = param_groups(model)

    grouped = [id(p) for parameters in groups.values() for p in parameters]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    n_values = sum(p.numel() for p in groups[VALUES])
    assert n_values == config.param_count(11).memory_values
    names = {id(p): name for name, p in model.named_parameters()}
    for parameter in groups[MATRICES]:
        assert parameter.ndim >= 2
        assert counted_under[names[id(parameter)]] not in (
            "embedding",
            "norm",
            "memory_values",
        )
    for parameter in groups[UNDECAYED]:
        assert parameter.ndim < 2 or counted_under[names[id(parameter)]] in (
            "embedding",
            "norm",
        )


class Ones(nn.Module):
    """A parameter that counts as it is told."""

    def __init__(self, group: str, rows: int) -> None:
        super().__init__()
        self.PARAM_GROUP = group
        self.weight = nn.Parameter(torch.ones(rows, 2))


class Three(nn.Module):
    """One parameter per group, all ones."""

    def __init__(self) -> None:
        super().__init__()
        self.values = Ones("memory_values", 3)
        self.matrix = Ones("attention", 2)
        self.vectors = Ones("embedding", 5)

    @property
    def memory_values(self) -> nn.Parameter:
        return self.values.weight

    @property
    def attention(self) -> nn.Parameter:
        return self.matrix.weight

    @property
    def embedding(self) -> nn.Parameter:
        return self.vectors.weight


def of_three(**changes: object) -> tuple[Three, Optimizer]:
    model = Three()
    return model, Optimizer(model, train_config(**changes))


def test_values_have_their_own_learning_rate():
    model, optimizer = of_three(value_lr_ratio=4.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    optimizer.step(0.01)

    # The first step of Adam is the learning rate times the sign of the gradient.
    assert model.attention.flatten().tolist() == pytest.approx([0.99] * 4)
    assert model.embedding.flatten().tolist() == pytest.approx([0.99] * 10)
    assert model.memory_values.flatten().tolist() == pytest.approx([0.96] * 6)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_ratio_of_a_step_stands_in_for_the_configs():
    model, optimizer = of_three(value_lr_ratio=4.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    optimizer.step(0.01, value_lr_ratio=2.0)

    assert model.attention.flatten().tolist() == pytest.approx([0.99] * 4)
    assert model.memory_values.flatten().tolist() == pytest.approx([0.98] * 6)


@pytest.mark.parametrize(
    ("table_optimizer", "table_precision"),
    [
        ("adamw", "fp32"),
        ("deferred_adamw", "fp32"),
        ("lazy_adamw", "bf16"),
        ("rowwise", "fp32"),
        ("rowwise", "bf16"),
        ("rowwise", "bf16_master"),
        ("sgd", "fp32"),
    ],
)
def test_a_ratio_of_zero_freezes_the_values_to_the_bit(table_optimizer, table_precision):
    train = train_config(
        value_lr_ratio=0.0,
        weight_decay=0.1,
        value_weight_decay=0.5,
        table_optimizer=table_optimizer,
        table_precision=table_precision,
    )
    model = MEMORY.build(vocab_size=11)
    initialise(model, 0)
    optimizer = Optimizer(model, train)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for _ in range(2):
        model(torch.arange(8)[None]).float().logsumexp(-1).sum().backward()
        optimizer.gather()
        optimizer.clip()
        optimizer.step(0.1)

    same = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    assert same == {"memory_table.weight"}


def test_values_and_matrices_have_their_own_decay_and_the_rest_none():
    model, optimizer = of_three(weight_decay=0.5, value_weight_decay=0.25, value_lr_ratio=2.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    optimizer.step(0.1)

    assert model.attention[0, 0].item() == pytest.approx(1 - 0.1 * 0.5)
    assert model.memory_values[0, 0].item() == pytest.approx(1 - 2 * 0.1 * 0.25)
    assert model.embedding[0, 0].item() == 1.0


def test_values_and_the_rest_are_clipped_apart():
    model, optimizer = of_three(grad_clip=1.0)
    model.memory_values.grad = torch.zeros(3, 2)
    model.memory_values.grad[0, 0] = 0.5
    model.attention.grad = torch.zeros(2, 2)
    model.attention.grad[0, 0] = 3.0
    model.embedding.grad = torch.zeros(5, 2)
    model.embedding.grad[0, 0] = 4.0

    norms = optimizer.clip()

    assert norms["grad_norm"].item() == pytest.approx(5.0)
    assert norms["value_grad_norm"].item() == pytest.approx(0.5)
    assert model.attention.grad[0, 0].item() == pytest.approx(0.6, rel=1e-5)
    assert model.embedding.grad[0, 0].item() == pytest.approx(0.8, rel=1e-5)
    assert model.memory_values.grad[0, 0].item() == 0.5


@pytest.mark.parametrize("largest", [1.0, 1e3])
def test_values_and_the_rest_may_be_clipped_by_the_norm_of_both(largest):
    model, optimizer = of_three(grad_clip=largest, clip_values="together")
    model.double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).double()
    plain = {name: p.grad.tolist() for name, p in model.named_parameters()}
    numbers = [x for rows in plain.values() for row in rows for x in row]
    factor = min(1.0, largest / (sum(x * x for x in numbers) ** 0.5 + 1e-6))

    norms = optimizer.clip()

    for name, parameter in model.named_parameters():
        expected = torch.tensor(plain[name], dtype=torch.float64) * factor
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-12, atol=0.0)
    of_values = sum(x * x for row in plain["values.weight"] for x in row) ** 0.5
    assert norms["value_grad_norm"].item() == pytest.approx(of_values, rel=1e-12)


def test_values_with_an_optimizer_of_their_own_are_clipped_apart():
    with pytest.raises(
        ValueError, match="clip_values must be apart where tables have an optimizer"
    ):
        train_config(clip_values="together", table_optimizer="lazy_adamw")


def test_clipping_apart_may_be_written():
    assert train_config(clip_values="apart") == train_config()


def test_without_a_limit_nothing_is_clipped_and_without_values_no_norm_is_made_up():
    model = nn.Linear(2, 2, bias=False)
    model.PARAM_GROUP = "attention"
    optimizer = Optimizer(model, train_config(grad_clip=None))
    model.weight.grad = torch.full((2, 2), 10.0)

    norms = optimizer.clip()

    assert {name: norm.item() for name, norm in norms.items()} == {"grad_norm": 20.0}
    assert model.weight.grad.tolist() == [[10.0, 10.0], [10.0, 10.0]]
