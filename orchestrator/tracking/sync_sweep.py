"""Sync of a sweep: one round sends whatever the tracker lacks.

An outage ends the round. Every step may be repeated, and killed in between. What is sent is a
function of the trial directories alone, and the tracker ignores a point it has. A run is looked up
by its tags before it is made, and progress is kept only after the tracker took something. A server
may make a run whose request timed out long before, so runs are then looked up again, and all but
one of a trial deleted.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from orchestrator.control import retry_requests
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.errors import StoreError
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialSpec, TrialState
from orchestrator.records.varied_settings import trial_labels
from orchestrator.tracking import mlflow_page, run_schema, sync_state
from orchestrator.tracking.mlflow_client import (
    RefusedError,
    RunGoneError,
    TrackedRun,
    TrackedSweep,
    TrackerError,
    TrackingClient,
)
from orchestrator.tracking.page_requests import PageRequests
from orchestrator.tracking.sync_run import TrialSync, sync_parent
from orchestrator.tracking.tracking_uri import artifact_location
from orchestrator.tracking.trial_view import TrialSnapshot, snapshot

LOG = logging.getLogger(__name__)
WAITING_SHOWN = 64
"""How many trials that never started have runs at a time. A run takes a tenth of a second, and
those of ten thousand would keep measurements, and the end of a cancelled sweep, waiting."""
IN_DOUBT_ROUNDS = 3
"""How many rounds look up all runs again after a request to make one got no answer."""


@dataclass(kw_only=True)
class _RunResult:
    """Whether the tracker took everything of one run in a round."""

    taken: bool = True


class SweepSync:
    """Sends one sweep to one tracker.

    Holds caches only: a new one over the same folders goes on where this one was.
    """

    def __init__(
        self, sweep: SweepDir, client: TrackingClient, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Prepare; the tracker is not opened yet."""
        self._sweep = sweep
        self._client = client
        self._clock = clock
        self._requests = PageRequests(sweep, client, clock=clock)
        self._tracked: TrackedSweep | None = None
        self._specs: dict[str, TrialSpec] = {}
        self._settled: dict[str, TrialSnapshot] = {}
        """Trials with nothing left to send, and how they looked then."""
        self._warned: set[str] = set()
        self._colours: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        """What varies in the sweep, by trial id."""
        self._registered: frozenset[str] = frozenset()
        """Trials whose models somebody asked to register."""
        self._in_doubt_rounds = 0

    @property
    def in_doubt(self) -> bool:
        """Whether the tracker may still make a run whose request got no answer."""
        return self._in_doubt_rounds > 0

    def round(self) -> bool:
        """Send what there is; return whether everything was taken.

        Raises:
            TrackerError: If the tracker cannot be reached.
            StoreError: If the sweep's own files cannot be read.
        """
        tracked = self._look_up()
        submissions = self._sweep.submissions()
        first = run_schema.first_asked(submissions)
        controlled = retry_requests.controlled_trial_ids(self._sweep, submissions)
        snapshots: dict[str, TrialSnapshot] = {}
        taken = True
        self._registered = run_schema.registers_models(submissions)
        specs = self._readable_specs(first)
        self._colours = mlflow_page.colours(spec.architecture for spec in specs)
        self._name_trials(specs)
        for trial in self._sweep.trials():
            trial_id = trial.trial_id
            with self._one_run(f"trial {trial_id}") as result:
                why_new = str((first.get(trial_id, {}).get("new") or {}).get(trial_id, ""))
                snapshots[trial_id] = self._snapshot(
                    trial, controlled=trial_id in controlled, why_new=why_new
                )
            taken &= result.taken
        for trial_id in _with_runs(snapshots, tracked.trials):
            now = snapshots[trial_id]
            if self._settled.get(trial_id) == now:
                continue
            with self._one_run(f"trial {trial_id}") as result:
                self._sync_trial(tracked, self._sweep.trial(trial_id), now, first.get(trial_id))
                if now.over:
                    self._settled[trial_id] = now
            taken &= result.taken
        if submissions and not tracked.parent.deleted:
            with self._one_run(f"sweep {self._sweep.name}") as result:
                sync_parent(
                    self._client,
                    self._sweep,
                    submissions,
                    run_id=tracked.parent.run_id,
                    snapshots=snapshots,
                    controlled=controlled,
                )
            taken &= result.taken
        if self.in_doubt:
            self._in_doubt_rounds -= 1
            self._tracked = None
        return taken

    def take_cancel_requests(self) -> list[str]:
        """Act on cancel tags of the page; see `PageRequests.take_cancels`."""
        return self._requests.take_cancels(self._look_up())

    def take_retry_requests(self) -> list[str]:
        """Act on retry tags of the page; see `PageRequests.take_retries`."""
        return self._requests.take_retries(self._look_up())

    def _readable_specs(self, trial_ids: Iterable[str]) -> list[TrialSpec]:
        specs = []
        for trial_id in trial_ids:
            with suppress(StoreError):  # a broken trial is reported when its turn comes
                specs.append(self._spec(self._sweep.trial(trial_id)))
        return specs

    def _name_trials(self, specs: Sequence[TrialSpec]) -> None:
        """Label the trials anew when there are others: a setting that varies since joins names."""
        if self._labels.keys() == {spec.trial_id for spec in specs}:
            return
        before, self._labels = self._labels, trial_labels(specs)
        for trial_id, label in self._labels.items():
            if before.get(trial_id, label) != label:
                self._settled.pop(trial_id, None)

    def _spec(self, trial: TrialDir) -> TrialSpec:
        if trial.trial_id not in self._specs:
            self._specs[trial.trial_id] = trial.spec()
        return self._specs[trial.trial_id]

    def _snapshot(self, trial: TrialDir, *, controlled: bool, why_new: str) -> TrialSnapshot:
        settled = self._settled.get(trial.trial_id)
        if settled is not None and settled.view.state is TrialState.DONE:
            return settled
        return snapshot(trial, controlled=controlled, why_new=why_new)

    def _look_up(self) -> TrackedSweep:
        """Return the tracker's side of the sweep, looked up once."""
        if self._tracked is None:
            self._client.open()
            submissions = self._sweep.submissions()
            question = submissions[-1].get("question") if submissions else None
            sweep, uri = self._sweep, self._client.uri
            experiment_id = self._client.experiment(
                sweep.name,
                artifacts=artifact_location(uri, sweep.path.parent, sweep.name),
                tags=mlflow_page.experiment_tags(question),
            )
            self._tracked = self._look_up_runs(experiment_id, submissions)
            self._settled.clear()  # trials may have another parent now
        return self._tracked

    def _look_up_runs(
        self, experiment_id: str, submissions: Sequence[Mapping[str, Any]]
    ) -> TrackedSweep:
        """Return the sweep's runs; make the parent run if there is none.

        Two hosts that do not see each other's locks may make one each. Both look again and choose
        the same. The other one is deleted, so whoever writes to it is refused and looks again.
        """
        folder_id = sync_state.folder_id(self._sweep)
        runs = self._client.runs(experiment_id, folder_id)
        if (parent := _parent_of(runs)) is None:
            self._create_run(
                experiment_id,
                start_s=float(submissions[0]["submitted_at"]) if submissions else self._clock(),
                name=self._sweep.name,
                tags={run_schema.KIND: run_schema.SWEEP_KIND, run_schema.FOLDER_ID: folder_id},
            )
            runs = self._client.runs(experiment_id, folder_id)
            parent = _parent_of(runs)
            assert parent is not None
        trials = _runs_of_trials(runs)
        chosen = {parent.run_id, *(run.run_id for run in trials.values())}
        for run in runs:
            if not run.deleted and run.run_id not in chosen:
                self._retire(run)
        return TrackedSweep(
            experiment_id=experiment_id, folder_id=folder_id, parent=parent, trials=trials
        )

    def _retire(self, run: TrackedRun) -> None:
        """Delete a run of what another run holds, or end one of an earlier version."""
        try:
            if run.kind in (run_schema.SWEEP_KIND, run_schema.TRIAL_KIND):
                self._client.delete_run(run.run_id)
            elif run.status == "RUNNING":  # nobody goes on with it
                self._client.set_status(run.run_id, "KILLED", ended_at_s=None)
        except RefusedError as error:  # who may write on a server need not be allowed to delete
            if run.run_id not in self._warned:
                self._warned.add(run.run_id)
                LOG.warning("run %s is there twice, and stays: %s", run.run_id, error)

    def _create_run(
        self, experiment_id: str, *, start_s: float, name: str, tags: Mapping[str, str]
    ) -> str:
        """Make a run; have the runs looked up again if no answer says whether it was made."""
        try:
            return self._client.create_run(experiment_id, start_s=start_s, name=name, tags=tags)
        except RefusedError:
            raise
        except TrackerError:
            self._in_doubt_rounds = IN_DOUBT_ROUNDS
            self._tracked = None
            raise

    @contextmanager
    def _one_run(self, what: str) -> Iterator[_RunResult]:
        """Keep a refusal, or a broken file, from stopping the other runs; log it once.

        An outage is raised.
        """
        result = _RunResult()
        try:
            yield result
        except StoreError as error:
            if isinstance(error, TrackerError) and not isinstance(error, RefusedError):
                raise
            result.taken = False
            message = f"{what}: not sent: {error}"
            if message not in self._warned or isinstance(error, RunGoneError):
                # The run may be deleted, or this is another database under the same address.
                self._tracked = None
                self._warned.add(message)
                LOG.warning("%s", message)

    def _trial_run(
        self, tracked: TrackedSweep, trial_id: str, *, start_s: float, name: str
    ) -> TrackedRun:
        """Return the run of a trial, made if the tracker has none."""
        if trial_id not in tracked.trials:
            tags = {
                run_schema.KIND: run_schema.TRIAL_KIND,
                run_schema.KEY: trial_id,
                run_schema.FOLDER_ID: tracked.folder_id,
                run_schema.PARENT: tracked.parent.run_id,
                "memscale.trial_id": trial_id,
            }
            run_id = self._create_run(tracked.experiment_id, start_s=start_s, name=name, tags=tags)
            tracked.trials[trial_id] = TrackedRun(run_id=run_id, deleted=False, tags=tags)
        return tracked.trials[trial_id]

    def _sync_trial(
        self,
        tracked: TrackedSweep,
        trial: TrialDir,
        now: TrialSnapshot,
        submission: Mapping[str, Any] | None,
    ) -> None:
        spec, attempts = self._spec(trial), now.attempts
        varied = self._labels.get(trial.trial_id, "")
        tracked_run = self._trial_run(
            tracked,
            trial.trial_id,
            start_s=_started_at_s(attempts) or self._clock(),
            name=run_schema.trial_name(spec, varied),
        )
        run = TrialSync(self._client, trial, tracked_run.run_id)
        # Somebody may have deleted the run from the page; a restored one is taken up again.
        run.keep(ignored=tracked_run.deleted)
        if tracked_run.deleted:
            return
        submitted_at = float((submission or {}).get("submitted_at", 0.0))
        run.sync_params(spec, t=round(submitted_at * 1000))
        run.sync_datasets(spec)
        run.sync_journals(attempts)
        if now.view.state is TrialState.DONE:
            run.sync_final_metrics()
            run.sync_evaluation()
        run.sync_tags(
            run_schema.trial_tags(
                spec,
                now.view,
                submission=None if submission is None else int(submission["number"]),
                parent=tracked.parent.run_id,
                environment=(attempts[-1].environment() if attempts else None) or {},
                colour=self._colours.get(spec.architecture, mlflow_page.COLOURS[0]),
                varied=varied,
            )
        )
        run.sync_status(now.view.status, ended_at_s=now.view.ended_at_s)
        run.sync_artifacts(attempts)
        if now.view.state is TrialState.DONE and trial.trial_id in self._registered:
            run.sync_model(spec)


def _with_runs(snapshots: Mapping[str, TrialSnapshot], tracked: Collection[str]) -> list[str]:
    """Return the trials that are to have a run: those that started first, then a few that wait.

    A trial that was cancelled before it started has one only if the tracker has it already.

    Args:
        snapshots: Of all trials, by id.
        tracked: Ids of those with a run.
    """
    never = {i: now.view.state for i, now in snapshots.items() if now.never_started}
    started = [trial_id for trial_id in snapshots if trial_id not in never]
    known = [trial_id for trial_id in never if trial_id in tracked]
    room = WAITING_SHOWN - sum(never[trial_id] is TrialState.WAITING for trial_id in known)
    waiting = (i for i, state in never.items() if state is TrialState.WAITING and i not in tracked)
    return [*started, *known, *islice(waiting, max(0, room))]


def _runs_of_trials(runs: Sequence[TrackedRun]) -> dict[str, TrackedRun]:
    """Return the run of each trial, by id. Every exporter chooses the same.

    Live runs come before deleted ones, then those that were written to, then the oldest counts.
    """
    found: dict[str, TrackedRun] = {}
    for run in sorted(runs, key=lambda run: (run.deleted, run_schema.STATE not in run.tags)):
        if run.kind == run_schema.TRIAL_KIND:
            found.setdefault(run.tags.get(run_schema.KEY, ""), run)
    return found


def _parent_of(runs: Sequence[TrackedRun]) -> TrackedRun | None:
    """Return the parent among a sweep's runs, None without one. Every exporter chooses the same.

    Live runs come before deleted ones, then those that were written to, then the oldest counts.
    Earlier versions made one for each submission; of those alone it is the one that most trials
    name.
    """
    n_trials = Counter(run.tags.get(run_schema.PARENT) for run in runs)

    def rank(run: TrackedRun) -> tuple[bool, bool, bool, int]:
        of_earlier = run.kind != run_schema.SWEEP_KIND
        unwritten = not of_earlier and run_schema.SUBMITTED_AT not in run.tags
        return run.deleted, of_earlier, unwritten, -n_trials[run.run_id] if of_earlier else 0

    parents = (run for run in runs if run.kind != run_schema.TRIAL_KIND)
    return min(parents, key=rank, default=None)


def _started_at_s(attempts: Sequence[AttemptDir]) -> float | None:
    launch = attempts[0].launch() if attempts else None
    return None if launch is None else float(launch["started_at"])
