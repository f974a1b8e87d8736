import json

import pytest

from workloads.data.facts.templates import (
    generic_wordings,
    read_wordings,
    split_question,
    split_wording,
)
from workloads.data.readers.problems import DataError, Problems


def whole(wording, subject, obj):
    """Put a wording together again from its pieces."""
    entities = [" " * wording.subject_spaced + subject, " " * wording.object_spaced + obj]
    first, second = reversed(entities) if wording.object_first else entities
    return wording.before + first + wording.middle + second + wording.after


@pytest.mark.parametrize(
    "text",
    [
        "{s} is in {o}.",
        "{o} is where {s} lies.",
        'The "{s}" ({o})',
        "{s}{o}",
        "In  {s}  and  {o}",
        "{s}'s capital: {o}",
        "Überall {o}–{s}!",
    ],
)
def test_pieces_join_to_the_text_with_a_space_in_front(text):
    wording = split_wording(text)
    assert wording.text == text
    expected = " " + text.replace("{s}", "A").replace("{o}", "B")
    assert whole(wording, "A", "B") == expected


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("{s} is in {o}.", True),
        ("{s}: {o}", True),
        ("{o} has {s}.", False),
        ("{s} has {o} as capital.", False),
    ],
)
def test_only_wordings_that_end_with_the_object_can_be_prompts(text, ends):
    assert split_wording(text).ends_with_object == ends


def test_questions_end_with_the_answer():
    wording = split_question("Where is {s}?")
    assert wording.ends_with_object
    assert whole(wording, "A", "B") == " Question: Where is A? Answer: B"


def test_generic_wordings_name_the_relation_and_can_be_probed():
    made = generic_wordings("place_of_birth")
    for wording in (*made.train, *made.heldout, *made.questions):
        assert "place of birth" in wording.text
    for kind in (made.train, made.heldout, made.questions):
        assert any(wording.ends_with_object for wording in kind)
    assert not {w.text for w in made.train} & {w.text for w in made.heldout}


def test_generic_wordings_stand_braces_in_names():
    assert "born (in)" in generic_wordings("born {in}").train[0].text


def mistakes(path):
    problems = Problems()
    read_wordings(path, problems)
    with pytest.raises(DataError) as caught:
        problems.raise_if_any()
    return [text.removeprefix(str(path)) for text in caught.value.problems]


def test_templates_are_read(tmp_path):
    path = tmp_path / "templates.json"
    entry = {
        "relation": "capital",
        "train_statements": ["{s} has the capital {o}."],
        "heldout_statements": ["The capital of {s} is {o}."],
        "questions": ["What is the capital of {s}?"],
    }
    path.write_text(json.dumps({"P1": entry, "P2": {"train_statements": ["{s} {o}"]}}))
    problems = Problems()
    wordings = read_wordings(path, problems)
    assert problems.total == 0
    assert [w.text for w in wordings["P1"].heldout] == ["The capital of {s} is {o}."]
    assert wordings["P2"].questions == ()


def test_every_wrong_template_is_reported_with_its_line(tmp_path):
    path = tmp_path / "templates.json"
    content = {
        "P1": {"train_statements": ["{s} is.", "{o} {s} {o}", "{s} ü {o}"]},
        "P2": {"train_statements": []},
        "P3": {"train_statements": ["{s} is {o}"], "questions": ["Who is {s}? {o}", "Who?"]},
        "P4": ["{s} is {o}"],
        "P5": {"train_statements": ["{o} has {s}"], "heldout_statements": "x"},
        "P6": {"train_statements": ["{s}, {o}"], "heldout_statements": ["{s}, {o}"]},
    }
    path.write_text(json.dumps(content, indent=1))
    lines = path.read_text().splitlines()

    def line(text):
        return 1 + next(i for i, candidate in enumerate(lines) if text in candidate)

    assert mistakes(path) == [
        f":{line('{s} is.')}: P1.train_statements: '{{s}} is.' has {{o}} 0 times; "
        "write {o} exactly once",
        f":{line('{o} {s} {o}')}: P1.train_statements: '{{o}} {{s}} {{o}}' has {{o}} 2 times; "
        "write {o} exactly once",
        f":{line('P2')}: P2 has no train_statements; write at least one",
        f":{line('Who is {s}? {o}')}: P3.questions: 'Who is {{s}}? {{o}}' gives the answer away "
        "with {o}; leave {o} out of questions",
        f":{line('Who?')}: P3.questions: 'Who?' has {{s}} 0 times; write {{s}} exactly once",
        f":{line('P4')}: P4 must map to train_statements, heldout_statements and questions, got "
        "['{s} is {o}']; see the format of relation templates",
        f":{line('P5')}: P5.heldout_statements must be a list of texts; correct it",
        f":{line('P5')}: no train statement of P5 ends with {{o}}, so its facts cannot be probed; "
        "add one in which {o} comes last",
        f":{line('{s}, {o}')}: P6: '{{s}}, {{o}}' is both a train and a held-out statement; "
        "keep it in one list",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"P1": \n}', ":2: is not JSON (Expecting value); correct the file"),
        (b"[]", ":1: holds a list; map relation ids to templates"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_file_that_is_no_template_file_is_one_mistake(tmp_path, content, message):
    path = tmp_path / "templates.json"
    path.write_bytes(content)
    (only,) = mistakes(path)
    assert message in only
