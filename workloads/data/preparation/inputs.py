"""Inputs of `memscale data prepare`: files and data sets of the hub."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.data.cache import file_sha256
from workloads.data.hub_source import PREFIX, HubSource
from workloads.data.preparation.hugging_face import HubFile, hub_files
from workloads.data.preparation.manifest import MANIFEST
from workloads.data.preparation.pretokenised import FORMATS
from workloads.data.preparation.request import PrepareRequest, begun_request
from workloads.data.readers.documents import documents, expand
from workloads.data.readers.lines import file_format
from workloads.data.readers.problems import Problems


@dataclass(frozen=True, kw_only=True)
class CorpusInput:
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


def find_inputs(
    request: PrepareRequest, log: Callable[[str], None]
) -> tuple[dict[str, str], list[CorpusInput]]:
    """Return the commit of each data set of the hub, and every input: to train on, then held out.

    A file that several sources name is one input. A folder that was begun goes on with the commits
    that it was begun with.
    """
    share = 0.0 if request.valid else request.valid_share
    found: list[CorpusInput] = []
    begun, commits = _begun_commits(request.out), {}
    for texts, held_out in ((request.sources, share), (request.valid, 1.0)):
        for text in texts:
            if text.startswith(PREFIX):
                commit, files = hub_files(HubSource.parse(text), begun.get(text))
                log(f"{text}: commit {commit}, {len(files):,} files")
                commits[text] = commit
                found += [CorpusInput(name=f.url, held_out=held_out, path=f) for f in files]
                continue
            paths = expand(text)
            if len(paths) == 1 and paths[0].is_dir():
                paths = tuple(sorted(p for s in FORMATS for p in paths[0].rglob(f"*.{s}"))) or paths
            found += [CorpusInput(name=str(p), held_out=held_out, path=p) for p in paths]
    unique: dict[tuple[str, float], CorpusInput] = {}
    for source in found:
        path = source.path
        place = path.url if isinstance(path, HubFile) else str(path.resolve())
        unique.setdefault((place, source.held_out), source)
    return commits, list(unique.values())


def _begun_commits(out: Path) -> dict[str, str]:
    """Return the commits of an earlier call that came to something."""
    begun = begun_request(out)
    if begun is None or not any((out / n).exists() for n in ("progress.json", MANIFEST)):
        return {}
    commits: dict[str, str] = begun.get("hub_commits", {})
    return commits


def records_of(sources: Sequence[CorpusInput]) -> list[dict[str, Any]]:
    """Return what identifies the content of each source (`CorpusInput.record`)."""
    with ThreadPoolExecutor() as threads:  # hashing leaves the interpreter's lock
        return list(threads.map(CorpusInput.record, sources))
