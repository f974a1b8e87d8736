"""Resolution of a draft trial into a TrialSpec: sizes, budgets, matches."""

import contextlib
import dataclasses
import math
from typing import Any, NamedTuple

from orchestrator.records.trial_spec import (
    EvaluationSchedule,
    Logging,
    Resources,
    Retries,
    TrialSpec,
)
from orchestrator.sweep.draft_trial import DraftTrial, Match, Profile, Rung
from orchestrator.sweep.expansion.sections import (
    UNSOLVED_TOKENS,
    Data,
    PretrainedStart,
    Sections,
    plain,
)
from orchestrator.sweep.matching import budget, isoflop_ladder
from orchestrator.sweep.matching import match as matching
from orchestrator.sweep.matching.match import Matched
from orchestrator.sweep.matching.quantities import QUANTITIES
from orchestrator.sweep.matching.step_time import StepTimeCache, StepTimeQuery
from orchestrator.sweep.parsing import validation
from orchestrator.sweep.parsing.diagnostics import Diagnostic, InvalidError, collecting
from orchestrator.sweep.parsing.yaml_node import YamlNode


class Basis(NamedTuple):
    """A trial before what is solved for is solved."""

    model: Any
    train: Any
    frame: isoflop_ladder.Frame
    resources: Resources


class Solved(NamedTuple):
    """Model and train with tokens and matches worked out."""

    model: Any
    train: Any
    matched: Matched | None = None


class ResolvedTrial(NamedTuple):
    """A trial with seed 0, and what `match` chose for it."""

    spec: TrialSpec
    matched: Matched | None


def trial(
    draft: DraftTrial,
    sections: Sections,
    step_times: StepTimeCache,
    *,
    sweep: str,
    retries: Retries,
    logging: Logging,
    evaluation: EvaluationSchedule | None = None,
) -> ResolvedTrial:
    """Return the trial that a draft describes.

    Raises:
        InvalidError: With everything that is wrong with it.
        NotMeasuredError: If a step time must be measured first.
    """
    wrong: list[Diagnostic] = []
    data = train = resources = frame = model = start = None
    # Each section is built even where another one is wrong, so that all mistakes are reported.
    with collecting(wrong):
        data = sections.data(draft)
    with collecting(wrong):
        train = sections.train(draft)
    with collecting(wrong):
        resources = sections.resources(draft)
    if data is not None and train is not None:
        frame = isoflop_ladder.Frame(data.vocab_size, train.seq_len, train.batch_tokens)
    with collecting(wrong):
        model = _model(draft, sections, frame)
    with collecting(wrong):
        start = _start(draft, sections, data)
    if train is not None and resources is not None:
        wrong += _splits(train, resources, draft)
    if train is not None and model is not None:
        wrong += _too_long(train, model, draft) + _document_mask(train, model, draft)
    if wrong:
        raise InvalidError(*wrong)
    assert data is not None, "a section is there or a mistake was reported"
    assert frame is not None, "it follows from data and train"
    assert resources is not None, "a section is there or a mistake was reported"
    solved = _solved(draft, sections, step_times, Basis(model, train, frame, resources))
    # What `match` chose may be the length that a mixer is built for.
    _check_length(solved.train, solved.model, draft)
    spec = TrialSpec(
        sweep=sweep,
        data=data.record,
        model={"architecture": draft.architecture, **plain(solved.model)},
        train=plain(solved.train),
        seed=0,
        data_sha256=data.sha256,
        **_provenance(draft),
        resources=resources,
        retries=retries,
        logging=logging,
        evaluation=evaluation,
        not_causal=_not_causal(solved.model),
        match=None if solved.matched is None else solved.matched.as_written,
        **({} if start is None else start.identity),
    )
    return ResolvedTrial(spec, solved.matched)


def _provenance(draft: DraftTrial) -> dict[str, Any]:
    """Return which preset, recipe and entry of the sweep file a trial comes from."""
    # A size that the entry chooses is not the preset's any more.
    preset = None if draft.chooses_size else draft.settings.get("model.preset")
    recipe = draft.settings.get("train.recipe")
    return {
        "preset": None if preset is None else preset.content,
        "recipe": None if recipe is None else recipe.content,
        "origin": draft.origin,
    }


def _start(draft: DraftTrial, sections: Sections, data: Data | None) -> PretrainedStart | None:
    """Return the trained model that the trial starts from, if any.

    Raises:
        InvalidError: If its sizes are not those of the trial.
    """
    start = sections.start(draft)
    if start is None:
        return None
    if draft.chooses_size:
        message = "gives the model's sizes, which this entry chooses"
        raise InvalidError(start.where.diagnostic(message, "use set, grid, zip or list"))
    if data is not None and data.vocab_size != start.vocab_size:
        message = (
            f"its embeddings are of {start.vocab_size:,} tokens, data.vocab_size is "
            f"{data.vocab_size:,}"
        )
        tokenizer = start.path / "tokenizer.json"
        fix = f"set data.tokenizer to {tokenizer} and data.vocab_size to {start.vocab_size}"
        raise InvalidError(start.where.diagnostic(message, fix, kind="combination"))
    return start


def _model(
    draft: DraftTrial,
    sections: Sections,
    frame: isoflop_ladder.Frame | None,
    counterpart: YamlNode | None = None,
) -> Any:
    """Return the model before matching; None where the frame is needed and absent."""
    if not draft.chooses_size or draft.size is None:
        return sections.model(draft, counterpart=counterpart)
    nearest_size = sections.nearest_size(draft, counterpart=counterpart)
    if isinstance(draft.size, Rung):
        return isoflop_ladder.rung_model(nearest_size, draft.size)
    if frame is None:
        return None
    profile: Profile = draft.size
    key = ("center", nearest_size, profile.budget_flops, profile.tokens_per_param, frame)
    center = sections.once(key, lambda: isoflop_ladder.profile_center(nearest_size, profile, frame))
    return isoflop_ladder.profile_model(nearest_size, profile, center=center)


def _solved(
    draft: DraftTrial, sections: Sections, step_times: StepTimeCache, basis: Basis
) -> Solved:
    """Return model and train with tokens and matches worked out."""

    def largest() -> Any:
        with contextlib.suppress(InvalidError):
            return _model(_last(draft), sections, basis.frame)
        return basis.model

    if draft.size is not None:
        tokens = isoflop_ladder.tokens_for(draft.size, basis.model, basis.frame, largest=largest)
        basis = basis._replace(train=dataclasses.replace(basis.train, tokens=tokens))
    if draft.match is None:
        return Solved(basis.model, basis.train)
    return _matched(draft, draft.match, sections, step_times, basis)


def _matched(
    draft: DraftTrial,
    match: Match,
    sections: Sections,
    step_times: StepTimeCache,
    basis: Basis,
) -> Solved:
    """Return model and train equal to what `match` names."""
    model, train, frame, _ = basis
    other = None
    itself = match.model is None and match.architecture == draft.architecture
    if match.model is not None:
        other = _counterpart(draft, match, sections, basis)
        itself = other == model
    known_elsewhere = itself and sections.used_by("model", match.solve)
    if match.solve != "tokens" and not known_elsewhere:
        matching.check_field(match, model, draft)
    compared_tokens: int | None = None
    if match.architecture is not None:
        if other is None and not itself:
            other = _counterpart(draft, match, sections, basis)
        compared_tokens = _counterpart_tokens(draft, match, train)
        if isinstance(draft.size, Rung) and other is not None:
            # In a ladder the counterpart trains for its own tokens per parameter.
            compared_tokens = isoflop_ladder.tokens_for(
                draft.size, other, frame, largest=lambda: other
            )
        if itself:
            return Solved(model, dataclasses.replace(train, tokens=compared_tokens))
    if QUANTITIES[match.quantity].count is None:
        return _timed(draft, match, step_times, basis, other, compared_tokens)
    return _counted(draft, match, sections, basis, other, compared_tokens)


def _counterpart(draft: DraftTrial, match: Match, sections: Sections, basis: Basis) -> Any:
    """Return the model that a trial is compared with, of another architecture or as written."""
    if match.model is not None:
        # Mistakes in it have places of their own.
        elsewhere = {k: v for k, v in draft.settings.items() if not k.startswith("model.")}
        written = dataclasses.replace(
            draft, settings={**elsewhere, **match.model}, own=frozenset(match.model), size=None
        )
        other = sections.model(written)
    try:
        if match.model is None:
            other = _model(draft, sections, basis.frame, match.target)
        _check_length(basis.train, other, draft, name=match.architecture)
    except InvalidError as error:
        raise InvalidError(_about_counterpart(error.diagnostics[0], match)) from error
    return other


def _counted(
    draft: DraftTrial,
    match: Match,
    sections: Sections,
    basis: Basis,
    other: Any,
    compared_tokens: int | None,
) -> Solved:
    """Return model and train at which a closed form meets that of `other`, or a number."""
    model, train, frame, _ = basis
    count, target = QUANTITIES[match.quantity].count, match.target_number
    assert count is not None, "measured quantities go another way"
    # Where a run stops earlier, that is what it costs; the tokens that are solved for have no stop.
    trained_tokens = train.stop_at_tokens or train.tokens
    if compared_tokens is not None:
        target = count(other, frame, train.stop_at_tokens or compared_tokens)
    assert target is not None, "a match has an architecture or a number"
    wanted = target
    field, written = "tokens", compared_tokens
    try:
        if match.solve == "tokens":
            chosen, reached = matching.solved_tokens(match, model, frame, target=wanted)
        else:
            field = matching.field_of(match, model)
            written = getattr(model, field)
            # The match itself and not only what it says, because its mistakes name its place.
            key = ("match", match, model, frame, trained_tokens, wanted)
            chosen, reached = sections.once(
                key,
                lambda: matching.solved_field(
                    match, model, frame, target=wanted, tokens=trained_tokens
                ),
            )
    except InvalidError as error:
        raise InvalidError(*(d.of(draft.architecture) for d in error.diagnostics)) from error
    matched = Matched(
        trial=matching.trial_name(draft),
        quantity=match.quantity,
        counterpart=match.counterpart,
        architecture=match.architecture,
        field=field,
        written=written,
        chosen=chosen,
        target=wanted,
        reached=reached,
    )
    return _with(basis, matched)


def _timed(
    draft: DraftTrial,
    match: Match,
    step_times: StepTimeCache,
    basis: Basis,
    other: Any,
    compared_tokens: int | None,
) -> Solved:
    """Return model and train at which the measured time of a step, or of all, meets `other`'s."""
    model, train, frame, resources = basis
    field = "tokens" if match.solve == "tokens" else matching.field_of(match, model)
    query = StepTimeQuery(
        match=match,
        trial=matching.trial_name(draft),
        field=field,
        architecture=draft.architecture,
        model=model,
        other=other,
        train=train,
        frame=frame,
        resources=resources,
    )
    written = compared_tokens if field == "tokens" else getattr(model, field)
    answer = step_times.answer(
        query, with_value=lambda n: matching.with_field(model, field, n), written=written
    )
    matched = Matched(
        trial=query.trial,
        quantity=match.quantity,
        counterpart=match.counterpart,
        architecture=match.architecture,
        field=field,
        written=written,
        chosen=answer.value or 0,
        target=answer.counterpart_step_s,
        reached=answer.ratio * answer.counterpart_step_s,
        measured=answer.as_json(),
    )
    if field == "tokens":
        assert compared_tokens is not None, "a number of seconds is never met by tokens"
        steps = budget.steps_for_tokens(compared_tokens, batch_tokens=frame.batch_tokens)
        solved_steps = max(1, round(steps / answer.ratio))
        matched = dataclasses.replace(
            matched,
            chosen=solved_steps * frame.batch_tokens,
            target=steps * matched.target,
            reached=solved_steps * matched.reached,
        )
        if abs(matched.ratio - 1) > budget.TOLERANCE:
            message = (
                f"{steps} steps of {match.counterpart} take as long as "
                f"{steps / answer.ratio:.2f} of this model, which whole steps of "
                f"{frame.batch_tokens:,} tokens do not meet within 1 %"
            )
            tokens = math.ceil(_FINEST_STEPS * answer.ratio) * frame.batch_tokens
            fix = f"lower train.batch_tokens, or raise train.tokens to {tokens:,} or more"
            diagnostic = match.where.diagnostic_at_key(message, fix, kind="combination")
            raise InvalidError(diagnostic.of(draft.architecture))
    return _with(basis, matched)


_FINEST_STEPS = math.ceil(0.5 / budget.TOLERANCE)
"""Steps of which half a step is within the tolerance."""


def _with(basis: Basis, matched: Matched) -> Solved:
    if matched.field == "tokens":
        train = dataclasses.replace(basis.train, tokens=matched.chosen)
        return Solved(basis.model, train, matched)
    model = dataclasses.replace(basis.model, **{matched.field: matched.chosen})
    return Solved(model, basis.train, matched)


def _last(draft: DraftTrial) -> DraftTrial:
    """Return the draft of the largest size in the same profile."""
    if not isinstance(draft.size, Profile):
        return draft
    size = dataclasses.replace(draft.size, index=draft.size.sizes - 1)
    return dataclasses.replace(draft, size=size)


def _counterpart_tokens(draft: DraftTrial, match: Match, train: Any) -> int:
    """Return the tokens that the counterpart trains for: the trial's own before solving."""
    if train.tokens != UNSOLVED_TOKENS:
        return int(train.tokens)
    written = draft.settings.get("train.tokens")
    if written is None:
        message = f"solve: tokens compares with a {match.counterpart} model of train.tokens tokens"
        fix = "write tokens: under train:"
        raise InvalidError(match.where.diagnostic_at_key(message, fix, kind="missing"))
    return validation.check_whole_number(written, at_least=1)


def _about_counterpart(diagnostic: Diagnostic, match: Match) -> Diagnostic:
    """Say that a mistake was met while building the model that a match compares with."""
    message = f"there is no {match.counterpart} model to compare with: {diagnostic.message}"
    example = QUANTITIES[match.quantity].example
    fix = f"use a preset that both architectures have, or write a number such as {example}"
    return match.target.diagnostic(message, fix, kind="combination")


def _not_causal(model: Any) -> str | None:
    """Return when and why an output can depend on later tokens, if the model's Config says so."""
    reasons: dict[str, str] = getattr(model, "non_causal_reasons", None) or {}
    return "; ".join(f"in {mode}: {why}" for mode, why in reasons.items()) or None


def _too_long(
    train: Any, model: Any, draft: DraftTrial, *, name: str | None = None
) -> list[Diagnostic]:
    """Return that the model cannot read sequences of this length, if its Config says so."""
    longest = getattr(model, "longest_sequence", None)
    if longest is None or train.seq_len <= longest:
        return []
    field = getattr(model, "LONGEST_SEQUENCE_FIELD", "max_seq_len")
    name = name or draft.architecture
    message = f"seq_len must be at most {field} ({longest}) of {name}, got {train.seq_len}"
    fix = f"lower train.seq_len to {longest}, or raise model.{field}"
    # One of the two is there: train would not be otherwise.
    where = draft.settings.get("train.seq_len") or draft.settings["train.recipe"]
    return [where.diagnostic(message, fix, kind="combination", about=name)]


def _document_mask(train: Any, model: Any, draft: DraftTrial) -> list[Diagnostic]:
    """Return that the model's positions meet elsewhere than in attention, if its Config says so."""
    written = draft.settings.get("train.document_mask")
    if not train.document_mask or model.DOCUMENT_MASK or written is None:
        return []
    message = f"positions of {draft.architecture} also meet outside of softmax attention"
    fix = "leave it out for this architecture"
    about = draft.architecture
    return [written.diagnostic(message, fix, kind="combination", about=about)]


def _check_length(train: Any, model: Any, draft: DraftTrial, *, name: str | None = None) -> None:
    too_long = _too_long(train, model, draft, name=name)
    if too_long:
        raise InvalidError(*too_long)


def _splits(train: Any, resources: Resources, draft: DraftTrial) -> list[Diagnostic]:
    """Return what the trainer would refuse: shares that the batch or tables cannot be cut into."""
    wrong: list[Diagnostic] = []

    def refuse(field: str, refused: bool, message: str, fix: str) -> None:
        where = draft.settings.get(f"resources.{field}")
        if refused and where is not None:
            wrong.append(where.diagnostic(message, fix, kind="combination"))

    refuse(
        "memory_tables",
        resources.memory_tables == "host" and train.table_optimizer == "adamw",
        "tables in the host's memory have no gradient as large as themselves, "
        "which table_optimizer: adamw needs",
        "set train.table_optimizer to lazy_adamw, rowwise or sgd, or memory_tables to device",
    )
    refuse(
        "ranks",
        resources.ranks > train.sequences_per_step,
        "ranks must be at most the sequences of a step "
        f"(batch_tokens / seq_len = {train.sequences_per_step}), got {resources.ranks}",
        "lower ranks or raise train.batch_tokens",
    )
    micro = resources.micro_batch_tokens
    refuse(
        "micro_batch_tokens",
        micro is not None and micro < train.seq_len,
        f"micro_batch_tokens must be at least one sequence (seq_len = {train.seq_len}), "
        f"got {micro}",
        "raise it or lower train.seq_len",
    )
    return wrong
