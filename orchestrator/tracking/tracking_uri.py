"""Tracking URIs: the default store, and where artifacts go."""

from pathlib import Path
from urllib.parse import urlsplit

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""Schemes of SQLAlchemy; a driver may follow, as in postgresql+psycopg://."""


def default_tracking_uri(runs: Path) -> str:
    """Return the SQLite store beside the sweeps of a runs folder."""
    return f"sqlite:///{(runs / 'mlflow.db').absolute()}"


def is_database(uri: str) -> bool:
    """Return whether the store is a database that this process opens without a server."""
    return urlsplit(uri).scheme.split("+")[0] in DATABASES


def database_file(uri: str) -> Path | None:
    """Return the file of a SQLite store, None for anything else."""
    return Path(uri.removeprefix("sqlite:///")).absolute() if uri.startswith("sqlite:///") else None


def artifact_location(uri: str, runs: Path, sweep: str) -> str | None:
    """Return where a sweep's artifacts go, as an absolute URI that works from any folder.

    None leaves it to the server: a client must not decide paths on another machine.
    """
    return (runs / "mlartifacts" / sweep).absolute().as_uri() if is_database(uri) else None
