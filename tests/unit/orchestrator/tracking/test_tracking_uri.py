"""Tracking URIs: the default store, databases, artifacts, passwords."""

from pathlib import Path

import pytest
import sqlalchemy

from orchestrator.tracking.tracking_uri import (
    artifact_location,
    database_file,
    default_tracking_uri,
    is_database,
    moved_artifacts,
)


def test_the_default_store_lies_beside_the_sweeps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert default_tracking_uri(Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert database_file(default_tracking_uri(Path("runs"))) == tmp_path / "runs" / "mlflow.db"


@pytest.mark.parametrize("name", ["my runs", "r?x", "r%20y", "r#x", "rü"])
def test_the_default_store_lies_there_whatever_the_folder_is_called(tmp_path, name):
    (tmp_path / name).mkdir()
    uri = default_tracking_uri(tmp_path / name)

    with sqlalchemy.create_engine(uri).connect() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE t (x INT)"))
    connection.engine.dispose()

    assert database_file(uri) == tmp_path / name / "mlflow.db"
    assert [path.name for path in tmp_path.rglob("*.db")] == ["mlflow.db"]
    assert (tmp_path / name / "mlflow.db").is_file()


@pytest.mark.parametrize(
    ("uri", "database"),
    [
        ("sqlite:///a.db", True),
        ("postgresql+psycopg://ada@host/db", True),
        ("http://127.0.0.1:5000", False),
        ("https://host", False),
    ],
)
def test_only_databases_are_opened_without_a_server(uri, database):
    assert is_database(uri) is database
    assert (artifact_location(uri, Path("runs"), "s") is not None) is database


def test_artifacts_have_an_absolute_uri_even_with_spaces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    location = artifact_location("sqlite:///x.db", Path("my runs"), "recall")

    assert location == f"file://{tmp_path}/my%20runs/mlartifacts/recall"


@pytest.mark.parametrize(
    ("database", "location", "moved"),
    [
        ("here/mlflow.db", "here/mlartifacts/s", False),
        ("here/mlflow.db", "before/mlartifacts/s", True),
        ("here/mlflow.db", "other/mlartifacts/s", True),
        ("shared.db", "before/mlartifacts/s", True),
        ("shared.db", "other/mlartifacts/s", False),
        ("here/mlflow.db", "chosen/by/hand", False),
    ],
)
def test_artifacts_of_a_place_that_the_runs_folder_left_are_told(
    tmp_path, database, location, moved
):
    """`other` is another runs folder, or a copy of this one; `before` is there no more."""
    (tmp_path / "other" / "mlartifacts" / "s").mkdir(parents=True)
    uri = f"sqlite:///{tmp_path}/{database}"
    wanted = artifact_location(uri, tmp_path / "here", "s")

    found = moved_artifacts(uri, (tmp_path / location).as_uri(), wanted)

    assert (found is not None) is moved


def test_a_folder_that_two_paths_reach_has_not_moved(tmp_path, monkeypatch):
    """As through a mount, whose real paths differ."""
    for name in ("here", "mounted"):
        (tmp_path / name / "mlartifacts" / "s").mkdir(parents=True)
    monkeypatch.setattr(Path, "samefile", lambda one, other: one.name == other.name)
    uri = f"sqlite:///{tmp_path}/here/mlflow.db"
    wanted = artifact_location(uri, tmp_path / "here", "s")

    assert moved_artifacts(uri, (tmp_path / "mounted/mlartifacts/s").as_uri(), wanted) is None


def test_artifacts_in_a_bucket_stay_there(tmp_path):
    uri = default_tracking_uri(tmp_path)
    wanted = artifact_location(uri, tmp_path, "s")

    assert moved_artifacts(uri, "s3://bucket/s", wanted) is None
