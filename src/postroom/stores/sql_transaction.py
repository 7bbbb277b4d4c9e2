"""What an open transaction of an engine does for the tables: runs named statements, synchronously."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, Self

from postroom.contracts.budgets import Spending

Dialect = Literal["sqlite", "postgres"]
OF_A_PROJECT: Final = "mail:"
"""So begins the key of a change that orders by a project; others order by a thread, or by nothing."""
Row = Sequence[Any]
"""Columns in the order of the statement: int, float, str, bytes or None."""
Values = Mapping[str, Any]
"""Values by parameter: int, bool (stored as 0 or 1), float, str, bytes, None, or a list of int or str."""
Look = tuple[str, Values]
"""A statement that writes nothing, and its values."""
Found = Mapping[tuple[Any, ...], list[Row]]
"""The rows that looks gave, by the statement and its values in their order."""


class SqlTransaction(Protocol):
    """One open transaction of one engine. Statements are named `<file>.<heading>`; see `stores.statements`.

    What only writes (`run`, `run_many`) waits for no answer on PostgreSQL: it is sent with the next look or
    with the commit, and an error in it undoes the change. So look first, decide, then write; no write is
    expected to fail.

    Every method raises StoreError when the engine fails, and the transaction is of no use then.
    """

    known: dict[tuple[Any, ...], list[Row]]
    """What looks gave, by statement and values, until something is written or locked; see `Tables`."""

    spent: dict[str, Spending]
    """The spending of scopes that a change has read under the lock of limits; each write to it is added.

    The changes of a group on PostgreSQL share it: they hold the lock until they are committed.
    """

    instant: int | None
    """The instant of the change, None until it is read.

    A change that is run again on the same answers keeps it: with another instant it would have to ask again.
    """

    @property
    def dialect(self) -> Dialect:
        """The engine, for the few who must know it."""
        ...

    def one(self, statement: str, values: Values = ...) -> Row | None:
        """Return the first row of a look, or of a write with RETURNING; None when there is none."""
        ...

    def all(self, statement: str, values: Values = ...) -> list[Row]:
        """Return every row."""
        ...

    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        """Return the rows of each look; on PostgreSQL they take one round trip together."""
        ...

    def run(self, statement: str, values: Values = ...) -> None:
        """Write, without waiting for an answer."""
        ...

    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        """Write once for each set of values, without waiting for an answer."""
        ...

    def changed(self, statement: str, values: Values = ...) -> int:
        """Write, and return how many rows that changed."""
        ...

    def lock(self, *names: str) -> None:
        """Keep every other change that locks one of these names out until this one has ended.

        A change locks before it looks at what it decides on, all its names in one call. SQLite runs one
        change at a time and does nothing here.
        """
        ...

    def wait_for_locks(self) -> None:
        """Return when the locks that were asked for are held; a look waits for them too."""
        ...


class Tables:
    """A part of an open transaction: its statements, its instant, its ids, and what it tells others."""

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
        """Return the same rows at another instant."""
        return type(self)(self._sql, lambda: now, self._tell, self._new_id)

    def _asked(self, looks: Iterable[Look]) -> Found:
        """Return what these looks find; they take one round trip.

        What this transaction has asked and not written since is known: a step that is decided on a thread
        and then written looks at its row once. Values are given as tuples where they are lists.
        """
        return asked(self._sql, looks)


def asked(sql: SqlTransaction, looks: Iterable[Look]) -> Found:
    """Return what these looks find, and know it until something is written or locked; see `Tables._asked`."""
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
