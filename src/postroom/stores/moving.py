"""Copies a store to the other engine: all tables, row by row, with ids and cursors.

    marked as incomplete ─▶ copied, table by table ─▶ compared, row by row ─▶ indexes filled ─▶ mark removed

Rows are copied in key order, a few thousand per transaction, so that an interrupted copy can continue after
the last key in the target. Servers do not open a database that has the mark. A new target has the mark from
the start, so that no server can mistake it for an empty store. The source is only read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Protocol

from postroom.contracts import progress
from postroom.contracts.errors import StateError, StoreCorrupt
from postroom.stores.sql_transaction import Row

AT_ONCE: Final = 2_000
AT_ONCE_WITH_BYTES: Final = 20
"""Number of rows per transaction in tables with file contents."""
LEFT_OUT: Final = ("schema_migrations", "search_index_progress", "sqlite_", "messages_fts", "threads")
"""Prefixes of the tables that are not copied: applied steps, counters, and indexes, which are rebuilt."""
_ALWAYS_THERE: Final = ("probe", "store_identity")
"""The tables that may already contain a row in a new store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with equal columns on SQLite and on PostgreSQL, so that its rows can be copied."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """The columns of a unique key, in whose byte order the rows are read."""
    has_bytes: bool

    @property
    def at_once(self) -> int:
        """The number of rows that one transaction copies."""
        return AT_ONCE_WITH_BYTES if self.has_bytes else AT_ONCE

    def get_key(self, row: Row) -> Row:
        """Return the values of the key columns of a row."""
        return tuple(row[self.columns.index(name)] for name in self.key)


class Side(Protocol):
    """A database that is the source or the target of a copy.

    No other process uses the database during the copy.
    """

    name: str
    """The name of the database as people see it, without a password."""

    def store_id(self) -> str:
        """Return the id of the store, or "" if the store has no id."""
        ...

    def newest_message(self) -> int:
        """Return the highest message number that the store has ever used."""
        ...

    def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        """Return up to `limit` rows of a table after the key `after`, in key order."""
        ...

    def last_key(self, table: Table) -> Row | None:
        """Return the key of the last row of a table, or None if the table is empty."""
        ...

    def count(self, table: Table) -> int:
        """Return the number of rows of a table."""
        ...

    def copied_from(self) -> str | None:
        """Return the id of the source store if this database is an unfinished copy, or None."""
        ...

    def mark(self, store_id: str, tables: Sequence[Table]) -> None:
        """Empty the tables of the target and mark the target as an unfinished copy, in one transaction."""
        ...

    def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Write rows to a table of the target in one transaction.

        Raises:
            InvalidRecord: The engine cannot store a value.
        """
        ...

    def finish(self, newest_message: int) -> None:
        """Fill the indexes, set the number sequences, and remove the mark of an unfinished copy."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy."""

    rows: Mapping[str, int]
    """The number of compared rows, keyed by table."""
    went_on: bool
    """Whether the copy continued an interrupted one."""


def copy(source: Side, target: Side, tables: Sequence[Table]) -> Copied:
    """Copy a store into an empty database, or continue an interrupted copy.

    Raises:
        StateError: The target contains other data, and nothing was changed.
        StoreCorrupt: A copied row differs from its original; the target stays marked as unfinished.
        InvalidRecord: The other engine cannot store a value; the target stays marked as unfinished.
    """
    went_on = is_continued(source, target, tables)
    if not went_on:
        target.mark(source.store_id(), [table for table in tables if table.name in _ALWAYS_THERE])
    there = {table.name: source.count(table) for table in tables}
    total, copied = sum(there.values()), sum(target.count(table) for table in tables)
    for table in tables:
        after = target.last_key(table)
        while rows := source.rows(table, after, table.at_once):
            target.put(table, rows)
            after = table.get_key(rows[-1])
            copied += len(rows)
            progress.tell(f"copying {table.name}: rows", copied, total)
    counted: dict[str, int] = {}
    for table in tables:
        after, counted[table.name] = None, 0
        while True:
            ours, theirs = source.rows(table, after, table.at_once), target.rows(table, after, table.at_once)
            if ours != theirs:
                at = next(item or other for item, other in zip_longest(ours, theirs) if item != other)
                raise StoreCorrupt(
                    f"a row of {table.name} differs between {source.name} and {target.name}",
                    value=[str(part)[:80] for part in table.get_key(at)],
                    remedy="the source changed during the copy: drop the target and copy again",
                )
            counted[table.name] += len(ours)
            progress.tell(f"comparing {table.name}: rows", sum(counted.values()), total)
            if not ours:
                break
            after = table.get_key(ours[-1])
    progress.tell("filling the indexes")
    target.finish(source.newest_message())
    return Copied(rows=counted, went_on=went_on)


def is_continued(source: Side, target: Side, tables: Sequence[Table]) -> bool:
    """Return whether the target is an unfinished copy of the source; False means that the target is empty.

    Raises:
        StateError: The target contains other data, or the source has no id.
    """
    if not (store_id := source.store_id()):
        raise StateError(
            f"{source.name} has no store id",
            remedy="start `postroom up` from this release once with this database, then stop it",
        )
    unfinished = target.copied_from()
    if unfinished == store_id:
        return True
    if unfinished is not None:
        raise StateError(
            f"{target.name} contains an incomplete copy of another store",
            value=unfinished,
            remedy="complete that copy, or use an empty database",
        )
    filled = [table.name for table in tables if table.name not in _ALWAYS_THERE and target.count(table)]
    if filled and target.store_id() == store_id:
        raise StateError(
            f"{target.name} already contains this store, and that copy is complete",
            value=store_id,
            remedy="if this is the copy that you made, you are done; otherwise use an empty database or "
            "schema",
        )
    if filled:
        raise StateError(
            f"{target.name} is not empty: {', '.join(filled[:3])} have rows",
            value=filled,
            remedy="use an empty database or another schema",
        )
    return False
