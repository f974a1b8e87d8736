"""Short-answer questions for a model trained on text, without a harness.

A file of JSON lines, plain or compressed:

    {"question": "Who wrote it?", "answer": "Ann Lee", "aliases": ["Lee"], "split": "train"}

`answers: [...]` stands for an answer and its aliases. Rows of the split `train` are solved examples
in the prompt, all others are asked. Where no row says its split, the questions of the lowest hashes
are the examples: five, but at most a tenth of all. A question that the prompt solves is not asked.
"""

import hashlib
import math
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from workloads.data.readers.lines import json_rows
from workloads.data.readers.problems import Problems
from workloads.evaluation.prepared_suite import BYTES_PER_TOKEN, TokenCount
from workloads.evaluation.task_result import Progress, TaskResult, silent
from workloads.evaluation.text_model import GreedyPrompt, TextModel

SHOTS = 5
"""Solved examples before a question, the first ones of the train split, as NQ-open has it."""
MOST_TRAIN_SHARE = 0.1
"""Of the questions of a file that names no split."""
MAX_TOKENS = 24
"""Of a generated answer."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Question:
    """A question and what is right."""

    text: str
    answers: tuple[str, ...]
    """The answer, then its aliases."""


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """Questions of one file."""

    needs_text: ClassVar[bool] = True
    task: str
    """The file's name without its ending: of its metrics."""
    examples: tuple[Question, ...]
    """Solved ones that precede each question."""
    asked: tuple[Question, ...]

    @property
    def name(self) -> str:
        """Name of its record."""
        return f"questions {self.task}"

    @property
    def task_names(self) -> tuple[str, ...]:
        """The one task."""
        return (self.task,)

    @property
    def answer_tokens(self) -> dict[str, int]:
        """The one task -> tokens that are generated for an answer, at most."""
        return {self.task: MAX_TOKENS}

    @property
    def most_rows(self) -> int:
        """Questions that are asked."""
        return len(self.asked)

    @property
    def digest(self) -> str:
        """SHA-256 over what is asked and how: where equal, numbers are equal."""
        # Where all answers have words, left out: earlier records stand.
        bare = {answer for one in self.asked for answer in one.answers if not _words(answer)}
        content = (self.examples, self.asked, MAX_TOKENS, *sorted(bare))
        return hashlib.sha256(repr(content).encode()).hexdigest()

    @cached_property
    def preamble(self) -> str:
        """The solved examples, as text."""
        return "".join(f"{_prompt(one)} {one.answers[0]}\n\n" for one in self.examples)

    def first(self, n_rows: int | None) -> "QuestionSet":
        """Return the first questions; None: all."""
        return replace(self, asked=self.asked[:n_rows])

    def tokens(self, *, seq_len: int, n_rows: int) -> TokenCount:
        """Estimate the tokens of one evaluation, without a tokenizer.

        Args:
            seq_len: Longest sequence of the model; longer prompts are cut to it.
            n_rows: Questions, at most.
        """

        def tokens(text: str) -> float:
            return min(seq_len, len(text.encode()) / BYTES_PER_TOKEN)

        rows = self.asked[:n_rows]
        lengths = [tokens(self.preamble + _prompt(one)) for one in rows]
        answered = [tokens(f"{self.preamble}{_prompt(one)} {one.answers[0]}") for one in rows]
        return TokenCount(
            sum(lengths) + sum(answered),
            float(MAX_TOKENS * len(rows)),
            float(len(set(map(int, lengths))) + MAX_TOKENS),
        )


def evaluate(asked: QuestionSet, model: TextModel, progress: Progress = silent) -> TaskResult:
    """Return exact match of greedy answers, and the likelihood of the right ones.

    exact_match: share of answers that equal an accepted one when normalised. nll: of the first
    accepted answer, nats. bits_per_byte: the same in bits over its UTF-8 bytes, the space before it
    not counted.
    """
    model.cut_prompts.clear()
    model.progress = partial(progress, asked.task)
    prompts = [asked.preamble + _prompt(one) for one in asked.asked]
    pairs = [
        model.pair(prompt, f" {one.answers[0]}")
        for prompt, one in zip(prompts, asked.asked, strict=True)
    ]
    nll = [-score.log_likelihood for score in model.scores(pairs)]
    said = model.continuations([GreedyPrompt(text, MAX_TOKENS, ("\n",)) for text in prompts])
    values = {
        "exact_match": [
            float(is_match(answer, one.answers))
            for answer, one in zip(said, asked.asked, strict=True)
        ],
        "nll": nll,
        "bits_per_byte": [
            nats / math.log(2) / len(one.answers[0].encode())
            for nats, one in zip(nll, asked.asked, strict=True)
        ],
    }
    metrics: dict[str, float] = {}
    for name, of_rows in values.items():
        metrics |= _mean_and_error(name, of_rows)
    return TaskResult(
        task=asked.task,
        n=len(asked.asked),
        metrics=metrics,
        chance=None,
        n_truncated=len(model.cut_prompts),
    )


def is_match(said: str, answers: Sequence[str]) -> bool:
    """Return whether an answer equals one of several, both normalised."""
    return normalised(said) in map(normalised, answers)


def normalised(answer: str) -> str:
    """Return an answer in lower case, without punctuation, articles and repeated spaces.

    Where that leaves nothing ("A", "+"), articles stay, or else punctuation: silence would be right
    otherwise. Source: the evaluation of SQuAD (Rajpurkar et al. 2016), which NQ-open and TriviaQA
    follow, and which has no such exception.
    """
    lower = answer.lower()
    return " ".join(_words(answer) or lower.translate(_PUNCTUATION).split() or lower.split())


def _words(answer: str) -> list[str]:
    """Return the words of an answer that are no articles, in lower case."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def read(path: Path) -> QuestionSet:
    """Return the questions of a file.

    Raises:
        DataError: One line per bad row; or if there is no file, or too few questions in it.
    """
    problems = Problems()
    rows: list[tuple[Question, Any]] = []
    if not path.is_file():
        problems.add(path, None, "not there", "name a file of JSON lines with question and answer")
    else:
        for line, row in json_rows(path, problems):
            wrong = _fault(row)
            if wrong is None:
                answers = row["answers"] if "answers" in row else [row["answer"]]
                answers = dict.fromkeys(
                    answer.strip() for answer in (*answers, *row.get("aliases", ()))
                )
                rows.append((Question(row["question"].strip(), tuple(answers)), row.get("split")))
            else:
                problems.add(path, line, *wrong)
    train, others = _split(rows)
    examples = tuple(train[:SHOTS])
    # A file may have a question in several splits, or twice with other answers.
    solved = {one.text for one in examples}
    asked = tuple(one for one in others if one.text not in solved)
    if not problems.total and len(asked) < 2:
        what = f"has {len(asked)} questions to ask beside {len(train)} of the split train"
        problems.add(path, None, what, "give at least two that are not among the examples")
    problems.raise_if_any()
    task = re.sub(r"[^\w.-]", "_", re.sub(r"(\.jsonl?)?(\.gz|\.zst)?$", "", path.name))
    return QuestionSet(task=task, examples=examples, asked=asked)


def _prompt(question: Question) -> str:
    return f"Q: {question.text}\nA:"


def _split(rows: Sequence[tuple[Question, Any]]) -> tuple[list[Question], list[Question]]:
    """Return the questions of the train split, and those to ask where none solves them."""
    if any(split is not None for _, split in rows):
        train = [question for question, split in rows if split == "train"]
        return train, [question for question, split in rows if split != "train"]
    n_train = min(SHOTS, int(MOST_TRAIN_SHARE * len(rows)))
    train = sorted((question for question, _ in rows), key=_hash)[:n_train]
    return train, [question for question, _ in rows]


def _hash(question: Question) -> str:
    return hashlib.sha256(question.text.encode()).hexdigest()


def _mean_and_error(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the mean of a metric, and its standard error where there are two values."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return {name: mean}
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return {name: mean, f"{name}_stderr": math.sqrt(variance / n)}


def _fault(row: dict[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with a row and what to do; None if nothing is."""
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        return f"question must be a text, got {question!r}", "add it"
    if ("answer" in row) == ("answers" in row):
        return "must have either answer or answers", "write the accepted answers as a list"
    answers = row["answers"] if "answers" in row else [row["answer"]]
    for field, texts in (("answers", answers), ("aliases", row.get("aliases", []))):
        if not isinstance(texts, list) or not all(isinstance(t, str) and t.strip() for t in texts):
            return f"{field} must be texts, got {texts!r}", "correct it"
    if not answers:
        return "answers is empty", "add the right answer"
    if row.get("split") is not None and not isinstance(row["split"], str):
        return f"split must be a text, got {row['split']!r}", "write train, or for example test"
    return None
