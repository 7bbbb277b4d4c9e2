"""The only thread that writes: it commits the changes of callers in groups and then answers.

    callers ──▶ queue ──▶ BEGIN · each change · COMMIT (one fsync) ──▶ answers ──▶ chores when due
                                  ├ a change raises before a write: the others continue
                                  ├ a change raises after a write: roll back, repeat with a SAVEPOINT each
                                  └ the disk is full: the log is checkpointed, and they are repeated once

After the answers, and while no caller waits, the thread does its chores: it updates the search index and the
threads, and checkpoints the log.

A change that raises is rolled back alone; the rest of its group is committed. A group whose commit fails is
rolled back, and every caller gets the error. The thread does not depend on the contents of its writes.
"""

import contextlib
import sqlite3
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from postroom.contracts.errors import StoreError, StoreFull, StoreUnavailable
from postroom.log import get_logger
from postroom.stores.pending_changes import PendingChange, PendingChanges, answer, fail
from postroom.stores.sqlite.connection import store_error
from postroom.stores.sqlite.own_files import OwnFiles
from postroom.stores.sqlite.sql_transaction import SqliteTransaction

_LOG = get_logger(__name__)

CHECKPOINT_AFTER = 1_500
"""Row changes after which the log is checkpointed while no caller waits."""
UPDATE_AFTER = 500
"""Row changes after which the search index and the threads are updated while no caller waits."""
LATEST = 10
"""Factor of these numbers at which a chore is done even under load, so that its work stays bounded."""


STEP_CHARACTERS = 500_000
"""Characters of bodies after which a transaction indexes no further message, to limit callers' wait."""
STEP = 1_500
"""Maximum messages of one transaction, during which no caller is answered: about 40 ms if an earlier process
left many, a few otherwise. More than the messages written between two steps under load, so that the gap stays
bounded."""


@dataclass(slots=True)
class _Chore:
    """Work that is due after a number of row changes."""

    name: str
    after: int
    run: Callable[[sqlite3.Connection], bool]
    done_at: int


_Change = PendingChange[SqliteTransaction]


class Writer:
    """Runs changes one after another in transactions that are durable before any caller is answered."""

    connection: sqlite3.Connection | None = None
    """None until the disk had space to open it."""
    _connection: sqlite3.Connection

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        opens_at_once: bool = True,
        files: OwnFiles | None = None,
    ) -> None:
        """Write over the connection that `connect` returns; it is called on the thread.

        Without `opens_at_once`, each change tries to open it, and fails with its error. With `files`, nothing
        is written after others have changed them.
        """
        self._connect = connect
        self._files = files
        self.opens_at_once = opens_at_once
        self.pending = PendingChanges[SqliteTransaction]()
        self._chores: list[_Chore] = []
        self.groups = 0
        self.changes = 0
        # The thread holds only a weak reference, so that an unused writer ends without being closed.
        weakref.finalize(self, self.pending.stop)
        self._thread = threading.Thread(
            target=_serve, args=(weakref.ref(self), self.pending), name="postroom-writer", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Accept no further work; the thread finishes submitted work, closes the connection and ends."""
        self.pending.stop()

    def close(self) -> None:
        """Stop, and wait for the end; a repeated call has no effect."""
        self.stop()
        self._thread.join()

    def open_connection(self) -> sqlite3.Connection:
        """Open the connection and finish the chores of an earlier process; on the thread."""
        self._connection = self.connection = connection = self._connect()
        fold = partial(_fold, files=self._files)
        self._chores = [
            _Chore("update_indexes", UPDATE_AFTER, _update_step, connection.total_changes - UPDATE_AFTER),
            _Chore("checkpoint", CHECKPOINT_AFTER, fold, connection.total_changes),
        ]
        if self._files is not None:
            self._files.note()
        self._do_chores()
        return connection

    def perform(self, first: _Change) -> None:
        """Commit a change together with waiting ones, answer them and do chores; on the thread."""
        group = self.pending.group(first)
        if self.connection is None and (failure := self._not_open()) is not None:
            fail(group, failure)
            answer(group)
            return
        if self._commit(group) < len(group):
            self._commit_refused(group)
        answer(group)
        self._do_chores()

    def _not_open(self) -> StoreError | None:
        """Open the connection; return why there is none. There was no room for one."""
        try:
            self.open_connection()
        except StoreError as error:
            return error
        _LOG.info("store.writes_again")
        return None

    def _commit(self, group: list[_Change]) -> int:
        """Run a group in one transaction and commit it; return how many of its changes did not raise."""
        count = 0
        try:
            if self._files is not None:
                self._files.refuse_changed()
            self._connection.execute("BEGIN IMMEDIATE")
            count = self._run_all(group)
            if not self._connection.in_transaction:
                # A full disk makes SQLite roll back the whole transaction: the changes before the failed one
                # are gone too, and their callers must get the error.
                fail(group, _what_undid(group))
                count = 0
            elif count:
                due = self._files and self._files.generations.is_due and self._files.generations
                if due:
                    due.begin(self._connection)
                self._connection.execute("COMMIT")
                if due:
                    due.keep()
                self.groups += 1
                self.changes += len(group)
        except sqlite3.Error as error:
            failure = store_error(error)
            failure.__cause__ = error
            fail(group, failure)
            count = 0
        except StoreError as error:  # of the files: nothing was begun
            fail(group, error)
        if self._connection.in_transaction:
            self._undo()
        return count

    def _commit_refused(self, group: list[_Change]) -> None:
        """Checkpoint the log and repeat the changes that found no space: they can then reuse the log.

        Therefore deletion works on a full disk, and after it new messages, in the freed pages.
        """
        refused = [change for change in group if isinstance(change.error, StoreFull)]
        if not refused or not self._folded():
            return
        for change in refused:
            change.value = change.error = None
        self._commit(refused)

    def _folded(self) -> bool:
        """Checkpoint the log into the database.

        Return whether all of it was written, which may lack space too.
        """
        try:
            if self._files is not None:
                self._files.refuse_changed()
            return _fold_all(self._connection, self._files)
        except (sqlite3.Error, StoreError):  # the callers learn what their own changes met
            return False

    def _run(self, change: _Change) -> None:
        # a separate transaction object, because earlier reads may be rolled back
        change.perform(SqliteTransaction(self._connection))
        if isinstance(error := change.error, sqlite3.Error):
            change.error = store_error(error)
            change.error.__cause__ = error

    def _run_all(self, group: list[_Change]) -> int:
        """Run changes in order; undo only the writes of a change that raises. Return how many did not.

        A refusal before the first write leaves nothing to roll back, and the other changes continue. A
        savepoint costs a copy of each page that is written after it. Therefore savepoints are made only if a
        change raised after a write: then the whole group is rolled back and run again.
        """
        count = 0
        for change in group:
            written = self._connection.total_changes
            self._run(change)
            count += change.error is None
            has_written = self._connection.total_changes != written
            if isinstance(change.error, StoreError) or (change.error is not None and has_written):
                break
        else:
            return count
        if len(group) == 1 or not self._connection.in_transaction:
            return count
        self._connection.execute("ROLLBACK")
        for change in group:
            change.value = change.error = None
        self._connection.execute("BEGIN IMMEDIATE")
        self._run_each(group)
        return sum(change.error is None for change in group)

    def _run_each(self, group: list[_Change]) -> None:
        connection = self._connection
        for change in group:
            connection.execute("SAVEPOINT change")
            self._run(change)
            if not connection.in_transaction:
                return
            if change.error is not None:
                connection.execute("ROLLBACK TO change")
            connection.execute("RELEASE change")

    def _undo(self) -> None:
        # If this failed, the next group could not begin and would report it to its callers.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

    def _do_chores(self) -> None:
        for chore in self._chores:
            while (done := self._connection.total_changes - chore.done_at) >= chore.after:
                if done < chore.after * LATEST and not self.pending.is_empty:
                    break
                if not self._do(chore):
                    chore.done_at = self._connection.total_changes
                elif not self.pending.is_empty:
                    break  # callers first; the rest stays due

    def _do(self, chore: _Chore) -> bool:
        """Do one step of a chore; return whether some of it is left."""
        try:
            if self._files is not None:
                self._files.refuse_changed()
            return chore.run(self._connection)
        except (sqlite3.Error, StoreError) as error:
            # No caller waits for a chore and nothing is lost: it is repeated when it is next due, and the
            # next caller who writes gets the disk's error.
            if self._connection.in_transaction:
                self._undo()
            _LOG.warning("store.chore_failed", chore=chore.name, reason=str(error))
            return False


def _fold(connection: sqlite3.Connection, *, files: OwnFiles | None) -> bool:
    _fold_all(connection, files)
    return False


def _fold_all(connection: sqlite3.Connection, files: OwnFiles | None) -> bool:
    """Checkpoint the log; return whether it was not empty and all of it was written."""
    with contextlib.nullcontext() if files is None else files.writing():
        [[_, pages, folded]] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return bool(0 < pages == folded)


def update_indexes(tx: SqliteTransaction) -> bool:
    """Index the next messages within the open transaction; return whether some are left."""
    [[newest]] = tx.all("mail.index_step", {"limit": STEP, "characters": STEP_CHARACTERS})
    if newest is None:
        return False
    for statement in ("mail.index_search", "mail.index_threads", "mail.indexed"):
        tx.run(statement, {"newest": newest})
    return is_behind(tx)


def is_behind(tx: SqliteTransaction) -> bool:
    """Return whether a message is not indexed yet."""
    return tx.one("mail.index_left") is not None


def _serve(known: "weakref.ref[Writer]", pending: PendingChanges[SqliteTransaction]) -> None:
    writer, connection = known(), None
    if writer is not None and writer.opens_at_once:
        connection = writer.open_connection()
    del writer
    while (change := pending.queue.get()) is not None:
        writer = known()
        if writer is None:
            break
        writer.perform(change)
        connection = writer.connection
        del writer, change
    if connection is not None:
        connection.close()


def _update_step(connection: sqlite3.Connection) -> bool:
    connection.execute("BEGIN IMMEDIATE")
    left = update_indexes(SqliteTransaction(connection))
    connection.execute("COMMIT")
    return left


def _what_undid(group: list[_Change]) -> StoreError:
    """Return the failure of the last change that ran."""
    errors = [change.error for change in group if change.error is not None]
    if errors and isinstance(errors[-1], StoreError):
        return errors[-1]
    return StoreUnavailable("the database undid the transaction")
