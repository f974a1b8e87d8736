"""What `memscale list --tracking-uri` reads from a tracker."""

from types import SimpleNamespace

import pytest

from orchestrator.records.errors import StoreError
from orchestrator.tracking import tracked_sweeps
from orchestrator.tracking.mlflow_client import TrackingClient
from orchestrator.tracking.run_schema import FOLDER_ID, SUBMITTED_AT


class Page(list):
    """A page of results, as MLflow returns it."""

    token = None


def parent(experiment, *, at, folder, status, submitted_at=None, **metrics):
    info = SimpleNamespace(experiment_id=experiment, status=status, start_time=at * 1000)
    points = {f"trials/{name}": float(n) for name, n in metrics.items()}
    tags = {FOLDER_ID: folder}
    if submitted_at is not None:
        tags[SUBMITTED_AT] = submitted_at
    return SimpleNamespace(info=info, data=SimpleNamespace(tags=tags, metrics=points))


class Store:
    """Parent runs, oldest first, in pages of one."""

    runs = (
        # Of an earlier version; this one goes on with the first of the two.
        parent(
            "2",
            at=1,
            folder="d",
            submitted_at="5.0",
            status="FINISHED",
            total=3,
            done=3,
            failed=0,
        ),
        parent("2", at=5, folder="d", status="KILLED", total=3, done=1, failed=0),
        parent("1", at=10, folder="a", status="KILLED", total=9, done=1, failed=0),
        parent("2", at=20, folder="b", status="RUNNING", total=4, done=1, failed=1),
        parent("1", at=30, folder="a", status="FINISHED", total=9, done=9, failed=0),
        parent("1", at=40, folder="c", status="FAILED", total=9, done=2, failed=7),
    )

    def search_experiments(self, *, max_results, page_token):
        return Page(SimpleNamespace(experiment_id=i, name=f"sweep_{i}") for i in ("1", "2"))

    def search_runs(self, *, experiment_ids, filter_string, order_by, max_results, page_token):
        assert experiment_ids == ["1", "2"]
        page = Page([self.runs[int(page_token or 0)]])
        page.token = str(int(page_token or 0) + 1) if page[0] is not self.runs[-1] else None
        return page


def test_each_folder_of_a_sweep_shows_its_last_submission(monkeypatch):
    monkeypatch.setattr(TrackingClient, "_client", Store())

    found = tracked_sweeps.list_tracked_sweeps("http://tracker")

    assert [(s.name, s.state, s.trials, dict(s.counts), s.submitted_at) for s in found] == [
        ("sweep_1", "failed", 9, {"done": 2, "failed": 7}, 40.0),
        ("sweep_1", "done", 9, {"done": 9, "failed": 0}, 30.0),
        ("sweep_2", "running", 4, {"done": 1, "failed": 1}, 20.0),
        ("sweep_2", "done", 3, {"done": 3, "failed": 0}, 5.0),
    ]


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(StoreError, match="no such database"):
        tracked_sweeps.list_tracked_sweeps(f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []
