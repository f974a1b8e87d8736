"""Questions with short answers: files, splits and prompts; numbers against the harness's own."""

import gzip
import hashlib
import json
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.architectures import dense
from workloads.data.readers.problems import DataError
from workloads.data.tokenizer import train
from workloads.evaluation import measure, questions
from workloads.evaluation.questions import Question
from workloads.evaluation.suite import TaskSpec
from workloads.evaluation.text_model import TextModel
from workloads.layers.modules.init import initialise

ROWS = [
    {"question": "Where is Warsaw?", "answer": "Poland", "aliases": ["the Republic of Poland"]},
    {"question": "What flows there?", "answers": ["the Vistula", "Vistula"]},
    {"question": "Who moved his court?", "answer": "Sigismund III", "split": None},
]
EXAMPLES = [
    {"question": f"Which city is number {n}?", "answer": f"city {n}", "split": "train"}
    for n in range(7)
]


def written(path, rows):
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture(scope="module")
def model():
    config = dense.Config(**dense.PRESETS["d8"])
    built = config.build(300).double()
    initialise(built, 0)
    texts = [json.dumps(row) for row in (*ROWS, *EXAMPLES)]
    tokenizer = train(texts, vocab_size=300)
    return TextModel(model=built.eval(), tokenizer=tokenizer, seq_len=400, vocab_size=300)


def test_the_split_of_the_file_gives_the_examples(tmp_path):
    rows = [EXAMPLES[0], *ROWS, *EXAMPLES[1:]]
    found = questions.read(written(tmp_path / "qa.jsonl.gz", rows))

    assert (found.task, found.name) == ("qa", "questions qa")
    assert [one.text for one in found.examples] == [row["question"] for row in EXAMPLES[:5]]
    assert [one.answers for one in found.asked] == [
        ("Poland", "the Republic of Poland"),
        ("the Vistula", "Vistula"),
        ("Sigismund III",),
    ]
    assert found.preamble.startswith(
        "Q: Which city is number 0?\nA: city 0\n\nQ: Which city is number 1?\nA: city 1\n\n"
    )


@pytest.mark.parametrize(("n", "n_examples"), [(2, 0), (19, 1), (49, 4), (500, 5)])
def test_without_a_split_examples_are_chosen_by_hash(n, n_examples, tmp_path):
    rows = [{"question": f"question {n}", "answer": "x"} for n in range(n)]
    found, back = (
        questions.read(written(tmp_path / f"{name}.jsonl", order))
        for name, order in (("a", rows), ("b", rows[::-1]))
    )

    assert len(found.examples) == n_examples
    assert found.examples == back.examples
    assert found.asked == back.asked[::-1]
    assert len({*found.examples, *found.asked}) == n


@pytest.mark.parametrize("split", ["train", None])
def test_what_the_prompt_solves_is_not_asked(split, tmp_path):
    """In another split, or again with other answers."""
    rows = [
        {"question": f"q{n}", "answers": [f"a{n}", *more], "split": split and of}
        for n in range(40)
        for more, of in (((), split), (("b",), "test"))
        if not (split and of == split and n > 6)
    ]
    found = questions.read(written(tmp_path / "qa.jsonl", rows))

    solved = {one.text for one in found.examples}
    assert len(found.examples) == 5
    assert not solved & {one.text for one in found.asked}
    assert {f"q{n}" for n in range(40)} == solved | {one.text for one in found.asked}


def test_likelihoods_are_the_harnesss(model, tmp_path):
    pytest.importorskip("lm_eval")
    from workloads.evaluation import evaluate_suites
    from workloads.evaluation.harness_model import HarnessModel

    asked = questions.read(written(tmp_path / "qa.jsonl", [*EXAMPLES, *ROWS]))
    task = TaskSpec(
        name="qa",
        file="qa.jsonl",
        origin="here",
        kind="answer",
        prompt="Q: {{question}}\nA:",
        shots=5,
        shots_file="qa.jsonl",
    )

    def rows(of):
        return [{"question": one.text, "answers": list(one.answers)} for one in of]

    found = questions.evaluate(asked, model)
    theirs = evaluate_suites.evaluate_task(
        HarnessModel(model), task, rows(asked.asked), rows(asked.examples)
    )

    assert found.n == theirs.n == 3
    for name in ("nll", "bits_per_byte"):
        for metric in (name, f"{name}_stderr"):
            assert found.metrics[metric] == pytest.approx(theirs.metrics[metric], rel=1e-9)


def test_answers_are_decoded_up_to_the_end_of_the_line(model, tmp_path, monkeypatch):
    asked = questions.read(written(tmp_path / "qa.jsonl", [*EXAMPLES, *ROWS]))
    prompts = []

    def continuations(self, given):
        prompts.extend(given)
        return [" The republic of Poland. ", "vistula river", "SIGISMUND III!"]

    monkeypatch.setattr(TextModel, "continuations", continuations)
    found = questions.evaluate(asked, model)

    assert found.metrics["exact_match"] == pytest.approx(2 / 3)
    assert found.metrics["exact_match_stderr"] == pytest.approx(1 / 3)
    assert all(one.stops == ("\n",) for one in prompts)
    assert prompts[0].text == f"{asked.preamble}Q: Where is Warsaw?\nA:"


@pytest.mark.parametrize("answer", ["A", "An", "The The", "?", "+"])
def test_silence_is_no_answer(answer):
    """SQuAD's normalisation leaves nothing of an answer without words."""
    others = {"", "!", " ", "the", "."}
    assert not any(questions.is_match(said, [answer]) for said in others)
    assert questions.is_match(f" {answer.upper()}\n", [answer])
    assert questions.is_match("a.", ["A"])


def test_records_of_answers_without_words_are_measured_anew(tmp_path):
    """Other records stand: their digests are as before silence was no answer."""
    asked = questions.read(written(tmp_path / "qa.jsonl", [*EXAMPLES, *ROWS]))
    bare = replace(asked, asked=(*asked.asked, Question("Which grade?", ("A", "the best"))))

    for one, equal in ((asked, True), (bare, False)):
        content = repr((one.examples, one.asked, questions.MAX_TOKENS))
        assert (one.digest == hashlib.sha256(content.encode()).hexdigest()) == equal


def test_spaces_around_answers_are_not_asked(tmp_path):
    rows = [
        {"question": "a?", "answer": " Lee ", "aliases": ["Lee", "Bo\n"]},
        {"question": "b?", "answers": ["Cy", "\tCy"]},
    ]
    found = questions.read(written(tmp_path / "qa.jsonl", rows))
    assert [one.answers for one in found.asked] == [("Lee", "Bo"), ("Cy",)]


def test_a_model_that_knows_answers_is_right(tmp_path):
    """Greedy answers of a model that was trained on nothing but one question."""
    rows = [{"question": "a?", "answer": "b", "split": "x"}, {"question": "c?", "answer": "d"}]
    tokenizer = train(["Q: a?\nA: b\n\nQ: c?\nA: d\n\n"] * 3, vocab_size=270)
    model = dense.Config(**dense.PRESETS["d8"]).build(tokenizer.size)
    initialise(model, 0)
    ids = torch.tensor(tokenizer.encode(["Q: a?\nA: b\n\nQ: c?\nA: e\n\n"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
        loss.backward()
        optimizer.step()
    asked = questions.read(written(tmp_path / "qa.jsonl", rows))
    text = TextModel(model=model.eval(), tokenizer=tokenizer, seq_len=64, vocab_size=tokenizer.size)

    first = questions.evaluate(replace(asked, asked=asked.asked[:1]), text).metrics
    both = questions.evaluate(asked, text).metrics

    assert first["exact_match"] == 1.0
    assert first["nll"] < 1.0
    assert "exact_match_stderr" not in first
    assert both["exact_match"] <= 0.5  # the second was learnt with another answer


def test_no_harness_is_needed(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    path = written(tmp_path / "qa.jsonl", [*EXAMPLES, *ROWS])
    (asked,) = measure.prepare((), None, path, limit=2)

    record = measure.measure(asked, model, step=3)

    assert record["digest"] == asked.digest != questions.read(path).digest
    assert (record["harness"], record["step"], record["tasks"]["qa"]["n"]) == (None, 3, 2)
    assert {name for name in record["metrics"] if "stderr" not in name} == {
        "eval/qa/exact_match",
        "eval/qa/nll",
        "eval/qa/bits_per_byte",
    }


def test_costs_are_those_of_what_is_read(model, tmp_path):
    asked = questions.read(written(tmp_path / "qa.jsonl", [*EXAMPLES, *ROWS]))
    prompts = [f"{asked.preamble}Q: {one.text}\nA:" for one in asked.asked]
    n_bytes = sum(
        2 * len(prompt) + len(one.answers[0]) + 1
        for prompt, one in zip(prompts, asked.asked, strict=True)
    )

    found = asked.tokens(seq_len=10**6, n_rows=10)

    assert found.read * questions.BYTES_PER_TOKEN == pytest.approx(n_bytes)
    assert found.generated == 3 * questions.MAX_TOKENS
    assert asked.tokens(seq_len=8, n_rows=10).read == 3 * 2 * 8


@given(st.text(st.sampled_from("aAnthe THE.,!-' \t\nÉß1") | st.characters(), max_size=30))
def test_answers_are_normalised_as_squad_does(text):
    theirs = pytest.importorskip("lm_eval.tasks.qasper.metrics").normalize_answer
    assert questions.normalised(text) == theirs(text) or not theirs(text)
    assert bool(questions.normalised(text)) == bool(text.split())


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"answer": "x"}, "question must be a text, got None; add it"),
        ({"question": " ", "answer": "x"}, "question must be a text, got ' '"),
        ({"question": "q"}, "must have either answer or answers; write"),
        ({"question": "q", "answer": "x", "answers": ["x"]}, "must have either answer or answers"),
        ({"question": "q", "answers": []}, "answers is empty"),
        ({"question": "q", "answers": "x"}, "answers must be texts, got 'x'"),
        ({"question": "q", "answer": 7}, r"answers must be texts, got [7]"),
        ({"question": "q", "answer": "x", "aliases": [""]}, "aliases must be texts, got ['']"),
        ({"question": "q", "answer": "x", "split": 1}, "split must be a text, got 1"),
    ],
)
def test_a_bad_row_is_named(row, what, tmp_path):
    path = written(tmp_path / "qa.jsonl", [*ROWS, row])
    with pytest.raises(DataError) as raised:
        questions.read(path)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{path}:4: {what}")


def test_bad_files(tmp_path):
    def said(name, content=None):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError) as raised:
            questions.read(tmp_path / name)
        return str(raised.value)

    assert said("none.jsonl").endswith(
        "not there; name a file of JSON lines with question and answer"
    )
    assert "is not compressed; rename it to a.jsonl" in said("a.jsonl.gz", b"{}")
    assert "has 0 questions to ask beside 0 of the split train" in said("b.jsonl", b"")
    assert "c.jsonl:1: is not JSON" in said("c.jsonl", b"x")


def test_questions_are_kept_apart_from_their_aliases():
    assert questions.is_match("an  answer.", Question("q", ("Answer", "other")).answers)
    assert not questions.is_match("answers", ("answer",))
    assert not questions.is_match("", ("answer",))
