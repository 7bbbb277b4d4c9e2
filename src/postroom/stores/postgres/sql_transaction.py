"""Executes the statements of a transaction over a connection to PostgreSQL."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from itertools import takewhile
from typing import Final

from typing_extensions import override

from postroom.contracts.errors import PostroomError
from postroom.contracts.limits import LIMITS, Spending
from postroom.stores.postgres.connection import Answer, Bound, Connection, encoded
from postroom.stores.postgres.errors import ConnectionLost, Contended
from postroom.stores.sql_transaction import Dialect, Row, SqlTransaction, Statement, Values, statements

_Key = tuple[object, ...]
_NONE: Final[Values] = {}
_CHANGEABLE: Final = (list, set)
OF_ONE_THREAD: Final = frozenset(
    (
        "threads.add_run",
        "threads.put_run",
        "threads.move_thread",
        "threads.append_message",
        "dispatches.move",
        "dispatches.enqueue",
        "threads.spend",
    )
)
"""Writes of single rows that belong to a thread whose lock the writer holds.

`threads.spend` adds to its row, so that the order of such writes does not matter.
"""
LOOKS_OF_ONE_THREAD: Final = frozenset(
    (
        "dispatches.next_due",
        "dispatches.stale_queue",
        "dispatches.thread_state",
        "threads.named_messages",
        "threads.thread",
    )
)
"""Reads of rows that belong to a thread; a change makes them before it reads limits or budgets.

Each writer of these rows holds the lock of the thread. Therefore the answers stay valid for a change that
holds this lock, even if other threads change.
"""
_LOCK: Final = Statement(
    name="lock",
    text="SELECT pg_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS key",
    parameters=("keys",),
    lists=frozenset(("keys",)),
)
_TRY_LOCK: Final = replace(
    _LOCK, name="try_lock", text="SELECT pg_try_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS key"
)


class Deferred(BaseException):
    """A change that has written nothing must wait for an answer, and will be made again."""


class LockHeld(Exception):
    """Another transaction holds a lock for which this transaction must not wait."""


_FAILURES: Final = (PostroomError, Contended, ConnectionLost, LockHeld)


class PostgresTransaction(SqlTransaction):
    """Executes named SQL statements over one connection; the caller begins and ends the transaction.

    A change that catches an error and continues is not committed. A transaction that must not wait for a lock
    fails with LockHeld. While `may_defer` is set, a change that must wait before its first write fails with
    Deferred.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        may_wait: bool = True,
        only_first: bool = False,
        others: Mapping[str, int] | None = None,
        spent: dict[str, Spending] | None = None,
    ) -> None:
        self.connection = connection
        self._others = others
        """The locks of the completed changes in the same group, or None if the change belongs to no group."""
        self._written_to: int | None = None
        """The position of this run's last write among the writes of the connection."""
        self.known = {}
        self.spent = {} if spent is None else spent
        self.instant = None
        self.failure: Exception | None = None
        self.may_defer = False
        self.runs = 0
        """The number of runs of the change in its group."""
        self.seen = 0
        """The number of changes in its group that were complete at its last run."""
        self.shares_limits = False
        """Whether another change in the group has locked the limits, too."""
        self.locked: set[str] = set()
        """The names of the locks that this transaction has requested."""
        self._statements = statements("postgres")
        self._may_wait = may_wait
        self._only_first = only_first
        self._locks: list[Answer] = []
        self._is_trying = False
        """Whether other changes may hold one of the requested locks."""
        self._asked: list[tuple[_Key, Answer]] = []
        """The queries before the change's first write, in order, each with its statement and values."""
        self._place = 0
        """The number of queries in this run."""

    def begin(self, *, may_defer: bool, stale: Set[str]) -> None:
        """Begin a run of the change, and discard answers that may have changed.

        `stale` contains the names of the locks of changes that were completed since the last run.

        Raises:
            LockHeld: Another transaction holds a lock that it needs.
        """
        # Answers about the thread of this change stay valid if this change shares only the lock of the limits
        # with the completed changes.
        self._place = 0
        self._written_to = None
        self.known.clear()
        if stale - {LIMITS}:
            self._forget()
            self.instant = None  # the read may have preceded the change for which this one waited
        elif stale:
            self._asked = list(takewhile(lambda one: one[0][0] in LOOKS_OF_ONE_THREAD, self._asked))
        self.may_defer = may_defer
        self.connection.has_written = False
        if not self._have_locks():
            self.failure = LockHeld()
        self.refuse_failed()

    def _forget(self) -> None:
        """Discard the answer to the current query, and all later answers."""
        del self._asked[self._place :]

    @property
    @override
    def dialect(self) -> Dialect:
        return "postgres"

    @override
    def one(self, statement: str, values: Values = _NONE) -> Row | None:
        rows = self.all(statement, values)
        return rows[0] if rows else None

    @override
    def all(self, statement: str, values: Values = _NONE) -> list[Row]:
        return self.ask((statement, values))[0]

    @override
    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        return self._answers([(self._statements[name], values) for name, values in looks])

    @override
    def run(self, statement: str, values: Values = _NONE) -> None:
        self.known.clear()
        if statement not in OF_ONE_THREAD or self._others is None:
            self._send(statement, values)
            return
        value = self._statements[statement]
        self._prepare_write()
        if self._written_to is None:
            follows = not self.locked or not self._others.keys().isdisjoint(self.locked - {LIMITS})
            self._written_to = self.connection.last_write if follows else -1
        self._written_to = self.connection.write(value, _bound(value, values), self._written_to)

    @override
    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        for values in rows:
            self.run(statement, values)

    @override
    def changed(self, statement: str, values: Values = _NONE) -> int:
        self.known.clear()
        answer = self._send(statement, values)
        self.wait()
        return answer.changed

    @override
    def lock(self, *names: str) -> None:
        if self.locked.issuperset(names):
            return
        self.instant = None  # the read may have preceded a change for which this one waits
        self.known.clear()  # they were read before other changes were locked out
        self._forget()
        self.refuse_failed()
        may_wait = self._may_wait and not (self._only_first and self.locked)
        self.locked.update(names)
        self._is_trying = self._is_trying or not may_wait
        bound = [encoded(sorted(map(lock_number, names)))]
        self._locks.append(
            self.send(_LOCK, bound) if may_wait else self.connection.look(_TRY_LOCK, bound, is_lock=True)
        )

    @override
    def wait_for_locks(self) -> None:
        if self._locks:
            self.wait()

    def wait(self) -> None:
        """Execute the sent statements, and read their results."""
        self.refuse_failed()
        if self.may_defer and not self.connection.has_written:
            raise Deferred
        try:
            self.connection.wait()
            if not self._have_locks():
                raise LockHeld
        except _FAILURES as error:
            self.failure = error
            raise

    def _have_locks(self) -> bool:
        """Return whether all requested locks are held, after the server has answered."""
        locks, self._locks, self._is_trying = self._locks, [], False
        return not any(row[0] == 0 for answer in locks for row in answer.rows)

    def rows(self, statement: Statement, values: Sequence[object]) -> list[Row]:
        """Execute a statement that only PostgreSQL has, and return its rows."""
        named = replace(statement, parameters=tuple(map(str, range(len(values)))))
        return self._answers([(named, dict(zip(named.parameters, values, strict=True)))])[0]

    def _answers(self, looks: Sequence[tuple[Statement, Values]]) -> list[list[Row]]:
        requested_items, answers, is_known = self._asked, [], not self._locks
        for statement, values in looks:
            # The key of a query. Mutable values are copied, so that later changes do not affect the key.
            key = (
                statement.name,
                *[tuple(value) if isinstance(value, _CHANGEABLE) else value for value in values.values()],
            )
            if self._place < len(requested_items) and requested_items[self._place][0] == key:
                answer = requested_items[self._place][1]
            else:
                self._forget()
                answer, is_known = self._asked_for(statement, _bound(statement, values)), False
                requested_items.append((key, answer))
            self._place += 1
            answers.append(answer)
        if not is_known:
            # A change that decides on limits waits only for this answer, and writes before its next query.
            is_of_thread = all(statement.name in LOOKS_OF_ONE_THREAD for statement, _ in looks)
            self.may_defer &= is_of_thread or not self.shares_limits
            self.wait()
        return [answer.rows for answer in answers]

    def _prepare_write(self) -> None:
        self.refuse_failed()
        self._forget()
        if self._is_trying:
            self.wait()  # a write without the lock may have to wait for its holder

    def refuse_failed(self) -> None:
        """Raise the error of an earlier statement of this transaction again."""
        if self.failure is not None:
            raise self.failure

    def _asked_for(self, statement: Statement, bound: Bound) -> Answer:
        if not statement.text.startswith("SELECT"):
            self.known.clear()
            return self.send(statement, bound)
        self.refuse_failed()
        return self.connection.look(statement, bound)

    def _send(self, name: str, values: Values) -> Answer:
        statement = self._statements[name]
        return self.send(statement, _bound(statement, values))

    def send(self, statement: Statement, bound: Bound) -> Answer:
        """Send a statement with encoded values; its result is available after `wait`."""
        if statement.text.startswith("SELECT"):
            self.refuse_failed()
        else:
            self._prepare_write()
        try:
            return self.connection.send_named(statement, bound)
        except ConnectionLost as error:
            self.failure = error
            raise


def _bound(statement: Statement, values: Values) -> Bound:
    return list(map(encoded, map(values.__getitem__, statement.parameters)))


@lru_cache(maxsize=4_096)
def lock_number(name: str) -> int:
    """Return the number that stands for a name in advisory locks."""
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
