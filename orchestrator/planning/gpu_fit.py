"""Trials that ask for more GPUs than this machine has."""

import math

from orchestrator.node.hardware import visible_gpus
from orchestrator.planning.pricing import Plan
from orchestrator.records.errors import ConfigProblem
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.records.units import plural


def lacks_gpus(plan: Plan, *, gpus: int | None = None) -> list[ConfigProblem]:
    """Return a problem per sweep file whose trials ask for more GPUs than there are here.

    Args:
        plan: The sweep; `resources.gpus: auto` takes what there is.
        gpus: How many of this machine's may be used; None: all that are visible.
    """
    there = len(visible_gpus()) if gpus is None else gpus
    asking: dict[str, list[TrialSpec]] = {}
    for trial, file in zip(plan.trials, plan.sweep.files, strict=True):
        if trial.to_train and _gpus(trial.spec) > there:
            asking.setdefault(str(file), []).append(trial.spec)
    return [
        ConfigProblem(
            file=file,
            line=None,
            column=None,
            key="resources.gpus",
            message=f"{plural(len(specs), 'trial')} cannot start: {specs[0].trial_id} asks for "
            f"{plural(_gpus(specs[0]), 'GPU')} and there "
            f"{'is' if there == 1 else 'are'} {there or 'none'}",
            fix="leave resources.gpus out to train on what is there, or submit to a cluster "
            "(--address, --backend)",
        )
        for file in dict.fromkeys(plan.sweep.files)
        if (specs := asking.get(str(file)))
    ]


def _gpus(spec: TrialSpec) -> int:
    """Return the whole GPUs that a trial needs; 0 where it takes what there is."""
    asked = spec.resources.gpus
    return 0 if isinstance(asked, str) else math.ceil(asked)
