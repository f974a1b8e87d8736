"""Hang detection: no rank of an attempt progresses for longer than a limit.

Pure: the ranks' reports and a clock. Ranks of one trial wait for each other within a step, so one
that is stuck silences all. One that works (rank 0 writes a checkpoint) keeps the others, who wait
for it, from being taken for stuck.
"""

from collections.abc import Mapping

from orchestrator.node.progress_board import RankProgress

STEPS = 20
"""Median steps without a new one that count as a hang, if they last longer than the floor."""
FLOOR_S = 300.0
"""The least that counts as a hang between two steps. Below torch's own watchdogs, which give no
reason."""
OTHERWISE_S = 1800.0
"""The same before the first step, in evaluations and in checkpoints: downloads, compilers and slow
disks take their time."""
LONGEST_INTERVAL_S = 5.0
"""At most this much counts between two checks: time without checks (a suspended machine) is no
silence."""


class HangDetector:
    """Follows one attempt."""

    def __init__(self, floor_s: float | None = None, *, sees_all: bool = True) -> None:
        """Start; `floor_s` replaces both floors.

        Args:
            floor_s: Seconds.
            sees_all: Whether all ranks of the attempt are here. One on another node may be writing
                a checkpoint that these wait for, so without it steps have no floor of their own.
        """
        self._floor_s, self._sees_all = floor_s, sees_all
        self._n_reports: Mapping[int, int] = {}
        self._checked_at: float | None = None
        self._quiet_s = 0.0

    def check(self, now: float, ranks: Mapping[int, RankProgress | None]) -> str | None:
        """Return the description of a hang, None while there is none.

        Args:
            now: Monotonic seconds.
            ranks: The last report of each rank that runs; None: nothing yet.
        """
        n_reports = {rank: 0 if said is None else said.n_reports for rank, said in ranks.items()}
        if n_reports == self._n_reports and self._checked_at is not None:
            self._quiet_s += min(now - self._checked_at, LONGEST_INTERVAL_S)
        else:
            self._n_reports, self._quiet_s = n_reports, 0.0
        self._checked_at = now
        said = [progress for progress in ranks.values() if progress is not None]
        limit_s, why = self._limit(said, all_spoke=len(said) == len(ranks))
        if not ranks or self._quiet_s <= limit_s:
            return None
        return f"no progress for {self._quiet_s:.0f} s (limit {limit_s:.0f} s: {why})"

    def _limit(self, said: list[RankProgress], *, all_spoke: bool) -> tuple[float, str]:
        measured = [progress.step_s for progress in said if progress.step_s is not None]
        steps_s = STEPS * max(measured, default=0.0)
        training = self._sees_all and all_spoke and all(s.phase == "train" for s in said)
        if self._floor_s is not None:
            floor_s, why = self._floor_s, "resources.hang_after_s"
        elif training:
            floor_s, why = FLOOR_S, "the least between two steps"
        else:
            floor_s, why = OTHERWISE_S, "the least outside training steps"
        if steps_s > floor_s:
            return steps_s, f"{STEPS} steps of {max(measured):.2g} s"
        return floor_s, why
