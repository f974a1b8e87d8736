"""Changed code: finished trials that older code trained or counted.

A trial is named by its settings. So whoever edits an architecture keeps the trials that the old
code trained, and compares them with new ones. They also keep what the old code counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

from orchestrator.records.code_digest import ARCHITECTURES, code_digest
from orchestrator.records.snapshot import SweepSnapshot, TrialRecord
from orchestrator.records.trial_spec import COUNTS_OF_A_CONFIGURATION, TrialSpec


def notes(
    specs: Iterable[TrialSpec], snapshot: SweepSnapshot, *, file_of: Callable[[str], Path]
) -> list[str]:
    """Return a sentence for each architecture whose file changed since a trial was finished.

    Docstrings and comments do not count, nor does code that architectures share: every version of
    memscale changes some of it.

    Args:
        specs: Trials of the sweep file.
        snapshot: What is there of the sweep.
        file_of: Architecture to its file.
    """
    return [
        f"{name}: {ARCHITECTURES / name}.py changed since {n} of its trials finished; they stay as "
        "they are beside new ones; rename the sweep to train all anew, or delete their folders"
        for name, n in of_other_code(specs, snapshot, file_of=file_of).items()
    ]


def count_notes(done: Iterable[tuple[TrialSpec, Mapping[str, float]]]) -> list[str]:
    """Return a sentence for each architecture whose finished trials keep other counts than today's.

    Counts also change with code that architectures share, which `notes` does not look at.

    Args:
        done: Finished trials with the accounting that they keep, and that of this code.
    """
    changed: dict[str, list[str]] = {}
    for spec, now in done:
        kept = spec.accounting
        differences = [
            f"{name} of {spec.trial_id}: {kept[name]:,.0f}, now {now[name]:,.0f}"
            for name in COUNTS_OF_A_CONFIGURATION
            if name in kept and kept[name] != now[name]
        ]
        if differences:
            changed.setdefault(spec.architecture, []).append(differences[0])
    return [
        f"{name}: {len(found)} of its finished trials {'keeps' if len(found) == 1 else 'keep'} "
        f"counts of other code ({found[0]}); new seeds beside them get today's; rename the sweep "
        "to train all anew, or delete their folders"
        for name, found in changed.items()
    ]


def of_other_code(
    specs: Iterable[TrialSpec], snapshot: SweepSnapshot, *, file_of: Callable[[str], Path]
) -> Counter[str]:
    """Return architecture -> finished trials that other code of its file trained; none of 0.

    Args:
        specs: Trials to look for.
        snapshot: Of the sweep that may have finished them.
        file_of: Architecture to its file.
    """
    folders = {s.get("number"): (s.get("run") or {}).get("code") for s in snapshot.submissions}
    changed: Counter[str] = Counter()
    differ = cache(_differ)
    for spec in specs:
        record = snapshot.trials.get(spec.trial_id)
        code = None if record is None else folders.get(_submission_of(record))
        if code is None:
            continue
        # A sweep's folder may have moved since.
        copy = snapshot.path / "code" / Path(code).name / ARCHITECTURES / f"{spec.architecture}.py"
        changed[spec.architecture] += differ(copy, file_of(spec.architecture))
    return +changed


def _submission_of(record: TrialRecord) -> int | None:
    """Return the submission whose code finished a trial; None if none did."""
    if record.result is None:
        return None
    by_number = {attempt.number: attempt.launch or {} for attempt in record.attempts}
    number: int | None = by_number.get(record.result.get("attempt") or 0, {}).get("submission")
    return number


def _differ(first: Path, second: Path) -> bool:
    """Return whether two files hold different code; one that cannot be read is not compared."""
    digests = code_digest(first), code_digest(second)
    return None not in digests and digests[0] != digests[1]
