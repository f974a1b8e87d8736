import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from workloads.architectures import dense
from workloads.data.corpus import ProbeSet
from workloads.distributed.process_group import RankGroup
from workloads.layers.modules.init import initialise
from workloads.training import evaluate as module
from workloads.training.evaluate import evaluate, stored_bits

VOCAB_SIZE = 7
CPU = torch.device("cpu")


@dataclass
class Corpus:
    probes: Sequence[ProbeSet] = ()
    held_out: np.ndarray = field(default_factory=lambda: np.zeros((0, 5), dtype=np.int64))
    vocab_size: int = VOCAB_SIZE
    tokens_per_epoch: int = 100
    bytes_per_token: float | None = None

    def windows(self, indices, *, seq_len, seed):
        raise AssertionError("evaluation reads no training data")

    def validation_bytes_per_token(self, *, seq_len):
        assert self.held_out.shape[1] == seq_len + 1
        return self.bytes_per_token

    def validation(self, *, seq_len):
        assert self.held_out.shape[1] == seq_len + 1
        return self.held_out


@pytest.fixture
def model() -> nn.Module:
    config = dense.Config(d_model=8, n_layers=2, n_heads=2, d_ff=16)
    model = config.build(VOCAB_SIZE)
    initialise(model, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            # Far from the initial values, where every token would be about as likely as any other.
            parameter.mul_(4.0)
    return model


def measure(model: nn.Module, corpus: Corpus, **changes: object) -> dict[str, float]:
    return evaluate(
        model,
        corpus,
        **{"seq_len": 4, "total_params": 1000, "world": RankGroup(), "device": CPU, **changes},
    )


def greedy(model: nn.Module, prompt: np.ndarray, n: int) -> list[int]:
    tokens = [int(token) for token in prompt]
    for _ in range(n):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def nll_of(model: nn.Module, prompt: np.ndarray, answer: np.ndarray) -> float:
    tokens = [int(token) for token in prompt]
    total = 0.0
    for token in answer:
        total -= float(model(torch.tensor([tokens]))[0, -1].double().log_softmax(-1)[int(token)])
        tokens.append(int(token))
    return total


def probe_of(model: nn.Module, *, n_facts: int, seed: int) -> ProbeSet:
    """Facts with one to three accepted answers, about half of them what the model would say."""
    random = np.random.default_rng(seed)
    prompts, answers, facts = [], [], []
    for fact in range(n_facts):
        prompt = random.integers(VOCAB_SIZE, size=random.integers(1, 9))
        for _ in range(random.integers(1, 4)):
            n = int(random.integers(1, 4))
            said = np.array(greedy(model, prompt, n))
            if random.random() < 0.6:
                said[random.integers(n)] = random.integers(VOCAB_SIZE)
            prompts.append(prompt)
            answers.append(said)
            facts.append(fact)
    return ProbeSet(
        name="train_wording",
        prompts=prompts,
        answers=answers,
        facts=np.array(facts),
        prior_bits=random.uniform(20, 80, size=n_facts),
        counts_as_knowledge=True,
        scale=2.5,
    )


@torch.no_grad()
def test_recall_is_what_a_decoding_loop_and_a_likelihood_loop_say(model, monkeypatch):
    probe = probe_of(model, n_facts=12, seed=1)

    measured = []
    for batch_logits in (1, 100, 10**6):
        monkeypatch.setitem(module.MAX_LOGITS, "cpu", batch_logits)
        measured.append(measure(model, Corpus(probes=[probe])))

    rows = list(zip(probe.prompts, probe.answers, probe.facts, strict=True))
    matches = [greedy(model, prompt, len(answer)) == answer.tolist() for prompt, answer, _ in rows]
    exact = [
        any(m for m, row in zip(matches, rows, strict=True) if row[2] == fact) for fact in range(12)
    ]
    nll = [nll_of(model, *next(row for row in rows if row[2] == fact)[:2]) for fact in range(12)]
    bits = 2.5 * max(
        0.0, sum(prior - n / math.log(2) for prior, n in zip(probe.prior_bits, nll, strict=True))
    )
    assert 0 < sum(exact) < 12
    assert bits > 0
    expected = {
        "recall/train_wording/exact_match": sum(exact) / 12,
        "recall/train_wording/answer_nll": sum(nll) / 12,
        "knowledge/stored_bits": bits,
        "knowledge/bits_per_param": bits / 1000,
    }
    for metrics in measured:
        assert metrics == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_held_out_loss_is_the_mean_over_all_tokens(model):
    windows = np.random.default_rng(0).integers(VOCAB_SIZE, size=(11, 5))
    expected = np.mean([nll_of(model, row[:1], row[1:]) / 4 for row in windows])

    metrics = measure(model, Corpus(held_out=windows, bytes_per_token=3.5))

    assert metrics == pytest.approx(
        {"valid/loss": expected, "valid/bits_per_byte": expected / math.log(2) / 3.5}, rel=1e-5
    )


def test_what_a_corpus_does_not_have_is_not_measured(model):
    assert measure(model, Corpus()) == {}


def test_only_the_probe_that_counts_as_knowledge_measures_bits(model):
    probe = ProbeSet(
        name="question",
        prompts=[np.array([1])],
        answers=[np.array([2])],
        facts=np.array([0]),
        prior_bits=np.array([1.0]),
    )

    assert measure(model, Corpus(probes=[probe])).keys() == {
        "recall/question/exact_match",
        "recall/question/answer_nll",
    }


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_put_back_and_nothing_wants_a_gradient(model, training):
    model.train(training)
    modes, steps = [], []
    model.register_forward_hook(
        lambda m, _, logits: modes.append((m.training, logits.requires_grad))
    )

    measure(
        model,
        Corpus(probes=[probe_of(model.eval(), n_facts=2, seed=0)]),
        progress=lambda: steps.append(1),
    )
    model.train(training)
    modes.clear()
    measure(model, Corpus(held_out=np.ones((2, 5), dtype=np.int64)))

    assert model.training is training
    assert modes == [(False, False)]
    assert steps == [1]


def test_bits_are_floored_in_total_and_not_fact_by_fact():
    nll = np.array([0.0, 3.0]) * math.log(2)

    assert stored_bits(nll, prior_bits=np.array([2.0, 2.0])) == pytest.approx(1.0)
    assert stored_bits(nll, prior_bits=np.array([1.0, 1.0])) == 0.0
