"""Experimental design: trials that narrow a target's interval most per GPU-hour.

Every fit is, near its optimum, a linear regression on the Jacobian J of ln(loss). With the
covariance S of the coefficients, a target's gradient g, a candidate's own row j and the variance v
of what it will measure,

    variance of the target now           g S g
    variance once the candidate has run  g S g - (g S j)^2 / (v + j S j)

(Bayesian linear design: Chaloner and Verdinelli 1995, section 2; the update is Sherman and
Morrison's). S is (sum j j / v)^-1 over the configurations that are there. A configuration's mean
has the variance between configurations, plus that between seeds over their number
(`analysis/scaling/seed_noise.py`). `by="draws"` takes covariances over the resamples instead,
which does not assume that the law is linear.

Variance by one law asks for extremes, where that law is least sure, and for the cheapest runs. If
the law is wrong that is worse than no design. So the default, `by="averaged"`, counts what a run
brings under several laws and under kriging, which needs no law (`analysis/scaling/kriging.py`), to
the target and to all candidates, and chooses runs of many sizes
(`analysis/scaling/greedy_design.py`), in the shape of the target
(`analysis/scaling/local_weights.py`). A law that misfits does not count.
Every candidate comes with its tokens per parameter and how far outside the runs it lies.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.scaling.architecture_laws import ArchitectureLaw, ArchitectureLaws
from analysis.scaling.design_candidate import Candidate, as_candidate
from analysis.scaling.design_covariance import (
    covariance_by_draws,
    covariance_by_information,
    covariance_over_laws,
    log_target,
)
from analysis.scaling.design_result import ExperimentalDesign, RankedCandidate, target_in_words
from analysis.scaling.design_targets import LossAt, Target, parse_target
from analysis.scaling.greedy_design import (
    DesignModel,
    Plan,
    greedy_plan,
    mean_removed,
    of_targets,
    spread_plan,
)
from analysis.scaling.kriging import kriging
from analysis.scaling.local_weights import local_weights
from analysis.scaling.run_columns import SIZE_INPUTS
from analysis.scaling.seed_noise import noise_variances, seeds_known

Array = NDArray[np.float64]

FAR = 4.0
"""A candidate this many times outside the runs in some size is marked: there the law is a guess."""

WORTH = 0.02
"""Share of the target's variance that a run has to remove by itself to be chosen.

The cheapest runs are the best per GPU-hour, and bring nothing."""

By = Literal["averaged", "information", "draws"]


WITHOUT_LAW = "kriging, which needs no law, gives the target's value and chooses the runs"

ALONE = (
    "what it says about further runs is not to be relied on; spread them evenly over sizes and"
    " tokens"
)


def next_runs(
    laws: ArchitectureLaws,
    candidates: Sequence[Candidate | Mapping[str, Any]],
    target: Target | str,
    *,
    n_runs: int = 3,
    gpu_hours: float | None = None,
    far: float | None = None,
    worth: float = WORTH,
    by: By = "averaged",
    others: Sequence[ArchitectureLaws] = (),
) -> ExperimentalDesign:
    """Return the candidates in order, and which to run.

    Args:
        laws: Of `fit_families`.
        candidates: To choose from, each at most once; or a dict of each one's fields: `name`,
            `architecture`, `inputs` (of the law, such as `{"params": 1e9, "tokens": 2e10}`) and
            `gpu_hours`.
        target: What to know better; a text is read by `parse_target`.
        n_runs: Most runs to choose.
        gpu_hours: Most GPU-hours to spend; None is no limit.
        far: Do not choose what lies further outside the runs than this factor; None is no limit.
        worth: Do not choose what would remove a smaller share of the variance than this.
        by: averaged: over kriging and the laws that do not misfit, for a loss; over the laws, for a
            multiplier. information: the law alone, linearised, exact for a linear fit. draws: the
            law alone, covariances over the resamples.
        others: Fits of other laws to the same runs, to average over.

    Raises:
        ValueError: If there is no candidate, one cannot be placed on its law, the target has no
            value, it is a multiplier of a law that misfits, or there are too few runs to know how
            uncertain it is.

    Example:
        >>> from analysis import fit_families
        >>> from analysis.fitting.synthetic import make_runs
        >>> from analysis.laws.chinchilla import CHINCHILLA
        >>> runs = make_runs(CHINCHILLA, 24, noise=0.01) | {"architecture": ["dense"] * 24}
        >>> laws = fit_families(runs, n_draws=0)
        >>> offered = [
        ...     {
        ...         "name": f"{n:.0e}",
        ...         "architecture": "dense",
        ...         "inputs": {"params": n, "tokens": 2e11},
        ...         "gpu_hours": 1.0,
        ...     }
        ...     for n in (1e7, 1e8, 1e10)
        ... ]
        >>> found = next_runs(laws, offered, "dense: params=7e10, tokens=1.4e12", n_runs=1)
        >>> [one.candidate.name for one in found.chosen]
        ['1e+10']
    """
    if not candidates:
        raise ValueError("candidates: none; give trials that are not in the runs yet")
    # Whatever can be wrong is said before kriging and laws are asked, which takes seconds.
    given = [as_candidate(c, i) for i, c in enumerate(candidates)]
    for one in given:
        law = laws.named(one.architecture).curve.law
        lacking = [name for name in law.inputs if name not in one.inputs]
        if lacking:
            raise ValueError(
                f"candidate {one.name}: inputs lack {' and '.join(lacking)}, got "
                f"{', '.join(one.inputs) or 'none'}; the law {law.name} takes "
                f"{', '.join(law.inputs)}"
            )
    target = parse_target(target, laws) if isinstance(target, str) else target
    found = _models(laws, given, target, by=by, others=others)
    # Variance of the target by each model before any run: what candidates are to lower.
    start = [model.variance for model in of_targets(found.models)]
    if not min(start) > 0:
        said = target_in_words(target, laws)
        raise ValueError(f"target: {said} has no uncertainty that runs could narrow")
    # Of no use: a run whose noise nobody knows, and one so far out that its law says nothing there.
    hours = np.asarray([c.gpu_hours for c in given])
    outside = np.asarray([_times_outside(laws.named(c.architecture), c) for c in given])
    known = np.isfinite([_noise_of(laws, c) for c in given])
    limits: dict[str, Any] = {
        "budget": math.inf if gpu_hours is None else gpu_hours,
        "n_runs": n_runs,
        "least": worth,
        "allowed": known & (outside <= (math.inf if far is None else far)),
    }
    # One model is trusted to extrapolate, so its plan is greedy. Of several any may be wrong, so
    # their plan has runs of many sizes.
    if by == "averaged":
        plan = spread_plan(found.models, hours, weights=found.weights, **limits)
    else:
        plan = greedy_plan(found.models[0], hours, **limits)
    # Each candidate alone, to show what it is worth; the plan counts what earlier choices tell.
    left_alone = 1 - mean_removed(of_targets(found.models), start)
    everyone = _ranked(given, outside, list(enumerate(left_alone.tolist())), [1.0] * len(given))
    chosen = _ranked(given, outside, plan, [1.0, *(left for _, left in plan)])
    return ExperimentalDesign(
        laws=laws,
        target=target,
        value=found.value,
        sd=found.sd,
        ranked=sorted(everyone, key=lambda r: -r.per_gpu_hour),
        chosen=chosen,
        by=by,
        level=laws.level,
        notes=[*_extrapolation_notes(chosen), *found.notes, *_seed_notes(laws, given)],
    )


def _ranked(
    candidates: Sequence[Candidate], outside: Array, plan: Plan, before: Sequence[float]
) -> list[RankedCandidate]:
    """Return the candidates of a plan.

    Args:
        candidates: All of them.
        outside: (c,) how far each lies outside its runs.
        plan: Candidates with the share of the variance left after each.
        before: Share of the variance before each.
    """
    return [
        RankedCandidate(
            candidate=candidates[i],
            width=math.sqrt(max(left, 0.0)),
            per_gpu_hour=(b - left) / candidates[i].gpu_hours,
            outside=float(outside[i]),
        )
        for b, (i, left) in zip(before, plan, strict=False)
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Models:
    """Models of the loss that a design chooses by, and what they say of the target now."""

    models: Sequence[DesignModel]
    value: float
    """Of the target."""
    sd: float
    """Of its logarithm."""
    notes: Sequence[str]
    weights: Array | float = 1.0
    """(c,) of the candidates, by how much they are like the target."""


def _models(
    laws: ArchitectureLaws,
    candidates: Sequence[Candidate],
    target: Target,
    *,
    by: By,
    others: Sequence[ArchitectureLaws],
) -> _Models:
    """Return the models of the loss to choose by."""
    noise = np.asarray([_noise_of(laws, c) for c in candidates])
    if by == "averaged":
        return _averaged_models(laws, candidates, target, noise, others)
    covariance_of = covariance_by_draws if by == "draws" else covariance_by_information
    return _law_model(laws, target, covariance_of(laws, candidates, target), noise)


def _law_model(laws: ArchitectureLaws, target: Target, covariance: Array, noise: Array) -> _Models:
    """Return the model of the laws alone, with this covariance of target and candidates."""
    return _Models(
        models=[DesignModel(covariance=covariance, noise=noise)],
        value=math.exp(log_target(target, laws)),
        sd=math.sqrt(max(float(covariance[0, 0]), 0.0)),
        notes=_misfit_notes(laws),
    )


def _averaged_models(
    laws: ArchitectureLaws,
    candidates: Sequence[Candidate],
    target: Target,
    noise: Array,
    others: Sequence[ArchitectureLaws],
) -> _Models:
    """Return the models of the laws and of kriging; of kriging alone where a law misfits.

    Raises:
        ValueError: If a law misfits, and the target is a multiplier, of which kriging knows none.
    """
    kriged = _kriging_model(laws, candidates, target, noise)
    wrong = _misfitting(laws, target)
    if wrong and kriged is None:
        raise ValueError(
            f"target: {target_in_words(target, laws)}: the law of {wrong[0]} misfits its runs,"
            " so there is no multiplier to narrow; give another law, or a loss as the target"
        )
    if wrong and kriged is not None:
        model, log_loss, weights = kriged
        return _Models(
            models=[model, replace(model, over_candidates=True)],
            value=math.exp(log_loss),
            sd=math.sqrt(model.variance),
            notes=_misfit_notes(laws, advice=WITHOUT_LAW),
            weights=weights,
        )
    covariance, said = covariance_over_laws([laws, *others], candidates, target)
    found = _law_model(laws, target, covariance, noise)
    found = replace(found, notes=[*found.notes, *said])
    if kriged is None:
        return found
    model, _, weights = kriged
    averaged = "width: averaged over what laws tell and what kriging tells without one"
    return replace(
        found,
        models=[*found.models, model, replace(model, over_candidates=True)],
        notes=[*found.notes, averaged],
        weights=weights,
    )


def _misfitting(laws: ArchitectureLaws, target: Target) -> list[str]:
    """Return the target's architectures whose law misfits its runs."""
    return [name for name in target.architectures if laws.named(name).fit.verdict.is_misfit]


def _kriging_model(
    laws: ArchitectureLaws, candidates: Sequence[Candidate], target: Target, noise: Array
) -> tuple[DesignModel, float, Array] | None:
    """Return what kriging of the target's architecture tells, its ln(loss) there, local weights.

    None for a multiplier: it has no place of its own.
    """
    if not isinstance(target, LossAt):
        return None
    law = laws.named(target.architecture)
    rows = np.ones(len(law.fit.y), dtype=bool)
    if law.group is not None:
        rows = law.fit.inputs["group"] == law.group
    names = law.curve.law.inputs
    runs = np.stack([np.asarray(law.fit.inputs[n], dtype=float)[rows] for n in names], axis=1)
    mine = np.asarray([c.architecture == target.architecture for c in candidates])
    places = [target.inputs] + [c.inputs for c in candidates if c.architecture == law.name]
    wanted = np.asarray([[float(place[n]) for n in names] for place in places])
    # Memory may be zero, which has no logarithm.
    zero = np.concatenate([runs, wanted]).min(axis=0) <= 0
    runs, wanted = (np.log(x + np.where(zero, 1.0, 0.0)) for x in (runs, wanted))
    box = np.concatenate([runs, wanted[1:]])
    found = kriging(runs, np.log(law.fit.y[rows]), wanted, box=box)
    at = np.concatenate([[0], 1 + np.flatnonzero(mine)])
    covariance = np.zeros((len(candidates) + 1, len(candidates) + 1))
    covariance[np.ix_(at, at)] = found.covariance
    seeds = np.asarray([c.n_seeds for c in candidates])
    own = np.where(np.isfinite(noise), found.noise / seeds, math.inf)
    weights = np.ones(len(candidates))
    weights[mine] = local_weights(wanted[:1], wanted[1:], box=box)
    return DesignModel(covariance=covariance, noise=own), float(found.mean[0]), weights


def _noise_of(laws: ArchitectureLaws, candidate: Candidate) -> float:
    """Return the variance of what a candidate adds to ln(outcome); inf where it adds nothing."""
    noise = noise_variances(laws.named(candidate.architecture).fit, laws.fits)
    done = candidate.n_seeds_done
    after = float(noise.of_mean(done + candidate.n_seeds))
    if not done:
        return after
    before = noise.between + noise.within / done
    return before * after / (before - after) if before > after else math.inf


def _times_outside(law: ArchitectureLaw, candidate: Candidate) -> float:
    """Return the largest factor by which a size lies outside the architecture's runs."""
    factor = 1.0
    domain = law.curve.domain
    for name, value in candidate.inputs.items():
        span = domain.tokens if name == "tokens" else domain.params if name in SIZE_INPUTS else None
        if span is not None:
            factor = max(factor, value / span[1], span[0] / value)
    return factor


def _misfit_notes(laws: ArchitectureLaws, advice: str = ALONE) -> list[str]:
    verdicts = {name: law.fit.verdict for name, law in laws.by_name.items()}
    return [
        f"the law of {name} misfits its runs ({verdict.sentence}): {advice}"
        for name, verdict in verdicts.items()
        if verdict.is_misfit
    ]


def _extrapolation_notes(chosen: Sequence[RankedCandidate]) -> list[str]:
    return [
        f"{r.candidate.name} lies {r.outside:.3g} times outside the runs"
        f" ({r.tokens_per_param:.3g} tokens per parameter), where the law is least sure:"
        " a run between is safer"
        for r in chosen
        if r.outside > FAR
    ]


def _seed_notes(laws: ArchitectureLaws, candidates: Sequence[Candidate]) -> list[str]:
    n = sum(c.n_seeds_done > 0 for c in candidates)
    if not n or seeds_known(laws):
        return []
    return [
        f"what further seeds bring cannot be told for {n}"
        f" {'candidate' if n == 1 else 'candidates'}: no configuration has two seeds;"
        " train one with a second seed"
    ]
