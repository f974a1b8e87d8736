"""Rendering of evaluations: a table per suite, and progress while they run."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from orchestrator.evaluation.evaluate_trials import Evaluation
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.records.varied_settings import trial_labels

METRICS = {
    "acc": "accuracy",
    "acc_norm": "per character",
    "exact_match": "exact match",
    "nll": "NLL (nats)",
    "bits_per_byte": "bits per byte",
    "ms_per_token_batch1": "ms/token, batch 1",
    "ms_per_token_batch64": "ms/token, batch 64",
    "rows_read": "rows read (share)",
    "normalised_entropy": "entropy / ln rows",
    "kl_to_uniform": "KL to uniform (nats)",
    "gini": "Gini",
}
"""Metric -> heading of its column."""

TABLE_READS = "table reads"
"""Suite that only models with memory tables have anything of."""

COUNTED = {"decode latency": "runs", TABLE_READS: "tokens"}
"""Suite -> what its tasks count; others count rows of a benchmark."""


class TellsProgress(Protocol):
    """Told the task, and how many requests of how many are done."""

    def __call__(self, task: str, done: int, total: int) -> None:
        """Show it."""


def evaluation_tables(
    found: Mapping[str, Sequence[Evaluation]], specs: Sequence[TrialSpec] = ()
) -> RenderableType:
    """Return a table per suite, a row per task and model.

    Args:
        found: Model -> its evaluations.
        specs: Of the models that are trials: what tells them apart stands beside their names.
    """
    labels = trial_labels(specs)
    varied = any(labels.values())
    about = {
        spec.trial_id: {
            "preset": spec.preset or "",
            **({"varied": labels[spec.trial_id]} if varied else {}),
            "seed": str(spec.seed),
        }
        for spec in specs
    }
    suites = list(dict.fromkeys(one.suite for of in found.values() for one in of))
    parts: list[RenderableType] = []
    has_errors = False
    for suite in suites:
        of_suite = {
            model: one.record for model, of in found.items() for one in of if one.suite == suite
        }
        if not any(record["tasks"] for record in of_suite.values()):
            parts += [f"{suite}: {_why_empty(suite, list(of_suite))}", ""]
            continue
        parts += [_table(suite, of_suite, about), ""]
        has_errors |= any(
            name.endswith("_stderr") for record in of_suite.values() for name in record["metrics"]
        )
    return Group(*parts, *(["±: standard error"] if has_errors else []))


def _why_empty(suite: str, models: Sequence[str]) -> str:
    if suite != TABLE_READS:
        return "no task was measured"
    return f"{models[0]} has no memory table" if len(models) == 1 else "no model has a memory table"


def _table(
    suite: str,
    records: Mapping[str, Mapping[str, Any]],
    about_models: Mapping[str, Mapping[str, str]],
) -> Table:
    tasks = list(dict.fromkeys(task for record in records.values() for task in record["tasks"]))
    metrics = [
        metric
        for metric in METRICS
        if any(f"eval/{task}/{metric}" in r["metrics"] for r in records.values() for task in tasks)
    ]
    table = Table(title=suite, title_justify="left", title_style="bold", box=None, pad_edge=False)
    told = next(iter(about_models.values()), {})
    for heading in ("task", "model", *told):
        table.add_column(heading, justify="right" if heading == "seed" else "left")
    for heading in (COUNTED.get(suite, "rows"), *(METRICS[metric] for metric in metrics)):
        table.add_column(heading, justify="right")
    table.add_column("")
    for task in tasks:
        for model, record in records.items():
            if task not in record["tasks"]:  # a model without memory tables
                continue
            values = [_with_error(record["metrics"], f"eval/{task}/{name}") for name in metrics]
            about = record["tasks"][task]
            which = about_models[model].values() if told else ()
            table.add_row(task, model, *which, f"{about['n']:,}", *values, _remark(about))
    return table


def _with_error(metrics: Mapping[str, float], name: str) -> str:
    if name not in metrics:
        return ""
    if f"{name}_stderr" not in metrics:  # of one row
        return f"{metrics[name]:.3f}"
    return f"{metrics[name]:.3f} ± {metrics[f'{name}_stderr']:.3f}"


def _remark(about: Mapping[str, float]) -> str:
    remarks = []
    if about["at_chance"]:
        remarks.append(f"at chance ({about['chance']:.3f})")
    if about["n_truncated"]:
        remarks.append(f"{about['n_truncated']:,} prompts cut to the model's sequence")
    return ", ".join(remarks)


@contextmanager
def showing_progress() -> Iterator[Callable[[str], TellsProgress]]:
    """Show on stderr how far each task is; the result takes a model's name."""
    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,} of {task.total:,}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, redirect_stderr=False) as shown:
        row = shown.add_task("reading", total=1)

        def of(model: str) -> TellsProgress:
            def tell(task: str, done: int, total: int) -> None:
                shown.update(row, description=f"{model} {task}", completed=done, total=total)

            return tell

        yield of
