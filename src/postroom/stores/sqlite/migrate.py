"""Brings a database to the newest schema, one numbered transactional step after another."""

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from postroom.contracts.errors import SchemaTooNew, StoreCorrupt
from postroom.stores.sqlite.connection import translated
from postroom.stores.sqlite.copying import back_up

_FILE = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")

_APPLIED = "SELECT version, checksum FROM schema_migrations"
_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations (
  version    INTEGER PRIMARY KEY,
  name       TEXT NOT NULL,
  checksum   TEXT NOT NULL,
  applied_at INTEGER NOT NULL
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step: its number, its name and its statements."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the statements, by which a changed step is noticed."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def shipped_migrations() -> list[Migration]:
    """Return the steps that this postroom knows, in order."""
    found = []
    for entry in resources.files("postroom.stores.sqlite").joinpath("migrations").iterdir():
        if match := _FILE.match(entry.name):
            sql = entry.read_text(encoding="utf-8")
            found.append(Migration(version=int(match[1]), name=match[2], sql=sql))
    return sorted(found, key=lambda step: step.version)


def migrate(
    connection: sqlite3.Connection, path: Path, *, now: int, steps: list[Migration] | None = None
) -> list[int]:
    """Apply the missing steps and return their numbers; a backup is taken before the first of them.

    Raises:
        SchemaTooNew: the database has steps that this postroom does not know; nothing was changed.
        StoreCorrupt: a step that was applied differs from the one shipped.
    """
    known = shipped_migrations() if steps is None else steps
    with translated():
        connection.execute(_LEDGER)
        applied: dict[int, str] = dict(connection.execute(_APPLIED).fetchall())
        _refuse_what_does_not_fit(applied, known)
        missing = [step for step in known if step.version not in applied]
        if missing and applied:
            back_up(connection, path.with_name(f"{path.name}.before-{missing[0].version:04d}.{now}.bak"))
        for step in missing:
            _apply(connection, step, now)
    return [step.version for step in missing]


def _refuse_what_does_not_fit(applied: dict[int, str], known: list[Migration]) -> None:
    newest = max((step.version for step in known), default=0)
    if applied and max(applied) > newest:
        raise SchemaTooNew(
            f"the database has schema {max(applied)}, this postroom knows up to {newest}", value=max(applied)
        )
    for step in known:
        if step.version in applied and applied[step.version] != step.checksum:
            raise StoreCorrupt(
                f"schema step {step.version} was applied with other contents than the one shipped",
                value=step.version,
                remedy="install the postroom release that made this database, or restore a backup",
            )


def _apply(connection: sqlite3.Connection, step: Migration, now: int) -> None:
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


def split_statements(sql: str) -> Iterator[str]:
    """Yield the statements of a script one by one; triggers stay whole, the last may lack its `;`."""
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in pending.splitlines()):
        yield pending.strip()
