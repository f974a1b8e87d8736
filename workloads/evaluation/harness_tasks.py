"""Tasks of suites as lm-evaluation-harness runs them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.utils import env

from workloads.evaluation.suite import TaskSpec
from workloads.evaluation.task_rows import Row

LIKELIHOOD = "__likelihood"
"""Ends the name of the second task of an `answer`, whose metrics belong to the first."""
_ARTICLES = r"\b(?:The |the |An |A |The |a |an )"
_HIGHER_IS_BETTER = {
    "acc": True,
    "acc_norm": True,
    "exact_match": True,
    "nll": False,
    "bits_per_byte": False,
}

Scores = Sequence[tuple[float, bool]]
"""Log-likelihood of each request of a row, and whether it is the greedy continuation."""


def build(task: TaskSpec, rows: Sequence[Row], examples: Sequence[Row]) -> list[ConfigurableTask]:
    """Return the harness's tasks for one of ours: two for an `answer`, one for others.

    Args:
        task: As the suite has it.
        rows: To be asked.
        examples: Solved ones for the prompt; as many as `shots` are taken.
    """
    splits = {"test": Dataset.from_list(list(rows))}
    common: dict[str, Any] = {
        "task": task.name,
        "custom_dataset": lambda **_: splits,
        "test_split": "test",
        "doc_to_text": _template(task.prompt),
        "description": task.description,
        "num_fewshot": task.shots,
        "fewshot_delimiter": task.shots_delimiter,
    }
    if task.shots:
        splits["examples"] = Dataset.from_list(list(examples))
        common["fewshot_config"] = {"split": "examples", "sampler": "first_n"}
    configs = [{**common, **more} for more in _KINDS[task.kind](task)]
    if task.shots_of is None:
        return [ConfigurableTask(config=config) for config in configs]
    return [SameFieldTask(config=config, shots_of=task.shots_of) for config in configs]


def _choices(task: TaskSpec) -> list[dict[str, Any]]:
    return [
        {
            "output_type": "multiple_choice",
            "doc_to_choice": "choices",
            "doc_to_target": "label",
            "process_results": choice_scores,
            "metric_list": _means("acc", "acc_norm", "bits_per_byte"),
        }
    ]


def _contexts(task: TaskSpec) -> list[dict[str, Any]]:
    return [
        {
            "output_type": "multiple_choice",
            "doc_to_text": "label",
            "doc_to_choice": "contexts",
            "doc_to_target": "continuation",
            "process_results": context_scores,
            "metric_list": _means("acc", "bits_per_byte"),
        }
    ]


def _answer(task: TaskSpec) -> list[dict[str, Any]]:
    match: dict[str, Any] = {"ignore_case": True, "ignore_punctuation": True}
    if task.ignore_articles:
        match["regexes_to_ignore"] = [_ARTICLES]
    strip = [{"function": "remove_whitespace"}, {"function": "take_first"}]
    generated = {
        "output_type": "generate_until",
        "doc_to_target": "answers",
        "generation_kwargs": {
            "until": ["\n"] if task.whole_line else ["\n", ".", ","],
            "do_sample": False,
            "max_gen_toks": task.max_tokens,
        },
        "filter_list": [{"name": "none", "filter": strip}],
        "metric_list": [{**_means("exact_match")[0], **match}],
    }
    return [generated, _likelihood(task, "{{answers[0]}}", task.name + LIKELIHOOD, _ANSWER)]


def _continuation(task: TaskSpec) -> list[dict[str, Any]]:
    return [_likelihood(task, task.target, task.name, _WHOLE)]


_ANSWER, _WHOLE = ("nll", "bits_per_byte"), ("acc", "nll", "bits_per_byte")


def _likelihood(task: TaskSpec, target: str, name: str, metrics: Sequence[str]) -> dict[str, Any]:
    prompt, solution = _template(task.prompt), _template(target)

    def continuation(row: Mapping[str, Any]) -> str:
        return task.delimiter + solution(row)

    def counted(row: Mapping[str, Any]) -> str:
        if task.delimiter:
            return solution(row)
        # The harness moves whitespace that ends a prompt to what follows, and scores it there.
        before = prompt(row)
        return before[len(before.rstrip()) :] + solution(row)

    return {
        "task": name,
        "output_type": "loglikelihood",
        "doc_to_target": continuation,
        # It is the continuation's already, in examples too.
        "target_delimiter": "",
        "process_results": likelihood_scores(counted, metrics),
        "metric_list": _means(*metrics),
    }


def _template(text: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what fills in a Jinja template, compiled once.

    Given the text, the harness compiles it anew for every row and example.
    """
    compiled = env.from_string(text)

    # A function, because the harness copies its settings, and a compiled template has no copy.
    def filled_in(row: Mapping[str, Any]) -> str:
        return str(compiled.render(row))

    return filled_in


_KINDS: dict[str, Callable[[TaskSpec], list[dict[str, Any]]]] = {
    "choices": _choices,
    "contexts": _contexts,
    "answer": _answer,
    "continuation": _continuation,
}


def choice_scores(row: Mapping[str, Any], scores: Scores) -> dict[str, float]:
    """Return the metrics of a row whose choices continue one prompt.

    acc takes the likeliest choice, acc_norm the likeliest per character; bits_per_byte is of the
    right one. Ties go to the first.
    """
    choices, label = row["choices"], row["label"]
    likely = [score for score, _ in scores]
    normed = [score / len(choice) for score, choice in zip(likely, choices, strict=True)]
    return {
        "acc": float(_best(likely) == label),
        "acc_norm": float(_best(normed) == label),
        "bits_per_byte": bits_per_byte(likely[label], choices[label]),
    }


def context_scores(row: Mapping[str, Any], scores: Scores) -> dict[str, float]:
    """Return the metrics of a row whose continuation follows one of several contexts."""
    likely, label = [score for score, _ in scores], row["label"]
    return {
        "acc": float(_best(likely) == label),
        "bits_per_byte": bits_per_byte(likely[label], row["continuation"]),
    }


def likelihood_scores(
    counted: Callable[[Mapping[str, Any]], str], metrics: Sequence[str]
) -> Callable[[Mapping[str, Any], Scores], dict[str, float]]:
    """Return the function that makes metrics of a continuation's likelihood.

    Args:
        counted: Returns the text of a row over whose bytes `bits_per_byte` is taken.
        metrics: Which ones.
    """

    def scores_of(row: Mapping[str, Any], scores: Scores) -> dict[str, float]:
        likelihood, greedy = scores[0]
        found = {
            "acc": float(greedy),
            "nll": -likelihood,
            "bits_per_byte": bits_per_byte(likelihood, counted(row)),
        }
        return {name: found[name] for name in metrics}

    return scores_of


def bits_per_byte(log_likelihood: float, text: str) -> float:
    """Return `-log2 p / bytes` of a text, the space before it not counted."""
    return -log_likelihood / math.log(2) / len(text.encode())


def _best(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=lambda i: scores[i])


def _means(*metrics: str) -> list[dict[str, Any]]:
    return [
        {"metric": name, "aggregation": "mean", "higher_is_better": _HIGHER_IS_BETTER[name]}
        for name in metrics
    ]


class SameFieldTask(ConfigurableTask):  # type: ignore[misc]
    """A task whose examples share a field with the row that is asked."""

    def __init__(self, config: dict[str, Any], shots_of: str) -> None:
        super().__init__(config=config)
        self._shots_of, self._pool = shots_of, list(self.sampler.df)

    def fewshot_context(self, doc: Row, *args: Any, **kwargs: Any) -> Any:
        """Return the prompt with its examples."""
        asked = doc[self._shots_of]
        self.sampler.df = [row for row in self._pool if row[self._shots_of] == asked]
        return super().fewshot_context(doc, *args, **kwargs)
