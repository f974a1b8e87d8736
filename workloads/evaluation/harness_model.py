"""Language models as lm-evaluation-harness sees them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from lm_eval.api.model import TemplateLM

from workloads.evaluation.text_model import GreedyPrompt, TextModel

_ANSWER_TOKENS = 256
"""Tokens of a greedy continuation where the task does not say, as the harness has it."""


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """Requests of the harness to a text model.

    Text is tokenised as the harness's own model classes do with a tokenizer that adds no separator.
    The harness sees one rank.
    """

    def __init__(self, text: TextModel) -> None:
        """Answer with `text`."""
        super().__init__()
        self.text = text
        self._device = text.here
        # The harness asks for a prompt's ids after those of the prompt with each of its choices.
        self._encode = lru_cache(maxsize=2)(text.encode)

    @property
    def progress(self) -> Callable[[int, int], None]:
        """Told after every pass how many requests of how many are done."""
        return self.text.progress

    @progress.setter
    def progress(self, tell: Callable[[int, int], None]) -> None:
        self.text.progress = tell

    @property
    def cut_prompts(self) -> set[tuple[int, ...]]:
        """Ids of the prompts so far that did not fit; emptied by whoever begins a task."""
        return self.text.cut_prompts

    @property
    def eot_token_id(self) -> int:
        """Separator of documents."""
        return self.text.tokenizer.separator

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return the ids of a text."""
        return self._encode(string)

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        return [(score.log_likelihood, score.greedy) for score in self.text.scores(pairs)]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, each begun by the separator.

        Longer ones are read in windows that share one token.
        """
        texts = [request.args[0] for request in requests]
        pairs = [([self.eot_token_id], ids) for ids in self.text.tokenizer.encode(texts)]
        return [score.log_likelihood for score in self.text.scores(pairs)]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the greedy continuations of prompts, up to a stop text or the separator.

        Raises:
            ValueError: If the tokens to add leave no room for a prompt.
        """
        return self.text.continuations([_prompt(*request.args) for request in requests])


def _prompt(text: str, settings: dict[str, Any]) -> GreedyPrompt:
    until = settings.get("until") or []
    stops = [until] if isinstance(until, str) else list(until)
    return GreedyPrompt(text, int(settings.get("max_gen_toks", _ANSWER_TOKENS)), stops)
