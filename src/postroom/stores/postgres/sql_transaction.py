"""The statements of one open transaction over a connection to PostgreSQL."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
_LOCK: Final = Statement(
    name="lock",
    text="SELECT pg_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS key",
    parameters=("keys",),
    lists=frozenset(("keys",)),
)
_TRY_LOCK: Final = replace(
    _LOCK, name="try_lock", text="SELECT pg_try_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS key"
)


class LockHeld(Exception):
    """Another transaction has what is to be locked, and this one may not wait for it."""


_FAILURES: Final = (PostroomError, Contended, ConnectionLost, LockHeld)


class PostgresTransaction(SqlTransaction):
    """Runs named statements over one connection. It begins and ends nothing itself.

    What failed once fails again: a change that catches an error and goes on is not committed. One that may
    not wait for locks fails with LockHeld where it would.
    """

    def __init__(self, connection: Connection, *, may_wait: bool = True) -> None:
        self.connection = connection
        self.known = {}
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
        self.known.clear()  # it was looked at before others were kept out
        self.refuse_failed()
        lock = _LOCK if self._may_wait else _TRY_LOCK
        self._locks.append(self._sent(lock, [encoded(sorted(map(lock_number, names)))]))

    @override
    def wait_for_locks(self) -> None:
        if self._locks:
            self.wait()

    def wait(self) -> None:
        """Have done what was sent."""
        self.refuse_failed()
        try:
            self.connection.wait()
            if self._locks:
                locks, self._locks = self._locks, []
                if any(row[0] == 0 for answer in locks for row in answer.rows):
                    raise LockHeld
        except _FAILURES as error:
            self.failure = error
            raise

    def rows(self, statement: Statement, values: Sequence[object]) -> list[Row]:
        """Return the rows of a statement that this engine alone has, with its values in order."""
        self.refuse_failed()
        answer = self._sent(statement, [encoded(value) for value in values])
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
        self.refuse_failed()
        return self._sent(found, bound)

    def _sent(self, statement: Statement, bound: list[bytes | None]) -> Answer:
        try:
            return self.connection.send_named(statement, bound)
        except ConnectionLost as error:
            self.failure = error
            raise


def lock_number(name: str) -> int:
    """Return the number by which a name is locked."""
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
