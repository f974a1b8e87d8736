"""Texts of a trained model, against full passes."""

import pytest
import torch

from workloads.architectures import dense
from workloads.data.tokenizer import train
from workloads.decoding.decoder import NotANumberError
from workloads.decoding.generate_text import continuations
from workloads.layers.modules.init import initialise
from workloads.training.trained_model import TrainedModel

CONFIG = dense.Config(d_model=16, n_layers=2, n_heads=2, d_ff=24)
SEQ_LEN, VOCAB_SIZE = 24, 270
CPU = {"device_name": "cpu"}


@pytest.fixture(scope="module")
def trained():
    model = CONFIG.build(VOCAB_SIZE)
    initialise(model, 0)
    return TrainedModel(
        config=CONFIG,
        weights=dict(model.named_parameters()),
        tokenizer=train(["the river and the city and the king"] * 3, vocab_size=VOCAB_SIZE),
        vocab_size=VOCAB_SIZE,
        seq_len=SEQ_LEN,
        step=1,
    )


def test_greedy_text_is_the_argmax_of_full_passes(trained):
    prompts = ["the river", "a", "", "the city and"]
    model, tokenizer = trained.build(torch.device("cpu")), trained.tokenizer

    found = list(continuations(trained, prompts, n_tokens=6, **CPU))

    for prompt, one in zip(prompts, found, strict=True):
        ids = tokenizer.encode([prompt])[0] or [tokenizer.separator]
        added = []
        while len(added) < 6 and tokenizer.separator not in added:
            added.append(int(model(torch.tensor([ids + added]))[0, -1].argmax()))
        ended = added[-1] == tokenizer.separator
        added = added[:-1] if ended else added
        assert vars(one) == {
            "prompt": prompt,
            "text": tokenizer.decode(added),
            "n_tokens": len(added),
            "ended": ended,
        }


def test_a_text_ends_where_the_model_ends_the_document(trained):
    # Of a uniform model some sequence soon draws the separator.
    flat = {name: torch.zeros_like(value) for name, value in trained.weights.items()}
    model = TrainedModel(**{**vars(trained), "weights": flat})

    # Ties go to the lowest id, the separator.
    (one,) = continuations(model, ["the"], n_tokens=6, **CPU)

    assert (one.text, one.n_tokens, one.ended) == ("", 0, True)


def test_the_seed_of_a_prompt_is_its_number(trained):
    options = {"n_tokens": 9, "temperature": 1.0, "top_k": 50, **CPU}
    both = list(continuations(trained, ["the", "the"], seed=4, **options))
    (second,) = continuations(trained, ["the"], seed=5, **options)

    assert both[1] == second
    assert both[0] != both[1]


def test_what_cannot_be_read_is_refused(trained):
    wordless = TrainedModel(**{**vars(trained), "tokenizer": None})
    with pytest.raises(ValueError, match="no tokenizer for text"):
        list(continuations(wordless, ["the"], n_tokens=1, **CPU))
    short, long = (len(trained.tokenizer.encode([text])[0]) for text in ("the", "the river"))
    assert short < long
    with pytest.raises(
        ValueError,
        match=f"prompt 2: {long} tokens and 24 to add are more than the 24 that the model reads at "
        f"once; shorten it or lower --max-tokens to {SEQ_LEN + 1 - long}$",
    ):
        list(continuations(trained, ["the", "the river"], n_tokens=SEQ_LEN + 1 - short, **CPU))
    with pytest.raises(ValueError, match="prompt 1: .* at once; shorten it$"):
        list(continuations(trained, ["the river " * SEQ_LEN], **CPU))


def test_without_a_number_each_prompt_gets_what_fits(trained):
    prompts = ["the", "the river and the city", "a"]
    lengths = [len(ids) for ids in trained.tokenizer.encode(prompts)]
    rooms = [SEQ_LEN + 1 - n for n in lengths]
    assert len({*rooms}) > 1
    options = {"temperature": 1.0, "seed": 3, **CPU}
    longer = TrainedModel(**{**vars(trained), "seq_len": SEQ_LEN + 50})

    found = list(continuations(trained, prompts, **options))

    alone = [
        one
        for i, (prompt, room) in enumerate(zip(prompts, rooms, strict=True))
        for one in continuations(trained, [prompt], n_tokens=room, **{**options, "seed": 3 + i})
    ]
    assert found == alone
    assert all(one.n_tokens == room or one.ended for one, room in zip(found, rooms, strict=True))
    assert all(one.n_tokens == 64 or one.ended for one in continuations(longer, ["the"], **CPU))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_gives_nan_has_no_text(trained, temperature):
    damaged = {name: value.detach().clone() for name, value in trained.weights.items()}
    damaged[next(reversed(damaged))].fill_(torch.nan)
    model = TrainedModel(**{**vars(trained), "weights": damaged})

    with pytest.raises(NotANumberError, match="training diverged or its weights are damaged"):
        list(continuations(model, ["the"], n_tokens=3, temperature=temperature, **CPU))
