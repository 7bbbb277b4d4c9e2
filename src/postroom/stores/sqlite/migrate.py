"""Upgrades a database to the newest schema by numbered steps, each in its own transaction."""

import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from postroom.contracts import progress
from postroom.stores.migrations import Migration, missing_migrations, shipped_migrations
from postroom.stores.sqlite.connection import add_functions, translated
from postroom.stores.sqlite.copying import back_up

APPLIED: Final = "SELECT version, checksum FROM schema_migrations"
_LEDGER: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations (
  version    INTEGER PRIMARY KEY,
  name       TEXT NOT NULL,
  checksum   TEXT NOT NULL,
  applied_at INTEGER NOT NULL
)
"""

_STEPS: Final = 100_000
"""Number of SQLite instructions between two progress reports."""


def migrate(
    connection: sqlite3.Connection, path: Path, *, now: int, steps: Sequence[Migration] | None = None
) -> list[int]:
    """Apply the missing schema steps and return their numbers.

    If any step is missing, a backup is written first.

    Raises:
        SchemaTooNew: The database has steps that this release does not know; nothing was changed.
        StoreCorrupt: An applied step differs from the step in this release.
    """
    with translated():
        add_functions(connection)
        connection.execute(_LEDGER)
        applied: dict[int, str] = dict(connection.execute(APPLIED).fetchall())
        missing = missing_migrations(applied, shipped_migrations("sqlite") if steps is None else steps)
        if missing and applied:
            back_up(connection, path.with_name(f"{path.name}.before-{missing[0].version:04d}.{now}.bak"))
        for done, step in enumerate(missing):
            doing = f"changing the schema, {step.name}: steps"
            connection.set_progress_handler(partial(progress.tell, doing, done, len(missing)), _STEPS)
            connection.execute("BEGIN EXCLUSIVE")
            try:
                for statement in split_statements(step.sql):
                    connection.execute(statement)
                connection.execute(
                    "INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
                    (step.version, step.name, step.checksum, now),
                )
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        connection.set_progress_handler(None, 0)
    return [step.version for step in missing]


def applied_steps(connection: sqlite3.Connection) -> dict[int, str]:
    """Return the checksum of each applied schema step, keyed by number."""
    ledger = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations'").fetchone()
    rows = connection.execute(APPLIED).fetchall() if ledger else []
    return dict(rows)


def split_statements(sql: str) -> Iterator[str]:
    """Yield the statements of an SQL script one by one; a trigger is one statement."""
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in pending.splitlines()):
        yield pending.strip()
