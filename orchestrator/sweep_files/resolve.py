"""Draft -> TrialSpec: sections built, sizes and budgets solved, what contradicts each other told."""

import dataclasses
from typing import Any

from orchestrator import config
from orchestrator.records import Logging, Resources, Retries, TrialSpec
from orchestrator.sweep_files import solve
from orchestrator.sweep_files.drafts import Draft, Match, Profile, Rung
from orchestrator.sweep_files.findings import Finding
from orchestrator.sweep_files.located import Located
from orchestrator.sweep_files.sections import UNSOLVED_TOKENS, Sections, plain


def trial_spec(
    draft: Draft, sections: Sections, *, sweep: str, retries: Retries, logging: Logging
) -> tuple[TrialSpec | None, list[Finding]]:
    """Return the trial with seed 0, or everything that is wrong with it."""
    data, findings = sections.data(draft)
    train, wrong = sections.train(draft)
    resources, also_wrong = sections.resources(draft)
    findings = [*findings, *wrong, *also_wrong]
    frame = None
    if data is not None and train is not None:
        frame = solve.Frame(data.vocab_size, train.seq_len, train.batch_tokens)
    model, wrong = _model(draft, sections, frame)
    findings += wrong
    if train is not None and resources is not None:
        findings += _splits(train, resources, draft)
    if data is None or frame is None or model is None or findings:
        return None, findings
    model, train, findings = _solved(draft, sections, model, train, frame)
    if findings:
        return None, findings
    preset = None if draft.chooses_size else draft.settings.get("model.preset")
    return TrialSpec(
        sweep=sweep,
        data=data.record,
        model={"architecture": draft.settings["model.architecture"].content, **plain(model)},
        train=plain(train),
        seed=0,
        data_sha256=data.sha256,
        preset=None if preset is None else preset.content,
        origin=draft.origin,
        resources=resources or Resources(),
        retries=retries,
        logging=logging,
    ), []


def _model(
    draft: Draft, sections: Sections, frame: solve.Frame | None, counterpart: Located | None = None
) -> tuple[Any, list[Finding]]:
    """Return the model before matching; None without findings where the frame is needed and absent."""
    if not draft.chooses_size or draft.size is None:
        return sections.model(draft, counterpart=counterpart)
    sized, findings = sections.sized(draft, counterpart=counterpart)
    if sized is None:
        return None, findings
    if isinstance(draft.size, Rung):
        return solve.rung_model(sized, draft.size)
    if frame is None:
        return None, []
    profile: Profile = draft.size
    key = ("center", sized, profile.budget_flops, profile.tokens_per_param, frame)
    center = sections.once(key, lambda: solve.profile_center(sized, profile, frame))
    return solve.profile_model(sized, profile, center=center)


def _solved(
    draft: Draft, sections: Sections, model: Any, train: Any, frame: solve.Frame
) -> tuple[Any, Any, list[Finding]]:
    """Return model and train with tokens and matches worked out."""
    if draft.size is not None:
        tokens, findings = solve.tokens_for(
            draft.size, model, frame, largest=lambda: _model(_last(draft), sections, frame)[0]
        )
        if findings:
            return model, train, findings
        train = dataclasses.replace(train, tokens=tokens)
    if draft.match is None:
        return model, train, []
    match = draft.match
    knob = f"model.{model.FLOP_KNOB}"
    if match.solve == "knob" and knob in draft.own:
        fix = "remove it, or write solve: tokens under match"
        written = draft.settings[knob]
        return model, train, [written.finding_at_key(f"match solves for {knob} itself", fix)]
    target = match.target_flops
    if match.architecture is not None:
        if match.architecture == draft.settings["model.architecture"].content:
            other = model
        else:
            other, findings = _model(draft, sections, frame, match.target)
            if findings:
                return model, train, [_about_counterpart(findings[0], match)]
        compared_tokens, findings = _counterpart_tokens(draft, match, train)
        if compared_tokens is None:
            return model, train, findings
        if other is model:
            return model, dataclasses.replace(train, tokens=compared_tokens), []
        target = solve.training_flops(other, frame, tokens=compared_tokens)
    assert target is not None, "a match has an architecture or a number"
    return solve.match(match, model, train, frame, target=target)


def _last(draft: Draft) -> Draft:
    """Return the draft of the largest size in the same profile."""
    if not isinstance(draft.size, Profile):
        return draft
    size = dataclasses.replace(draft.size, index=draft.size.sizes - 1)
    return dataclasses.replace(draft, size=size)


def _counterpart_tokens(draft: Draft, match: Match, train: Any) -> tuple[int | None, list[Finding]]:
    """Return the tokens that the counterpart of a match trains for: the trial's own before solving."""
    if train.tokens != UNSOLVED_TOKENS:
        return int(train.tokens), []
    written = draft.settings.get("train.tokens")
    if written is None:
        message = f"solve: tokens compares with a {match.architecture} model of train.tokens tokens"
        return None, [
            match.where.finding_at_key(message, "write tokens: under train:", kind="missing")
        ]
    tokens, bad = config.check_whole_number(written, at_least=1)
    return tokens, [] if bad is None else [bad]


def _about_counterpart(finding: Finding, match: Match) -> Finding:
    """Say that a mistake was met while building the model that a match compares with."""
    message = f"there is no {match.architecture} model to compare with: {finding.message}"
    fix = "use a preset that both architectures have, or write a number of FLOPs"
    return match.target.finding(message, fix, kind="combination")


def _splits(train: Any, resources: Resources, draft: Draft) -> list[Finding]:
    """Return what the trainer would refuse: a batch that cannot be cut into these parts."""
    findings = []
    ranks = draft.settings.get("resources.ranks")
    if ranks is not None and resources.ranks > train.sequences_per_step:
        message = (
            f"ranks must be at most the sequences of a step "
            f"(batch_tokens / seq_len = {train.sequences_per_step}), got {resources.ranks}"
        )
        fix = "lower ranks or raise train.batch_tokens"
        findings.append(ranks.finding(message, fix, kind="combination"))
    micro = draft.settings.get("resources.micro_batch_tokens")
    count = resources.micro_batch_tokens
    if micro is not None and count is not None and count < train.seq_len:
        message = f"micro_batch_tokens must be at least one sequence (seq_len = {train.seq_len}), got {count}"
        fix = "raise it or lower train.seq_len"
        findings.append(micro.finding(message, fix, kind="combination"))
    return findings
