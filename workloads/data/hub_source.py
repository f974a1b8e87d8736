"""Name of a data set of the Hugging Face hub, as a sweep file writes it.

It is written in one of two ways:

    hf:OWNER/NAME[/CONFIG][@REVISION][:SPLIT]              as the data set's card names them
    hf://datasets/OWNER/NAME[@REVISION]/PATH-OR-PATTERN    files, as pandas and DuckDB write it
"""

import hashlib
import re
from dataclasses import dataclass, replace

from workloads.data.readers.problems import DataError

PREFIX = "hf:"
_NAMED = re.compile(
    r"hf:(?://)?(?:datasets/)?(?P<name>[\w.-]+/[\w.-]+)"
    r"(?:/(?P<config>[^@:]+))?(?:@(?P<revision>[^:]+))?(?::(?P<split>[^:]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = re.compile(
    r"hf://datasets/(?P<name>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?/(?P<files>.+)"
)


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """What a source asks for."""

    text: str
    """As it was written."""
    name: str
    """OWNER/NAME."""
    revision: str | None = None
    """A branch, a tag or a commit; None: `main`."""
    config: str | None = None
    """None: the default one."""
    split: str = "train"
    files: str | None = None
    """A path or a pattern; None: the files of a split."""

    @classmethod
    def parse(cls, text: str) -> "HubSource":
        """Read a source.

        Raises:
            DataError: If it is written in neither way.
        """
        found = _FILES.fullmatch(text) or _NAMED.fullmatch(text)
        if found is None:
            raise DataError(
                [
                    f"{text}: names no data set of the hub; write "
                    "hf:OWNER/NAME[/CONFIG][@REVISION][:SPLIT]"
                ]
            )
        return cls(text=text, **{k: v for k, v in found.groupdict().items() if v is not None})

    @property
    def commit(self) -> str | None:
        """The commit that is written out; None where a branch or a tag may move on."""
        return self.revision if _COMMIT.fullmatch(self.revision or "") else None

    def at(self, commit: str) -> "HubSource":
        """Return the same of one commit, written in the one way that names it fully."""
        if self.files is not None:
            text = f"hf://datasets/{self.name}@{commit}/{self.files}"
        else:
            config = "" if self.config is None else f"/{self.config}"
            text = f"{PREFIX}{self.name}{config}@{commit}:{self.split}"
        return replace(self, text=text, revision=commit)

    @property
    def sha256(self) -> str:
        """What stands for the content in a trial's identity: the hash of its name at a commit."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __str__(self) -> str:
        """Return what was written."""
        return self.text
