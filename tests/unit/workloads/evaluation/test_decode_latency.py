"""Milliseconds per decoded token: what is timed is decoding, of any trained model."""

import math
from dataclasses import replace

import pytest
import torch

from workloads.architectures import dense
from workloads.decoding.decode_step import DecodeStep
from workloads.decoding.decoder import Decoder
from workloads.evaluation.decode_latency import DecodeLatency
from workloads.layers.modules.init import initialise
from workloads.sharding.fsdp import only_forward
from workloads.training.trained_model import TrainedModel

ASKED = DecodeLatency(batches=(1, 3), context=5, n_steps=4, n_runs=3)


@pytest.fixture
def trained():
    config = dense.Config(**dense.PRESETS["d8"])
    model = config.build(40)
    initialise(model, 0)
    weights = dict(model.named_parameters())
    return TrainedModel(
        config=config, weights=weights, tokenizer=None, vocab_size=40, seq_len=16, step=7
    )


def test_every_step_of_every_run_is_timed(trained, monkeypatch):
    read, now = [], [0.0]
    step = DecodeStep.__call__

    def counted(self):
        now[0] += 0.002 * len(self.tokens)
        read.append((len(self.tokens), int(self.cache.lengths[0])))
        step(self)

    monkeypatch.setattr(DecodeStep, "__call__", counted)
    monkeypatch.setattr("workloads.evaluation.decode_latency.time.perf_counter", lambda: now[0])

    record = ASKED.measure(trained, precision="fp32")

    runs = [(batch, length) for batch in (1, 3) for _ in range(4) for length in range(5, 9)]
    assert read == runs  # four runs, the first not counted, of four steps after five tokens
    assert record["metrics"] == pytest.approx(
        {
            "eval/decode/ms_per_token_batch1": 2.0,
            "eval/decode/ms_per_token_batch1_stderr": 0.0,
            "eval/decode/ms_per_token_batch3": 6.0,
            "eval/decode/ms_per_token_batch3_stderr": 0.0,
        }
    )
    assert (record["step"], record["tasks"]["decode"]["n"]) == (7, 3)


def test_a_short_model_is_timed_within_its_sequence(trained):
    found = ASKED.measure(replace(trained, seq_len=2), precision="fp32")["metrics"]
    assert all(math.isfinite(value) and value >= 0 for value in found.values())


def test_what_is_timed_or_where_is_in_the_digest(monkeypatch):
    assert ASKED.digest == replace(ASKED).digest != replace(ASKED, n_steps=5).digest
    before = ASKED.digest
    monkeypatch.setattr(torch, "__version__", "0")
    assert ASKED.digest != before


def test_a_step_after_prompts_gives_what_generation_gives(trained):
    decoder = Decoder(trained.build(torch.device("cpu")))
    prompts = [[3, 1, 4], [1, 5, 9, 2]]
    expected = decoder.generate(prompts, n_tokens=4)
    with only_forward(decoder.model):
        step = decoder.step_after(prompts, 3)
        found = [step.tokens[:, 0].tolist()]
        for _ in range(3):
            step()
            found.append(step.tokens[:, 0].tolist())
    assert [list(row) for row in zip(*found, strict=True)] == expected
