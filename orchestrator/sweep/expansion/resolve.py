"""DraftTrial -> TrialSpec: sections built, sizes and budgets solved, what contradicts each other told."""

import dataclasses
from typing import Any, NamedTuple

from orchestrator.records.trial_spec import Logging, Resources, Retries, TrialSpec
from orchestrator.sweep.draft_trial import DraftTrial, Match, Profile, Rung
from orchestrator.sweep.expansion.sections import UNSOLVED_TOKENS, Sections, plain
from orchestrator.sweep.matching import budget, isoflop_ladder
from orchestrator.sweep.matching import match as matching
from orchestrator.sweep.matching.match import Matched
from orchestrator.sweep.matching.quantities import QUANTITIES
from orchestrator.sweep.matching.step_time import StepTimeCache, StepTimeQuery
from orchestrator.sweep.parsing import validation
from orchestrator.sweep.parsing.diagnostics import Diagnostic
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
) -> tuple[ResolvedTrial | None, list[Diagnostic]]:
    """Return the trial, or everything that is wrong with it; neither where a step time must be measured first."""
    data, diagnostics = sections.data(draft)
    train, wrong = sections.train(draft)
    resources, also_wrong = sections.resources(draft)
    diagnostics = [*diagnostics, *wrong, *also_wrong]
    frame = None
    if data is not None and train is not None:
        frame = isoflop_ladder.Frame(data.vocab_size, train.seq_len, train.batch_tokens)
    model, wrong = _model(draft, sections, frame)
    diagnostics += wrong
    if train is not None and resources is not None:
        diagnostics += _splits(train, resources, draft)
    if train is not None and model is not None:
        diagnostics += _too_long(train, model, draft)
    if data is None or frame is None or model is None or diagnostics:
        return None, diagnostics
    resources = resources or Resources()
    solved, diagnostics = _solved(
        draft, sections, step_times, Basis(model, train, frame, resources)
    )
    if solved is None:
        return None, diagnostics
    model, train, matched = solved
    # What `match` chose may be the length that a mixer is built for.
    diagnostics = _too_long(train, model, draft)
    if diagnostics:
        return None, diagnostics
    preset = None if draft.chooses_size else draft.settings.get("model.preset")
    recipe = draft.settings.get("train.recipe")
    spec = TrialSpec(
        sweep=sweep,
        data=data.record,
        model={"architecture": draft.architecture, **plain(model)},
        train=plain(train),
        seed=0,
        data_sha256=data.sha256,
        preset=None if preset is None else preset.content,
        recipe=None if recipe is None else recipe.content,
        origin=draft.origin,
        resources=resources,
        retries=retries,
        logging=logging,
        not_causal=_not_causal(model),
    )
    return ResolvedTrial(spec, matched), []


def _model(
    draft: DraftTrial,
    sections: Sections,
    frame: isoflop_ladder.Frame | None,
    counterpart: YamlNode | None = None,
) -> tuple[Any, list[Diagnostic]]:
    """Return the model before matching; None without diagnostics where the frame is needed and absent."""
    if not draft.chooses_size or draft.size is None:
        return sections.model(draft, counterpart=counterpart)
    nearest_size, diagnostics = sections.nearest_size(draft, counterpart=counterpart)
    if nearest_size is None:
        return None, diagnostics
    if isinstance(draft.size, Rung):
        return isoflop_ladder.rung_model(nearest_size, draft.size)
    if frame is None:
        return None, []
    profile: Profile = draft.size
    key = ("center", nearest_size, profile.budget_flops, profile.tokens_per_param, frame)
    center = sections.once(key, lambda: isoflop_ladder.profile_center(nearest_size, profile, frame))
    return isoflop_ladder.profile_model(nearest_size, profile, center=center)


def _solved(
    draft: DraftTrial, sections: Sections, step_times: StepTimeCache, basis: Basis
) -> tuple[Solved | None, list[Diagnostic]]:
    """Return model and train with tokens and matches worked out; nothing at all where a step time is wanting."""
    model, train, frame, _ = basis
    if draft.size is not None:
        tokens, diagnostics = isoflop_ladder.tokens_for(
            draft.size, model, frame, largest=lambda: _model(_last(draft), sections, frame)[0]
        )
        if diagnostics:
            return None, diagnostics
        train = dataclasses.replace(train, tokens=tokens)
    if draft.match is None:
        return Solved(model, train), []
    return _matched(draft, draft.match, sections, step_times, basis._replace(train=train))


def _matched(
    draft: DraftTrial, match: Match, sections: Sections, step_times: StepTimeCache, basis: Basis
) -> tuple[Solved | None, list[Diagnostic]]:
    """Return model and train equal to what `match` names."""
    model, train, frame, _ = basis
    itself = match.architecture == draft.architecture
    known_elsewhere = itself and sections.used_by("model", match.solve)
    diagnostics = []
    if match.solve != "tokens" and not known_elsewhere:
        diagnostics = matching.check_field(match, model, draft)
    if diagnostics:
        return None, diagnostics
    other = None
    compared_tokens: int | None = None
    if match.architecture is not None:
        if not itself:
            other, diagnostics = _model(draft, sections, frame, match.target)
            diagnostics = diagnostics or _too_long(train, other, draft, name=match.architecture)
            if diagnostics:
                return None, [_about_counterpart(diagnostics[0], match)]
        compared_tokens, diagnostics = _counterpart_tokens(draft, match, train)
        if isinstance(draft.size, Rung) and other is not None:
            # In a ladder the counterpart trains for its own tokens per parameter.
            compared_tokens, _ = isoflop_ladder.tokens_for(
                draft.size, other, frame, largest=lambda: other
            )
        if compared_tokens is None:
            return None, diagnostics
        if itself:
            return Solved(model, dataclasses.replace(train, tokens=compared_tokens)), []
    if QUANTITIES[match.quantity].count is None:
        return _timed(draft, match, step_times, basis, other, compared_tokens)
    return _counted(draft, match, sections, basis, other, compared_tokens)


def _counted(
    draft: DraftTrial,
    match: Match,
    sections: Sections,
    basis: Basis,
    other: Any,
    compared_tokens: int | None,
) -> tuple[Solved | None, list[Diagnostic]]:
    """Return model and train at which a closed form meets that of `other`, or a number."""
    model, train, frame, _ = basis
    count, target = QUANTITIES[match.quantity].count, match.target_number
    assert count is not None, "measured quantities go another way"
    if compared_tokens is not None:
        target = count(other, frame, compared_tokens)
    assert target is not None, "a match has an architecture or a number"
    wanted = target
    field = "tokens" if match.solve == "tokens" else matching.field_of(match, model)
    if match.solve == "tokens":
        chosen, reached, diagnostics = matching.solved_tokens(match, model, frame, target=wanted)
    else:
        # The match itself, and not only what it says: what is wrong with it is told at its place.
        key = ("match", match, model, frame, train.tokens, wanted)
        chosen, reached, diagnostics = sections.once(
            key,
            lambda: matching.solved_field(match, model, frame, target=wanted, tokens=train.tokens),
        )
    if chosen is None:
        return None, [diagnostic.of(draft.architecture) for diagnostic in diagnostics]
    told = Matched(
        trial=matching.trial_name(draft),
        quantity=match.quantity,
        counterpart=match.architecture,
        field=field,
        written=compared_tokens if match.solve == "tokens" else getattr(model, field),
        chosen=chosen,
        target=wanted,
        reached=reached,
    )
    return _with(basis, told), []


def _timed(
    draft: DraftTrial,
    match: Match,
    step_times: StepTimeCache,
    basis: Basis,
    other: Any,
    compared_tokens: int | None,
) -> tuple[Solved | None, list[Diagnostic]]:
    """Return model and train at which the measured time of a step, or of all steps, meets that of `other`."""
    model, train, frame, resources = basis
    field = "tokens" if match.solve == "tokens" else matching.field_of(match, model)
    trial_name = matching.trial_name(draft)
    question = StepTimeQuery(
        match=match,
        trial=trial_name,
        field=field,
        architecture=draft.architecture,
        model=model,
        other=other,
        train=train,
        frame=frame,
        resources=resources,
    )
    written = compared_tokens if field == "tokens" else getattr(model, field)
    answer, diagnostics = step_times.answer(
        question, with_value=lambda n: matching.with_field(model, field, n), written=written
    )
    if answer is None:
        return None, diagnostics
    told = Matched(
        trial=trial_name,
        quantity=match.quantity,
        counterpart=match.architecture,
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
        told = dataclasses.replace(
            told,
            chosen=solved_steps * frame.batch_tokens,
            target=steps * told.target,
            reached=solved_steps * told.reached,
        )
        if abs(told.ratio - 1) > budget.TOLERANCE:
            message = (
                f"{steps} steps of {match.architecture} take as long as {steps / answer.ratio:.2f} of this model, "
                f"which whole steps of {frame.batch_tokens:,} tokens do not meet within 1 %"
            )
            fix = "lower train.batch_tokens or raise train.tokens"
            diagnostic = match.where.diagnostic_at_key(message, fix, kind="combination")
            return None, [diagnostic.of(draft.architecture)]
    return _with(basis, told), []


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


def _counterpart_tokens(
    draft: DraftTrial, match: Match, train: Any
) -> tuple[int | None, list[Diagnostic]]:
    """Return the tokens that the counterpart of a match trains for: the trial's own before solving."""
    if train.tokens != UNSOLVED_TOKENS:
        return int(train.tokens), []
    written = draft.settings.get("train.tokens")
    if written is None:
        message = f"solve: tokens compares with a {match.architecture} model of train.tokens tokens"
        return None, [
            match.where.diagnostic_at_key(message, "write tokens: under train:", kind="missing")
        ]
    tokens, bad = validation.check_whole_number(written, at_least=1)
    return tokens, [] if bad is None else [bad]


def _about_counterpart(diagnostic: Diagnostic, match: Match) -> Diagnostic:
    """Say that a mistake was met while building the model that a match compares with."""
    message = f"there is no {match.architecture} model to compare with: {diagnostic.message}"
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


def _splits(train: Any, resources: Resources, draft: DraftTrial) -> list[Diagnostic]:
    """Return what the trainer would refuse: parts that the batch cannot be cut into."""
    diagnostics = []
    on_host = draft.settings.get("resources.memory_tables")
    if (
        on_host is not None
        and resources.memory_tables == "host"
        and train.table_optimizer == "adamw"
    ):
        message = "tables in the host's memory have no gradient as large as themselves, which table_optimizer: adamw needs"
        fix = "set train.table_optimizer to lazy_adamw, rowwise or sgd, or memory_tables to device"
        diagnostics.append(on_host.diagnostic(message, fix, kind="combination"))
    ranks = draft.settings.get("resources.ranks")
    if ranks is not None and resources.ranks > train.sequences_per_step:
        message = (
            f"ranks must be at most the sequences of a step "
            f"(batch_tokens / seq_len = {train.sequences_per_step}), got {resources.ranks}"
        )
        fix = "lower ranks or raise train.batch_tokens"
        diagnostics.append(ranks.diagnostic(message, fix, kind="combination"))
    micro = draft.settings.get("resources.micro_batch_tokens")
    count = resources.micro_batch_tokens
    if micro is not None and count is not None and count < train.seq_len:
        message = f"micro_batch_tokens must be at least one sequence (seq_len = {train.seq_len}), got {count}"
        fix = "raise it or lower train.seq_len"
        diagnostics.append(micro.diagnostic(message, fix, kind="combination"))
    return diagnostics
