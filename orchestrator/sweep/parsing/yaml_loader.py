"""Loader of YAML text into nodes that keep their line and column.

PyYAML's composer gives nodes with marks; they are turned into `YamlNode` values here rather than by
PyYAML's constructor, because that forgets the marks, lets a repeated key win in silence, recurses
forever on an anchor that holds itself, and reads `010` as eight.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from orchestrator.sweep.parsing import yaml_errors
from orchestrator.sweep.parsing.diagnostics import Diagnostic, InvalidError
from orchestrator.sweep.parsing.yaml_node import YamlNode

MAX_VALUES = 200_000
"""Values in one file once its aliases are expanded. 100,000 trials need far fewer."""
MAX_DEPTH = 20
"""Mappings and lists inside each other. A sweep file needs five."""

_TAG = "tag:yaml.org,2002:"
_OCTAL = re.compile(r"[-+]?0[0-7_]+")


def parse(text: str) -> tuple[YamlNode | None, list[Diagnostic]]:
    """Return the document and what is wrong with it as YAML. None when nothing can be read.

    An empty document is a YamlNode None.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        return None, [yaml_errors.explain(error, text)]
    except yaml.reader.ReaderError as error:
        return None, [yaml_errors.explain_character(error, text)]
    except RecursionError:
        return None, [
            Diagnostic(
                line=1,
                column=1,
                key="",
                message="lists or mappings are nested too deeply to read",
                fix="a sweep file needs about five levels",
            )
        ]
    if node is None:
        return YamlNode(content=None, path="", line=1, column=1, key_line=1, key_column=1), []
    walk = _Walk(loader)
    try:
        return walk.value(node, path="", key=node.start_mark), walk.diagnostics
    except InvalidError as error:
        return None, [*walk.diagnostics, *error.diagnostics]


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Remembers where each alias stands: its node only knows where the anchor does."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.aliases: dict[tuple[int, int], tuple[str, yaml.Mark]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        node: yaml.Node | None = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            place = (id(parent), index if isinstance(index, int) else id(index))
            self.aliases[place] = (event.anchor, event.start_mark)
        return node


class _Walk:
    """Turns nodes into YamlNode values; one use."""

    def __init__(self, loader: _Loader) -> None:
        self.loader = loader
        self.diagnostics: list[Diagnostic] = []
        self.open: list[yaml.Node] = []
        self.count = 0
        self.section = (yaml.Mark("", 0, 0, 0, None, None), "")
        """The top-level key being read: where a file that explodes is said to do so."""

    def value(self, node: yaml.Node, *, path: str, key: yaml.Mark) -> YamlNode:
        self._spend()
        content: Any
        text = ""
        self.open.append(node)
        if isinstance(node, yaml.MappingNode):
            content = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            content = self._sequence(node, path)
        else:
            content, text = self._scalar(node, path)
        self.open.pop()
        return YamlNode(
            content=content,
            path=path,
            line=node.start_mark.line + 1,
            column=node.start_mark.column + 1,
            key_line=key.line + 1,
            key_column=key.column + 1,
            text=text,
        )

    def _spend(self) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise InvalidError(
                self._diagnostic(
                    *self.section,
                    f"more than {MAX_VALUES:,} values once aliases (*name) are expanded",
                    "write fewer aliases of aliases",
                )
            )
        if len(self.open) > MAX_DEPTH:
            raise InvalidError(
                self._diagnostic(
                    *self.section,
                    f"lists or mappings nested more than {MAX_DEPTH} levels deep",
                    "a sweep file needs about five levels",
                )
            )

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, YamlNode]:
        if node.tag != f"{_TAG}map":
            self._foreign_tag(node, path)
        content: dict[str, YamlNode] = {}
        inherited: dict[str, YamlNode] = {}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                for source in self._merged(node, key, value, path):
                    for merged, located in self._mapping(source, path).items():
                        inherited.setdefault(merged, located)
                continue
            name = self._key(key, path)
            if name is None:
                continue
            below = f"{path}.{name}" if path else name
            if self._closes_a_loop(node, key, value, below):
                continue
            if not path:
                self.section = (key.start_mark, name)
            located = self.value(value, path=below, key=key.start_mark)
            if name in content:
                self._report(
                    key.start_mark,
                    below,
                    f"key {name!r} is written twice, first at line {content[name].key_line}",
                    "keep one of them",
                )
                continue
            content[name] = located
        return {**inherited, **content}

    def _merged(
        self, node: yaml.MappingNode, key: yaml.Node, value: yaml.Node, path: str
    ) -> Iterator[yaml.MappingNode]:
        """Yield what `<<: *name` merges in."""
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for source in sources:
            self._spend()
            if self._closes_a_loop(node, key, source, f"{path}.<<"):
                continue
            if isinstance(source, yaml.MappingNode):
                self.open.append(source)
                yield source
                self.open.pop()
            else:
                self._report(
                    key.start_mark,
                    f"{path}.<<",
                    "only mappings can be merged with <<",
                    "write <<: *name, where name anchors a mapping",
                )

    def _key(self, key: yaml.Node, path: str) -> str | None:
        if isinstance(key, yaml.ScalarNode) and key.tag in (
            f"{_TAG}str",
            f"{_TAG}value",
            f"{_TAG}timestamp",
        ):
            return str(key.value)
        if not isinstance(key, yaml.ScalarNode):
            message, fix = (
                "keys must be text, got a list or mapping",
                "write a name before the colon",
            )
        else:
            message, fix = f"keys must be text, got {key.value}", f"put it in quotes: '{key.value}'"
            if key.value.isdigit():
                fix = f"inside a number write 1_000, not 1,000; a key needs quotes: '{key.value}'"
        self._report(key.start_mark, path, message, fix)
        return None

    def _sequence(self, node: yaml.SequenceNode, path: str) -> list[YamlNode]:
        if node.tag != f"{_TAG}seq":
            self._foreign_tag(node, path)
        return [
            self.value(item, path=f"{path}[{i}]", key=item.start_mark)
            for i, item in enumerate(node.value)
            if not self._closes_a_loop(node, i, item, f"{path}[{i}]")
        ]

    def _closes_a_loop(
        self, parent: yaml.Node, index: yaml.Node | int, node: yaml.Node, path: str
    ) -> bool:
        if not any(node is ancestor for ancestor in self.open):
            return False
        place = (id(parent), index if isinstance(index, int) else id(index))
        name, mark = self.loader.aliases.get(place, ("", node.start_mark))
        self._report(
            mark,
            path,
            f"alias *{name} stands inside its own anchor &{name}, a loop without end",
            "write the value out instead of the alias",
        )
        return True

    def _scalar(self, node: yaml.Node, path: str) -> tuple[Any, str]:
        written = str(node.value)
        kind = node.tag.removeprefix(_TAG)
        if kind in ("str", "timestamp", "value"):
            return written, repr(written) if getattr(node, "style", None) else written
        if kind == "null":
            return None, written
        if kind in ("int", "float") and (
            ":" in written or (kind == "int" and _OCTAL.fullmatch(written))
        ):
            reading = "base 60" if ":" in written else "octal"
            self._report(
                node.start_mark,
                path,
                f"YAML reads {written} as a number in {reading}",
                f"quote it ('{written}') or write a plain decimal number",
            )
            return None, written
        try:
            if kind == "bool":
                return self.loader.construct_yaml_bool(node), written
            if kind == "int":
                return self.loader.construct_yaml_int(node), written
            if kind == "float":
                return self.loader.construct_yaml_float(node), written
        except (ValueError, KeyError):
            self._report(
                node.start_mark,
                path,
                f"{written[:40]!r} cannot be read as {kind}",
                "write a plain decimal number, or quote it",
            )
            return None, written
        self._foreign_tag(node, path)
        return None, written

    def _foreign_tag(self, node: yaml.Node, path: str) -> None:
        tag = node.tag.replace(_TAG, "!!")
        self._report(
            node.start_mark,
            path,
            f"tag {tag} means nothing in a sweep file",
            "remove it: only text, numbers, true/false, null, lists and mappings are read",
        )

    def _report(self, mark: yaml.Mark, path: str, message: str, fix: str) -> None:
        self.diagnostics.append(self._diagnostic(mark, path, message, fix))

    @staticmethod
    def _diagnostic(mark: yaml.Mark, path: str, message: str, fix: str) -> Diagnostic:
        return Diagnostic(
            line=mark.line + 1, column=mark.column + 1, key=path, message=message, fix=fix
        )
