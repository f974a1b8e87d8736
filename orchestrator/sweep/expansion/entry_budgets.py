"""Reader of `ladder`, `isoflop` and `match`, which set an entry's compute."""

from collections.abc import Mapping, Sequence

from orchestrator.sweep.draft_trial import (
    FREE_DIMENSION,
    AxisPoint,
    Match,
    Profile,
    Rung,
    Settings,
)
from orchestrator.sweep.matching.quantities import QUANTITIES
from orchestrator.sweep.parsing import messages, validation
from orchestrator.sweep.parsing.diagnostics import Diagnostic, InvalidError, collecting
from orchestrator.sweep.parsing.yaml_node import YamlNode

MAX_SIZES = 100
"""Models of one isoFLOP profile."""

_EXAMPLES = {
    "match": "{training_flops: dense}",
    "isoflop": "{budgets_flops: [1.0e+15, 3.0e+15], architectures: [dense]}",
    "ladder": "{architectures: [dense], sizes: [1m, 3m]}",
}

Wrong = list[Diagnostic]
"""Receives what is wrong; the functions return what is left."""


def ladder(value: YamlNode, architectures: Sequence[str], wrong: Wrong) -> list[AxisPoint]:
    """Read `ladder`: the same sizes of every architecture, tokens in proportion to parameters."""
    known = ("architectures", "sizes", "tokens_per_param")
    content = _keys(value, "ladder", known, required=known[:2], wrong=wrong)
    names = _architectures(content, architectures, wrong)
    ratio = _positive(content, "tokens_per_param", 20.0, wrong)
    rungs = []
    for item in _items(content, "sizes", "[1m, 3m, 500_000]", wrong):
        with collecting(wrong):
            count = None
            if not isinstance(item.content, str) or messages.looks_like_number(item):
                count = validation.check_whole_number(item, at_least=1)
            rungs.append(Rung(size=item, non_embedding_params=count, tokens_per_param=ratio))
    return [
        AxisPoint(
            settings={"model.architecture": name}
            | ({"model.preset": rung.size} if rung.non_embedding_params is None else {}),
            phrase=f"ladder {name.content} {rung.size.brief}",
            size=rung,
        )
        for name in names
        for rung in rungs
    ]


def isoflop(value: YamlNode, architectures: Sequence[str], wrong: Wrong) -> list[AxisPoint]:
    """Read `isoflop`: per budget and architecture, models of several sizes that all spend it."""
    known = ("budgets_flops", "architectures", "sizes", "span", "tokens_per_param")
    content = _keys(value, "isoflop", known, required=known[:2], wrong=wrong)
    names = _architectures(content, architectures, wrong)
    ratio = _positive(content, "tokens_per_param", 20.0, wrong)
    span = _span(content, wrong)
    count = _size_count(content, wrong)
    budgets = []
    for item in _items(content, "budgets_flops", "[1.0e+15, 3.0e+15]", wrong):
        with collecting(wrong):
            budgets.append((item, validation.check_positive(item)))
    return [
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


def match(value: YamlNode, architectures: Sequence[str], wrong: Wrong) -> Match | None:
    """Read `match`: in what and to what trials are made equal, and by changing what."""
    before = len(wrong)
    content = _keys(value, "match", (*QUANTITIES, "solve"), required=(), wrong=wrong)
    named = [key for key in content if key in QUANTITIES]
    if not named:
        if isinstance(value.content, dict) and len(wrong) == before:
            fix = f"write one of {', '.join(QUANTITIES)}: for example match: {_EXAMPLES['match']}"
            message = "missing what to make equal"
            wrong.append(value.diagnostic_at_key(message, fix, kind="missing"))
        _solve(content, None, wrong)
        return None
    for key in named[1:]:
        message = f"match makes one thing equal, and {named[0]} stands there already"
        wrong.append(content[key].diagnostic_at_key(message, "keep one of them"))
    quantity, target = named[0], content[named[0]]
    architecture = number = model = None
    solve = _solve(content, quantity, wrong)
    with collecting(wrong):
        if isinstance(target.content, dict):
            architecture, model = _model(target, architectures)
        elif isinstance(target.content, str) and not messages.looks_like_number(target):
            also = f"a number such as {QUANTITIES[quantity].example} will do too"
            architecture = _architecture(target, architectures, also)
        elif isinstance(target.content, list):
            message = "must be one architecture, one model or one number, got a list"
            raise InvalidError(target.diagnostic(message, messages.one_value(target)))
        else:
            number = validation.check_positive(target)
    if architecture is None and number is None:
        return None
    if quantity == "step_time" and solve == "tokens" and number is not None:
        message = "tokens do not change the seconds of a step"
        fix = (
            "name an architecture, whose whole training time the tokens then meet, "
            "or solve for a field"
        )
        wrong.append(content["solve"].diagnostic(message, fix))
    return Match(
        where=value,
        quantity=quantity,
        target=target,
        architecture=architecture,
        model=model,
        target_number=number,
        solve=solve,
        solve_where=content.get("solve"),
    )


def _model(target: YamlNode, architectures: Sequence[str]) -> tuple[str, Settings]:
    """Return the architecture of a model section that is written for a counterpart, and its keys.

    Raises:
        InvalidError: If it names no architecture.
    """
    if "architecture" not in target.content:
        message = "a model to compare with needs an architecture"
        fix = "write for example {architecture: dense, preset: 3m}"
        raise InvalidError(target.diagnostic(message, fix, kind="missing"))
    name = _architecture(target.content["architecture"], architectures)
    return name, {f"model.{key}": value for key, value in target.content.items()}


def _solve(content: Mapping[str, YamlNode], quantity: str | None, wrong: Wrong) -> str:
    """Return what is changed; whether a model has such a field is known where there is a model."""
    if "solve" not in content:
        return FREE_DIMENSION
    solve = content["solve"]
    if not isinstance(solve.content, str):
        message = f"must be tokens or the name of a field of the model, got {solve.shown}"
        wrong.append(solve.diagnostic(message, "write for example d_ff, or remove it"))
        return FREE_DIMENSION
    if solve.content == "tokens" and quantity is not None and not QUANTITIES[quantity].by_tokens:
        message = f"tokens do not change {QUANTITIES[quantity].words}"
        fix = "remove it, or write the name of a field of the model, such as d_ff"
        wrong.append(solve.diagnostic(message, fix))
    return solve.content


def _keys(
    value: YamlNode, kind: str, known: Sequence[str], *, required: Sequence[str], wrong: Wrong
) -> dict[str, YamlNode]:
    """Return the known keys; `architecture: dense` may be written for `architectures: [dense]`."""
    content = validation.mapping_of(value, example=_EXAMPLES[kind], wrong=wrong)
    guesses = set()
    good = {}
    for key, setting in content.items():
        if key in known or (key == "architecture" and "architectures" in known):
            good[key] = setting
            continue
        wrong.append(validation.unknown_key(key, setting, known, {}))
        guesses.add(messages.nearest(key, known))
    written = {*good, *guesses, *(["architectures"] if "architecture" in good else [])}
    absent = [key for key in required if key not in written]
    if isinstance(value.content, dict) and absent:
        fix = f"write for example {kind}: {_EXAMPLES[kind]}"
        message = f"missing {', '.join(absent)}"
        wrong.append(value.diagnostic_at_key(message, fix, kind="missing"))
    return good


def _items(content: Mapping[str, YamlNode], key: str, example: str, wrong: Wrong) -> list[YamlNode]:
    if key not in content:
        return []
    return validation.list_of(content[key], example=example, wrong=wrong)


def _architectures(
    content: Mapping[str, YamlNode], known: Sequence[str], wrong: Wrong
) -> list[YamlNode]:
    """Return the good names under `architectures` (a list) or `architecture` (one)."""
    names = _items(content, "architectures", "[dense]", wrong)
    good = []
    for name in [*names, *([content["architecture"]] if "architecture" in content else [])]:
        with collecting(wrong):
            _architecture(name, known)
            good.append(name)
    return good


def _architecture(name: YamlNode, known: Sequence[str], also: str = "") -> str:
    if isinstance(name.content, str) and name.content in known:
        return name.content
    fix = messages.suggestion(str(name.content), known)
    if also:
        fix += f" ({also})"
    raise InvalidError(name.diagnostic(f"no architecture is called {name.shown}", fix))


def _positive(content: Mapping[str, YamlNode], key: str, default: float, wrong: Wrong) -> float:
    if key in content:
        with collecting(wrong):
            return validation.check_positive(content[key])
    return default


def _span(content: Mapping[str, YamlNode], wrong: Wrong) -> float:
    span = _positive(content, "span", 8.0, wrong)
    if span <= 1:
        fix = "it is the largest size over the smallest: write for example 8"
        message = f"must be above 1, got {content['span'].shown}"
        wrong.append(content["span"].diagnostic(message, fix))
        return 8.0
    return span


def _size_count(content: Mapping[str, YamlNode], wrong: Wrong) -> int:
    if "sizes" not in content:
        return 6
    sizes = content["sizes"]
    fix = "a parabola needs three sizes; write for example 6"
    if isinstance(sizes.content, list):
        fix = (
            "it counts sizes that isoflop chooses: write for example 6, or use ladder for your own"
        )
    try:
        count = validation.check_whole_number(sizes, at_least=3)
        if count <= MAX_SIZES:
            return count
    except InvalidError as error:
        if isinstance(sizes.content, str):
            fix = error.diagnostics[0].fix
    message = f"must be a whole number in 3..{MAX_SIZES}, got {sizes.shown}"
    wrong.append(sizes.diagnostic(message, fix))
    return 6
