"""The decoder. That greedy decoding says what full passes say is part of every architecture's contract."""

import pytest
import torch

from workloads.architectures import cosformer, dense
from workloads.decoding.decoder import Decoder
from workloads.decoding.sampling import Sampling
from workloads.layers.modules.init import initialise

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 0, 2]]
DRAWN = Sampling(temperature=1.5, top_k=9, top_p=0.95)


def _model(seed=0):
    model = dense.Config(d_model=8, n_layers=2, n_heads=2, d_ff=16).build(11)
    initialise(model, seed)
    return model


@pytest.mark.parametrize(("prompts", "n_tokens"), [([[1], []], 1), ([], 1), ([[1]], 0)])
def test_nothing_to_do_is_refused(prompts, n_tokens):
    with pytest.raises(ValueError, match="needs a prompt and at least one token"):
        Decoder(_model()).generate(prompts, n_tokens=n_tokens)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_as_it_was_afterwards(training):
    model = _model().train(training)

    Decoder(model).generate([[0, 0]], n_tokens=2)

    assert model.training is training


def test_ties_go_to_the_lowest_id():
    model = _model()
    with torch.no_grad():
        model.head.weight.zero_()

    assert Decoder(model).generate([[1] * 3] * 2, n_tokens=2) == [[0, 0]] * 2


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN], ids=["greedy", "drawn"])
def test_a_sequence_does_not_depend_on_its_neighbours(sampling):
    decoder = Decoder(_model())

    together = decoder.generate(PROMPTS, n_tokens=7, sampling=sampling, seeds=[3, 4, 5, 6])
    alone = [
        decoder.generate([prompt], n_tokens=7, sampling=sampling, seeds=[seed])[0]
        for seed, prompt in enumerate(PROMPTS, start=3)
    ]

    assert together == alone


def test_draws_follow_from_the_seed():
    decoder = Decoder(_model())
    first, again, other = (
        decoder.generate([[1, 2]], n_tokens=20, sampling=DRAWN, seeds=[seed]) for seed in (0, 0, 1)
    )

    assert first == again != other


def test_a_decoder_that_was_used_is_as_good_as_a_new_one():
    used = Decoder(_model())
    used.generate([[7] * 6, [8] * 4], n_tokens=5)

    assert used.generate(PROMPTS[:2], n_tokens=5) == Decoder(_model()).generate(
        PROMPTS[:2], n_tokens=5
    )


def test_a_sequence_that_has_ended_gets_no_more_tokens():
    decoder = Decoder(_model())
    whole = decoder.generate(PROMPTS, n_tokens=9)
    asked = []

    def ended(row, tokens):
        asked.append((row, len(tokens)))
        return len(tokens) == row + 1

    cut = decoder.generate(PROMPTS, n_tokens=9, ended=ended)

    assert cut == [tokens[: row + 1] for row, tokens in enumerate(whole)]
    # Told once after each token, in order.
    assert sorted(asked) == [(row, n) for row in range(4) for n in range(1, row + 2)]


def test_a_mixer_of_fixed_length_refuses_before_it_reads():
    fields = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 16, "max_seq_len": 8}
    model = cosformer.Config(**fields).build(11)
    initialise(model, 0)

    assert len(Decoder(model).generate([[1] * 5], n_tokens=4)[0]) == 4
    with pytest.raises(ValueError, match="max_seq_len must be at least"):
        Decoder(model).generate([[1] * 5], n_tokens=5)
