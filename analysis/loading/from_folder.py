"""Reader of a runs folder (layout: orchestrator/records/sweep_dir.py)."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from analysis.formatting import some_of
from analysis.loading.histories import HistoryPoint
from analysis.loading.schema import Reading, exclusion, metric_value, plain_row
from orchestrator.records.code_digest import ARCHITECTURES, code_digest
from orchestrator.records.earlier_submissions import NOT_ASKED_FOR, earlier_trials, told
from orchestrator.records.errors import NotFoundError, StoreError
from orchestrator.records.sweep_dir import SweepDir, sweep_dir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import Outcome, TrialSpec, TrialState
from orchestrator.records.varied_settings import flat_settings

LEFT_ALONE = "left alone"
"""State of a trial that waits and that submitting again would not train."""


def read_folder(path: Path, names: Collection[str] | None) -> Reading:
    """Return the finished trials under a runs folder, and why others do not count.

    The folder of one sweep will do, too.

    Args:
        path: The folder.
        names: Of sweeps; None reads all.

    Raises:
        StoreError: If there is no sweep, or not one that was asked for.
    """
    sweeps = _sweeps(path, names)
    reading = Reading(
        question=_question(sweeps[0].path / "sweep.yaml") if len(sweeps) == 1 else None
    )
    for folder in sweeps:
        submissions = folder.submissions()
        earlier = earlier_trials(folder, submissions[-1]["trial_ids"]) if submissions else []
        if earlier:
            reading.notes.append(f"{folder.name}: {told(earlier)}")
        left_alone = {trial.trial_id for trial in earlier}
        code_of: dict[str, str] = {}
        for trial in _trials(folder, reading.left_out):
            try:
                asked = trial.trial_id not in left_alone
                _read_trial(trial, folder.name, reading, code_of, asked=asked)
            except (StoreError, TypeError, ValueError) as error:
                named = {"trial_id": trial.trial_id, "sweep": folder.name}
                reading.left_out.append(
                    exclusion(named, state="unreadable", reason=f"unreadable: {error}")
                )
        reading.notes += _code_notes(folder, code_of)
    return reading


def _read_trial(
    trial: TrialDir, sweep: str, reading: Reading, code_of: dict[str, str], *, asked: bool
) -> None:
    """Add a trial to what was read.

    Args:
        trial: Its folder.
        sweep: Name of its sweep.
        reading: Gets the trial.
        code_of: Gets the snapshot of the code that trained it, if it is done.
        asked: Whether the sweep file as last submitted has it.
    """
    spec, state = trial.spec(), trial.state()
    attempts = trial.attempts()
    row = partial(
        plain_row,
        trial_id=spec.trial_id,
        sweep=sweep,
        architecture=spec.architecture,
        preset=spec.preset,
        seed=spec.seed,
        settings=flat_settings(spec),
        accounting=spec.accounting,
        not_causal=spec.not_causal,
    )
    if state is not TrialState.DONE:
        named = {
            "trial_id": spec.trial_id,
            "sweep": sweep,
            "architecture": spec.architecture,
            "seed": spec.seed,
            **spec.accounting,
        }
        shown, why = state.value, _why_not_done(trial, state)
        if state is TrialState.WAITING and not asked:
            shown, why = LEFT_ALONE, f"{why}; {NOT_ASKED_FOR}"
        reading.left_out.append(exclusion(named, state=shown, reason=why))
        end = (attempts[-1].end() if attempts else None) or {}
        if state is TrialState.FAILED and end.get("outcome") == Outcome.DIVERGED:
            reading.diverged.append(row(metrics={}))
        return
    result = trial.result() or {}
    last = {name: steps[max(steps)][1] for name, steps in trial.metrics().items()}
    environment = (attempts[-1].environment() if attempts else None) or {}
    reading.rows.append(row(metrics={**last, **result.get("metrics", {})}))
    reading.environments.append(environment)
    reading.digests[sweep, spec.trial_id] = {
        suite: record["digest"]
        for suite, record in trial.evaluations().items()
        if record.get("digest") is not None  # unfinished: nobody knows which tasks it lacks
    }
    snapshot = (environment.get("git") or {}).get("snapshot")
    if snapshot is not None:
        code_of[spec.trial_id] = str(snapshot)


def _code_notes(folder: SweepDir, code_of: Mapping[str, str]) -> list[str]:
    """Return a sentence for each architecture of which different code trained seeds to compare.

    Only the architecture's file counts, as in the notes of `memscale plan`.

    Args:
        folder: Of the sweep.
        code_of: Trial id to the snapshot of the code that trained it.
    """
    if len(set(code_of.values())) < 2:
        return []
    digest = cache(code_digest)
    trained: dict[str, dict[str, dict[str, list[TrialSpec]]]] = {}
    for trial_id, snapshot in code_of.items():
        spec = folder.trial(trial_id).spec()
        code = digest(folder.path / "code" / snapshot / ARCHITECTURES / f"{spec.architecture}.py")
        if code is not None:
            configurations = trained.setdefault(spec.architecture, {})
            by_code = configurations.setdefault(spec.configuration_id, {})
            by_code.setdefault(code, []).append(spec)
    notes = []
    for architecture, configurations in trained.items():
        mixed = [by_code for by_code in configurations.values() if len(by_code) > 1]
        if not mixed:
            continue
        whose: dict[str, None] = {}
        trials: dict[str, list[str]] = defaultdict(list)
        for code, specs in (item for by_code in mixed for item in by_code.items()):
            whose |= {f"{architecture} {spec.preset or ''}".strip(): None for spec in specs}
            trials[code] += [spec.trial_id for spec in specs]
        notes.append(
            f"{folder.name}: seeds of {some_of([*whose])} were trained by different code of"
            f" {ARCHITECTURES / architecture}.py"
            f" ({'; '.join(some_of(ids) for ids in trials.values())}), and a mean over them is of"
            " neither; rename the sweep to train all anew"
        )
    return notes


def folder_histories(
    path: Path, trials: Iterable[tuple[str, str]], metrics: Sequence[str]
) -> Iterator[HistoryPoint]:
    """Yield what the trials measured, each step once.

    A repeated step has the value of the weights that were kept.

    Args:
        path: A runs folder, or the folder of one sweep.
        trials: Sweep and trial id.
        metrics: How the names begin.

    Raises:
        StoreError: If a journal cannot be read.
    """
    one = (path / "trials").is_dir()
    for sweep, trial_id in trials:
        folder = SweepDir(path) if one else sweep_dir(path, sweep)
        for metric, steps in folder.trial(trial_id).metrics().items():
            if metric.startswith(tuple(metrics)):
                for step in sorted(steps):
                    yield HistoryPoint(sweep, trial_id, metric, step, metric_value(steps[step][1]))


def _sweeps(path: Path, names: Collection[str] | None) -> list[SweepDir]:
    if (path / "trials").is_dir():
        others = [name for name in names or () if name != path.name]
        if others:
            raise NotFoundError(
                f"{path}: is the folder of sweep {path.name}, not of {', '.join(others)}; "
                "give the folder above it"
            )
        return [SweepDir(path)]
    there = sorted(child.name for child in path.iterdir() if (child / "trials").is_dir())
    if not there:
        raise NotFoundError(
            f"{path}: no sweep in this folder; submit one, or give the folder that --runs named"
        )
    if names is None:
        return [SweepDir(path / name) for name in there]
    for name in names:
        if name not in there:
            raise NotFoundError(f"{path}: no sweep {name!r} here; there are {', '.join(there)}")
    return [sweep_dir(path, name) for name in names]


def _trials(folder: SweepDir, out: list[dict[str, Any]]) -> Iterator[TrialDir]:
    known = {trial.trial_id: trial for trial in folder.trials()}
    yield from known.values()
    for child in sorted((folder.path / "trials").iterdir()):
        if child.name not in known and child.is_dir() and not child.name.startswith("."):
            named = {"trial_id": child.name, "sweep": folder.name}
            out.append(
                exclusion(
                    named,
                    state="unreadable",
                    reason="unreadable: the folder has no spec.json; submit the sweep again",
                )
            )


def _why_not_done(trial: TrialDir, state: TrialState) -> str:
    attempts = trial.attempts()
    end = (attempts[-1].end() if attempts else None) or {}
    reason = str(end.get("reason", "no reason recorded"))
    if state is TrialState.RUNNING:
        beat = trial.heartbeat() or {}
        where = (
            f"step {beat['step']} of {beat['steps']}"
            if {"step", "steps"} <= set(beat)
            else "its first steps"
        )
        return f"not finished: attempt {attempts[-1].number} had reached {where}"
    if state is TrialState.CANCELLED:
        return "cancelled"
    if state is TrialState.FAILED:
        kind = "diverged" if end.get("outcome") == Outcome.DIVERGED else "failed"
        return f"{kind} in attempt {attempts[-1].number}: {reason}"
    if attempts:
        return (
            "not finished: waits for another attempt after "
            f"attempt {attempts[-1].number} ended: {reason}"
        )
    return "not started"


def _question(path: Path) -> str | None:
    """Return what the sweep file's opening comment says after `Question:`."""
    if not path.is_file():
        return None
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.startswith("#"):
            break
        words = line.lstrip("# ").rstrip()
        if words.lower().startswith("question:"):
            lines = [words[len("question:") :].strip()]
        elif lines and (":" in words.split(" ")[0] or not words):
            break
        elif lines:
            lines.append(words)
    return " ".join(lines) or None
