"""Requests to cancel or retry that people set as tags on the MLflow page.

A tag is deleted once it was acted on: submitting again afterwards must not act on it again.
"""

import time
from collections.abc import Callable, Mapping

from orchestrator.control import retry_requests
from orchestrator.control.retry_requests import RetryRequest
from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialState
from orchestrator.tracking import run_schema, sync_state
from orchestrator.tracking.mlflow_client import TrackedRun, TrackedSweep, TrackingClient


class PageRequests:
    """Acts on the request tags of one sweep's runs."""

    def __init__(
        self, sweep: SweepDir, client: TrackingClient, *, clock: Callable[[], float]
    ) -> None:
        """Prepare; `clock` is in seconds since 1970."""
        self._sweep = sweep
        self._client = client
        self._clock = clock
        self._queued: dict[str, Mapping[str, int]] = {}
        """Retries that were answered with "back in the queue": run id to trial id to the number of
        its last attempt."""

    def take_cancels(self, tracked: TrackedSweep) -> list[str]:
        """Act on cancel tags; return the ids of the trials, or the sweep's name for all of it."""
        cancelled = []
        for run in self._tagged(tracked, run_schema.CANCEL):
            if not _says_no(run.tags[run_schema.CANCEL]):
                cancelled += self._cancel(run)
            self._client.set_tags(run.run_id, {run_schema.CANCEL_TAKEN: self._now()})
            self._client.delete_tag(run.run_id, run_schema.CANCEL)
        return cancelled

    def take_retries(self, tracked: TrackedSweep) -> list[str]:
        """Act on retry tags; return what became of them, a sentence each.

        Which trials a tag is about, and after which attempts, is written down before anything
        follows from it, and kept until the tag is gone. So an exporter that is killed in between
        does not lose the request, and its successor does not act on it a second time, after the
        attempt that it asked for.
        """
        tagged = self._tagged(tracked, run_schema.RETRY)
        before = sync_state.retries_taken(self._sweep, self._client.uri)
        taken = {run.run_id: before[run.run_id] for run in tagged if run.run_id in before}
        controlled = retry_requests.controlled_trial_ids(self._sweep, self._sweep.submissions())
        answers = []
        for run in tagged:
            answer = self._retry(run, taken, controlled)
            self._answer(run.run_id, answer)
            self._client.delete_tag(run.run_id, run_schema.RETRY)
            answers.append(answer)
        sync_state.save_retries_taken(self._sweep, self._client.uri, {})
        self._correct_answers(controlled)
        return answers

    def _tagged(self, tracked: TrackedSweep, tag: str) -> list[TrackedRun]:
        return self._client.tagged(tracked.experiment_id, tracked.folder_id, tag)

    def _cancel(self, run: TrackedRun) -> list[str]:
        by = "tag memscale.cancel in MLflow"
        if run.kind != run_schema.TRIAL_KIND:
            write_json(self._sweep.path / "cancel.json", {"by": by})
            return [self._sweep.name]
        trial = self._sweep.trial(run.tags[run_schema.KEY])
        if trial.state() in {TrialState.WAITING, TrialState.RUNNING}:
            trial.request_cancel(by)
            return [trial.trial_id]
        return []

    def _retry(
        self, run: TrackedRun, taken: dict[str, dict[str, int]], controlled: frozenset[str]
    ) -> str:
        """Write the requests of one tag; `taken` are those being acted on, perhaps since a kill."""
        if _says_no(run.tags[run_schema.RETRY]):
            return "nothing to retry: the tag says no"
        whole_sweep = run.kind != run_schema.TRIAL_KIND
        if run.run_id in taken:
            request = RetryRequest(after=taken[run.run_id])
        else:
            try:
                request = retry_requests.plan_retry(
                    self._sweep,
                    self._trials_of(run),
                    controlled=controlled,
                    whole_sweep=whole_sweep,
                )
            except StoreError as error:
                # A broken file of one trial must not keep the others' tags waiting.
                return f"nothing was retried: {error}"
        taken[run.run_id] = dict(request.after)
        sync_state.save_retries_taken(self._sweep, self._client.uri, taken)
        retry_requests.write_requests(
            self._sweep,
            request.after,
            by="tag memscale.retry in MLflow",
            at=self._clock(),
            whole_sweep=whole_sweep,
        )
        self._queued[run.run_id] = taken[run.run_id]
        return retry_requests.describe_result(request, controlled=controlled)

    def _correct_answers(self, controlled: frozenset[str]) -> None:
        """Answer again where the controller ended before it took up the request."""
        for run_id, after in list(self._queued.items()):
            left = {i: n for i, n in after.items() if self._sweep.trial(i).retry_requested()}
            if not left:
                del self._queued[run_id]
            elif not controlled.issuperset(left):
                request = RetryRequest(after=left)
                answer = retry_requests.describe_result(request, controlled=controlled)
                self._answer(run_id, answer)
                del self._queued[run_id]

    def _answer(self, run_id: str, answer: str) -> None:
        self._client.set_tags(run_id, {run_schema.RETRY_TAKEN: f"{self._now()}: {answer}"})

    def _trials_of(self, run: TrackedRun) -> list[TrialDir]:
        if run.kind == run_schema.TRIAL_KIND:
            return [self._sweep.trial(run.tags[run_schema.KEY])]
        return self._sweep.trials()

    def _now(self) -> str:
        return time.strftime("%F %T", time.localtime(self._clock()))


def _says_no(value: str) -> bool:
    """Return whether a tag was set to a word that asks for nothing."""
    return value.strip().lower() in {"false", "no", "0"}
