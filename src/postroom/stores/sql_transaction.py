"""The interface of an open transaction for tables: it runs named statements, synchronously."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, Self

from postroom.contracts.budgets import Spending

Dialect = Literal["sqlite", "postgres"]
OF_A_PROJECT: Final = "mail:"
"""Prefix of the key of a change that is ordered by project; others are ordered by thread, or not at all."""
Row = Sequence[Any]
"""Columns in the order of the statement: int, float, str, bytes or None."""
Values = Mapping[str, Any]
"""Values by parameter: int, bool (stored as 0 or 1), float, str, bytes, None, or a list of int or str."""
Look = tuple[str, Values]
"""A statement that writes nothing, and its values."""
Found = Mapping[tuple[Any, ...], list[Row]]
"""The rows of queries, by the statement and its values in their order."""


class SqlTransaction(Protocol):
    """One open transaction of one engine. Statements are named `<file>.<heading>`; see `stores.statements`.

    Pure writes (`run`, `run_many`) do not wait for an answer on PostgreSQL: they are sent with the next query
    or with the commit, and an error in one rolls the change back. So read first, decide, then write; no write
    is expected to fail.

    Every method raises StoreError if the engine fails; the transaction is then unusable.
    """

    known: dict[tuple[Any, ...], list[Row]]
    """The rows of queries, by statement and values, until the next write or lock; see `Tables`."""

    spent: dict[str, Spending]
    """The spending of scopes that a change has read under the lock of limits; each write is added to it.

    The changes of a group on PostgreSQL share it: they hold the lock until they are committed.
    """

    instant: int | None
    """The instant of the change, None until it is read.

    A change that runs again on the same answers keeps it; another instant would make it repeat its queries.
    """

    @property
    def dialect(self) -> Dialect:
        """The engine, for the few callers that depend on it."""
        ...

    def one(self, statement: str, values: Values = ...) -> Row | None:
        """Return the first row of a query, or of a write with RETURNING; None if there is none."""
        ...

    def all(self, statement: str, values: Values = ...) -> list[Row]:
        """Return every row."""
        ...

    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        """Return the rows of each query; on PostgreSQL they take one round trip together."""
        ...

    def run(self, statement: str, values: Values = ...) -> None:
        """Write, without waiting for an answer."""
        ...

    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        """Write once for each set of values, without waiting for an answer."""
        ...

    def changed(self, statement: str, values: Values = ...) -> int:
        """Write, and return the number of changed rows."""
        ...

    def lock(self, *names: str) -> None:
        """Lock out every other change that locks one of these names until the end of this one.

        A change locks before it reads what it decides on, all its names in one call. SQLite runs one change
        at a time, so that nothing happens here.
        """
        ...

    def wait_for_locks(self) -> None:
        """Return when the requested locks are held; a query waits for them too."""
        ...


class Tables:
    """A part of an open transaction: its statements, its instant, its ids, and its hints."""

    def __init__(
        self,
        sql: SqlTransaction,
        now: Callable[[], int],
        tell: Callable[..., None],
        new_id: Callable[[], str],
    ) -> None:
        self._sql = sql
        self._now = now
        self._tell = tell
        self._new_id = new_id

    def at(self, now: int) -> Self:
        """Return the same tables at another instant."""
        return type(self)(self._sql, lambda: now, self._tell, self._new_id)

    def _asked(self, looks: Iterable[Look]) -> Found:
        """Return the rows of these queries in one round trip.

        Answers that this transaction has read are cached until it writes: a step that is decided on a thread
        and then written reads its row once. Lists among the values must be given as tuples.
        """
        return asked(self._sql, looks)


def asked(sql: SqlTransaction, looks: Iterable[Look]) -> Found:
    """Return the rows of these queries, cached until the next write or lock; see `Tables._asked`."""
    known, found = sql.known, dict[tuple[Any, ...], list[Row]]()
    new, new_looks = list[tuple[Any, ...]](), list[Look]()
    for look in looks:
        key = look[0], *look[1].values()
        if key in known:
            found[key] = known[key]
        elif key not in new:
            new.append(key)
            new_looks.append(look)
    for key, rows in zip(new, sql.ask(*new_looks) if new else (), strict=True):
        known[key] = found[key] = rows
    return found
