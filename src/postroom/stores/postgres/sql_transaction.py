"""The statements of one open transaction over a connection to PostgreSQL."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final, Self

from typing_extensions import override

from postroom.contracts.errors import PostroomError
from postroom.stores.postgres.connection import Answer, Connection
from postroom.stores.postgres.errors import ConnectionLost, Contended
from postroom.stores.postgres.values import encoded
from postroom.stores.sql_transaction import Dialect, Row, SqlTransaction, Values
from postroom.stores.statements import Statement, statements

_NONE: Final[Values] = {}
_LOCK: Final = Statement(
    name="lock",
    text="SELECT pg_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS key",
    parameters=("keys",),
    lists=frozenset(("keys",)),
)
_TRY_LOCK: Final = replace(
    _LOCK, name="try_lock", text="SELECT pg_try_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS key"
)


class _Ahead(BaseException):
    """Ends a change that is run as far as its first look only."""


class LockHeld(Exception):
    """Another transaction has what is to be locked, and this one may not wait for it."""


_FAILURES: Final = (PostroomError, Contended, ConnectionLost, LockHeld)


class PostgresTransaction(SqlTransaction):
    """Runs named statements over one connection. It begins and ends nothing itself.

    What failed once fails again: a change that catches an error and goes on is not committed. One that may
    not wait for locks fails with LockHeld where it would.

    A change of a group is first run ahead: as far as its first look, which is sent with the locks before it
    and not waited for. Then all changes of the group wait once, and each is run from its beginning and finds
    there what was foreseen, under its own locks.
    """

    def __init__(self, connection: Connection, *, may_wait: bool = True) -> None:
        self.connection = connection
        self.known = {}
        self.failure: Exception | None = None
        self._statements = statements("postgres")
        self.may_wait = may_wait
        self._locks: list[Answer] = []
        self.locked: set[str] = set()
        """The names that it has asked to lock."""
        self._is_ahead = False
        self._foreseen: dict[tuple[object, ...], Answer] = {}
        """Looks that were sent ahead, by statement and values."""

    def run_ahead(self, change: Callable[[Self], object]) -> None:
        """Send the locks and the first look of a change, and wait for nothing."""
        self._is_ahead = True
        try:
            change(self)
        except BaseException:  # noqa: S110 - what it raises by itself it raises again when it is run
            pass
        finally:
            self._is_ahead = False
            self.known.clear()

    def arrive(self) -> None:
        """Learn whether what was locked ahead is held, after the wait."""
        if self.failure is None and not self._are_held():
            self.failure = LockHeld()

    def forget(self) -> None:
        """Look anew: what was foreseen may have changed."""
        self._foreseen.clear()

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
        answers, is_foreseen = [], not self._locks
        for name, values in looks:
            statement, bound = self._bound(name, values)
            key = statement.name, *bound
            # Once: one that takes a number gives another to who asks again.
            answer = (self._foreseen.get if self._is_ahead else self._foreseen.pop)(key, None)
            if answer is None:
                is_foreseen = False
                answer = self.send(statement, bound)
                if self._is_ahead:
                    self._foreseen[key] = answer
            answers.append(answer)
        if not is_foreseen:
            self.wait()
        return [answer.rows for answer in answers]

    @override
    def run(self, statement: str, values: Values = _NONE) -> None:
        self.known.clear()
        self._send(statement, values)

    @override
    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        self.known.clear()
        for values in rows:
            self._send(statement, values)

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
        self.known.clear()  # it was looked at before others were kept out
        self.forget()
        self.refuse_failed()
        self.locked.update(names)
        lock = _LOCK if self.may_wait else _TRY_LOCK
        self._locks.append(self.send(lock, [encoded(sorted(map(lock_number, names)))]))

    @override
    def wait_for_locks(self) -> None:
        if self._locks:
            self.wait()

    def wait(self) -> None:
        """Have done what was sent."""
        self.refuse_failed()
        if self._is_ahead:
            raise _Ahead
        try:
            self.connection.wait()
            if not self._are_held():
                raise LockHeld
        except _FAILURES as error:
            self.failure = error
            raise

    def _are_held(self) -> bool:
        """Say whether what was asked to be locked is, once that is answered."""
        locks, self._locks = self._locks, []
        return not any(row[0] == 0 for answer in locks for row in answer.rows)

    def rows(self, statement: Statement, values: Sequence[object]) -> list[Row]:
        """Return the rows of a statement that this engine alone has, with its values in order."""
        self.refuse_failed()
        answer = self.send(statement, [encoded(value) for value in values])
        self.wait()
        return answer.rows

    def refuse_failed(self) -> None:
        """Raise what failed, which the one who ran statements may have hidden."""
        if self.failure is not None:
            raise self.failure

    def _send(self, name: str, values: Values) -> Answer:
        return self.send(*self._bound(name, values))

    def _bound(self, name: str, values: Values) -> tuple[Statement, list[bytes | None]]:
        found = self._statements[name]
        return found, [encoded(values[parameter]) for parameter in found.parameters]

    def send(self, statement: Statement, bound: list[bytes | None]) -> Answer:
        """Send a statement with encoded values; the answer is there after `wait`."""
        self.refuse_failed()
        if not statement.text.startswith("SELECT"):
            if self._is_ahead:
                raise _Ahead
            self.forget()
            if self._locks and not self.may_wait:
                self.wait()  # what writes without the lock may wait for whoever has it
        try:
            return self.connection.send_named(statement, bound)
        except ConnectionLost as error:
            self.failure = error
            raise


def lock_number(name: str) -> int:
    """Return the number by which a name is locked."""
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
