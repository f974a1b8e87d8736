"""What a finished run has learned, read from its final checkpoint, and written for transformers."""

import json
from dataclasses import asdict
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from workloads.architectures import dense, memory_plus, moe
from workloads.decoding.generate_text import continuations
from workloads.evaluation.table_reads import count_reads
from workloads.evaluation.text_model import text_model
from workloads.training import trained_model
from workloads.training.rank_job import RankJob
from workloads.training.train import run

TEXTS = ("Person 1 was born", "in town 3. Person", "Person 7")
TRAIN = {"tokens": 128, "batch_tokens": 64, "seq_len": 16, "lr": 1e-2}


@pytest.fixture
def data(tmp_path):
    texts = [f"Person {i} was born in {1900 + i} in town {i % 7}." for i in range(60)]
    file = tmp_path / "text.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return {"source": "text", "path": str(file), "vocab_size": 300}


def trained(data, module, tmp_path, **more):
    """Train for two steps and return the sections that name what came of it."""
    fields = asdict(module.Config(**module.PRESETS["d8"]))
    sections = {
        "data": data,
        "model": {"architecture": module.__name__.rpartition(".")[2], **fields},
        "train": {**TRAIN, **more},
        "cache": tmp_path / "cache",
        "data_sha256": {},
    }
    run(
        RankJob(**sections, seed=0, checkpoints=tmp_path / "checkpoints"),
        Mock(should_stop=lambda: False),
    )
    return {**sections, "checkpoints": tmp_path / "checkpoints"}


def test_a_checkpoint_before_the_end_is_read_too(data, tmp_path):
    sections = trained(data, dense, tmp_path)
    final = tmp_path / "checkpoints" / "final"
    final.rename(final.with_name("step-00000002"))

    assert trained_model.load_trial(**sections, name="step-00000002").step == 2
    with pytest.raises(ValueError, match="final: not there; the trial has to finish first"):
        trained_model.load_trial(**sections)
    with pytest.raises(ValueError, match="step-00000001: not there$"):
        trained_model.load_trial(**sections, name="step-00000001")


@pytest.mark.parametrize("module", [dense, memory_plus, moe], ids=lambda m: m.__name__[-5:])
def test_a_trained_model_is_the_one_that_was_saved(data, module, tmp_path):
    sections = trained(data, module, tmp_path)

    found = trained_model.load_trial(**sections)
    model = found.build(torch.device("cpu"))

    assert (found.step, found.seq_len, found.vocab_size) == (2, 16, 300)
    assert found.tokenizer.decode(found.tokenizer.encode(["Person 3"])[0]) == "Person 3"
    state = torch.load(tmp_path / "checkpoints" / "final" / "state.pt", weights_only=True)
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        torch.testing.assert_close(value.detach(), state["weights"][name], rtol=0, atol=0)


@pytest.mark.parametrize("masked", [None, True])
def test_attention_stays_within_documents_as_in_training(masked, data, tmp_path):
    sections = trained(data, memory_plus, tmp_path, document_mask=masked)

    found = trained_model.load_trial(**sections)
    model = found.build(torch.device("cpu"))

    separator = found.tokenizer.separator
    assert model.document_separator == (separator if masked else None)
    first, other, last = ([separator, *found.tokenizer.encode([text])[0]] for text in TEXTS)
    with torch.no_grad():
        after, after_other, alone = (
            model(torch.tensor([ids]))[0, -len(last) :]
            for ids in ([*first, *last], [*other, *last], last)
        )
    assert torch.allclose(after, after_other, atol=1e-6) == bool(masked)
    assert torch.allclose(after, alone, atol=1e-6) == bool(masked)


def test_exported_and_read_again(data, tmp_path):
    found = trained_model.load_trial(**trained(data, dense, tmp_path))
    trained_model.export(found, tmp_path / "exported")

    again = trained_model.load_pretrained(tmp_path / "exported")

    assert (again.config.d_model, again.seq_len, again.vocab_size) == (8, 16, 300)
    assert again.tokenizer.encode(["town 3"]) == found.tokenizer.encode(["town 3"])
    tokens = torch.arange(12)[None]
    models = [each.build(torch.device("cpu")) for each in (found, again)]
    with torch.no_grad():
        found_logits, again_logits = (model(tokens) for model in models)
    torch.testing.assert_close(found_logits, again_logits, rtol=0, atol=0)


def test_what_is_not_there_or_damaged_is_said(data, tmp_path):
    sections = trained(data, dense, tmp_path)
    (tmp_path / "checkpoints" / "final" / "state.pt").write_bytes(b"half")

    with pytest.raises(ValueError, match=r"state\.pt has 4 bytes, its manifest says"):
        trained_model.load_trial(**sections)
    with pytest.raises(ValueError, match="the trial has to finish first"):
        trained_model.load_trial(**{**sections, "checkpoints": tmp_path / "none"})


def test_a_weight_of_another_shape_is_named(data, tmp_path):
    found = trained_model.load_trial(**trained(data, dense, tmp_path))
    found.weights["norm.gain"] = torch.ones(9)

    with pytest.raises(ValueError, match=r"norm\.gain: expected \(8,\), found \(9,\)"):
        found.build(torch.device("cpu"))


RANK = """
from unittest.mock import Mock
from workloads.training.rank_job import RankJob
from workloads.training.train import run
for name, layout in layouts.items():
    job = RankJob(
        **sections, **layout, seed=0, checkpoints=folder / name, rank=rank, world_size=2,
        rendezvous=folder / f"meet-{name}",
    )
    run(job, Mock(should_stop=lambda: False))
"""
LAYOUTS = {
    "columns": {"memory_ranks": 2, "memory_layout": "columns"},
    "rows": {"memory_ranks": 2, "memory_layout": "rows"},
    "fsdp": {"dense_parameters": "sharded"},
    "both": {"memory_ranks": 2, "memory_layout": "rows", "dense_parameters": "sharded"},
}


@pytest.mark.long
def test_what_two_ranks_trained_in_shards_generates_on_one(data, tmp_path, run_ranks):
    sections = trained(data, memory_plus, tmp_path)
    alone = trained_model.load_trial(**sections)
    of_job = {key: value for key, value in sections.items() if key != "checkpoints"}
    run_ranks(RANK, 2, {"folder": tmp_path, "layouts": LAYOUTS, "sections": of_job})

    prompts = ["Person 3 was", "town", ""]
    expected = list(continuations(alone, prompts, n_tokens=8, device_name="cpu"))
    for name in LAYOUTS:
        found = trained_model.load_trial(**{**sections, "checkpoints": tmp_path / name})
        assert found.weights.keys() == alone.weights.keys()
        for key, value in alone.weights.items():
            torch.testing.assert_close(found.weights[key], value, rtol=1e-4, atol=1e-5)
        assert list(continuations(found, prompts, n_tokens=8, device_name="cpu")) == expected
        with text_model(found, device_name="cpu") as scored:
            (score,) = scored.scores([scored.pair("Person 3", " was born in 1903")])
        assert score.log_likelihood == pytest.approx(_score(alone), abs=1e-3)
        # Row ids are those of the whole table, whoever held the rows in training.
        reads, other = _table_reads(found), _table_reads(alone)
        assert abs(reads - other).sum() <= 0.02 * other.sum()  # ties of rounded scores
    assert any(one.text.strip() for one in expected)


def _score(found):
    with text_model(found, device_name="cpu") as scored:
        return scored.scores([scored.pair("Person 3", " was born in 1903")])[0].log_likelihood


def _table_reads(found):
    windows = np.random.default_rng(0).integers(0, found.vocab_size, (8, found.seq_len))
    here = torch.device("cpu")
    layers = count_reads(found.build(here), windows, here=here).values()
    reads = np.concatenate([layer.reads for layer in layers])
    assert reads.sum() > 0
    return reads
