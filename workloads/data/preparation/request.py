"""Request for a folder of tokens (`memscale data prepare`), and its record."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.data.readers.problems import DataError

REQUEST = "request.json"
"""In the folder: what identifies its sources and settings."""
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


def begun_request(out: Path) -> dict[str, Any] | None:
    """Return what an earlier call noted that it prepares the folder from; None if none did.

    Raises:
        DataError: If the file of that name is not ours, or damaged.
    """
    record = out / REQUEST
    if not record.is_file():
        return None
    try:
        begun = json.loads(record.read_bytes())
    except ValueError as error:
        raise DataError([f"{record}: is not JSON ({error}); delete it, or change --out"]) from error
    if not isinstance(begun, dict) or not {"sources", "tokenizer"} <= set(begun):
        raise DataError([f"{record}: is of another program; change --out"])
    return begun
