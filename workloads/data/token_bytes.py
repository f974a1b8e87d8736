"""Bytes of text that the tokens of some windows stand for."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.data.token_shards import TokenShards

_KEEP_TEXT = (None, "NFC")
"""Normalisers that leave the bytes of text as they are, but for rare forms of a character."""


def token_bytes(tokenizer_file: Path | None) -> NDArray[np.int64] | None:
    """Return the UTF-8 bytes of text of each token id; None if the tokens do not tell.

    Those of a byte-level BPE do (tokenizer.json): each character of a token stands for one byte.
    Special tokens have none.
    """
    if tokenizer_file is None or tokenizer_file.suffix != ".json":
        return None
    stored = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    decoder, normalizer = (stored.get(name) or {} for name in ("decoder", "normalizer"))
    byte_level = stored["model"].get("type") == "BPE" and decoder.get("type") == "ByteLevel"
    if not byte_level or normalizer.get("type") not in _KEEP_TEXT:
        return None
    sizes = {number: len(token) for token, number in stored["model"]["vocab"].items()}
    for added in stored.get("added_tokens", ()):
        sizes[added["id"]] = 0 if added["special"] else len(added["content"].encode())
    table = np.zeros(max(sizes) + 1, dtype=np.int64)
    table[list(sizes)] = list(sizes.values())
    return table


def target_bytes(windows: NDArray[np.int64], shards: TokenShards, sizes: NDArray[np.int64]) -> int:
    """Return the bytes of the targets of windows (n, seq_len + 1) of a stream of documents.

    Args:
        windows: Whole windows of the stream.
        shards: The stream. A separator begins it, as it does each document, and has no bytes.
        sizes: Bytes of each token id (`token_bytes`).
    """
    targets = windows[:, 1:]
    separator = shards.windows(np.array([0]), 1)[0, 0]
    return int(sizes[targets][targets != separator].sum())
