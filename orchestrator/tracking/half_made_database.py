"""Partially created MLflow SQLite databases: detected, emptied if without runs.

MLflow makes its tables in many steps that are not one transaction. A disk that is full meanwhile
leaves some of them, and then every later opening fails, because the next step finds its table.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

_CUT_SHORT = re.compile(r"table \S+ already exists|duplicate column name|no such (table|column)")


def is_half_made(error: BaseException) -> bool:
    """Whether an error of opening a store says that its tables were not made to the end."""
    return _CUT_SHORT.search(str(error)) is not None


def empty(file: Path) -> bool:
    """Drop all tables of a database that holds no run, so that they are made anew; else say False.

    The file stays: processes that have it open see the change.

    Raises:
        sqlite3.Error: If the disk is still full, or the file is no database.
    """
    with closing(sqlite3.connect(file, isolation_level=None, timeout=10.0)) as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = [name for (name,) in rows if not name.startswith("sqlite_")]
        if "runs" in tables and database.execute("SELECT 1 FROM runs LIMIT 1").fetchone():
            return False
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute("BEGIN IMMEDIATE")
        for table in tables:
            quoted = table.replace('"', '""')
            database.execute(f'DROP TABLE "{quoted}"')
        database.execute("COMMIT")
    return True


def advice(file: Path) -> str:
    """Return what cures a half-made database that holds runs."""
    return (
        f"{file} was left half made, by a full disk or a killed process; move it away (`mv {file} "
        f"{file}.broken`) and run `memscale sync SWEEP`: that sends all anew from the journals"
    )
