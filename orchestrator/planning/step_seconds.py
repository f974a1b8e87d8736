"""Predicted seconds of trials whose steps were timed, for `match: {step_time: …}`."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.planning.runtime_prior import RuntimePrediction
from orchestrator.records.trial_spec import Resources, TrialSpec, canonical_json
from orchestrator.sweep.matching import budget
from orchestrator.sweep.matching.match import Matched
from orchestrator.sweep.matching.step_time import timed_training

INITIAL_VALUES = frozenset(("output_init",))
"""Fields of a model that say how its matrices begin. No step's time depends on them."""
GPU_NAMES = ("NVIDIA", "Tesla")
"""How the names of GPUs begin, in files of the time when entries did not say `device_type`."""
ALONE = Resources()
"""What was timed: a rank with all parameters on its device, compiled, in passes that it chose."""


DECISIVE = (
    *("compile", "micro_batch_tokens", "activation_checkpointing"),
    *("memory_tables", "memory_ranks", "dense_parameters"),
)
"""Resources that change a step beside those that an answer names."""


class StepSeconds:
    """Measured seconds of a step, by what was timed; of several measurements the median."""

    def __init__(self, answers: Iterable[Mapping[str, Any]]) -> None:
        """Take the entries of a sweep's file of step times (`step_time.Answer`)."""
        counterparts: dict[str, list[float]] = {}
        solved: dict[str, list[float]] = {}
        for answer in answers:
            if (compared := answer.get("compared")) is None:
                continue
            if compared.get("counterpart") is not None:
                key = _timed(compared["counterpart"], answer)
                counterparts.setdefault(key, []).append(answer["counterpart_step_s"])
            value = {} if answer["value"] is None else {compared["solve"]: answer["value"]}
            key = _timed({**compared["model"], **value}, answer)
            solved.setdefault(key, []).append(answer["step_s"])
        # A counterpart is timed beside each model that is compared with it.
        self._step_s = {key: statistics.median(s) for key, s in {**solved, **counterparts}.items()}

    def predict(
        self, spec: TrialSpec, matched: Matched | None, *, on_gpu: bool
    ) -> RuntimePrediction | None:
        """Predict a trial's training time; None where no step like its own was timed.

        A trial that was matched takes what its counterpart takes, so that all trials of one
        comparison are predicted the same to the last digit. A step was timed alone: a share of a
        GPU gets its share.

        Args:
            spec: With accounting filled in.
            matched: What `match` chose for the trial.
            on_gpu: Where the trial will run. Times of the other kind of device do not count, nor
                those of a CPU with another number of threads.
        """
        if not self._step_s:
            return None
        training = timed_training(spec.train, int(spec.accounting["vocab_size"]))
        where = (spec.resources.ranks, None if on_gpu else spec.resources.cpus)
        answer = None if matched is None else matched.measured
        compared = None if answer is None else answer.get("compared")
        steps = spec.steps
        if matched is None or answer is None or compared is None:
            if any(getattr(spec.resources, name) != getattr(ALONE, name) for name in DECISIVE):
                return None
            step_s = self._step_s.get(_key(spec.model, training, where))
        elif _where(answer) != where:
            return None
        elif matched.counterpart is None:
            step_s = matched.target
        else:
            step_s = self._step_s.get(_timed(compared["counterpart"], answer))
            if matched.field == "tokens" and matched.written is not None:
                size = int(spec.train["batch_tokens"])
                steps = budget.steps_for_tokens(matched.written, batch_tokens=size)
        if step_s is None:
            return None
        share = _share_of_gpu(spec.resources) if on_gpu else 1.0
        return RuntimePrediction(seconds=steps * step_s / share, source="steps")


def _timed(model: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """Return the key of a model that an answer is about."""
    models = ("solve", "model", "counterpart", "step_s")
    training = {k: v for k, v in answer["compared"].items() if k not in models}
    return _key(model, training, _where(answer))


def _key(
    model: Mapping[str, Any], training: Mapping[str, Any], where: tuple[int, int | None]
) -> str:
    shape = {name: value for name, value in model.items() if name not in INITIAL_VALUES}
    return canonical_json((shape, training, where))


def _where(answer: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return of how many ranks one's share was timed, and the threads; None for these on a GPU."""
    by_name = "cuda" if str(answer["device"]).startswith(GPU_NAMES) else "cpu"
    on_gpu = answer.get("device_type", by_name) == "cuda"
    return int(answer.get("ranks", 1)), None if on_gpu else int(answer.get("n_threads", 0))


def _share_of_gpu(resources: Resources) -> float:
    """Return the share of a GPU that each rank gets."""
    if isinstance(resources.gpus, str):
        return 1.0
    return min(1.0, resources.gpus / resources.ranks)
