"""Repairs that cannot lose data: indexes that lack rows of their table are rebuilt.

If an index contains rows that are missing in its table, it is not rebuilt, because those rows may exist
nowhere else.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Final

from postroom.contracts.errors import StoreCorrupt
from postroom.stores.migrations import missing_tables

_MAX_ROWS: Final = 1_000_000
_LACKS: Final = re.compile(r"row \d+ missing from index (\S+)")
_WRONG: Final = re.compile(r"wrong # of entries in index (\S+)")


def find_faults(connection: sqlite3.Connection) -> list[str]:
    """Read every table and index of a database, and return the list of problems."""
    rows = [row[0] for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    broken = connection.execute("PRAGMA foreign_key_check").fetchmany(20)
    return rows + [f"foreign key: {row}" for row in broken]


def faults_of_server(connection: sqlite3.Connection) -> list[str]:
    """Return the problems of a database that this release uses, missing tables first."""
    return [*lacking_tables(connection), *find_faults(connection)]


def lacking_tables(connection: sqlite3.Connection) -> list[str]:
    """Return a problem for each table that this release uses but the database lacks."""
    there = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    [newest] = connection.execute("SELECT max(version) FROM schema_migrations").fetchone()
    return missing_tables("sqlite", there, newest)


def indexes_that_lack_rows(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the indexes to rebuild.

    The result is empty if the database has other problems, or if an index may have extra rows.
    """
    lacks: Counter[str] = Counter()
    for (fault,) in connection.execute(f"PRAGMA integrity_check({_MAX_ROWS})"):
        if match := _LACKS.fullmatch(fault):
            lacks[match[1]] += 1
        elif fault != "ok" and not _WRONG.fullmatch(fault):
            return []
    if all(_has_all_rows(connection, name, number) for name, number in lacks.items()):
        return sorted(lacks)
    return []


def write_again(connection: sqlite3.Connection, names: Sequence[str]) -> None:
    """Rebuild indexes from their tables, within the transaction of `connection`.

    Raises:
        StoreCorrupt: A fault remains, and the transaction must be rolled back.
    """
    for name in names:
        connection.execute(f"REINDEX {_quote(name)}")
    [fault] = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if fault != "ok":
        raise StoreCorrupt(f"after the rebuild, the indexes are still damaged: {fault}")


def _has_all_rows(connection: sqlite3.Connection, name: str, lacking: int) -> bool:
    """Return whether an index has exactly the rows of its table, except for `lacking` rows."""
    row = connection.execute(
        "SELECT tbl_name, sql FROM sqlite_schema WHERE type = 'index' AND name = ?", (name,)
    ).fetchone()
    if row is None or row[1] is None or re.search(r"\bWHERE\b", row[1], re.IGNORECASE):
        # For a partial index, or one made by a constraint, the correct number of rows is unknown.
        return False
    table, index = _quote(row[0]), _quote(name)
    columns = connection.execute(f"PRAGMA index_info({index})").fetchall()
    order = ", ".join(_quote(column) for _, _, column in columns)
    [rows] = connection.execute(f"SELECT count(*) FROM {table} NOT INDEXED").fetchone()  # noqa: S608 - from the schema
    # A plain count would use the smallest index, whichever that is.
    [held] = connection.execute(
        f"SELECT sum(1) FROM (SELECT 1 FROM {table} INDEXED BY {index} ORDER BY {order} LIMIT -1)"  # noqa: S608
    ).fetchone()
    return bool(rows - (held or 0) == lacking)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
