"""State that the parts of a controller share: trials, cluster, stop requests."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.control.launcher_port import Launcher
from orchestrator.control.resource_estimator import ResourceEstimator
from orchestrator.control.trial_state import ManagedTrial, RunningAttempt
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.circuit_breaker import CircuitBreaker
from orchestrator.records.errors import StoreError
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome
from orchestrator.scheduling.demand import Node

LOG = logging.getLogger(__name__)


def removed_folder(folder: Path, *, while_it: str) -> str:
    """Return the sentence on a folder that somebody removed while its trial `started` or `ran`."""
    return (
        f"{folder}: somebody removed this folder while the trial {while_it}; "
        "submit again to train it"
    )


@dataclass(kw_only=True)
class ControllerState:
    """What a controller knows; after its end the trial folders alone are the record."""

    sweep: SweepDir
    submission: int
    trial_ids: tuple[str, ...]
    """In the order to show them."""
    launcher: Launcher
    estimator: ResourceEstimator
    breaker: CircuitBreaker
    """Open while the storage of the sweep fails."""
    clock: Callable[[], float]
    """Monotonic seconds, for durations: nobody sets this clock."""
    wall_clock: Callable[[], float]
    """Seconds since 1970, for records."""
    trials: dict[str, ManagedTrial] = field(default_factory=dict)
    """Trials that are not finished, and finished ones until their final status is read."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Trial id -> why its files cannot be read. Until the next submission it is left alone."""
    nodes: Sequence[Node] = ()
    """The cluster as last seen."""
    impossible: frozenset[str] = frozenset()
    """Waiting trials that no node could hold, even when empty."""
    n_stops: int = 0
    """How often the controller was asked to stop; at the second time ranks are killed."""
    stop_outcome: Outcome = Outcome.INTERRUPTED
    """How attempts end that were asked to stop."""

    @property
    def waiting(self) -> list[ManagedTrial]:
        """Trials that are neither finished nor running."""
        return [t for t in self.trials.values() if t.attempt is None and not t.finished]

    @property
    def running(self) -> list[tuple[ManagedTrial, RunningAttempt]]:
        """Trials with the attempt of each that runs."""
        return [(t, t.attempt) for t in self.trials.values() if t.attempt is not None]

    def ask_to_stop(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        """Have an attempt checkpoint and leave, to end with this outcome; once."""
        if attempt.stop_outcome is None:
            attempt.stop_outcome = outcome
            launch = attempt.launch
            self.launcher.stop(launch.trial_id, launch.attempt, hard=False)

    def set_aside(self, trial_id: str, why: str) -> None:
        """Leave a trial alone whose files cannot be read; ask what runs of it to stop."""
        if trial_id not in self.unreadable:
            LOG.error("trial %s is set aside: %s", trial_id, why)
        self.unreadable[trial_id] = why
        trial = self.trials.get(trial_id)
        if trial is not None and trial.attempt is not None:
            # It holds its share of the node until it has ended.
            self.ask_to_stop(trial.attempt, Outcome.INTERRUPTED)
        elif trial is not None:
            del self.trials[trial_id]

    @contextmanager
    def setting_aside(self, trial_id: str) -> Iterator[None]:
        """End the block if a file of this trial cannot be read, and set the trial aside.

        What follows the block goes on: one trial's files must not end the others.
        """
        try:
            yield
        except StoreError as error:
            self.set_aside(trial_id, str(error))

    def check_folder(self, attempt: AttemptDir) -> None:
        """Check that the folder of an attempt is still there, unless the whole sweep's is gone.

        Raises:
            StoreError: If somebody removed it.
        """
        if attempt.path.exists() or not self.sweep.path.exists():
            return
        trial = attempt.path.parent.parent
        gone = attempt.path if trial.exists() else trial
        raise StoreError(removed_folder(gone, while_it="ran"))

    def cancel_requested(self, trial: ManagedTrial) -> bool:
        """Whether somebody cancelled the trial or the whole sweep."""
        return trial.folder.cancel_requested() or self.sweep.cancel_requested()
