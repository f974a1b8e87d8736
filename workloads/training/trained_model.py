"""Trained models: weights, tokenizer, settings; checkpoint or pretrained folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from workloads.checkpoint import checkpoint
from workloads.checkpoint.huggingface import folder as huggingface
from workloads.checkpoint.state_split import merge_state
from workloads.data import tokenizer as tokenizers
from workloads.data.corpus import Corpus
from workloads.data.file_hashes import require_unchanged
from workloads.data.tokenizer import TextTokenizer
from workloads.layers.modules.init import initialise
from workloads.training.rank_job import section_config

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model to evaluate or to export."""

    config: Any
    """Config of its architecture."""
    weights: Mapping[str, Tensor]
    """Parameters by name, and buffers where a checkpoint holds them."""
    tokenizer: TextTokenizer | None
    """Of the text it was trained on; None where the data have words of their own."""
    vocab_size: int
    seq_len: int
    """Tokens of a training sequence, the longest that the model has seen."""
    step: int | None
    """Optimizer steps done; None where nobody says."""
    corpus: Corpus | None = None
    """What it was trained on, with the text held out; None where that is not known."""
    document_separator: int | None = None
    """Token within whose documents attention stays (`train.document_mask`); None: it crosses."""

    def build(self, here: torch.device) -> nn.Module:
        """Return the model in evaluation mode."""
        with here:
            model: nn.Module = self.config.build(self.vocab_size)
        initialise(model, 0)  # buffers that a pretrained folder does not hold
        load_parameters(model, self.weights)
        if self.document_separator is not None:
            cast(Any, model).document_separator = self.document_separator
        return model.eval()


def load_parameters(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write saved values into a model; buffers that were not saved stay as they are.

    Raises:
        ValueError: If a parameter was not saved, or was saved in another shape.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            saved = weights.get(name)
            if saved is None or saved.shape != parameter.shape:
                shape = "nothing" if saved is None else tuple(saved.shape)
                raise ValueError(f"{name}: expected {tuple(parameter.shape)}, found {shape}")
            parameter.copy_(saved)
        for name, buffer in model.named_buffers():
            if name in weights:
                buffer.copy_(weights[name])


def load_trial(
    checkpoints: Path,
    *,
    data: Mapping[str, Any],
    data_sha256: Mapping[str, str],
    model: Mapping[str, Any],
    train: Mapping[str, Any],
    cache: Path,
    name: str = checkpoint.FINAL,
) -> TrainedModel:
    """Return what a trial has learned.

    Args:
        checkpoints: The trial's folder of checkpoints.
        data: Section of its spec.
        data_sha256: Hashes of its files.
        model: Section of its spec.
        train: Section of its spec.
        cache: Where data sources keep what they prepared.
        name: Of the checkpoint.

    Raises:
        ValueError: If the checkpoint is not there, it is damaged, or the data have changed.
    """
    path = checkpoints / name
    if not path.is_dir():
        fix = "; the trial has to finish first" if name == checkpoint.FINAL else ""
        raise ValueError(f"{path}: not there{fix}")
    try:
        checkpoint.verify(path)
    except checkpoint.DamagedError as error:
        raise ValueError(str(error)) from error
    saved = merge_state(checkpoint.load(path), checkpoint.sharded_tensors(path), {}, ())
    source = section_config("workloads.data.sources", "source", data)
    require_unchanged(source.files(), data_sha256, cache)
    corpus = source.prepare(cache)
    tokenizer = text_tokenizer(source, corpus)
    separator = None
    if train.get("document_mask"):
        assert tokenizer is not None, "nothing was trained with a mask and without a tokenizer"
        separator = tokenizer.separator
    return TrainedModel(
        config=section_config("workloads.architectures", "architecture", model),
        weights=saved["weights"],
        tokenizer=tokenizer,
        vocab_size=corpus.vocab_size,
        seq_len=int(train["seq_len"]),
        step=int(saved["step"]),
        corpus=corpus,
        document_separator=separator,
    )


def text_tokenizer(source: Any, corpus: Corpus) -> TextTokenizer | None:
    """Return the tokenizer of a prepared source; None where the data have words of their own."""
    file = getattr(corpus, "tokenizer_file", None)
    if file is None:
        return None
    return tokenizers.load(file, vocab_size=source.vocab_size, separator=source.separator)


def load_pretrained(path: Path) -> TrainedModel:
    """Return the model of a folder in Hugging Face's or Meta's format, with its tokenizer.json.

    Raises:
        ValueError: If the folder holds no model, or one that no architecture here computes.
    """
    pretrained = huggingface.read(path)
    tokenizer = None
    if (path / TOKENIZER).is_file():
        tokenizer = tokenizers.load(path / TOKENIZER, vocab_size=pretrained.vocab_size)
    return TrainedModel(
        config=pretrained.config,
        weights=pretrained.weights(),
        tokenizer=tokenizer,
        vocab_size=pretrained.vocab_size,
        seq_len=pretrained.seq_len,
        step=None,
    )


def export(trained: TrainedModel, path: Path, *, trial_id: str | None = None) -> None:
    """Write a model as transformers reads it.

    Raises:
        ValueError: If transformers has no model that computes the same, or the folder holds the
            model of another trial than `trial_id`.
    """
    huggingface.write(
        path,
        trained.config,
        trained.weights,
        seq_len=trained.seq_len,
        tokenizer=trained.tokenizer,
        trial_id=trial_id,
    )
