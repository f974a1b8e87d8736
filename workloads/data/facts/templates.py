"""Templates of facts: statements and questions, split into reusable pieces.

A wording is cut at its placeholders: before, first entity, middle, second entity, after. A space in
front of an entity belongs to the entity, and every document begins with a space, so " Paris" is the
same piece, hence the same tokens, wherever it stands. Pieces are tokenised one by one: the tokens
of an answer after a prompt are exactly its tokens in training, which tokenising prompt and answer
together does not guarantee.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workloads.data.readers.problems import Problems

_SUBJECT, _OBJECT = "{s}", "{o}"


@dataclass(frozen=True, kw_only=True)
class Wording:
    """A template in pieces. Entities carry their leading space themselves."""

    text: str
    before: str
    middle: str
    after: str
    object_first: bool
    subject_spaced: bool
    object_spaced: bool

    @property
    def ends_with_object(self) -> bool:
        """Whether the text before the object is a prompt.

        The subject comes before it, and only punctuation after.
        """
        return not self.object_first and not any(c.isalnum() for c in self.after)


@dataclass(frozen=True, kw_only=True)
class RelationWordings:
    """Everything that is ever said about one relation."""

    train: tuple[Wording, ...]
    heldout: tuple[Wording, ...]
    questions: tuple[Wording, ...]


def split_wording(text: str) -> Wording:
    """Cut a template that holds {s} and {o} once each."""
    text = " " + text
    s, o = text.index(_SUBJECT), text.index(_OBJECT)
    (first, second), width = sorted((s, o)), len(_SUBJECT)
    before, middle, after = text[:first], text[first + width : second], text[second + width :]
    spaced = {first: before.endswith(" "), second: middle.endswith(" ")}
    return Wording(
        text=text[1:],
        before=before.removesuffix(" "),
        middle=middle.removesuffix(" "),
        after=after,
        object_first=o < s,
        subject_spaced=spaced[s],
        object_spaced=spaced[o],
    )


def split_question(text: str) -> Wording:
    """Cut a question that holds {s}; the answer follows it."""
    return split_wording(f"Question: {text} Answer: {_OBJECT}")


def generic_wordings(name: str) -> RelationWordings:
    """Return wordings made from nothing but the relation's name."""
    name = name.replace("_", " ").replace("{", "(").replace("}", ")")
    return RelationWordings(
        train=tuple(
            map(
                split_wording,
                (
                    f"The {name} of {{s}} is {{o}}.",
                    f"{{s}} has the {name} {{o}}.",
                    f"{{o}} is the {name} of {{s}}.",
                    f"Regarding {{s}}, the {name} is {{o}}.",
                ),
            )
        ),
        heldout=(split_wording(f"As for the {name}, that of {{s}} is {{o}}."),),
        questions=(split_question(f"What is the {name} of {{s}}?"),),
    )


def read_wordings(path: Path, problems: Problems) -> dict[str, RelationWordings]:
    """Return relation id -> wordings of a template file; mistakes are added to `problems`."""
    try:
        raw = path.read_text(encoding="utf-8-sig")
        content = json.loads(raw)
    except UnicodeDecodeError as error:
        problems.add(path, None, f"is not UTF-8 ({error})", "convert the file")
        return {}
    except json.JSONDecodeError as error:
        problems.add(path, error.lineno, f"is not JSON ({error.msg})", "correct the file")
        return {}
    if not isinstance(content, dict):
        problems.add(path, 1, f"holds a {type(content).__name__}", "map relation ids to templates")
        return {}
    return {
        relation: _relation_wordings(relation, entry, raw, path, problems)
        for relation, entry in content.items()
    }


def _relation_wordings(
    relation: str, entry: object, raw: str, path: Path, problems: Problems
) -> RelationWordings:
    place = _line_of(relation, raw)
    if not isinstance(entry, Mapping):
        problems.add(
            path,
            place,
            f"{relation} must map to train_statements, heldout_statements and questions, got "
            f"{entry!r}",
            "see the format of relation templates",
        )
        return RelationWordings(train=(), heldout=(), questions=())
    texts: dict[str, list[str]] = {}
    for key in ("train_statements", "heldout_statements", "questions"):
        value = entry.get(key, [])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            problems.add(path, place, f"{relation}.{key} must be a list of texts", "correct it")
            value = []
        elif key == "train_statements" and not value:
            problems.add(path, place, f"{relation} has no train_statements", "write at least one")
        needed = (_SUBJECT,) if key == "questions" else (_SUBJECT, _OBJECT)
        texts[key] = [
            t for t in value if _check(t, needed, f"{relation}.{key}", raw, path, problems)
        ]
    train = tuple(map(split_wording, texts["train_statements"]))
    if train and not any(wording.ends_with_object for wording in train):
        problems.add(
            path,
            place,
            f"no train statement of {relation} ends with {_OBJECT}, so its facts cannot be probed",
            f"add one in which {_OBJECT} comes last",
        )
    repeated = set(texts["train_statements"]) & set(texts["heldout_statements"])
    for text in sorted(repeated):
        problems.add(
            path,
            _line_of(text, raw),
            f"{relation}: {text!r} is both a train and a held-out statement",
            "keep it in one list",
        )
    return RelationWordings(
        train=train,
        heldout=tuple(map(split_wording, texts["heldout_statements"])),
        questions=tuple(map(split_question, texts["questions"])),
    )


def _check(
    text: str, needed: Iterable[str], where: str, raw: str, path: Path, problems: Problems
) -> bool:
    """Return whether every needed placeholder occurs exactly once; note it if not."""
    wrong = [name for name in needed if text.count(name) != 1]
    for name in wrong:
        problems.add(
            path,
            _line_of(text, raw),
            f"{where}: {text!r} has {name} {text.count(name)} times",
            f"write {name} exactly once",
        )
    if not wrong and _OBJECT not in needed and _OBJECT in text:
        problems.add(
            path,
            _line_of(text, raw),
            f"{where}: {text!r} gives the answer away with {_OBJECT}",
            f"leave {_OBJECT} out of questions",
        )
        return False
    return not wrong


def _line_of(text: str, raw: str) -> int | None:
    """Return the first line of a JSON file on which a text stands, as JSON writes it."""
    for spelling in (json.dumps(text, ensure_ascii=False), json.dumps(text)):
        position = raw.find(spelling)
        if position >= 0:
            return raw.count("\n", 0, position) + 1
    return None
