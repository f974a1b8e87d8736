"""Benchmarks and questions of a sweep at planning: files, rows, cost estimate.

The cost of an evaluation is counted in forward passes over its tokens, as the training FLOPs are.
"""

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.records.errors import UsageError
from orchestrator.records.trial_spec import EvaluationSchedule, TrialSpec
from orchestrator.sweep import registry
from orchestrator.sweep.expansion.evaluation_files import FOLDER_VARIABLE

MOST_SHARE = 0.05
"""Of the training time that evaluations may take, where the sweep file does not set the rows:
`evaluation.most_share` where the file sets neither it nor the rows."""
ROWS = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Among which the rows of each task are chosen, so that a slightly different sweep has the same."""
READ_COST, GENERATED_COST = 1.5, 20.0
"""Time of a token that an evaluation reads, or generates, over that of a forward pass in training.

Measured on one core: 0.9 to 1.4, and 17 (dense, 1m, ten rows of each task)."""
DECODING_S_PER_LAYER = 2.0e-3
"""Seconds of a decoding pass per layer on a GPU, where launching kernels takes longer than running
them. Measured on one H200: 49 ms for the 22 layers of dense 1.3b."""

TASK_S = 8.0e-3
"""Seconds that a task takes beside its passes, which count where a training takes one second.

Measured on one core: 4 to 12 ms."""


@dataclass(frozen=True, kw_only=True)
class EvaluationCost:
    """Benchmarks of the trials of a sweep, and what they take."""

    schedule: EvaluationSchedule
    """With an absolute folder, and rows."""
    share: float
    """Of the training time of the trial for which they are most expensive, of those asked."""
    of: str
    """The architecture and preset of that trial."""
    n_trials: int
    """How many trials the file makes."""
    skipped: Mapping[str, str]
    """Trial id -> why it is not asked during training; the dearest one comes first."""

    def __str__(self) -> str:
        """Say what is asked, when, and what it costs."""
        schedule = self.schedule
        at = ", ".join(f"{share:g}" for share in schedule.at)
        rows = f"the first {schedule.rows:,} rows of each task"
        what = ", ".join(
            [*schedule.suites, *([Path(schedule.questions).name] if schedule.questions else [])]
        )
        text = f"evaluation: {what} at {at} of the training, {rows}"
        if self.skipped:
            trial_id, why = next(iter(self.skipped.items()))
            some = f"{len(self.skipped):,} of {self.n_trials:,} trials"
            text += f"; skipped in {some}, such as {trial_id}: {why}"
        if len(self.skipped) == self.n_trials:
            return text
        text += (
            f"; about {100 * self.share:.2g} % of the training time of {self.of}, "
            "less of larger ones"
        )
        if schedule.most_share is not None:
            text += f"; stopped at {100 * schedule.most_share:.2g} %"
        if self.share <= MOST_SHARE:
            return text
        return f"{text}. Lower evaluation.rows or ask less often to stay under {MOST_SHARE:.0%}"


class PricedTraining(NamedTuple):
    """A priced trial, and what its training takes."""

    spec: TrialSpec
    seconds: float
    on_gpu: bool


def with_schedule(
    trials: Sequence[PricedTraining],
) -> tuple[list[TrialSpec], list[EvaluationCost]]:
    """Return trials whose benchmarks have a folder and a number of rows, and the costs.

    Trials of one sweep file are asked the same rows, so that they can be compared.

    Raises:
        UsageError: If a suite or a file is missing or wrong, the data are no text, the harness is
            not installed, or a model cannot generate the answers that are asked for.
    """
    specs = [trial.spec for trial in trials]
    schedules = dict.fromkeys(spec.evaluation for spec in specs if spec.evaluation is not None)
    costs = {
        schedule: _cost(schedule, [trial for trial in trials if trial.spec.evaluation == schedule])
        for schedule in schedules
    }

    def planned(spec: TrialSpec) -> TrialSpec:
        if spec.evaluation is None:
            return spec
        cost = costs[spec.evaluation]
        skipped = cost.skipped.get(spec.trial_id)
        return spec.with_evaluation(dataclasses.replace(cost.schedule, skipped=skipped))

    return [planned(spec) for spec in specs], list(costs.values())


def _cost(schedule: EvaluationSchedule, trials: Sequence[PricedTraining]) -> EvaluationCost:
    for trial in trials:
        _require_tokenizer(trial.spec.data)
    folder = _folder(schedule) if schedule.suites else None
    questions = None
    if schedule.questions is not None:
        questions = Path(schedule.questions).expanduser().absolute()
    try:
        asked = registry.evaluation().prepare(schedule.suites, folder, questions)
    except ValueError as error:
        raise UsageError(f"evaluation: {error}") from error

    def share(rows: int, trial: PricedTraining) -> float:
        times = len(schedule.steps(int(trial.spec.accounting["steps"])))
        return times * _share(asked, rows, trial)

    rows, most_share = schedule.rows, schedule.most_share
    skipped: dict[str, str] = {}
    if rows is None:
        most_share = most_share or MOST_SHARE
        fewest = min(ROWS[0], max(one.most_rows for one in asked))
        shares = {one.spec.trial_id: share(fewest, one) for one in trials}
        short = [one for one in trials if shares[one.spec.trial_id] > most_share]
        for one in sorted(short, key=lambda one: -shares[one.spec.trial_id]):
            name = one.spec.trial_id
            skipped[name] = _why_skipped(shares[name], most_share, rows=fewest, trial=one)
        rows = _fitting_rows(
            [one for one in trials if one.spec.trial_id not in skipped],
            share,
            at_most=min(most_share, MOST_SHARE),
            fewest=fewest,
            most=max(one.most_rows for one in asked),
        )
    to_ask = [one for one in trials if one.spec.trial_id not in skipped]
    _require_answers(asked, to_ask)
    dearest = max(
        to_ask or trials,
        key=lambda one: share(rows, one),
    )
    return EvaluationCost(
        schedule=dataclasses.replace(
            schedule,
            data=None if folder is None else str(folder),
            questions=None if questions is None else str(questions),
            rows=rows,
            most_share=most_share,
        ),
        share=share(rows, dearest),
        of=f"{dearest.spec.architecture} {dearest.spec.preset or ''}".rstrip(),
        n_trials=len(trials),
        skipped=skipped,
    )


def _fitting_rows(
    trials: Sequence[PricedTraining],
    share: Callable[[int, PricedTraining], float],
    *,
    at_most: float,
    fewest: int,
    most: int,
) -> int:
    """Return the most rows of each task that fit into a share of every training."""
    if not trials:
        return fewest
    fitting = (n for n in ROWS if all(share(n, one) <= at_most for one in trials))
    return min(most, max(fitting, default=fewest))


def _why_skipped(share: float, most_share: float, *, rows: int, trial: PricedTraining) -> str:
    """Return why a trial is not asked, and what to do about it."""
    percent = f"{100 * most_share:.2g} %"
    if trial.seconds > 0:
        limit = f"{percent} of the training is {most_share * trial.seconds:.2g} s"
        takes = f"{share * trial.seconds:.2g} s"
    else:
        limit, takes = f"the limit is {percent}", f"{100 * share:.2g} % of the training time"
    return (
        f"{rows} rows of each task would take {takes}, and {limit}; set evaluation.rows, raise "
        "evaluation.most_share, or ask the trained models with memscale evaluate"
    )


def _require_answers(asked: Sequence[Any], trials: Sequence[PricedTraining]) -> None:
    """Refuse trials whose model cannot generate the answers that are asked for.

    Raises:
        UsageError: If there is one; names it.
    """
    for one in trials:
        spec = one.spec
        try:
            registry.evaluation().require_answers(
                asked, model=spec.model, seq_len=int(spec.train["seq_len"])
            )
        except ValueError as error:
            raise UsageError(f"evaluation: trial {spec.trial_id}: {error}") from error


def _require_tokenizer(data: Mapping[str, Any]) -> None:
    """Refuse data of which no text can be asked.

    Raises:
        UsageError: If the source has words of its own, or its tokens came without a tokenizer.
    """
    source = str(data["source"])
    config = registry.data_source(source).Config
    if not hasattr(config, "separator"):
        raise UsageError(
            f"evaluation: data of source {source} have words of their own and no tokenizer, so "
            "suites and questions cannot be asked; train on text, or leave evaluation out"
        )
    if hasattr(config, "without_tokenizer"):
        fields = {name: value for name, value in data.items() if name != "source"}
        folder = config(**fields).without_tokenizer
        if folder is not None:
            raise UsageError(
                f"evaluation: {folder} holds tokens without their tokenizer, so suites and "
                "questions cannot be asked; prepare it again with --tokenizer"
            )


def _folder(schedule: EvaluationSchedule) -> Path:
    """Return the folder of the suites' files.

    Raises:
        UsageError: If nobody names one, or the harness is not installed.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise UsageError("evaluation: suites need lm-eval; pip install 'memscale[evaluate]'")
    data = schedule.data or os.environ.get(FOLDER_VARIABLE)
    if data is None:
        raise UsageError(
            "evaluation: no folder of benchmark files; write evaluation: {data: FOLDER, …}, or set "
            f"{FOLDER_VARIABLE}"
        )
    return Path(data).expanduser().absolute()


def _share(asked: Sequence[Any], rows: int, trial: PricedTraining) -> float:
    """Return what one evaluation takes, over the training of a trial."""
    spec = trial.spec
    counts = [one.tokens(seq_len=int(spec.train["seq_len"]), n_rows=rows) for one in asked]
    passes = sum(READ_COST * one.read + GENERATED_COST * one.generated for one in counts)
    forward = spec.accounting["forward_flops_per_token"]
    share = float(passes * forward / spec.accounting["training_flops"])
    if trial.seconds > 0:
        share += TASK_S * sum(len(one.task_names) for one in asked) / trial.seconds
    if trial.on_gpu and trial.seconds > 0:
        layers = int(spec.model.get("n_layers", 1)) * sum(one.decoding_passes for one in counts)
        share += DECODING_S_PER_LAYER * layers / trial.seconds
    return share
