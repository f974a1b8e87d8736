"""Rows of benchmarks as published, converted to our own fields.

Publishers are the benchmarks' authors and the Hugging Face hub.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LETTERS = "ABCDEFGHIJ"
_POSSESSIVE = ("my", "his", "her", "our", "their")
_CAPITAL = ("A", "An", "The", "She", "He", "It", "They", "My", "His", "Her", "Their")

Row = Mapping[str, Any]


def in_our_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a published form with our fields beside its own; any other as it is.

    Of our fields those that the row has already stay, unless the form is known by them. Where a
    value has not the type of its form, our fields are left out, and so missed by the task.
    """
    for needed, convert in _FORMS:
        if needed <= row.keys():
            try:
                own = {name: row[name] for name in row.keys() - needed}
                return {**row, **convert(row), **own}
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                return row
    return row


def _piqa(row: Row) -> dict[str, Any]:
    return {"question": row["goal"], "choices": [row["sol1"], row["sol2"]]}


def _winogrande(row: Row) -> dict[str, Any]:
    before, after = row["sentence"].split("_", 1)
    return {
        "contexts": [before + row["option1"], before + row["option2"]],
        "continuation": after.strip(),
        "label": int(row["answer"]) - 1,
    }


def _winograd(row: Row) -> dict[str, Any]:
    """Put each option where the pronoun stands, worded as lm-evaluation-harness has it (WSC273)."""
    text, at = row["text"].replace("  ", " "), row["pronoun_loc"]
    contexts = []
    for option in row["options"]:
        ending = "'s" if row["pronoun"].lower() in _POSSESSIVE else ""
        first = option.split()[0]
        if first in _CAPITAL and text[at - 2] != ".":
            option = option.replace(first, first.lower())
        contexts.append(text[:at] + option + ending)
    return {"contexts": contexts, "continuation": text[at + len(row["pronoun"]) :].strip()}


def _arc(row: Row) -> dict[str, Any]:
    """Convert ARC and OpenBookQA, whose choices stand in the question or beside it."""
    asked = row.get("question", row.get("question_stem"))
    choices = row["choices"] if "choices" in row else asked["choices"]
    if not isinstance(choices, Mapping):
        choices = {name: [one[name] for one in choices] for name in ("text", "label")}
    return {
        "question": asked["stem"] if isinstance(asked, Mapping) else asked,
        "choices": list(choices["text"]),
        "label": _place(row["answerKey"].strip(), choices["label"]),
    }


def _logiqa(row: Row) -> dict[str, Any]:
    return {
        "context": row["context"] if "context" in row else row["text"],
        "choices": row["options"],
        "label": _letter(row["label"] if "label" in row else row["answer"]),
    }


def _mmlu(row: Row) -> dict[str, Any]:
    """Convert MMLU, whose choices may be columns A, B and so on."""
    choices = [row[letter] for letter in LETTERS if letter in row]
    return {"choices": row.get("choices", choices), "label": _letter(row["answer"])}


def _popqa(row: Row) -> dict[str, Any]:
    return {"answers": json.loads(row["possible_answers"])}


def _answer(row: Row) -> dict[str, Any]:
    """Convert NQ-open (a list), TriviaQA (an object), HotpotQA and GSM8K (a text)."""
    answer = row["answer"]
    if isinstance(answer, Mapping):
        return {"answers": list(dict.fromkeys([answer["value"], *answer["aliases"]]))}
    if isinstance(answer, str):
        return {"answers": [answer], "solution": answer}
    return {"answers": answer}


def _lambada(row: Row) -> dict[str, Any]:
    context, continuation = row["text"].strip().rsplit(" ", 1)
    return {"context": context, "continuation": continuation}


def _letter(answer: Any) -> Any:
    """Return the place of a letter; a number, and what is neither, as it is."""
    if isinstance(answer, str):
        return _place(answer.strip().upper(), LETTERS)
    return answer


def _place(name: str, names: Sequence[str]) -> Any:
    """Return where a name stands; itself where it does not, which the task refuses."""
    return list(names).index(name) if name in list(names) else name


_FORMS: tuple[tuple[frozenset[str], Callable[[Row], dict[str, Any]]], ...] = (
    (frozenset({"goal", "sol1", "sol2"}), _piqa),
    (frozenset({"sentence", "option1", "option2", "answer"}), _winogrande),
    (frozenset({"text", "pronoun", "pronoun_loc", "options"}), _winograd),
    (frozenset({"answerKey", "choices"}), _arc),
    (frozenset({"answerKey", "question"}), _arc),
    (frozenset({"options", "question", "text", "answer"}), _logiqa),
    (frozenset({"options", "question", "context", "label"}), _logiqa),
    (frozenset({"choices", "label"}), dict),
    (frozenset({"choices", "answer"}), _mmlu),
    (frozenset({"A", "B", "answer"}), _mmlu),
    (frozenset({"contexts"}), dict),
    (frozenset({"answers"}), dict),
    (frozenset({"possible_answers"}), _popqa),
    (frozenset({"question", "answer"}), _answer),
    (frozenset({"context"}), dict),
    (frozenset({"text"}), _lambada),
)
"""Fields by which a form is known, and what makes our fields of it: the first that fits."""
