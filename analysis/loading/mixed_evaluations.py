"""Trials of one table whose evaluations of one name were not measured alike."""

from collections.abc import Mapping

import pandas as pd

from analysis.formatting import some_of


def mixed_evaluations(
    table: pd.DataFrame, digests: Mapping[tuple[str, str], Mapping[str, str]]
) -> list[str]:
    """Return a sentence for each evaluation whose digest differs between trials of a table.

    Args:
        table: Of memscale's own trials, a row each (`schema.check_rows`).
        digests: Sweep and trial id -> evaluation -> digest of what was asked, and how.
    """
    trials: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for trial in zip(table["sweep"], table["trial_id"], strict=True):
        for name, digest in digests.get(trial, {}).items():
            trials.setdefault(name, {}).setdefault(digest, []).append(trial)
    notes = []
    for name, by_digest in trials.items():
        if len(by_digest) < 2:
            continue
        alike = "; ".join(some_of([trial_id for _, trial_id in of]) for of in by_digest.values())
        sweeps = sorted({sweep for of in by_digest.values() for sweep, _ in of})
        notes.append(
            f"{some_of(sweeps)}: trials were asked {name!r} with different rows, settings or "
            f"versions ({alike}), and its metrics and their noise mix these; give `memscale "
            "evaluate` the same files for all trials"
        )
    return notes
