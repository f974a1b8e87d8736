"""A tracker in memory that keeps MLflow's rules and fails where a test says."""

import itertools
import uuid

from orchestrator.tracking.mlflow_client import RefusedError, RunGoneError, TrackedRun, TrackerError
from orchestrator.tracking.run_schema import FOLDER_ID, KEY, KIND


class FakeRun:
    def __init__(self, experiment, tags, name, start_s):
        self.experiment, self.tags, self.name, self.start_s = experiment, dict(tags), name, start_s
        self.points = set()
        """As in the database: the key is (metric, time, step, value); an existing point stays."""
        self.params, self.artifacts, self.datasets = {}, {}, {}
        self.status, self.ended_at_s, self.deleted = "RUNNING", None, False


class FakeStore:
    """The same calls as `orchestrator.tracking.mlflow_client.TrackingClient`."""

    def __init__(self, uri="sqlite:///memory"):
        self.uri = uri
        self.experiments, self.tags, self._runs, self.models = {}, {}, {}, {}
        self.run_ids = (uuid.uuid4().hex for _ in itertools.count())
        self.calls = 0
        self.fail_at = None
        self.after_effect = False
        self.late_call, self.late = None, []
        """The call that times out and is carried out at `carry_out_late` alone, and what waits so."""
        self.log = []

    def _call(self, name, effect):
        self.calls += 1
        self.log.append(name)
        if name == self.late_call:
            self.late.append(effect)
            raise TrackerError("no answer in time")
        failing = self.fail_at is not None and self.calls == self.fail_at
        if failing and not self.after_effect:
            raise TrackerError("down before it was taken")
        value = effect()
        if failing:
            raise TrackerError("down after it was taken")
        return value

    def _run(self, run_id):
        if run_id not in self._runs:
            raise RunGoneError(f"no run {run_id}")
        if self._runs[run_id].deleted:
            raise RefusedError(f"run {run_id} must be active")
        return self._runs[run_id]

    def _params(self, run_id, params):
        run = self._run(run_id)
        for key, value in params.items():
            if run.params.setdefault(key, value) != value:
                raise RefusedError(f"param {key} cannot change")

    def open(self):
        self._call("open", lambda: None)

    def experiment(self, name, *, artifacts, tags):
        def effect():
            self.tags[name] = dict(tags)
            return self.experiments.setdefault(name, f"e{len(self.experiments)}")

        return self._call("experiment", effect)

    def _tracked(self, run_id, run):
        return TrackedRun(
            run_id=run_id, deleted=run.deleted, tags=dict(run.tags), status=run.status
        )

    def runs(self, experiment_id, folder_id):
        def effect():
            oldest_first = sorted(self._runs.items(), key=lambda item: (item[1].start_s, item[0]))
            return [
                self._tracked(run_id, run)
                for run_id, run in oldest_first
                if run.experiment == experiment_id and run.tags[FOLDER_ID] == folder_id
            ]

        return self._call("runs", effect)

    def tagged(self, experiment_id, folder_id, tag):
        return self._call(
            "tagged",
            lambda: [self._tracked(i, r) for i, r in self._runs.items() if r.tags.get(tag)],
        )

    def create_run(self, experiment_id, *, start_s, name, tags):
        def effect():
            run_id = next(self.run_ids)
            self._runs[run_id] = FakeRun(experiment_id, tags, name, start_s)
            return run_id

        return self._call("create_run", effect)

    def delete_run(self, run_id):
        self._call("delete_run", lambda: self.delete(self._runs[run_id]))

    def log_points(self, run_id, points):
        assert 0 < len(points) <= 1000
        self._call("log_points", lambda: self._run(run_id).points.update(points))

    def log_params(self, run_id, params):
        self._call("log_params", lambda: self._params(run_id, params))

    def log_datasets(self, run_id, datasets):
        def effect():
            known = self._run(run_id).datasets
            for one in datasets:
                known.setdefault((one.name, one.digest), one)

        self._call("log_datasets", effect)

    def register_model(self, run_id, *, name, artifact, tags):
        def effect():
            held = {key.split("/")[0] for key in self._run(run_id).artifacts}
            assert artifact in held, "registered before it was stored"
            versions = self.models.setdefault(name, {})
            return versions.setdefault(run_id, str(len(versions) + 1))

        return self._call("register_model", effect)

    def set_tags(self, run_id, tags):
        self._call("set_tags", lambda: self._run(run_id).tags.update(tags))

    def delete_tag(self, run_id, key):
        self._call("delete_tag", lambda: self._run(run_id).tags.pop(key))

    def set_status(self, run_id, status, *, ended_at_s):
        def effect():
            run = self._run(run_id)
            run.status, run.ended_at_s = status, ended_at_s or run.ended_at_s

        self._call("set_status", effect)

    def log_text(self, run_id, text, artifact):
        self._call("log_text", lambda: self._run(run_id).artifacts.update({artifact: text}))

    def log_folder(self, run_id, folder, name):
        files = {f"{name}/{p.name}": p.read_bytes() for p in folder.iterdir() if p.is_file()}
        self._call("log_folder", lambda: self._run(run_id).artifacts.update(files))

    def carry_out_late(self):
        for effect in self.late:
            effect()
        self.late = []

    # -- what tests ask ------------------------------------------------------------------------

    def of_kind(self, kind):
        return [run for run in self._runs.values() if run.tags[KIND] == kind]

    def trial(self, trial_id):
        runs = [run for run in self.of_kind("trial") if run.tags[KEY] == trial_id]
        (run,) = [run for run in runs if not run.deleted] if len(runs) > 1 else runs
        return run

    def parent(self):
        (run,) = [run for run in self.of_kind("sweep") if not run.deleted]
        return run

    def run_id(self, run):
        return next(run_id for run_id, known in self._runs.items() if known is run)

    def delete(self, run, *, for_good=False):
        run.deleted = True
        if for_good:
            self._runs = {run_id: r for run_id, r in self._runs.items() if r is not run}
