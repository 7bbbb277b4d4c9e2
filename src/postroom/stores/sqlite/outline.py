"""The shape of a database without what is in it: its schema, how many rows, which runs wait.

Reads a database of any schema, so that one can be told about that this release cannot open.
"""

import sqlite3
from pathlib import Path
from typing import Final

from postroom.contracts.transactions import Outline
from postroom.stores.sqlite.connection import connect, translated
from postroom.stores.sqlite.statements import load_statements

MOST_RUNS: Final = 500
_OUTLINE: Final = load_statements("outline")
_COLUMNS: Final = (
    "dispatch_id",
    "run_id",
    "status",
    "attempts",
    "max_attempts",
    "created_at",
    "available_at",
    "updated_at",
)


def outline_of(connection: sqlite3.Connection) -> Outline:
    """Look at a database; a part that its schema does not have yet is empty."""
    schema = connection.execute(_OUTLINE["schema"]).fetchall()
    tables = [name for kind, name, sql in schema if kind == "table" and "VIRTUAL TABLE" not in sql]
    has_runs = "run_dispatches" in tables
    return Outline(
        schema=";\n".join(sql for _, _, sql in schema) + ";\n",
        steps=connection.execute(_OUTLINE["steps"]).fetchall() if "schema_migrations" in tables else [],
        rows={name: _rows(connection, name) for name in tables},
        states=dict(connection.execute(_OUTLINE["states"])) if has_runs else {},
        queue=_queue(connection) if has_runs else [],
    )


def outline_of_file(file: Path) -> Outline:
    """Look at a database that no server uses. Blocks.

    Raises:
        StoreError: it cannot be read.
    """
    with translated():
        connection = connect(file, read_only=True)
        try:
            return outline_of(connection)
        finally:
            connection.close()


def _rows(connection: sqlite3.Connection, table: str) -> int:
    named = table.replace('"', '""')
    return int(connection.execute(f'SELECT count(*) FROM "{named}"').fetchone()[0])  # noqa: S608 - from the schema


def _queue(connection: sqlite3.Connection) -> list[dict[str, object]]:
    found = connection.execute(_OUTLINE["queue"], {"limit": MOST_RUNS})
    return [dict(zip(_COLUMNS, row, strict=True)) for row in found]
