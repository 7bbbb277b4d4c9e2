"""Steps on threads and runs over an open transaction."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from postroom.contracts.budgets import Spending
from postroom.contracts.errors import DuplicateRecord, InvalidRecord, UnknownThread
from postroom.contracts.messages import DeliveryMode, Json, Message, PendingMessage
from postroom.contracts.run_stores import RunQuery, SubmissionFacts, ThreadQuery
from postroom.contracts.runs import RunRecord, RunStatus, Thread
from postroom.stores.codec import decode_json, encode
from postroom.stores.sqlite.runs import pending, rows
from postroom.stores.sqlite.runs.desk import page
from postroom.stores.sqlite.statements import load_statements

SQL = load_statements("threads")

_BOUNDLESS = b""
_LAST_BEFORE_SURROGATES, _FIRST_AFTER_SURROGATES, _LAST = 0xD7FF, 0xE000, 0x10FFFF


def load_thread(db: sqlite3.Connection, thread_id: str) -> Thread | None:
    """Return one thread."""
    row = db.execute(SQL["thread"], (thread_id,)).fetchone()
    return rows.thread(row) if row else None


def new_thread(thread_id: str, now: int, parent_thread_id: str | None = None) -> Thread:
    """Return a thread as it is before anything was said."""
    return Thread(id=thread_id, parent_thread_id=parent_thread_id, created_at=now, updated_at=now)


def thread_made(
    db: sqlite3.Connection, thread_id: str, now: int, parent_thread_id: str | None = None
) -> Thread:
    """Return the thread; a missing one is stored first.

    Raises:
        UnknownThread: it is missing and so is its parent.
    """
    found = load_thread(db, thread_id)
    if found is None:
        if parent_thread_id is not None and not _parent_of(db, parent_thread_id):
            raise _no_parent(parent_thread_id)
        found = new_thread(thread_id, now, parent_thread_id)
        _put(db, found)
    return found


def save_thread(db: sqlite3.Connection, thread: Thread) -> None:
    """Store a thread as given but for `message_count`.

    Raises:
        UnknownThread, InvalidRecord: as the port says.
    """
    ancestor = thread.parent_thread_id
    while ancestor is not None:
        if ancestor == thread.id:
            raise InvalidRecord(f"thread {thread.id!r} would be its own ancestor", value=thread.id)
        above = _parent_of(db, ancestor)
        if above is None:
            raise _no_parent(ancestor)
        ancestor = above[0]
    before = load_thread(db, thread.id)
    _put(db, replace(thread, message_count=before.message_count if before else 0))


def move_thread(db: sqlite3.Connection, thread: Thread) -> None:
    """Store what runs and messages change of a thread that exists."""
    values = {
        "id": thread.id,
        "active_run_id": thread.active_run_id,
        "open_run_id": thread.open_run_id,
        "latest_run_id": thread.latest_run_id,
        "latest_run_updated_at": thread.latest_run_updated_at,
        "message_count": thread.message_count,
        "updated_at": thread.updated_at,
    }
    db.execute(SQL["move_thread"], values)


def _put(db: sqlite3.Connection, thread: Thread) -> None:
    values = {name: getattr(thread, name) for name in Thread.__slots__}
    db.execute(SQL["put_thread"], {**values, "custom": encode(thread.custom)})


def _parent_of(db: sqlite3.Connection, thread_id: str) -> tuple[str | None] | None:
    """Return the parent's id in a row of its own; None when there is no such thread."""
    row: tuple[str | None] | None = db.execute(SQL["parent"], (thread_id,)).fetchone()
    return row


def _no_parent(thread_id: str) -> UnknownThread:
    return UnknownThread(f"no thread {thread_id!r}, the parent of another", value=thread_id)


def delete_thread(
    db: sqlite3.Connection, thread_id: str, children: Literal["detach", "reject", "cascade"]
) -> bool:
    """Remove a thread with its messages and runs; False when there is none.

    Raises:
        InvalidRecord: it has children and they are to prevent it.
    """
    if _parent_of(db, thread_id) is None:
        return False
    below = _children(db, thread_id)
    if below and children == "reject":
        raise InvalidRecord(f"thread {thread_id!r} has children", value=thread_id)
    gone = [thread_id]
    if children == "cascade":
        for one in gone:
            gone.extend(_children(db, one))
    db.execute(SQL["detach_children"], (thread_id,))
    for one in gone:
        for part in ("drop_messages", "drop_pending", "drop_runs", "drop_state", "drop_thread"):
            db.execute(SQL[part], (one,))
        db.execute(SQL["forget_thread"], {"thread_id": one})
    db.execute(SQL["forget_runs"])
    return True


def _children(db: sqlite3.Connection, thread_id: str) -> list[str]:
    return [row[0] for row in db.execute(SQL["children"], (thread_id,)).fetchall()]


def list_threads(db: sqlite3.Connection, query: ThreadQuery) -> tuple[Thread, ...]:
    """Return threads by id."""
    asked = _bounds(query.id_prefix, query.after, query.limit)
    statement = "threads"
    if query.resource_id is not None:
        statement = "threads_of_resource"
        asked["resource_id"] = query.resource_id
    if query.parent_thread_id is not None:
        statement = "threads_of_parent"
        asked.update(parent_thread_id=query.parent_thread_id or None, resource_id=query.resource_id)
    return tuple(map(rows.thread, db.execute(SQL[statement], asked).fetchall()))


def create_run(db: sqlite3.Connection, run: RunRecord, body: str, now: int) -> None:
    """Store a new run and move its thread's pointers; a missing thread is made.

    Raises:
        DuplicateRecord: a run with this id exists.
    """
    if db.execute(SQL["run"], (run.run_id,)).fetchone():
        raise DuplicateRecord(f"run {run.run_id!r} exists", value=run.run_id)
    thread = thread_made(db, run.thread_id, now)
    put_run(db, run, body)
    move_thread(db, thread.after(run))


def put_run(db: sqlite3.Connection, run: RunRecord, body: str) -> None:
    """Store or replace a run."""
    values = {
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "status": run.status.value,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "body": body,
    }
    db.execute(SQL["put_run"], values)


def load_run(db: sqlite3.Connection, run_id: str) -> RunRecord | None:
    """Return one run."""
    return _run(db, "run", run_id)


def latest_run(db: sqlite3.Connection, thread_id: str) -> RunRecord | None:
    """Return the thread's run with the newest `updated_at`, then the newest `created_at`."""
    return _run(db, "latest_run", thread_id)


def latest_runs(db: sqlite3.Connection, thread_id: str, limit: int) -> tuple[RunRecord, ...]:
    """Return the thread's newest runs, the newest first."""
    found = db.execute(SQL["latest_runs"], (thread_id, limit))
    return tuple(map(rows.run, found.fetchall()))


def _run(db: sqlite3.Connection, statement: str, name: str | None) -> RunRecord | None:
    row = db.execute(SQL[statement], (name,)).fetchone() if name else None
    return rows.run(row) if row else None


def list_runs(db: sqlite3.Connection, query: RunQuery) -> tuple[RunRecord, ...]:
    """Return runs by run id."""
    statuses = set(query.statuses) or set(RunStatus)
    asked = _bounds(query.id_prefix, query.after, query.limit)
    asked.update(thread_id=query.thread_id, statuses=encode(sorted(statuses)))
    open_ones = "" if RunStatus.DONE in statuses else "open_"
    of_thread = "" if query.thread_id is None else "_of_thread"
    found = db.execute(SQL[f"{open_ones}runs{of_thread}"], asked)
    return tuple(map(rows.run, found.fetchall()))


def submission_facts(db: sqlite3.Connection, thread_id: str, run_id: str | None) -> SubmissionFacts:
    """Return what a submission to the thread is decided on."""
    thread = load_thread(db, thread_id)
    named = _run(db, "run", run_id)
    if thread is None:  # what a thread has makes the thread
        return SubmissionFacts(thread=None, named_run=named)
    latest = latest_run(db, thread_id)
    started = latest
    if latest is not None and latest.status is RunStatus.CREATED:
        started = _run(db, "latest_started_run", thread_id)
    return SubmissionFacts(
        thread=thread,
        message_count=thread.message_count,
        pending=pending.waiting(db, thread_id),
        named_run=named,
        open_run=_run(db, "run_not_aside", thread.open_run_id),
        latest_run=latest,
        latest_started_run=started,
    )


def append_pending(
    db: sqlite3.Connection, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, now: int
) -> tuple[PendingMessage, ...]:
    """Add messages behind those that wait; a missing thread is made.

    Raises:
        InvalidRecord, DuplicateRecord: as the port says.
    """
    added = pending.append(db, thread_id, messages, mode, now)
    thread_made(db, thread_id, now)
    return added


def load_state(db: sqlite3.Connection, thread_id: str) -> dict[str, Json] | None:
    """Return what executors keep for the thread."""
    row = db.execute(SQL["state"], (thread_id,)).fetchone()
    return decode_json(row[0], where=f"the state of thread {thread_id!r}") if row else None


def put_state(db: sqlite3.Connection, thread_id: str, body: str) -> None:
    """Replace what executors keep for the thread."""
    db.execute(SQL["put_state"], (thread_id, body))


def spending(db: sqlite3.Connection, scopes: Sequence[str]) -> dict[str, Spending]:
    """Return what each scope has spent so far."""
    found = {}
    for scope in scopes:
        row = db.execute(SQL["spending"], (scope,)).fetchone() or (scope, 0, 0, 0, 0)
        found[scope] = Spending(scope=scope, runs=row[1], wall_ms=row[2], tokens=row[3], cost_micros=row[4])
    return found


def spend(db: sqlite3.Connection, spent: Spending) -> None:
    """Add to what a scope has spent."""
    db.execute(SQL["spend"], {name: getattr(spent, name) for name in Spending.__slots__})


def _bounds(prefix: str, after: str, limit: int) -> rows.Values:
    return {
        "low": max(prefix, after),
        "beyond": _beyond(prefix),
        "after": after,
        "limit": page(limit),
    }


def _beyond(prefix: str) -> str | bytes:
    """Return the first text that is greater than all that begin with a prefix."""
    for end in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[end])
        if point < _LAST:
            following = _FIRST_AFTER_SURROGATES if point == _LAST_BEFORE_SURROGATES else point + 1
            return prefix[:end] + chr(following)
    return _BOUNDLESS
