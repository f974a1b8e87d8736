"""Prices: the cost of planned and past training by GPU-hour or core-hour."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from orchestrator.planning.pricing import PlannedTrial
from orchestrator.records import units
from orchestrator.records.errors import StoreError
from orchestrator.records.snapshot import AttemptRecord, JsonObject
from orchestrator.records.sweep_dir import SweepDir

_TEXT = re.compile(r"(?P<before>[^\w\s.,/+-]?)(?P<amount>\d+(\.\d+)?)/(?P<unit>gpu|core)-hour")


@dataclass(frozen=True, kw_only=True)
class Price:
    """A price per device-hour."""

    amount: float
    unit: Literal["gpu", "core"] = "gpu"
    currency: str = ""
    """Sign before amounts."""

    def text(self, hours: float) -> str:
        """Return `$12.50 (5.0 GPU-hours)`."""
        what = "GPU" if self.unit == "gpu" else "core"
        cost = self.amount * hours
        amount = f"{cost:,.2f}" if cost >= 0.1 or not cost else f"{cost:.2g}"
        return f"{self.currency}{amount} ({units.hours(hours)} {what}-hours)"


def parse(text: str) -> Price:
    """Read `2.5/gpu-hour`, `$2.5/gpu-hour` or `0.04/core-hour`.

    Raises:
        ValueError: If it is something else.
    """
    match = _TEXT.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"must be as 2.5/gpu-hour or 0.04/core-hour, got {text!r}")
    unit: Literal["gpu", "core"] = "gpu" if match["unit"] == "gpu" else "core"
    return Price(amount=float(match["amount"]), unit=unit, currency=match["before"])


def planned_hours(trials: Iterable[PlannedTrial], price: Price, *, gpus_there: bool) -> float:
    """Return the device-hours that submitting takes, as predicted.

    Args:
        trials: Of a plan.
        price: Of which devices.
        gpus_there: Whether a trial that says `gpus: auto` gets a GPU for each rank.
    """
    hours = 0.0
    for trial in trials:
        if not trial.to_train:
            continue
        asked, ranks = trial.spec.resources.gpus, trial.spec.resources.ranks
        gpus = float(ranks * gpus_there) if isinstance(asked, str) else float(asked)
        devices = gpus if price.unit == "gpu" else float(trial.spec.resources.cpus * ranks)
        hours += trial.runtime.seconds * trial.remaining * devices / 3600
    return hours


def spent_hours(sweep: SweepDir, price: Price, *, now: float) -> float:
    """Return the device-hours that attempts of a sweep have held, failed and repeated ones too.

    An attempt that has not ended counts until its last heartbeat. Trials that cannot be read do not
    count; `status` names them.

    Args:
        sweep: The sweep.
        price: Of which devices.
        now: Seconds since 1970: no attempt counts beyond it.
    """
    seconds = 0.0
    for folder in sweep.trials():
        try:
            trial = folder.record()
        except StoreError:
            continue
        for attempt in trial.attempts:
            seconds += _held_s(attempt, trial.heartbeat or {}, now) * _devices(attempt, price)
    return seconds / 3600


def _held_s(attempt: AttemptRecord, heartbeat: JsonObject, now: float) -> float:
    started = float((attempt.launch or {}).get("started_at", now))
    if attempt.end is not None:
        end = float(attempt.end.get("ended_at", started))
    elif heartbeat.get("attempt") == attempt.number:
        end = float(heartbeat.get("updated_at", started))
    else:
        end = started
    return max(0.0, min(end, now) - started)


def _devices(attempt: AttemptRecord, price: Price) -> float:
    launch = attempt.launch or {}
    if price.unit == "gpu":
        return float(launch.get("gpus") or 0.0)
    return float(launch.get("cpus") or 1.0) * float(launch.get("ranks") or 1.0)
