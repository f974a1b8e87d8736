"""Exposures of facts: how often training reads each, and the bits to store."""

from typing import Any

from orchestrator.planning.pricing import Plan, PlannedTrial
from orchestrator.records import units
from orchestrator.records.trial_spec import TrialSpec

FEW_EXPOSURES = 50
"""Exposures below which a remark is made: half of the fewest with a published capacity."""
CAPACITY_MARGIN = 10.0
"""Factor between what there is to store and what models hold from which on a remark is made."""
LEAST_BITS_PER_PARAM, MOST_BITS_PER_PARAM = 1.0, 2.0
"""Bits a parameter that models hold after 100 and after 1,000 exposures (`SOURCE`)."""
SOURCE = "Allen-Zhu and Li 2024, arXiv 2404.05405"


def exposures(facts: Any, spec: TrialSpec) -> float | None:
    """Return how often a trial reads each fact, mean; None if its tokens are not known.

    Args:
        facts: What its data state (workloads.data.corpus.FactCounts).
        spec: Of the trial, priced.
    """
    if facts.tokens_per_exposure is None:
        return None
    return float(spec.accounting["training_tokens"] / facts.tokens_per_exposure)


def row(facts: Any, spec: TrialSpec) -> dict[str, Any]:
    """Return what `plan --json` prints of a trial's facts."""
    return {
        "n_subjects": facts.n_subjects,
        "n_facts": facts.n_facts,
        "prior_bits": facts.prior_bits,
        "answer_prior_nll": facts.answer_prior_nll,
        "tokens_per_exposure": facts.tokens_per_exposure,
        "exposures": exposures(facts, spec),
        "estimated": facts.estimated,
        "prior_bits_per_param": _bits_per_param(facts, spec),
    }


def lines(plan: Plan) -> list[str]:
    """Return one line per data setting, in the order of the trials."""
    return [_line(facts, [t.spec for t in trials]) for facts, trials in _by_facts(plan).items()]


def notes(plan: Plan) -> list[str]:
    """Return a sentence for each reason why the trials to train cannot show a capacity."""
    trials = [
        (facts, trial.spec)
        for facts, members in _by_facts(plan).items()
        for trial in members
        if trial.to_train
    ]
    if not trials:
        return []
    found = []
    times = [exposures(facts, spec) for facts, spec in trials]
    fewest = min((n for n in times if n is not None), default=FEW_EXPOSURES)
    if fewest < FEW_EXPOSURES:
        found.append(
            f"facts: {_rounded(fewest)} exposures are few: dense models hold about "
            f"{LEAST_BITS_PER_PARAM:g} bit a parameter after 100 and {MOST_BITS_PER_PARAM:g} after "
            f"1,000 ({SOURCE}); train on more tokens or fewer facts to measure a capacity"
        )
    held = f"dense models hold {LEAST_BITS_PER_PARAM:g} to {MOST_BITS_PER_PARAM:g} ({SOURCE})"
    most = max(_bits_per_dense_param(facts, spec) for facts, spec in trials)
    if most < LEAST_BITS_PER_PARAM / CAPACITY_MARGIN:
        found.append(
            f"facts: at most {_few_bits(most)} a parameter without memory tables, and {held}: "
            "every model may learn all of them; more facts or smaller models tell models apart"
        )
    least = min(_bits_per_param(facts, spec) for facts, spec in trials)
    if least > MOST_BITS_PER_PARAM * CAPACITY_MARGIN:
        found.append(
            f"facts: at least {_few_bits(least)} a parameter, and {held}: no model can learn a "
            "tenth of them; take fewer facts or larger models"
        )
    return found


def _by_facts(plan: Plan) -> dict[Any, list[PlannedTrial]]:
    groups: dict[Any, list[PlannedTrial]] = {}
    for trial in plan.trials:
        facts = plan.facts.get(trial.spec.trial_id)
        if facts is not None:
            groups.setdefault(facts, []).append(trial)
    return groups


def _line(facts: Any, specs: list[TrialSpec]) -> str:
    times = [n for spec in specs if (n := exposures(facts, spec)) is not None]
    ends = dict.fromkeys(_rounded(end) for end in (min(times), max(times))) if times else {}
    about = "about " if facts.estimated else ""
    how_often = f", {about}{' to '.join(ends)} exposures each" if ends else ""
    most = max(_bits_per_param(facts, spec) for spec in specs)
    return (
        f"facts: {facts.n_facts:,} about {facts.n_subjects:,} {facts.subjects}{how_often}, "
        f"{facts.prior_bits / facts.n_subjects:.1f} bits a {facts.subject} "
        f"({_bits(facts.prior_bits)} in all, {_few_bits(most)} a parameter of the smallest model); "
        f"an answer's prior NLL is {facts.answer_prior_nll:.2f} nats"
    )


def _bits_per_param(facts: Any, spec: TrialSpec) -> float:
    """Return the bits there are to store over all trainable parameters, as in `bits_per_param`."""
    return float(facts.prior_bits / spec.accounting["total_params"])


def _bits_per_dense_param(facts: Any, spec: TrialSpec) -> float:
    """Return the same over parameters outside of memory tables.

    The source measured dense models; rows of a table need not hold as much.
    """
    numbers = spec.accounting
    return float(facts.prior_bits / (numbers["total_params"] - numbers["memory_params"]))


def _rounded(times: float) -> str:
    return f"{times:,.0f}" if times >= 10 else f"{times:.2g}"


def _few_bits(number: float) -> str:
    return units.plural(float(f"{number:.2g}"), "bit")


def _bits(number: float) -> str:
    """Return 8,052 bit / 123 kbit / 1.40 Mbit."""
    text = units.count(number)
    return f"{text}bit" if text[-1].isalpha() else f"{text} bit"
