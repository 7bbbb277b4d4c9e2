"""Brings a schema to the newest state, one numbered step after another, in one transaction."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from postroom.contracts.errors import WrongStore
from postroom.stores.migrations import Migration, missing_migrations, shipped_migrations
from postroom.stores.postgres.connection import Address, Connection, quoted

_WITHIN: Final = timedelta(hours=6)
"""A step takes what it takes, and so does waiting for another process that is at it."""
_SETTINGS: Final = {"statement_timeout": "0", "lock_timeout": "0"}

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0))"
_HAS_SCHEMA: Final = "SELECT 1 FROM pg_namespace WHERE nspname = $1::text"
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


def migrate(
    connection: Connection,
    address: Address,
    *,
    steps: Sequence[Migration] | None = None,
    may_begin: bool = True,
) -> list[int]:
    """Apply the missing steps, all or none, and return their numbers; others who do it at once wait.

    Raises:
        WrongStore: there is no schema, or nothing in it, and not `may_begin`; nothing was changed.
        SchemaTooNew: the schema has steps that this postroom does not know; nothing was changed.
        StoreCorrupt: a step that was applied differs from the one shipped.
    """
    steps = shipped_migrations("postgres") if steps is None else steps
    connection.begin()
    applied = applied_steps(connection)
    missing = missing_migrations(applied, steps)
    connection.undo()
    if not (applied or may_begin):
        raise WrongStore(f"the schema {address.schema} is missing or empty", value=address.schema)
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
    found = connection.send(_HAS_SCHEMA, (schema,))
    connection.wait()
    if not found.rows:  # with IF NOT EXISTS the right to create one would be needed even so
        connection.send(f"CREATE SCHEMA {quoted(schema)}")
    connection.send(_LEDGER)
    missing = missing_migrations(applied_steps(connection), steps)
    for step in missing:
        connection.run_script(step.sql)
        connection.send(_RECORD, (step.version, step.name, step.checksum))
    connection.send("COMMIT")
    connection.wait()
    return [step.version for step in missing]


def applied_steps(connection: Connection) -> dict[int, str]:
    """Return the checksum of each step that was applied, by number; none where there is no schema."""
    found = connection.send(_HAS_LEDGER)
    connection.wait()
    if not found.rows[0][0]:
        return {}
    ledger = connection.send(_APPLIED)
    connection.wait()
    return {row[0]: row[1] for row in ledger.rows}
