"""From the trials of a sweep file to candidates for the next run, and from those chosen back to a sweep file.

What is written holds every setting of every trial, so a trial keeps its name: submitted alone, beside its sweep, or
later as part of the file that it came from, it is trained once.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.families import SIZE_INPUTS, Families, fit_families
from analysis.law import Law
from analysis.law_book import law_named
from analysis.next_run import Candidate, LossAt, NextRuns, Target, next_runs, parse_target
from analysis.run_table import setting
from analysis.tables import Table, count

FURTHER = 10.0
"""How many times larger than the largest run the target is that nobody stated."""


def propose(
    table: pd.DataFrame,
    trials: Sequence[Any],
    *,
    target: str | None = None,
    outcome: str = "loss",
    law: str | None = None,
    **options: Any,
) -> NextRuns:
    """Return which trials to run next, for the runs of a sweep.

    Args:
        table: Of `analysis.load`.
        trials: Planned ones (`orchestrator.plan.PlannedTrial`), of any sweep file.
        target: As `parse_target`; None is the loss of the best architecture at ten times its largest run.
        outcome: Column that falls with size.
        law: Name of a law; None is chinchilla where the tokens vary, else power in stored parameters.
        options: n_runs, gpu_hours, far, worth and by of `next_runs`.

    Raises:
        ValueError: If nothing can be said; the message says why and what to do.
    """
    names = [str(c) for c in table]
    varied = [c for c in names if c.startswith("data.") and table[c].nunique(dropna=False) > 1]
    if varied:
        raise ValueError(f"{', '.join(varied)}: the sweep has several, and a law is of one data set; use fit_families on the rows of one")  # fmt: skip
    if outcome not in table:
        raise ValueError(f"outcome: no {outcome!r} in the runs; there are {', '.join(c for c in ('loss', 'answer_nll') if c in names)}")  # fmt: skip
    chosen = law_named(law) if law else _law_for(table)
    families = fit_families(
        {c: table[c] for c in names}, law=chosen, outcome=outcome, hold_out=False
    )
    candidates, notes = candidates_of(trials, families, table)
    if not candidates:
        raise ValueError(
            f"candidates: none is left to choose from ({'; '.join(notes)}); name a sweep file with other trials (--candidates more.yaml)"
        )
    wanted = parse_target(target, families) if target else default_target(families)
    found = next_runs(families, candidates, wanted, **options)
    left_out = [f"{name} is left out: {why}" for name, why in families.left_out.items()]
    return NextRuns(**{**vars(found), "notes": (*found.notes, *left_out, *notes)})


def _law_for(table: pd.DataFrame) -> Law:
    tokens = "training_tokens" if "training_tokens" in table else "tokens"
    return law_named("chinchilla" if tokens in table and table[tokens].nunique() > 1 else "power")


def candidates_of(
    trials: Sequence[Any], families: Families, table: pd.DataFrame
) -> tuple[list[Candidate], list[str]]:
    """Return one candidate per configuration that is not done, seeds together, and why others are none."""
    done = set(table["trial_id"]) if "trial_id" in table else set()
    groups: dict[str, list[Any]] = {}
    for trial in trials:
        key = f"{trial.spec.architecture} {sorted(trial.spec.accounting.items())} {sorted((k, str(v)) for part in (trial.spec.model, trial.spec.train, trial.spec.data) for k, v in part.items())}"
        groups.setdefault(key, []).append(trial)
    found: list[Candidate] = []
    notes: dict[str, int] = {}
    for members in groups.values():
        todo = [t for t in members if t.to_train and t.spec.trial_id not in done]
        first = members[0].spec
        why = "done already" if not todo else _unfit(first, families, table)
        if why:
            notes[why] = notes.get(why, 0) + 1
            continue
        found.append(
            Candidate(
                name=_name(first),
                architecture=first.architecture,
                inputs={
                    name: float(first.accounting[families.columns[name]])
                    for name in families.named(first.architecture).curve.law.inputs
                },
                gpu_hours=sum(_hours(t) for t in todo),
                n_seeds=len(todo),
                trial=tuple(todo),
            )
        )
    return found, [f"{n} of {len(groups)} configurations: {why}" for why, n in notes.items()]


def _unfit(spec: Any, families: Families, table: pd.DataFrame) -> str | None:
    """Return why a trial's result could not be compared with the runs."""
    if spec.architecture not in families.families:
        return f"no law of {spec.architecture}"
    inputs = families.named(spec.architecture).curve.law.inputs
    missing = [families.columns[n] for n in inputs if families.columns[n] not in spec.accounting]
    if missing:
        return f"the plan has no {', '.join(missing)}"
    for key, value in spec.data.items():
        column = f"data.{key}"
        if column in table and len(table) and setting(value) != setting(table[column].iloc[0]):
            return f"another data.{key} than the runs"
    tokens = "training_tokens"
    if "tokens" not in inputs and tokens in table and spec.accounting.get(tokens) not in set(table[tokens]):  # fmt: skip
        return f"other tokens than the runs, and the law {families.named(spec.architecture).curve.law.name} knows none"
    return None


def _hours(trial: Any) -> float:
    gpus = trial.spec.resources.gpus
    devices = float(gpus) if isinstance(gpus, int | float) and gpus > 0 else 1.0
    return max(float(trial.forecast.seconds) * float(trial.remaining) * devices / 3600, 1e-9)


def _name(spec: Any) -> str:
    parts = [spec.architecture, spec.preset or f"{count(spec.accounting['total_params'])} parameters"]  # fmt: skip
    return " ".join([*parts, f"{count(spec.accounting['training_tokens'])} tokens", spec.trial_id[-6:]])  # fmt: skip


def default_target(families: Families) -> Target:
    """Return the loss at ten times its largest run of the architecture for which that is lowest."""
    targets = []
    for name, family in families.families.items():
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


def sweep_text(found: NextRuns, *, name: str, file: str) -> str:
    """Return a sweep file of the chosen runs.

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
    specs = [[t.spec for t in r.candidate.trial] for r in found.chosen]
    first = specs[0][0]
    seeds = sorted({s.seed for group in specs for s in group})
    base = {part: dict(getattr(first, part)) for part in ("data", "train")}
    resources = {key: value for key, value in vars(first.resources).items() if value is not None}
    hours = sum(r.candidate.gpu_hours for r in found.chosen)
    lines = [
        f"# Question: {found.target.words}, more narrowly",
        f"# Run:      memscale submit {file}",
        f"# Cost:     {sum(len(g) for g in specs)} trials, {hours:.2g} GPU-hours predicted",
        f"# Expect:   the interval at {found.chosen[-1].width:.0%} of its width now ({found.value:.4g} to a factor of {math.exp(1.96 * found.sd):.4f} at 95%)",
        f"name: {name}",
        f"data: {_flow(base['data'])}",
        f"train: {_flow(base['train'])}",
        "trials:",
    ]
    for r, group in zip(found.chosen, specs, strict=True):
        spec = group[0]
        model = dict(spec.model) | ({"preset": spec.preset} if spec.preset else {})
        changes = {f"model.{k}": v for k, v in model.items()}
        for part, values in base.items():
            own = dict(getattr(spec, part))
            changes |= {f"{part}.{k}": v for k, v in own.items() if values.get(k) != v}
        lines += [
            f"  # {r.candidate.name}: width {r.width:.1%} with those above, {r.candidate.gpu_hours:.2g} GPU-hours"
            + (f", {r.tokens_per_param:.3g} tokens per parameter" if math.isfinite(r.tokens_per_param) else "")
            + (f", {r.outside:.3g} times outside the runs" if r.outside > 1 + 1e-9 else ""),
            f"  - set: {_flow(changes)}",
        ]  # fmt: skip
    return "\n".join([*lines, f"seeds: {seeds}", f"resources: {_flow(resources)}", ""])


def _flow(values: Mapping[str, Any]) -> str:
    """Return a mapping on one line, as YAML reads it back."""
    import yaml

    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    text: str = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip()


def ranking(found: NextRuns, *, rows: int = 12) -> Table:
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
