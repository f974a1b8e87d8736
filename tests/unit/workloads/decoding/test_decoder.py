"""The decoder. That greedy decoding says what full passes say is part of every architecture's contract."""

import pytest
import torch

from workloads.architectures import cosformer, dense
from workloads.decoding.decode_step import DecodeStep
from workloads.decoding.decoder import Decoder, NotANumberError
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


@pytest.mark.parametrize("n_seeds", [0, 1, 3])
def test_each_prompt_has_a_seed_of_its_own(n_seeds):
    with pytest.raises(ValueError, match=f"got {n_seeds} seeds for 2 prompts"):
        Decoder(_model()).generate([[1]] * 2, n_tokens=1, sampling=DRAWN, seeds=range(n_seeds))


def _cosformer(max_seq_len):
    fields = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 16, "max_seq_len": max_seq_len}
    model = cosformer.Config(**fields).build(11)
    initialise(model, 0)
    return model


def test_after_a_refusal_what_fits_is_decoded():
    decoder = Decoder(_cosformer(8))
    with pytest.raises(ValueError, match="max_seq_len must be at least"):
        decoder.generate([[1] * 5], n_tokens=5)
    with torch.inference_mode(), pytest.raises(ValueError, match="max_seq_len must be at least"):
        decoder.step_after([[1] * 8], 1)

    assert len(decoder.generate([[1] * 5], n_tokens=4)[0]) == 4


def test_a_step_is_used_again_unless_its_capture_failed(monkeypatch):
    captured, fails = [], [True, False]

    def capture(self):
        captured.append(self)
        if fails.pop(0):
            raise RuntimeError("out of memory")

    monkeypatch.setattr(DecodeStep, "capture", capture)
    decoder = Decoder(_model())
    decoder._capture = True

    with pytest.raises(RuntimeError, match="out of memory"):
        decoder.generate(PROMPTS, n_tokens=5)
    decoder.generate(PROMPTS, n_tokens=5)
    decoder.generate(PROMPTS, n_tokens=4)

    assert len(captured) == 2


def _nan_after(token):
    """Return a model that gives NaN once it has read a token."""
    model = _model()
    with torch.no_grad():
        model.embedding.weight[token] = torch.nan
    return model


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN], ids=["greedy", "drawn"])
def test_nan_is_no_token(sampling):
    decoder = Decoder(_nan_after(10))

    with pytest.raises(NotANumberError, match="logits that are NaN or infinite"):
        decoder.generate([[1, 2], [3, 10]], n_tokens=3, sampling=sampling)


def test_nan_after_the_end_of_a_sequence_does_not_matter():
    def ended(row, tokens):
        return row == 0 or len(tokens) == 5

    decoder = Decoder(_model())
    expected = decoder.generate([[1, 2], [3, 4]], n_tokens=5, ended=ended)
    step = decoder._last
    run = step._run

    def row_0_breaks():
        run()
        step.largest[0] = torch.nan

    step._run = row_0_breaks

    assert decoder.generate([[1, 2], [3, 4]], n_tokens=5, ended=ended) == expected
    with pytest.raises(NotANumberError):
        decoder.generate([[1, 2], [3, 4]], n_tokens=5)


def test_nan_of_one_call_does_not_reach_the_next():
    model = _nan_after(10)
    fresh = Decoder(model).generate([[1, 2, 3]], n_tokens=5)
    decoder = Decoder(model.eval())
    with torch.inference_mode():
        decoder.step_after([[10] * 6], 1)

    assert decoder.generate([[1, 2, 3]], n_tokens=5) == fresh


def test_a_mixer_of_fixed_length_refuses_before_it_reads():
    model = _cosformer(8)

    assert len(Decoder(model).generate([[1] * 5], n_tokens=4)[0]) == 4
    with pytest.raises(ValueError, match="max_seq_len must be at least"):
        Decoder(model).generate([[1] * 5], n_tokens=5)
