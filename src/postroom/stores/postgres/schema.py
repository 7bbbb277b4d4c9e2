"""Brings a schema to the newest state, one numbered step after another, in one transaction."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import resources
from typing import Final

from postroom.contracts.errors import SchemaTooNew, StoreCorrupt
from postroom.stores.postgres.connection import Address, Connection, quoted

_FILE: Final = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_WITHIN: Final = timedelta(hours=6)
"""A step takes what it takes, and so does waiting for another process that is at it."""
_SETTINGS: Final = {"statement_timeout": "0", "lock_timeout": "0"}

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0))"
_HAS_LEDGER: Final = "SELECT to_regclass('schema_migrations') IS NOT NULL"
_LEDGER: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations (
  version    integer PRIMARY KEY,
  name       text NOT NULL,
  checksum   text NOT NULL,
  applied_at bigint NOT NULL
)
"""
_APPLIED: Final = "SELECT version, checksum FROM schema_migrations"
_RECORD: Final = """
INSERT INTO schema_migrations (version, name, checksum, applied_at)
VALUES ($1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
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
    for entry in resources.files("postroom.stores.postgres").joinpath("migrations").iterdir():
        if match := _FILE.match(entry.name):
            sql = entry.read_text(encoding="utf-8")
            found.append(Migration(version=int(match[1]), name=match[2], sql=sql))
    return sorted(found, key=lambda step: step.version)


def migrate(
    connection: Connection, address: Address, *, steps: Sequence[Migration] | None = None
) -> list[int]:
    """Apply the missing steps, all or none, and return their numbers; others who do it at once wait.

    Raises:
        SchemaTooNew: the schema has steps that this postroom does not know; nothing was changed.
        StoreCorrupt: a step that was applied differs from the one shipped.
    """
    steps = shipped_migrations() if steps is None else steps
    connection.begin()
    missing = _missing(_applied(connection), steps)
    connection.undo()
    if not missing:
        return []
    patient = Connection(replace(address, answer_within=_WITHIN, settings={**address.settings, **_SETTINGS}))
    try:
        return _migrated(patient, address.schema, steps)
    finally:
        patient.close()


def _migrated(connection: Connection, schema: str, steps: Sequence[Migration]) -> list[int]:
    connection.begin()
    # Held until the transaction ends, also when that is by the end of the process.
    connection.send(_LOCK, (f"postroom migrates {schema}",))
    connection.send(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    connection.send(_LEDGER)
    missing = _missing(_applied(connection), steps)
    for step in missing:
        connection.run_script(step.sql)
        connection.send(_RECORD, (step.version, step.name, step.checksum))
    connection.send("COMMIT")
    connection.wait()
    return [step.version for step in missing]


def _applied(connection: Connection) -> dict[int, str]:
    found = connection.send(_HAS_LEDGER)
    connection.wait()
    if not found.rows[0][0]:
        return {}
    ledger = connection.send(_APPLIED)
    connection.wait()
    return {row[0]: row[1] for row in ledger.rows}


def _missing(applied: dict[int, str], steps: Sequence[Migration]) -> list[Migration]:
    newest = max((step.version for step in steps), default=0)
    if applied and max(applied) > newest:
        raise SchemaTooNew(
            f"the database has schema {max(applied)}, this postroom knows up to {newest}", value=max(applied)
        )
    for step in steps:
        if step.version in applied and applied[step.version] != step.checksum:
            raise StoreCorrupt(
                f"schema step {step.version} was applied with other contents than the one shipped",
                value=step.version,
                remedy="install the postroom release that made this schema, or restore a backup",
            )
    return [step for step in steps if step.version not in applied]
