"""The parts of an entry that speak of compute: `ladder`, `isoflop` and `match`, read."""

from collections.abc import Mapping, Sequence

from orchestrator.sweep.draft_trial import AxisPoint, Match, Profile, Rung
from orchestrator.sweep.matching.quantities import QUANTITIES
from orchestrator.sweep.parsing import messages, validation
from orchestrator.sweep.parsing.diagnostics import Diagnostic
from orchestrator.sweep.parsing.yaml_node import YamlNode

MAX_SIZES = 100
"""Models of one isoFLOP profile."""

_EXAMPLES = {
    "match": "{training_flops: dense}",
    "isoflop": "{budgets_flops: [1.0e+15, 3.0e+15], architectures: [dense]}",
    "ladder": "{architectures: [dense], sizes: [1m, 3m]}",
}

Read = tuple[list[list[AxisPoint]], list[Diagnostic]]


def ladder(value: YamlNode, architectures: Sequence[str]) -> Read:
    """Read `ladder`: the same sizes of every architecture, tokens in proportion to parameters."""
    known = ("architectures", "sizes", "tokens_per_param")
    content, diagnostics = _keys(value, "ladder", known, required=known[:2])
    names, wrong = _architectures(content, architectures)
    ratio, also_wrong = _positive(content, "tokens_per_param", 20.0)
    diagnostics += wrong + also_wrong
    rungs = []
    for item in _items(content, "sizes", "[1m, 3m, 500_000]", diagnostics):
        count = None
        if not isinstance(item.content, str) or messages.looks_like_number(item):
            count, bad = validation.check_whole_number(item, at_least=1)
            if bad is not None:
                diagnostics.append(bad)
                continue
        rungs.append(Rung(size=item, non_embedding_params=count, tokens_per_param=ratio))
    axis = [
        AxisPoint(
            settings={"model.architecture": name}
            | ({"model.preset": rung.size} if rung.non_embedding_params is None else {}),
            phrase=f"ladder {name.content} {rung.size.brief}",
            size=rung,
        )
        for name in names
        for rung in rungs
    ]
    return ([axis] if axis else []), diagnostics


def isoflop(value: YamlNode, architectures: Sequence[str]) -> Read:
    """Read `isoflop`: per budget and architecture, models of several sizes that all spend the budget."""
    known = ("budgets_flops", "architectures", "sizes", "span", "tokens_per_param")
    content, diagnostics = _keys(value, "isoflop", known, required=known[:2])
    names, wrong = _architectures(content, architectures)
    ratio, also_wrong = _positive(content, "tokens_per_param", 20.0)
    diagnostics += wrong + also_wrong
    span, wrong = _span(content)
    diagnostics += wrong
    count, wrong = _size_count(content)
    diagnostics += wrong
    budgets = []
    for item in _items(content, "budgets_flops", "[1.0e+15, 3.0e+15]", diagnostics):
        flops, bad = validation.check_positive(item)
        if flops is not None:
            budgets.append((item, flops))
        elif bad is not None:
            diagnostics.append(bad)
    axis = [
        AxisPoint(
            settings={"model.architecture": name},
            phrase=f"isoflop {name.content}, {flops:.4g} FLOPs, size {i + 1} of {count}",
            size=Profile(
                budget=item,
                budget_flops=flops,
                index=i,
                sizes=count,
                span=span,
                tokens_per_param=ratio,
            ),
        )
        for item, flops in budgets
        for name in names
        for i in range(count)
    ]
    return ([axis] if axis else []), diagnostics


def match(value: YamlNode, architectures: Sequence[str]) -> tuple[Match | None, list[Diagnostic]]:
    """Read `match`: in what and to what trials are made equal, and by changing what."""
    known = (*QUANTITIES, "solve")
    content, diagnostics = _keys(value, "match", known, required=())
    named = [key for key in content if key in QUANTITIES]
    misspelt = len(diagnostics) > 0
    if not named:
        if isinstance(value.content, dict) and not misspelt:
            fix = f"write one of {', '.join(QUANTITIES)}: for example match: {_EXAMPLES['match']}"
            message = "missing what to make equal"
            diagnostics.append(value.diagnostic_at_key(message, fix, kind="missing"))
        return None, [*diagnostics, *_solve(content, None)[1]]
    for key in named[1:]:
        message = f"match makes one thing equal, and {named[0]} stands there already"
        diagnostics.append(content[key].diagnostic_at_key(message, "keep one of them"))
    quantity, target = named[0], content[named[0]]
    architecture = number = None
    if isinstance(target.content, str) and not messages.looks_like_number(target):
        architecture = target.content
        also = f"a number such as {QUANTITIES[quantity].example} will do too"
        bad = _check_architecture(target, architectures, also)
    else:
        number, bad = validation.check_positive(target)
    solve, wrong = _solve(content, quantity)
    diagnostics += wrong
    if bad is not None:
        return None, [*diagnostics, bad]
    if quantity == "step_time" and solve == "tokens" and number is not None:
        message = "tokens do not change the seconds of a step"
        fix = "name an architecture, whose whole training time the tokens then meet, or solve for a field"
        diagnostics.append(content["solve"].diagnostic(message, fix))
    return Match(
        where=value,
        quantity=quantity,
        target=target,
        architecture=architecture,
        target_number=number,
        solve=solve,
        solve_where=content.get("solve"),
    ), diagnostics


def _solve(content: Mapping[str, YamlNode], quantity: str | None) -> tuple[str, list[Diagnostic]]:
    """Return what is changed; whether a model has such a field is known where there is a model."""
    if "solve" not in content:
        return "knob", []
    solve = content["solve"]
    if not isinstance(solve.content, str):
        message = f"must be tokens or the name of a field of the model, got {solve.shown}"
        return "knob", [solve.diagnostic(message, "write for example d_ff, or remove it")]
    if solve.content == "tokens" and quantity is not None and not QUANTITIES[quantity].by_tokens:
        message = f"tokens do not change {QUANTITIES[quantity].words}"
        fix = "remove it, or write the name of a field of the model, such as d_ff"
        return "tokens", [solve.diagnostic(message, fix)]
    return solve.content, []


def _keys(
    value: YamlNode, kind: str, known: Sequence[str], *, required: Sequence[str]
) -> tuple[dict[str, YamlNode], list[Diagnostic]]:
    """Return the known keys; `architecture: dense` may be written for `architectures: [dense]`."""
    content, diagnostics = validation.mapping_of(value, example=_EXAMPLES[kind])
    guesses = set()
    good = {}
    for key, setting in content.items():
        if key in known or (key == "architecture" and "architectures" in known):
            good[key] = setting
            continue
        diagnostics.append(validation.unknown_key(key, setting, known, {}))
        guesses.add(messages.nearest(key, known))
    written = {*good, *guesses, *(["architectures"] if "architecture" in good else [])}
    absent = [key for key in required if key not in written]
    if isinstance(value.content, dict) and absent:
        fix = f"write for example {kind}: {_EXAMPLES[kind]}"
        diagnostics.append(
            value.diagnostic_at_key(f"missing {', '.join(absent)}", fix, kind="missing")
        )
    return good, diagnostics


def _items(
    content: Mapping[str, YamlNode], key: str, example: str, diagnostics: list[Diagnostic]
) -> list[YamlNode]:
    if key not in content:
        return []
    items, wrong = validation.list_of(content[key], example=example)
    diagnostics += wrong
    return items


def _architectures(
    content: Mapping[str, YamlNode], known: Sequence[str]
) -> tuple[list[YamlNode], list[Diagnostic]]:
    """Return the good names under `architectures` (a list) or `architecture` (one)."""
    diagnostics: list[Diagnostic] = []
    names = _items(content, "architectures", "[dense]", diagnostics)
    names = [*names, *([content["architecture"]] if "architecture" in content else [])]
    good = []
    for name in names:
        bad = _check_architecture(name, known)
        if bad is None:
            good.append(name)
        else:
            diagnostics.append(bad)
    return good, diagnostics


def _check_architecture(name: YamlNode, known: Sequence[str], also: str = "") -> Diagnostic | None:
    if isinstance(name.content, str) and name.content in known:
        return None
    fix = messages.suggestion(str(name.content), known)
    if also:
        fix += f" ({also})"
    return name.diagnostic(f"no architecture is called {name.shown}", fix)


def _positive(
    content: Mapping[str, YamlNode], key: str, default: float
) -> tuple[float, list[Diagnostic]]:
    if key not in content:
        return default, []
    number, bad = validation.check_positive(content[key])
    return (default if number is None else number), ([] if bad is None else [bad])


def _span(content: Mapping[str, YamlNode]) -> tuple[float, list[Diagnostic]]:
    span, diagnostics = _positive(content, "span", 8.0)
    if span > 1:
        return span, diagnostics
    fix = "it is the largest size over the smallest: write for example 8"
    return 8.0, [content["span"].diagnostic(f"must be above 1, got {content['span'].shown}", fix)]


def _size_count(content: Mapping[str, YamlNode]) -> tuple[int, list[Diagnostic]]:
    if "sizes" not in content:
        return 6, []
    sizes = content["sizes"]
    count, bad = validation.check_whole_number(sizes, at_least=3)
    if count is not None and count <= MAX_SIZES:
        return count, []
    message = f"must be a whole number in 3..{MAX_SIZES}, got {sizes.shown}"
    fix = "a parabola needs three sizes; write for example 6"
    if isinstance(sizes.content, list):
        fix = (
            "it counts sizes that isoflop chooses: write for example 6, or use ladder for your own"
        )
    elif bad is not None and isinstance(sizes.content, str):
        fix = bad.fix
    return 6, [sizes.diagnostic(message, fix)]
