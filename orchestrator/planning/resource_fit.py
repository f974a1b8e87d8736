"""Trials that ask for more GPUs or cores than this machine has."""

import math
from collections.abc import Callable, Iterator

from orchestrator.node.hardware import usable_cores, visible_gpus
from orchestrator.planning.pricing import Plan
from orchestrator.records.errors import ConfigProblem
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.records.units import plural


def fits_not_here(
    plan: Plan, *, cpus: int | None = None, gpus: int | None = None
) -> list[ConfigProblem]:
    """Return a problem per sweep file and resource of which its trials ask for more than is here.

    Args:
        plan: The sweep; `resources.gpus: auto` takes what there is.
        cpus: How many of this machine's cores may be used; None: all that this process may use.
        gpus: How many of its GPUs may be used; None: all that are visible.
    """
    gpus_there = len(visible_gpus()) if gpus is None else gpus
    cpus_there = usable_cores() if cpus is None else cpus
    return [
        *_problems(
            plan,
            asked=_gpus,
            there=gpus_there,
            limit="" if gpus is None else f" (--gpus {gpus})",
            thing="GPU",
            key="resources.gpus",
            fix="leave resources.gpus out to train on what is there",
        ),
        *_problems(
            plan,
            asked=lambda spec: spec.resources.cpus * spec.resources.ranks,
            there=cpus_there,
            limit="" if cpus is None else f" (--cpus {cpus})",
            thing="core",
            key="resources.cpus",
            fix="lower resources.cpus (cores of a rank) or resources.ranks",
        ),
    ]


def _problems(
    plan: Plan,
    *,
    asked: Callable[[TrialSpec], int],
    there: int,
    limit: str,
    thing: str,
    key: str,
    fix: str,
) -> Iterator[ConfigProblem]:
    asking: dict[str, list[TrialSpec]] = {}
    for trial, file in zip(plan.trials, plan.sweep.files, strict=True):
        if trial.to_train and asked(trial.spec) > there:
            asking.setdefault(str(file), []).append(trial.spec)
    for file in dict.fromkeys(plan.sweep.files):
        if specs := asking.get(str(file)):
            yield ConfigProblem(
                file=file,
                line=None,
                column=None,
                key=key,
                message=f"{plural(len(specs), 'trial')} cannot start: {specs[0].trial_id} asks for "
                f"{plural(asked(specs[0]), thing)} and there "
                f"{'is' if there == 1 else 'are'} {there or 'none'}{limit}",
                fix=f"{fix}, or submit to a cluster (--address, --backend)",
            )


def _gpus(spec: TrialSpec) -> int:
    """Return the whole GPUs that a trial needs; 0 where it takes what there is."""
    asked = spec.resources.gpus
    return 0 if isinstance(asked, str) else math.ceil(asked)
