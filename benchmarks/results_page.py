"""Page of a finished sweep: what was run, a table of all trials, a figure.

    python benchmarks/results_page.py simplewiki_10m --runs runs --out docs/results

It writes `NAME.md`, `NAME.png` and `NAME.csv`. The page holds numbers and the commands that made
them; what they mean is left to be written under its first line. A row is a configuration: means are
over its seeds; ± is the standard deviation between seeds, or with one seed the standard error over
questions where it is known. The CSV has a line for every finished trial.

A sweep may be run in parts, on machines whose runs folders are gone afterwards. Trials that an
earlier `NAME.csv` holds are therefore kept, where the sweep still has them and the runs folder has
not finished them itself.
"""

import argparse
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pandas as pd

import analysis
from analysis.loading.schema import check_rows, exclusions, plain_row
from analysis.plotting.axes import log_scale, margins, rounded
from analysis.plotting.sweep_figure import sweep_figure
from analysis.scaling.equal_compute import higher_is_better
from analysis.scaling.tuned_setting import tuned_setting
from orchestrator.planning.pricing import account
from orchestrator.records.errors import ConfigError, ExperimentError, StoreError
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.records.units import plural
from orchestrator.records.varied_settings import flat_settings, trial_labels
from orchestrator.sweep.load import load_sweep

mpl.use("Agg")
import matplotlib.pyplot as plt

METRICS = {
    "valid/bits_per_byte": "bits per byte",
    "valid/loss": "held-out loss, nats per token",
    "exact_match": "exact match",
    "nll": "answer NLL, nats",
    "recall/train_wording/exact_match": "recall",
    "recall/train_wording/answer_nll": "answer NLL, nats",
    "recall/heldout_wording/exact_match": "recall, held-out wordings",
    "recall/question/exact_match": "recall, questions",
    "recall/unseen_subject/exact_match": "recall, unseen subjects",
    "knowledge/bits_per_param": "stored bits per parameter",
    "ms_per_token_batch1": "ms per decoded token, batch 1",
    "ms_per_token_batch64": "batch 64",
}
"""Metric, or the end of an `eval/TASK/` metric -> heading."""
FIGURE_METRICS = 3
"""Panels of the figure: the first metrics."""
ROOT = Path(__file__).parents[1]
"""Where the commands in headers of sweep files are run."""


class Column(NamedTuple):
    """A metric of the page."""

    metric: str
    heading: str


class Finished(NamedTuple):
    """The finished trials of a sweep."""

    runs: "analysis.Runs"
    """Of the runs folder and of the record."""
    specs: Mapping[str, TrialSpec]
    """Of all of them, by trial id."""
    recorded: Collection[str]
    """Ids of those that only the record has."""


def main() -> None:
    """Write the page and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    sweep_dir = SweepDir(arguments.runs / arguments.sweep)
    record = arguments.out / f"{arguments.sweep}.csv"
    try:
        runs = analysis.load(arguments.runs, sweep=arguments.sweep)
        if runs.table.empty:
            parser.error(f"{arguments.runs}: sweep {arguments.sweep} has no finished trial")
        finished = _finished(runs, sweep_dir, record)
    except ExperimentError as error:
        parser.error(str(error))
    table = finished.runs.table
    arguments.out.mkdir(parents=True, exist_ok=True)
    columns = _columns(table)
    figure = arguments.out / f"{arguments.sweep}.png"
    _figure(finished.runs, columns[:FIGURE_METRICS], figure)
    page = arguments.out / f"{arguments.sweep}.md"
    page.write_text("\n".join(_page(finished, columns, figure.name, sweep_dir)), encoding="utf-8")
    _write_csv(table, columns, record)
    print(f"wrote {page} and {figure}")


def _finished(runs: "analysis.Runs", sweep_dir: SweepDir, record: Path) -> Finished:
    """Return the trials of a runs folder, and those of the sweep that an earlier CSV has beside.

    Raises:
        ExperimentError: If it cannot be told whether the sweep has the trials of the record.
    """
    specs = {str(name): sweep_dir.trial(str(name)).spec() for name in runs.table["trial_id"]}
    if not record.exists():
        return Finished(runs, specs, ())
    lines = pd.read_csv(record).to_dict("records")
    done = runs.excluded[runs.excluded["state"] == "done"]
    new = specs.keys() | set(done["trial_id"])
    missing = {line["trial_id"] for line in lines} - new
    try:
        earlier = _specs(sweep_dir, missing, specs.values())
    except ConfigError as error:
        raise StoreError(
            f"{record} holds {plural(len(missing), 'trial')} that {sweep_dir.path} has not finished;"
            f" whether the sweep has them, its file must say: {error}"
        ) from error
    if len(earlier) < len(missing):
        print(
            f"left out of {record}: {plural(len(missing) - len(earlier), 'trial')} that"
            f" neither {sweep_dir.path} nor {_sweep_file(sweep_dir)} has",
            file=sys.stderr,
        )
    rows = [
        _row(earlier[line["trial_id"]], line, runs.sweep)
        for line in lines
        if line["trial_id"] in earlier
    ]
    if not rows:
        return Finished(runs, specs, ())
    # By themselves: a record lacks what trials measured beside the page's metrics.
    table, faulty = check_rows(rows)
    every = pd.concat([runs.table, table], ignore_index=True).sort_values(
        ["architecture", "total_params", "configuration", "seed"], kind="stable", ignore_index=True
    )
    recorded = frozenset(table["trial_id"])
    excluded = runs.excluded[~runs.excluded["trial_id"].isin(earlier.keys())]
    if faulty:
        excluded = pd.concat([excluded, exclusions(faulty)], ignore_index=True)
    return Finished(replace(runs, table=every, excluded=excluded), specs | earlier, recorded)


def _specs(
    sweep_dir: SweepDir, wanted: Collection[str], known: Collection[TrialSpec]
) -> dict[str, TrialSpec]:
    """Return the specs of those trials that the sweep has: its folder, or else its file.

    The folder may be of a part of the sweep.

    Args:
        sweep_dir: The sweep's folder.
        wanted: Ids of trials.
        known: Specs of other trials. A file of equal content gets its path from them, since
            trials are not to differ in where they were run.
    """
    specs = {t.trial_id: t.spec() for t in sweep_dir.trials() if t.trial_id in wanted}
    file = _sweep_file(sweep_dir)
    if len(specs) == len(wanted) or not file.is_file():
        return specs
    paths = {(key, sha): s.data[key] for s in known for key, sha in s.data_sha256.items()}
    for spec in load_sweep(file).trials:
        if spec.trial_id in wanted and spec.trial_id not in specs:
            data = {
                key: paths.get((key, spec.data_sha256.get(key)), value)
                for key, value in spec.data.items()
            }
            specs[spec.trial_id] = replace(spec, data=data)
    return specs


def _row(spec: TrialSpec, line: Mapping[str, object], sweep: str | None) -> dict[str, object]:
    """Return a trial of the record as `analysis.load` reads one; the rest follows from its spec."""
    metrics = {
        name: value
        for name, value in line.items()
        if ("/" in name or name == "train_seconds") and pd.notna(value)
    }
    return plain_row(
        trial_id=spec.trial_id,
        sweep=str(sweep),
        architecture=spec.architecture,
        preset=spec.preset,
        seed=spec.seed,
        settings=flat_settings(spec),
        accounting=spec.accounting or account(spec),
        metrics=metrics,
        not_causal=spec.not_causal,
    )


def _columns(table: pd.DataFrame) -> list[Column]:
    """Return the metrics that some trial has, in the order of METRICS."""
    found = []
    for metric, heading in METRICS.items():
        if "/" in metric:
            names = [metric] if metric in table else []
        else:
            names = [c for c in table if c.startswith("eval/") and c.endswith(f"/{metric}")]
        several = len(names) > 1
        for name in names:
            if table[name].notna().any():
                task = name.removeprefix("eval/").rpartition("/")[0]
                found.append(Column(name, f"{task}: {heading}" if several else heading))
    return found


def _write_csv(table: pd.DataFrame, columns: Sequence[Column], path: Path) -> None:
    """Write what the page and its figure rest on: trials, their settings and their metrics."""
    settings = [name for name in table if name.startswith(("data.", "model.", "train."))]
    settings = [name for name in settings if table[name].nunique(dropna=False) > 1]
    facts = ["trial_id", "architecture", "preset", "seed", *settings]
    facts += [
        "total_params",
        "active_params",
        "memory_params",
        "training_flops",
        "training_tokens",
        "steps",
        "train_seconds",
    ]
    metrics = [name for metric, _ in columns for name in (metric, f"{metric}_stderr")]
    kept = dict.fromkeys([*facts, *metrics])
    table[[name for name in kept if name in table]].to_csv(path, index=False)


def _page(
    finished: Finished, columns: Sequence[Column], figure: str, sweep_dir: SweepDir
) -> list[str]:
    runs = finished.runs
    table = runs.table
    question = (runs.question or str(runs.sweep)).strip()
    lines = [
        f"# {question[0].upper()}{question[1:]}",
        "",
        *_about(finished, sweep_dir),
        "",
        "## What came out",
        "",
    ]
    labels = trial_labels(finished.specs[str(name)] for name in table["trial_id"])
    headings = [
        "architecture",
        *(["settings"] if any(labels.values()) else []),
        "total parameters",
        "active",
        "training FLOPs",
        *(heading for _, heading in columns),
        "training, s",
    ]
    lines += [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    ordered = table.sort_values(
        [*_varied(table, "data."), "architecture", *_varied(table, "model.", "train.")],
        kind="stable",
        na_position="first",
    )
    for _, rows in ordered.groupby("configuration", sort=False):
        first = rows.iloc[0]
        cells = [
            f"{first['architecture']} {first['preset'] or ''}".strip(),
            *([labels[first["trial_id"]]] if any(labels.values()) else []),
            f"{first['total_params'] / 1e6:.1f} M",
            f"{first['active_params'] / 1e6:.1f} M",
            f"{first['training_flops']:.2e}",
            *(_mean(rows, metric) for metric, _ in columns),
            f"{rows['train_seconds'].mean():,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"![{', '.join(heading for _, heading in columns[:FIGURE_METRICS])}]({figure})"]
    if len(runs.excluded):
        lines += ["", "Not finished:", ""]
        lines += [f"* {row.trial_id}: {row.reason}" for row in runs.excluded.itertuples()]
    return [*lines, ""]


def _minutes(sweep: SweepDir) -> float:
    """Return how long trials ran: pauses in which none did are left out."""
    spans = []
    for trial in sweep.trials():
        result = trial.result()
        for attempt in trial.attempts():
            launch = attempt.launch()
            if launch is None:
                continue
            if result is not None and result.get("attempt", attempt.number) == attempt.number:
                end = result["finished_at"]
            else:  # with its last line, whenever its loss was noticed
                end = max((line.t / 1000 for line in attempt.lines()), default=0.0)
            spans.append((launch["started_at"], end))
    seconds, until = 0.0, -math.inf
    for start, end in sorted(spans):
        seconds += max(0.0, end - max(start, until))
        until = max(until, end)
    return seconds / 60


def _about(finished: Finished, sweep_dir: SweepDir) -> list[str]:
    """Return the table of what was run; how is known of the trials in the runs folder alone."""
    runs, recorded = finished.runs, finished.recorded
    facts, seeds = runs.environment, sorted(set(runs.table["seed"]))
    table = runs.table[~runs.table["trial_id"].isin(recorded)]
    training = (
        f"{_range(table['steps'])} steps of {_range(table['train.batch_tokens'])} tokens of "
        f"{_range(table['train.seq_len'])}"
    )
    device = facts.get("hardware.gpus") or facts.get("hardware.cpu", "unknown")
    minutes, trial_minutes = _minutes(sweep_dir), table["train_seconds"].sum() / 60
    return [
        "| | |",
        "|---|---|",
        f"| commands | `{_command(sweep_dir)}`, `python benchmarks/results_page.py {runs.sweep}` |",
        f"| trials | {len(runs.table)} finished, {len(runs.excluded)} not; seeds "
        f"{', '.join(map(str, seeds))} |",
        *(
            [
                f"| recorded before | {plural(len(recorded), 'trial')}, from {runs.sweep}.csv as it"
                " was; training, code, device and time are of the others |"
            ]
            if recorded
            else []
        ),
        f"| training | {training} |",
        f"| code | commit {facts.get('git.commit', 'unknown')}"
        f"{' with changes, whose text the records hold' if _dirty(facts) else ''} |",
        f"| device | {device}, torch {facts.get('packages.torch', 'unknown')} |",
        f"| time | {minutes:.1f} minutes in which trials ran, {trial_minutes:.1f} trial-minutes of "
        "training; trials share the device, so seconds of single trials cannot be compared |",
    ]


def _dirty(facts: Mapping[str, str]) -> bool:
    """Return whether some trial's code was not as committed."""
    return "True" in facts.get("git.dirty", "")


def _command(sweep_dir: SweepDir) -> str:
    """Return what the sweep's header says to run."""
    file = sweep_dir.path / "sweep.yaml"
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        if line.startswith("# Run:"):
            return line.removeprefix("# Run:").strip()
    return f"memscale submit sweeps/{sweep_dir.path.name}.yaml"


def _sweep_file(sweep_dir: SweepDir) -> Path:
    """Return the file that the sweep's command names, which need not be there."""
    words = _command(sweep_dir).split()
    named = [word for word in words if word.endswith(".yaml")]
    return ROOT / (named[0] if named else f"sweeps/{sweep_dir.path.name}.yaml")


def _range(values: pd.Series) -> str:
    least, most = int(values.min()), int(values.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _varied(table: pd.DataFrame, *sections: str) -> list[str]:
    """Return the settings of sections (`data.`, ...) that differ between trials and are numbers."""
    return [
        name
        for name in table
        if name.startswith(sections)
        and pd.api.types.is_numeric_dtype(table[name])
        and table[name].nunique() > 1
    ]


def _across(table: pd.DataFrame) -> str:
    """Return what the figure is drawn against: what varies in the data, or total parameters."""
    return next(iter(_varied(table, "data.")), "total_params")


def _mean(rows: pd.DataFrame, metric: str) -> str:
    """Return a metric's mean over seeds with its uncertainty, as the module says."""
    values = rows[metric].dropna()
    if values.empty:
        return ""
    error = values.std() if len(values) > 1 else math.nan
    stderr = f"{metric}_stderr"
    if len(values) == 1 and stderr in rows:
        error = rows[stderr].dropna().mean()
    mean = f"{values.mean():.4g}"
    return mean if math.isnan(error) else f"{mean} ± {error:.2g}"


def _curves(table: pd.DataFrame, across: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and runs of every curve: of an architecture, and of settings that vary in it.

    A setting that has one value at each place of the x axis makes no further curve.
    """
    for architecture, rows in table.groupby("architecture"):
        settings = [name for name in rows if name.startswith(("train.", "model."))]
        varied = [c for c in settings if rows.groupby(across)[c].nunique(dropna=False).max() > 1]
        if not varied:
            yield str(architecture), rows
            continue
        for values, part in rows.groupby(varied, dropna=False):
            named = zip((name.rpartition(".")[2] for name in varied), values, strict=True)
            shown = [
                f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in named
                if not pd.isna(value)
            ]
            yield ", ".join([str(architecture), *shown]), part


def _figure(runs: "analysis.Runs", columns: Sequence[Column], path: Path) -> None:
    """Draw each metric against what `_across` says; what was tuned at one size as reports do."""
    table = runs.table
    fits = analysis.fit_sweep(runs, n_draws=0)
    if not _varied(table, "data.") and tuned_setting(table, fits) is not None:
        sweep_figure(runs, fits).savefig(path, dpi=130)
        return
    across = _across(table)
    curves = list(_curves(table, across))
    if across == "total_params" and all(rows[across].nunique() == 1 for _, rows in curves):
        _dots(curves, columns, path)
        return
    figure, axes = plt.subplots(
        1, len(columns), figsize=(4.2 * len(columns), 3.6), squeeze=False, layout="constrained"
    )
    for panel, (metric, heading) in zip(axes[0], columns, strict=True):
        for name, rows in curves:
            means = rows.groupby(across)[metric].mean()
            (line,) = panel.plot(means.index, means, marker="o", label=name)
            if rows["seed"].nunique() > 1:
                panel.scatter(rows[across], rows[metric], s=9, alpha=0.5, color=line.get_color())
        panel.set(xlabel=across.rpartition(".")[2].replace("_", " "), ylabel=heading)
        log_scale(panel, "x", *margins(table[across], least=1.5), show=rounded, most=8)
    axes[0][-1].legend(fontsize=7)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _dots(
    curves: Sequence[tuple[str, pd.DataFrame]], columns: Sequence[Column], path: Path
) -> None:
    """Draw one size of each: a line per architecture, best first, small dots for seeds."""
    best = columns[0][0]
    named = sorted(curves, key=lambda curve: float(curve[1][best].mean()))
    if higher_is_better(best):
        named.reverse()
    figure, axes = plt.subplots(
        1,
        len(columns),
        figsize=(2.2 + 3.4 * len(columns), 0.9 + 0.26 * len(named)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, (metric, heading) in zip(axes[0], columns, strict=True):
        for place, (_, rows) in enumerate(named):
            panel.scatter(rows[metric], [place] * len(rows), s=12, color="tab:blue", alpha=0.5)
            panel.scatter(rows[metric].mean(), place, s=60, marker="|", color="black")
        panel.set(xlabel=heading)
        panel.set_ylim(len(named) - 0.5, -0.5)
        panel.grid(axis="both", alpha=0.3)
    axes[0][0].set_yticks(range(len(named)), [name for name, _ in named])
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
