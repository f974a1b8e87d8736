"""Request for a folder of tokens: the arguments of `memscale data prepare`."""

from dataclasses import dataclass
from pathlib import Path

TRAINED = "bpe:"
"""Before the size of a tokenizer that is to be trained."""


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """What is asked for."""

    sources: tuple[str, ...]
    """Files, folders, patterns, `hf:OWNER/NAME` (`hugging_face.py`)."""
    out: Path
    tokenizer: str | None = None
    """A file, or `bpe:SIZE` to train one; None where the sources are tokens."""
    separator: str | None = None
    """Text of the tokenizer's token between documents; None looks for a usual one."""
    vocab_size: int | None = None
    """Of sources that are tokens."""
    text_field: str = "text"
    valid: tuple[str, ...] = ()
    """Held-out sources; without them `valid_share` of the documents is held out, by hash."""
    valid_share: float = 0.01
    tokenizer_bytes: int = 30_000_000
    """Text that a tokenizer is trained on, at most: the beginnings of all inputs, equal shares."""
    against: tuple[str, ...] = ()
    """Evaluation files to look for in the text."""
    workers: int | None = None
    """Processes; None is one per core."""
