import json

import pytest

from orchestrator.planning.input_data import check_data, prepare_data
from orchestrator.planning.pricing import make_plan
from orchestrator.records.errors import ConfigError
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.sweep.load import load_sweep
from workloads.data.sources import triples

SWEEP = """
name: small
data: {%s}
train: {tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}
model: {architecture: dense}
trials: [{grid: {model.preset: [d16, d24]%s}}]
"""


def planned(tmp_path, grid="", **data_of_files):
    files = []
    for name, data in data_of_files.items():
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(SWEEP % (data, grid), encoding="utf-8")
    return make_plan(load_sweep(files), SweepDir(tmp_path / "runs").snapshot(), ())


def test_an_input_file_is_blamed_on_the_sweep_file_that_names_it(tmp_path):
    (tmp_path / "good.tsv").write_text("subject\trelation\tobject\nAda\tborn in\tLondon\n")
    (tmp_path / "bad.tsv").write_text("no tabs\n")
    plan = planned(
        tmp_path,
        good="source: triples, path: good.tsv, vocab_size: 300",
        bad="source: triples, path: bad.tsv, vocab_size: 300",
    )
    with pytest.raises(ConfigError) as caught:
        check_data(plan)
    assert {problem.file.name for problem in caught.value.problems} == {"bad.yaml"}
    with pytest.raises(ConfigError, match=r"bad\.tsv:1: the header has no column"):
        prepare_data(plan, tmp_path / "cache", lambda said: None)


def test_a_file_of_facts_is_read_once_for_all_settings(tmp_path, monkeypatch):
    for name, n in (("here.tsv", 60), ("there.tsv", 50)):
        rows = [f"Land {i}\tcapital\tTown {i % 7}\tRiver {i % 3}" for i in range(n)]
        (tmp_path / name).write_text("\n".join(["subject\trelation\tobject\triver", *rows]))
    settings = {
        "few": "path: here.tsv, max_facts: 20",
        "more": "path: here.tsv, max_facts: 40",
        "heldout": "path: here.tsv, heldout_subjects: 0.3",
        "rivers": "path: here.tsv, object_column: river",
        "others": "path: there.tsv, max_facts: 20",
    }
    data = {name: f"source: triples, vocab_size: 300, {one}" for name, one in settings.items()}
    read, read_facts = [], triples.read_facts
    monkeypatch.setattr(
        triples,
        "read_facts",
        lambda path, **how: (
            read.append((path.name, how["columns"].object)) or read_facts(path, **how)
        ),
    )

    together = check_data(planned(tmp_path, **data))

    assert read == [("here.tsv", "object"), ("here.tsv", "river"), ("there.tsv", "object")]
    assert len(together.facts) == 2 * len(settings)
    for name, one in data.items():
        alone = check_data(planned(tmp_path, **{name: one}))
        assert alone.facts.items() <= together.facts.items()


def test_a_mistake_is_one_problem_of_each_sweep_file_whatever_its_settings(tmp_path):
    (tmp_path / "bad.tsv").write_text("no tabs\n")
    data = "source: triples, path: bad.tsv, vocab_size: 300"
    grid = ", data.max_facts: [5, 6]"
    plan = planned(tmp_path, grid, one=data, other=f"{data}, heldout_subjects: 0.5")

    with pytest.raises(ConfigError) as caught:
        check_data(plan)

    assert [problem.file.name for problem in caught.value.problems] == ["one.yaml", "other.yaml"]


def test_text_is_tokenised_once_before_any_trial(tmp_path):
    rows = [json.dumps({"text": f"Document {i} says {i * i}."}) + "\n" for i in range(50)]
    (tmp_path / "corpus.jsonl").write_text("".join(rows))
    plan = planned(
        tmp_path, text="source: text, path: corpus.jsonl, valid_share: 0.2, vocab_size: 300"
    )
    first, again = [], []
    prepare_data(plan, tmp_path / "cache", first.append)
    prepare_data(plan, tmp_path / "cache", again.append)
    assert [said.split()[0] for said in first] == [
        "50",
        "training",
        "trained",
        again[0].split()[0],
        "held-out",
    ]
    assert again == first[-2:]
    assert len(list((tmp_path / "cache").glob("text-*/train-00000.bin"))) == 1


def test_held_out_text_is_few_by_its_bytes_and_then_exactly(tmp_path):
    rows = [json.dumps({"text": f"Document {i} says {i * i}."}) + "\n" for i in range(50)]
    (tmp_path / "corpus.jsonl").write_text("".join(rows))
    data = "source: text, path: corpus.jsonl, valid_share: 0.2, vocab_size: 4096"
    plan = planned(tmp_path, text=data)

    before, said = check_data(plan).notes, []
    prepare_data(plan, tmp_path / "cache", said.append)  # beside the sweep
    after = check_data(plan).notes

    few = "held-out text: {} tokens are few: models are compared by their loss on them alone; "
    assert before[-1].startswith(few.format("about 97"))
    assert "raise data.valid_share or give data.valid_path for 50,000 or more" in before[-1]
    assert list(after[-2:]) == said[-2:]
    assert after[-2].startswith("tokenizer: ")
    assert "; vocab_size 4,096 leaves 3," in after[-2]
    assert after[-1].startswith(few.format(said[-3].split(" and ")[1].split()[0]))
    (tmp_path / "corpus.jsonl").write_text("".join(rows * 2))
    assert check_data(plan).notes[-1].startswith(few.format("about 190")), "other text now"


def test_generated_data_need_nothing(tmp_path):
    plan = planned(tmp_path, people="source: biographies, n_people: 100, style: compact")
    prepare_data(plan, tmp_path / "cache", pytest.fail)
