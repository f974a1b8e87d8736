"""Choice of the next token, against the distributions it is meant to draw from."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.decoding.sampling import Sampling, choose, uniform_numbers

LOGITS = torch.tensor([0.3, 2.0, -1.0, 2.0, 0.9, -3.0, 1.4])


def _counts(sampling, draws=20_000):
    uniform = uniform_numbers([11], draws)[0]
    chosen, largest = choose(LOGITS.expand(draws, -1), sampling, uniform)
    assert (largest == LOGITS.max()).all()
    return np.bincount(chosen.numpy(), minlength=len(LOGITS))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_have_the_probabilities_of_the_softmax(stats, temperature):
    expected = 20_000 * (LOGITS.double() / temperature).softmax(-1).numpy()

    assert stats.chisquare(_counts(Sampling(temperature=temperature)), expected).pvalue > 1e-3


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"top_k": 3}, [1, 3, 6]),
        # Of two equal ones the lower id.
        ({"top_k": 1}, [1]),
        # Probabilities are 0.31, 0.31, 0.17, 0.10, …: the third token passes 0.75.
        ({"top_p": 0.75}, [1, 3, 6]),
        ({"top_p": 1e-9}, [1]),
        ({"top_k": 2, "top_p": 0.999}, [1, 3]),
        ({"top_k": 100, "top_p": 1.0}, list(range(7))),
    ],
    ids=str,
)
def test_limits_leave_the_most_probable_in_proportion(stats, limits, kept):
    counts = _counts(Sampling(temperature=1.0, **limits))
    probabilities = LOGITS.double().softmax(-1).numpy()[kept]

    assert counts.sum() == counts[kept].sum()
    if len(kept) > 1:
        expected = counts.sum() * probabilities / probabilities.sum()
        assert stats.chisquare(counts[kept], expected).pvalue > 1e-3


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=9),
    uniform=st.one_of(st.just(0.0), st.just(1 - 2.0**-53), st.floats(0, 1, exclude_max=True)),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.floats(1e-6, 1),
)
def test_a_draw_is_a_token_of_some_probability(logits, uniform, top_k, top_p):
    sampling = Sampling(temperature=1.0, top_k=top_k, top_p=top_p)
    scores = torch.tensor([logits])

    chosen = int(choose(scores, sampling, torch.tensor([uniform], dtype=torch.float64))[0])

    better = sum(score > logits[chosen] for score in logits)
    assert top_k is None or better < top_k
    if top_p is not None:
        probabilities = scores.double().softmax(-1)[0]
        # The sum of those above it, up to rounding.
        assert float(probabilities[scores[0] > logits[chosen]].sum()) < top_p + 1e-9


@pytest.mark.parametrize("temperature", [1e-308, 1e-30])
def test_next_to_temperature_0_the_likeliest_token_is_drawn(temperature):
    uniform = torch.tensor([0.0, 0.7], dtype=torch.float64)
    logits = torch.tensor([[1.0, 20.0, 3.0, -torch.inf]] * 2)

    tokens, _ = choose(logits, Sampling(temperature=temperature), uniform)

    assert tokens.tolist() == [1, 1]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=1.0), Sampling(temperature=0.5, top_k=2, top_p=0.9)],
    ids=str,
)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_logits_without_probabilities_give_some_token_and_show(sampling, wrong):
    logits = torch.stack((LOGITS, LOGITS.index_fill(0, torch.tensor([5]), wrong), LOGITS))
    logits = torch.cat((logits, torch.full((1, len(LOGITS)), -torch.inf)))

    tokens, largest = choose(logits, sampling, torch.full((4,), 0.5, dtype=torch.float64))

    assert largest.isfinite().tolist() == [True, False, True, False]
    assert ((tokens >= 0) & (tokens < len(LOGITS))).all()
    assert tokens[0] == tokens[2] == choose(LOGITS[None], sampling, torch.tensor([0.5]))[0]


def test_more_numbers_begin_as_fewer_do():
    few, many = (uniform_numbers([0, 5], n) for n in (3, 200))

    assert torch.equal(many[:, :3], few)
    assert not torch.equal(few[0], few[1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1.0}, "temperature must be 0"),
        ({"temperature": float("nan")}, "temperature must be 0"),
        ({"temperature": 1.0, "top_k": 0}, "top_k must be at least 1, got 0"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p must lie above 0"),
        ({"top_k": 3, "top_p": 0.5}, "top_k and top_p limit what is drawn"),
    ],
)
def test_what_means_nothing_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**fields)
