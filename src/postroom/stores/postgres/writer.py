"""A thread that writes over one connection: changes of a group share a transaction, and a commit.

    callers ──▶ queue ──▶ BEGIN · changes · COMMIT, pipelined ──▶ answers

What a change writes is sent with the next look, so that a failure may be another change's than the one that
learns it. A group in which PostgreSQL refuses something is undone, and its changes are redone one by one.
So is one with a change that raises after it has written: changes look and decide first, so that hardly any
does, and a savepoint before each would cost all of them a fifth more. A connection that is lost before COMMIT
was sent has written nothing, and its changes are redone on a new one.

The first looks of a group are sent together, each behind the locks of its change, and waited for once: see
`PostgresTransaction`. A change that has a lock in common with one before it in the group looks anew, for that
one may have written; without a lock in common they may run at the same time on two connections anyway.

Only the first change of a group waits for locks. One behind it that would have to wait, while the group holds
locks of others, comes with the next group: so no two groups ever wait for each other.
"""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from postroom.contracts.errors import (
    CommitUnknown,
    PostroomError,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from postroom.log import get_logger
from postroom.stores.pending_changes import PendingChange, PendingChanges, answer, fail, no_stop_iteration
from postroom.stores.postgres.connection import Connection
from postroom.stores.postgres.errors import HELD_UP, ConnectionLost, Contended, unreachable
from postroom.stores.postgres.sql_transaction import LockHeld, PostgresTransaction

_LOG = get_logger(__name__)

TRIES: Final = 5
"""How often changes are tried that gave way to others, or whose connection was lost."""
LOOKS_AHEAD: Final = 2
"""How many looks of a change, one behind the other, are sent together with those of other changes."""
FIRST_PAUSE: Final = timedelta(milliseconds=50)
"""Before the second try to connect; it doubles from try to try."""
_END_WITHIN: Final = timedelta(seconds=5)

_Change = PendingChange[PostgresTransaction]


class _HasWritten(Exception):
    """A change of a group raised, or would have had to wait, and has written before."""


class Writer:
    """Runs changes one after another, in transactions that are durable before anybody is answered."""

    def __init__(self, connection: Connection, connect: Callable[[], Connection], *, name: str) -> None:
        """Write over a connection; `connect` makes another when it is lost."""
        self.pending = PendingChanges[PostgresTransaction]()
        self.groups = 0
        self.changes = 0
        self._connect = connect
        self._connection: Connection | None = connection
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what was handed in and end; what takes too long is cut off. Harmless when done twice."""
        self.pending.stop()
        self._thread.join(_END_WITHIN.total_seconds())
        self._closing.set()
        if self._thread.is_alive() and (connection := self._connection) is not None:
            connection.cut()
        self._thread.join()

    def _serve(self) -> None:
        while (first := self.pending.queue.get()) is not None:
            group: Sequence[_Change] = sorted(self.pending.group(first), key=lambda change: change.key)
            while group:
                left = self._commit(group)
                answer([change for change in group if change not in left])
                group = left
        self._disconnect()

    def _commit(self, group: Sequence[_Change]) -> Sequence[_Change]:
        """Commit a group; when some of it is refused or is to be undone, each change alone.

        Return what is left to do.
        """
        try:
            return self._commit_on_a_connection(group)
        except _HasWritten:
            pass
        except (PostroomError, Contended) as error:
            if len(group) == 1 or isinstance(error, CommitUnknown) or self._connection is None:
                fail(group, _told(error))
                return ()
        for change in group:
            change.value = change.error = None
            self._commit([change])
        return ()

    def _commit_on_a_connection(self, group: Sequence[_Change]) -> Sequence[_Change]:
        """Commit a group; again when the connection is lost before its end, or it gave way to others.

        A session may be read-only for ever, though the database no longer is: what it refuses is tried on a
        new one, and one that was just made is not kept either.
        """
        for number in range(TRIES):
            self._pause(number)
            is_new = self._connection is None
            try:
                return self._transact(self._connected(), group)
            except (ConnectionLost, StoreUnavailable) as error:
                if self._connection is not None and isinstance(error, StoreUnavailable):
                    raise  # the server is there and says so
                self._disconnect()
                failure: Exception = unreachable(error) if isinstance(error, ConnectionLost) else error
                if self._closing.is_set():
                    break  # it was cut off on purpose
            except StoreReadOnly as error:
                self._disconnect()
                if is_new:
                    raise
                failure = error
            except Contended as error:
                if len(group) > 1:
                    raise
                failure = error
        raise failure

    def _transact(self, connection: Connection, group: Sequence[_Change]) -> Sequence[_Change]:
        """Run a group in one transaction; return those of it that would have had to wait."""
        connection.begin()
        left: list[_Change] = []
        done: list[_Change] = []
        locked: set[str] = set()
        try:
            for change, transaction in zip(group, _begun(connection, group), strict=True):
                if left and change.key == left[-1].key:  # what has one key keeps its order
                    left.append(change)
                    continue
                if not locked.isdisjoint(transaction.locked):
                    transaction.forget()  # a change before may have written what it has looked at
                has_run = self._run(transaction, change, alone=len(group) == 1)
                locked |= transaction.locked
                (done if has_run else left).append(change)
        except _HasWritten:
            connection.undo()
            raise
        except (PostroomError, Contended) as error:
            connection.undo()
            if done or len(group) == 1 or getattr(error, "details", None) != HELD_UP:
                raise
            group[0].error = error  # nothing else was run yet: it is this one's
            return group[1:]
        if all(change.error is not None for change in done):
            connection.undo()
            return left
        self._end(connection)
        self.groups += 1
        self.changes += len(done)
        return left

    def _run(self, transaction: PostgresTransaction, change: _Change, *, alone: bool) -> bool:
        """Run a change within the transaction, and say whether it did not have to wait.

        Raises:
            _HasWritten: what it wrote is to be undone, and nothing that others wrote.
        """
        connection = transaction.connection
        change.value = change.error = None
        connection.has_written = False
        try:
            transaction.refuse_failed()
            change.value = change.run(transaction)
            if not transaction.may_wait:
                transaction.wait_for_locks()
        except ConnectionLost:
            raise
        except StopIteration:
            change.error = no_stop_iteration()
        except BaseException as error:  # handed to the caller: it is the caller's function that raised
            change.error = error
        had_to_wait = isinstance(transaction.failure, LockHeld)
        if transaction.failure is not None:
            change.error = None
            if not had_to_wait:
                raise transaction.failure
        if (had_to_wait or change.error is not None) and connection.has_written and not alone:
            raise _HasWritten
        return not had_to_wait

    def _end(self, connection: Connection) -> None:
        connection.send("COMMIT")
        try:
            connection.wait()
        except ConnectionLost as error:
            self._disconnect()
            raise CommitUnknown(f"the connection to PostgreSQL broke before it answered: {error}") from error
        except (PostroomError, Contended):
            connection.undo()
            raise

    def _connected(self) -> Connection:
        if self._connection is not None:
            self._connection.refuse_lost()
            return self._connection
        self._connection = self._connect()
        _LOG.info("store.reconnected")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _pause(self, number: int) -> None:
        """Wait before another try, unless the connection is sound."""
        if number and self._connection is None:
            self._closing.wait(FIRST_PAUSE.total_seconds() * 2 ** (number - 1))


def _begun(connection: Connection, group: Sequence[_Change]) -> list[PostgresTransaction]:
    """Return the transaction of each change; the first looks of most are known, after one wait."""
    begun = [PostgresTransaction(connection, may_wait=change is group[0]) for change in group]
    first_of_key = {change.key: number for number, change in reversed(list(enumerate(group))) if change.key}
    ahead = [(group[number], begun[number]) for number in first_of_key.values()] if len(group) > 1 else []
    for _ in range(LOOKS_AHEAD):
        for change, transaction in ahead:
            if transaction.failure is None:
                transaction.run_ahead(change.run)
        connection.wait()
        for _, transaction in ahead:
            transaction.arrive()
    return begun


def _told(error: PostroomError | Contended) -> StoreError | PostroomError:
    if isinstance(error, Contended):
        told = StoreUnavailable(f"PostgreSQL is too busy with the same rows: {error}")
        told.__cause__ = error
        return told
    return error
