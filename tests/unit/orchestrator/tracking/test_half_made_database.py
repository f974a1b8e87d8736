"""Databases whose tables were not made to the end: emptied, unless they hold runs."""

import sqlite3
from contextlib import closing

import pytest

from orchestrator.tracking import half_made_database

pytestmark = pytest.mark.faults


@pytest.fixture
def file(tmp_path):
    """What MLflow leaves when the disk is full at its migration that adds `secrets`."""
    file = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(file)) as database, database:
        for table in ("runs", "experiments", "alembic_version", "secrets"):
            database.execute(f"CREATE TABLE {table} (id INTEGER)")
        database.execute("CREATE TABLE tags (id INTEGER REFERENCES runs (id))")
        database.execute("INSERT INTO experiments VALUES (0)")
    return file


def tables(file):
    with closing(sqlite3.connect(file)) as database:
        return [name for (name,) in database.execute("SELECT name FROM sqlite_master")]


def test_one_without_runs_is_emptied_under_those_who_have_it_open(file):
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("SELECT id FROM experiments").fetchall() == [(0,)]

        assert half_made_database.empty(file)

        assert other.execute("SELECT name FROM sqlite_master").fetchall() == []
    assert tables(file) == []


def test_one_with_runs_is_left_as_it_is_and_the_cure_is_named(file):
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("INSERT INTO runs VALUES (1)")
    before = tables(file)

    assert not half_made_database.empty(file)

    assert tables(file) == before
    assert f"mv {file} {file}.broken" in half_made_database.advice(file)
    assert "memscale sync" in half_made_database.advice(file)


@pytest.mark.parametrize(
    ("message", "half"),
    [
        ("(sqlite3.OperationalError) table secrets already exists", True),
        ("(sqlite3.OperationalError) duplicate column name: workspace", True),
        ("(sqlite3.OperationalError) database or disk is full", False),
        ("(sqlite3.OperationalError) database is locked", False),
        ("Experiment 'x' already exists.", False),
    ],
)
def test_only_errors_of_tables_mean_half_made(message, half):
    assert half_made_database.is_half_made(RuntimeError(message)) is half
