"""Upgrades a schema, by applying all missing numbered steps in order in one transaction.

Servers of this release and of the previous one may use the schema at the same time. Therefore a step that
cannot lock a table at once is rolled back and tried again, so that users of the table wait at most half a
second.

Either any number of processes write to a schema, or one process uses it alone for a copy. Each connection
that writes holds a session lock for its whole life. A process that has lost its connections stops writing if
it finds that the schema is being copied. The work is divided among the servers of a schema by leases, not by
these locks.

An inspection reads the outline of the schema and finds its faults. An inspection has no time limit, uses its
own connection, and does not use indexes, because an index may be damaged.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from postroom.contracts import progress
from postroom.contracts.clock import elapsed_ms, milliseconds
from postroom.contracts.errors import StoreError, StoreHeld, StoreReadOnly, StoreUnavailable, WrongStore
from postroom.contracts.leases import SERVER, IsGone, nobody_is_gone
from postroom.log import get_logger
from postroom.stores import outline
from postroom.stores.migrations import Migration, missing_migrations, missing_tables, shipped_migrations
from postroom.stores.outline import Outline
from postroom.stores.postgres.connection import Address, Connection, quoted
from postroom.stores.postgres.errors import HELD_UP, Contended, grants
from postroom.stores.postgres.sql_transaction import PostgresTransaction, lock_number
from postroom.stores.sql_transaction import Row, Statement, statements

_LOG = get_logger(__name__)


_NAMES: Final = re.compile(r"(?:CREATE TABLE|RENAME TO) (?:IF NOT EXISTS )?(\w+)")
# One query on the catalog for any number of tables. The schema may contain unrelated tables. If it contains
# none of postroom's, missing rights show when the tables are created. The query names the schema, because a
# session has no current schema if the user may not use it.
LACKING: Final = Statement(
    name="store.lacking_rights",
    text="""
SELECT found.* FROM (
  WITH ours AS MATERIALIZED (
    SELECT c.oid, CAST(c.relname AS text) AS name, n.oid AS schema
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = $1::text AND c.relkind = 'r' AND c.relname = ANY ($2::text[])
  ), lacking AS (
    SELECT wanted, name FROM ours, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted
     WHERE NOT has_table_privilege(oid, wanted) AND (name <> 'schema_migrations' OR wanted = 'SELECT')
     UNION ALL
    SELECT 'USAGE', CAST(s.relname AS text)
      FROM ours JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = ours.oid
                                   AND d.deptype IN ('a', 'i')
           JOIN pg_class AS s ON s.oid = d.objid
     WHERE CASE s.relkind WHEN 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE') END
  )
  SELECT string_agg(DISTINCT wanted, ', ' ORDER BY wanted), min(name), count(DISTINCT name),
         EXISTS (SELECT 1 FROM ours WHERE NOT has_schema_privilege(schema, 'USAGE')),
         CAST(current_user AS text)
    FROM lacking
) AS found
""".strip(),
    parameters=("schema", "tables"),
    lists=frozenset(("tables",)),
)


def list_tables(steps: Sequence[Migration]) -> list[str]:
    """Return the names of all tables that schema steps create, and of the table of applied steps."""
    return sorted({"schema_migrations", *(name for step in steps for name in _NAMES.findall(step.sql))})


def refuse_without_rights(connection: Connection, schema: str, tables: Sequence[str]) -> None:
    """Check that the user may read and write the tables; missing tables are ignored.

    Raises:
        StoreReadOnly: A right is missing.
    """
    connection.begin()
    answer = connection.send(LACKING.text, (schema, tables))
    connection.wait()
    connection.undo()
    refuse_lacking(answer.rows[0], schema)


def refuse_lacking(found: Row, schema: str) -> None:
    """Check that the row of the statement `LACKING` names no missing rights.

    Raises:
        StoreReadOnly: The user lacks a right; the remedy grants all rights that are needed.
    """
    rights, table, count, has_no_use, user = found
    if not (count or has_no_use):
        return
    place, whom = quoted(schema), quoted(user)
    given_values = [f"GRANT USAGE ON SCHEMA {place} TO {whom}"] if has_no_use else []
    missing = [f"USAGE on the schema {schema}"] if has_no_use else []
    if count:
        given_values += grants(place, whom)
        tables = f"{table} and {count - 1} more" if count > 1 else table
        missing.append(f"{rights} on {tables} of the schema {schema}")
    wanted = {*(rights.split(", ") if count else ()), *(("USAGE",) if has_no_use else ())}
    raise StoreReadOnly(
        f"the user {user} lacks {', and '.join(missing)}",
        remedy=f"ask an administrator to run {'; '.join(given_values)}",
        details={"lacking": sorted(wanted)},
    )


_NOTICED: Final = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
"""Settings with which the server detects within a minute that the machine of a lock's holder is gone, and
releases the lock.
"""
_WRITERS_LOCK: Final = {
    True: "SELECT pg_advisory_lock($1::bigint)",
    False: "SELECT pg_advisory_lock_shared($1::bigint)",
}
_USED: Final = {True: "in use by another process", False: "being copied"}
_HOLDER: Final = """
SELECT coalesce(host(a.client_addr), 'the same machine'),
       to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
  FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND ((CAST(CAST(l.classid AS text) AS bigint) << 32) | CAST(CAST(l.objid AS text) AS bigint)) = $1::bigint
 LIMIT 1
"""


class Ownership:
    """Opens the connections over which a process writes to a schema."""

    def __init__(self, address: Address, *, alone: bool = False) -> None:
        self.address = address
        self._alone = alone

    def connect(self, number: int) -> Connection:
        """Open the connection of the writer `number`, and lock the schema for this writer.

        If another process uses the schema alone, wait up to 2 seconds for the end of its connection.

        Raises:
            StoreHeld: Another process uses the schema alone.
            ConfigError, StoreUnavailable: The connection failed.
        """
        if self.address.direct_dsn:
            return Connection(self.address)
        address = replace(self.address, settings={**_NOTICED, **self.address.settings})
        connection = Connection(address)
        try:
            self._lock(connection, lock_number(f"postroom writes {address.schema} {number}"))
        except BaseException:
            connection.close()
            raise
        return connection

    def _lock(self, connection: Connection, key: int) -> None:
        try:
            connection.send(_WRITERS_LOCK[self._alone], (key,))
            connection.wait()
        except StoreUnavailable as error:
            if error.details != HELD_UP:
                raise
            answer = connection.send(_HOLDER, (key,))
            connection.wait()
            where, since = answer.rows[0] if answer.rows else ("somewhere", "a moment ago")
            raise StoreHeld(
                f"the schema {self.address.schema} is {_USED[self._alone]} (from {where}, since {since})",
                value=self.address.schema,
                details={"from": where, "since": since},
            ) from error


WITHIN: Final = timedelta(hours=6)
SETTINGS: Final = {
    "statement_timeout": "0",
    "enable_seqscan": "on",
    "enable_hashjoin": "on",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_bitmapscan": "off",
}
_MAX_FAULTS: Final = 40
_PREPARABLE: Final = ("DELETE", "INSERT", "SELECT", "UPDATE", "WITH")
"""The first words of statements that PostgreSQL can prepare."""


def read_outline(tx: PostgresTransaction) -> Outline:
    """Return a description of the schema without its data."""
    return outline.read_outline(tx, lambda text: _number(tx, text))


def find_faults(tx: PostgresTransaction) -> list[str]:
    """Return the problems of a schema, about 40 at most.

    - missing tables and columns
    - unreadable rows and, with checksums, damaged pages
    - rows that violate a CHECK or a reference
    - indexes whose build did not finish

    Rows that an index lacks are not detected; PostgreSQL's `amcheck` detects them.

    Raises:
        WrongStore: The schema contains no tables.
    """
    tx.one("store.id")  # without this check, a schema without tables would have no faults
    texts = [
        statement.text
        for statement in statements("postgres").values()
        if statement.text.startswith(_PREPARABLE)
    ]
    there = [name for kind, name, _ in tx.all("outline.schema") if kind == "table"]
    faults = missing_tables("postgres", there, max((row[0] for row in tx.all("outline.steps")), default=0))
    refused = {_refusal(tx, partial(_prepare, tx, text)) for text in texts} - {""}
    named = [f'"{fault.split()[1]}" does not exist' for fault in faults]
    faults += sorted(value for value in refused if not any(name in value for name in named))
    del faults[_MAX_FAULTS:]
    for name, text in tx.all("outline.checks"):
        if len(faults) >= _MAX_FAULTS:
            break
        if broken := _refusal(tx, partial(_broken, tx, text)):
            faults.append(f"{name}: {broken}")
    return faults


def _refusal(tx: PostgresTransaction, look: Callable[[], str]) -> str:
    """Return the problem that a query finds, or the server's error; the transaction stays usable."""
    tx.connection.send("SAVEPOINT look")
    try:
        text = look()
    except StoreError as error:
        tx.connection.send("ROLLBACK TO SAVEPOINT look")
        text = error.message
    tx.connection.send("RELEASE SAVEPOINT look")
    return text


def _prepare(tx: PostgresTransaction, statement: str) -> str:
    """Let the server resolve all tables and columns of a statement without executing the statement."""
    tx.connection.send(f"PREPARE look AS {statement}")
    tx.connection.send("DEALLOCATE look")
    tx.connection.wait()
    return ""


def _broken(tx: PostgresTransaction, check: str) -> str:
    """Return a text with the number of rows that violate a check, or ""."""
    number = _number(tx, check)
    return f"{number} rows break it" if number else ""


def _number(tx: PostgresTransaction, text: str) -> int:
    answer = tx.connection.send(text)
    tx.connection.wait()
    return int(answer.rows[0][0])


_WITHIN: Final = timedelta(hours=6)
"""The time limit for a step, and for waiting until another process has upgraded."""
_SETTINGS: Final = {"statement_timeout": "0", "lock_timeout": "0"}
_GIVES_WAY: Final = "SET LOCAL lock_timeout = '500ms'"
"""The time that a step waits for a lock. It is a quarter of the lock timeout of other statements."""
_FIRST_PAUSE: Final = timedelta(milliseconds=500)
_MAX_PAUSE: Final = timedelta(seconds=30)

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
    """Apply all missing schema steps or none, and return their numbers; concurrent callers wait.

    `is_gone` returns whether a server has certainly exited. The leases of exited servers are ignored.

    Raises:
        WrongStore: The schema is missing or empty, and `may_begin` is False; nothing was changed.
        SchemaTooNew: The schema has unknown steps, and this release can no longer use it.
        StoreHeld: A running server could not continue after a step; nothing was changed.
        StoreCorrupt: An applied step differs from the step in this release.
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
        # Apply the missing steps when no other session locks a table that they change.
        until, pause = elapsed_ms() + milliseconds(_WITHIN), _FIRST_PAUSE
        while True:
            try:
                return _apply_steps(patient, address.schema, steps, is_gone)
            except (StoreUnavailable, Contended) as error:
                if elapsed_ms() > until or getattr(error, "details", HELD_UP) != HELD_UP:
                    raise
                _LOG.warning("schema.gives_way", reason=str(error), again_after=pause.total_seconds())
            patient.undo()
            threading.Event().wait(pause.total_seconds())
            pause = min(pause * 2, _MAX_PAUSE)
    finally:
        patient.close()


def _apply_steps(
    connection: Connection, schema: str, steps: Sequence[Migration], is_gone: IsGone
) -> list[int]:
    connection.begin()
    # The lock is held until the transaction ends, even if the process dies.
    connection.send(_LOCK, (f"postroom migrates {schema}",))
    answer = connection.send(_HAS_SCHEMA, (schema,))
    connection.wait()
    connection.send(_GIVES_WAY)
    if not answer.rows:  # IF NOT EXISTS would require the right to create an existing schema
        connection.send(f"CREATE SCHEMA {quoted(schema)}")
    connection.send(_LEDGER)
    missing = missing_migrations(applied_steps(connection), steps, needed=needed_step(connection))
    needed = max((step.after for step in missing), default=0)
    # A server that is just starting, or has stalled, detects this itself (`refuse_unfit`).
    up = servers_up(connection, is_gone) if needed else {}
    if without := {name: about for name, about in up.items() if int(about.get("schema") or 0) < needed}:
        raise StoreHeld(
            f"the schema cannot be upgraded while a server without schema step {needed} is running: "
            f"{_sessions_text(without)}",
            value=list(without),
            remedy="stop these servers, then restart this server",
        )
    for done, step in enumerate(missing):
        progress.tell(f"changing the schema, {step.name}: steps", done, len(missing))
        connection.run_script(step.sql)
        connection.send(_RECORD, (step.version, step.name, step.checksum, step.after))
    connection.send("COMMIT")
    connection.wait()
    return [step.version for step in missing]


def refuse_servers(connection: Connection, name: str, is_gone: IsGone) -> None:
    """Check that no running server has a lease on the schema.

    Raises:
        StoreHeld: A server is running.
    """
    connection.begin()
    up = servers_up(connection, is_gone)
    connection.undo()
    if up:
        raise StoreHeld(
            f"running servers use {name}: {_sessions_text(up)}",
            value=list(up),
            remedy=(
                "stop all of them and repeat the command; if this is a standby, wait until it has caught "
                "up with the primary"
            ),
        )


def servers_up(connection: Connection, is_gone: IsGone) -> dict[str, dict[str, Any]]:
    """Return the stored descriptions of the running servers, keyed by name."""
    if not _is_true(connection, _HAS_TABLE, "leases"):
        return {}
    answer = connection.send(_UP, (SERVER,))
    connection.wait()
    up = {name: json.loads(about) for name, about in answer.rows}
    return {name: about for name, about in up.items() if not is_gone(about)}


def _sessions_text(up: Mapping[str, Mapping[str, object]]) -> str:
    return ", ".join(
        f"{name} ({about['version']})" if about.get("version") else name for name, about in up.items()
    )


def refuse_unfit(connection: Connection, steps: Sequence[Migration]) -> None:
    """Check that a server can still use the schema; `steps` are the schema steps that the server knows.

    Raises:
        SchemaTooNew, StoreCorrupt: As for `missing_migrations`.
        WrongStore: As for `missing_migrations`, or a table has disappeared.
    """
    connection.begin()
    try:
        applied, needed = applied_steps(connection), needed_step(connection)
    finally:
        connection.undo()
    missing_migrations(applied, steps, needed=needed)


def applied_steps(connection: Connection) -> dict[int, str]:
    """Return the checksum of each applied schema step, keyed by number.

    The result is empty if the schema does not exist.
    """
    if not _is_true(connection, _HAS_TABLE, "schema_migrations"):
        return {}
    ledger = connection.send(_APPLIED)
    connection.wait()
    return {row[0]: row[1] for row in ledger.rows}


def needed_step(connection: Connection) -> int:
    """Return the newest schema step that a release must know to use the schema, or 0 if there is none."""
    if not _is_true(connection, _HAS_TABLE, "schema_migrations"):
        return 0
    answer = connection.send(_NEEDED)
    connection.wait()
    return int(answer.rows[0][0])


def _is_true(connection: Connection, question: str, *values: str) -> bool:
    answer = connection.send(question, values)
    connection.wait()
    return bool(answer.rows[0][0])
