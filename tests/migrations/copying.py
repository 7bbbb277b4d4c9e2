"""The content of a database in SQLite, column by column."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

LEFT_OUT = ("schema_migrations", "search_index_progress", "sqlite_", "messages_fts")
"""Tables that belong to SQLite: its ledger, the state of its indexes, its counters, its search index."""
Tables = dict[str, tuple[list[str], list[tuple[Any, ...]]]]


def list_tables(path: Path) -> Tables:
    """Return its rows by table, with the names of their columns."""
    found: Tables = {}
    with closing(sqlite3.connect(path)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for table in tables:
            if not table.startswith(LEFT_OUT):
                answer = connection.execute(f'SELECT * FROM "{table}" ORDER BY 1, 2')
                found[table] = ([column[0] for column in answer.description], answer.fetchall())
    return found
