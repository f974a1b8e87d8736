"""Candidate trials of an experimental design: new trials and further seeds.

What a further seed brings depends on how much of the noise is between seeds
(`analysis/scaling/seed_noise.py`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.formatting import count, some_of
from analysis.laws.registry import law_named
from analysis.loading.schema import setting
from analysis.scaling.architecture_laws import ArchitectureLaws
from analysis.scaling.best_settings import LENGTH, chosen_between, has_lengths, size_names
from analysis.scaling.design_candidate import Candidate
from analysis.scaling.design_result import ExperimentalDesign
from analysis.scaling.design_targets import LossAt, Target, parse_target
from analysis.scaling.experimental_design import next_runs
from analysis.scaling.run_columns import SIZE_INPUTS
from analysis.scaling.seed_noise import seeds_known
from analysis.scaling.series_curves import varied_in
from analysis.scaling.sweep_laws import fit_sweep_laws
from analysis.scaling.sweep_summary import best_rows
from orchestrator.records.varied_settings import flat_settings, setting_label, varied_settings

OTHER_LAWS = ("kaplan", "farseer")
"""Averaged over with the law that `fit_sweep_laws` takes, where they have its inputs."""

FURTHER = 10.0
"""How many times larger than the largest run the target is that nobody stated."""

SAME_RATIO = 1.25
"""Factor in tokens per parameter up to which a trial continues a ladder."""

MOST_SETTINGS = 3
"""Settings that tell candidates apart in a name; where more differ, the trial's id does."""

ID_LETTERS = 6
"""Letters of an id after the architecture: enough for `memscale logs` to find the trial."""

GPUS = "device/gpus"
"""Column of the GPUs that a run held."""

Unit = Literal["GPU-hours", "core-hours"]


def propose(
    table: pd.DataFrame,
    trials: Sequence[Any],
    *,
    outcome: str = "loss",
    law: str | None = None,
    **options: Any,
) -> ExperimentalDesign:
    """Return which trials to run next, for the runs of a sweep.

    Laws go through the best settings of every size, as in a report.

    Args:
        table: Of `analysis.load`.
        trials: Planned ones (`orchestrator.planning.pricing.PlannedTrial`), of any sweep file.
        outcome: Column that falls with size.
        law: Name of a law; None leaves it to `fit_sweep_laws`.
        options: As `propose_from`.

    Raises:
        ValueError: If nothing can be said; the message says why and what to do.
    """
    laws = fit_sweep_laws(best_rows(table), outcome=outcome, law=law, hold_out=False)
    return propose_from(laws, table, trials, average=law is None, **options)


def _other_laws(table: pd.DataFrame, laws: ArchitectureLaws) -> list[ArchitectureLaws]:
    """Return fits of the other laws of the same inputs, to average over."""
    first = next(iter(laws.by_name.values())).curve.law
    found = []
    for name in OTHER_LAWS:
        if law_named(name).inputs != first.inputs or name == first.name:
            continue
        try:
            fit = fit_sweep_laws(table, outcome=laws.outcome, law=name, hold_out=False, n_draws=0)
        except ValueError:
            # No architecture has enough runs for it.
            continue
        found.append(fit)
    return found


def propose_from(
    laws: ArchitectureLaws,
    table: pd.DataFrame,
    trials: Sequence[Any],
    *,
    target: str | None = None,
    extra_seeds: int = 1,
    average: bool = True,
    **options: Any,
) -> ExperimentalDesign:
    """Return what `propose` does, for laws that are fitted already.

    Args:
        laws: Of the table's best runs (`best_rows`).
        table: Of `analysis.load`.
        trials: Planned ones.
        target: As `parse_target`; None is the loss of the best architecture at ten times its
            largest run, with its own experts and its most memory per parameter.
        extra_seeds: Further seeds that each finished configuration may get.
        average: Whether to average over other laws of the same inputs, too.
        options: n_runs, gpu_hours, far, worth and by of `next_runs`.

    Raises:
        ValueError: If nothing is left to choose from, or the target cannot be.
    """
    candidates, notes = candidates_of(trials, laws, table, extra_seeds=extra_seeds)
    if not candidates:
        raise ValueError(
            f"candidates: none is left to choose from ({'; '.join(notes)});"
            " name a sweep file with other trials (--candidates more.yaml)"
        )
    wanted = parse_target(target, laws) if target else default_target(laws)
    # Last, once all that may be wrong is checked, because it takes longer.
    others = _other_laws(best_rows(table), laws) if average else ()
    design = next_runs(laws, candidates, wanted, others=others, **options)
    left_out = [f"{name} is left out: {why}" for name, why in laws.left_out.items()]
    return replace(design, notes=(*design.notes, *left_out, *notes))


def candidates_of(
    trials: Sequence[Any], laws: ArchitectureLaws, table: pd.DataFrame, *, extra_seeds: int = 1
) -> tuple[list[Candidate], list[str]]:
    """Return the candidates among planned trials, and why the other configurations are none.

    A configuration that is not done is one candidate, all its seeds together. One that is done has
    a candidate for each further seed. One whose settings were worse than others has none, for laws
    go through the best.

    Args:
        trials: Planned ones.
        laws: What they would be compared with.
        table: Of `analysis.load`.
        extra_seeds: Further seeds that a finished configuration may get.
    """
    done = set(table["trial_id"]) if "trial_id" in table else set()
    configurations: dict[str, list[Any]] = {}
    for trial in trials:
        configurations.setdefault(trial.spec.configuration_id, []).append(trial)
    for members in configurations.values():
        members.sort(key=lambda t: int(t.spec.seed))
    found: list[Candidate] = []
    notes: Counter[str] = Counter()
    known = seeds_known(laws)
    runs_on_gpu = _on_gpu(table)
    unit: Unit = "GPU-hours" if any(_gpus(t, runs_on_gpu) for t in trials) else "core-hours"
    names = _names({key: members[0].spec for key, members in configurations.items()})
    worse = _worse_settings(table)
    for key, members in configurations.items():
        there = [t for t in members if t.spec.trial_id in done]
        todo = [t for t in members if t.to_train and t.spec.trial_id not in done]
        first = members[0].spec
        why = _not_comparable(first, laws, table)
        if not why and not todo:
            why = _no_further_seed(there, known=known, extra_seeds=extra_seeds)
        why = why or worse(first)
        if why:
            notes[why] += 1
            continue
        groups = [todo] if todo else [[t] for t in _further_seeds(there[0], members, extra_seeds)]
        for i, group in enumerate(groups):
            seed = "" if todo else f", seed {group[0].spec.seed}"
            hours = sum(_hours(t, unit, on_gpu=runs_on_gpu) for t in group)
            found.append(
                _candidate(
                    group,
                    laws,
                    name=names[key] + seed,
                    gpu_hours=max(hours, 1e-9),
                    unit=unit,
                    n_seeds_done=len(there) + i,
                )
            )
    n = len(configurations)
    return found, [f"{k} of {n} configurations: {why}" for why, k in notes.items()]


def _candidate(trials: Sequence[Any], laws: ArchitectureLaws, **known: Any) -> Candidate:
    spec = trials[0].spec
    inputs = laws.named(spec.architecture).curve.law.inputs
    return Candidate(
        architecture=spec.architecture,
        inputs={name: float(spec.accounting[laws.columns[name]]) for name in inputs},
        n_seeds=len(trials),
        trials=tuple(trials),
        **known,
    )


def _no_further_seed(there: Sequence[Any], *, known: bool, extra_seeds: int) -> str | None:
    """Return why a configuration with nothing left to train gets no further seed."""
    if not there or not extra_seeds:
        return "done already"
    if not known:
        return (
            "done already, and what a second seed would bring cannot be told:"
            " no configuration has two"
        )
    return None


def _further_seeds(one: Any, members: Sequence[Any], n: int) -> list[Any]:
    """Return the trials of the next n seeds of a configuration."""
    last = max(t.spec.seed for t in members)
    return [
        replace(
            one,
            spec=replace(one.spec, seed=last + i, origin=f"a further seed, {last + i}"),
            status="new",
            why="a further seed",
            remaining=1.0,
        )
        for i in range(1, n + 1)
    ]


def _not_comparable(spec: Any, laws: ArchitectureLaws, table: pd.DataFrame) -> str | None:
    """Return why a trial's result could not be compared with the runs."""
    if spec.architecture not in laws.by_name:
        return f"no law of {spec.architecture}"
    law = laws.named(spec.architecture).curve.law
    missing = [laws.columns[n] for n in law.inputs if laws.columns[n] not in spec.accounting]
    if missing:
        return f"the plan has no {', '.join(missing)}"
    for key, value in spec.data.items():
        column = f"data.{key}"
        if column in table and len(table) and setting(value) != setting(table[column].iloc[0]):
            return f"another data.{key} than the runs"
    if laws.columns.get("x") == "training_flops":
        mine = table[table["architecture"] == spec.architecture]
        ratios = mine["training_tokens"] / mine["active_params"]
        ratio = spec.accounting["training_tokens"] / spec.accounting["active_params"]
        if not ratios.min() / SAME_RATIO <= ratio <= ratios.max() * SAME_RATIO:
            return (
                "other tokens per parameter than the runs, in which tokens grow in step with size"
            )
        return None
    tokens = "training_tokens"
    fixed = "tokens" not in law.inputs and tokens in table
    if fixed and spec.accounting.get(tokens) not in set(table[tokens]):
        return f"other tokens than the runs, and the law {law.name} knows none"
    return None


def _worse_settings(table: pd.DataFrame) -> Callable[[Any], str | None]:
    """Return what says of a trial's spec why its settings are worse than others, None if not.

    They are if the runs nearest in size and length tried them and others were better there.
    """
    varied = varied_in(table) if len(table) else ()
    tuned = chosen_between(table, varied)
    if not tuned:
        return lambda spec: None
    rows = table.drop_duplicates("configuration")
    apart = [name for name in varied if name not in (*tuned, LENGTH)]
    places = size_names(rows)
    for name in (*apart, *[LENGTH] * has_lengths(rows)):
        places = places + " " + rows[name].astype(str)
    cells = [dict(zip(tuned, row, strict=True)) for row in rows[tuned].itertuples(index=False)]
    tried = pd.Series([_label(row, tuned) for row in cells], index=rows.index)
    is_best = rows["configuration"].isin(best_rows(table)["configuration"])
    axes = [column for column in ("total_params", "training_tokens") if column in rows]

    def why(spec: Any) -> str | None:
        mine = rows[rows["architecture"] == spec.architecture]
        here = np.asarray([spec.accounting[column] for column in axes], dtype=np.float64)
        distances = np.abs(np.log(mine[axes].to_numpy(dtype=np.float64) / here)).sum(axis=1)
        near = mine.index[np.argsort(distances, kind="stable")]
        asked = _label(flat_settings(spec), apart)
        alike_apart = (i for i in near if _label(rows.loc[i], apart) == asked)
        nearest = next(alike_apart, near[0])
        there = mine.index[places[mine.index] == places[nearest]]
        alike = there[tried[there] == _label(flat_settings(spec), tuned)]
        if alike.empty or is_best[alike].any():
            return None
        return f"{some_of(tuned)} worse than another at the nearest size"

    return why


def _label(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the named settings of a table's row or of a spec in one text for both."""
    cells = {name: setting(settings[name]) for name in names if name in settings}
    return setting_label({n: v for n, v in cells.items() if v is not None and v == v}, names)


def _on_gpu(table: pd.DataFrame) -> bool:
    """Return whether runs were trained on GPUs, for trials that leave it to the machine."""
    return GPUS in table and bool((pd.to_numeric(table[GPUS], errors="coerce") > 0).any())


def _gpus(trial: Any, on_gpu: bool) -> float:
    """Return the GPUs that a trial gets; `auto` is one per rank, where there are some."""
    resources = trial.spec.resources
    asked = resources.gpus
    return float(resources.ranks * on_gpu) if isinstance(asked, str) else float(asked)


def _hours(trial: Any, unit: Unit, *, on_gpu: bool) -> float:
    """Return the hours that a trial still takes, times its GPUs or its cores.

    Beside trials with GPUs, the hours of one without count once.
    """
    resources = trial.spec.resources
    devices = _gpus(trial, on_gpu) or 1.0
    if unit == "core-hours":
        devices = float(resources.cpus * resources.ranks)
    return float(trial.runtime.seconds) * float(trial.remaining) * devices / 3600


def _names(specs: Mapping[str, Any]) -> dict[str, str]:
    """Return a name for each configuration, with what tells it apart where two have the same."""
    alike: dict[str, list[str]] = {}
    for key, spec in specs.items():
        alike.setdefault(_name(spec), []).append(key)
    found: dict[str, str] = {}
    for name, keys in alike.items():
        own = _what_differs([specs[key] for key in keys]) if len(keys) > 1 else [""]
        found |= {key: name + told for key, told in zip(keys, own, strict=True)}
    return found


def _name(spec: Any) -> str:
    size = spec.preset or f"{count(spec.accounting['total_params'])} parameters"
    return f"{spec.architecture} {size} {count(spec.accounting['training_tokens'])} tokens"


def _what_differs(specs: Sequence[Any]) -> list[str]:
    """Return for each of several configurations its settings that others have otherwise.

    Where these are many, or do not tell all apart, it is the beginning of the trial's id.
    """
    settings = [flat_settings(spec) for spec in specs]
    differ = varied_settings(
        (spec.architecture, spec.preset, one) for spec, one in zip(specs, settings, strict=True)
    )
    labels = [setting_label(one, differ) for one in settings]
    if len(differ) <= MOST_SETTINGS and len(set(labels)) == len(labels):
        return [f" ({label})" if label else "" for label in labels]
    return [f" ({spec.trial_id[: len(spec.architecture) + 1 + ID_LETTERS]})" for spec in specs]


def default_target(laws: ArchitectureLaws) -> Target:
    """Return the lowest of the losses of architectures at ten times their largest run.

    Each has as many experts as its runs, and as much memory per parameter as the most of them.
    """
    targets = []
    for name, law in laws.by_name.items():
        domain = law.curve.domain
        inputs: dict[str, float] = {}
        for key in law.curve.law.inputs:
            if key in SIZE_INPUTS:
                inputs[key] = FURTHER * domain.params[1]
            elif key == "tokens" and domain.tokens is not None:
                inputs[key] = FURTHER * domain.tokens[1]
            elif key == "experts" and domain.experts is not None:
                inputs[key] = domain.experts
            else:
                inputs[key] = FURTHER * domain.params[1] * float(domain.ratios[-1])
        targets.append(LossAt(architecture=name, inputs=inputs))
    return min(targets, key=lambda t: float(t.values(laws.curves())[0]))
