"""Seeds of one configuration whose parameters or FLOPs different code counted."""

import pandas as pd

from analysis.formatting import some_of
from orchestrator.records.trial_spec import COUNTS_OF_A_CONFIGURATION


def mixed_counts(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each architecture with configurations whose seeds differ in these.

    Args:
        table: Of memscale's own trials, a row each (`schema.check_rows`).
    """
    columns = [name for name in COUNTS_OF_A_CONFIGURATION if name in table]
    if not columns:
        return []
    by_configuration = table.groupby("configuration")[columns]
    mixed = table[by_configuration.transform("nunique").gt(1).any(axis=1)]
    notes = []
    for architecture, trials in mixed.groupby("architecture"):
        presets = trials["preset"].fillna("").astype(str)
        whose = dict.fromkeys(f"{architecture} {preset}".strip() for preset in presets)
        seeds = trials[trials["configuration"] == trials["configuration"].iloc[0]]
        name = next(column for column in columns if seeds[column].nunique() > 1)
        first = seeds.drop_duplicates(name)
        counts = "; ".join(
            f"{count:,.0f} in {trial}"
            for trial, count in zip(first["trial_id"], first[name], strict=True)
        )
        notes.append(
            f"{some_of(sorted(set(trials['sweep'])))}: seeds of {some_of([*whose])} were counted "
            f"by different code ({name}: {counts}), and fits take them for different sizes; "
            "rename the sweep to train all anew"
        )
    return notes
