"""A thread that writes over one connection; a group of changes shares one transaction and its commit.

    callers ──▶ queue ──▶ BEGIN · changes · COMMIT, pipelined ──▶ answers

The writes of a change are sent together with the next query, so an error may be reported to a change that did
not cause it. If PostgreSQL rejects a statement of a group, the group is rolled back, and its changes are made
again one by one. The same happens if a change raises an exception after a write. An exception after a write
is rare, because changes read and decide before they write. A savepoint before each change would make all
changes a fifth slower. If the connection is lost before COMMIT was sent, nothing was written, and the changes
are made again on a new connection.

If a change in a group needs an answer before its first write, it is deferred: its queries are sent, and the
next change runs. When all changes are deferred or done, the thread waits once for all answers. Then the
deferred changes run again from their start. Changes can run again because a change depends only on the data
that it reads. If another change with the same lock was completed before that, a deferred change repeats its
queries, because their answers may have changed. Changes without a common lock are independent of each other,
as if they used two connections.

One writer does nearly all the work, and never waits for a lock. Changes that would have to wait are passed to
a second writer, the patient one. While the patient writer has a change with a key, later changes with this
key are passed to it, too. In a group of the patient writer, only the first change waits, before any other
change of the group holds a lock. Therefore two groups never wait for each other.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final

from postroom.contracts.errors import (
    CommitUnknown,
    InternalError,
    PostroomError,
    StoreReadOnly,
    StoreUnavailable,
)
from postroom.contracts.limits import LIMITS, Spending
from postroom.log import get_logger
from postroom.stores.engine import PendingChange, PendingChanges, answer, fail, no_stop_iteration
from postroom.stores.postgres.connection import Connection
from postroom.stores.postgres.errors import ConnectionLost, Contended, unreachable
from postroom.stores.postgres.sql_transaction import Deferred, LockHeld, PostgresTransaction

_LOG = get_logger(__name__)

TRIES: Final = 5
"""Maximum number of attempts for changes that a deadlock ended, or that lost their connection."""
RUNS: Final = 8
"""Maximum number of runs of a change in which its queries wait for answers together with those of its group.
"""
FIRST_PAUSE: Final = timedelta(milliseconds=50)
"""The pause before the second attempt to connect; it doubles with each attempt."""
_END_WITHIN: Final = timedelta(seconds=5)

_Change = PendingChange[PostgresTransaction]


class _OneByOne(Exception):
    """A group must be rolled back, and its changes must be made one by one."""


class Writer:
    """A thread that makes changes, in transactions that are durable before callers get results."""

    def __init__(
        self,
        connection: Connection,
        connect: Callable[[], Connection],
        *,
        name: str,
        patient: "Writer | None" = None,
    ) -> None:
        """Start the thread; if the connection is lost, `connect` opens a new connection.

        The writer `patient` takes over changes that must wait for a lock. Without `patient`, this writer
        waits.
        """
        self.pending = PendingChanges[PostgresTransaction]()
        self.groups = 0
        self.changes = 0
        self._patient = patient
        self._taken = Counter[str]()
        """The number of changes that were taken over from the other writer, by their keys."""
        self._gate = threading.Lock()
        self._connect = connect
        self._connection: Connection | None = connection
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the submitted changes and end the thread; a second call has no effect.

        A change that takes longer than 5 seconds is aborted.
        """
        self.pending.stop()
        self._thread.join(_END_WITHIN.total_seconds())
        self._closing.set()
        if self._thread.is_alive() and (connection := self._connection) is not None:
            connection.cut()
        self._thread.join()

    def _serve(self) -> None:
        while (first := self.pending.queue.get()) is not None:
            group: Sequence[_Change] = sorted(self.pending.group(first), key=attrgetter("key"))
            if self._patient is not None:
                group = self._patient.leave(group)
            while group:
                left = self._commit(group)
                done = [change for change in group if change not in left]
                if self._taken:
                    with self._gate:
                        self._taken -= Counter(change.key for change in done)
                answer(done)
                group = left if self._patient is None else self._patient.take(left)
        self._disconnect()

    def leave(self, group: Sequence[_Change]) -> Sequence[_Change]:
        """Take over changes whose key belongs to a change that was taken over before; return the rest."""
        with self._gate:
            taken = [change for change in group if change.key in self._taken]
        self.take(taken)
        return [change for change in group if change not in taken]

    def take(self, changes: Sequence[_Change]) -> Sequence[_Change]:
        """Take over changes that must wait for a lock; return an empty list."""
        with self._gate:
            self._taken.update(change.key for change in changes if change.key)
            for change in changes:
                self.pending.queue.put(change)
        return ()

    def _commit(self, group: Sequence[_Change]) -> Sequence[_Change]:
        """Commit a group, if necessary each change separately; return the changes that are not done yet."""
        try:
            return self._commit_on_a_connection(group)
        except _OneByOne:
            pass
        except (PostroomError, Contended) as error:
            if len(group) == 1 or isinstance(error, CommitUnknown) or self._connection is None:
                if isinstance(error, Contended):
                    failure = StoreUnavailable(
                        f"too many PostgreSQL transactions change the same rows at the same time: {error}"
                    )
                    failure.__cause__ = error
                    fail(group, failure)
                else:
                    fail(group, error)
                return ()
        # A defect: waiting callers get the error, and other callers continue.
        except Exception as error:
            self._disconnect()
            _LOG.exception("store.write_failed")
            fail(group, InternalError(f"a write failed because of a defect in postroom: {error!r}"))
            return ()
        left: list[_Change] = []
        for change in group:
            if change.key in {pending_change.key for pending_change in left}:
                left.append(change)
            else:
                left += self._commit([change])
        return left

    def _commit_on_a_connection(self, group: Sequence[_Change]) -> Sequence[_Change]:
        """Commit a group; after a deadlock or a lost connection, try again."""
        # A session may stay read-only after the database has become writable. Changes that such a session
        # rejects are made again on a new session.
        for number in range(TRIES):
            # Wait before the next attempt, unless the connection works.
            if number and self._connection is None:
                self._closing.wait(FIRST_PAUSE.total_seconds() * 2 ** (number - 1))
            is_new = self._connection is None
            try:
                if self._connection is None:
                    self._connection = self._connect()
                    _LOG.info("store.reconnected")
                else:
                    self._connection.refuse_lost()
                return self._transact(self._connection, group)
            except (ConnectionLost, StoreUnavailable) as error:
                if self._connection is not None and isinstance(error, StoreUnavailable):
                    raise  # the server responds and reports the cause
                self._disconnect()
                failure: Exception = unreachable(error) if isinstance(error, ConnectionLost) else error
                if self._closing.is_set():
                    break  # the connection was aborted on purpose
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
        """Commit a group in one transaction; return the changes that would have to wait for a lock."""
        connection.begin()
        work = _Work(connection, group, may_wait=self._patient is None)
        try:
            while work.run():
                connection.wait()
        except (_OneByOne, PostroomError, Contended):
            connection.undo()
            raise
        if all(change.error is not None for change in work.done):
            connection.undo()
            return work.left
        connection.send("COMMIT")
        try:
            connection.wait()
        except ConnectionLost as error:
            self._disconnect()
            raise CommitUnknown(
                f"the connection to PostgreSQL was lost before the answer arrived: {error}"
            ) from error
        except (PostroomError, Contended):
            connection.undo()
            raise
        self.groups += 1
        self.changes += len(work.done)
        return work.left

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Work:
    """A group of changes that are made in one transaction."""

    def __init__(self, connection: Connection, group: Sequence[_Change], *, may_wait: bool) -> None:
        self.done: list[_Change] = []
        self.left: list[_Change] = []
        """The changes that would have to wait for a lock, and the changes with the same keys."""
        self._locked: dict[str, int] = {}
        """The names that completed changes have locked, each with the number of changes that were complete
        then.
        """
        self._is_alone = len(group) == 1
        self._waits = group[0] if may_wait else None
        spent = dict[str, Spending]()
        self._waiting = [
            (
                change,
                PostgresTransaction(
                    connection,
                    may_wait=change is self._waits,
                    only_first=not self._is_alone,
                    others=self._locked if change.key else None,
                    spent=spent,
                ),
            )
            for change in group
        ]

    def run(self) -> bool:
        """Make the remaining changes; return whether some of them wait for answers."""
        # Changes that have locked the same name must see each other's writes. Therefore, from their second
        # run on, such changes are made one after another, and each waits for its own answers. Changes that
        # share only the lock of the limits still wait together for the queries about their threads.
        waiting, self._waiting = self._waiting, []
        lockers = Counter(name for _, transaction in waiting for name in transaction.locked)
        for change, transaction in waiting:
            shared = {name for name in transaction.locked if lockers[name] > 1}
            if change.key in {pending_change.key for pending_change in self.left}:
                self.left.append(change)
            # changes with the same key keep their order
            elif change.key in {pending_change.key for pending_change, _ in self._waiting}:
                self._waiting.append((change, transaction))
            else:
                transaction.shares_limits = LIMITS in shared
                self._run(change, transaction, may_defer=shared <= {LIMITS})
                transaction.connection.pass_on()  # the server works while the next change runs
        return bool(self._waiting)

    def _run(self, change: _Change, transaction: PostgresTransaction, *, may_defer: bool) -> None:
        """Make a change.

        Raises:
            _OneByOne: The change must be rolled back together with its group.
        """
        change.value = change.error = None
        stale = {name for name in transaction.locked if self._locked.get(name, 0) > transaction.seen}
        transaction.seen = len(self.done)
        transaction.runs += 1
        may_defer &= bool(change.key) and not self._is_alone and transaction.runs < RUNS
        try:
            transaction.begin(may_defer=may_defer, stale=stale)
            change.value = change.run(transaction)
            if not self._is_alone:
                transaction.wait_for_locks()
        except Deferred:
            self._waiting.append((change, transaction))
            return
        except ConnectionLost:
            raise
        except StopIteration:
            change.error = no_stop_iteration()
        except BaseException as error:  # the error goes to the caller, whose function raised it
            change.error = error
        is_held = isinstance(transaction.failure, LockHeld)
        if transaction.failure is not None:
            change.error = None
            if not is_held:
                raise transaction.failure
        if is_held or change.error is not None:
            has_written = transaction.connection.has_written or (is_held and change is self._waits)
            if has_written and not self._is_alone:
                raise _OneByOne
        (self.left if is_held else self.done).append(change)
        self._locked.update(dict.fromkeys(transaction.locked, len(self.done)))
