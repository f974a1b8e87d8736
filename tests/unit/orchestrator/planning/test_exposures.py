"""Exposures and priors of a plan, against counts of the batches and enumerated answers."""

import dataclasses
import gzip
import io
import itertools
import json
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from orchestrator.cli.plan import plan_row
from orchestrator.cli.render import plan as plans
from orchestrator.planning import epochs, exposures
from orchestrator.planning.input_data import check_data
from orchestrator.planning.pricing import make_plan
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.sweep import registry
from orchestrator.sweep.load import load_sweep
from workloads.data.biographies.vocabulary import NAME_SLOTS, PRONOUN_SLOT, SEPARATOR
from workloads.data.sources import triples

SWEEP = """
name: small
data: {%s}
train: {tokens: %d, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2, value_lr_ratio: 4.0}
model: {architecture: dense, preset: d16}
seeds: [0, 1]
"""
PEOPLE = "source: biographies, n_people: 64, style: compact, question_share: 0.0"
TRIPLES = "source: triples, path: facts.tsv, vocab_size: 300"


def planned(tmp_path, data, tokens=65_536, more=""):
    file = tmp_path / "small.yaml"
    file.write_text(SWEEP % (data, tokens) + more, encoding="utf-8")
    folder = SweepDir(tmp_path / "runs" / "small")
    return check_data(make_plan(load_sweep(file), folder.snapshot(), ()))


def row_of(plan, number=0):
    trial = plan.trials[number]
    return plan_row(trial, plan.sweep, facts=plan.facts.get(trial.spec.trial_id))["facts"]


def printed(plan):
    console = Console(width=1_000, file=io.StringIO(), highlight=False)
    console.print(plans.plan_tables(plan, slots=1))
    return [line.strip() for line in console.file.getvalue().splitlines()]


def documents_read(plan, tmp_path):
    """Return the corpus, and every document in the batches of the first trial."""
    spec = plan.trials[0].spec
    fields = {key: value for key, value in spec.data.items() if key != "source"}
    module = registry.data_source(spec.data["source"])
    corpus = registry.build_config(module.Config, fields).prepare(tmp_path / "cache")
    seq_len = spec.train["seq_len"]
    n_sequences = int(spec.accounting["steps"]) * spec.train["batch_tokens"] // seq_len
    windows = corpus.windows(np.arange(n_sequences), seq_len=seq_len, seed=spec.seed)
    stream = windows[:, :-1].ravel()
    return corpus, np.split(stream, np.flatnonzero(stream == SEPARATOR))[1:]


def facts_file(tmp_path, n=90):
    """Write facts of two relations and return the objects of each."""
    rows = [
        (f"Land {i} of {'the ' * (i % 3)}North", relation, f"{relation} {i * i % n_objects}")
        for i in range(n)
        for relation, n_objects in (("capital", 7), ("river", 3))
    ]
    lines = ["subject\trelation\tobject", *("\t".join(row) for row in rows)]
    (tmp_path / "facts.tsv").write_text("\n".join(lines) + "\n")
    return {
        name: Counter(obj for _, relation, obj in rows if relation == name)
        for name in ("capital", "river")
    }


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(PEOPLE, id="whole windows"),
        pytest.param(
            "source: biographies, n_people: 150, question_share: 0.4, n_wordings: 7",
            id="questions, and windows that are filled up",
        ),
    ],
)
def test_exposures_of_people_are_those_counted_in_the_batches(tmp_path, data):
    plan = planned(tmp_path, data, tokens=131_072)
    corpus, documents = documents_read(plan, tmp_path)
    by_name = {tuple(slots[list(NAME_SLOTS)]): slots for slots in corpus.slots}
    reads = Counter()
    for document in documents:
        threes = zip(document, document[1:], document[2:], strict=False)
        name = next((three for three in threes if three in by_name), None)
        # A question states one value, a biography all.
        if name and set(by_name[name][PRONOUN_SLOT + 1 :]) <= set(document):
            reads[name] += 1

    mean = sum(reads.values()) / corpus.config.n_people

    assert row_of(plan)["exposures"] == pytest.approx(mean, rel=0.02)
    if data == PEOPLE:
        assert row_of(plan)["exposures"] == mean == 128
        assert set(reads.values()) == {128}


def test_exposures_of_facts_are_those_counted_in_the_batches(tmp_path):
    facts_file(tmp_path)
    data = f"{TRIPLES}, heldout_subjects: 0.2, question_share: 0.0"
    plan = planned(tmp_path, data, tokens=131_072)

    corpus, documents = documents_read(plan, tmp_path)

    row = row_of(plan)
    assert not row["estimated"]
    assert row["tokens_per_exposure"] == corpus.tokens_per_epoch
    # Whether one fact or all: documents, each of which states one, over facts.
    assert row["exposures"] == pytest.approx(len(documents) / row["n_facts"], rel=0.02)
    assert row["n_facts"] == corpus.n_facts < 180
    assert row["n_facts"] == 2 * row["n_subjects"], "each subject has two"
    assert row["prior_bits"] == pytest.approx(corpus.total_bits)


def test_exposures_of_many_facts_are_estimated_from_a_sample(tmp_path, monkeypatch):
    facts_file(tmp_path, n=400)
    monkeypatch.setattr(triples, "_COUNTED_FACTS", 200)
    plan = planned(tmp_path, TRIPLES)

    corpus, _ = documents_read(plan, tmp_path)

    row = row_of(plan)
    assert row["estimated"]
    assert row["tokens_per_exposure"] == pytest.approx(corpus.tokens_per_epoch, rel=0.1)
    (line,) = exposures.lines(plan)
    assert f", about {row['exposures']:.2g} exposures each, " in line


def test_exposures_are_left_out_where_there_is_no_tokenizer(tmp_path, monkeypatch):
    def absent(*args, **fields):
        raise ModuleNotFoundError("No module named 'tokenizers'")

    facts_file(tmp_path)
    monkeypatch.setattr(triples, "train", absent)
    plan = planned(tmp_path, TRIPLES)

    assert row_of(plan)["exposures"] is None
    (line,) = exposures.lines(plan)
    assert line.startswith("facts: 180 about 90 subjects, ")
    assert "exposures" not in line
    assert not [note for note in plan.notes if "exposures" in note]


def test_the_prior_of_a_person_is_the_entropy_over_all_answers(tmp_path):
    pools = "n_years: 3, n_cities: 6, n_universities: 5, n_majors: 4, n_employers: 7"
    plan = planned(tmp_path, f"{PEOPLE}, {pools}")
    dates = list(itertools.product(range(12), range(28), range(3)))
    answers = [dates, *map(range, (6, 5, 4, 7))]

    nats = [-sum(math.log(1 / len(pool)) / len(pool) for _ in pool) for pool in answers]

    row = row_of(plan)
    assert row["answer_prior_nll"] == pytest.approx(sum(nats) / 5)
    assert row["prior_bits"] == pytest.approx(64 * sum(nats) / math.log(2))
    total_params = plan.trials[0].spec.accounting["total_params"]
    assert row["prior_bits_per_param"] == pytest.approx(row["prior_bits"] / total_params)


def test_the_prior_of_a_fact_is_how_often_its_answer_occurs(tmp_path):
    counts_of = facts_file(tmp_path)
    plan = planned(tmp_path, TRIPLES)

    nats = [
        -math.log((count + 1) / (counts.total() + len(counts)))
        for counts in counts_of.values()
        for count in counts.values()
        for _ in range(count)
    ]

    assert row_of(plan)["answer_prior_nll"] == pytest.approx(sum(nats) / len(nats))


def test_published_pilots():
    """150,000 people were 7.0 Mbit, and 6.46 nats an answer; 30,000 had 100 exposures."""
    source = registry.data_source("biographies").Config
    many = source(n_people=150_000).facts()
    compact = source(n_people=30_000, style="compact", question_share=0.0).facts()

    assert (round(many.prior_bits / 1e6, 1), round(many.answer_prior_nll, 2)) == (7.0, 6.46)
    assert 49_152_000 / compact.tokens_per_exposure == pytest.approx(100, rel=0.05)


def test_a_plan_has_one_line_for_each_data_setting(tmp_path):
    grid = "trials: [{grid: {data.n_people: [64, 128], train.tokens: [65_536, 131_072]}}]\n"
    plan = planned(tmp_path, PEOPLE, more=grid)

    lines = [line for line in printed(plan) if line.startswith("facts:")]

    assert [line.split(",")[:2] for line in lines] == [
        ["facts: 320 about 64 people", " 64 to 128 exposures each"],
        ["facts: 640 about 128 people", " 32 to 64 exposures each"],
    ]
    assert len({trial.spec.accounting["total_params"] for trial in plan.trials}) == 1
    params = plan.trials[0].spec.accounting["total_params"]
    assert [line.split(" exposures each, ")[1] for line in lines] == [
        f"46.6 bits a person ({bits:,} bit in all, {bits / params:.2g} bit a parameter of the "
        "smallest model); an answer's prior NLL is 6.46 nats"
        for bits in (2_982, 5_964)
    ]
    assert json.loads(json.dumps(row_of(plan)))["exposures"] == 64


def test_a_long_list_is_cut_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "MOST_FACTS", 1)
    plan = planned(tmp_path, PEOPLE, more="trials: [{grid: {data.n_people: [64, 65, 66]}}]\n")

    assert [line for line in printed(plan) if line.startswith("facts:")][1:] == [
        "facts: … and 2 more"
    ]


def remarks(plan):
    return [note for note in plan.notes if note.startswith("facts: ")]


def test_a_sweep_that_can_show_a_capacity_gets_no_remark(tmp_path):
    assert remarks(planned(tmp_path, PEOPLE.replace("64", "512"), tokens=50 * 512 * 16)) == []


def test_few_exposures_are_remarked_on_with_the_source(tmp_path):
    (note,) = remarks(planned(tmp_path, PEOPLE.replace("64", "512"), tokens=49 * 512 * 16))

    assert note.startswith("facts: 49 exposures are few: ")
    assert "arXiv 2404.05405" in note


def test_too_few_bits_for_any_model_are_remarked_on(tmp_path):
    plan = planned(tmp_path, PEOPLE.replace("64", "16"))
    params = plan.trials[0].spec.accounting["total_params"]

    (note,) = remarks(plan)

    assert 16 * 46.6 / params < 0.1
    assert note.startswith(f"facts: at most {16 * 46.6 / params:.2g} bit a parameter")
    assert "every model may learn all of them" in note


def test_rows_of_memory_tables_do_not_count_as_dense_parameters(tmp_path):
    table = "trials: [{set: {model.architecture: memory_plus, model.n_keys: 128}}]\n"
    plan = planned(tmp_path, PEOPLE.replace("64", "512"), tokens=50 * 512 * 16, more=table)

    assert row_of(plan)["prior_bits_per_param"] < 0.1
    assert remarks(plan) == []


def test_too_many_bits_for_any_model_are_remarked_on(tmp_path):
    plan = planned(tmp_path, PEOPLE.replace("64", "60_000"), tokens=50 * 60_000 * 16)
    params = plan.trials[0].spec.accounting["total_params"]

    (note,) = remarks(plan)

    assert 60_000 * 46.6 / params > 20
    assert note.startswith(f"facts: at least {60_000 * 46.6 / params:.2g} bits a parameter")


def test_files_of_finished_trials_are_not_read_again(tmp_path):
    facts_file(tmp_path)
    plans_of = [planned(tmp_path, data) for data in (TRIPLES, PEOPLE)]
    for plan, n_lines in zip(plans_of, (0, 1), strict=True):
        done = tuple(dataclasses.replace(trial, status="done") for trial in plan.trials)
        (tmp_path / "facts.tsv").unlink(missing_ok=True)

        checked = check_data(dataclasses.replace(plan, trials=done, facts={}, notes=()))

        assert len(exposures.lines(checked)) == n_lines
        assert checked.notes == ()


@pytest.mark.parametrize(
    ("data", "tokens", "told"),
    [
        ("path: corpus.txt", 65_536, "text: about 41 epochs of about 1,600 tokens: repeated text "),
        (
            "path: corpus.txt, valid_path: valid.txt, max_bytes: 1000",
            65_536,
            "text: about 156 epochs of about 420 tokens",
        ),
        ("path: corpus.txt, valid_path: valid.txt", 65_536, "text: about 33 epochs of about 2,0"),
        ("path: corpus.txt", 8_192, "text: about 5.1 epochs of about 1,600 tokens: "),
        ("path: corpus.txt", 4_096, None),
        ("path: corpus.txt.gz", 65_536, None),
    ],
)
def test_many_epochs_of_a_text_are_told(tmp_path, data, tokens, told):
    text = b"Nothing is stated here\n" * 180 + b"\n" * 5 + b"Nothing is stated here\n" * 28
    (tmp_path / "corpus.txt").write_bytes(text)
    (tmp_path / "corpus.txt.gz").write_bytes(gzip.compress(text))
    (tmp_path / "valid.txt").write_bytes(text + text)
    data = f"source: text, {data}, vocab_size: 300, valid_share: 0.2"

    notes = [note for note in planned(tmp_path, data, tokens).notes if note.startswith("text:")]

    if told is None:
        assert notes == []
    else:
        assert [note.startswith(told) for note in notes] == [True], notes
        assert "up to about 4 epochs (Muennighoff et al. 2023, arXiv 2305.16264)" in notes[0]


def test_text_has_no_facts(tmp_path):
    (tmp_path / "corpus.txt").write_text("Nothing is stated here.\n\n" * 200)
    plan = planned(tmp_path, "source: text, path: corpus.txt, vocab_size: 300, valid_share: 0.2")

    assert plan.facts == {}
    assert row_of(plan) is None
    assert not [line for line in printed(plan) if line.startswith("facts:")]


def test_epochs_of_prepared_tokens_are_exact():
    tokens = SimpleNamespace(text_tokens=lambda: 568_000, tokens_per_epoch=lambda: 568_000)
    specs = [SimpleNamespace(accounting={"training_tokens": n}) for n in (1e6, 6e7)]

    (note,) = epochs.notes(tokens, specs)

    assert note.startswith("text: 1.8 to 106 epochs of 568 k tokens: ")
    assert epochs.notes(tokens, specs[:1]) == []
    assert epochs.notes(tokens, []) == []
