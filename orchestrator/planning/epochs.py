"""Epochs of texts: passes of training over the same tokens, if planning knows."""

from collections.abc import Iterable
from typing import Any

from orchestrator.records import units
from orchestrator.records.trial_spec import TrialSpec

MOST_EPOCHS = 4.0
"""Epochs above which a remark is made (`SOURCE`)."""
SOURCE = "Muennighoff et al. 2023, arXiv 2305.16264"


def notes(source: Any, specs: Iterable[TrialSpec]) -> list[str]:
    """Return a sentence if a trial reads its text more often than that is worth.

    Args:
        source: Config of the trials' data; without `text_tokens` it is no text.
        specs: Of the trials to train, priced.
    """
    tokens = source.text_tokens() if hasattr(source, "text_tokens") else None
    if not tokens:
        return []
    times = [spec.accounting["training_tokens"] / tokens for spec in specs]
    if not times or max(times) <= MOST_EPOCHS:
        return []
    ends = dict.fromkeys(f"{n:,.0f}" if n >= 10 else f"{n:.2g}" for n in (min(times), max(times)))
    about = "about " if source.tokens_per_epoch() is None else ""
    there = units.count(float(f"{tokens:.2g}") if about else tokens)
    return [
        f"text: {about}{' to '.join(ends)} epochs of {about}{there} tokens: repeated "
        f"text is worth almost as much as new up to about {MOST_EPOCHS:g} epochs ({SOURCE}); give "
        "more text or train on fewer tokens"
    ]
