"""Suites, their files and prompts, and metrics against the harness's own and by hand."""

import gzip
import hashlib
import json
import math
from dataclasses import replace
from itertools import chain
from pathlib import Path

import lm_eval
import pytest
from datasets import Dataset
from jinja2.parser import Parser
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from workloads.data.readers.problems import DataError
from workloads.evaluation import evaluate_suites, harness_tasks, prepared_suite, suite, task_rows
from workloads.evaluation.prepared_suite import PreparedSuite
from workloads.evaluation.suite import TaskSpec
from workloads.evaluation.task_result import TaskResult

HARNESS_TASKS = Path(lm_eval.__file__).parent / "tasks"
ROWS = {
    "choices": [
        {"question": "What flows?", "choices": ["a stone", "the river"], "label": 1},
        {"question": "What stands?", "choices": ["the hill", "a stream", "it"], "label": 0},
    ],
    "contexts": [{"contexts": ["Ann, as Ann", "Ann, as Bo"], "continuation": "won.", "label": 1}],
    "answer": [{"question": "who won", "answers": ["The Poles", "Poland"]}],
    "continuation": [{"context": "It was the last", "continuation": "word"}],
}


def task_of(kind, **more):
    asked = {
        "choices": "Question: {{question}}\nAnswer:",
        "contexts": "",
        "continuation": "{{context}}",
    }
    fields = {
        "file": "a.jsonl",
        "origin": "here",
        "prompt": asked.get(kind, "Q: {{question}}?\nA:"),
    }
    return TaskSpec(name="t", kind=kind, **{**fields, **more})


class Scripted(LM):
    """Log-likelihood minus the length of the continuation, of some texts another; says one text."""

    def __init__(self, likely=(), said=""):
        super().__init__()
        self.asked, self.likely, self.said = [], dict(likely), said
        self.cut_prompts = set()

    def loglikelihood(self, requests):
        self.asked += [request.args for request in requests]
        return [
            (self.likely.get("".join(request.args), -float(len(request.args[1]))), False)
            for request in requests
        ]

    def loglikelihood_rolling(self, requests):
        raise AssertionError

    def generate_until(self, requests):
        self.asked += [request.args for request in requests]
        return [self.said for _ in requests]


def measured(kind, model, examples=(), **more):
    return evaluate_suites.evaluate_task(model, task_of(kind, **more), ROWS[kind], list(examples))


def test_choices():
    model = Scripted()

    found = measured("choices", model)

    # By length: "it" before "the hill", "a stone" before "the river"; per character " it" is the worst.
    assert model.asked[:2] == [
        ("Question: What flows?\nAnswer:", " a stone"),
        ("Question: What flows?\nAnswer:", " the river"),
    ]
    bits = [10 / 9 / math.log(2), 9 / 8 / math.log(2)]
    assert found.metrics == pytest.approx(
        {
            "acc": 0.0,
            "acc_stderr": 0.0,
            "acc_norm": 1.0,
            "acc_norm_stderr": 0.0,
            "bits_per_byte": sum(bits) / 2,
            "bits_per_byte_stderr": abs(bits[0] - bits[1]) / 2,
        }
    )
    assert (found.n, found.chance, found.at_chance) == (2, (1 / 2 + 1 / 3) / 2, False)


def test_accuracies_are_the_harnesss_own():
    scores = [(-3.0, False), (-3.5, False), (-1.9, True)]
    means = [
        {"metric": name, "aggregation": "mean", "higher_is_better": True}
        for name in ("acc", "acc_norm")
    ]
    for label in range(3):
        row = {"question": "?", "choices": ["four", "eightish", "x"], "label": label}
        (ours,) = harness_tasks.build(task_of("choices"), [row], [])
        config = {
            **{key: getattr(ours.config, key) for key in ("custom_dataset", "test_split")},
            "output_type": "multiple_choice",
            "doc_to_text": "question",
            "doc_to_choice": "choices",
            "doc_to_target": "label",
            "metric_list": means,
            "task": "theirs",
        }
        theirs = ConfigurableTask(config=config)

        expected, found = (task.process_results(row, scores) for task in (theirs, ours))

        assert {name: found[name] for name in expected} == expected


def test_contexts():
    model = Scripted({"Ann, as Bo won.": -2.0})

    found = measured("contexts", model)

    assert model.asked == [("Ann, as Ann", " won."), ("Ann, as Bo", " won.")]
    assert found.metrics["acc"] == 1.0
    assert found.metrics["bits_per_byte"] == pytest.approx(2 / math.log(2) / 4)
    assert found.chance == 0.5


@pytest.mark.parametrize(
    ("said", "ignore_articles", "matches"),
    [
        ("Poland", False, 1),
        (" poland!", False, 1),
        ("the Poles", False, 1),
        ("Poles", False, 0),
        ("Poles", True, 1),
        ("", True, 0),
        ("Poland won", True, 0),
    ],
)
def test_answers(said, ignore_articles, matches):
    example = {"question": "who lost", "answers": ["Sweden", "the Swedes"]}
    model = Scripted(said=said)

    found = measured(
        "answer",
        model,
        [example],
        description="Answer:\n\n",
        shots=1,
        shots_file="b.jsonl",
        ignore_articles=ignore_articles,
    )

    prompt = "Answer:\n\nQ: who lost?\nA: Sweden\n\nQ: who won?\nA:"
    (asked, settings), likelihood = model.asked
    assert (asked, settings["until"], settings["max_gen_toks"]) == (prompt, ["\n", ".", ","], 24)
    assert likelihood == (prompt, " The Poles")
    assert found.metrics["exact_match"] == matches
    assert found.metrics["nll"] == 10.0
    assert found.metrics["bits_per_byte"] == pytest.approx(10 / math.log(2) / 9)
    assert found.chance is None


def test_answers_end_with_their_line_or_their_clause():
    """The harness's own tasks stop at full stops and commas; it has none of HotpotQA."""
    model = Scripted(said="The Poles")
    for whole_line, stops in ((False, ["\n", ".", ","]), (True, ["\n"])):
        measured("answer", model, whole_line=whole_line)
        assert model.asked[-2][1]["until"] == stops
    whole = {task.name for task in suite.load("factual").tasks if task.whole_line}
    assert whole == {"hotpotqa"}


def test_continuations():
    model = Scripted()

    found = measured("continuation", model)

    assert model.asked == [("It was the last", " word")]
    assert (found.metrics["acc"], found.metrics["nll"]) == (0.0, 5.0)


def test_likelihoods_of_answers():
    tasks = {one.name: one for one in suite.load("nll").tasks}
    mmlu = {"question": "What flows?", "choices": ["a stone", "the river"], "label": 1}
    asked = {"question": "who won", "answers": ["The Poles", "Poland"]}
    model = Scripted()

    found = evaluate_suites.evaluate_task(model, tasks["mmlu_nll"], [mmlu], [])
    evaluate_suites.evaluate_task(model, tasks["nq_open_nll"], [asked], [asked] * 5)

    assert model.asked[0] == ("Question: What flows?\nAnswer:", " the river")
    assert found.metrics["nll"] == 10.0
    assert found.metrics["bits_per_byte"] == pytest.approx(10 / math.log(2) / 9)
    prompt, answer = model.asked[1]
    assert prompt == "Answer these questions:\n\n" + "Q: who won?\nA: The Poles\n" * 5 + (
        "Q: who won?\nA:"
    )
    assert answer == " The Poles"


def test_solutions_follow_their_prompt_without_a_space():
    (task,) = suite.load("code").tasks
    row = {"task_id": "x/0", "prompt": "def f():\n", "canonical_solution": "    return 'ä'\n"}
    model = Scripted()

    found = evaluate_suites.evaluate_task(model, task, [row], [])

    assert model.asked == [("def f():\n", "    return 'ä'\n")]
    assert found.metrics["nll"] == 15.0
    # The harness scores the newline with the solution, so its byte counts.
    assert found.metrics["bits_per_byte"] == pytest.approx(15 / math.log(2) / 17)


def test_examples_of_the_same_subject():
    rows = [
        {"question": f"{subject}?", "choices": ["a", "b"], "label": 0, "subject": subject}
        for subject in ("art", "law")
    ]
    examples = [
        {**row, "question": f"{row['subject']} {i}", "label": 1} for i in (1, 2, 3) for row in rows
    ]
    task = task_of("choices", prompt="{{question}}", shots=2, shots_file="b", shots_of="subject")
    model = Scripted()

    evaluate_suites.evaluate_task(model, task, rows, examples)

    assert [asked for asked, _ in model.asked[::2]] == [
        "art 1 b\n\nart 2 b\n\nart?",
        "law 1 b\n\nlaw 2 b\n\nlaw?",
    ]


def test_open_natural_questions_are_asked_as_the_harness_asks_them():
    config = load_yaml(HARNESS_TASKS / "nq_open" / "nq_open.yaml", resolve_func=False)
    rows = [{"question": f"who won {n}", "answers": [f"side {n}"]} for n in range(6)]
    theirs = [{"question": row["question"], "answer": row["answers"]} for row in rows]
    splits = {"train": theirs[:5], "validation": theirs[5:]}
    more = {
        "custom_dataset": lambda **_: {name: Dataset.from_list(of) for name, of in splits.items()},
        "num_fewshot": 5,
        "fewshot_config": {"sampler": "first_n", "split": "train"},
        "doc_to_target": "{{answer[0]}}",
    }
    expected = ConfigurableTask(config={**config, **more}).fewshot_context(theirs[5], num_fewshot=5)

    for name, task in (("factual", "nq_open"), ("nll", "nq_open_nll")):
        (ours,) = (one for one in suite.load(name).tasks if one.name == task)
        for built in harness_tasks.build(ours, rows[5:], rows[:5]):
            assert built.fewshot_context(rows[5], num_fewshot=5) == expected


def test_a_delimiter_of_examples_is_in_the_digest_where_it_is_no_blank_line():
    def digest(kind="choices", **more):
        tasks = (task_of(kind, shots=1, shots_file="b.jsonl", **more),)
        asked = suite.Suite(name="s", about="", tasks=tasks)
        return PreparedSuite(suite=asked, rows={"t": ([], [])}).digest

    assert digest() == digest(shots_delimiter="\n\n") != digest(shots_delimiter="\n")
    assert digest(kind="answer") == digest(kind="answer", whole_line=False)
    assert digest(kind="answer") != digest(kind="answer", whole_line=True)
    content = (task_of("choices", shots=1, shots_file="b.jsonl"),), {"t": ([], [])}
    earlier = repr((*content, prepared_suite.harness_version()))
    assert digest() == hashlib.sha256(earlier.encode()).hexdigest()


@pytest.mark.parametrize(
    ("rows", "n_examples", "what"),
    [
        (["law", "art"], {"law": 2, "art": 1}, "has 1 examples where subject is art, task t takes"),
        (["art"], {"law": 2}, "has 0 examples where subject is art, task t takes 2; add examples"),
        (["law"], {"law": 2}, None),
    ],
)
def test_too_few_examples_are_refused_with_their_subject(rows, n_examples, what, tmp_path):
    def row(subject, question="?"):
        return {"question": question, "choices": ["a", "b"], "label": 0, "subject": subject}

    written(tmp_path / "a.jsonl", [row(name, "who?") for name in rows])
    written(tmp_path / "b.jsonl", [row(name) for name, n in n_examples.items() for _ in range(n)])
    shots = {"shots": 2, "shots_file": "b.jsonl"}

    def said(**more):
        own = suite_file(tmp_path / "own.yaml", t={**CHOICES, **shots, **more})
        try:
            prepared_suite.prepare([own], tmp_path)
        except DataError as error:
            return str(error)
        return None

    found = said(shots_of="subject")
    assert found is what or found.startswith(f"{tmp_path}/b.jsonl: {what}")
    assert said() is None
    assert said(shots=4).startswith(
        f"{tmp_path}/b.jsonl: has {sum(n_examples.values())} examples, task t takes 4; add"
    )


def test_an_example_solves_no_row_that_goes_on_otherwise(tmp_path):
    rows = [{"relation": "capital", "object": city} for city in ("Rome", "Paris", "Bern")]
    written(tmp_path / "a.jsonl", rows)
    written(tmp_path / "b.jsonl", rows[:1])
    task = {
        "file": "a.jsonl",
        "origin": "own",
        "kind": "continuation",
        "prompt": "The {{relation}} is",
        "target": "{{object}}",
        "shots": 1,
        "shots_file": "b.jsonl",
    }
    own = suite_file(tmp_path / "own.yaml", t=task)

    (prepared,) = prepared_suite.prepare([own], tmp_path)

    assert prepared.rows["t"][0] == rows[1:]


def test_rows_that_an_example_of_their_prompt_solves_are_not_asked(tmp_path, caplog):
    """Of equal questions with other right options, and of examples beyond the shots, there is none."""

    def row(question, label=0, subject="law"):
        return {"question": question, "choices": ["a", "b"], "label": label, "subject": subject}

    rows = [row("x"), row("x", 1), row("y"), row("z"), row("y", subject="art")]
    examples = [row("x"), {**row("y"), "choices": ["a", "c"]}, row("z"), *[row("v", 0, "art")] * 2]
    written(tmp_path / "a.jsonl", rows)
    written(tmp_path / "b.jsonl", examples)
    shots = {"shots": 2, "shots_file": "b.jsonl", "shots_of": "subject"}
    own = suite_file(tmp_path / "own.yaml", t={**CHOICES, **shots})

    (prepared,) = prepared_suite.prepare([own], tmp_path, limit=2)

    assert prepared.rows["t"] == ([row("x", 1), row("z")], examples)
    assert prepared_suite.prepare([own], tmp_path)[0].most_rows == 3
    assert "rows of a.jsonl that the examples of b.jsonl solve are not asked: 2 of 5" in caplog.text

    written(tmp_path / "a.jsonl", [row("x"), row("y")])
    with pytest.raises(DataError, match="task t: the examples of b.jsonl solve every row of a.jso"):
        prepared_suite.prepare([own], tmp_path)


def test_a_suite_may_take_its_examples_from_what_it_asks(tmp_path):
    rows = [{"question": f"q{n}", "answers": [f"a{n}"]} for n in range(6)]
    written(tmp_path / "a.jsonl", rows)
    task = {"file": "a.jsonl", "origin": "Here", "kind": "answer", "prompt": "{{question}}"}
    own = suite_file(tmp_path / "own.yaml", t={**task, "shots": 2, "shots_file": "a.jsonl"})

    (prepared,) = prepared_suite.prepare([own], tmp_path)

    assert prepared.rows["t"] == (rows[2:], rows)


@pytest.mark.parametrize(
    "prompt",
    [
        "Question: {{question}}\nAnswer:",
        "{{question}}\n{% for one in choices %}{{'ABC'[loop.index0]}}. {{one}}\n{% endfor %}",
        "{{question | regex_replace('s', 'ß')}}: {{choices[label]}}\n\n",
    ],
)
def test_prompts_are_those_of_the_harness_given_the_template(prompt, monkeypatch):
    rows = ROWS["choices"]
    task = task_of("choices", prompt=prompt, shots=1, shots_file="b.jsonl", description="{{label}}")
    (ours,) = harness_tasks.build(task, rows, rows[::-1])
    monkeypatch.setattr(harness_tasks, "_template", lambda text: text)
    (theirs,) = harness_tasks.build(task, rows, rows[::-1])
    assert theirs.config.doc_to_text == prompt

    for row in rows:
        expected, found = (one.fewshot_context(row, num_fewshot=1) for one in (theirs, ours))
        assert found == expected


def test_a_prompt_of_digits_is_a_text():
    model, row = Scripted(), {"question": "42", "choices": ["even", "odd"], "label": 0}

    evaluate_suites.evaluate_task(model, task_of("choices", prompt="{{question}}"), [row], [])

    assert model.asked == [("42", " even"), ("42", " odd")]


@pytest.mark.parametrize("kind", ROWS)
def test_templates_are_parsed_once_for_all_rows(kind, tmp_path, monkeypatch):
    parsed = []
    parse = Parser.parse
    monkeypatch.setattr(Parser, "parse", lambda self: parsed.append(self) or parse(self))

    def n_parsed(n_rows):
        parsed.clear()
        written(tmp_path / "a.jsonl", ROWS[kind][:1] * n_rows)
        task = task_of(kind, shots=1, shots_file="a.jsonl")
        rows = task_rows.read(tmp_path, task, name="a.jsonl")
        assert len(rows) == n_rows
        evaluate_suites.evaluate_task(Scripted(), task, rows, rows)
        PreparedSuite(
            suite=suite.Suite(name="s", about="", tasks=(task,)), rows={"t": (rows, rows)}
        ).tokens(seq_len=9, n_rows=n_rows)
        return len(parsed)

    assert n_parsed(1) >= n_parsed(9) > 0


def test_what_a_task_remembers_is_no_part_of_it():
    fresh, used = (task_of("choices", n_options=2) for _ in range(2))
    assert used.row_fields == {"question", "choices", "label"}

    assert (repr(used), hash(used), used) == (repr(fresh), hash(fresh), fresh)
    other = replace(used, kind="contexts", prompt="")
    assert other.row_fields == {"contexts", "continuation", "label"}
    assert (used.options_field, other.options_field) == ("choices", "contexts")


@pytest.mark.parametrize("acc", [0.0, 1.0])
def test_one_row_that_is_right_may_be_a_guess(acc):
    """The harness gives no standard error of one row."""
    one = TaskResult(task="t", n=1, metrics={"acc": acc}, chance=0.25, n_truncated=0)

    assert one.at_chance


def test_guessing_is_told_from_knowing():
    def result(acc, stderr):
        metrics = {"acc": acc, "acc_stderr": stderr}
        return TaskResult(task="t", n=9, metrics=metrics, chance=0.25, n_truncated=0)

    assert [result(acc, 0.05).at_chance for acc in (0.1, 0.25, 0.34, 0.36)] == [
        True,
        True,
        True,
        False,
    ]


# Files --------------------------------------------------------------------------------------------


def written(path, rows):
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def suite_file(path, **tasks):
    path.write_text(json.dumps({"about": "a test", "tasks": tasks}))  # JSON is YAML
    return str(path)


CHOICES = {"file": "a.jsonl", "origin": "Here", "kind": "choices", "prompt": "{{question}}"}


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_suite_of_ones_own(name, tmp_path):
    written(tmp_path / name, [{**row, "more": 1} for row in ROWS["choices"]])
    own = suite_file(tmp_path / "own.yaml", mine=CHOICES)

    (prepared,) = prepared_suite.prepare([own], tmp_path, limit=1)
    results = list(evaluate_suites.evaluate_suite(prepared, Scripted()))

    assert prepared.rows["mine"] == (ROWS["choices"][:1], [])
    assert [(one.task, one.n) for one in results] == [("mine", 1)]
    assert prepared_suite.prepare([own], tmp_path)[0].digest != prepared.digest
    assert prepared_suite.prepare([own], tmp_path, limit=1)[0].digest == prepared.digest


def test_a_missing_file_is_named_with_what_it_is(tmp_path):
    with pytest.raises(DataError) as raised:
        prepared_suite.prepare(["mmlu", "last_word"], tmp_path)

    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    assert lines[0] == (
        f"{tmp_path}/mmlu_sample.jsonl: not there (nor .gz, .zst, .csv or .parquet), and suite mmlu needs it: "
        "MMLU, test, all subjects or a sample (github.com/hendrycks/test); as published, or JSON lines with "
        "choices, label, question, subject"
    )
    assert "mmlu_fewshot.jsonl" in lines[1]
    assert "needs it: examples, MMLU, dev, five a subject" in lines[1]


def test_all_examples_of_bundled_suites_say_where_they_come_from():
    shown = [task for name in suite.names() for task in suite.load(name).tasks if task.shots]

    assert len(shown) >= 7
    assert all(task.shots_origin and task.shots_origin != task.origin for task in shown)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"label": 2}, "label must lie in 0..1, got 2; count from 0"),
        ({"label": "B"}, "label must lie in 0..1, got 'B'"),
        ({"label": True}, "label must lie in 0..1, got True"),
        ({"choices": ["one"]}, "has 1 options, one cannot be chosen"),
        ({"choices": "one"}, "choices must be a list of texts, got 'one'"),
        ({"choices": ["", "x"]}, "choices must be a list of texts"),
        ({"question": None}, "question must be a text, got None; correct it"),
        ({"question": " "}, "question must be a text, got ' '; correct it"),
    ],
)
def test_a_bad_row_is_named(change, what, tmp_path):
    rows = [ROWS["choices"][0], {**ROWS["choices"][0], **change}]
    written(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError) as raised:
        task_rows.read(tmp_path, task_of("choices"), name="a.jsonl")
    assert f"{tmp_path}/a.jsonl:2: {what}" in str(raised.value)


@pytest.mark.parametrize(("name", "task"), [("mmlu", "mmlu_5shot"), ("nll", "mmlu_nll")])
def test_three_options_where_the_task_has_four(name, task, tmp_path):
    row = {"subject": "art", "question": "Who?", "choices": list("abcd"), "label": 1}
    for one in suite.load(name).tasks:
        for file in filter(None, (one.file, one.shots_file)):
            question = f"Who, in {file}?"
            written(tmp_path / file, [{**row, "question": question, "answers": ["b"]}] * 5)
    written(tmp_path / "mmlu_sample.jsonl", [row, {**row, "choices": list("abc")}])

    with pytest.raises(DataError) as raised:
        prepared_suite.prepare([name], tmp_path)

    assert str(raised.value) == (
        f"{tmp_path}/mmlu_sample.jsonl:2: has 3 options, task {task} has 4; "
        "correct it, or leave the row out"
    )


def test_bad_files(tmp_path):
    def said(content, name="a.jsonl.gz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError) as raised:
            task_rows.read(tmp_path, task_of("choices"), name="a.jsonl")
        return str(raised.value)

    whole = gzip.compress(json.dumps(ROWS["choices"][0]).encode())
    assert "is not compressed; rename it to a.jsonl" in said(b'{"question": 1}')
    assert "damaged gzip stream" in said(whole[:-6])
    assert "holds no row" in said(b"", "a.jsonl")
    assert "a.jsonl:1: has no choices, label; add it, task t reads it" in said(
        b'{"question": "x"}', "a.jsonl"
    )


QUESTION = {"question": "What flows, or runs?", "choices": ["a", "b", "c", "d"], "label": 2}
MMLU = {
    "ours": json.dumps(QUESTION),
    "letter": json.dumps(
        {"question": QUESTION["question"], "choices": list("abcd"), "answer": "C"}
    ),
    "number": json.dumps({"question": QUESTION["question"], "choices": list("abcd"), "answer": 2}),
    "columns": json.dumps(
        {"question": QUESTION["question"], **dict(zip("ABCD", "abcd", strict=True)), "answer": "C"}
    ),
    "csv": '"What flows, or runs?",a,b,c,d,C',
    "csv with a header": 'subject,question,A,B,C,D,answer\nart,"What flows, or runs?",a,b,c,d,C',
}


@pytest.mark.parametrize("form", MMLU)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_forms_of_mmlu(form, ending, tmp_path):
    name = f"mmlu_sample.{'csv' if 'csv' in form else 'jsonl'}{ending}"
    text = f"{MMLU[form]}\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if ending else text)
    (task,) = (one for one in suite.load("nll").tasks if one.name == "mmlu_nll")

    task_rows.require_files([suite.Suite(name="nll", about="", tasks=(task,))], tmp_path)
    assert task_rows.read(tmp_path, task, name=task.file) == [QUESTION]


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("csv", "q,a,b,c,d,C\nq,a,b,c,C\n", "2: has 5 columns, not the 6: question, A, B, C, D"),
        ("csv", 'q,"a\nb",b,c,d,C\nq,a,b,c,d,E\n', "3: label must lie in 0..3, got 4"),
        ("csv", "q,a,b,c,d,\n", "1: label must lie in 0..3, got ''"),
        ("csv", "q,,b,c,d,A\n", "1: choices must be a list of texts"),
        ("csv", "", ": holds no row"),
        ("csv", 'q,a,b,c,d,A\nr,a,b,c,d,"A\ns,a,b,c,d,A\n', "2: the row that begins here and is"),
        (
            "jsonl",
            '{"question": "q", "A": "x", "B": "y", "answer": "C"}',
            "1: label must lie in 0..1",
        ),
        ("jsonl", '{"question": "q", "A": "x", "answer": "A"}', "1: has no choices, label"),
    ],
)
def test_bad_rows_of_mmlu(name, text, what, tmp_path):
    (tmp_path / f"a.{name}").write_text(text)
    with pytest.raises(DataError) as raised:
        task_rows.read(tmp_path, task_of("choices"), name="a.jsonl")
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{tmp_path}/a.{name}:{what}".replace("::", ":"))


@pytest.mark.parametrize(
    ("tasks", "what"),
    [
        ({"mine": {**CHOICES, "kind": "choice"}}, "mine: kind must be"),
        ({"mine": {**CHOICES, "shots": 5}}, "mine: shots_file must be given with shots"),
        ({"mine": {**CHOICES, "fil": "x"}}, "mine: no field fil; there are file, origin, kind"),
        ({"mine": {"file": "x"}}, "mine: .*missing"),
        ({"mine": {**CHOICES, "prompt": ""}}, "mine: prompt must be given"),
        ({"mine": {**CHOICES, "delimiter": ""}}, "mine: delimiter must be left out"),
        ({"mine": {**CHOICES, "shots_delimiter": " "}}, "mine: shots_delimiter must be left out"),
        ({"mine": {**CHOICES, "whole_line": True}}, "mine: whole_line must be left out"),
    ],
)
def test_a_suite_written_wrongly(tasks, what, tmp_path):
    path = suite_file(tmp_path / "own.yaml", **tasks)
    with pytest.raises(ValueError, match=what) as raised:
        suite.load(path)
    assert str(raised.value).startswith(path)


def test_an_unknown_suite_lists_those_there_are():
    with pytest.raises(
        ValueError, match="there are code, factual, gsm8k, last_word, mmlu, nll, small, zero_shot"
    ):
        suite.load("zero-shot")


def test_bundled_suites_have_tasks_of_their_own():
    loaded = [suite.load(name) for name in suite.names()]
    tasks = [task.name for task in chain.from_iterable(one.tasks for one in loaded)]
    assert len(tasks) == len(set(tasks)) > 15
