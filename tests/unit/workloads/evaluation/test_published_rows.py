"""Rows as published, in files of every kind: asked as the harness's own tasks ask them."""

import importlib
import json
from pathlib import Path

import lm_eval.tasks
import pyarrow
import pytest
import yaml
from lm_eval.utils import apply_template
from pyarrow import parquet

from workloads.data.readers.problems import DataError
from workloads.evaluation import suite, task_rows
from workloads.evaluation.published_rows import in_our_fields

TASKS = Path(lm_eval.tasks.__file__).parent
HUB = {
    "piqa": {"goal": "To dry", "sol1": "wait", "sol2": "soak", "label": 0},
    "winogrande": {
        "sentence": "Ann beat Bo because _ ran fast.",
        "option1": "Ann",
        "option2": "Bo",
        "answer": "2",
    },
    "wsc273": {
        "text": "The man saw the boy because his eyes were good.",
        "pronoun": "his",
        "pronoun_loc": 28,
        "quote": "his eyes were good",
        "quote_loc": 28,
        "options": ["The man", "The boy"],
        "label": 0,
        "source": "here",
    },
    "arc_easy": {
        "id": "1",
        "question": "What flows?",
        "choices": {"text": ["a", "the river", "b"], "label": ["1", "2", "3"]},
        "answerKey": "2",
    },
    "openbookqa": {
        "id": "1",
        "question_stem": "What flows?",
        "choices": {"text": ["a", "b", "the river", "d"], "label": ["A", "B", "C", "D"]},
        "answerKey": " C",
    },
    "logiqa": {"context": "All.", "question": "So?", "options": ["w", "x", "y", "z"], "label": "b"},
    "nq_open": {"question": "who won", "answer": ["Poles", "Poland"]},
    "triviaqa_format": {
        "question": "Who won?",
        "answer": {"value": "Poland", "aliases": ["Poles", "Poland"], "normalized_value": "poland"},
    },
    "popqa": {"question": "Who won?", "possible_answers": '["Poland", "Poles"]'},
    "hotpotqa": {"question": "Who won?", "answer": "Poland", "level": "hard"},
    "entity_questions": {"question": "Who won?", "answers": ["Poland"]},
    "mmlu_nll": {
        "question": "Who?",
        "subject": "art",
        "choices": ["a", "b", "c", "d"],
        "answer": 3,
    },
    "humaneval_nll": {"task_id": "1", "prompt": "def f():", "canonical_solution": " return 1"},
    "gsm8k_solution": {"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2"},
    "last_word": {"text": "It was the last word"},
}
"""A row of each task, with the fields of the data set on the hub."""
TASK_OF = {task.name: task for name in suite.names() for task in suite.load(name).tasks}


def harness_task(path: str) -> dict:
    """Return the settings of the harness's own task, without its functions."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: node.value)
    return yaml.load((TASKS / path).read_text(), Loader)


def written(folder: Path, file: str, rows: list[dict], kind: str) -> None:
    stem = file.removesuffix(".jsonl")
    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{stem}.parquet")
    else:
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{stem}.jsonl").write_text(text)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("piqa", "piqa/piqa.yaml"),
        ("arc_easy", "arc/arc_easy.yaml"),
        ("openbookqa", "openbookqa/openbookqa.yaml"),
    ],
)
def test_choices_are_those_of_the_harnesss_own_task(name, file):
    theirs, row = harness_task(file), HUB[name]
    ours = in_our_fields(row)

    fields = theirs["doc_to_text"]
    prompt = row[fields] if fields in row else apply_template(fields, row)
    assert apply_template(TASK_OF[name].prompt, ours) == prompt
    assert str(ours["choices"]) == apply_template(theirs["doc_to_choice"], row)
    target = theirs["doc_to_target"]
    label = row[target] if target in row else apply_template(target, row)
    assert ours["label"] == int(label)


def test_contexts_of_winogrande_are_those_of_the_harnesss_own_task():
    theirs = importlib.import_module("lm_eval.tasks.winogrande.preprocess_winogrande")
    row = HUB["winogrande"]

    ours = in_our_fields(row)

    assert ours["contexts"] == theirs.doc_to_choice(row)
    assert ours["continuation"] == theirs.doc_to_target(row)
    assert ours["label"] == theirs.doc_to_text(row)


def test_contexts_of_wsc273_are_those_of_the_harnesss_own_task():
    """But for the space before the continuation, which the harness adds once more."""
    from datasets import Dataset

    theirs = importlib.import_module("lm_eval.tasks.wsc273.utils")
    settings, row = harness_task("wsc273/default.yaml"), HUB["wsc273"]
    (doc,) = theirs.process_doc(Dataset.from_list([row]))

    ours = in_our_fields(row)

    assert str(ours["contexts"]) == apply_template(settings["doc_to_choice"], doc)
    assert ours["continuation"] == apply_template(settings["doc_to_target"], doc).strip()


def test_logiqa_is_asked_as_the_harnesss_own_task_asks_it():
    theirs = importlib.import_module("lm_eval.tasks.logiqa.utils_logiqa")
    row = HUB["logiqa"]

    ours = in_our_fields(row)

    assert apply_template(TASK_OF["logiqa"].prompt, ours) == theirs.doc_to_text(row)
    assert (ours["choices"], ours["label"]) == (row["options"], theirs.doc_to_target(row))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", HUB)
def test_rows_of_the_hub_are_read_from_files_of_every_kind(name, kind, tmp_path):
    task = TASK_OF[name]
    written(tmp_path, task.file, [HUB[name]], kind)

    (found,) = task_rows.read(tmp_path, task, name=task.file)

    assert set(found) == task.row_fields
    expected = {
        "nq_open": {"answers": ["Poles", "Poland"]},
        "triviaqa_format": {"answers": ["Poland", "Poles"]},
        "popqa": {"answers": ["Poland", "Poles"]},
        "hotpotqa": {"answers": ["Poland"]},
        "mmlu_nll": {"label": 3},
        "gsm8k_solution": {"solution": "1 + 1 = 2\n#### 2"},
        "last_word": {"context": "It was the last", "continuation": "word"},
    }
    assert {**found, **expected.get(name, {})} == found


def test_forms_of_ai2_and_logiqa2():
    stem = {"stem": "What?", "choices": [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}]}

    assert (
        in_our_fields({"question": stem, "answerKey": "B"}).items()
        >= {
            "question": "What?",
            "label": 1,
        }.items()
    )
    row = {"text": "All.", "question": "So?", "options": ["x", "y"], "answer": 1}
    assert in_our_fields(row) == {**row, "context": "All.", "choices": ["x", "y"], "label": 1}


def test_our_own_fields_stay():
    row = {"question": "1 + 1?", "answer": "2", "solution": "It is 2."}
    assert in_our_fields(row)["solution"] == "It is 2."
    row = {"context": "a", "continuation": "b", "text": "c d"}
    assert in_our_fields(row) == row


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("arc_easy", {"answerKey": "E"}, "label must lie in 0..2, got 'E'"),
        ("arc_easy", {"choices": {"text": "x"}}, "has no label"),
        ("piqa", {"sol2": None}, "choices must be a list of texts"),
        ("winogrande", {"answer": ""}, "has no contexts, continuation, label"),
        ("winogrande", {"sentence": "no blank"}, "has no contexts, continuation, label"),
        ("logiqa", {"options": ["x", "y", "z"]}, "has 3 options, task logiqa has 4"),
        ("popqa", {"possible_answers": "["}, "has no answers"),
        ("last_word", {"text": "one"}, "has no context, continuation"),
    ],
)
def test_a_bad_row_of_a_published_form_is_named(name, change, what, tmp_path):
    task = TASK_OF[name]
    written(tmp_path, task.file, [HUB[name], {**HUB[name], **change}], "jsonl")
    with pytest.raises(DataError) as raised:
        task_rows.read(tmp_path, task, name=task.file)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{tmp_path}/{task.file}:2: {what}")


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "piqa.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"piqa.parquet: is not Parquet .*; take a complete"):
        task_rows.read(tmp_path, TASK_OF["piqa"], name="piqa.jsonl")
