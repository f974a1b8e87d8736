"""Reader of one entry of `trials:`: `set`, `grid`, `zip`, `list`.

`ladder`, `isoflop` and `match` are in entry_budgets.py. Axes in order, later ones faster: ladder or
isoflop, the grid's keys as written, zip, list.
"""

from collections.abc import Callable, Mapping, Sequence

from orchestrator.sweep.draft_trial import SECTIONS, AxisPoint, Entry, Match, Settings
from orchestrator.sweep.expansion import entry_budgets
from orchestrator.sweep.parsing import messages, validation
from orchestrator.sweep.parsing.diagnostics import Diagnostic
from orchestrator.sweep.parsing.yaml_node import YamlNode

ENTRY_KEYS = ("set", "grid", "zip", "list", "match", "isoflop", "ladder")

_EXAMPLES = {
    "set": "{model.preset: 1m}",
    "grid": "{model.preset: [1m, 3m], train.lr: [1.0e-3, 3.0e-3]}",
    "zip": "{model.preset: [1m, 3m], train.lr: [3.0e-3, 1.0e-3]}",
    "list": "[{model.preset: 1m}, {model.preset: 3m, train.lr: 1.0e-3}]",
}
_SWEEP_WIDE = {
    "seed": "seeds: [0, 1, 2]",
    "seeds": "seeds: [0, 1, 2]",
    "name": "name: …",
    "retries": "retries: {…}",
    "logging": "logging: {…}",
}

Homes = Callable[[str], list[str]]
"""Field name -> the sections that have it, to suggest `model.n_keys` where `n_keys` is written."""


def read_entry(
    entry: YamlNode,
    *,
    architectures: Sequence[str],
    homes: Homes,
    wrong: list[Diagnostic],
) -> Entry:
    """Take an entry apart, without what is wrong with it. `{}` is the base itself.

    Args:
        entry: As written.
        architectures: The names that there are.
        homes: Which sections have a field.
        wrong: Receives what is wrong.
    """
    if entry.content is None:
        fix = "write {} for the base itself, or remove it"
        wrong.append(entry.diagnostic("is an empty entry", fix))
        return Entry(where=entry, label=entry.path)
    content = validation.mapping_of(entry, example="- grid: {model.preset: [1m, 3m]}", wrong=wrong)
    wrong += [_unknown(key, value) for key, value in content.items() if key not in ENTRY_KEYS]
    fixed: Settings = {}
    axes: list[list[AxisPoint]] = []
    match: Match | None = None
    if "set" in content:
        fixed = _settings(content["set"], _EXAMPLES["set"], homes, wrong)
    for key, read in (("ladder", entry_budgets.ladder), ("isoflop", entry_budgets.isoflop)):
        if key in content:
            axes.append(read(content[key], architectures, wrong))
    for key, read_lists in (("grid", _grid), ("zip", _zip), ("list", _list)):
        if key in content:
            axes += read_lists(content[key], homes, wrong)
    axes = [axis for axis in axes if axis]
    if "match" in content:
        match = entry_budgets.match(content["match"], architectures, wrong)
    wrong += _conflicts(content, fixed, axes, match)
    return Entry(where=entry, label=entry.path, fixed=fixed, axes=axes, match=match)


def _unknown(key: str, value: YamlNode) -> Diagnostic:
    advice = {
        section: f"write set: {{{section}.KEY: …}}; "
        f"a whole {section}: stands at the top of the file"
        for section in SECTIONS
    }
    advice |= {name: f"write {how} at the top of the file" for name, how in _SWEEP_WIDE.items()}
    if "." in key:
        advice[key] = f"write set: {{{key}: {value.shown}}}"
    return validation.unknown_key(key, value, ENTRY_KEYS, advice)


def _settings(
    value: YamlNode, example: str, homes: Homes, wrong: list[Diagnostic]
) -> dict[str, YamlNode]:
    """Return the dotted keys of a mapping; wrong keys are left out."""
    good = {}
    for key, setting in validation.mapping_of(value, example=example, wrong=wrong).items():
        section, _, name = key.partition(".")
        if section in SECTIONS and name:
            good[key] = setting
        else:
            message, fix = _bad_key(key, setting, homes)
            wrong.append(setting.diagnostic_at_key(message, fix))
    return good


def _bad_key(key: str, setting: YamlNode, homes: Homes) -> tuple[str, str]:
    section, dot, name = key.partition(".")
    if section in _SWEEP_WIDE:
        how = _SWEEP_WIDE[section]
        return f"{key} cannot differ between trials", f"write {how} at the top of the file"
    if section in SECTIONS:
        inner = next(iter(setting.content), "KEY") if isinstance(setting.content, dict) else "KEY"
        return f"{key} is a whole section", f"write its keys one by one, dotted: {key}.{inner}: …"
    near = messages.nearest(section, SECTIONS) if dot else None
    if near:
        return f"unknown key {key!r}", f"did you mean '{near}.{name}'?"
    ours = messages.OTHER_NAMES.get(key, key)
    dotted = list(dict.fromkeys(f"{home}.{name}" for name in (key, ours) for home in homes(name)))
    if dotted:
        return f"unknown key {key!r}", f"write it with its section: {_or(dotted)}"
    return (
        f"unknown key {key!r}",
        f"keys begin with their section: {_or([f'{s}.' for s in SECTIONS])}",
    )


def _grid(value: YamlNode, homes: Homes, wrong: list[Diagnostic]) -> list[list[AxisPoint]]:
    axes = []
    for key, items in _lists(value, "grid", homes, wrong).items():
        once: dict[str, YamlNode] = {}
        for item in items:
            first = once.setdefault(repr(item.plain), item)
            if first is not item:
                message = f"{item.shown} is written twice in this list"
                if first.brief != item.brief:
                    message = f"{item.shown} is in this list already, as {first.shown}"
                wrong.append(item.diagnostic(message, "keep one of them"))
        phrase = f"grid {key}="
        axes.append([AxisPoint(settings={key: v}, phrase=phrase + v.brief) for v in items])
    return axes


def _zip(value: YamlNode, homes: Homes, wrong: list[Diagnostic]) -> list[list[AxisPoint]]:
    mistakes: list[Diagnostic] = []
    lists = _lists(value, "zip", homes, mistakes)
    if not mistakes and len({len(items) for items in lists.values()}) > 1:
        lengths = ", ".join(f"{key} has {len(items)}" for key, items in lists.items())
        fix = "make them equally long, or use grid for every combination"
        message = f"the lists of zip must be equally long: {lengths}"
        mistakes.append(value.diagnostic_at_key(message, fix))
    wrong += mistakes
    if mistakes:
        return []
    rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    return [[AxisPoint(settings=row, phrase=f"zip {_phrase(row)}") for row in rows]]


def _list(value: YamlNode, homes: Homes, wrong: list[Diagnostic]) -> list[list[AxisPoint]]:
    axis = []
    for item in validation.list_of(value, example=_EXAMPLES["list"], wrong=wrong):
        settings = _settings(item, "{model.preset: 1m}", homes, wrong)
        axis.append(AxisPoint(settings=settings, phrase=f"list {_phrase(settings) or 'base'}"))
    return [axis]


def _lists(
    value: YamlNode, kind: str, homes: Homes, wrong: list[Diagnostic]
) -> dict[str, list[YamlNode]]:
    settings = _settings(value, _EXAMPLES[kind], homes, wrong)
    if value.content == {}:
        fix = f"write for example {_EXAMPLES[kind]}, or remove the key"
        wrong.append(value.diagnostic(f"is an empty {kind}, so nothing would run", fix))
    lists = {}
    for key, setting in settings.items():
        items = validation.list_of(setting, example="[first, second]", wrong=wrong)
        if items:
            lists[key] = [item.item_of(setting) for item in items]
    return lists


def _conflicts(
    content: Mapping[str, YamlNode],
    fixed: Settings,
    axes: Sequence[Sequence[AxisPoint]],
    match: Match | None,
) -> list[Diagnostic]:
    """Return what the parts of an entry contradict each other in."""
    if "ladder" in content and "isoflop" in content:
        message = "ladder and isoflop both choose sizes and tokens"
        return [content["isoflop"].diagnostic_at_key(message, "put them into two entries")]
    chosen: dict[str, str] = {}
    for kind in ("ladder", "isoflop"):
        if kind in content:
            chosen |= dict.fromkeys(("model.architecture", "model.preset", "train.tokens"), kind)
    diagnostics = []
    if match is not None and match.solve == "tokens" and "ladder" in content:
        fix = "leave solve: tokens away, so that d_ff is solved for"
        diagnostics.append(
            match.where.diagnostic_at_key("ladder already chooses train.tokens", fix)
        )
    elif match is not None and match.solve == "tokens":
        chosen["train.tokens"] = "match with solve: tokens"
    if "match" in content and "isoflop" in content:
        message = "isoflop already makes training FLOPs equal"
        diagnostics.append(content["match"].diagnostic_at_key(message, "remove match"))
    written: dict[str, YamlNode] = {}
    groups = [fixed]
    groups += [{k: v for c in axis if not c.size for k, v in c.settings.items()} for axis in axes]
    for settings in groups:
        for key, setting in settings.items():
            if key in chosen:
                fix = f"remove it here, or remove {chosen[key].split()[0]}"
                message = f"{chosen[key]} chooses {key} itself"
                diagnostics.append(setting.diagnostic_at_key(message, fix))
            elif key in written:
                line = written[key].key_line
                message = f"{key} is set twice in this entry, first at line {line}"
                diagnostics.append(setting.diagnostic_at_key(message, "keep one of them"))
            written.setdefault(key, setting)
    return diagnostics


def _phrase(settings: Settings) -> str:
    return " ".join(f"{key}={setting.brief}" for key, setting in settings.items())


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
