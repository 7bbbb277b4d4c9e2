"""The PostgreSQL side of a copy between engines (`postroom.stores.moving`)."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Final

from postroom.contracts import progress
from postroom.contracts.errors import InvalidRecord, StateError, StoreUnavailable
from postroom.contracts.leases import IsGone, nobody_is_gone
from postroom.stores.mail import search_index
from postroom.stores.migrations import UNFINISHED, Migration, refuse_old, shipped_migrations
from postroom.stores.moving import Table
from postroom.stores.postgres.connection import Address, Connection, encoded, quoted
from postroom.stores.postgres.errors import ConnectionLost, Contended
from postroom.stores.postgres.schema import Ownership, applied_steps, migrate, refuse_servers
from postroom.stores.postgres.sql_transaction import PostgresTransaction
from postroom.stores.sql_transaction import Row, Statement

_WITHIN: Final = timedelta(hours=6)
_SETTINGS: Final = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
_NUMBERED: Final = """
SELECT table_name, column_name FROM information_schema.columns
 WHERE table_schema = $1::text AND is_identity = 'YES' ORDER BY 1
"""
_GO_ON: Final = (
    "SELECT setval(pg_get_serial_sequence($1::text, $2::text), greatest({least}, 1), {least} > 0)"
    " FROM (SELECT coalesce(max({column}), 0) AS newest FROM {table}) AS found"
)


class PostgresSide:
    """The PostgreSQL schema of a copy."""

    def __init__(self, connection: Connection, address: Address, name: str, *, is_made: bool) -> None:
        self._connection = connection
        self._address = address
        self._is_made = is_made
        self.name = name

    def store_id(self) -> str:
        """Return the id of the store, or "" if the store has no id."""
        rows = self._all("SELECT store_id FROM store_identity")
        return str(rows[0][0]) if rows else ""

    def newest_message(self) -> int:
        """Return the highest message number that the store has ever used."""
        sequence = "CAST(pg_get_serial_sequence('messages', 'id') AS regclass)"
        [[newest]] = self._all(f"SELECT coalesce(pg_sequence_last_value({sequence}), 0)")
        return int(newest)

    def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        """Return up to `limit` rows of a table after the key `after`, in key order."""
        key, count = ", ".join(table.key), len(table.key)
        marks = ", ".join(f"${place}" for place in range(1, count + 1))
        behind = "" if after is None else f"WHERE ({key}) > ({marks})"
        text = f"SELECT {', '.join(table.columns)} FROM {table.name} {behind} ORDER BY {key} LIMIT {limit}"  # noqa: S608
        return self._all(text, () if after is None else after, name=f"rows.{table.name}.{after is None}")

    def last_key(self, table: Table) -> Row | None:
        """Return the key of the last row of a table, or None if the table is empty."""
        order = ", ".join(f"{name} DESC" for name in table.key)
        rows = self._all(f"SELECT {', '.join(table.key)} FROM {table.name} ORDER BY {order} LIMIT 1")  # noqa: S608
        return rows[0] if rows else None

    def count(self, table: Table) -> int:
        """Return the number of rows of a table."""
        if not self._is_made:
            return 0
        [[value]] = self._all(f"SELECT count(*) FROM {table.name}")  # noqa: S608
        return int(value)

    def copied_from(self) -> str | None:
        """Return the id of the source store if this schema is an unfinished copy, or None."""
        if not self._is_made:
            return None
        rows = self._all("SELECT name FROM schema_migrations WHERE version = $1", (UNFINISHED,))
        return str(rows[0][0]) if rows else None

    def mark(self, store_id: str, tables: Sequence[Table]) -> None:
        """Empty tables and mark the schema as an unfinished copy; a missing schema is created."""
        emptied = "".join(f"DELETE FROM {table.name};\n" for table in tables)  # noqa: S608
        step = Migration(version=UNFINISHED, name=store_id, sql=emptied)
        migrate(self._connection, self._address, steps=[*shipped_migrations("postgres"), step])
        self._is_made = True

    def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Write rows to a table in one transaction.

        Raises:
            InvalidRecord: A text contains NUL or a lone surrogate; the error names the row.
        """
        marks = ", ".join(f"${place}" for place in range(1, len(table.columns) + 1))
        text = (
            f"INSERT INTO {table.name} ({', '.join(table.columns)}) OVERRIDING SYSTEM VALUE VALUES ({marks})"  # noqa: S608
        )
        statement = _statement(f"put.{table.name}", text)
        bound = list[list[bytes | None]]()
        for row in rows:
            try:
                bound.append(list(map(encoded, row)))
            except InvalidRecord as error:
                key = [str(part)[:80] for part in table.get_key(row)]
                raise InvalidRecord(
                    f"{error.message}, in the row {key} of {table.name}", value=key
                ) from error
        with self._transaction() as connection:
            for values in bound:
                connection.send_named(statement, values)

    def finish(self, newest_message: int) -> None:
        """Fill the indexes, set the number sequences, and remove the mark of an unfinished copy."""
        [[after]] = self._all("SELECT coalesce(max(message_id), 0) FROM message_words")
        while after is not None:
            progress.tell("filling the indexes: messages", after, newest_message)
            with self._transaction() as connection:
                after = search_index.add_words(PostgresTransaction(connection), after) or None
        with self._transaction() as connection:
            connection.send("SET LOCAL enable_seqscan = on")
            search_index.add_threads(PostgresTransaction(connection))
            for table, column in self._all(_NUMBERED, (self._address.schema,)):
                least = f"greatest(newest, {newest_message})" if table == "messages" else "newest"
                text = _GO_ON.format(least=least, column=column, table=table)
                connection.send(text, (f"{quoted(self._address.schema)}.{table}", column))
            connection.send("DELETE FROM schema_migrations WHERE version = $1", (UNFINISHED,))

    def _all(self, text: str, values: Sequence[object] = (), *, name: str = "") -> list[Row]:
        if name:
            answer = self._connection.send_named(_statement(name, text), list(map(encoded, values)))
        else:
            answer = self._connection.send(text, values)
        self._connection.wait()
        return answer.rows

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        self._connection.begin()
        try:
            yield self._connection
            self._connection.send("COMMIT")
            self._connection.wait()
        except BaseException:
            self._connection.undo()
            raise


@contextmanager
def opened(
    dsn: str, *, schema: str, name: str, is_target: bool, is_gone: IsGone = nobody_is_gone
) -> Iterator[PostgresSide]:
    """Open a schema for a copy, and lock the schema until the context ends.

    A missing target is created by `mark`. If a server has a lease, the server counts as running unless
    `is_gone` returns True.

    Raises:
        StoreHeld: A server or another process uses the schema.
        StateError: The source does not exist, or is older than this release. ConfigError, SchemaTooNew,
            StoreReadOnly, StoreUnavailable: As for `PostgresStore.open`.
        StoreUnavailable: The connection broke during the copy, which can be continued later.
    """
    # Leases are checked as well as locks: for a schema on a standby, servers hold the locks on its primary,
    # and behind a pooler there are no locks.
    address = Address(dsn=dsn, schema=schema, answer_within=_WITHIN, settings=_SETTINGS)
    try:
        with closing(Ownership(address, alone=True).connect(0)) as connection:
            applied = applied_steps(connection)
            if not is_target and not applied:
                raise StateError(
                    f"{name} contains no store",
                    value=schema,
                    remedy="choose the schema that contains the store",
                )
            if not is_target:
                refuse_servers(connection, name, is_gone)
            if applied and not (is_target and UNFINISHED in applied):
                refuse_old(applied, "postgres")
            yield PostgresSide(connection, address, name, is_made=bool(applied))
    except (ConnectionLost, Contended) as error:
        raise StoreUnavailable(
            f"the copy is incomplete, because the connection to {name} broke: {str(error).strip()}",
            value=name,
            remedy="check that the PostgreSQL server runs, then repeat the command: it continues the copy",
        ) from error


def _statement(name: str, text: str) -> Statement:
    return Statement(name=f"moving.{name}", text=text, parameters=(), lists=frozenset())
