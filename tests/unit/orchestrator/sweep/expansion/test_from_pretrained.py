"""`model: {from_pretrained: …}` in a sweep file: sizes, identity, mistakes."""

import json

import pytest
from safetensors.torch import load_file, save_file

from orchestrator.records.errors import ConfigError
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.sweep.expansion import recorded_inputs
from orchestrator.sweep.load import load_sweep
from orchestrator.sweep.parsing import discovery
from workloads.architectures import dense
from workloads.checkpoint.huggingface import folder
from workloads.layers.modules.init import initialise

SIZES = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
SWEEP = """
name: s
data: {{source: text, path: text.jsonl, vocab_size: {vocab_size}}}
train: {{tokens: 128, batch_tokens: 64, seq_len: 16, lr: 1.0e-3}}
model: {{{model}}}
trials: [set: {{}}]
"""


def write_model(path, seed=0):
    config = dense.Config(**SIZES)
    model = config.build(300)
    initialise(model, seed)
    folder.write(path, config, dict(model.named_parameters()), seq_len=16, tokenizer=None)


@pytest.fixture
def spec_of(tmp_path):
    """Return the spec of a sweep file of one trial."""
    write_model(tmp_path / "llama")
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')

    def load(model, vocab_size=300):
        (tmp_path / "s.yaml").write_text(SWEEP.format(model=model, vocab_size=vocab_size))
        (spec,) = load_sweep([tmp_path / "s.yaml"]).trials
        return spec

    return load


DENSE = "architecture: dense, from_pretrained: llama"


def test_sizes_are_those_of_the_folder_unless_written(spec_of, tmp_path):
    spec = spec_of(DENSE)
    wider = spec_of("architecture: memory_plus, from_pretrained: llama, n_keys: 8, knn: 2")

    assert {key: spec.model[key] for key in SIZES} == SIZES
    assert spec.from_pretrained == str(tmp_path / "llama")
    assert {key: wider.model[key] for key in SIZES} == SIZES
    assert TrialSpec.from_json(spec.to_json()) == spec


def test_the_content_is_part_of_the_identity_and_the_path_is_not(spec_of, tmp_path):
    here = spec_of(DENSE)
    (tmp_path / "llama").rename(tmp_path / "moved")
    moved = spec_of("architecture: dense, from_pretrained: moved")
    write_model(tmp_path / "moved", seed=1)
    other = spec_of("architecture: dense, from_pretrained: moved")
    scratch = spec_of(f"architecture: dense, {str(SIZES)[1:-1]}".replace("'", ""))

    assert here.trial_id == moved.trial_id
    assert len({here.trial_id, other.trial_id, scratch.trial_id}) == 3
    assert "from_pretrained_sha256" not in scratch.identity()["model"]


@pytest.mark.parametrize("shard", ["model-00001-of-00001.safetensors", "weights.safetensors"])
def test_files_that_an_index_names_are_part_of_the_identity(shard, spec_of, tmp_path):
    whole, part = tmp_path / "llama" / "model.safetensors", tmp_path / "llama" / shard
    whole.rename(part)
    tensors = load_file(part)
    index = json.dumps({"weight_map": dict.fromkeys(tensors, shard)})
    (tmp_path / "llama" / "model.safetensors.index.json").write_text(index)
    before = spec_of(DENSE)

    save_file({name: value + 1 for name, value in tensors.items()}, part)

    assert spec_of(DENSE).trial_id != before.trial_id


def test_a_recorded_sweep_finds_the_folder_from_anywhere(tmp_path, monkeypatch):
    project = tmp_path / "project"
    write_model(project / "llama")
    (project / "text.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    file = project / "s.yaml"
    file.write_text(SWEEP.format(model=DENSE, vocab_size=300))
    sweep = load_sweep([file])
    copy = tmp_path / "runs" / "s" / "sweep.yaml"
    copy.parent.mkdir(parents=True)
    copy.write_text(sweep.text)
    labels = [source.label for source in discovery.split(copy, sweep.text)]
    recorded_inputs.write(copy, labels, sweep.inputs)
    monkeypatch.chdir("/")

    again = load_sweep([copy])
    assert [t.trial_id for t in again.trials] == [t.trial_id for t in sweep.trials]
    assert again.trials[0].from_pretrained == str(project / "llama")

    write_model(project / "llama", seed=1)
    with pytest.raises(ConfigError, match="does not hold what it held"):
        load_sweep([copy])


@pytest.mark.parametrize(
    ("model", "vocab_size", "what"),
    [
        ("architecture: dense, from_pretrained: nowhere", 300, "no such folder: nowhere"),
        ("architecture: dense, from_pretrained: .", 300, "holds no model; expected config.json"),
        (f"{DENSE}, preset: d8", 300, "stands beside a preset"),
        (
            DENSE,
            400,
            "its embeddings are of 300 tokens, data.vocab_size is 400; set data.tokenizer",
        ),
        (f"{DENSE}, n_heads: 3", 300, "must divide d_model (16)"),
    ],
)
def test_mistakes(model, vocab_size, what, spec_of):
    with pytest.raises(ConfigError) as raised:
        spec_of(model, vocab_size)
    (problem,) = raised.value.problems
    assert what in str(problem)
    assert problem.line == 5
