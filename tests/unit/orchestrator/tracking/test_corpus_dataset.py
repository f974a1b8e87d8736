"""Corpora of trials as MLflow's data sets: what changes a digest, and what MLflow reads back."""

import json

import pytest

from orchestrator.tracking.corpus_dataset import trial_datasets

A, B = "a" * 64, "b" * 64


def of_files(disk, folder="/corpora/one", **data):
    files = {"path": f"{folder}/train.jsonl", "valid_path": f"{folder}/valid.jsonl"}
    return disk.make_spec(
        data={"source": "text", **files, "tokenizer": f"{folder}/t.json", **data},
        data_sha256={"path": A, "valid_path": B, "tokenizer": A},
    )


def test_files_keep_name_and_digest_wherever_they_lie(disk):
    here, there = trial_datasets(of_files(disk)), trial_datasets(of_files(disk, "/elsewhere"))

    assert [(one.name, one.digest, one.context) for one in here] == [
        ("train.jsonl", A[:36], "training"),
        ("valid.jsonl", B[:36], "validation"),
    ]
    assert [(one.name, one.digest) for one in there] == [(one.name, one.digest) for one in here]
    assert json.loads(there[0].source) == {"uri": "/elsewhere/train.jsonl"}
    assert json.loads(here[0].profile) == {"paths": ["/corpora/one/train.jsonl"], "sha256": A}


def test_several_files_are_one_data_set_of_their_common_folder(disk):
    paths = ["/corpora/news/a.jsonl", "/corpora/news/b.jsonl"]
    (one, _) = trial_datasets(of_files(disk, path=paths))

    assert (one.name, json.loads(one.source)) == ("news", {"uri": "/corpora/news"})
    assert json.loads(one.profile)["paths"] == paths


def test_generated_text_is_named_by_its_recipe(disk):
    (hundred,) = trial_datasets(disk.make_spec(0))
    (again,) = trial_datasets(disk.make_spec(1, "moe"))
    (more,) = trial_datasets(disk.make_spec(data={"source": "biographies", "n_people": 101}))

    assert hundred == again, "seed and model are no part of the corpus"
    assert hundred.digest != more.digest
    assert hundred.name == more.name == "biographies"


@pytest.mark.parametrize("kind", ["files", "generated"])
def test_mlflow_reads_the_source_back(disk, kind):
    data = pytest.importorskip("mlflow.data")
    from mlflow.entities import Dataset

    one = trial_datasets(of_files(disk) if kind == "files" else disk.make_spec())[0]
    source = data.get_source(
        Dataset(name=one.name, digest=one.digest, source_type=one.source_type, source=one.source)
    )

    if kind == "files":
        assert source.uri == "/corpora/one/train.jsonl"
    else:
        assert source.to_dict()["tags"]["n_people"] == "100"
