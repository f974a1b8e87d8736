"""Tracking URIs: the default store, databases, artifacts, passwords."""

from pathlib import Path

import pytest

from orchestrator.tracking.tracking_uri import (
    artifact_location,
    database_file,
    default_tracking_uri,
    is_database,
)


def test_the_default_store_lies_beside_the_sweeps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert default_tracking_uri(Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert database_file(default_tracking_uri(Path("runs"))) == tmp_path / "runs" / "mlflow.db"


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
