import pytest
import torch
from torch.nn.functional import cross_entropy

from workloads.training.step.loss import summed_cross_entropy


@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
@pytest.mark.parametrize(("tokens", "vocab_size"), [(1, 1), (7, 3), (33, 101)])
def test_value_and_gradient_are_those_of_torch(tokens, vocab_size, scale):
    generator = torch.Generator().manual_seed(0)
    values = scale * torch.randn(tokens, vocab_size, generator=generator)
    targets = torch.randint(vocab_size, (tokens,), generator=generator)
    ours, torchs = values.clone().requires_grad_(), values.clone().requires_grad_()

    loss = summed_cross_entropy(ours, targets)
    expected = cross_entropy(torchs, targets, reduction="sum")
    (loss / 3).backward()
    (expected / 3).backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-5)
    torch.testing.assert_close(ours.grad, torchs.grad, rtol=1e-5, atol=1e-7)


def test_gradient_is_the_derivative():
    logits = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 4, 2, 2])
    differentiated = logits.clone().requires_grad_()

    summed_cross_entropy(differentiated, targets).backward()

    for row in range(4):
        for column in range(5):
            step = torch.zeros_like(logits)
            step[row, column] = 1e-5
            rise = summed_cross_entropy(logits + step, targets) - summed_cross_entropy(
                logits - step, targets
            )
            assert differentiated.grad[row, column].item() == pytest.approx(
                rise.item() / 2e-5, abs=1e-8
            )


def test_a_sure_and_wrong_prediction_costs_what_it_should():
    logits = torch.tensor([[200.0, 0.0]])

    assert summed_cross_entropy(logits, torch.tensor([1])).item() == 200.0


def test_a_second_backward_pass_is_refused():
    logits = torch.randn(2, 3, requires_grad=True)
    loss = summed_cross_entropy(logits, torch.tensor([0, 1]))
    loss.backward(retain_graph=True)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
