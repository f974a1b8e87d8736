"""Tokenizer of a folder of prepared tokens: loaded, or trained on its text."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workloads.data.cache import file_sha256
from workloads.data.file_hashes import combined
from workloads.data.preparation.encoder import unit_hash
from workloads.data.preparation.hugging_face import HubFile
from workloads.data.preparation.inputs import CorpusInput
from workloads.data.preparation.lost_text import check_lost_text
from workloads.data.preparation.request import TRAINED, PrepareRequest
from workloads.data.readers.problems import DataError, Problems, require_files
from workloads.data.remarks import unused_tokens
from workloads.data.tiktoken_file import tokenizer_files
from workloads.data.tokenizer import TextTokenizer, load, saved_tokenizer, train

_SAMPLED_HUB_FILES = 32
"""Files of the hub that a tokenizer is trained on, at most: each costs a request or several."""


def tokenizer_identity(tokenizer: str | None) -> str | None:
    """Return what identifies a tokenizer that is asked for: its size, or the hash of its files."""
    if tokenizer is None or tokenizer.startswith(TRAINED):
        return tokenizer
    path = Path(tokenizer).expanduser()
    formats = "tokenizer.json, SentencePiece's .model or .tiktoken"
    require_files({"--tokenizer": path}, formats, section="")
    return combined([file_sha256(file) for file in tokenizer_files(path)])


def prepare_tokenizer(
    request: PrepareRequest, sources: Sequence[CorpusInput], log: Callable[[str], None]
) -> TextTokenizer:
    """Return the tokenizer that is asked for, saved in the folder."""
    assert request.tokenizer is not None, "checked before"
    trained = request.out / "tokenizer.json"
    if not request.tokenizer.startswith(TRAINED):
        given = Path(request.tokenizer).expanduser()
        tokenizer = load(given, vocab_size=None, separator=request.separator)
        if saved_tokenizer(request.out) is None:
            files = [
                partial(source.read, Problems(), text_field=request.text_field)
                for source in sources
            ]
            check_lost_text(given, tokenizer, files, log)
    elif trained.exists():
        return load(trained, vocab_size=None)
    else:
        tokenizer = _train(request, sources, log)
    tokenizer.save_in(request.out)
    return tokenizer


def _train(
    request: PrepareRequest, sources: Sequence[CorpusInput], log: Callable[[str], None]
) -> TextTokenizer:
    assert request.tokenizer is not None, "checked before"
    size = request.tokenizer.removeprefix(TRAINED)
    if not size.isdecimal() or not 257 <= int(size) <= 1 << 20:
        raise DataError([f"--tokenizer: {request.tokenizer} must be bpe:SIZE of 257 to 1048576"])
    log(f"training a tokenizer on up to {request.tokenizer_bytes / 1e6:,.0f} MB of text")
    tokenizer = train(_sample(sources, request), vocab_size=int(size))
    fix = f"ask for {TRAINED}{tokenizer.size}"
    for remark in unused_tokens(tokenizer.size, vocab_size=int(size), fix=fix):
        log(remark)
    return tokenizer


def _sample(sources: Sequence[CorpusInput], request: PrepareRequest) -> Iterator[str]:
    """Yield the first training documents of every source."""
    trained = [source for source in sources if source.held_out < 1]
    remote = [source for source in trained if isinstance(source.path, HubFile)]
    step = max(1, -(-len(remote) // _SAMPLED_HUB_FILES))
    left_out = {id(source) for number, source in enumerate(remote) if number % step}
    trained = [source for source in trained if id(source) not in left_out]
    for source in trained:
        problems, left = Problems(), request.tokenizer_bytes // len(trained)
        for text in source.read(problems, text_field=request.text_field):
            encoded = text.encode()
            if unit_hash(encoded, "valid") >= source.held_out:
                yield text
            left -= len(encoded)
            if left < 0:
                break
        problems.raise_if_any()


def tokenizer_record(out: Path, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return the manifest's entry of the tokenizer that is saved in a folder."""
    return {
        "file": tokenizer.file_name,
        "sha256": file_sha256(out / tokenizer.file_name),
        "separator": tokenizer.separator,
        "separator_text": tokenizer.separator_text,
    }
