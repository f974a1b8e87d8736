"""Greedy decoding. That it says what full passes say is part of every architecture's contract."""

import pytest
import torch

from workloads.architectures import dense
from workloads.layers.modules.init import initialise
from workloads.training.generate import greedy


def _model():
    model = dense.Config(d_model=8, n_layers=2, n_heads=2, d_ff=16).build(11)
    initialise(model, 0)
    return model


@pytest.mark.parametrize(("seq", "n_tokens"), [(0, 1), (3, 0)])
def test_nothing_to_do_is_refused(seq, n_tokens):
    with pytest.raises(ValueError, match="needs a prompt and at least one token"):
        greedy(_model(), torch.zeros(1, seq, dtype=torch.long), n_tokens=n_tokens)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_as_it_was_afterwards(training):
    model = _model().train(training)

    greedy(model, torch.zeros(1, 2, dtype=torch.long), n_tokens=2)

    assert model.training is training


def test_ties_go_to_the_lowest_id():
    model = _model()
    with torch.no_grad():
        model.head.weight.zero_()

    assert greedy(model, torch.ones(2, 3, dtype=torch.long), n_tokens=2).tolist() == [[0, 0]] * 2
