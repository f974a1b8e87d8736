from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.data.sources.biographies import SEPARATOR, Config

configs = st.builds(
    Config,
    n_people=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
    style=st.sampled_from(["sentences", "compact"]),
    order=st.sampled_from(["permute", "fixed"]),
    n_wordings=st.integers(1, 20),
    question_share=st.floats(0, 1),
    questions_per_biography=st.integers(1, 5),
    n_probe_people=st.integers(1, 300),
    n_first_names=st.integers(1, 9),
    n_middle_names=st.integers(1, 9).map(lambda n: n + 4),
    n_last_names=st.just(60),
    n_cities=st.integers(2, 30),
)
seeds = st.integers(-(2**40), 2**40)


@settings(max_examples=25, deadline=None)
@given(config=configs, epoch=st.integers(0, 10**6), seed=seeds)
def test_every_epoch_has_exactly_the_predicted_tokens_and_documents(config, epoch, seed):
    corpus = config.prepare(Path())
    stream = corpus.epoch(epoch, seed)
    assert len(stream) == config.tokens_per_epoch() == corpus.tokens_per_epoch
    n_documents = config.n_people + config.n_asked * config.questions_per_biography
    assert (stream == SEPARATOR).sum() == n_documents
    assert stream.min() >= 0
    assert stream.max() < config.vocab_size


@settings(max_examples=12, deadline=None)
@given(
    config=configs,
    seed=seeds,
    seq_len=st.integers(1, 600),
    indices=st.lists(st.integers(0, 5_000), min_size=1, max_size=12),
)
def test_a_window_is_a_pure_function_of_its_index(config, seed, seq_len, indices):
    corpus = config.prepare(Path())
    together = corpus.windows(np.array(indices), seq_len=seq_len, seed=seed)
    assert together.shape == (len(indices), seq_len + 1)
    for index, window in zip(indices, together, strict=True):
        alone = config.prepare(Path()).windows(np.array([index]), seq_len=seq_len, seed=seed)
        assert (alone[0] == window).all()


@settings(max_examples=30, deadline=None)
@given(config=configs)
def test_probes_are_consistent(config):
    for probe in config.prepare(Path()).probes:
        n_facts = len(probe.prior_bits)
        assert len(probe.prompts) == len(probe.answers) == len(probe.facts) == n_facts
        assert all(prompt[0] == SEPARATOR for prompt in probe.prompts)
        n_people = config.n_people - (config.n_asked if probe.name == "question" else 0)
        assert np.isclose(probe.scale * n_facts / 5, n_people)
        total = probe.scale * probe.prior_bits.sum()
        assert np.isclose(total, n_people * config.bits_per_person)
