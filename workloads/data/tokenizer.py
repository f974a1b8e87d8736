"""Byte-pair tokenizers, trained on the corpus or loaded from a file.

Needs the `tokenizers` package.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.data.readers.problems import DataError
from workloads.field_error import FieldError

SEPARATOR_TEXT = "<|sep|>"
"""Document separator of a tokenizer trained here."""
MIN_VOCAB_SIZE = 257
"""Every byte and the separator."""
_KNOWN_SEPARATORS = (SEPARATOR_TEXT, "<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", "[SEP]")


@dataclass(frozen=True, kw_only=True)
class TextTokenizer:
    """Text to token ids and back. Text that spells a special token is ordinary text."""

    model: Any
    """A tokenizers.Tokenizer."""
    separator: int
    """Token that begins every document."""
    separator_text: str

    @property
    def size(self) -> int:
        """Smallest vocab_size that holds every id."""
        return int(max(self.model.get_vocab(with_added_tokens=True).values())) + 1

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without any special token."""
        return [e.ids for e in self.model.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, tokens: Iterable[int] | NDArray[np.integer]) -> str:
        """Return the text of some ids; separators show as their text."""
        return str(self.model.decode([int(token) for token in tokens], skip_special_tokens=False))

    def save(self, path: Path) -> None:
        """Write a tokenizer.json."""
        self.model.save(str(path))


def check_vocabulary(vocab_size: int, *, tokenizer: str | None, separator: str | None) -> None:
    """Refuse fields of a text source that no tokenizer can have.

    Raises:
        FieldError: Naming the rule.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        rule = f"must be at least {MIN_VOCAB_SIZE} (every byte and a separator)"
        raise FieldError("vocab_size", rule, vocab_size)
    if separator is not None and tokenizer is None:
        fix = "set tokenizer or drop separator"
        rule = "belongs to a loaded tokenizer"
        raise FieldError("separator", rule, fix=fix, others=("tokenizer",))


def train(texts: Iterable[str], *, vocab_size: int) -> TextTokenizer:
    """Return a byte-level BPE tokenizer of at most vocab_size tokens; token 0 separates.

    Merging stops early when the texts have no more repeated pairs; the model keeps vocab_size all
    the same.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer)
    return _with_separator(model, SEPARATOR_TEXT)


def load(path: Path, *, vocab_size: int, separator: str | None = None) -> TextTokenizer:
    """Return the tokenizer of a tokenizer.json.

    Args:
        path: File that `tokenizers` or `transformers` wrote.
        vocab_size: What the model will know.
        separator: Text of the token that separates documents; None looks for a usual one.

    Raises:
        DataError: If the file is no tokenizer, is too large for vocab_size or has no such
            separator.
    """
    from tokenizers import Tokenizer

    try:
        model = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception for every kind of bad file
        raise DataError(
            [
                f"{path}: not a tokenizer ({error}); expected a tokenizer.json of the tokenizers "
                "package"
            ]
        ) from error
    wanted = [separator] if separator is not None else list(_KNOWN_SEPARATORS)
    found = [text for text in wanted if model.token_to_id(text) is not None]
    if not found:
        raise DataError(
            [
                f"{path}: has no token {' or '.join(wanted)} to separate documents; "
                "set data.separator to one of its special tokens"
            ]
        )
    tokenizer = _with_separator(model, found[0])
    if tokenizer.size > vocab_size:
        raise DataError(
            [
                f"{path}: has {tokenizer.size} tokens, vocab_size is {vocab_size}; raise "
                "data.vocab_size"
            ]
        )
    return tokenizer


def _with_separator(model: Any, text: str) -> TextTokenizer:
    model.encode_special_tokens = True
    model.no_truncation()
    model.no_padding()
    return TextTokenizer(model=model, separator=model.token_to_id(text), separator_text=text)


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest type of a token file."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32
