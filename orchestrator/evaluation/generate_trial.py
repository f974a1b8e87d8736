"""Texts that a trial's model, or a pretrained folder's, continues prompts with."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.evaluation import trained_trial
from orchestrator.records.errors import UsageError, not_installed
from orchestrator.records.trial_dir import TrialDir
from orchestrator.sweep import registry


def generate(
    what: TrialDir | Path, prompts: Sequence[str], **options: Any
) -> Iterator[dict[str, Any]]:
    """Yield `prompt`, `text`, `n_tokens` and `ended` of every prompt.

    Args:
        what: A finished trial, or a folder in Hugging Face's or Meta's format.
        prompts: Texts.
        options: Of `workloads.decoding.generate_text.continuations`.

    Raises:
        UsageError: If there is no model or no tokenizer for text, a prompt is too long, or an
            option means nothing.
    """
    name, precision = str(what), "auto"
    try:
        if isinstance(what, TrialDir):
            name, trained = f"trial {what.trial_id}", trained_trial.load(what)
            precision = str(what.spec().train.get("precision", "auto"))
        else:
            trained = registry.trained_model().load_pretrained(what)
        found = registry.generation().continuations(
            trained, prompts, precision=precision, **options
        )
        for one in found:
            yield dict(vars(one))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    except ModuleNotFoundError as error:
        raise not_installed(error, "torch") from error


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file: one a line, or JSON lines with a field `prompt`.

    Raises:
        UsageError: If it cannot be read, holds no prompt, or a line is no such object.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); name a text file") from error
    if path.suffix != ".jsonl":
        prompts = [line for line in lines if line.strip()]
    else:
        prompts = []
        for number, line in enumerate(lines, start=1):
            try:
                prompts.append(str(json.loads(line)["prompt"]))
            except (ValueError, TypeError, KeyError):
                raise UsageError(
                    f'{path}:{number}: expected {{"prompt": "…"}}, got {line[:60]!r}'
                ) from None
    if not prompts:
        raise UsageError(f"{path}: holds no prompt; write one a line")
    return prompts
