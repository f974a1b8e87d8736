"""Page of a finished sweep: what was run, a table of all trials, a figure.

    python benchmarks/results_page.py simplewiki_10m --runs runs --out docs/results
    python benchmarks/results_page.py simplewiki_10m --figures   (the figure alone, from the CSV)
    python benchmarks/results_page.py memoryformer_one_pass --figures --beside \
        memoryformer_at_its_flops "architecture == 'memoryformer' and steps == 1600"

It writes `NAME.md`, `NAME.png` and `NAME.csv`. The page holds numbers and the commands that made
them; what they mean is left to be written under its first line. A row is a configuration: means are
over its seeds; ± is the standard deviation between seeds, or with one seed the standard error over
questions where it is known. The CSV has a line for every finished trial: its settings, what it
measured, and where it comes from (PROVENANCE).

A sweep may be run in parts, on machines whose runs folders are gone afterwards. Trials that an
earlier `NAME.csv` holds are therefore kept, where the runs folder has not finished them itself. The
hash of a text is part of a trial's id, so the same text compressed anew gives other ids: a trial
whose settings are the sweep's is kept, under the id that it had. What the sweep has no more is
left out with `--drop` alone.
"""

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from results_figure import INIT, Column, draw_figure, figure_columns, varied_numbers

import analysis
from analysis.loading.load import Runs
from analysis.loading.provenance import common_facts
from analysis.loading.schema import ACCOUNTING, check_rows, exclusions, plain_row
from orchestrator.planning.pricing import account
from orchestrator.records.errors import ConfigError, ExperimentError, StoreError
from orchestrator.records.provenance import MAX_DIFF_CHARACTERS
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import GPU_PEAK, TrialSpec
from orchestrator.records.units import count, plural
from orchestrator.records.varied_settings import flat_settings, trial_labels
from orchestrator.sweep.load import load_sweep

METRICS = {
    "valid/bits_per_byte": "bits per byte",
    "valid/loss": "held-out loss, nats per token",
    "exact_match": "exact match",
    "nll": "answer NLL, nats",
    "acc": "accuracy",
    "bits_per_byte": "bits per byte of the right answer",
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
PROVENANCE = (
    "git_commit",
    "uncommitted_changes",
    "changed_files",
    "device",
    "torch",
    "finished",
    "ran",
    "data_sha256",
    "settings_id",
    "peak_gpu_bytes",
)
"""Columns of the CSV that say where a trial comes from; empty where an older CSV lacks them.
`changed_files` are those that the diff of uncommitted changes touches, `ran` is when attempts began
and ended, in seconds since 1970, and `settings_id` is the id that the trial would have whatever its
data files held."""
UNKNOWN = "not recorded"
MOST_FILES = 5
"""Most changed files that the page names."""
CUT = "…"
"""Last of the changed files where the record of the diff is cut."""
SETTINGS = ("data.", "model.", "train.")
"""Prefixes of the columns that say how a trial was made."""
ROOT = Path(__file__).parents[1]
"""Where the commands in headers of sweep files are run."""


class Finished(NamedTuple):
    """The finished trials of a sweep."""

    runs: Runs
    """Of the runs folder and of the record."""
    specs: Mapping[str, TrialSpec]
    """Of all of them, by trial id."""
    recorded: Collection[str]
    """Ids of those that only the record has."""
    renamed: Collection[str] = ()
    """Of these, those whose settings the sweep has under another id."""


def main() -> None:
    """Write the page and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument(
        "--drop", action="store_true", help="leave out what the CSV holds and the sweep has no more"
    )
    parser.add_argument(
        "--figures", action="store_true", help="draw the figure alone, from the CSV in --out"
    )
    parser.add_argument(
        "--beside",
        nargs=2,
        metavar=("NAME", "WHERE"),
        help="with --figures: also trials of the CSV of another page, for which a pandas query "
        'holds, as in --beside memoryformer_at_its_flops "steps == 1600"',
    )
    arguments = parser.parse_args()
    if arguments.beside and not arguments.figures:
        parser.error("--beside is for --figures: a page holds the trials of its sweep alone")
    sweep_dir = SweepDir(arguments.runs / arguments.sweep)
    record = arguments.out / f"{arguments.sweep}.csv"
    figure = arguments.out / f"{arguments.sweep}.png"
    if arguments.figures:
        if not record.exists():
            parser.error(f"{record}: not there; make the page of the sweep first")
        runs = _recorded_runs(record)
        if arguments.beside:
            name, where = arguments.beside
            beside = arguments.out / f"{name}.csv"
            if not beside.exists():
                parser.error(f"{beside}: not there")
            try:
                others = _recorded_runs(beside).table.query(where)
            except (ValueError, SyntaxError, NameError, TypeError) as error:
                parser.error(f"--beside: pandas cannot ask {name}.csv for {where}: {error}")
            if others.empty:
                parser.error(f"{name}.csv: no trial has {where}")
            runs = replace(runs, table=pd.concat([runs.table, others], ignore_index=True))
        draw_figure(runs, _columns(runs.table), figure)
        print(f"wrote {figure}")
        return
    try:
        runs = analysis.load(arguments.runs, sweep=arguments.sweep)
        if runs.table.empty:
            parser.error(f"{arguments.runs}: sweep {arguments.sweep} has no finished trial")
        finished = _finished(runs, sweep_dir, record, drop=arguments.drop)
    except ExperimentError as error:
        parser.error(str(error))
    table = finished.runs.table
    arguments.out.mkdir(parents=True, exist_ok=True)
    columns = _columns(table)
    draw_figure(finished.runs, columns, figure)
    page = arguments.out / f"{arguments.sweep}.md"
    page.write_text("\n".join(_page(finished, columns, figure.name, sweep_dir)), encoding="utf-8")
    _write_csv(table, columns, record)
    print(f"wrote {page} and {figure}")


def _finished(runs: Runs, sweep_dir: SweepDir, record: Path, *, drop: bool = False) -> Finished:
    """Return the trials of a runs folder, and those of the sweep that an earlier CSV has beside.

    Args:
        runs: Of the runs folder.
        sweep_dir: The sweep's folder.
        record: The earlier CSV, which need not be there.
        drop: Leave out trials of the record that the sweep has no more.

    Raises:
        ExperimentError: If the record holds such trials and they are not to be dropped, or if it
            cannot be told whether it does.
    """
    specs = {str(name): sweep_dir.trial(str(name)).spec() for name in runs.table["trial_id"]}
    origins = [_provenance(sweep_dir.trial(str(name))) for name in runs.table["trial_id"]]
    runs = replace(runs, table=_with_provenance(runs.table, origins))
    if not record.exists():
        return Finished(runs, specs, ())
    lines = _read(record).to_dict("records")
    done = runs.excluded[runs.excluded["state"] == "done"]
    new = specs.keys() | set(done["trial_id"])
    missing = {line["trial_id"] for line in lines} - new
    try:
        every = _specs(sweep_dir, missing, specs.values())
    except ConfigError as error:
        raise StoreError(
            f"{record} holds {plural(len(missing), 'trial')} that {sweep_dir.path} has not finished;"
            f" whether the sweep has them, its file must say: {error}"
        ) from error
    earlier = {trial_id: every[trial_id] for trial_id in missing if trial_id in every}
    # Of two files with one setting it is not known which a row of another hash was trained on.
    settings = Counter(_settings_id(spec) for spec in every.values())
    of_settings = {own: spec for spec in every.values() if settings[own := _settings_id(spec)] == 1}
    under = {line["trial_id"]: of_settings.get(line.get("settings_id")) for line in lines}
    renamed = {i: spec for i in missing - earlier.keys() if (spec := under[i]) is not None}
    lost = missing - earlier.keys() - renamed.keys()
    if lost and not drop:
        raise StoreError(_would_lose(lost, record, n_held=len(lines), sweep_dir=sweep_dir))
    again = {i for i, spec in renamed.items() if spec.trial_id in new | earlier.keys()}
    for line in sorted(lines, key=lambda line: str(line.get("finished")), reverse=True):
        # Of several with one setting the last that finished stays.
        spec = renamed.get(line["trial_id"])
        if spec is not None and line["trial_id"] not in again:
            again |= {i for i, one in renamed.items() if one is spec} - {line["trial_id"]}
    for left, why in ((lost, "that the sweep has no more"), (again, "that ran again")):
        if left:
            said = f"left out of {record}: {plural(len(left), 'trial')} {why}: {_some(left)}"
            print(said, file=sys.stderr)
    renamed = {i: spec for i, spec in renamed.items() if i not in again}
    earlier |= renamed
    kept = [line for line in lines if line["trial_id"] in earlier]
    if not kept:
        return Finished(runs, specs, ())
    # By themselves: a record lacks what trials measured beside the page's metrics.
    table, faulty = check_rows(_row(earlier[line["trial_id"]], line, runs.sweep) for line in kept)
    origin = {line["trial_id"]: {name: line.get(name) for name in PROVENANCE} for line in kept}
    table = _with_provenance(table, [origin[i] for i in table["trial_id"]])
    every_row = pd.concat([runs.table, table], ignore_index=True).sort_values(
        ["architecture", "total_params", "configuration", "seed"], kind="stable", ignore_index=True
    )
    recorded = frozenset(table["trial_id"])
    known = earlier.keys() | {spec.trial_id for spec in renamed.values()}
    excluded = runs.excluded[~runs.excluded["trial_id"].isin(known)]
    if faulty:
        excluded = pd.concat([excluded, exclusions(faulty)], ignore_index=True)
    return Finished(
        replace(runs, table=every_row, excluded=excluded),
        specs | earlier,
        recorded,
        recorded & renamed.keys(),
    )


def _would_lose(lost: Collection[str], record: Path, *, n_held: int, sweep_dir: SweepDir) -> str:
    """Return what is wrong where an earlier CSV holds trials that the sweep has no more."""
    file = _sweep_file(sweep_dir)
    others = f"{sweep_dir.path} nor {file}{'' if file.is_file() else ' (which is not there)'}"
    text = (
        f"{record} holds {plural(len(lost), 'trial')} that neither {others} has, and the page "
        f"would lose: {_some(lost)}; name a sweep file that has them after `# Run:`"
    )
    if 2 * len(lost) <= n_held:
        return f"{text}, or give --drop to leave them out"
    return f"{text}; --drop would leave out most of that file, {len(lost)} of {n_held} trials"


def _some(ids: Collection[str]) -> str:
    """Return a few of the ids."""
    first = sorted(ids)[:3]
    return ", ".join(first) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def _specs(
    sweep_dir: SweepDir, wanted: Collection[str], known: Collection[TrialSpec]
) -> dict[str, TrialSpec]:
    """Return specs of the sweep, by trial id: of its folder, and of its file if some are missing.

    The folder may be of a part of the sweep.

    Args:
        sweep_dir: The sweep's folder.
        wanted: Ids of trials.
        known: Specs of other trials. A file of equal content gets its path from them, since
            trials are not to differ in where they were run.
    """
    specs = {trial.trial_id: trial.spec() for trial in sweep_dir.trials()}
    file = _sweep_file(sweep_dir)
    if specs.keys() >= set(wanted) or not file.is_file():
        return specs
    paths = {(key, sha): s.data[key] for s in known for key, sha in s.data_sha256.items()}
    for spec in load_sweep(file, evaluates=False).trials:
        data = {
            key: paths.get((key, spec.data_sha256.get(key)), value)
            for key, value in spec.data.items()
        }
        specs.setdefault(spec.trial_id, replace(spec, data=data))
    return specs


def _settings_id(spec: TrialSpec) -> str:
    """Return the id that a trial would have whatever its data files held."""
    return replace(spec, data_sha256=dict.fromkeys(spec.data_sha256, "")).trial_id


def _provenance(trial: TrialDir) -> dict[str, object]:
    """Return PROVENANCE of a finished trial of the runs folder."""
    spec, result, attempts = trial.spec(), trial.result() or {}, trial.attempts()
    # A later attempt may have begun, and found the result there.
    wrote = [a for a in attempts if a.number == result.get("attempt")] or attempts[-1:]
    environments = [attempt.environment() or {} for attempt in wrote]
    facts = common_facts(environments)
    changed = [name for one in environments for name in _changed_files(one.get("git") or {})]
    shas = ", ".join(f"{key} {sha}" for key, sha in sorted(spec.data_sha256.items()))
    finished = result.get("finished_at")
    return {
        "git_commit": facts.get("git.commit"),
        "uncommitted_changes": {"True": True, "False": False}.get(facts.get("git.dirty", "")),
        "changed_files": ", ".join(changed) or None,
        "device": facts.get("hardware.gpus") or facts.get("hardware.cpu"),
        "torch": facts.get("packages.torch"),
        "finished": finished and datetime.fromtimestamp(finished, UTC).date().isoformat(),
        "ran": " ".join(f"{start:.3f}-{end:.3f}" for start, end in _spans(trial)) or None,
        "data_sha256": shas or None,
        "settings_id": _settings_id(spec),
        "peak_gpu_bytes": result.get("metrics", {}).get(GPU_PEAK),
    }


def _changed_files(git: Mapping[str, Any]) -> list[str]:
    """Return the files that a recorded diff touches, CUT last if it may touch more."""
    diff = git.get("diff") or ""
    files = re.findall(r'^diff --git .* "?b/(.*?)"?$', diff, re.MULTILINE)
    return [*files, *([CUT] if len(diff) >= MAX_DIFF_CHARACTERS else [])]


def _with_provenance(table: pd.DataFrame, known: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Return the table with PROVENANCE of its rows."""
    columns = pd.DataFrame(list(known), columns=list(PROVENANCE), index=table.index, dtype=object)
    return pd.concat([table, columns], axis=1)


def _read(record: Path) -> pd.DataFrame:
    return pd.read_csv(record, dtype={"git_commit": "object"})


def _recorded_runs(record: Path) -> Runs:
    """Return the runs that a CSV holds, without what it does not say but how matrices begin."""
    lines = _read(record)
    shared = {} if INIT in lines else _shared_init(record.stem)
    rows = [
        plain_row(
            trial_id=line["trial_id"],
            sweep=record.stem,
            architecture=line["architecture"],
            preset=None if pd.isna(line["preset"]) else line["preset"],
            seed=line["seed"],
            settings=shared
            | {k: v for k, v in line.items() if k.startswith(SETTINGS) and pd.notna(v)},
            accounting={k: v for k, v in line.items() if k in ACCOUNTING and pd.notna(v)},
            metrics=_measured(line),
        )
        for line in lines.to_dict("records")
    ]
    table, faulty = check_rows(rows)
    return Runs(table=table, excluded=exclusions(faulty), source=str(record), sweep=record.stem)


def _shared_init(sweep: str) -> dict[str, str]:
    """Return how output matrices of all trials begin by the sweep's file, if it says that.

    A setting that all trials share has no column in a CSV.
    """
    file = _study_file(sweep)
    if file is None:
        return {}
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    init = (content.get("model") or {}).get(INIT.rpartition(".")[2])
    return {} if init is None else {INIT: init}


def _study_file(sweep: str) -> Path | None:
    """Return the file in `sweeps/` that has this name of a sweep."""
    for file in sorted((ROOT / "sweeps").rglob("*.yaml")):
        if f"\nname: {sweep}\n" in file.read_text(encoding="utf-8"):
            return file
    return None


def _measured(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a line of a CSV."""
    return {
        name: value
        for name, value in line.items()
        if ("/" in name or name == "train_seconds") and pd.notna(value)
    }


def _row(spec: TrialSpec, line: Mapping[str, Any], sweep: str | None) -> dict[str, object]:
    """Return a trial of the record as `analysis.load` reads one; the rest follows from its spec."""
    return plain_row(
        trial_id=line["trial_id"],
        sweep=str(sweep),
        architecture=spec.architecture,
        preset=spec.preset,
        seed=spec.seed,
        settings=flat_settings(spec),
        # As it was counted at the time, where the record says it.
        accounting={
            **(spec.accounting or account(spec)),
            **{name: line[name] for name in ACCOUNTING if pd.notna(line.get(name))},
        },
        metrics=_measured(line),
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
    settings = [name for name in table if name.startswith(SETTINGS)]
    settings = [name for name in settings if table[name].nunique(dropna=False) > 1]
    facts = ["trial_id", "architecture", "preset", "seed", *settings]
    facts += [
        "total_params",
        "active_params",
        "memory_params",
        "training_flops",
        "training_tokens",
        "steps",
        "bytes_read_per_token",
        "train_seconds",
    ]
    metrics = [name for metric, _ in columns for name in (metric, f"{metric}_stderr")]
    known = [name for name in PROVENANCE if table[name].notna().any()]
    kept = dict.fromkeys([*facts, *metrics, *known])
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
    by_trial = _labels([finished.specs[str(name)] for name in table["trial_id"]])
    labels = {name: by_trial[spec.trial_id] for name, spec in finished.specs.items()}
    sizes, costs = _sizes(table), _costs(table)
    headings = [
        "architecture",
        *(["settings"] if any(labels.values()) else []),
        *sizes,
        "training FLOPs",
        *(heading for _, heading in columns),
        *costs,
    ]
    lines += [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    ordered = table.sort_values(
        [
            *varied_numbers(table, "data."),
            "architecture",
            *varied_numbers(table, "model.", "train."),
        ],
        kind="stable",
        na_position="first",
    )
    for _, rows in ordered.groupby("configuration", sort=False):
        first = rows.iloc[0]
        cells = [
            f"{first['architecture']} {first['preset'] or ''}".strip(),
            *([labels[first["trial_id"]]] if any(labels.values()) else []),
            *(count(first[name]) for name in sizes.values()),
            f"{first['training_flops']:.2e}",
            *(_mean(rows, metric) for metric, _ in columns),
            *(_cost(rows.apply(of_row, axis=1)) for of_row in costs.values()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    shown = ", ".join(heading for _, heading in figure_columns(table, columns))
    lines += ["", f"![{shown}]({figure})"]
    if len(runs.excluded):
        lines += ["", "Not finished:", ""]
        lines += [f"* {row.trial_id}: {row.reason}" for row in runs.excluded.itertuples()]
    return [*lines, ""]


def _labels(specs: Sequence[TrialSpec]) -> dict[str, str]:
    """Return trial id to the label of what varies: what a trial sets, not what it was matched to.

    Where two would then share a label, what `match` held equal is named.
    """
    full = trial_labels(specs)
    matches = {spec.trial_id: spec.match for spec in specs if spec.match}
    if not matches:
        return full
    # What was solved for stays unnamed, also of trials beside them that have no match.
    first = next(iter(matches.values()))
    own = trial_labels(
        replace(spec, match={"solve": (spec.match or first)["solve"]}) for spec in specs
    )
    labels = {
        name: own[name] if any(f"{held}=" in label for held in matches.get(name, ())) else label
        for name, label in full.items()
    }
    told_apart, at_most = (
        len({(spec.architecture, spec.preset, of[spec.trial_id]) for spec in specs})
        for of in (labels, full)
    )
    return labels if told_apart == at_most else full


def _sizes(table: pd.DataFrame) -> dict[str, str]:
    """Return heading -> column of the numbers of parameters."""
    memory = "memory_params" in table and (table["memory_params"] > 0).any()
    return {
        "total parameters": "total_params",
        "active": "active_params",
        **({"of a memory": "memory_params"} if memory else {}),
    }


def _costs(table: pd.DataFrame) -> dict[str, Callable[[pd.Series], float]]:
    """Return heading -> a trial's cost, of those that some trial has."""
    costs: dict[str, Callable[[pd.Series], float]] = {
        "MB read a token": lambda row: row.get("bytes_read_per_token", math.nan) / 1e6,
        "tokens/s": lambda row: row["training_tokens"] / row["train_seconds"],
        "peak GB": lambda row: float(row["peak_gpu_bytes"] or math.nan) / 1e9,
        "training, s": lambda row: row["train_seconds"],
    }
    return {
        heading: of_row
        for heading, of_row in costs.items()
        if table.apply(of_row, axis=1).notna().any()
    }


def _cost(values: pd.Series) -> str:
    """Return a mean in three digits or, of large numbers, without places."""
    mean = values.mean()
    if math.isnan(mean):
        return ""
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"


def _spans(trial: TrialDir) -> list[tuple[float, float]]:
    """Return when the attempts of a trial began and ended, in seconds since 1970."""
    spans = []
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
    return spans


def _minutes(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long trials ran: pauses in which none did are left out."""
    seconds, until = 0.0, -math.inf
    for start, end in sorted(spans):
        seconds += max(0.0, end - max(start, until))
        until = max(until, end)
    return seconds / 60


def _about(finished: Finished, sweep_dir: SweepDir) -> list[str]:
    """Return the table of what was run; a CSV of an older page does not say when trials ran."""
    runs, table = finished.runs, finished.runs.table
    timed = table[table["ran"].notna()]
    training = (
        f"{_range(table['steps'])} steps of {_range(table['train.batch_tokens'])} tokens of "
        f"{_range(table['train.seq_len'])}"
    )
    spans = [tuple(map(float, one.split("-"))) for ran in timed["ran"] for one in ran.split(" ")]
    # When trials ran that have not finished, the runs folder alone tells.
    own = set(timed["trial_id"]) - set(finished.recorded)
    others = [trial for trial in sweep_dir.trials() if trial.trial_id not in own]
    minutes = _minutes([*spans, *(span for trial in others for span in _spans(trial))])
    trial_minutes = timed["train_seconds"].sum() / 60
    seeds = ", ".join(map(str, sorted(set(table["seed"]))))
    device = [
        f"{_text(row.device)}, torch {_text(row.torch)}"
        if _text(row.device) != UNKNOWN
        else UNKNOWN
        for row in table.itertuples()
    ]
    data = [] if table["data_sha256"].isna().all() else [_shas(v) for v in table["data_sha256"]]
    facts = {
        "commands": f"`{_command(sweep_dir)}`, `python benchmarks/results_page.py {runs.sweep}`",
        "trials": f"{len(table)} finished, {len(runs.excluded)} not; seeds {seeds}",
    }
    untimed = set(finished.recorded) - set(timed["trial_id"])
    if untimed:
        some = f"it lacks when {len(untimed)} of them ran, and " * (
            untimed < set(finished.recorded)
        )
        facts["recorded before"] = (
            f"{plural(len(finished.recorded), 'trial')}, from {runs.sweep}.csv as it was; {some}"
            "time is of the others"
        )
    if finished.renamed:
        facts["other ids"] = (
            f"{plural(len(finished.renamed), 'trial')} recorded before under ids that the sweep "
            "gives no more: the settings are its own, the files of the data had another sha256"
        )
    facts |= {
        "training": training,
        "code": _counted(
            f"commit {row.git_commit}{_changes(row)}"
            if _text(row.git_commit) != UNKNOWN
            else UNKNOWN
            for row in table.itertuples()
        ),
        "device": _counted(device),
        **({"data, sha256": _counted(data)} if data else {}),
        "finished": _counted(map(_text, table["finished"])),
        "time": f"{minutes:.1f} minutes in which trials ran, {trial_minutes:.1f} trial-minutes of "
        "training; trials share the device, so seconds of single trials cannot be compared",
    }
    return ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in facts.items())]


def _counted(values: Iterable[str]) -> str:
    """Return the values, each with the number of its trials if they differ."""
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({plural(n, 'trial')})" for value, n in sorted(counts.items()))


def _changes(row: Any) -> str:
    """Return what a trial's code had beside its commit."""
    if row.uncommitted_changes is not True:
        return ""
    files = [] if pd.isna(row.changed_files) else row.changed_files.split(", ")
    least = "at least " * (CUT in files)
    files = [name for name in files if name != CUT]
    named, more = files[:MOST_FILES], len(files) - MOST_FILES
    if more > 0:
        named.append(f"{least}{more} more")
    elif least:
        named.append("others")
    return f" with uncommitted changes{' in ' * bool(named)}{_listed(named)}"


def _listed(words: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _text(value: object) -> str:
    return UNKNOWN if value is None or pd.isna(value) else str(value)


def _shas(value: object) -> str:
    """Return hashes of data files, by their first digits."""
    return " ".join(word[:12] for word in _text(value).split(" ")) if pd.notna(value) else UNKNOWN


def _command(sweep_dir: SweepDir) -> str:
    """Return what the sweep's header says to run, else a submission of the file of its name."""
    file = sweep_dir.path / "sweep.yaml"
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        if line.startswith("# Run:"):
            return line.removeprefix("# Run:").strip().split("  ")[0]
    study = _study_file(sweep_dir.path.name)
    named = f"sweeps/{sweep_dir.path.name}.yaml" if study is None else study.relative_to(ROOT)
    return f"memscale submit {named}"


def _sweep_file(sweep_dir: SweepDir) -> Path:
    """Return the file that the sweep's command names, which need not be there."""
    words = _command(sweep_dir).split()
    named = [word for word in words if word.endswith(".yaml")]
    return ROOT / (named[0] if named else f"sweeps/{sweep_dir.path.name}.yaml")


def _range(values: pd.Series) -> str:
    least, most = int(values.min()), int(values.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


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


if __name__ == "__main__":
    main()
