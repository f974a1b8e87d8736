"""Sweep files of the runs that an experimental design chose.

What is written holds every setting of every trial, so a trial keeps its name. Submitted alone,
beside its sweep, or later as part of the file that it came from, it is trained once.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.scaling.design_result import ExperimentalDesign, RankedCandidate
from orchestrator.records.units import plural

SECTIONS = ("data", "train", "resources")
"""Settings that trials of one file share unless they say otherwise."""


def sweep_texts(
    design: ExperimentalDesign, *, name: str, file: str, question: str | None = None
) -> dict[str, str]:
    """Return the texts of sweep files of the chosen runs, one per set of seeds, by their labels.

    Args:
        design: Of `propose`, or of `next_runs` with candidates of `candidates_of`.
        name: Of the sweep that the runs are to join.
        file: Under which it will be saved, for the command in its header.
        question: Of that sweep, which its report goes on to answer.

    Raises:
        ValueError: If nothing was chosen, or candidates are not planned trials.
    """
    if not design.chosen:
        raise ValueError(f"next runs: nothing to write; {design.sentence}")
    if not all(r.candidate.trials for r in design.chosen):
        raise ValueError(
            "next runs: the candidates are no planned trials, so there is nothing to submit;"
            " make them with candidates_of"
        )
    # A sweep file has one list of seeds, so chosen runs with other seeds go into another file.
    by_seeds: dict[tuple[int, ...], list[RankedCandidate]] = {}
    for r in design.chosen:
        by_seeds.setdefault(tuple(sorted(t.spec.seed for t in r.candidate.trials)), []).append(r)
    texts = {
        f"seeds {', '.join(map(str, seeds))}": _sweep_text(name, seeds, members)
        for seeds, members in by_seeds.items()
    }
    first = next(iter(texts))
    texts[first] = _header(design, file, question) + texts[first]
    return texts


def _header(design: ExperimentalDesign, file: str, question: str | None) -> str:
    n = sum(len(r.candidate.trials) for r in design.chosen)
    asked = " ".join((question or "").split())
    now = "not known yet"
    if design.is_known:
        now = f"{design.value:.4g} {design.interval()} at {design.level:.0%}"
    return (
        (f"# Question: {asked}\n" if asked else "") + f"# Narrows:  {design.target_words}\n"
        f"# Run:      memscale submit {file}\n"
        f"# Cost:     {plural(n, 'trial')}, {design.gpu_hours:.2g} {design.unit} predicted\n"
        f"# Expect:   the interval at {design.chosen[-1].width:.0%} of its width now"
        f" ({now})\n"
    )


def _sweep_text(name: str, seeds: Sequence[int], chosen: Sequence[RankedCandidate]) -> str:
    """Return the text of a sweep file whose trials have all the same seeds."""
    specs = [r.candidate.trials[0].spec for r in chosen]
    shared = {section: _settings(specs[0], section) for section in SECTIONS}
    lines = [
        f"name: {name}",
        *(f"{section}: {_flow(shared[section])}" for section in ("data", "train")),
        "trials:",
    ]
    for r, spec in zip(chosen, specs, strict=True):
        model = dict(spec.model) | ({"preset": spec.preset} if spec.preset else {})
        changes = {f"model.{k}": v for k, v in model.items()}
        for section, values in shared.items():
            own = _settings(spec, section)
            changes |= {f"{section}.{k}": v for k, v in own.items() if values.get(k) != v}
        lines += [f"  # {_reason(r)}", f"  - set: {_flow(changes)}"]
    lines += [f"seeds: {list(seeds)}", f"resources: {_flow(shared['resources'])}", ""]
    return "\n".join(lines)


def _reason(r: RankedCandidate) -> str:
    """Return what a run brings and where it lies, for the comment above it."""
    reason = (
        f"{r.candidate.name}: width {r.width:.1%} with those above,"
        f" {r.candidate.gpu_hours:.2g} {r.candidate.unit}"
    )
    if math.isfinite(r.tokens_per_param):
        reason += f", {r.tokens_per_param:.3g} tokens per parameter"
    if r.outside > 1 + 1e-9:
        reason += f", {r.outside:.3g} times outside the runs"
    return reason


def _settings(spec: Any, section: str) -> dict[str, Any]:
    if section == "resources":
        return {key: value for key, value in vars(spec.resources).items() if value is not None}
    return dict(getattr(spec, section))


def _flow(values: Mapping[str, Any]) -> str:
    """Return a mapping on one line, as YAML reads it back."""
    import yaml

    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    text: str = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip()
