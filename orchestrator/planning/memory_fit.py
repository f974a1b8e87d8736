"""Trials that are too large for the memory of this machine, or of any machine."""

from collections.abc import Callable

import psutil

from orchestrator.node.hardware import gpu_memory_bytes, visible_gpus
from orchestrator.planning.pricing import Plan, PlannedTrial
from orchestrator.records import units
from orchestrator.records.errors import ConfigProblem
from orchestrator.records.trial_spec import TrialSpec

LARGEST_MACHINE_BYTES = 32 * 2.0**40
"""Memory of the largest single machines on offer in 2026; GPUs have a hundredth of it."""


def fits_no_machine(plan: Plan) -> list[ConfigProblem]:
    """Return a problem per sweep file whose trials no machine has the memory for."""
    return _problems(
        plan,
        limit=lambda spec: LARGEST_MACHINE_BYTES,
        taken=_model_state_bytes,
        where="on one rank, and the largest machines have",
        fix="make the model smaller, or share it out: resources.memory_ranks, or "
        "resources.dense_parameters: sharded",
    )


def fits_not_here(plan: Plan) -> list[ConfigProblem]:
    """Return a problem per sweep file whose trials this machine lacks the memory for."""
    memory = float(psutil.virtual_memory().total + psutil.swap_memory().total)
    # NVML does not tell everywhere: what is not known limits nothing.
    on_gpu = [gpu_memory_bytes([gpu]) or float("inf") for gpu in visible_gpus()]

    def on_gpus(spec: TrialSpec) -> bool:
        return bool(on_gpu) and spec.resources.gpus != 0

    return _problems(
        plan,
        limit=lambda spec: max(on_gpu) if on_gpus(spec) else memory,
        taken=lambda spec: (
            _model_state_bytes(spec) * (1 if on_gpus(spec) else spec.resources.ranks)
        ),
        where="and there are",
        fix="smaller micro batches do not help: make the model smaller, share it out over GPUs, or "
        "submit to a cluster (--address, --backend)",
    )


def _model_state_bytes(spec: TrialSpec) -> float:
    """Return what a rank holds whatever its micro batch."""
    return spec.accounting["model_state_bytes"]


def _problems(
    plan: Plan,
    *,
    limit: Callable[[TrialSpec], float],
    taken: Callable[[TrialSpec], float],
    where: str,
    fix: str,
) -> list[ConfigProblem]:
    """Return one problem per file, about the largest of its trials that exceed their limit."""
    exceeding: dict[str, list[PlannedTrial]] = {}
    for trial, file in zip(plan.trials, plan.sweep.files, strict=True):
        if trial.to_train and taken(trial.spec) > limit(trial.spec):
            exceeding.setdefault(str(file), []).append(trial)
    problems = []
    for file in dict.fromkeys(plan.sweep.files):
        if trials := exceeding.get(str(file)):
            spec = max((trial.spec for trial in trials), key=taken)
            message = (
                f"{units.plural(len(trials), 'trial')} too large: parameters, gradients and "
                f"optimizer state of {spec.trial_id} take {units.size(taken(spec))} {where} "
                f"{units.size(limit(spec))}"
            )
            problems.append(
                ConfigProblem(
                    file=file, line=None, column=None, key="model", message=message, fix=fix
                )
            )
    return problems
