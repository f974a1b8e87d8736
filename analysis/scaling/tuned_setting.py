"""Tuned setting of a sweep at one size: the numeric setting of the x axis."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import pandas as pd

from analysis.scaling.series_curves import name_series
from analysis.scaling.sweep_summary import SweepFits


@dataclass(frozen=True, kw_only=True)
class TunedSetting:
    """The one numeric setting that most architectures tried several values of."""

    name: str
    """As in a sweep file: `train.lr`."""
    arms: Mapping[str, str]
    """Configuration to architecture with what else varies: `dense (output_init=depth_scaled)`."""


def tuned_setting(table: pd.DataFrame, fits: SweepFits) -> TunedSetting | None:
    """Return the setting, None if some series has several sizes or not exactly one setting fits.

    Args:
        table: Of `Runs`.
        fits: Of `analysis.fit_sweep`; settings that it sets apart, as a table's size, do not count.
    """
    if len(set(fits.series.values())) < len(fits.series):
        return None
    found = []
    for name in fits.varied:
        if name in fits.apart or not all(map(_is_number, table[name].dropna())):
            continue
        arms = name_series(table, by=[other for other in fits.varied if other != name])
        by_arm = table.groupby(table["configuration"].map(arms))
        of_one_size = (by_arm["total_params"].nunique() == 1).all()
        if of_one_size and (by_arm[name].nunique() > 1).mean() > 0.5:
            found.append(TunedSetting(name=name, arms=arms))
    return found[0] if len(found) == 1 else None


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
