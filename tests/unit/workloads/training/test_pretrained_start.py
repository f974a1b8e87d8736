"""Training that starts from a trained model, also with a memory added to it."""

import json
import logging
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest
import torch

from workloads.architectures import dense, memory, memory_plus, moe, pythia
from workloads.checkpoint.huggingface import folder
from workloads.layers.modules.init import initialise
from workloads.training import trained_model
from workloads.training.pretrained_start import start_from
from workloads.training.rank_job import RankJob
from workloads.training.train import run

VOCAB_SIZE = 300
SIZES = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
MIXTRAL = {
    **{name: size for name, size in SIZES.items() if name != "d_ff"},
    "n_experts": 3,
    "d_expert": 8,
    "top_k": 2,
    "renormalise": True,
}


def written(path, config):
    """Write a folder with a model of random weights, and return its parameters."""
    model = config.build(VOCAB_SIZE)
    initialise(model, 5)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    folder.write(path, config, parameters, seq_len=16, tokenizer=None)
    return parameters


@pytest.fixture
def trained(tmp_path):
    """A folder with a Llama, and its parameters."""
    return tmp_path / "llama", written(tmp_path / "llama", dense.Config(**SIZES))


def job_of(trained, tmp_path, **more):
    paths = {"checkpoints": tmp_path / "checkpoints", "cache": tmp_path / "cache"}
    sections = {"data": {}, "model": {}, "train": {}}
    return RankJob(**{**sections, **paths, "seed": 0, "from_pretrained": trained, **more})


def started(config, job):
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    start_from(model, job)
    return before, {name: value.detach() for name, value in model.named_parameters()}


def test_the_same_architecture_takes_everything(trained, tmp_path):
    path, parameters = trained

    _, after = started(dense.Config(**SIZES), job_of(path, tmp_path))

    torch.testing.assert_close(after, parameters, rtol=0, atol=0)


def test_a_memory_is_added(trained, tmp_path, caplog):
    path, parameters = trained
    config = memory_plus.Config(**SIZES, n_keys=4, knn=2, key_dim=4, memory_layers=(1,))

    with caplog.at_level(logging.INFO):
        before, after = started(config, job_of(path, tmp_path))

    replaced = "layers.1.feed_forward."
    assert f"{replaced}gate.weight" in after.keys() & parameters.keys()  # of the memory, of SwiGLU
    shared = {name for name in parameters if not name.startswith(replaced)}
    for name, value in after.items():
        expected = parameters[name] if name in shared else before[name]
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
    assert f"{len(shared)} of {len(after)} parameters start from {path} (new: " in caplog.text
    assert "not used: layers.1.feed_forward.gate.weight and 2 more" in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "added"),
    [
        (
            dense.Config(**SIZES),
            memory.Config(**SIZES, n_keys=4, knn=2, key_dim=4, beside_ffn=True, memory_layer=1),
            "layers.1.feed_forward.memory.",
        ),
        (
            moe.Config(**MIXTRAL),
            moe.Config(**MIXTRAL, selection_bias=True),
            "layers.0.feed_forward.selection_bias.",
        ),
        (
            moe.Config(**MIXTRAL),
            moe.Config(**MIXTRAL, n_shared_experts=1),
            "layers.0.feed_forward.shared.",
        ),
    ],
    ids=["memory beside it", "selection bias", "shared expert"],
)
def test_a_block_that_gains_parts_keeps_its_weights(before, after, added, tmp_path, caplog):
    parameters = written(tmp_path / "folder", before)

    with caplog.at_level(logging.INFO):
        _, found = started(after, job_of(tmp_path / "folder", tmp_path))

    assert any(name.startswith(added) for name in found)
    kept = {name: found[name] for name in parameters}
    torch.testing.assert_close(kept, parameters, rtol=0, atol=0)
    assert f"{len(kept)} of {len(found)} parameters start from" in caplog.text
    assert "not used" not in caplog.text


SHARDED = """
from functools import partial
from pathlib import Path
import torch
from workloads.architectures import dense
from workloads.distributed import process_group
from workloads.distributed.mesh import Mesh
from workloads.layers.modules.init import initialise
from workloads.sharding.materialise import materialise_model
from workloads.training.pretrained_start import start_from
from workloads.training.rank_job import RankJob
here = torch.device("cpu")
with process_group.join(rank=rank, size=2, device=here, rendezvous=folder / "meet") as world:
    model = materialise_model(
        partial(dense.Config(**sizes).build, vocab_size), Mesh(world=world),
        layout="columns", here=here, place="device", dense="sharded",
    )
    initialise(model, 0)
    start_from(model, job)
    for name, value in model.named_parameters():
        assert torch.equal(value.full_tensor(), parameters[name]), name
"""


def test_ranks_that_shard_dense_parameters_take_their_shards(trained, tmp_path, run_ranks):
    path, parameters = trained
    sizes = {"folder": tmp_path, "sizes": SIZES, "vocab_size": VOCAB_SIZE}
    run_ranks(SHARDED, 2, {**sizes, "parameters": parameters, "job": job_of(path, tmp_path)})


@pytest.mark.parametrize(
    ("architecture", "sizes"), [(dense, SIZES), (moe, MIXTRAL), (pythia, SIZES)]
)
def test_an_untied_head_begins_as_the_table_of_a_tied_folder(architecture, sizes, tmp_path, caplog):
    parameters = written(tmp_path / "folder", architecture.Config(**sizes, tied_embeddings=True))
    untied = architecture.Config(**sizes, tied_embeddings=False)

    with caplog.at_level(logging.INFO):
        _, found = started(untied, job_of(tmp_path / "folder", tmp_path))

    expected = {**parameters, "head.weight": parameters["embedding.weight"]}
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert ", head.weight from its tied embedding.weight" in caplog.text


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (
            dense.Config(**{**SIZES, "d_ff": 32}),
            r"gate\.weight is \(24, 16\) in .*, the model's is \(32, 16\)",
        ),
        (pythia.Config(**SIZES), "for which this model has no place; use dense"),
    ],
    ids=["width", "backbone"],
)
def test_another_model_is_refused(config, what, trained, tmp_path):
    with pytest.raises(ValueError, match=what):
        started(config, job_of(trained[0], tmp_path))


def test_a_folder_that_changed_is_refused(trained, tmp_path):
    job = job_of(trained[0], tmp_path, from_pretrained_sha256="0" * 64)
    with pytest.raises(ValueError, match="changed since this trial was submitted"):
        started(dense.Config(**SIZES), job)


def test_a_run_starts_there(trained, tmp_path):
    path, parameters = trained
    text = "".join(json.dumps({"text": f"Person {i} is {i} years old."}) + "\n" for i in range(40))
    (tmp_path / "text.jsonl").write_text(text)
    job = replace(
        job_of(path, tmp_path),
        data={"source": "text", "path": str(tmp_path / "text.jsonl"), "vocab_size": VOCAB_SIZE},
        model={"architecture": "dense", **asdict(dense.Config(**SIZES))},
        train={"tokens": 64, "batch_tokens": 64, "seq_len": 16, "lr": 1e-9},
    )

    run(job, Mock(should_stop=lambda: False))

    found = trained_model.load_trial(
        job.checkpoints,
        data=job.data,
        data_sha256={},
        model=job.model,
        train=job.train,
        cache=job.cache,
    )
    for name, value in parameters.items():
        torch.testing.assert_close(found.weights[name], value, rtol=0, atol=1e-7)
