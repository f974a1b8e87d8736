"""One round over a sweep: whatever the tracker lacks is sent. Nothing here waits; an outage ends the round.

Every step is safe to repeat and to be killed in: what is sent is a function of the trial directories alone, the
tracker ignores a point it has, a run is looked up by its tags before it is made, and progress is kept only after
the tracker took something.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.control import retry_requests
from orchestrator.records.errors import StoreError
from orchestrator.records.trial_dir import AttemptDir, SweepDir, TrialDir, write_json
from orchestrator.records.trial_spec import TrialSpec, TrialState
from orchestrator.tracking import mlflow_page, run_schema, sync_state
from orchestrator.tracking.mlflow_client import (
    RefusedError,
    RunGoneError,
    TrackedRun,
    TrackerError,
    TrackingClient,
)
from orchestrator.tracking.sync_run import TrialSync, sync_submission
from orchestrator.tracking.tracking_uri import artifact_location
from orchestrator.tracking.trial_view import TrialSnapshot, snapshot

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The tracker's side of a sweep, looked up once."""

    experiment_id: str
    folder_id: str
    runs: dict[tuple[str, str], TrackedRun]


@dataclass(kw_only=True)
class _Outcome:
    """What became of one run in a round."""

    taken: bool = True


class SweepSync:
    """Sends one sweep to one tracker. Holds caches only: a new one over the same folders goes on where it was."""

    def __init__(
        self, sweep: SweepDir, store: TrackingClient, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Prepare; the tracker is not met yet."""
        self._sweep = sweep
        self._store = store
        self._clock = clock
        self._known: _Known | None = None
        self._specs: dict[str, TrialSpec] = {}
        self._settled: dict[str, TrialSnapshot] = {}
        """Trials with nothing left to send, and how they looked then."""
        self._warned: set[str] = set()
        self._colours: dict[str, str] = {}
        self._queued: dict[str, Mapping[str, int]] = {}
        """Retries that a tag said were back in the queue: run id to trial id to the number of its last attempt."""

    def round(self) -> bool:
        """Send what there is; return whether everything was taken.

        Raises:
            TrackerError: If the tracker cannot be reached.
            StoreError: If the sweep's own files cannot be read.
        """
        known = self._look_up()
        submissions = {int(s["number"]): s for s in self._sweep.submissions()}
        first = run_schema.first_asked(list(submissions.values()))
        working_on = retry_requests.controlled_trial_ids(self._sweep, submissions.values())
        looks: dict[str, TrialSnapshot] = {}
        taken = True
        self._colours = self._colours_of(first)
        for trial in self._sweep.trials():
            with self._one_run(f"trial {trial.trial_id}") as outcome:
                asked_by = submissions.get(first.get(trial.trial_id, 0))
                why_new = str(((asked_by or {}).get("new") or {}).get(trial.trial_id, ""))
                look = self._look(trial, controlled=trial.trial_id in working_on, why_new=why_new)
                looks[trial.trial_id] = look
                if self._settled.get(trial.trial_id) != look:
                    self._send_trial(known, trial, look, asked_by)
                    if look.over:
                        self._settled[trial.trial_id] = look
            taken &= outcome.taken
        for number, submission in submissions.items():
            with self._one_run(f"submission {number}") as outcome:
                run = self._parent(known, submission)
                if not run.deleted:
                    sync_submission(
                        self._store,
                        self._sweep,
                        submission,
                        run_id=run.run_id,
                        looks=looks,
                        working_on=working_on,
                    )
            taken &= outcome.taken
        return taken

    def _colours_of(self, trial_ids: Iterable[str]) -> dict[str, str]:
        architectures = []
        for trial_id in trial_ids:
            with suppress(StoreError):  # a broken trial is told of when its turn comes
                architectures.append(self._spec(self._sweep.trial(trial_id)).architecture)
        return mlflow_page.colours(architectures)

    def _spec(self, trial: TrialDir) -> TrialSpec:
        if trial.trial_id not in self._specs:
            self._specs[trial.trial_id] = trial.spec()
        return self._specs[trial.trial_id]

    def _look(self, trial: TrialDir, *, controlled: bool, why_new: str) -> TrialSnapshot:
        settled = self._settled.get(trial.trial_id)
        if settled is not None and settled.view.state is TrialState.DONE:
            return settled
        return snapshot(trial, controlled=controlled, why_new=why_new)

    def take_cancel_requests(self) -> list[str]:
        """Act on the cancel tags that people set on the page; return the ids of the trials, and the sweep's name.

        A tag is taken away once it was acted on: submitting again after it must not cancel again.
        """
        known = self._look_up()
        cancelled = []
        for run in self._store.tagged(known.experiment_id, known.folder_id, run_schema.CANCEL):
            if not _says_no(run.tags[run_schema.CANCEL]):
                cancelled += self._cancel(run)
            self._store.set_tags(run.run_id, {run_schema.CANCEL_TAKEN: self._now()})
            self._store.delete_tag(run.run_id, run_schema.CANCEL)
        return cancelled

    def take_retry_requests(self) -> list[str]:
        """Act on the retry tags that people set on the page; return what became of them, a sentence each.

        Which trials a tag is about, and after which attempts, is written down before anything follows from it, and kept
        until the tag is gone: a exporter that is killed in between neither loses the request nor has its successor act on
        it a second time, after the attempt that it asked for.
        """
        known, sentences = self._look_up(), []
        tagged = self._store.tagged(known.experiment_id, known.folder_id, run_schema.RETRY)
        before = sync_state.retries_taken(self._sweep, self._store.uri)
        taken = {run.run_id: before[run.run_id] for run in tagged if run.run_id in before}
        working_on = retry_requests.controlled_trial_ids(self._sweep, self._sweep.submissions())
        for run in tagged:
            said = self._retry(run, taken, working_on)
            self._tell_of_retry(run.run_id, said)
            self._store.delete_tag(run.run_id, run_schema.RETRY)
            sentences.append(said)
        sync_state.save_retries_taken(self._sweep, self._store.uri, {})
        self._tell_whom_the_controller_left(working_on)
        return sentences

    def _retry(
        self, run: TrackedRun, taken: dict[str, dict[str, int]], working_on: frozenset[str]
    ) -> str:
        """Write the requests of one tag; `taken` are the tags that this or a killed exporter is acting on."""
        if _says_no(run.tags[run_schema.RETRY]):
            return "nothing to retry: the tag says no"
        whole_sweep = run.tags.get(run_schema.KIND) == run_schema.SUBMISSION_KIND
        try:
            asked = (
                retry_requests.RetryRequest(after=taken[run.run_id])
                if run.run_id in taken
                else retry_requests.plan_retry(
                    self._sweep,
                    self._trials_of(run),
                    controlled=working_on,
                    whole_sweep=whole_sweep,
                )
            )
        except (
            StoreError
        ) as error:  # a broken file of one trial must not keep the others' tags waiting
            return f"nothing was retried: {error}"
        taken[run.run_id] = dict(asked.after)
        sync_state.save_retries_taken(self._sweep, self._store.uri, taken)
        retry_requests.write_requests(
            self._sweep,
            asked.after,
            by="tag memscale.retry in MLflow",
            at=self._clock(),
            whole_sweep=whole_sweep,
        )
        self._queued[run.run_id] = taken[run.run_id]
        return retry_requests.describe_result(asked, controlled=working_on)

    def _tell_whom_the_controller_left(self, working_on: frozenset[str]) -> None:
        """Correct what was said to those whose controller ended before it took up the request."""
        for run_id, after in list(self._queued.items()):
            left = {i: n for i, n in after.items() if self._sweep.trial(i).retry_requested()}
            if not left:
                del self._queued[run_id]
            elif not working_on.issuperset(left):
                said = retry_requests.describe_result(
                    retry_requests.RetryRequest(after=left), controlled=working_on
                )
                self._tell_of_retry(run_id, said)
                del self._queued[run_id]

    def _tell_of_retry(self, run_id: str, said: str) -> None:
        self._store.set_tags(run_id, {run_schema.RETRY_TAKEN: f"{self._now()}: {said}"})

    def _trials_of(self, run: TrackedRun) -> list[TrialDir]:
        """Return the trial of a run, or the trials of a submission's."""
        if run.tags.get(run_schema.KIND) != run_schema.SUBMISSION_KIND:
            return [self._sweep.trial(run.tags[run_schema.KEY])]
        submission = self._sweep.submission(int(run.tags[run_schema.KEY]))
        return [self._sweep.trial(str(trial_id)) for trial_id in submission["trial_ids"]]

    def _now(self) -> str:
        return time.strftime("%F %T", time.localtime(self._clock()))

    def _cancel(self, run: TrackedRun) -> list[str]:
        by = "tag memscale.cancel in MLflow"
        if run.tags.get(run_schema.KIND) == run_schema.SUBMISSION_KIND:
            write_json(self._sweep.path / "cancel.json", {"by": by})
            return [self._sweep.name]
        trial = self._sweep.trial(run.tags[run_schema.KEY])
        if trial.state() in {TrialState.WAITING, TrialState.RUNNING}:
            trial.request_cancel(by)
            return [trial.trial_id]
        return []

    def _look_up(self) -> _Known:
        if self._known is None:
            self._store.open()
            experiment_id = self._store.experiment(
                self._sweep.name,
                artifacts=artifact_location(
                    self._store.uri, self._sweep.path.parent, self._sweep.name
                ),
                tags=mlflow_page.experiment_tags(self._question()),
            )
            folder_id = sync_state.folder_id(self._sweep)
            runs = self._store.runs(experiment_id, folder_id)
            self._known = _Known(experiment_id=experiment_id, folder_id=folder_id, runs=runs)
        return self._known

    @contextmanager
    def _one_run(self, what: str) -> Iterator["_Outcome"]:
        """Keep a refusal, or a broken file, from stopping the other runs; tell it once. An outage goes through."""
        outcome = _Outcome()
        try:
            yield outcome
        except StoreError as error:
            if isinstance(error, TrackerError) and not isinstance(error, RefusedError):
                raise
            outcome.taken = False
            message = f"{what}: not sent: {error}"
            if message not in self._warned or isinstance(error, RunGoneError):
                # The run may be deleted, or this is another database under the same address: look again.
                self._known = None
                self._warned.add(message)
                LOG.warning("%s", message)

    def _question(self) -> str | None:
        submissions = self._sweep.submissions()
        return submissions[-1].get("question") if submissions else None

    # -- runs --------------------------------------------------------------------------------------------------

    def _run(
        self,
        known: _Known,
        kind: str,
        key: str,
        *,
        start_s: float,
        name: str,
        parent: str | None = None,
    ) -> TrackedRun:
        """Return the run of a trial or submission, made if the tracker has none."""
        if (kind, key) not in known.runs:
            tags = {
                run_schema.KIND: kind,
                run_schema.KEY: key,
                run_schema.FOLDER_ID: known.folder_id,
            }
            if kind == run_schema.TRIAL_KIND:
                tags["memscale.trial_id"] = key
            if parent is not None:
                tags["mlflow.parentRunId"] = parent
            run_id = self._store.create_run(
                known.experiment_id, start_s=start_s, name=name, tags=tags
            )
            known.runs[kind, key] = TrackedRun(run_id=run_id, deleted=False, tags=tags)
        return known.runs[kind, key]

    def _parent(self, known: _Known, submission: Mapping[str, Any]) -> TrackedRun:
        return self._run(
            known,
            run_schema.SUBMISSION_KIND,
            str(submission["number"]),
            start_s=float(submission["submitted_at"]),
            name=f"{self._sweep.name} #{submission['number']}",
        )

    def _send_trial(
        self,
        known: _Known,
        trial: TrialDir,
        look: TrialSnapshot,
        asked_by: Mapping[str, Any] | None,
    ) -> None:
        spec, attempts = self._spec(trial), look.attempts
        run = self._run(
            known,
            run_schema.TRIAL_KIND,
            trial.trial_id,
            start_s=_started_at_s(attempts) or self._clock(),
            name=run_schema.trial_name(spec),
            parent=None if asked_by is None else self._parent(known, asked_by).run_id,
        )
        sending = TrialSync(store=self._store, trial=trial, run_id=run.run_id)
        sending.ignore(run.deleted)
        if run.deleted:
            return
        sending.describe(spec, t=round(float((asked_by or {}).get("submitted_at", 0.0)) * 1000))
        sending.journals(attempts)
        if look.view.state is TrialState.DONE:
            sending.finals()
        sending.tags(
            run_schema.trial_tags(
                spec,
                look.view,
                submission=None if asked_by is None else int(asked_by["number"]),
                environment=(attempts[-1].environment() if attempts else None) or {},
                colour=self._colours.get(spec.architecture, mlflow_page.COLOURS[0]),
            )
        )
        sending.status(look.view)
        sending.artifacts(attempts)


def _started_at_s(attempts: Sequence[AttemptDir]) -> float | None:
    launch = attempts[0].launch() if attempts else None
    return None if launch is None else float(launch["started_at"])


def _says_no(value: str) -> bool:
    """Whether somebody set a tag to a word that asks for nothing."""
    return value.strip().lower() in {"false", "no", "0"}
