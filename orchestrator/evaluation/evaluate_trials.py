"""Evaluation of trained models on benchmarks and questions.

The models are those of trials, or of a pretrained folder.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.evaluation import trained_trial
from orchestrator.records.errors import UsageError, not_installed
from orchestrator.records.trial_dir import TrialDir
from orchestrator.sweep import registry

Progress = Callable[[str, int, int], None]
"""Told the task, and how many requests of how many are done."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What one suite measured of one model."""

    suite: str
    record: dict[str, Any]
    """`metrics` by name, `tasks` with their sizes and chances, and what it rests on."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of files, by path in the trial's folder; `record` has their names."""


def prepare(
    names: Sequence[str],
    data: Path | None,
    questions: Path | None = None,
    *,
    limit: int | None,
) -> list[Any]:
    """Return suites and questions with their files read and checked (`workloads.evaluation`).

    Raises:
        UsageError: If there is no such suite, a file is missing or wrong, or the harness is.
    """
    wrong = []
    for name in names:
        try:
            registry.task_rows().require(name, data)
        except ValueError as error:
            wrong.append(str(error))
    if names and data is None:
        wrong.append("--data: needs the folder of the suites' files, or MEMSCALE_BENCHMARKS")
    if questions is not None and not questions.is_file():
        wrong.append(f"{questions}: not there; name a file of JSON lines with question and answer")
    if wrong:
        raise UsageError("\n".join(wrong))
    try:
        if names:
            registry.harness()
        return list(registry.evaluation().prepare(names, data, questions, limit=limit))
    except ValueError as error:
        raise UsageError(str(error)) from error
    except ModuleNotFoundError as error:
        raise not_installed(error, "evaluate" if names else "torch") from error


def decode_latency() -> Any:
    """Return what times decoding (`workloads.evaluation.decode_latency`)."""
    return registry.decode_latency().DecodeLatency()


def table_reads() -> Any:
    """Return what counts the reads of table rows (`workloads.evaluation.table_reads`)."""
    return registry.table_reads().TableReads()


def scheduled(trial: TrialDir) -> list[Any]:
    """Return what the trial's sweep file asks, prepared; empty if it asks nothing.

    Raises:
        UsageError: As `prepare`.
    """
    schedule = trial.spec().evaluation
    if schedule is None or schedule.rows is None:  # rows are chosen at planning
        return []
    data, questions = (
        None if path is None else Path(path) for path in (schedule.data, schedule.questions)
    )
    return prepare(schedule.suites, data, questions, limit=schedule.rows)


def missing_steps(trial: TrialDir, suites: Sequence[Any]) -> list[int]:
    """Return the steps before the last at which the trial's sweep file asks, and nobody measured.

    Their weights are gone once a trial is done.
    """
    spec, result = trial.spec(), trial.result()
    if spec.evaluation is None or result is None:
        return []
    steps = int(result["steps"])
    known = trial.earlier_evaluations()
    return sorted(
        step
        for step in spec.evaluation.steps(steps) - {steps}
        if any(step not in known.get(one.name, {}) for one in suites)
    )


def evaluate_trial(
    trial: TrialDir, suites: Sequence[Any], *, again: bool, keep: bool, progress: Progress
) -> Iterator[Evaluation]:
    """Yield each suite's evaluation of a trial.

    A suite that was measured on the same data is not measured again.

    Args:
        trial: A finished one.
        suites: From `prepare`.
        again: Measure all the same.
        keep: Write it into the trial's folder, where tables and trackers find it.
        progress: Of one task.

    Raises:
        UsageError: If the trial has no final weights, or its data no tokenizer for text.
    """
    trial.complete_result()
    known = {} if again else trial.evaluations()
    open_suites = []
    for one in suites:
        record = known.get(one.name)
        if record is not None and record["digest"] == one.digest and _has_files(trial, record):
            yield Evaluation(suite=one.name, record=record)
        else:
            open_suites.append(one)
    if not open_suites:
        return
    trained = trained_trial.load(trial)
    precision = str(trial.spec().train.get("precision", "auto"))
    for evaluation in evaluate_model(
        trained, open_suites, precision=precision, name=trial.trial_id, progress=progress
    ):
        if keep:
            trial.add_evaluation(evaluation.suite, evaluation.record, files=evaluation.files)
        yield evaluation


def _has_files(trial: TrialDir, record: Mapping[str, Any]) -> bool:
    return all((trial.path / name).is_file() for name in record.get("files", ()))


def evaluate_folder(
    folder: Path, suites: Sequence[Any], *, progress: Progress
) -> Iterator[Evaluation]:
    """Yield each suite's evaluation of a model in Hugging Face's or Meta's format.

    Or of a trial's checkpoint.

    Raises:
        UsageError: If the folder holds no model and tokenizer that can be read.
        StoreError: If the spec of the checkpoint's trial cannot be read.
    """
    precision, trial = "auto", trained_trial.trial_of_checkpoint(folder)
    if trial is not None:
        trained = trained_trial.load_checkpoint(trial, folder.name)
        precision = str(trial.spec().train.get("precision", "auto"))
    else:
        try:
            trained = registry.trained_model().load_pretrained(folder)
        except ValueError as error:
            raise UsageError(str(error)) from error
    yield from evaluate_model(
        trained, suites, precision=precision, name=str(folder), progress=progress
    )


def evaluate_model(
    trained: Any, suites: Sequence[Any], *, precision: str, name: str, progress: Progress
) -> Iterator[Evaluation]:
    """Yield each suite's evaluation of a loaded model.

    Raises:
        UsageError: If its data have no tokenizer for text, or hold none out that a suite needs.
    """
    try:
        for one in suites:
            if not one.needs_text:
                record = one.measure(trained, progress, precision=precision)
                files = record.pop("files", {})
                named = {"files": sorted(files)} if files else {}
                yield Evaluation(suite=one.name, record={**record, **named}, files=files)
        suites = [one for one in suites if one.needs_text]
        if not suites:
            return
        with registry.text_model().text_model(trained, precision=precision) as model:
            for one in suites:
                record = registry.evaluation().measure(one, model, progress, step=trained.step)
                yield Evaluation(suite=one.name, record=record)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
