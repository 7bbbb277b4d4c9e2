"""The SQLite side of a copy between engines (`postroom.stores.moving`)."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from postroom.contracts.errors import StateError
from postroom.stores.migrations import UNFINISHED, refuse_old
from postroom.stores.moving import LEFT_OUT, Table
from postroom.stores.sql_transaction import Row, statements
from postroom.stores.sqlite.connection import connect, file_error, refuse_denied, translated
from postroom.stores.sqlite.copying import back_up
from postroom.stores.sqlite.left_log import refuse_damaged_log
from postroom.stores.sqlite.lock import OwnerLock
from postroom.stores.sqlite.migrate import migrate

_MARK: Final = "INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES (?, ?, '', 0)"

_BEGINS: Final = b"SQLite format 3\0"
_LOG_PAGES: Final = 10_000
"""Number of pages after which a checkpoint is run, as a server's writer does in normal operation."""


class SqliteSide:
    """The SQLite database of a copy: an open file, or an in-memory database that `mark` writes to a file."""

    def __init__(self, connection: sqlite3.Connection, name: str, *, to_make: Path | None = None) -> None:
        self._connection = connection
        self._to_make = to_make
        self.name = name

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def holds_anything(self) -> bool:
        """Return whether the database contains any table."""
        return bool(self._all("SELECT 1 FROM sqlite_schema LIMIT 1"))

    def refuse_unfit(self, *, is_target: bool) -> None:
        """Check that the database is a store of this release; a target may be an unfinished copy.

        Raises:
            StateError, SchemaTooNew, StoreCorrupt, WrongStore: The database is not a store of this release.
        """
        if not self._all("SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations'"):
            raise StateError(
                f"{self.name} belongs to another program",
                value=self.name,
                remedy="use another file",
            )
        applied = {row[0]: row[1] for row in self._all("SELECT version, checksum FROM schema_migrations")}
        if not (is_target and UNFINISHED in applied):
            refuse_old(applied, "sqlite")

    def tables(self) -> list[Table]:
        """Return all tables that exist on both engines, referenced tables first."""
        by_name = {
            name: self._table(name)
            for (name,) in self._all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
            if not name.startswith(LEFT_OUT)
        }
        ordered: dict[str, Table] = {}
        while left := by_name.keys() - ordered.keys():
            ready = [name for name in sorted(left) if self._refers_to(name) <= ordered.keys() | {name}]
            ordered |= {name: by_name[name] for name in ready}
        return list(ordered.values())

    def store_id(self) -> str:
        """Return the id of the store, or "" if the store has no id."""
        rows = self._all("SELECT store_id FROM store_identity")
        return str(rows[0][0]) if rows else ""

    def newest_message(self) -> int:
        """Return the highest message number that the store has ever used."""
        [[newest]] = self._all("SELECT coalesce(max(id), 0) FROM messages")
        [[indexed]] = self._all("SELECT indexed_to FROM search_index_progress")
        return max(int(newest), int(indexed))

    def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        """Return up to `limit` rows of a table after the key `after`, in key order."""
        key, marks = ", ".join(table.key), ", ".join("?" * len(table.key))
        behind = "" if after is None else f"WHERE ({key}) > ({marks})"
        text = f"SELECT {', '.join(table.columns)} FROM {table.name} {behind} ORDER BY {key} LIMIT ?"  # noqa: S608
        return self._all(text, (*(after or ()), limit))

    def last_key(self, table: Table) -> Row | None:
        """Return the key of the last row of a table, or None if the table is empty."""
        order = ", ".join(f"{name} DESC" for name in table.key)
        rows = self._all(f"SELECT {', '.join(table.key)} FROM {table.name} ORDER BY {order} LIMIT 1")  # noqa: S608
        return rows[0] if rows else None

    def count(self, table: Table) -> int:
        """Return the number of rows of a table."""
        [[value]] = self._all(f"SELECT count(*) FROM {table.name}")  # noqa: S608
        return int(value)

    def copied_from(self) -> str | None:
        """Return the id of the source store if this database is an unfinished copy, or None."""
        rows = self._all("SELECT name FROM schema_migrations WHERE version = ?", (UNFINISHED,))
        return str(rows[0][0]) if rows else None

    def mark(self, store_id: str, tables: Sequence[Table]) -> None:
        """Empty tables and mark the database as an unfinished copy, in one transaction.

        An in-memory database is written to its file.
        """
        with self._transaction():
            for table in tables:
                self._connection.execute(f"DELETE FROM {table.name}")  # noqa: S608
            self._connection.execute(_MARK, (UNFINISHED, store_id))
        if self._to_make is not None:
            back_up(self._connection, self._to_make)
            with translated():
                self._connection.close()
                self._connection = _for_a_copy(self._to_make)

    def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Write rows to a table in one transaction."""
        marks = ", ".join("?" * len(table.columns))
        text = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({marks})"  # noqa: S608
        with self._transaction():
            self._connection.executemany(text, rows)

    def finish(self, newest_message: int) -> None:
        """Fill the indexes and remove the mark of an unfinished copy, in one transaction."""
        with self._transaction():
            for name in ("mail.index_search", "mail.index_threads", "mail.indexed"):
                self._connection.execute(statements("sqlite")[name].text, {"newest": newest_message})
            self._connection.execute("DELETE FROM schema_migrations WHERE version = ?", (UNFINISHED,))

    def _all(self, text: str, values: Sequence[object] = ()) -> list[Row]:
        with translated():
            return self._connection.execute(text, values).fetchall()

    def _table(self, name: str) -> Table:
        columns = self._all("SELECT name, type, pk FROM pragma_table_info(?) ORDER BY cid", (name,))
        key = [column for column, _, place in sorted(columns, key=lambda one: one[2]) if place]
        # The table has no primary key: use the first unique key whose columns always have a value.
        if not key:
            unique = 'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial ORDER BY name'
            [first, *_] = self._all(unique, (name,))
            of_index = "SELECT name FROM pragma_index_info(?) ORDER BY seqno"
            key = [column for (column,) in self._all(of_index, first)]
        return Table(
            name=name,
            columns=tuple(column for column, _, _ in columns),
            key=tuple(key),
            has_bytes=any(kind == "BLOB" for _, kind, _ in columns),
        )

    def _refers_to(self, name: str) -> set[str]:
        return {other for (other,) in self._all('SELECT "table" FROM pragma_foreign_key_list(?)', (name,))}

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextmanager
def opened(path: Path, *, now: int, is_target: bool, writes: bool) -> Iterator[SqliteSide]:
    """Open a database file for a copy, and lock the file until the context ends.

    A missing target is created by `mark`. If `writes` is False, a missing target is an empty in-memory store.

    Raises:
        StoreHeld: A server uses the file.
        StateError: The source does not exist, is older than this release, or belongs to another program; or
            the file is not a database.
        SchemaTooNew: A newer release wrote the file.
        WrongStore: The log of the database is damaged.
    """
    if not path.exists():
        if not is_target:
            raise StateError(f"no database at {path}", value=str(path), remedy="choose the database file")
        if not writes:
            with closing(SqliteSide(_new(now), str(path))) as side:
                yield side
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_denied(path)
    # Raise an error if a file is not a database, because its name is then probably wrong.
    if path.exists():
        try:
            with path.open("rb") as file:
                begins = file.read(len(_BEGINS))
        except OSError as error:
            raise file_error(error, path, is_read=True) from error
        if begins not in (_BEGINS, b""):
            raise StateError(
                f"{path} is not a SQLite database", value=str(path), remedy="choose the database file"
            )
    lock = OwnerLock(path)
    lock.acquire(now=now, purpose="copy")
    try:
        refuse_damaged_log(path)
        with translated(), closing(_side(path, now=now, is_target=is_target)) as side:
            yield side
    finally:
        lock.release()


def _side(path: Path, *, now: int, is_target: bool) -> SqliteSide:
    """Return the store in a file, or an empty store if the file does not exist yet.

    Raises:
        StateError, SchemaTooNew: As for `opened`.
    """
    if path.exists():
        side = SqliteSide(_for_a_copy(path), str(path))
        try:
            if not is_target or side.holds_anything():
                side.refuse_unfit(is_target=is_target)
                return side
        except BaseException:
            side.close()
            raise
        side.close()
    return SqliteSide(_new(now), str(path), to_make=path)


def shared_tables(now: int) -> list[Table]:
    """Return all tables that exist on both engines, referenced tables first."""
    with closing(SqliteSide(_new(now), "")) as side:
        return side.tables()


def _new(now: int) -> sqlite3.Connection:
    """Return an empty in-memory store."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, Path(":memory:"), now=now)
    return connection


def _for_a_copy(path: Path) -> sqlite3.Connection:
    connection = connect(path)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    return connection
