"""`memscale data prepare`: corpora to a folder of token shards.

The folder also holds an index and the manifest. A folder is complete once it has a manifest.
`request.json` says what it is prepared from: the same call goes on where it was killed, another one
is refused. The flock of `.lock` in the folder is held while it is filled.
"""

import errno
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from workloads.data.cache import file_sha256, hold_lock
from workloads.data.preparation import contamination
from workloads.data.preparation.encoder import EncoderSettings
from workloads.data.preparation.folder_tokenizer import (
    prepare_tokenizer,
    tokenizer_identity,
    tokenizer_record,
)
from workloads.data.preparation.inputs import CorpusInput, find_inputs, records_of
from workloads.data.preparation.manifest import MANIFEST, TokenManifest, load_split
from workloads.data.preparation.pretokenised import FORMATS, link_splits, open_tokens
from workloads.data.preparation.request import (
    REQUEST,
    TRAINED,
    PrepareRequest,
    begun_request,
)
from workloads.data.preparation.tokenise import SPLITS, DocumentInput, Progress, tokenise
from workloads.data.readers.documents import expand, is_plain
from workloads.data.readers.lines import file_format
from workloads.data.readers.problems import (
    DataError,
    Problems,
    refuse_trained_on,
    require_files,
)
from workloads.data.remarks import few_held_out
from workloads.data.tokenizer import load, token_dtype

EXPECTED = "JSON lines, plain text, Parquet, tokens (.bin, .npy), or hf:OWNER/NAME"
_WRITTEN = re.compile(
    r"(request|progress|manifest)\.json(\.tmp)?|tokenizer\.(json|model|tmp)|contamination\.jsonl"
    r"|(train|valid)(-\d{5}\.bin|\.documents\.bin|\.json)"
)
"""Names of the files in a prepared folder."""
_LOCK = ".lock"
"""Stays in the folder, so that everybody locks the same file."""
_NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Of file systems without it."""


def prepare(request: PrepareRequest, log: Callable[[str], None]) -> TokenManifest:
    """Fill the folder `request.out`, or go on where an earlier call was killed.

    Waits for another process that prepares the same folder.

    Raises:
        DataError: If something cannot be used; one line per mistake.
    """
    hub, sources = find_inputs(request, log)
    against = expand(request.against)
    are_tokens = _check(request, sources, against)
    log(f"hashing {len(sources)} inputs")
    unread = [source.version() for source in sources]
    records = records_of(sources)
    if request.valid:
        _check_held_out(sources, records)
    asked = {
        "sources": records,
        "tokenizer": tokenizer_identity(request.tokenizer),
        "against": [file_sha256(path) for path in against],
        **{name: getattr(request, name) for name in ("separator", "vocab_size", "text_field")},
        **({"hub_commits": hub} if hub else {}),
    }
    inputs = [source.path for source in sources if isinstance(source.path, Path)] + [*against]
    if request.tokenizer is not None:
        inputs.append(Path(request.tokenizer).expanduser())
    # Looked at twice: a complete folder may be read-only, and one that is filled changes meanwhile.
    finished = _finished(request.out, asked, inputs)
    if finished is None:
        with _locked(request.out, log):
            finished = _finished(request.out, asked, inputs)
            if finished is None:
                _begin(request.out, asked)
                return _fill(request, sources, records, unread, against, are_tokens, log)
    log(f"{request.out} is complete already")
    return finished


@contextmanager
def _locked(out: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Make the folder, and hold its lock where the file system has locks.

    Raises:
        DataError: If the folder may not be written to.
    """
    with ExitStack() as held:
        try:
            out.mkdir(parents=True, exist_ok=True)
            waiting = f"waiting: another process prepares {out}"
            held.enter_context(hold_lock(out / _LOCK, lambda: log(waiting)))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EROFS):
                fix = "change --out to a folder that you may write to"
                raise DataError([f"{out}: cannot be written ({error.strerror}); {fix}"]) from error
            if error.errno not in _NO_FLOCK:
                raise
            log(f"{out}: has no lock ({error.strerror}): prepare it in one process at a time")
        yield


def _fill(
    request: PrepareRequest,
    sources: Sequence[CorpusInput],
    records: Sequence[Mapping[str, Any]],
    unread: Sequence[tuple[int, int] | None],
    against: Sequence[Path],
    are_tokens: bool,
    log: Callable[[str], None],
) -> TokenManifest:
    """Write the tokens and the manifest, or what is left of them.

    `unread` are the versions of the sources before they were hashed.
    """
    if are_tokens:
        manifest = _link(request, sources, records)
    else:
        manifest = _tokenise(request, sources, records, against, log)
    for source, before in zip(sources, unread, strict=True):
        if source.version() != before:
            raise DataError([f"{source.name}: changed while it was read; delete {request.out}"])
    for name in SPLITS:
        load_split(request.out, manifest, name)  # compares counts and sizes
    manifest.save(request.out)
    fix = "raise --valid-share or give --valid"
    for remark in few_held_out(manifest.splits["valid"]["tokens"], fix=fix):
        log(remark)
    (request.out / "progress.json").unlink(missing_ok=True)
    return manifest


def _check(
    request: PrepareRequest, sources: Sequence[CorpusInput], against: tuple[Path, ...]
) -> bool:
    """Refuse what cannot go together; return whether the sources are tokens.

    Raises:
        DataError: One line per mistake.
    """
    files = tuple(source.path for source in sources if isinstance(source.path, Path))
    require_files({"SOURCE": files}, EXPECTED, section="")
    require_files({"--against": against}, "JSON lines or text, one item per line", section="")
    are_tokens = {source.is_tokens for source in sources}
    wrong = [
        f"SOURCE: {path} is compressed, and tokens are read in place; unpack it first"
        for path in files
        if file_format(path) in FORMATS and not is_plain(path)
    ]
    if not 0 < request.valid_share < 1:
        wrong.append(f"--valid-share: must lie between 0 and 1, got {request.valid_share}")
    if len(are_tokens) > 1:
        wrong.append("SOURCE: text and tokens are mixed; prepare them into folders of their own")
    elif are_tokens == {True}:
        wrong += _wrong_for_tokens(request)
    elif request.tokenizer is None:
        wrong.append("--tokenizer: missing; give a file, or bpe:16384 to train one of that size")
    elif request.vocab_size is not None:
        wrong.append("--vocab-size: is for tokens; text takes that of the tokenizer, leave it out")
    if wrong:
        raise DataError(wrong)
    return are_tokens == {True}


def _check_held_out(sources: Sequence[CorpusInput], records: Sequence[Mapping[str, Any]]) -> None:
    """Refuse files that are trained on and held out.

    Raises:
        DataError: One line per file.
    """
    train: dict[str, str] = {}
    valid: dict[str, str] = {}
    for source, record in zip(sources, records, strict=True):
        if record["bytes"]:
            named = valid if source.held_out else train
            # Small files of the hub have no hash.
            named[source.name] = record["sha256"] or source.name
    refuse_trained_on(train, valid, fields=("SOURCE", "--valid"))


def _wrong_for_tokens(request: PrepareRequest) -> list[str]:
    wrong = []
    if request.vocab_size is None and request.tokenizer is None:
        wrong.append("--vocab-size: missing; tokens do not say how large their vocabulary is")
    for option in ("valid", "against"):
        if getattr(request, option):
            wrong.append(f"--{option}: needs text, and the sources are tokens; leave it out")
    if request.tokenizer is not None and request.tokenizer.startswith(TRAINED):
        wrong.append(f"--tokenizer: {request.tokenizer} needs text; give the file of the tokenizer")
    return wrong


def _finished(out: Path, asked: Mapping[str, Any], inputs: Sequence[Path]) -> TokenManifest | None:
    """Return the manifest of a folder that is complete already, None if it may be filled.

    Raises:
        DataError: If the folder holds something else.
    """
    begun, complete = begun_request(out), (out / MANIFEST).exists()
    if begun is not None:
        if begun == _as_json(asked):
            return TokenManifest.load(out / MANIFEST) if complete else None
        if complete or (out / "progress.json").exists():
            raise DataError(
                [f"{out}: holds tokens of other sources or settings; delete it or change --out"]
            )
        _check_attempt(out, inputs)
    elif out.exists() and (not out.is_dir() or _content(out)):
        raise DataError([f"{out}: exists and holds something else; change --out"])
    return None


def _begin(out: Path, asked: Mapping[str, Any]) -> None:
    """Claim the folder for this request, after removing what an attempt at another one left."""
    if begun_request(out) == _as_json(asked):
        return
    for path in _content(out):
        if path.name != REQUEST:  # is replaced: a folder without it would count as somebody else's
            path.unlink()
    scratch = out / f"{REQUEST}.tmp"
    scratch.write_text(json.dumps(asked, indent=1))
    scratch.replace(out / REQUEST)


def _as_json(asked: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(asked))


def _content(out: Path) -> list[Path]:
    """Return what is in the folder, but for what says nothing about it."""
    return sorted(path for path in out.iterdir() if path.name not in (_LOCK, f"{REQUEST}.tmp"))


def _check_attempt(out: Path, inputs: Sequence[Path]) -> None:
    """Check that all is of a call that came to nothing, perhaps for a mistake mended since.

    Raises:
        DataError: If there is anything else in the folder, such as an input of this call.
    """
    read = {path.resolve() for path in inputs}
    others = [
        path.name
        for path in _content(out)
        if not _WRITTEN.fullmatch(path.name)
        or not (path.is_symlink() or (path.is_file() and path.resolve() not in read))
    ]
    if others:
        raise DataError(
            [
                f"{out}: holds an earlier attempt, and {', '.join(others[:5])}, which is not of "
                "it; move that elsewhere, or change --out"
            ]
        )


def _link(
    request: PrepareRequest, sources: Sequence[CorpusInput], records: Sequence[Mapping[str, Any]]
) -> TokenManifest:
    """List the tokens of the sources as they are."""
    tokenizer, vocab_size = None, request.vocab_size
    if request.tokenizer is not None:
        path = Path(request.tokenizer).expanduser()
        loaded = load(path, vocab_size=vocab_size, separator=request.separator)
        vocab_size = vocab_size or loaded.size
        loaded.save_in(request.out)
        tokenizer = tokenizer_record(request.out, loaded)
    assert vocab_size is not None, "checked before"
    paths = [source.path for source in sources if isinstance(source.path, Path)]
    files = [open_tokens(path, vocab_size=vocab_size) for path in paths]
    splits = link_splits(request.out, files, valid_share=request.valid_share)
    return TokenManifest(
        dtype=files[0].dtype.name,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        sources=tuple({**record, "documents": None} for record in records),
        split={"rule": "the end of the last file", "valid_share": request.valid_share},
        splits={name: {**counts, "shards": {}} for name, counts in splits.items()},
    )


def _tokenise(
    request: PrepareRequest,
    sources: Sequence[CorpusInput],
    records: Sequence[Mapping[str, Any]],
    against: Sequence[Path],
    log: Callable[[str], None],
) -> TokenManifest:
    """Tokenise the sources, or what is left of them."""
    problems = Problems()
    items = [contamination.read_items(path, problems) for path in against]
    problems.raise_if_any()
    tokenizer = prepare_tokenizer(request, sources, log)
    inputs = [
        DocumentInput(
            name=source.name,
            read=partial(source.read, text_field=request.text_field),
            held_out=source.held_out,
        )
        for source in sources
    ]
    settings = EncoderSettings(
        tokenizer=request.out / tokenizer.file_name,
        separator=tokenizer.separator_text,
        vocab_size=tokenizer.size,
        evaluation_ngrams=contamination.all_ngrams(items) if items else None,
    )
    done = tokenise(request.out, inputs, settings, log=log, workers=request.workers)
    _require_both_splits(sources, done)
    report = contamination.write_report(request.out, items, done.found_ngrams) if items else ()
    split = {"rule": "blake2b of the text, 'valid'", "valid_share": request.valid_share}
    return TokenManifest(
        dtype=token_dtype(tokenizer.size).__name__,
        vocab_size=tokenizer.size,
        tokenizer=tokenizer_record(request.out, tokenizer),
        sources=tuple(
            {**record, "documents": n} for record, n in zip(records, done.documents, strict=True)
        ),
        split={"rule": "files of their own"} if request.valid else split,
        splits={name: _split_record(request.out, name, done) for name in SPLITS},
        contamination=report,
    )


def _require_both_splits(sources: Sequence[CorpusInput], done: Progress) -> None:
    if not sum(done.documents):
        raise DataError([f"{sources[0].name}: holds no text; give at least two documents"])
    for name, fix in (("train", "lower"), ("valid", "raise")):
        if not done.splits[name].documents:
            raise DataError(
                [
                    f"{sources[0].name}: none of {sum(done.documents):,} documents fell into the "
                    f"split {name}; {fix} --valid-share (valid_share of a sweep file), or give "
                    "--valid (valid_path)"
                ]
            )


def _split_record(out: Path, name: str, done: Progress) -> dict[str, Any]:
    counts = done.splits[name]
    shards = sorted(out.glob(f"{name}-?????.bin"))
    with ThreadPoolExecutor() as threads:
        digests = list(threads.map(file_sha256, shards))
    return {
        "tokens": counts.tokens,
        "documents": counts.documents,
        "bytes": counts.bytes,
        "shards": {path.name: digest for path, digest in zip(shards, digests, strict=True)},
    }
