"""Rendering of a plan: sizes and costs of its trials, and what cannot run here."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.render.progress import STATUS_STYLE
from orchestrator.cli.render.wide_table import WideTable
from orchestrator.node.hardware import visible_gpus
from orchestrator.planning import exposures, memory_fit, resource_fit
from orchestrator.planning.pricing import BATCH, Plan, PlannedTrial
from orchestrator.records import units
from orchestrator.records.trial_spec import TrialSpec, canonical_json
from orchestrator.records.varied_settings import trial_labels

# Without memory values, which stand beside the total.
PARAMETER_GROUPS = {
    "params_embedding": "embedding",
    "params_attention": "attention",
    "params_feed_forward": "feed-\nforward",
    "params_memory_keys": "mem. keys",
    "params_router": "router",
    "params_norm": "norm",
    "params_head": "head",
}
MOST_MATCHES = 40
"""Lines about what `match` chose; `plan --json` has them all."""
MOST_FACTS = 20
"""Lines about facts, one for each data setting; `plan --json` has them all."""


def plan_tables(plan: Plan, *, slots: int, rows: int = 60, papers: bool = False) -> RenderableType:
    """Return the price list of a sweep, a row per configuration, and why trials are new.

    Sizes and costs are two tables, so that both stay readable in 160 columns; a row has the same
    number in both. `papers` adds the FLOPs of a block by MemoryFormer's convention.
    """
    groups = by_configuration(plan.trials)
    labels = trial_labels(trial.spec for trial in plan.trials)
    shown = groups[:rows]
    parts: list[RenderableType] = [
        _sizes(plan, shown, labels),
        Text(""),
        _costs(shown, labels, papers=papers),
    ]
    if len(groups) > rows:
        parts.append(Text(f"… and {units.plural(len(groups) - rows, 'more configuration')}"))
    parts.append(Text(""))
    parts += [Text(line) for line in _matches(plan)]
    parts += [Text(line) for line in _reasons(plan.trials)]
    parts.append(_totals(plan, slots=slots))
    parts += [Text(line) for line in _cut(exposures.lines(plan), MOST_FACTS, "facts")]
    parts += [Text(str(cost)) for cost in plan.evaluations]
    about_here = _too_large(plan, slots=slots)
    for note in (*plan.sweep.warnings, *plan.notes, *plan.left_over_notes, *about_here):
        parts.append(Text(f"note: {note}", style="yellow"))
    return Group(*parts)


def _matches(plan: Plan) -> list[str]:
    """Return what `match` chose, one line per configuration."""
    texts = dict.fromkeys(f"match: {matched}" for matched in plan.sweep.matches.values())
    return _cut(list(texts), MOST_MATCHES, "match")


def _cut(lines: Sequence[str], most: int, topic: str) -> list[str]:
    """Return the first lines, and how many more there are."""
    more = [f"{topic}: … and {len(lines) - most} more"] if len(lines) > most else []
    return [*lines[:most], *more]


def _sizes(
    plan: Plan, groups: Sequence[Sequence[PlannedTrial]], labels: Mapping[str, str]
) -> WideTable:
    """Return the parameters of every configuration: total, active, in the memory, and by group."""
    used = [key for key in PARAMETER_GROUPS if any(g[0].spec.accounting[key] for g in groups)]
    recipes = any(g[0].spec.recipe for g in groups)
    table = _plan_table(
        title=f"{plan.sweep.name}: {units.plural(len(plan.trials), 'trial')}",
        varied=any(labels.values()),
        numbers=("total", "active", "memory", *(PARAMETER_GROUPS[key] for key in used)),
        texts=("recipe",) if recipes else (),
    )
    for number, group in enumerate(groups, 1):
        spec = group[0].spec
        keys = ("total_params", "active_params", "memory_params", *used)
        table.add_row(
            str(number),
            spec.architecture,
            _size(spec),
            *_varied(labels, spec.trial_id),
            *(units.count(spec.accounting[key]) for key in keys),
            *((spec.recipe or "",) if recipes else ()),
        )
    return WideTable(table, keys=3 + any(labels.values()))


def _size(spec: TrialSpec) -> str:
    """Return the preset, or the width of a model whose size `ladder` or the file itself chose."""
    width = spec.model.get("d_model")
    return spec.preset or ("" if width is None else f"d_model {width}")


def _varied(labels: Mapping[str, str], trial_id: str) -> tuple[str, ...]:
    """Return the cell that names what varies in the sweep; none where nothing does."""
    return (labels[trial_id],) if any(labels.values()) else ()


def _costs(
    groups: Sequence[Sequence[PlannedTrial]], labels: Mapping[str, str], *, papers: bool
) -> WideTable:
    """Return what every configuration costs: FLOPs, bytes, memory, time."""
    table = _plan_table(
        numbers=(
            "forward\nFLOPs\n/token",
            "training\nFLOPs",
            "tokens",
            "read/token\nalone",
            f"read/token\nin {BATCH}",
            "activations",
            "peak\nmemory",
            "a step",
            "each",
            *(("a block,\npaper",) if papers else ()),
        ),
        texts=("trials",),
        varied=any(labels.values()),
    )
    for number, group in enumerate(groups, 1):
        first, numbers = group[0], group[0].spec.accounting
        table.add_row(
            str(number),
            first.spec.architecture,
            _size(first.spec),
            *_varied(labels, first.spec.trial_id),
            units.flops(numbers["forward_flops_per_token"]),
            units.flops(numbers["training_flops"]),
            units.count(numbers["training_tokens"]),
            units.size(numbers["bytes_read_per_token"]),
            units.size(numbers[f"bytes_read_per_token_batch{BATCH}"]),
            units.size(numbers["activation_bytes"]),
            units.size(numbers["peak_memory_bytes"]),
            units.short_duration(first.runtime.seconds / max(1.0, numbers["steps"])),
            units.duration(first.runtime.seconds),
            *((_by_paper(first.spec),) if papers else ()),
            _states(t.status for t in group),
        )
    return WideTable(table, keys=3 + any(labels.values()))


def _by_paper(spec: TrialSpec) -> str:
    counted = spec.accounting.get("paper_block_flops")
    return "" if counted is None else units.flops(counted)


def _plan_table(
    *, numbers: Sequence[str], texts: Sequence[str] = (), title: str | None = None, varied: bool
) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("", justify="right", style="dim")
    table.add_column("architecture", no_wrap=True)
    table.add_column("preset", no_wrap=True)
    if varied:
        table.add_column("varied")
    for name in numbers:
        table.add_column(name, justify="right")
    for name in texts:
        table.add_column(name)
    return table


def recipes_text(recipes: Any) -> RenderableType:
    """Return the recipes of the `train:` section as a table, and below it where each is from.

    Args:
        recipes: The module workloads.training.recipes.
    """
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(recipes.COLUMNS):
        table.add_column(name, justify="right" if number else "left", no_wrap=not number)
    for name, recipe in recipes.RECIPES.items():
        table.add_row(name, *recipes.cells(recipe))
    parts: list[RenderableType] = [table, Text("")]
    for source, names in recipes.by_source().items():
        parts.append(Text.assemble((", ".join(names), "bold"), f": {source}"))
    parts.append(
        Text("\nUse one with train: {recipe: NAME, tokens: …}; what is written beside it wins.")
    )
    return Group(*parts)


def by_configuration(trials: Iterable[PlannedTrial]) -> list[list[PlannedTrial]]:
    """Group trials that differ only in their seed, in order of first appearance."""
    groups: dict[str, list[PlannedTrial]] = {}
    for trial in trials:
        key = canonical_json({**trial.spec.identity(), "seed": 0})
        groups.setdefault(key, []).append(trial)
    return list(groups.values())


def _states(statuses: Iterable[str]) -> Text:
    text = Text()
    for status, n in Counter(statuses).items():
        text.append(f"{n} {status} ", style=STATUS_STYLE.get(status, ""))
    return text


def _reasons(trials: Sequence[PlannedTrial]) -> list[str]:
    """Return one line per distinct reason, the trials that share it counted."""
    lines: Counter[tuple[str, str]] = Counter(
        (t.status, t.why) for t in trials if t.status != "done"
    )
    shown = [f"{n:>4} {status}: {why}" for (status, why), n in list(lines.items())[:20]]
    if len(lines) > 20:
        shown.append(f"     … and {units.plural(len(lines) - 20, 'more reason')}")
    return shown


def _totals(plan: Plan, *, slots: int) -> Text:
    todo = [t for t in plan.trials if t.to_train]
    running = sum(t.status == "running" for t in plan.trials)
    if not todo and running:
        return Text(f"Nothing to add: {running} are running, the others have their result.")
    if not todo and len(plan.readable) < len(plan.trials):
        return Text("Nothing to train: trials without a result cannot be read, see above.")
    if not todo:
        return Text("Nothing to train: every trial has its result.", style="green")
    total_flops = sum(t.spec.accounting["training_flops"] * t.remaining for t in todo)
    seconds = plan.predicted_s(slots=slots)
    low, high = plan.predicted_range_s(slots=slots)
    between = f"between {units.duration(low)} and {units.duration(high)}"
    sources = sorted({t.runtime.source for t in todo})
    extrapolated = any(t.runtime.extrapolated for t in todo)
    how = {
        "steps": "from measured step times",
        "measured": "from trials measured here",
        "scaled": "scaled from other trials measured here",
        "guess": f"a guess, {between}; measured after the first run",
    }
    carried = f"carried from other model or batch sizes, {between}"
    return Text(
        f"To train: {units.plural(len(todo), 'trial')}, {units.flops(total_flops)} FLOPs, "
        f"about {units.duration(seconds)} with {slots} at a time"
        f" ({'; '.join([how[s] for s in sources] + [carried] * extrapolated)}).",
        style="bold",
    )


def _too_large(plan: Plan, *, slots: int) -> list[str]:
    """Return what this machine cannot do, as far as it can be seen from here."""
    lacking = resource_fit.fits_not_here(plan)
    notes = [f"not on this machine: {problem.message}; {problem.fix}" for problem in lacking]
    if too_large := memory_fit.fits_not_here(plan):
        return [*notes, *(f"not on this machine: {problem.message}" for problem in too_large)]
    todo = [t for t in plan.trials if t.to_train]
    peak = max(
        (t.spec.accounting["peak_memory_bytes"] * t.spec.resources.ranks for t in todo), default=0.0
    )
    memory = psutil.virtual_memory().total
    if not visible_gpus() and peak * slots > 0.9 * memory:
        notes.append(
            f"{units.plural(slots, 'trial')} at a time may take {units.size(peak * slots)} of "
            f"{units.size(memory)} memory; "
            "set resources.micro_batch_tokens, or submit with fewer --cpus"
        )
    return notes
