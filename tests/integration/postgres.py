"""A PostgreSQL server of a test's own, from Debian's package; it refuses to run as root, so there it runs as `postgres`."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class MissingPostgresError(Exception):
    """What is not installed."""


def programs() -> Path:
    """Return the folder of initdb and pg_ctl.

    Raises:
        MissingPostgresError: If there is none, or no driver for Python.
    """
    try:
        import psycopg2  # noqa: F401 -- whether it is there
    except ModuleNotFoundError as error:
        raise MissingPostgresError(
            "psycopg2 is missing: pip install 'memscale[postgres]'"
        ) from error
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = versions[-1] if versions else shutil.which("initdb")
    if found is None:
        raise MissingPostgresError("PostgreSQL is missing: apt-get install postgresql")
    return Path(found).parent


@contextmanager
def server() -> Iterator[str]:
    """Run a server with an empty database; yield SQLAlchemy's URI of it."""
    with tempfile.TemporaryDirectory(prefix="ms-pg-") as folder:
        yield from _server(Path(folder))


def _server(folder: Path) -> Iterator[str]:
    binaries = programs()
    who = {}
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError as error:
            raise MissingPostgresError(
                "PostgreSQL is missing: there is no user postgres"
            ) from error
        os.chown(folder, user.pw_uid, user.pw_gid)
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}

    def run(program: str, *arguments: str) -> None:
        command = [str(binaries / program), *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **who)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = str(folder / "data")
    run("initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync")
    options = (
        f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    )
    run("pg_ctl", "-D", data, "-w", "-t", "120", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql+psycopg2://postgres@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
