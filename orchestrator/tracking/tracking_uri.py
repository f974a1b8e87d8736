"""Tracking URIs: the default store, and where artifacts go."""

import os.path
from pathlib import Path
from urllib.parse import unquote, urlsplit

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""Schemes of SQLAlchemy; a driver may follow, as in postgresql+psycopg://."""


def default_tracking_uri(runs: Path) -> str:
    """Return the SQLite store beside the sweeps of a runs folder."""
    # A `?` would begin the URI's query. Spaces stay: not every SQLAlchemy decodes them.
    path = str((runs / "mlflow.db").absolute()).replace("%", "%25").replace("?", "%3F")
    return f"sqlite:///{path}"


def is_database(uri: str) -> bool:
    """Return whether the store is a database that this process opens without a server."""
    return urlsplit(uri).scheme.split("+")[0] in DATABASES


def database_file(uri: str) -> Path | None:
    """Return the file of a SQLite store, None for anything else."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(unquote(uri.removeprefix("sqlite:///").partition("?")[0])).absolute()


def artifact_location(uri: str, runs: Path, sweep: str) -> str | None:
    """Return where a sweep's artifacts go, as an absolute URI that works from any folder.

    None leaves it to the server: a client must not decide paths on another machine.
    """
    return (runs / "mlartifacts" / sweep).absolute().as_uri() if is_database(uri) else None


def moved_artifacts(uri: str, location: str, wanted: str) -> str | None:
    """Return what is wrong, and what to do, if an experiment belongs to another runs folder.

    MLflow keeps an experiment's location for good, so it stays behind when the folder is moved. A
    database outside of the runs folder may serve several, whose artifacts lie with the first one's.

    Args:
        uri: The database.
        location: Where the experiment's artifacts go.
        wanted: Where they should go (`artifact_location`).
    """
    if urlsplit(location).scheme not in {"", "file"}:
        return None
    there, here = (Path(os.path.realpath(unquote(urlsplit(u).path))) for u in (location, wanted))
    file, runs = database_file(uri), here.parent.parent
    own = file is not None and Path(os.path.realpath(file)).parent == runs
    if there.parts[-2:] != here.parts[-2:]:
        return None  # somebody else made the experiment, and chose a place
    if there == here or (not own and os.path.isdir(there)):  # noqa: PTH112
        return None
    if _same_folder(there.parent, here.parent):  # reached by two paths, as a mount
        return None
    return (
        f"its runs folder was moved: MLflow keeps artifacts in {there.parent}, they should be in "
        f"{here.parent}; make the first a link to the second (ln -s), or move the folder back"
    )


def _same_folder(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
