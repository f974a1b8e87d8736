"""Sentence templates of synthetic biographies: statements, probes, questions.

They lie in `templates.json`, in the form that `triples` reads. `{s}` is the person (full name or
pronoun), `{o}` the value. The value always comes last before the full stop, so the text before it
is a prompt. Every word of a held-out wording also occurs in some training wording of the same
style: a probe meets a new sentence, never an untrained token.
"""

import json
from collections.abc import Mapping
from pathlib import Path

ATTRIBUTES = ("birth_date", "birth_city", "university", "major", "employer")
"""In the order of a biography with `order: fixed`."""
N_HELDOUT = 3
"""Held-out wordings per attribute."""
N_QUESTIONS = 3
"""Question wordings per attribute."""
MAX_SENTENCE_WORDINGS = 20
MAX_COMPACT_WORDINGS = 200

_TEMPLATES: Mapping[str, Mapping[str, list[str]]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)


def statement_templates(style: str, attribute: str, n_wordings: int) -> list[str]:
    """Return the statement wordings of an attribute.

    `sentences`: the first n_wordings training wordings, then the held-out ones. `compact`:
    n_wordings + N_HELDOUT markers, one token each, none of which is held out as such; which of them
    are held out depends on the person (`biographies.py`), because a marker that nobody ever saw
    would be an untrained token.
    """
    if style == "compact":
        return [f"{{s}} {attribute}~{i} {{o}}" for i in range(n_wordings + N_HELDOUT)]
    wordings = _TEMPLATES[attribute]
    return [*wordings["train_statements"][:n_wordings], *wordings["heldout_statements"]]


def question_templates(style: str, attribute: str) -> list[str]:
    """Return the question wordings of an attribute."""
    if style == "compact":
        return [f"{attribute}?{i} {{s}} {{o}}" for i in range(N_QUESTIONS)]
    questions = _TEMPLATES[attribute]["questions"]
    return [f"Question : {text} Answer : {{o}} ." for text in questions]
