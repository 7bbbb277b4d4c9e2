"""Upgrades a schema, one numbered step after another, in one transaction.

Servers of this release and of the previous one may use it at the same time. Therefore a step that cannot lock
a table at once retries: users of the table wait at most half a second for it.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from postroom.contracts import progress
from postroom.contracts.clock import elapsed_ms, milliseconds
from postroom.contracts.errors import StoreHeld, StoreUnavailable, WrongStore
from postroom.contracts.leases import SERVER, IsGone, nobody_is_gone
from postroom.log import get_logger
from postroom.stores.migrations import Migration, missing_migrations, shipped_migrations
from postroom.stores.postgres.connection import Address, Connection, quoted
from postroom.stores.postgres.errors import HELD_UP, Contended

_LOG = get_logger(__name__)

_WITHIN: Final = timedelta(hours=6)
"""Time limit of a step, and of waiting for another process that upgrades."""
_SETTINGS: Final = {"statement_timeout": "0", "lock_timeout": "0"}
_GIVES_WAY: Final = "SET LOCAL lock_timeout = '500ms'"
"""A quarter of the time after which other statements that wait for a row or table fail."""
_FIRST_PAUSE: Final = timedelta(milliseconds=500)
_LONGEST_PAUSE: Final = timedelta(seconds=30)

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0))"
_HAS_SCHEMA: Final = "SELECT 1 FROM pg_namespace WHERE nspname = $1::text"
_HAS_TABLE: Final = "SELECT to_regclass($1::text) IS NOT NULL"
_LEDGER: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations (
  version    integer PRIMARY KEY,
  name       text NOT NULL,
  checksum   text NOT NULL,
  applied_at bigint NOT NULL,
  after      integer
)
"""
_APPLIED: Final = "SELECT version, checksum FROM schema_migrations"
_NEEDED: Final = "SELECT coalesce(max(coalesce(after, version)), 0) FROM schema_migrations"
_RECORD: Final = """
INSERT INTO schema_migrations (version, name, checksum, applied_at, after)
VALUES ($1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $4)
"""
_UP: Final = """
SELECT substr(name, length($1::text) + 1), CAST(about AS text) FROM leases
 WHERE starts_with(name, $1::text) AND until > extract(epoch FROM clock_timestamp()) * 1000
 ORDER BY name
"""


def migrate(
    connection: Connection,
    address: Address,
    *,
    steps: Sequence[Migration] | None = None,
    may_begin: bool = True,
    is_gone: IsGone = nobody_is_gone,
) -> list[int]:
    """Apply the missing steps, all or none, and return their numbers; concurrent callers wait.

    `is_gone` returns whether a server has surely ended, from its description of itself: its lease no longer
    counts.

    Raises:
        WrongStore: The schema is missing or empty, and `may_begin` is False; nothing was changed.
        SchemaTooNew: The schema has unknown steps, and this release can no longer use it.
        StoreHeld: A running server could not continue after a step; nothing was changed.
        StoreCorrupt: An applied step differs from the one shipped.
    """
    steps = shipped_migrations("postgres") if steps is None else steps
    connection.begin()
    applied = applied_steps(connection)
    missing = missing_migrations(applied, steps, needed=needed_step(connection))
    connection.undo()
    if not (applied or may_begin):
        raise WrongStore(
            f"the schema {address.schema} is missing or empty",
            value=address.schema,
            remedy=WrongStore.on_postgres,
        )
    if not missing:
        return []
    patient = Connection(replace(address, answer_within=_WITHIN, settings={**address.settings, **_SETTINGS}))
    try:
        return _migrated(patient, address.schema, steps, is_gone)
    finally:
        patient.close()


def _migrated(connection: Connection, schema: str, steps: Sequence[Migration], is_gone: IsGone) -> list[int]:
    """Apply the missing steps, as soon as no other session locks a table that they change."""
    until, pause = elapsed_ms() + milliseconds(_WITHIN), _FIRST_PAUSE
    while True:
        try:
            return _applied(connection, schema, steps, is_gone)
        except (StoreUnavailable, Contended) as error:
            if elapsed_ms() > until or getattr(error, "details", HELD_UP) != HELD_UP:
                raise
            _LOG.warning("schema.gives_way", reason=str(error), again_after=pause.total_seconds())
        connection.undo()
        threading.Event().wait(pause.total_seconds())
        pause = min(pause * 2, _LONGEST_PAUSE)


def _applied(connection: Connection, schema: str, steps: Sequence[Migration], is_gone: IsGone) -> list[int]:
    connection.begin()
    # Held until the transaction ends, also when that is by the end of the process.
    connection.send(_LOCK, (f"postroom migrates {schema}",))
    found = connection.send(_HAS_SCHEMA, (schema,))
    connection.wait()
    connection.send(_GIVES_WAY)
    if not found.rows:  # with IF NOT EXISTS the right to create one would be needed even so
        connection.send(f"CREATE SCHEMA {quoted(schema)}")
    connection.send(_LEDGER)
    missing = missing_migrations(applied_steps(connection), steps, needed=needed_step(connection))
    _refuse_servers_without(connection, max((step.after for step in missing), default=0), is_gone)
    for done, step in enumerate(missing):
        progress.tell(f"changing the schema, {step.name}: steps", done, len(missing))
        connection.run_script(step.sql)
        connection.send(_RECORD, (step.version, step.name, step.checksum, step.after))
    connection.send("COMMIT")
    connection.wait()
    return [step.version for step in missing]


def _refuse_servers_without(connection: Connection, step: int, is_gone: IsGone) -> None:
    """Refuse to continue while a server runs that does not know a step.

    A server that starts at this moment, or stalls, finds out by itself (`refuse_unfit`).

    Raises:
        StoreHeld: There is such a server.
    """
    up = servers_up(connection, is_gone) if step else {}
    if without := {name: about for name, about in up.items() if int(about.get("schema") or 0) < step}:
        raise StoreHeld(
            f"the schema cannot be upgraded while a server runs that lacks schema step {step}: "
            f"{_named(without)}",
            value=list(without),
            remedy="stop these servers, then start this server again",
        )


def refuse_servers(connection: Connection, name: str, is_gone: IsGone) -> None:
    """Refuse a schema with a running server, by its lease, because servers hold no locks on a standby.

    Raises:
        StoreHeld: A server is running.
    """
    connection.begin()
    up = servers_up(connection, is_gone)
    connection.undo()
    if up:
        raise StoreHeld(
            f"running servers use {name}: {_named(up)}",
            value=list(up),
            remedy=(
                "stop them all and repeat the command; on a standby, wait until it has caught up with "
                "the primary"
            ),
        )


def servers_up(connection: Connection, is_gone: IsGone) -> dict[str, dict[str, Any]]:
    """Return the description in the lease of each running server, by its name."""
    if not _is_true(connection, _HAS_TABLE, "leases"):
        return {}
    found = connection.send(_UP, (SERVER,))
    connection.wait()
    up = {name: json.loads(about) for name, about in found.rows}
    return {name: about for name, about in up.items() if not is_gone(about)}


def _named(up: Mapping[str, Mapping[str, object]]) -> str:
    return ", ".join(
        f"{name} ({about['version']})" if about.get("version") else name for name, about in up.items()
    )


def refuse_unfit(connection: Connection, steps: Sequence[Migration]) -> None:
    """Refuse a schema that a running server with these steps can no longer use.

    Raises:
        SchemaTooNew, StoreCorrupt: As for `missing_migrations`.
        WrongStore: As for `missing_migrations`, or a table vanished between two statements.
    """
    connection.begin()
    try:
        applied, needed = applied_steps(connection), needed_step(connection)
    finally:
        connection.undo()
    missing_migrations(applied, steps, needed=needed)


def applied_steps(connection: Connection) -> dict[int, str]:
    """Return the checksum of each applied step, by number; empty without a schema."""
    if not _is_true(connection, _HAS_TABLE, "schema_migrations"):
        return {}
    ledger = connection.send(_APPLIED)
    connection.wait()
    return {row[0]: row[1] for row in ledger.rows}


def needed_step(connection: Connection) -> int:
    """Return the step that a release must know to use the schema; 0 without such a step."""
    if not _is_true(connection, _HAS_TABLE, "schema_migrations"):
        return 0
    found = connection.send(_NEEDED)
    connection.wait()
    return int(found.rows[0][0])


def _is_true(connection: Connection, question: str, *values: str) -> bool:
    found = connection.send(question, values)
    connection.wait()
    return bool(found.rows[0][0])
