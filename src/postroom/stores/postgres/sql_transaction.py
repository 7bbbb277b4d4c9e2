"""The statements of one open transaction over a connection to PostgreSQL."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from itertools import takewhile
from typing import Final

from typing_extensions import override

from postroom.contracts.budgets import Spending
from postroom.contracts.errors import PostroomError
from postroom.contracts.limits import LIMITS
from postroom.stores.postgres.connection import Answer, Connection
from postroom.stores.postgres.errors import ConnectionLost, Contended
from postroom.stores.postgres.values import Bound, encoded
from postroom.stores.sql_transaction import Dialect, Row, SqlTransaction, Values
from postroom.stores.statements import Statement, statements

_Key = tuple[object, ...]
_NONE: Final[Values] = {}
_CHANGEABLE: Final = (list, set)
OF_ONE_THREAD: Final = frozenset(
    (
        "threads.put_run",
        "threads.move_thread",
        "threads.append_message",
        "dispatches.move",
        "dispatches.enqueue",
        "threads.spend",
    )
)
"""Writes of one row each, which belongs to a thread: whoever writes it has the thread's lock.

`threads.spend` adds to its row, in whatever order it is written.
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
"""Looks at rows that belong to a thread, if a change asks them before it looks at limits or budgets.

Every writer of these rows holds the lock of the thread. So a change that holds this lock finds the same rows
again after changes of other threads.
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
    """A change that has written nothing yet waits for an answer: it is run again when that is there."""


class LockHeld(Exception):
    """Another transaction has what is to be locked, and this one may not wait for it."""


_FAILURES: Final = (PostroomError, Contended, ConnectionLost, LockHeld)


class PostgresTransaction(SqlTransaction):
    """Runs named statements over one connection. It begins and ends nothing itself.

    What failed once fails again: a change that catches an error and goes on is not committed. One that
    may not wait for locks fails with LockHeld where it would; or where it would after its first lock, when it
    may wait for that alone.

    While `may_defer` is set, a change that has written nothing does not wait: what it asks is sent, and its
    run ends with Deferred. Run again from its beginning, it asks the same and finds the answers there. So
    many changes wait once, and each decides on what it sees under its own locks.
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
        """What the changes of the group have locked that are done; None where it writes for itself alone."""
        self._written_to: int | None = None
        """The place of what this run wrote last, in what the connection is to write."""
        self.known = {}
        self.spent = {} if spent is None else spent
        self.instant = None
        self.failure: Exception | None = None
        self.may_defer = False
        self.runs = 0
        """How often the change was run in its group."""
        self.seen = 0
        """How many changes of its group were done when it was run last."""
        self.shares_limits = False
        """Whether another change of the group has locked the limits, too."""
        self.locked: set[str] = set()
        """The names that it has asked to lock."""
        self._statements = statements("postgres")
        self._may_wait = may_wait
        self._only_first = only_first
        self._locks: list[Answer] = []
        self._is_trying = False
        """Whether one of those may turn out to be held by others."""
        self._asked: list[tuple[_Key, Answer]] = []
        """The looks of its runs until something was written, by statement and values, in their order."""
        self._place = 0
        """How many looks this run has asked."""

    def begin(self, *, may_defer: bool, stale: Set[str]) -> None:
        """Begin a run of the change; changes that are done have locked the `stale` names since its last run.

        What it asked before may have another answer by now. If those changes share nothing with it but the
        limits, what it asked of its thread has not.

        Raises:
            LockHeld: another transaction has what it was to lock.
        """
        self._place = 0
        self._written_to = None
        self.known.clear()
        if stale - {LIMITS}:
            self._forget()
            self.instant = None  # it may lie before the change that was waited for
        elif stale:
            self._asked = list(takewhile(lambda one: one[0][0] in LOOKS_OF_ONE_THREAD, self._asked))
        self.may_defer = may_defer
        self.connection.has_written = False
        if not self._are_held():
            self.failure = LockHeld()
        self.refuse_failed()

    def _forget(self) -> None:
        """Ask anew from here on."""
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
        found = self._statements[statement]
        self._prepare_write()
        if self._written_to is None:
            follows = not self.locked or not self._others.keys().isdisjoint(self.locked - {LIMITS})
            self._written_to = self.connection.last_write if follows else -1
        self._written_to = self.connection.write(found, _bound(found, values), self._written_to)

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
        self.instant = None  # it may lie before a change that is waited for
        self.known.clear()  # it was looked at before others were kept out
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
        """Have done what was sent."""
        self.refuse_failed()
        if self.may_defer and not self.connection.has_written:
            raise Deferred
        try:
            self.connection.wait()
            if not self._are_held():
                raise LockHeld
        except _FAILURES as error:
            self.failure = error
            raise

    def _are_held(self) -> bool:
        """Say whether what was asked to be locked is, once that is answered."""
        locks, self._locks, self._is_trying = self._locks, [], False
        return not any(row[0] == 0 for answer in locks for row in answer.rows)

    def rows(self, statement: Statement, values: Sequence[object]) -> list[Row]:
        """Return the rows of a statement that this engine alone has, with its values in order."""
        named = replace(statement, parameters=tuple(map(str, range(len(values)))))
        return self._answers([(named, dict(zip(named.parameters, values, strict=True)))])[0]

    def _answers(self, looks: Sequence[tuple[Statement, Values]]) -> list[list[Row]]:
        asked, answers, is_known = self._asked, [], not self._locks
        for statement, values in looks:
            key = _key(statement, values)
            if self._place < len(asked) and asked[self._place][0] == key:
                answer = asked[self._place][1]
            else:
                self._forget()
                answer, is_known = self._asked_for(statement, _bound(statement, values)), False
                asked.append((key, answer))
            self._place += 1
            answers.append(answer)
        if not is_known:
            # Whoever decides on limits waits for the answer alone, and writes before the next one asks.
            is_of_thread = all(statement.name in LOOKS_OF_ONE_THREAD for statement, _ in looks)
            self.may_defer &= is_of_thread or not self.shares_limits
            self.wait()
        return [answer.rows for answer in answers]

    def _prepare_write(self) -> None:
        self.refuse_failed()
        self._forget()
        if self._is_trying:
            self.wait()  # what writes without the lock may wait for whoever has it

    def refuse_failed(self) -> None:
        """Raise what failed, which the one who ran statements may have hidden."""
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
        """Send a statement with encoded values; the answer is there after `wait`."""
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
    return [encoded(values[parameter]) for parameter in statement.parameters]


def _key(statement: Statement, values: Values) -> _Key:
    """Return what tells a look from others; a list that is changed later is another one."""
    return statement.name, *[
        tuple(value) if isinstance(value, _CHANGEABLE) else value for value in values.values()
    ]


@lru_cache(maxsize=4_096)
def lock_number(name: str) -> int:
    """Return the number by which a name is locked."""
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
