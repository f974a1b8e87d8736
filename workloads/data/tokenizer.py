"""Tokenizers: BPE trained on the corpus, or loaded from files of several kinds.

Needs the `tokenizers` package; SentencePiece models need `sentencepiece` too.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from workloads.data.readers.problems import DataError
from workloads.data.tiktoken_file import is_tiktoken, tiktoken_tokenizer
from workloads.field_error import FieldError

SEPARATOR_TEXT = "<|sep|>"
"""Document separator of a tokenizer trained here."""
MIN_VOCAB_SIZE = 257
"""Every byte and the separator."""
_KNOWN_SEPARATORS = (SEPARATOR_TEXT, "<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", "[SEP]")


_UNKNOWN = "\ufffe"
"""A text that no vocabulary has: of no character."""


class TokenizerModel(Protocol):
    """What is asked of a tokenizer library."""

    file_name: str
    """Under which `save` is expected to write."""

    def size(self) -> int:
        """Return one more than the largest id."""

    def token_to_id(self, text: str) -> int | None:
        """Return the id of a token, None if there is none."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without any special token."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of some ids."""

    def lost_share(self, texts: list[str]) -> float:
        """Return the share of texts that no token stands for: unknown, or dropped.

        White space does not count.
        """

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""


class HuggingFaceModel:
    """A `tokenizers.Tokenizer`. Text that spells a special token is ordinary text."""

    file_name = "tokenizer.json"

    def __init__(self, model: Any) -> None:
        """Turn off what changes the ids of a text."""
        model.encode_special_tokens = True
        model.no_truncation()
        model.no_padding()
        self._model = model
        self.token_to_id = model.token_to_id

    def size(self) -> int:
        """Return one more than the largest id."""
        return int(max(self._model.get_vocab(with_added_tokens=True).values())) + 1

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [e.ids for e in self._model.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        """Return the text of some ids; special tokens show as their text."""
        return str(self._model.decode(ids, skip_special_tokens=False))

    def lost_share(self, texts: list[str]) -> float:
        """Return the share of characters in no token, or in an unknown one; see `TokenizerModel`.

        What the normalizer drops is not counted, as accents.
        """
        settings = json.loads(self._model.to_str())
        model = settings["model"]
        if model["type"] == "BPE" and model["unk_token"] is None:
            # What it drops shifts the offsets behind; what is unknown does not.
            model["unk_token"] = _UNKNOWN
            model["vocab"][_UNKNOWN] = self.size()
        unknown = model.get("unk_id")  # of Unigram; others name its text
        if model.get("unk_token") is not None:
            unknown = model["vocab"].get(model["unk_token"])
        if self._model.normalizer is not None:
            texts = [self._model.normalizer.normalize_str(text) for text in texts]
        # Where a normalizer joins characters, or a post-processor trims spaces, offsets have gaps.
        settings |= {"normalizer": None, "post_processor": None}
        bare = HuggingFaceModel(type(self._model).from_str(json.dumps(settings)))
        lost = 0
        for text in texts:  # one by one: an encoding is large beside its text
            encoding, end = bare._model.encode(text, add_special_tokens=False), 0
            for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
                if start > end:
                    lost += _n_visible(text[end:start])
                if token == unknown:
                    lost += _n_visible(text[max(start, end) : stop])
                end = max(end, stop)
            lost += _n_visible(text[end:])
        return lost / max(1, sum(map(_n_visible, texts)))

    def save(self, path: Path) -> None:
        """Write a tokenizer.json."""
        self._model.save(str(path))


class SentencePieceModel:
    """A SentencePiece model. Its control tokens never come out of text."""

    file_name = "tokenizer.model"

    def __init__(self, path: Path) -> None:
        """Load the file.

        Raises:
            DataError: If the package is missing or the file is no such model.
        """
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise DataError(
                [f"{path}: needs sentencepiece to be read; pip install 'memscale[data]'"]
            ) from error
        self._bytes = path.read_bytes()
        self._model = SentencePieceProcessor(model_proto=self._bytes)

    def size(self) -> int:
        """Return the number of pieces."""
        return int(self._model.vocab_size())

    def token_to_id(self, text: str) -> int | None:
        """Return the id of a piece; the unknown piece's own text is no piece."""
        number = int(self._model.piece_to_id(text))
        return None if number == self._model.unk_id() else number

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text."""
        # Encoder processes are the parallelism.
        ids: list[list[int]] = self._model.encode(texts, num_threads=1)
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of some ids; control tokens show as nothing."""
        return str(self._model.decode(ids))

    def lost_share(self, texts: list[str]) -> float:
        """Return the share of characters in unknown tokens; see `TokenizerModel`.

        One unknown token stands for a whole run of unknown characters.
        """
        unknown, lost, there = self._model.unk_id(), 0, 0
        for text in texts:  # one by one: an encoding is large beside its text
            pieces = self._model.encode(text, out_type=str)
            for token, piece in zip(self._model.encode(text), pieces, strict=True):
                n = _n_visible(piece.replace(_SENTENCEPIECE_SPACE, " "))
                there += n
                lost += n if token == unknown else 0
        return lost / max(1, there)

    def save(self, path: Path) -> None:
        """Write the model as it was read."""
        path.write_bytes(self._bytes)


_SENTENCEPIECE_SPACE = "▁"
"""What stands for a space in its pieces."""


def _n_visible(text: str) -> int:
    """Return the number of characters that are no white space."""
    return len("".join(text.split()))


def saved_tokenizer(folder: Path) -> Path | None:
    """Return the tokenizer file of a folder of prepared data, None if there is none."""
    names = (HuggingFaceModel.file_name, SentencePieceModel.file_name)
    return next((folder / name for name in names if (folder / name).is_file()), None)


@dataclass(frozen=True, kw_only=True)
class TextTokenizer:
    """Text to token ids and back."""

    model: TokenizerModel
    separator: int
    """Token that begins every document."""
    separator_text: str

    @property
    def size(self) -> int:
        """Smallest vocab_size that holds every id."""
        return self.model.size()

    @property
    def file_name(self) -> str:
        """Name of the file in a folder of prepared data."""
        return self.model.file_name

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without any special token."""
        return self.model.encode(texts)

    def decode(self, tokens: Iterable[int] | NDArray[np.integer]) -> str:
        """Return the text of some ids."""
        return self.model.decode([int(token) for token in tokens])

    def lost_share(self, texts: list[str]) -> float:
        """Return the share of texts that no token stands for; see `TokenizerModel`."""
        return self.model.lost_share(texts)

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""
        self.model.save(path)

    def save_in(self, folder: Path) -> None:
        """Write the folder's tokenizer file in one step."""
        scratch = folder / "tokenizer.tmp"
        self.save(scratch)
        scratch.replace(folder / self.file_name)


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
    return TextTokenizer(model=HuggingFaceModel(model), separator=0, separator_text=SEPARATOR_TEXT)


def load(path: Path, *, vocab_size: int | None, separator: str | None = None) -> TextTokenizer:
    """Return the tokenizer of a file: tokenizer.json, SentencePiece or tiktoken.

    Args:
        path: The file; SentencePiece models end in .model.
        vocab_size: What the model will know; None takes any size.
        separator: Text of the token that separates documents; None looks for a usual one.

    Raises:
        DataError: If the file is no tokenizer, is too large for vocab_size or has no such
            separator.
    """
    model = _open(path)
    wanted = [separator] if separator is not None else list(_KNOWN_SEPARATORS)
    ids = {text: model.token_to_id(text) for text in wanted}
    found = {text: number for text, number in ids.items() if number is not None}
    if not found:
        raise DataError(
            [
                f"{path}: has no token {' or '.join(wanted)} to separate documents; "
                "set data.separator to one of its special tokens"
            ]
        )
    text, number = next(iter(found.items()))
    tokenizer = TextTokenizer(model=model, separator=number, separator_text=text)
    if vocab_size is not None and tokenizer.size > vocab_size:
        raise DataError(
            [
                f"{path}: has {tokenizer.size} tokens, vocab_size is {vocab_size}; raise "
                "data.vocab_size"
            ]
        )
    return tokenizer


def _open(path: Path) -> TokenizerModel:
    from tokenizers import Tokenizer

    try:
        if is_tiktoken(path):
            return HuggingFaceModel(tiktoken_tokenizer(path))
        if path.suffix == ".model":
            return SentencePieceModel(path)
        return HuggingFaceModel(Tokenizer.from_file(str(path)))
    except DataError:
        raise
    except Exception as error:  # the packages raise bare Exception for every kind of bad file
        raise DataError(
            [
                f"{path}: not a tokenizer ({error}); expected a tokenizer.json of the tokenizers "
                "package, a .model of SentencePiece or a .tiktoken file"
            ]
        ) from error


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest type of a token file."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32
