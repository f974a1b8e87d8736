"""From the trials of a sweep file to candidates for the next run, and from those chosen back to a sweep file.

What is written holds every setting of every trial, so a trial keeps its name: submitted alone, beside its sweep, or
later as part of the file that it came from, it is trained once. Beside trials that have not run, further seeds of those
that have are candidates; what they bring depends on how much of the noise is between seeds (`analysis/scaling/experimental_design.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fitting.law import Law
from analysis.formatting import Table, count
from analysis.laws.registry import law_named
from analysis.loading.schema import setting
from analysis.scaling.architecture_laws import COLUMNS, SIZE_INPUTS, ArchitectureLaws, fit_families
from analysis.scaling.experimental_design import (
    Candidate,
    ExperimentalDesign,
    LossAt,
    RankedCandidate,
    Target,
    next_runs,
    parse_target,
    seeds_known,
)

FURTHER = 10.0
"""How many times larger than the largest run the target is that nobody stated."""

LADDER = 0.999
"""Correlation of ln N and ln D from which on tokens are held to grow in step with size: a law of both is then a guess."""

SAME_RATIO = 1.25
"""Factor in tokens per parameter up to which a trial continues a ladder."""


def propose(
    table: pd.DataFrame,
    trials: Sequence[Any],
    *,
    target: str | None = None,
    outcome: str = "loss",
    law: str | None = None,
    extra_seeds: int = 1,
    **options: Any,
) -> ExperimentalDesign:
    """Return which trials to run next, for the runs of a sweep.

    Args:
        table: Of `analysis.load`.
        trials: Planned ones (`orchestrator.planning.pricing.PlannedTrial`), of any sweep file.
        target: As `parse_target`; None is the loss of the best architecture at ten times its largest run.
        outcome: Column that falls with size.
        law: Name of a law; None leaves it to `families_of`.
        extra_seeds: Further seeds that each finished configuration may get.
        options: n_runs, gpu_hours, far, worth and by of `next_runs`.

    Raises:
        ValueError: If nothing can be said; the message says why and what to do.
    """
    families = fit_sweep_laws(table, outcome=outcome, law=law, hold_out=False)
    return propose_from(families, table, trials, target=target, extra_seeds=extra_seeds, **options)


def fit_sweep_laws(
    table: pd.DataFrame, *, outcome: str = "loss", law: str | None = None, **options: Any
) -> ArchitectureLaws:
    """Return the architectures of a sweep, each with a law that its runs can tell.

    Args:
        table: Of `analysis.load`.
        outcome: Column that falls with size.
        law: Name of a law; None is chinchilla where tokens vary beside the size. Where tokens grow in step with the
            size it is power in training FLOPs, and where they are one number power in stored parameters.
        options: As `fit_families`.

    Raises:
        ValueError: If the runs are of several data sets, a column is missing, or no architecture has a usable law.
    """
    names = [str(c) for c in table]
    varied = [c for c in names if c.startswith("data.") and table[c].nunique(dropna=False) > 1]
    if varied:
        raise ValueError(f"{', '.join(varied)}: the sweep has several, and a law is of one data set; use fit_families on the rows of one")  # fmt: skip
    if outcome not in table:
        raise ValueError(f"outcome: no {outcome!r} in the runs; there are {', '.join(c for c in ('loss', 'answer_nll') if c in names)}")  # fmt: skip
    chosen, columns = (law_named(law), None) if law else _law_for(table)
    return fit_families(
        {c: table[c] for c in names}, law=chosen, outcome=outcome, columns=columns, **options
    )


def propose_from(
    families: ArchitectureLaws,
    table: pd.DataFrame,
    trials: Sequence[Any],
    *,
    target: str | None = None,
    extra_seeds: int = 1,
    **options: Any,
) -> ExperimentalDesign:
    """Return what `propose` does, for architectures that are fitted already.

    Raises:
        ValueError: If nothing is left to choose from, or the target cannot be.
    """
    candidates, notes = candidates_of(trials, families, table, extra_seeds=extra_seeds)
    if not candidates:
        raise ValueError(
            f"candidates: none is left to choose from ({'; '.join(notes)}); name a sweep file with other trials (--candidates more.yaml)"
        )
    wanted = parse_target(target, families) if target else default_target(families)
    found = next_runs(families, candidates, wanted, **options)
    left_out = [f"{name} is left out: {why}" for name, why in families.left_out.items()]
    return replace(found, notes=(*found.notes, *left_out, *notes))


def _law_for(table: pd.DataFrame) -> tuple[Law, Mapping[str, str] | None]:
    tokens = next((c for c in COLUMNS["tokens"] if c in table), None)
    if tokens is None or table[tokens].nunique() < 2:
        return law_named("power"), None
    size = next((c for c in COLUMNS["params"] if c in table), None)
    if size is not None and "training_flops" in table and _is_ladder(table, size, tokens):
        return law_named("power"), {"x": "training_flops"}
    return law_named("chinchilla"), None


def _is_ladder(table: pd.DataFrame, size: str, tokens: str) -> bool:
    """Return whether tokens grow in step with size in every architecture that has two sizes."""
    found = []
    for _, rows in table.groupby("architecture"):
        N, D = (np.log(rows[c].to_numpy(dtype=np.float64)) for c in (size, tokens))
        if np.ptp(N) > 0:
            found.append(np.ptp(D) > 0 and abs(float(np.corrcoef(N, D)[0, 1])) > LADDER)
    return bool(found) and all(found)


def candidates_of(
    trials: Sequence[Any], families: ArchitectureLaws, table: pd.DataFrame, *, extra_seeds: int = 1
) -> tuple[list[Candidate], list[str]]:
    """Return one candidate per configuration that is not done, seeds together, one per further seed of those that are, and why others are none.

    Args:
        trials: Planned ones.
        families: What they would be compared with.
        table: The runs that the families were fitted to.
        extra_seeds: Further seeds that a finished configuration may get.
    """
    done = set(table["trial_id"]) if "trial_id" in table else set()
    groups: dict[str, list[Any]] = {}
    for trial in trials:
        key = f"{trial.spec.architecture} {sorted(trial.spec.accounting.items())} {sorted((k, str(v)) for part in (trial.spec.model, trial.spec.train, trial.spec.data) for k, v in part.items())}"
        groups.setdefault(key, []).append(trial)
    found: list[Candidate] = []
    notes: dict[str, int] = {}
    known = seeds_known(families)
    for members in groups.values():
        there = [t for t in members if t.spec.trial_id in done]
        todo = [t for t in members if t.to_train and t.spec.trial_id not in done]
        first = members[0].spec
        why = _unfit(first, families, table)
        if not why and not todo:
            why = _no_further_seed(there, known=known, extra_seeds=extra_seeds)
        if why:
            notes[why] = notes.get(why, 0) + 1
            continue
        further = [] if todo else _further(there[0], members, extra_seeds)
        for i, group in enumerate([todo] if todo else [[t] for t in further]):
            found.append(
                Candidate(
                    name=_name(first) + ("" if todo else f", seed {group[0].spec.seed}"),
                    architecture=first.architecture,
                    inputs={
                        name: float(first.accounting[families.columns[name]])
                        for name in families.named(first.architecture).curve.law.inputs
                    },
                    gpu_hours=sum(_hours(t) for t in group),
                    n_seeds=len(group),
                    n_seeds_done=len(there) + i,
                    trial=tuple(group),
                )
            )
    return found, [f"{n} of {len(groups)} configurations: {why}" for why, n in notes.items()]


def _no_further_seed(there: Sequence[Any], *, known: bool, extra_seeds: int) -> str | None:
    """Return why a configuration with nothing left to train gets no further seed."""
    if not there or not extra_seeds:
        return "done already"
    if not known:
        return "done already, and what a second seed would bring cannot be told: no configuration has two"  # fmt: skip
    return None


def _further(one: Any, members: Sequence[Any], n: int) -> list[Any]:
    """Return the trials of the next seeds of a configuration."""
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


def _unfit(spec: Any, families: ArchitectureLaws, table: pd.DataFrame) -> str | None:
    """Return why a trial's result could not be compared with the runs."""
    if spec.architecture not in families.by_name:
        return f"no law of {spec.architecture}"
    inputs = families.named(spec.architecture).curve.law.inputs
    missing = [families.columns[n] for n in inputs if families.columns[n] not in spec.accounting]
    if missing:
        return f"the plan has no {', '.join(missing)}"
    for key, value in spec.data.items():
        column = f"data.{key}"
        if column in table and len(table) and setting(value) != setting(table[column].iloc[0]):
            return f"another data.{key} than the runs"
    if families.columns.get("x") == "training_flops":
        mine = table[table["architecture"] == spec.architecture]
        ratios = mine["training_tokens"] / mine["active_params"]
        ratio = spec.accounting["training_tokens"] / spec.accounting["active_params"]
        if not ratios.min() / SAME_RATIO <= ratio <= ratios.max() * SAME_RATIO:
            return (
                "other tokens per parameter than the runs, in which tokens grow in step with size"
            )
        return None
    tokens = "training_tokens"
    if "tokens" not in inputs and tokens in table and spec.accounting.get(tokens) not in set(table[tokens]):  # fmt: skip
        return f"other tokens than the runs, and the law {families.named(spec.architecture).curve.law.name} knows none"
    return None


def _hours(trial: Any) -> float:
    gpus = trial.spec.resources.gpus
    devices = float(gpus) if isinstance(gpus, int | float) and gpus > 0 else 1.0
    return max(float(trial.runtime.seconds) * float(trial.remaining) * devices / 3600, 1e-9)


def _name(spec: Any) -> str:
    parts = [spec.architecture, spec.preset or f"{count(spec.accounting['total_params'])} parameters"]  # fmt: skip
    return " ".join([*parts, f"{count(spec.accounting['training_tokens'])} tokens", spec.trial_id[-6:]])  # fmt: skip


def default_target(families: ArchitectureLaws) -> Target:
    """Return the loss at ten times its largest run of the architecture for which that is lowest."""
    targets = []
    for name, family in families.by_name.items():
        domain = family.curve.domain
        inputs: dict[str, float] = {}
        for key in family.curve.law.inputs:
            if key in SIZE_INPUTS:
                inputs[key] = FURTHER * domain.params[1]
            elif key == "tokens" and domain.tokens is not None:
                inputs[key] = FURTHER * domain.tokens[1]
            else:
                inputs[key] = FURTHER * domain.params[1] * float(domain.ratios[-1])
        targets.append(LossAt(architecture=name, inputs=inputs))
    return min(targets, key=lambda t: float(t.values(families.curves())[0]))


def sweep_texts(found: ExperimentalDesign, *, name: str, file: str) -> dict[str, str]:
    """Return the texts of sweep files of the chosen runs, one per set of seeds, by their labels.

    Args:
        found: Of `propose`, or of `next_runs` with candidates of `candidates_of`.
        name: Of the sweep that the runs are to join.
        file: Under which it will be saved, for the command in its header.

    Raises:
        ValueError: If nothing was chosen, or candidates are not planned trials.
    """
    if not found.chosen:
        raise ValueError(f"next runs: nothing to write; {found.sentence}")
    if any(r.candidate.trial is None for r in found.chosen):
        raise ValueError("next runs: the candidates are no planned trials, so there is nothing to submit; make them with candidates_of")  # fmt: skip
    hours = sum(r.candidate.gpu_hours for r in found.chosen)
    n = sum(len(r.candidate.trial) for r in found.chosen)
    header = [
        f"# Question: {found.target.description}, more narrowly",
        f"# Run:      memscale submit {file}",
        f"# Cost:     {n} trials, {hours:.2g} GPU-hours predicted",
        f"# Expect:   the interval at {found.chosen[-1].width:.0%} of its width now ({found.value:.4g} to a factor of {math.exp(1.96 * found.sd):.4f} at 95%)",
    ]
    # A sweep file has one list of seeds, so chosen runs with other seeds go into a file of their own.
    by_seeds: dict[tuple[int, ...], list[RankedCandidate]] = {}
    for r in found.chosen:
        by_seeds.setdefault(tuple(sorted(t.spec.seed for t in r.candidate.trial)), []).append(r)
    texts = {
        f"seeds {', '.join(map(str, seeds))}": _part(name, seeds, members)
        for seeds, members in by_seeds.items()
    }
    first = next(iter(texts))
    texts[first] = "\n".join([*header, texts[first]])
    return texts


def _part(name: str, seeds: Sequence[int], chosen: Sequence[RankedCandidate]) -> str:
    """Return the text of a sweep file whose trials have all the same seeds."""
    first = chosen[0].candidate.trial[0].spec
    base = {part: _settings(first, part) for part in PARTS}
    lines = [
        f"name: {name}",
        *(f"{part}: {_flow(base[part])}" for part in ("data", "train")),
        "trials:",
    ]
    for r in chosen:
        spec = r.candidate.trial[0].spec
        model = dict(spec.model) | ({"preset": spec.preset} if spec.preset else {})
        changes = {f"model.{k}": v for k, v in model.items()}
        for part, values in base.items():
            own = _settings(spec, part)
            changes |= {f"{part}.{k}": v for k, v in own.items() if values.get(k) != v}
        lines += [
            f"  # {r.candidate.name}: width {r.width:.1%} with those above, {r.candidate.gpu_hours:.2g} GPU-hours"
            + (f", {r.tokens_per_param:.3g} tokens per parameter" if math.isfinite(r.tokens_per_param) else "")
            + (f", {r.outside:.3g} times outside the runs" if r.outside > 1 + 1e-9 else ""),
            f"  - set: {_flow(changes)}",
        ]  # fmt: skip
    return "\n".join(
        [*lines, f"seeds: {list(seeds)}", f"resources: {_flow(base['resources'])}", ""]
    )


PARTS = ("data", "train", "resources")
"""Sections that trials of one file share unless they say otherwise."""


def _settings(spec: Any, part: str) -> dict[str, Any]:
    if part == "resources":
        return {key: value for key, value in vars(spec.resources).items() if value is not None}
    return dict(getattr(spec, part))


def _flow(values: Mapping[str, Any]) -> str:
    """Return a mapping on one line, as YAML reads it back."""
    import yaml

    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    text: str = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip()


def ranking(found: ExperimentalDesign, *, rows: int = 12) -> Table:
    """Return the candidates as a table to print, the chosen ones first."""
    at = {id(r.candidate): i + 1 for i, r in enumerate(found.chosen)}
    ordered = sorted(found.ranked, key=lambda r: at.get(id(r.candidate), len(at) + 1))
    shown = ordered[: max(rows, len(at))]
    notes = [found.sentence, "width: of the target's interval once this run alone is there, over the width now"]  # fmt: skip
    if len(ordered) > len(shown):
        notes.append(f"{len(ordered) - len(shown)} more candidates bring less per GPU-hour")
    return Table(
        title="Next runs",
        columns=("run", "candidate", "D/N", "GPU-hours", "width", "removed per GPU-hour", "outside runs"),
        rows=tuple(
            (
                str(at.get(id(r.candidate), "")),
                r.candidate.name,
                "–" if math.isnan(r.tokens_per_param) else f"{r.tokens_per_param:.3g}",
                f"{r.candidate.gpu_hours:.2g}",
                f"{r.width:.1%}",
                f"{r.per_gpu_hour:.2g}",
                "–" if r.outside <= 1 + 1e-9 else f"{r.outside:.3g}×",
            )
            for r in shown
        ),
        numeric=(True, False, True, True, True, True, True),
        notes=(*notes, *found.notes),
    )  # fmt: skip
