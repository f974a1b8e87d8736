"""Client of MLflow, which is imported nowhere else, and only when it is opened."""

import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from orchestrator.records.errors import StoreError
from orchestrator.records.lock_file import open_lock
from orchestrator.records.redaction import message_without_password, without_password
from orchestrator.tracking import half_made_database
from orchestrator.tracking.corpus_dataset import CorpusDataset
from orchestrator.tracking.journal_reader import Point
from orchestrator.tracking.run_schema import FOLDER_ID, KIND, SUBMITTED_AT, TRIAL_KIND
from orchestrator.tracking.tracking_uri import database_file, moved_artifacts

LOG = logging.getLogger(__name__)
MAX_PARAMS = 100
"""Params, and tags, that one call takes."""
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""The exporter waits out an outage and can be stopped; MLflow's own retries block for minutes.

They would also repeat a request that timed out. A server that goes on later carries out both."""

UNREACHED = re.compile("NewConnectionError|NameResolutionError|ConnectTimeoutError")
"""Of urllib3, which MLflow's own error quotes: no connection was made."""
LOCKED = "another process has locked the database"
"""Of SQLite. What is measured waits in the journals until it lets go."""

P = ParamSpec("P")
R = TypeVar("R")


class TrackerError(StoreError):
    """The tracker did not take something; it may later."""


class RefusedError(TrackerError):
    """The tracker answered no: the same request will get the same answer."""


class BadAddressError(RefusedError):
    """MLflow knows no store with such an address."""

    exit_code = 2


class RunGoneError(RefusedError):
    """The tracker has no such run."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run as the tracker has it."""

    run_id: str
    deleted: bool
    tags: Mapping[str, str]
    status: str = "RUNNING"
    """MLflow's word; that of a new run by default."""

    @property
    def kind(self) -> str | None:
        """Trial or sweep."""
        return self.tags.get(KIND)


@dataclass(frozen=True, kw_only=True)
class TrackedSweep:
    """The experiment of a sweep and its runs."""

    experiment_id: str
    folder_id: str
    parent: TrackedRun
    trials: dict[str, TrackedRun]
    """By trial id."""


@dataclass(frozen=True, kw_only=True)
class TrackedParent:
    """The parent run of a sweep."""

    sweep: str
    """Name of the experiment."""
    folder_id: str
    status: str
    """MLflow's word."""
    submitted_at_s: float
    """When the sweep was last submitted, seconds since 1970."""
    metrics: Mapping[str, float]


def opens_tracker(call: Callable[P, R]) -> Callable[P, R]:
    """Turn whatever mlflow, its HTTP client or its database layer raises into a TrackerError."""

    @wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except StoreError:
            raise
        except Exception as error:
            raise _translated(error, getattr(args[0], "uri", "") if args else "") from error

    return wrapped


class TrackingClient:
    """One tracker. Every method raises TrackerError, and nothing else, when the tracker fails."""

    def __init__(self, uri: str) -> None:
        """Prepare; nothing is opened yet."""
        self.uri = uri
        self._opened: Any = None
        self._moved: str | None = None
        """Why no artifacts are sent, and what to do; None where they are."""

    @opens_tracker
    def open(self) -> None:
        """Import mlflow, and make the database's tables if there are none."""
        if self._opened is not None:
            return
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        with schema_lock(self.uri):
            try:
                self._opened = _connect(self.uri)
            except Exception as error:
                file = database_file(self.uri)
                if file is None or not half_made_database.is_half_made(error):
                    raise
                if not half_made_database.empty(file):
                    raise TrackerError(half_made_database.advice(file)) from error
                LOG.warning("%s: its tables were half made, without a run; made anew", file)
                self._opened = _connect(self.uri)

    @property
    def _client(self) -> Any:
        if self._opened is None:
            self.open()
        return self._opened

    @opens_tracker
    def experiment(self, name: str, *, artifacts: str | None, tags: Mapping[str, str]) -> str:
        """Return the id of the experiment of this name; set its tags.

        It is made if missing, restored if deleted. If its artifacts belong to the place where the
        runs folder lay before, none are sent any more: each is refused.

        Args:
            name: Of the experiment.
            artifacts: Where its artifacts go (`artifact_location`).
            tags: Those that differ are set.
        """
        found, self._moved = self._client.get_experiment_by_name(name), None
        if found is None:
            made: str = self._client.create_experiment(
                name, artifact_location=artifacts, tags=dict(tags)
            )
            return made
        if artifacts is not None:
            self._moved = moved_artifacts(self.uri, found.artifact_location, artifacts)
        if found.lifecycle_stage != "active":
            LOG.warning("experiment %s was deleted from the tracker; it is restored", name)
            self._client.restore_experiment(found.experiment_id)
        for key, value in tags.items():
            if found.tags.get(key) != value:
                self._client.set_experiment_tag(found.experiment_id, key, value)
        return str(found.experiment_id)

    @opens_tracker
    def runs(self, experiment_id: str, folder_id: str) -> list[TrackedRun]:
        """Return the runs of a sweep's folder, deleted ones too, the oldest first."""
        asked = f"tags.`{FOLDER_ID}` = '{folder_id}'"
        return list(self._search(experiment_id, asked, deleted_too=True))

    @opens_tracker
    def tagged(self, experiment_id: str, folder_id: str, tag: str) -> list[TrackedRun]:
        """Return the runs on which somebody set a tag."""
        asked = f"tags.`{FOLDER_ID}` = '{folder_id}' AND tags.`{tag}` != ''"
        return list(self._search(experiment_id, asked, deleted_too=False))

    def _search(
        self, experiment_id: str, filter_string: str, *, deleted_too: bool
    ) -> Iterator[TrackedRun]:
        from mlflow.entities import ViewType

        for run in _pages(
            self._client.search_runs,
            experiment_ids=[experiment_id],
            filter_string=filter_string,
            run_view_type=ViewType.ALL if deleted_too else ViewType.ACTIVE_ONLY,
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
        ):
            yield TrackedRun(
                run_id=run.info.run_id,
                deleted=run.info.lifecycle_stage != "active",
                tags=dict(run.data.tags),
                status=run.info.status,
            )

    @opens_tracker
    def parents(self) -> list[TrackedParent]:
        """Return the parent runs of all sweeps, those of earlier versions and the oldest first."""
        names = {
            experiment.experiment_id: experiment.name
            for experiment in _pages(self._client.search_experiments)
        }
        if not names:
            return []
        runs = _pages(
            self._client.search_runs,
            experiment_ids=list(names),
            filter_string=f"tags.`{KIND}` != '{TRIAL_KIND}'",
            order_by=["attributes.start_time ASC"],
        )
        # Earlier versions made one for each submission; the one that goes on has the tag.
        return [
            TrackedParent(
                sweep=names[run.info.experiment_id],
                folder_id=run.data.tags.get(FOLDER_ID, ""),
                status=run.info.status,
                submitted_at_s=float(run.data.tags.get(SUBMITTED_AT, run.info.start_time / 1000)),
                metrics=run.data.metrics,
            )
            for run in sorted(runs, key=lambda run: SUBMITTED_AT in run.data.tags)
        ]

    @opens_tracker
    def create_run(
        self, experiment_id: str, *, start_s: float, name: str, tags: Mapping[str, str]
    ) -> str:
        """Make a run with its tags and return its id: a run without them never exists."""
        run = self._client.create_run(
            experiment_id, start_time=round(start_s * 1000), tags=dict(tags), run_name=name
        )
        return str(run.info.run_id)

    @opens_tracker
    def delete_run(self, run_id: str) -> None:
        """Delete a run as the page does: it can be restored."""
        self._client.delete_run(run_id)

    @opens_tracker
    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """Store at most MAX_POINTS points. Points that are there already stay as they are."""
        from mlflow.entities import Metric

        self._client.log_batch(
            run_id, metrics=[Metric(p.key, p.value, p.t, p.step) for p in points]
        )

    @opens_tracker
    def log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Store params; a param cannot change afterwards."""
        from mlflow.entities import Param

        entities = [Param(key, value) for key, value in params.items()]
        for first in range(0, len(entities), MAX_PARAMS):
            self._client.log_batch(run_id, params=entities[first : first + MAX_PARAMS])

    @opens_tracker
    def log_datasets(self, run_id: str, datasets: Sequence[CorpusDataset]) -> None:
        """Store what a run read. Data sets that are there already stay as they are."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                dataset=Dataset(
                    name=one.name,
                    digest=one.digest,
                    source_type=one.source_type,
                    source=one.source,
                    profile=one.profile,
                ),
                tags=[InputTag("mlflow.data.context", one.context)],
            )
            for one in datasets
        ]
        self._client.log_inputs(run_id, datasets=inputs)

    @opens_tracker
    def register_model(
        self, run_id: str, *, name: str, artifact: str, tags: Mapping[str, str]
    ) -> str:
        """Return the version of a registered model that a run's artifact has; made if missing."""
        if not self._client.search_registered_models(f"name = '{name}'"):
            self._client.create_registered_model(name)
        asked = f"name = '{name}' and run_id = '{run_id}'"
        for known in self._client.search_model_versions(asked):
            return str(known.version)
        source = f"{self._client.get_run(run_id).info.artifact_uri}/{artifact}"
        made = self._client.create_model_version(name, source, run_id=run_id, tags=dict(tags))
        return str(made.version)

    @opens_tracker
    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Replace tags."""
        from mlflow.entities import RunTag

        self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    @opens_tracker
    def delete_tag(self, run_id: str, key: str) -> None:
        """Take a tag away."""
        self._client.delete_tag(run_id, key)

    @opens_tracker
    def set_status(self, run_id: str, status: str, *, ended_at_s: float | None) -> None:
        """Set a run's status, and when it ended."""
        if ended_at_s is None:
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status=status, end_time=round(ended_at_s * 1000))

    @opens_tracker
    def log_text(self, run_id: str, text: str, artifact: str) -> None:
        """Store a text file among a run's artifacts."""
        self._refuse_if_moved()
        self._client.log_text(run_id, text, artifact)

    @opens_tracker
    def log_folder(self, run_id: str, folder: Path, name: str) -> None:
        """Store all files of a folder among a run's artifacts, under a name."""
        self._refuse_if_moved()
        self._client.log_artifacts(run_id, str(folder), name)

    def _refuse_if_moved(self) -> None:
        if self._moved is not None:
            raise RefusedError(self._moved)


def _pages(search: Callable[..., Any], **asked: Any) -> Iterator[Any]:
    """Yield what a search of MLflow finds, page by page."""
    token = None
    while True:
        page = search(**asked, max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _connect(uri: str) -> Any:
    """Return a client of MLflow whose store exists and answers."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    client.search_experiments(max_results=1)
    return client


@contextmanager
def schema_lock(uri: str) -> Iterator[None]:
    """Keep two processes of this machine from making the tables of one SQLite file at once.

    Both would fail. Who may only read a store that exists makes none, and needs no lock.
    """
    file = database_file(uri)
    if file is None:
        yield
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = open_lock(file.with_name(f"{file.name}.lock"))
    except OSError as error:
        if file.exists() and not os.access(file, os.W_OK):
            yield
            return
        raise TrackerError(
            f"{file}: cannot be written ({error}); choose another --tracking-uri"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _translated(error: Exception, uri: str) -> TrackerError:
    """Return the error of a tracker at `uri`, or at one that is not known, as a sentence."""
    message = message_without_password(" ".join(str(error).split()), uri)[:500]
    code = getattr(error, "error_code", "")
    if type(error).__name__.startswith("Unsupported"):
        return BadAddressError(
            f"{message.partition(';')[2].partition(' for ')[0].strip() or message}; "
            "use http://HOST:PORT, sqlite:///FILE or postgresql+psycopg2://…"
        )
    if isinstance(error, ImportError):
        return TrackerError(
            f"mlflow cannot be imported ({message}); pip install 'memscale[mlflow]'"
        )
    if UNREACHED.search(str(error)):
        return TrackerError(
            f"nothing answers at {without_password(uri) or 'its address'}; start the server there, "
            "or correct --tracking-uri or MLFLOW_TRACKING_URI"
        )
    if isinstance(error, OSError) and error.filename is not None:
        # A file of one run's artifacts: the tracker itself answers, and other runs go on.
        return RefusedError(f"{error.filename}: {error.strerror}; its artifacts cannot be stored")
    if "database is locked" in message:
        return TrackerError(LOCKED)
    if code == "RESOURCE_DOES_NOT_EXIST":
        return RunGoneError(message)
    if code in {"INVALID_PARAMETER_VALUE", "INVALID_STATE", "BAD_REQUEST", "PERMISSION_DENIED"}:
        return RefusedError(message)
    return TrackerError(f"{type(error).__name__}: {message}")


def artifact_text(path: Path, *, limit_bytes: int = 4_000_000) -> str:
    """Return a file as text: all of it, or its beginning and end if longer than `limit_bytes`."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= limit_bytes:
            return file.read().decode(errors="replace")
        head = file.read(limit_bytes // 4)
        file.seek(size - limit_bytes * 3 // 4)
        tail = file.read()
    n_left_out = size - len(head) - len(tail)
    left_out = f"\n\n… {n_left_out:,} bytes are left out here; all of it: {path} …\n\n"
    return head.decode(errors="replace") + left_out + tail.decode(errors="replace")
