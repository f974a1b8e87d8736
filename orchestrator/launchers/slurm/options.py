"""Options of `submit --backend slurm`, parsed from the command line. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

LONGEST_NOTICE_S = 150
"""How long before the end of an allocation Slurm signals it at most: a checkpoint may take a
minute, then Ray is stopped."""
GPUS = "--gpus; with slurm-direct resources.gpus in the sweep file"
CORES = "--cpus; with slurm-direct resources.cpus in the sweep file"
OURS = {
    "array": "--nodes",
    "nodes": "--nodes",
    "partition": "--partition",
    "time": "--time",
    "exclusive": "--backend slurm without --cpus",
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), GPUS),
    **dict.fromkeys(("cpus-per-task", "cpus-per-gpu", "ntasks", "ntasks-per-node"), CORES),
    "job-name": "comment=…",
    **dict.fromkeys(("output", "error", "open-mode"), "--runs, where all output goes"),
    "signal": "--time, of which the notice before the end is a part",
}
"""Options of sbatch that memscale sets itself, and what to use in their place."""


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """One kind of job, and how many."""

    backend: str
    min_nodes: int = 1
    """Nodes of the first pilot."""
    max_nodes: int = 1
    """Nodes at the same time at most; for slurm-direct tasks of an array at the same time."""
    partition: str | None = None
    """None is the default one."""
    minutes: int = 60
    """Time limit of a job."""
    cpus: int | None = None
    """Cores per node; None takes nodes whole."""
    gpus: int | None = None
    """GPUs per node; None: all of a node, if any trial uses one."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of sbatch; an empty value stands for none."""

    @property
    def notice_s(self) -> int:
        """Seconds between the signal and the end of an allocation."""
        return min(LONGEST_NOTICE_S, self.minutes * 15)

    @property
    def gpu_type(self) -> str | None:
        """Type of GPUs that `gres=gpu:TYPE` names; None: any."""
        found = re.search(r"(?:^|,)\s*gpu:([^,]+)", self.options.get("gres", ""))
        return found[1].strip() if found else None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {**asdict(self), "options": dict(self.options)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "SlurmOptions":
        """Read what `to_json` wrote."""
        return cls(**record)


def parse_nodes(text: str) -> tuple[int, int]:
    """Return (1, 8) for `1:8`, (4, 4) for `4`.

    Raises:
        ValueError: If it is neither.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if found is None:
        raise ValueError(f"must be a number of nodes, or MIN:MAX as in 1:8; got {text!r}")
    least, most = int(found[1]), int(found[2] or found[1])
    if not 1 <= least <= most:
        raise ValueError(f"MIN must lie in 1..MAX, got {text!r}")
    return least, most


def parse_minutes(text: str) -> int:
    """Return the minutes, rounded up, of a time as Slurm writes it.

    That is 30, 30:00, 4:00:00, 2-12, 2-12:00 or 2-12:00:00.

    Raises:
        ValueError: If it is none, or zero.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if found is None:
        raise ValueError(
            f"must be minutes or a time as Slurm writes it (90, 4:00:00, 2-12:00); got {text!r}"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:
        # Without days one number is minutes, and two are minutes and seconds.
        hours, minutes, seconds = 0, hours, minutes
    total = (days * 24 + hours) * 60 + minutes + (seconds > 0)
    if total < 1:
        raise ValueError(f"must be at least a minute, got {text!r}")
    return total


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Return {"account": "me", "requeue": ""} for `account=me` and `requeue`.

    Raises:
        ValueError: If a text is no option, or one that has its own place.
    """
    options = {}
    for text in texts:
        key, _, value = text.partition("=")
        key = key.strip().removeprefix("--").replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
            raise ValueError(
                f"must be KEY=VALUE with an option of sbatch, as account=me; got {text!r}"
            )
        if key in OURS:
            raise ValueError(f"{key} is set by memscale; use {OURS[key]}")
        if key == "gres" and re.search(r"(^|,)\s*gpu(:\d+|:[^,]*:[^,]*)?\s*(,|$)", value):
            raise ValueError(
                f"gres={value}: how many GPUs is set by memscale; write gres=gpu:TYPE for a type "
                f"alone, and for the number use {GPUS}"
            )
        if not value.isprintable():
            raise ValueError(f"{key} must be one line of printable characters, got {value!r}")
        options[key] = value.strip()
    return options
