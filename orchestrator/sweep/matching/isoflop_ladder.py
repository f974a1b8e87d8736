"""IsoFLOP profiles and ladders: sizes and tokens for a training-FLOP target.

The numbers come from an architecture's closed forms (`flops_per_token`, `param_count`,
`nearest_size`); nothing is built. `match` is in match.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.sweep.draft_trial import Profile, Rung
from orchestrator.sweep.matching import budget
from orchestrator.sweep.parsing.diagnostics import InvalidError
from workloads.field_error import message_and_fix

NearestSize = Callable[[int], Any]
"""Non-embedding parameters -> model Config; ValueError where the family has no such member."""


class Frame(NamedTuple):
    """What a model's training FLOPs depend on besides the model."""

    vocab_size: int
    seq_len: int
    batch_tokens: int


def training_flops(model: Any, frame: Frame, *, tokens: int) -> float:
    """Return 3 x forward over whole steps (docs/metrics.md, "Accounting")."""
    steps = budget.steps_for_tokens(tokens, batch_tokens=frame.batch_tokens)
    return 3.0 * _forward(model, frame) * frame.batch_tokens * steps


def rung_model(nearest_size: NearestSize, rung: Rung) -> Any:
    """Return the model of one size of a ladder.

    Raises:
        InvalidError: If there is none of that size.
    """
    assert rung.non_embedding_params is not None, "a preset is no size"
    try:
        return nearest_size(rung.non_embedding_params)
    except ValueError as error:
        message, fix = message_and_fix(error)
        raise InvalidError(rung.size.diagnostic(message, fix, kind="combination")) from error


def profile_center(nearest_size: NearestSize, profile: Profile, frame: Frame) -> float:
    """Return the size at which `tokens_per_param` tokens a parameter spend the budget."""

    def forward(size: float) -> float:
        try:
            return _forward(nearest_size(round(size)), frame)
        except ValueError:
            # Outside the family. 2 N only steers the search back inside; it is never the answer,
            # because `nearest_size` is asked again for the size that is found.
            return 2.0 * size

    return budget.optimal_size(
        forward, budget_flops=profile.budget_flops, tokens_per_param=profile.tokens_per_param
    )


def profile_model(nearest_size: NearestSize, profile: Profile, *, center: float) -> Any:
    """Return one model of an isoFLOP profile.

    Raises:
        InvalidError: If there is none of that size.
    """
    sizes = budget.log_spaced(center, span=profile.span, count=profile.sizes)
    try:
        return nearest_size(round(sizes[profile.index]))
    except ValueError as error:
        message = (
            f"{flops_text(profile.budget_flops)} FLOPs suit models of {sizes[0]:,.0f} to "
            f"{sizes[-1]:,.0f} parameters, not all of which exist: {message_and_fix(error)[0]}"
        )
        fix = "change the budget, span or tokens_per_param, or the model keys that are held fixed"
        raise InvalidError(profile.budget.diagnostic(message, fix, kind="combination")) from error


def tokens_for(
    size: Profile | Rung, model: Any, frame: Frame, *, largest: Callable[[], Any]
) -> int:
    """Return the tokens of a ladder's or a profile's model, in whole steps.

    Args:
        size: What the model was made for.
        model: The model.
        frame: Vocabulary, sequence and batch.
        largest: Makes the largest model of the same profile; it has the fewest steps, so it says
            how small a batch must be for all of them.

    Raises:
        InvalidError: If whole steps do not meet the budget.
    """
    batch = frame.batch_tokens
    if isinstance(size, Rung):
        wanted = size.tokens_per_param * model.param_count(frame.vocab_size).non_embedding
        return batch * budget.steps_for_tokens(wanted, batch_tokens=batch)
    tokens, reached = tokens_near(size.budget_flops, model, frame)
    if budget.relative_error(reached, size.budget_flops) <= budget.TOLERANCE:
        return tokens
    message = too_coarse(size.budget_flops, reached, frame)
    advice = batch_advice(size.budget_flops, largest(), frame)
    raise InvalidError(size.budget.diagnostic(message, advice, kind="combination"))


def _forward(model: Any, frame: Frame) -> float:
    return float(model.flops_per_token(frame.vocab_size, frame.seq_len).total)


def tokens_near(target: float, model: Any, frame: Frame) -> tuple[int, float]:
    """Return tokens in whole steps, and the FLOPs they cost."""
    step = 3.0 * _forward(model, frame) * frame.batch_tokens
    steps = budget.steps_for_budget(target, step_flops=step)
    return steps * frame.batch_tokens, steps * step


def too_coarse(target: float, reached: float, frame: Frame) -> str:
    """Say that whole steps do not come near enough to a number of FLOPs."""
    return (
        f"{flops_text(target)} FLOPs cannot be hit within 1 % by whole steps of "
        f"{frame.batch_tokens:,} tokens: "
        f"the nearest is {flops_text(reached)} ({off_text(reached, target)})"
    )


def batch_advice(target: float, model: Any, frame: Frame) -> str:
    """Say how small a batch must be so that whole steps come near enough."""
    batch = budget.most_batch_tokens(
        target, forward_flops_per_token=_forward(model, frame), multiple_of=frame.seq_len
    )
    if batch:
        return f"lower train.batch_tokens to {batch:_} or raise the budget"
    return f"lower train.seq_len ({frame.seq_len}) and train.batch_tokens, or raise the budget"


def flops_text(number: float) -> str:
    """Write FLOPs so that they can be pasted into a sweep file."""
    mantissa, exponent = f"{number:.3e}".split("e")
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}0e{exponent}" if mantissa.endswith(".") else f"{mantissa}e{exponent}"


def off_text(reached: float, target: float) -> str:
    """Return `+3.2 %`, or `12 times as many`."""
    if reached > 2 * target:
        return f"{reached / target:,.4g} times as many"
    return f"{100 * (reached / target - 1):+.3g} %"
