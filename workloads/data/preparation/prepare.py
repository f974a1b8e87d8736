"""`memscale data prepare`: corpora to a folder of token shards.

The folder also holds an index and the manifest. A folder is complete once it has a manifest.
`request.json` says what it is prepared from: the same call goes on where it was killed, another one
is refused.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from workloads.data.cache import file_sha256
from workloads.data.file_hashes import combined
from workloads.data.hub_source import PREFIX, HubSource
from workloads.data.preparation import contamination
from workloads.data.preparation.encoder import EncoderSettings, unit_hash
from workloads.data.preparation.hugging_face import HubFile, hub_files
from workloads.data.preparation.manifest import MANIFEST, TokenManifest
from workloads.data.preparation.pretokenised import FORMATS, link_splits, open_tokens
from workloads.data.preparation.tokenise import SPLITS, DocumentInput, Progress, tokenise
from workloads.data.readers.documents import documents, expand
from workloads.data.readers.lines import file_format
from workloads.data.readers.problems import DataError, Problems, require_files
from workloads.data.remarks import few_held_out, unused_tokens
from workloads.data.tiktoken_file import tokenizer_files
from workloads.data.tokenizer import TextTokenizer, load, token_dtype, train

EXPECTED = "JSON lines, plain text, Parquet, tokens (.bin, .npy), or hf:OWNER/NAME"
_TRAINED = "bpe:"
_SAMPLED_HUB_FILES = 32
"""Files of the hub that a tokenizer is trained on, at most: each costs a request or several."""


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


@dataclass(frozen=True, kw_only=True)
class _Source:
    """One input."""

    name: str
    held_out: float
    path: Path | HubFile

    def record(self) -> dict[str, Any]:
        """Return what identifies the content."""
        if isinstance(self.path, HubFile):
            name, size, sha256 = self.path.url, self.path.size, self.path.sha256
        else:
            name, size = self.path.name, self.path.stat().st_size
            sha256 = file_sha256(self.path)
        return {"name": name, "bytes": size, "sha256": sha256, "held_out": self.held_out}

    def version(self) -> tuple[int, int] | None:
        """Return what changes when the content does, without reading it."""
        if isinstance(self.path, HubFile):
            return None  # its name holds the commit
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns

    def read(self, problems: Problems, *, text_field: str) -> Iterator[str]:
        """Yield the documents."""
        return documents((self.path,), text_field=text_field, problems=problems)

    @property
    def is_tokens(self) -> bool:
        """Whether there is nothing to tokenise."""
        return isinstance(self.path, Path) and file_format(self.path) in FORMATS


def prepare(request: PrepareRequest, log: Callable[[str], None]) -> TokenManifest:
    """Fill the folder `request.out`, or go on where an earlier call was killed.

    Raises:
        DataError: If something cannot be used; one line per mistake.
    """
    hub, sources = _sources(request, log)
    against = expand(request.against)
    are_tokens = _check(request, sources, against)
    log(f"hashing {len(sources)} inputs")
    unread = [source.version() for source in sources]
    records = _hashed(sources)
    asked = {
        "sources": records,
        "tokenizer": _tokenizer_identity(request.tokenizer),
        "against": [file_sha256(path) for path in against],
        **{name: getattr(request, name) for name in ("separator", "vocab_size", "text_field")},
        **({"hub_commits": hub} if hub else {}),
    }
    finished = _begin(request.out, asked)
    if finished is not None:
        log(f"{request.out} is complete already")
        return finished
    if are_tokens:
        manifest = _link(request, sources, records)
    else:
        manifest = _tokenise(request, sources, records, against, log)
    for source, before in zip(sources, unread, strict=True):
        if source.version() != before:
            raise DataError([f"{source.name}: changed while it was read; delete {request.out}"])
    manifest.save(request.out)
    fix = "raise --valid-share or give --valid"
    for remark in few_held_out(manifest.splits["valid"]["tokens"], fix=fix):
        log(remark)
    (request.out / "progress.json").unlink(missing_ok=True)
    return manifest


def _sources(
    request: PrepareRequest, log: Callable[[str], None]
) -> tuple[dict[str, str], list[_Source]]:
    """Return the commit of each data set of the hub, and every input: to train on, then held out.

    A folder that was begun goes on with the commits that it was begun with.
    """
    share = 0.0 if request.valid else request.valid_share
    found: list[_Source] = []
    begun, commits = _begun_commits(request.out), {}
    for texts, held_out in ((request.sources, share), (request.valid, 1.0)):
        for text in texts:
            if text.startswith(PREFIX):
                commit, files = hub_files(HubSource.parse(text), begun.get(text))
                log(f"{text}: commit {commit}, {len(files):,} files")
                commits[text] = commit
                found += [_Source(name=f.url, held_out=held_out, path=f) for f in files]
                continue
            paths = expand(text)
            if len(paths) == 1 and paths[0].is_dir():
                paths = tuple(sorted(p for s in FORMATS for p in paths[0].rglob(f"*.{s}"))) or paths
            found += [_Source(name=str(p), held_out=held_out, path=p) for p in paths]
    return commits, found


def _begun_commits(out: Path) -> dict[str, str]:
    """Return the commits of an earlier call that came to something."""
    record = out / "request.json"
    if not record.is_file() or not any((out / n).exists() for n in ("progress.json", MANIFEST)):
        return {}
    commits: dict[str, str] = json.loads(record.read_text()).get("hub_commits", {})
    return commits


def _check(request: PrepareRequest, sources: Sequence[_Source], against: tuple[Path, ...]) -> bool:
    """Refuse what cannot go together; return whether the sources are tokens.

    Raises:
        DataError: One line per mistake.
    """
    files = tuple(source.path for source in sources if isinstance(source.path, Path))
    require_files({"SOURCE": files}, EXPECTED, section="")
    require_files({"--against": against}, "JSON lines or text, one item per line", section="")
    are_tokens = {source.is_tokens for source in sources}
    wrong = []
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


def _wrong_for_tokens(request: PrepareRequest) -> list[str]:
    wrong = []
    if request.vocab_size is None and request.tokenizer is None:
        wrong.append("--vocab-size: missing; tokens do not say how large their vocabulary is")
    for option in ("valid", "against"):
        if getattr(request, option):
            wrong.append(f"--{option}: needs text, and the sources are tokens; leave it out")
    if request.tokenizer is not None and request.tokenizer.startswith(_TRAINED):
        wrong.append(f"--tokenizer: {request.tokenizer} needs text; give the file of the tokenizer")
    return wrong


def _hashed(sources: Sequence[_Source]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor() as threads:  # hashing leaves the interpreter's lock
        return list(threads.map(_Source.record, sources))


def _tokenizer_identity(tokenizer: str | None) -> str | None:
    if tokenizer is None or tokenizer.startswith(_TRAINED):
        return tokenizer
    path = Path(tokenizer).expanduser()
    formats = "tokenizer.json, SentencePiece's .model or .tiktoken"
    require_files({"--tokenizer": path}, formats, section="")
    return combined([file_sha256(file) for file in tokenizer_files(path)])


def _begin(out: Path, asked: Mapping[str, Any]) -> TokenManifest | None:
    """Claim the folder for this request; return the manifest if it is complete already.

    Raises:
        DataError: If the folder holds something else.
    """
    record, complete = out / "request.json", (out / MANIFEST).exists()
    if record.is_file():
        if json.loads(record.read_text()) == json.loads(json.dumps(asked)):
            return TokenManifest.load(out / MANIFEST) if complete else None
        if complete or (out / "progress.json").exists():
            raise DataError(
                [f"{out}: holds tokens of other sources or settings; delete it or change --out"]
            )
        shutil.rmtree(out)  # an attempt that came to nothing, perhaps for a mistake mended since
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError([f"{out}: exists and holds something else; change --out"])
    out.mkdir(parents=True, exist_ok=True)
    scratch = out / "request.json.tmp"
    scratch.write_text(json.dumps(asked, indent=1))
    scratch.replace(record)
    return None


def _link(
    request: PrepareRequest, sources: Sequence[_Source], records: Sequence[Mapping[str, Any]]
) -> TokenManifest:
    """List the tokens of the sources as they are."""
    tokenizer, vocab_size = None, request.vocab_size
    if request.tokenizer is not None:
        path = Path(request.tokenizer).expanduser()
        loaded = load(path, vocab_size=vocab_size, separator=request.separator)
        vocab_size = vocab_size or loaded.size
        loaded.save_in(request.out)
        tokenizer = _tokenizer_record(request.out, loaded)
    assert vocab_size is not None, "checked before"
    paths = [source.path for source in sources if isinstance(source.path, Path)]
    files = [open_tokens(path, vocab_size=vocab_size) for path in paths]
    splits = link_splits(request.out, files, valid_share=request.valid_share)
    return TokenManifest(
        dtype=files[0].dtype.name,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        sources=tuple(_public(record, None) for record in records),
        split={"rule": "the end of the last file", "valid_share": request.valid_share},
        splits={name: {**counts, "shards": {}} for name, counts in splits.items()},
    )


def _tokenise(
    request: PrepareRequest,
    sources: Sequence[_Source],
    records: Sequence[Mapping[str, Any]],
    against: Sequence[Path],
    log: Callable[[str], None],
) -> TokenManifest:
    """Tokenise the sources, or what is left of them."""
    problems = Problems()
    items = [contamination.read_items(path, problems) for path in against]
    problems.raise_if_any()
    tokenizer = _tokenizer(request, sources, log)
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
        tokenizer=_tokenizer_record(request.out, tokenizer),
        sources=tuple(map(_public, records, done.documents)),
        split={"rule": "files of their own"} if request.valid else split,
        splits={name: _split_record(request.out, name, done) for name in SPLITS},
        contamination=report,
    )


def _tokenizer(
    request: PrepareRequest, sources: Sequence[_Source], log: Callable[[str], None]
) -> TextTokenizer:
    """Return the tokenizer, saved in the folder."""
    assert request.tokenizer is not None, "checked before"
    size = request.tokenizer.removeprefix(_TRAINED)
    if size == request.tokenizer:
        given = Path(request.tokenizer).expanduser()
        tokenizer = load(given, vocab_size=None, separator=request.separator)
    else:
        place = request.out / "tokenizer.json"
        if place.exists():
            return load(place, vocab_size=None)
        if not size.isdecimal() or not 257 <= int(size) <= 1 << 20:
            raise DataError(
                [f"--tokenizer: {request.tokenizer} must be bpe:SIZE of 257 to 1048576"]
            )
        log(f"training a tokenizer on up to {request.tokenizer_bytes / 1e6:,.0f} MB of text")
        tokenizer = train(_sample(sources, request), vocab_size=int(size))
        for remark in unused_tokens(
            tokenizer.size, vocab_size=int(size), fix=f"ask for {_TRAINED}{tokenizer.size}"
        ):
            log(remark)
    tokenizer.save_in(request.out)
    return tokenizer


def _sample(sources: Sequence[_Source], request: PrepareRequest) -> Iterator[str]:
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


def _require_both_splits(sources: Sequence[_Source], done: Progress) -> None:
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


def _tokenizer_record(out: Path, tokenizer: TextTokenizer) -> dict[str, Any]:
    return {
        "file": tokenizer.file_name,
        "sha256": file_sha256(out / tokenizer.file_name),
        "separator": tokenizer.separator,
        "separator_text": tokenizer.separator_text,
    }


def _public(record: Mapping[str, Any], n_documents: int | None) -> Mapping[str, Any]:
    return {**record, "documents": n_documents}
