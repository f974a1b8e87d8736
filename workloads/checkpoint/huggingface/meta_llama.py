"""Llama checkpoints in Meta's own format: params.json and consolidated.00.pth.

Rotary positions pair neighbouring columns there, `(0, 1), (2, 3), …`; here and at Hugging Face the
two halves of a head, `(0, d/2), (1, d/2 + 1), …`. Rows of query and key are put into that order.
The scores are the same, because both sides of a product are reordered alike. lingua writes the same
names and pairs.
"""

import json
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from workloads.architectures.dense import Config
from workloads.checkpoint.safe_load import only_plain_values

CONFIG, WEIGHTS = "params.json", "consolidated.00.pth"
_EMBEDDING = "tok_embeddings.weight"


def read_config(folder: Path) -> tuple[dict[str, Any], int]:
    """Return the fields of `dense`'s Config, and the tokens that the model knows.

    Raises:
        ValueError: If the file is no such configuration, or the weights are in several parts.
    """
    parts = len(list(folder.glob("consolidated.[0-9][0-9].pth")))
    if parts > 1:
        raise ValueError(
            f"{folder}: holds Meta's weights in {parts} parts, and memscale reads {WEIGHTS} alone; "
            "download the model in Hugging Face's format"
        )
    path = folder / CONFIG
    try:
        params = json.loads(path.read_text(encoding="utf-8"))
        if params.get("use_scaled_rope"):
            raise ValueError("rotary positions are scaled, which memscale does not do")
        fields = {
            "d_model": params["dim"],
            "n_layers": params["n_layers"],
            "n_heads": params["n_heads"],
            "n_kv_heads": params.get("n_kv_heads"),
            "norm_eps": params["norm_eps"],
            "rope_base": float(params.get("rope_theta", 10_000.0)),
            "d_ff": _d_ff(params),
        }
        vocab_size = int(params["vocab_size"])
    except KeyError as error:
        raise ValueError(f"{path}: has no {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if vocab_size < 1:
        # Llama 1 and 2 leave it to the tokenizer and write -1.
        vocab_size = _embedding_rows(folder / WEIGHTS)
    return fields, vocab_size


def read_weights(folder: Path, config: Config) -> dict[str, Tensor]:
    """Return all parameters under our names.

    Raises:
        ValueError: If one is missing, or if the file is cut off or holds anything but tensors.
    """
    path = folder / WEIGHTS
    theirs = _their_weights(path)
    shape = config.attention
    ours = {}
    try:
        ours["embedding.weight"] = theirs[_EMBEDDING]
        ours["norm.gain"] = theirs["norm.weight"]
        ours["head.weight"] = theirs["output.weight"]
        for layer in range(config.n_layers):
            their, our = f"layers.{layer}", f"layers.{layer}"
            query, key, value = (theirs[f"{their}.attention.w{part}.weight"] for part in "qkv")
            ours[f"{our}.mixer.query_key_value.weight"] = torch.cat(
                [halves(query, shape.n_heads), halves(key, shape.n_kv_heads), value]
            )
            ours[f"{our}.mixer.output.weight"] = theirs[f"{their}.attention.wo.weight"]
            ours[f"{our}.mixer_norm.gain"] = theirs[f"{their}.attention_norm.weight"]
            ours[f"{our}.feed_forward_norm.gain"] = theirs[f"{their}.ffn_norm.weight"]
            for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                ours[f"{our}.feed_forward.{part}.weight"] = theirs[
                    f"{their}.feed_forward.{name}.weight"
                ]
    except KeyError as error:
        raise ValueError(f"{path}: has no {error}; take a complete download") from error
    return ours


def _their_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file under Meta's names; their values are read when used."""
    try:
        with only_plain_values(path):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        raise ValueError(f"{path}: cannot be read ({error}); take a complete download") from error
    theirs: dict[str, Tensor] = content.get("model", content)
    return theirs


def _embedding_rows(path: Path) -> int:
    """Return how many tokens the embedding table knows."""
    theirs = _their_weights(path)
    if _EMBEDDING not in theirs:
        raise ValueError(f"{path}: has no {_EMBEDDING!r}; take a complete download")
    return len(theirs[_EMBEDDING])


def halves(rows: Tensor, n_heads: int) -> Tensor:
    """Return the rows of a projection with each head's pairs as halves instead of neighbours."""
    pattern = "(heads pairs two) columns -> (heads two pairs) columns"
    return rearrange(rows, pattern, heads=n_heads, two=2)


def _d_ff(params: dict[str, Any]) -> int:
    """Return the feed-forward width, which Meta's files imply: a multiple above 8/3 of `dim`."""
    width = int(2 * (4 * params["dim"]) / 3)
    if params.get("ffn_dim_multiplier") is not None:
        width = int(params["ffn_dim_multiplier"] * width)
    multiple = int(params["multiple_of"])
    return multiple * -(-width // multiple)
