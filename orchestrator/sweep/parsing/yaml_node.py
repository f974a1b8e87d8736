"""Nodes of a YAML file: values with line, column and key, for diagnostics."""

from dataclasses import dataclass, replace
from typing import Any

from orchestrator.sweep.parsing.diagnostics import Diagnostic, Kind


@dataclass(frozen=True, kw_only=True, eq=False)
class YamlNode:
    """A value of a YAML file and its place. Lines and columns count from 1."""

    content: Any
    """None, bool, int, float, str, a list of YamlNode, or a dict of text to YamlNode."""
    path: str
    """How a reader would name it: `trials[1].grid.model.knn[2]`."""
    line: int
    column: int
    key_line: int
    """Where its key stands; the value's own place in a list."""
    key_column: int
    text: str = ""
    """The scalar as written: `yes`, `1e-3`, `'5'`."""
    key_path: str | None = None
    """The path of its key where that differs: `trials[1].grid.model.knn` for the item above."""

    @property
    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.content, dict):
            return {key: value.plain for key, value in self.content.items()}
        if isinstance(self.content, list):
            return [value.plain for value in self.content]
        return self.content

    @property
    def shown(self) -> str:
        """The value for an error message: scalars as written, the rest by kind."""
        if isinstance(self.content, dict):
            return "a mapping" if self.content else "an empty mapping"
        if isinstance(self.content, list):
            return "a list" if self.content else "an empty list"
        if self.content is None:
            return "nothing" if self.text == "" else "null"
        return self.text if len(self.text) <= 60 else f"{self.text[:57]}..."

    @property
    def brief(self) -> str:
        """The value in a phrase about a trial's origin: `3m`, `[1, 2]`."""
        text = str(self.plain) if isinstance(self.content, list | dict) else self.text or "null"
        return text if len(text) <= 40 else f"{text[:37]}..."

    def diagnostic(
        self, message: str, fix: str, *, kind: Kind = "value", about: str = ""
    ) -> Diagnostic:
        """Return a diagnostic about the value."""
        return Diagnostic(
            line=self.line,
            column=self.column,
            key=self.path,
            message=message,
            fix=fix,
            kind=kind,
            about=about,
        )

    def diagnostic_at_key(self, message: str, fix: str, *, kind: Kind = "value") -> Diagnostic:
        """Return a diagnostic about the key, or about the whole mapping below it."""
        return Diagnostic(
            line=self.key_line,
            column=self.key_column,
            key=self.path if self.key_path is None else self.key_path,
            message=message,
            fix=fix,
            kind=kind,
        )

    def item_of(self, key: "YamlNode") -> "YamlNode":
        """Return this list item as a value of the list's key, which is then blamed for its name."""
        return replace(self, key_line=key.key_line, key_column=key.key_column, key_path=key.path)
