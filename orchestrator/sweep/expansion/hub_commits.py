"""Commits of data sets of the Hugging Face hub, in a file beside the sweep file.

`NAME.hub_commits.json` belongs to the sweep as its YAML does and is committed with it: a branch
moves on, and a trial's name must not change with the day on which somebody plans the sweep. A
revision is asked for once; a source that names a commit itself needs no file and no network.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import read_json, write_json
from orchestrator.sweep.parsing.diagnostics import Diagnostic
from orchestrator.sweep.parsing.yaml_node import YamlNode

PREFIX = "hf:"
"""Begins the name of a data set of the hub."""
ABOUT = (
    "Commits of the data sets that the sweep file beside this one names. Commit both: without this "
    "file the trials read what the hub has by then, and get other names. To read that, delete it."
)


class HubCommits:
    """The commits that all files of a sweep rest on; new ones are written beside one of them."""

    def __init__(self, sweep_file: Path, sweep: Iterable[Path], hub: Callable[[], Any]) -> None:
        """Read nothing yet.

        Args:
            sweep_file: The file whose sources are pinned.
            sweep: All files of the sweep, in one order for all: the first that pins a source does.
            hub: Returns the module that asks the hub.
        """
        self._sweep_file, self._sweep, self._hub = sweep_file, tuple(sweep), hub
        self.used: dict[str, str] = {}
        """Source as written -> commit."""

    def pinned(self, text: str, place: YamlNode) -> str | Diagnostic:
        """Return a source with its commit, or why there is none.

        Raises:
            StoreError: If a file of commits is not as memscale wrote it.
        """
        source = self._hub().HubSource.parse(text)
        commit = source.commit or self._known(text)
        if commit is None:
            try:
                commit = self._hub().current_commit(source)
            except ValueError as error:
                fix = f"or name a commit ({source.at('COMMIT').text}): planning it needs no network"
                return place.diagnostic(str(error), fix)
            path = _pins_of(self._sweep_file)
            try:
                write(self._sweep_file, {**_read(path), text: commit})
                shutil.copymode(self._sweep_file, path)
            except OSError as error:
                return place.diagnostic(
                    f"{text}: its commit is kept in {path.name} beside the sweep file, and that "
                    f"cannot be written ({error.strerror})",
                    f"write {source.at(commit).text}",
                )
        if source.commit is None:
            self.used[text] = commit
        pinned: str = source.at(commit).text
        return pinned

    def _known(self, text: str) -> str | None:
        found = (_read(_pins_of(file)).get(text) for file in self._sweep)
        return next((commit for commit in found if commit is not None), None)


def write(sweep_file: Path, commits: Mapping[str, str]) -> None:
    """Replace the file of a sweep file's commits."""
    write_json(_pins_of(sweep_file), {"about": ABOUT, "commits": dict(commits)})


def _pins_of(sweep_file: Path) -> Path:
    return sweep_file.with_name(f"{sweep_file.stem}.hub_commits.json")


def _read(path: Path) -> dict[str, str]:
    commits = (read_json(path) or {}).get("commits", {})
    if not isinstance(commits, dict) or not all(isinstance(c, str) for c in commits.values()):
        raise StoreError(
            f"{path}: commits: must be a mapping of texts; restore the file, or delete it to read "
            "what the hub has now"
        )
    return commits
