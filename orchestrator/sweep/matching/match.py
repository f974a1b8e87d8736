"""Match of a trial with its counterpart within 1 %, by one field or the tokens.

Counted quantities are solved here, from closed forms; measured step times in step_time.py.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.sweep.draft_trial import FREE_DIMENSION, DraftTrial, Match
from orchestrator.sweep.matching import budget, isoflop_ladder
from orchestrator.sweep.matching.isoflop_ladder import Frame
from orchestrator.sweep.matching.quantities import QUANTITIES
from orchestrator.sweep.parsing import messages
from orchestrator.sweep.parsing.diagnostics import Diagnostic, InvalidError
from workloads.field_error import message_and_fix

ONE_BY_ONE = 128
"""Values that are tried one by one where a search for a rising quantity found nothing."""


@dataclass(frozen=True, kw_only=True)
class Matched:
    """What `match` chose for one trial."""

    trial: str
    """Which one, for people: `memory_plus d32, n_keys 64`. Without the seed."""
    quantity: str
    """A key of `QUANTITIES`."""
    counterpart: str | None
    """What it was compared with (`Match.counterpart`), or None for a number."""
    architecture: str | None = None
    """Of the counterpart."""
    field: str
    """tokens, or a field of the model's Config."""
    written: int | None
    """Its value before, None where there was none."""
    chosen: int
    target: float
    """Of the counterpart, or as written. For tokens by step time: seconds of the whole training."""
    reached: float
    measured: Mapping[str, Any] | None = None
    """For step times: on what, when, and how exactly (the entry of the lock file)."""

    @property
    def as_written(self) -> dict[str, str]:
        """Return it as a sweep file says it: `{training_flops: pythia, solve: tokens}`."""
        to = self.counterpart or QUANTITIES[self.quantity].write(self.target)
        return {self.quantity: to, "solve": self.field}

    @property
    def ratio(self) -> float:
        """Reached over target."""
        return self.reached / self.target

    def __str__(self) -> str:
        words = QUANTITIES[self.quantity].words
        if self.quantity == "step_time":
            words = "training time" if self.field == "tokens" else "step time"
        before = "" if self.written is None else f"{_grouped(self.written)} → "
        ratio = f"{self.ratio:.3f}"
        if self.measured is not None:
            # A step's ratio may be far from 1; that of a training of fewer, slower steps is not.
            relative = self.measured["ratio_uncertainty"] / self.measured["ratio"]
            ratio += f" ± {self.ratio * relative:.3f}"
        target = self.counterpart
        if target is None:
            target = f"the {QUANTITIES[self.quantity].write(self.target)} asked for"
        text = f"{self.trial}: {self.field} {before}{_grouped(self.chosen)}, "
        text += f"{words} {ratio} × {target}"
        if self.measured is None:
            return text
        return (
            f"{text} (measured on {self.measured['device']}, {self.measured['measured_at'][:10]})"
        )


def field_of(match: Match, model: Any) -> str:
    """Return the field of the model that is solved for."""
    return str(model.FREE_DIMENSION) if match.solve == FREE_DIMENSION else match.solve


def check_field(match: Match, model: Any, draft: DraftTrial) -> None:
    """Refuse a field that cannot be solved for.

    Raises:
        InvalidError: If it is not there, no whole number, or written in the entry.
    """
    architecture = draft.architecture
    cls: Any = type(model)
    field, annotations = field_of(match, model), messages.field_types(cls)
    whole = [name for name, kind in annotations.items() if int in messages.options(kind)]
    where = match.solve_where or match.where
    if field not in annotations:
        guess = messages.nearest(field, [*whole, "tokens", FREE_DIMENSION])
        fix = f"did you mean {guess!r}?" if guess else f"write for example {model.FREE_DIMENSION}"
        message = f"{architecture} has no field {field!r} to solve for"
        raise InvalidError(where.diagnostic(message, fix, about=architecture))
    if field not in whole:
        kind = messages.describe(annotations[field])
        message = f"can only solve for a whole number, and {field} of {architecture} is {kind}"
        fix = f"write for example {model.FREE_DIMENSION}, or remove it"
        raise InvalidError(where.diagnostic(message, fix, about=architecture))
    if f"model.{field}" in draft.own:
        fix = "remove it, or solve for another field"
        if QUANTITIES[match.quantity].by_tokens:
            fix = "remove it, or write solve: tokens under match"
        written = draft.settings[f"model.{field}"]
        message = f"match solves for model.{field} itself"
        raise InvalidError(written.diagnostic_at_key(message, fix))


def solved_field(
    match: Match, model: Any, frame: Frame, *, target: float, tokens: int
) -> tuple[int, float]:
    """Return the value of the field that comes nearest to the target, and what it reaches.

    Raises:
        InvalidError: If none comes within budget.TOLERANCE.
    """
    quantity, field = QUANTITIES[match.quantity], field_of(match, model)
    count = quantity.count
    assert count is not None, "measured quantities are solved in step_time.py"
    known: dict[int, float | None] = {}

    def number(value: int) -> float | None:
        if value not in known:
            changed = with_field(model, field, value)
            known[value] = None if changed is None else count(changed, frame, tokens)
        return known[value]

    def reached(value: int) -> float:
        found = number(value)
        assert found is not None, "only values that are possible are compared"
        return found

    written = getattr(model, field)
    best = budget.nearest_integer(number, target, written=written)
    if best is None or budget.relative_error(reached(best), target) > budget.TOLERANCE:
        # A few counts fall where what is solved for rises: more memory layers mean fewer
        # feed-forward blocks.
        for value in range(1, ONE_BY_ONE + 1):
            number(value)
        tried = [value for value, found in known.items() if found is not None]
        if not tried:
            raise InvalidError(_none_possible(match, model, field))
        best = min(sorted(tried), key=lambda value: abs(reached(value) - target))
    if budget.relative_error(reached(best), target) <= budget.TOLERANCE:
        return best, reached(best)
    flat = len({found for found in known.values() if found is not None}) == 1
    raise InvalidError(_out_of_reach(match, model, (best, reached(best)), target=target, flat=flat))


def solved_tokens(match: Match, model: Any, frame: Frame, *, target: float) -> tuple[int, float]:
    """Return the tokens whose training FLOPs come nearest to the target, and those FLOPs.

    Raises:
        InvalidError: If they do not come within budget.TOLERANCE.
    """
    tokens, reached = isoflop_ladder.tokens_near(target, model, frame)
    if budget.relative_error(reached, target) <= budget.TOLERANCE:
        return tokens, reached
    message = isoflop_ladder.too_coarse(target, reached, frame)
    advice = isoflop_ladder.batch_advice(target, model, frame)
    raise InvalidError(match.where.diagnostic_at_key(message, advice, kind="combination"))


def with_field(model: Any, field: str, value: int) -> Any:
    """Return the model with another value of a field, or None where its Config refuses that."""
    try:
        return dataclasses.replace(model, **{field: value})
    except (ValueError, ArithmeticError):
        return None


def trial_name(draft: DraftTrial) -> str:
    """Return architecture, preset or size, and the other settings that the entry varies."""
    architecture = draft.architecture
    size = draft.settings.get("model.preset")
    if draft.chooses_size and draft.size is not None:
        size = getattr(draft.size, "size", None)
    name = architecture if size is None or size.content is None else f"{architecture} {size.brief}"
    varied = [
        f"{key.removeprefix('model.')} {setting.brief}"
        for key, setting in draft.settings.items()
        if key in draft.own and (key.startswith(("model.", "data.")) or key in _DECISIVE)
        if key not in ("model.architecture", "model.preset")
    ]
    return ", ".join([name, *varied])


_DECISIVE = (
    *("train.tokens", "train.stop_at_tokens", "train.batch_tokens", "train.seq_len"),
    "train.precision",
)
"""What a solution may depend on besides data and model."""


def _none_possible(match: Match, model: Any, field: str) -> Diagnostic:
    try:
        dataclasses.replace(model, **{field: 1})
        complaint = ""
    except (ValueError, ArithmeticError) as error:
        complaint = f": {message_and_fix(error)[0]}"
    message = f"no value of {field} is possible with the rest of this model{complaint}"
    fix = "change the rest of the model, or solve for another field"
    return match.where.diagnostic_at_key(message, fix, kind="combination")


def _out_of_reach(
    match: Match, model: Any, best: tuple[int, float], *, target: float, flat: bool
) -> Diagnostic:
    quantity, field = QUANTITIES[match.quantity], field_of(match, model)
    value, reached = best
    wanted, got, off = quantity.write(target), quantity.write(reached), isoflop_ladder.off_text
    message = (
        f"no {field} gives {wanted} {quantity.words} within 1 %: the nearest is {field} {value} "
        f"with {got} ({off(reached, target)})"
    )
    smaller = "smaller" if reached > target else "larger"
    advice = [f"make the rest of the model {smaller}"]
    if flat:
        message = (
            f"{field} does not change {quantity.words}: with any value there are {got}, "
            f"and {wanted} are asked for ({off(reached, target)})"
        )
    if field != model.FREE_DIMENSION:
        advice.append(f"solve for {model.FREE_DIMENSION} (remove solve: {field})")
    if quantity.by_tokens:
        advice.append("change tokens instead with solve: tokens")
    if match.architecture is None:
        advice.append(f"write {match.quantity}: {got}")
    return match.where.diagnostic_at_key(message, ", or ".join(advice), kind="combination")


def _grouped(number: int) -> str:
    return f"{number:_}" if number >= 10_000 else str(number)
