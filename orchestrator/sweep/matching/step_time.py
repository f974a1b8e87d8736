"""Cache of step times for `match: {step_time: …}`, beside the sweep file.

`NAME.step_times.json` belongs to the sweep as its YAML does and is committed with it: a trial's
name must not change each time somebody plans the sweep, nor with the machine. Deleting the file
measures anew.
"""

import dataclasses
import datetime
import hashlib
import logging
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import read_json, write_json
from orchestrator.records.storage_errors import unwritable
from orchestrator.records.trial_spec import Resources, canonical_json
from orchestrator.sweep.draft_trial import Match
from orchestrator.sweep.matching import budget, step_time_search
from orchestrator.sweep.matching.isoflop_ladder import Frame
from orchestrator.sweep.matching.step_time_search import NoMatchError, RatioEstimate
from orchestrator.sweep.matching.step_timer import StepTimeError
from orchestrator.sweep.parsing.diagnostics import InvalidError

LOG = logging.getLogger(__name__)

ABOUT = (
    "Measured for `match: {step_time: …}` of the sweep file beside this one. Commit both: without "
    "this file the steps are timed anew, and the trials get other names. To time them anew, "
    "delete it."
)


ROUGH_S, EXACT_S = 1.0, 4.0
"""Seconds of timed steps: in the first measurement of a value, which only guides the search, and in
further ones."""


RECORDED = ("device_type", "n_threads", "versions")
"""Of a timer's answer, what the file keeps beside the device."""


class NotMeasuredError(Exception):
    """A step time is not pinned, and nothing may be measured yet."""


class Timer(Protocol):
    """Times optimizer steps of models, in turns."""

    def time(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what `workloads/training/step/step_time.py` answers to the request.

        Raises:
            StepTimeError: If nothing could be measured.
        """


def timed_training(train: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Return what decides a step's time beside the model: parts of the train section, and tokens.

    Args:
        train: Every field of the section.
        vocab_size: Of the data.
    """
    tables = [train[f"table_{name}"] for name in ("optimizer", "clip", "precision")]
    return {
        "vocab_size": vocab_size,
        "seq_len": train["seq_len"],
        "batch_tokens": train["batch_tokens"],
        "precision": train["precision"],
        "clips": train["grad_clip"] is not None,
        # The default is left out: what was measured before there were others stays found.
        **({} if train["table_optimizer"] == "adamw" else {"tables": tables}),
    }


@dataclass(frozen=True, kw_only=True)
class StepTimeQuery:
    """One comparison of step times."""

    match: Match
    trial: str
    """For people."""
    field: str
    """What is changed: a field of the model, or tokens."""
    architecture: str
    model: Any
    other: Any
    """The counterpart's Config, or None where a number of seconds is asked for."""
    train: Any
    frame: Frame
    resources: Resources

    def compared(self) -> dict[str, Any]:
        """Return what decides a step's time, except the machine and the field solved for."""
        match = self.match
        model = _section(self.architecture, self.model)
        model.pop(self.field, None)
        return {
            "solve": self.field,
            "model": model,
            "counterpart": None
            if self.other is None
            else _section(str(match.architecture), self.other),
            "step_s": match.target_number,
            **timed_training(dataclasses.asdict(self.train), self.frame.vocab_size),
        }

    @property
    def key(self) -> str:
        """Hash of what is compared."""
        return hashlib.sha256(canonical_json(self.compared()).encode()).hexdigest()[:12]

    @property
    def wanted(self) -> str:
        """What is looked for, in words."""
        if self.match.architecture is None:
            return f"{self.match.target_number:.3g} seconds per step"
        return f"the step time of {self.match.counterpart}"

    def check_one_rank_suffices(self) -> None:
        """Refuse resources with which a step does what one rank alone does not.

        Raises:
            InvalidError: If ranks share tables or other parameters.
        """
        resources = self.resources
        models = [model for model in (self.model, self.other) if model is not None]
        if resources.memory_ranks > 1 and any(
            model.param_count(self.frame.vocab_size).memory_values for model in models
        ):
            what = "reads tables which ranks share out"
            got, instead = f"memory_ranks {resources.memory_ranks}", "memory_ranks: 1"
        elif resources.dense_parameters == "sharded" and resources.ranks > 1:
            what = "gathers parameters which ranks shard"
            got, instead = "dense_parameters sharded", "dense_parameters: replicated"
        else:
            return
        message = f"a step that {what} cannot be timed by one rank, got {got}"
        fix = (
            f"plan it once with {instead}, whose times are kept and hold for any resources, "
            "or match training_flops"
        )
        where = self.match.where
        diagnostic = where.diagnostic_at_key(message, fix, kind="combination")
        raise InvalidError(diagnostic.of(self.architecture))

    def request(self, model: Any) -> dict[str, Any]:
        """Return what a timer is asked: this model, and the counterpart if there is one."""
        models = [_section(self.architecture, model)]
        if self.other is not None:
            models.append(_section(str(self.match.architecture), self.other))
        return {
            "models": models,
            "train": dataclasses.asdict(self.train),
            "vocab_size": self.frame.vocab_size,
            "device": "cpu" if self.resources.gpus == 0 else "auto",
            "n_threads": self.resources.cpus,
            "ranks": self.resources.ranks,
            "micro_batch_tokens": self.resources.micro_batch_tokens,
            "compile": self.resources.compile,
        }


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was measured once and holds from then on."""

    value: int | None
    """Of the field; None where tokens are solved for, which follow from the ratio."""
    step_s: float
    counterpart_step_s: float
    """Of the counterpart, or as asked for."""
    ratio: float
    """Median of the ratios of neighbouring blocks; not quite the ratio of the two medians above."""
    ratio_uncertainty: float
    device: str
    measured_at: str
    more: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the file says of it, for people."""

    @property
    def decisive(self) -> float:
        """What a trial follows from: the value, or where tokens are solved for the ratio."""
        return self.ratio if self.value is None else self.value

    def as_json(self) -> dict[str, Any]:
        """Return the entry of the file."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "more"}
        return {**own, **self.more}


class StepTimeCache:
    """The answers of all files of a sweep; new ones are written beside one of them."""

    def __init__(
        self, sweep_file: Path, timer: Timer | None = None, *, sweep: Iterable[Path] = ()
    ) -> None:
        """Answer from what is pinned, or else by measuring where there is a timer.

        Args:
            sweep_file: The file whose queries are answered.
            timer: What measures.
            sweep: All files of the sweep; what is pinned beside any of them answers.
        """
        self.path = _pins_of(sweep_file)
        self._sweep_file = sweep_file
        self._everywhere = tuple(dict.fromkeys([self.path, *map(_pins_of, sweep)]))
        self._timer = timer
        self._failed: dict[str, StepTimeError] = {}
        self.used: dict[str, Any] = {}
        """The entries of the file that answered something."""

    def answer(
        self,
        query: StepTimeQuery,
        *,
        with_value: Callable[[int], Any],
        written: int | None,
    ) -> Answer:
        """Return the pinned or measured answer.

        Args:
            query: What is compared.
            with_value: The model with another value of the field, None where that is impossible.
            written: The field's value in the file; where the search starts.

        Raises:
            InvalidError: If no answer can be found.
            NotMeasuredError: If none is pinned, and there is no timer to measure with.
            StoreError: If two answers are pinned that differ, or one that memscale did not write.
        """
        answer = self._pinned(query)
        if answer is None:
            if self._timer is None:
                raise NotMeasuredError
            answer = self._measured(query, self._timer, with_value, written)
        self.used[query.key] = answer.as_json()
        return answer

    def _pinned(self, query: StepTimeQuery) -> Answer | None:
        """Return what is pinned beside any file of the sweep, this one's first."""
        pinned = {path: _recorded(path, query) for path in self._everywhere}
        known = [(path, answer) for path, answer in pinned.items() if answer is not None]
        if not known:
            return None
        path, answer = known[0]
        for other_path, other in known[1:]:
            if other.decisive != answer.decisive:
                what = "ratio" if answer.value is None else query.field
                raise StoreError(
                    f"{path} and {other_path}: solutions.{query.key}: "
                    f"two answers for {query.trial} and {query.wanted}: "
                    f"{what} {answer.decisive:.10g} and {other.decisive:.10g}; "
                    "keep the one that trained trials rest on, and remove the other from its file"
                )
        return answer

    def _measured(
        self,
        query: StepTimeQuery,
        timer: Timer,
        with_value: Callable[[int], Any],
        written: int | None,
    ) -> Answer:
        query.check_one_rank_suffices()
        where = query.match.where
        if query.key not in self._failed:
            refused = unwritable(self.path.parent)  # before minutes are spent on it
            if refused:
                message = (
                    f"step times are kept in {self.path.name} beside the sweep file, "
                    f"and that folder {refused}"
                )
                fix = "copy the sweep file into a folder of yours"
                raise InvalidError(where.diagnostic_at_key(message, fix))
            LOG.info("match: %s: timing steps against %s", query.trial, query.wanted)
            try:
                answer = _solve(query, timer, with_value, written)
            except StepTimeError as error:
                self._failed[query.key] = error
            else:
                write(self.path, {**_solutions(self.path), query.key: answer.as_json()})
                shutil.copymode(self._sweep_file, self.path)
                LOG.info("match: %s: kept in %s", query.trial, self.path)
                return answer
        failed = self._failed[query.key]
        fix = failed.fix
        if isinstance(failed, NoMatchError) and query.other is not None:
            other_way = f"match {query.match.counterpart} to {query.architecture} instead"
            fix += f", write solve: tokens, or {other_way}" * (query.field != "tokens")
        diagnostic = where.diagnostic_at_key(failed.message, fix, kind="combination")
        raise InvalidError(diagnostic.of(query.architecture))


def _pins_of(sweep_file: Path) -> Path:
    return sweep_file.with_name(f"{sweep_file.stem}.step_times.json")


def _recorded(path: Path, query: StepTimeQuery) -> Answer | None:
    """Return the answer in a file of step times.

    Raises:
        StoreError: If the file is not as memscale wrote it.
    """
    record = _solutions(path).get(query.key)
    if record is None:
        return None
    own = {f.name for f in dataclasses.fields(Answer)} - {"more"}
    more = {key: value for key, value in record.items() if key not in own}
    try:
        answer = Answer(**{key: record[key] for key in own}, more=more)
        numbers = (
            answer.ratio,
            answer.ratio_uncertainty,
            answer.step_s,
            answer.counterpart_step_s,
        )
        sound = all(isinstance(n, int | float) for n in numbers)
        sound &= all(isinstance(text, str) for text in (answer.device, answer.measured_at))
        sound = sound and answer.ratio > 0 and answer.counterpart_step_s > 0
        sound &= query.field == "tokens" or (isinstance(answer.value, int) and answer.value > 0)
    except (KeyError, TypeError):
        sound = False
    if not sound:
        message = f"{path}: solutions.{query.key}: is not as memscale wrote it"
        raise StoreError(f"{message}; restore the file, or delete it to time the steps anew")
    return answer


def _solutions(path: Path) -> dict[str, Any]:
    content = read_json(path) or {}
    solutions = content.get("solutions", {})
    if not isinstance(solutions, dict) or not all(
        isinstance(entry, dict) for entry in solutions.values()
    ):
        message = f"{path}: solutions: must be a mapping of mappings"
        raise StoreError(f"{message}; restore the file, or delete it to time the steps anew")
    return solutions


def write(path: Path, solutions: Mapping[str, Any]) -> None:
    """Replace the file of a sweep's step times."""
    write_json(path, {"about": ABOUT, "solutions": dict(solutions)})


class _Measurement:
    """The measurements behind one answer."""

    def __init__(self, query: StepTimeQuery, timer: Timer) -> None:
        self._query = query
        self._timer = timer
        self._replies: dict[int | None, list[Mapping[str, Any]]] = {}

    def ratios(self, value: int | None, model: Any, *, exactly: bool) -> Sequence[float]:
        """Time a model; return its ratios to the target, one per pair of blocks."""
        budget_s = EXACT_S if exactly else ROUGH_S
        reply = self._timer.time({**self._query.request(model), "budget_s": budget_s})
        self._replies.setdefault(value, []).append(reply)
        own, *others = reply["seconds"]
        targets = others[0] if others else [self._query.match.target_number] * len(own)
        return [mine / other for mine, other in zip(own, targets, strict=True)]

    def log(self, value: int | None, found: RatioEstimate) -> None:
        """Log the last measurement of a value."""
        query = self._query
        step_s = statistics.median(self._replies[value][-1]["seconds"][0])
        what = "" if value is None else f"{query.field} {value}: "
        counterpart = query.match.counterpart or "what is asked for"
        LOG.info(
            "match: %s: %s%.3g ms a step, %s × %s (measurement %d of it)",
            *(query.trial, what, 1e3 * step_s, found, counterpart, found.measurements),
        )

    def answer(self, value: int | None, found: RatioEstimate) -> Answer:
        """Return the answer that all measurements give together."""
        query, replies = self._query, self._replies[value]
        target_s = query.match.target_number
        if query.other is not None:
            target_s = statistics.median(s for reply in replies for s in reply["seconds"][1])
        assert target_s is not None, "a match has an architecture or a number"
        last = replies[-1]
        return Answer(
            value=value,
            step_s=statistics.median(s for reply in replies for s in reply["seconds"][0]),
            counterpart_step_s=target_s,
            ratio=found.ratio,
            ratio_uncertainty=found.uncertainty,
            device=str(last["device"]),
            measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            more={
                "trial": query.trial,
                "measurements": sum(len(runs) for runs in self._replies.values()),
                "blocks": sum(len(reply["seconds"][0]) for reply in replies),
                "ranks": query.resources.ranks,
                **{key: last[key] for key in RECORDED if key in last},
                "compared": query.compared(),
            },
        )


def _solve(
    query: StepTimeQuery,
    timer: Timer,
    with_value: Callable[[int], Any],
    written: int | None,
) -> Answer:
    """Measure until the query has an answer.

    Raises:
        NoMatchError: If it has none.
        StepTimeError: If nothing can be measured.
    """
    measurement = _Measurement(query, timer)
    if query.field == "tokens":
        found = step_time_search.settled(
            lambda: measurement.ratios(None, query.model, exactly=True),
            report=lambda found: measurement.log(None, found),
        )
        return measurement.answer(None, found)
    value, found = step_time_search.search(
        lambda value, exactly: measurement.ratios(value, with_value(value), exactly=exactly),
        field=query.field,
        wanted=query.wanted,
        start=_start(with_value, written),
        possible=lambda value: with_value(value) is not None,
        report=measurement.log,
    )
    return measurement.answer(value, found)


def _start(with_value: Callable[[int], Any], written: int | None) -> int:
    """Return the written value, or the smallest that is possible."""
    if written is not None and with_value(written) is not None:
        return written
    smallest = budget.first_possible(lambda n: with_value(n) is not None, range(1, 2**16))
    if smallest is None:
        raise NoMatchError(
            "no value of it is possible with the rest of this model",
            "change that, or solve for another field",
        )
    return smallest


def _section(architecture: str, model: Any) -> dict[str, Any]:
    return {"architecture": architecture, **dataclasses.asdict(model)}
