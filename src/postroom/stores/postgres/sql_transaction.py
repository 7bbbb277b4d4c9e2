"""The statements of one open transaction over a connection to PostgreSQL."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

from typing_extensions import override

from postroom.contracts.errors import PostroomError
from postroom.stores.postgres.connection import Answer, Connection
from postroom.stores.postgres.errors import ConnectionLost, Contended
from postroom.stores.postgres.values import encoded
from postroom.stores.sql_transaction import Dialect, Row, SqlTransaction, Values
from postroom.stores.statements import Statement, statements

_NONE: Final[Values] = {}
_LOCK: Final = "SELECT pg_advisory_xact_lock($1::bigint)"
_TRY_LOCK: Final = "SELECT pg_try_advisory_xact_lock($1::bigint)"


class LockHeld(Exception):
    """Another transaction has what is to be locked, and this one may not wait for it."""


class PostgresTransaction(SqlTransaction):
    """Runs named statements over one connection. It begins and ends nothing itself.

    What failed once fails again: a change that catches an error and goes on is not committed. One that may
    not wait for locks fails with LockHeld where it would.
    """

    def __init__(self, connection: Connection, *, may_wait: bool = True) -> None:
        self.connection = connection
        self.failure: Exception | None = None
        self._statements = statements("postgres")
        self._may_wait = may_wait
        self._locks: list[Answer] = []

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
        answer = self._send(statement, values)
        self.wait()
        return answer.rows

    @override
    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        answers = [self._send(statement, values) for statement, values in looks]
        self.wait()
        return [answer.rows for answer in answers]

    @override
    def run(self, statement: str, values: Values = _NONE) -> None:
        self._send(statement, values)

    @override
    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        for values in rows:
            self._send(statement, values)

    @override
    def changed(self, statement: str, values: Values = _NONE) -> int:
        answer = self._send(statement, values)
        self.wait()
        return answer.changed

    @override
    def lock(self, *names: str) -> None:
        with self._noted():
            for key in sorted(lock_number(name) for name in names):
                self._locks.append(self.connection.send(_LOCK if self._may_wait else _TRY_LOCK, (key,)))

    @override
    def wait_for_locks(self) -> None:
        if self._locks:
            self.wait()

    def wait(self) -> None:
        """Have done what was sent."""
        with self._noted():
            self.connection.wait()
            locks, self._locks = self._locks, []
            if any(answer.rows[0][0] == 0 for answer in locks):
                raise LockHeld

    def rows(self, statement: Statement, values: Sequence[object]) -> list[Row]:
        """Return the rows of a statement that this engine alone has, with its values in order."""
        bound = [encoded(value) for value in values]
        with self._noted():
            answer = self.connection.send_named(statement, bound)
        self.wait()
        return answer.rows

    def refuse_failed(self) -> None:
        """Raise what failed, which the one who ran statements may have hidden."""
        if self.failure is not None:
            raise self.failure

    def _send(self, statement: str, values: Values) -> Answer:
        found = self._statements[statement]
        bound = [encoded(values[name]) for name in found.parameters]
        if self._locks and not self._may_wait and not found.text.startswith("SELECT"):
            self.wait()  # what writes without the lock may wait for whoever has it
        with self._noted():
            return self.connection.send_named(found, bound)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        self.refuse_failed()
        try:
            yield
        except (PostroomError, Contended, ConnectionLost, LockHeld) as error:
            self.failure = error
            raise


def lock_number(name: str) -> int:
    """Return the number by which a name is locked."""
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
