"""Steps on the committed messages of a thread over an open transaction."""

import sqlite3
from collections.abc import Sequence

from postroom.contracts.errors import DuplicateRecord
from postroom.contracts.messages import Message, MessageRecord
from postroom.contracts.run_stores import MessageQuery
from postroom.stores.codec import encode
from postroom.stores.sqlite.runs import rows
from postroom.stores.sqlite.runs.desk import page
from postroom.stores.sqlite.runs.thread_steps import SQL, load_thread

_NEWEST = 2**62


def append(
    db: sqlite3.Connection, thread_id: str, messages: Sequence[tuple[Message, str]], *, behind: int, now: int
) -> None:
    """Add committed messages, each with its text as it is stored, numbered from `behind + 1`.

    Raises:
        DuplicateRecord: one of the ids is committed already.
    """
    if not messages:
        return
    try:
        db.executemany(
            SQL["append_message"],
            [
                (thread_id, seq, said.id, _written_by(said), said.visibility.value, now, body)
                for seq, (said, body) in enumerate(messages, start=behind + 1)
            ],
        )
    except sqlite3.IntegrityError as error:
        found = committed_one(db, thread_id, [said.id or "" for said, _ in messages])
        if found is None:
            raise
        raise DuplicateRecord(f"message {found!r} is committed already", value=found) from error


def _written_by(message: Message) -> str | None:
    return message.metadata.run_id if message.metadata else None


def committed_one(db: sqlite3.Connection, thread_id: str, message_ids: Sequence[str]) -> str | None:
    """Return one of these ids that the thread has a committed message with."""
    row = db.execute(SQL["committed"], (thread_id, encode(list(message_ids)))).fetchone()
    return str(row[0]) if row else None


def load_messages(db: sqlite3.Connection, thread_id: str) -> tuple[Message, ...] | None:
    """Return all committed messages in order; None when the thread is not known."""
    found = db.execute(SQL["all_messages"], (thread_id,)).fetchall()
    if not found and load_thread(db, thread_id) is None:
        return None
    return tuple(rows.message(row).message for row in found)


def load_records(
    db: sqlite3.Connection, thread_id: str, message_ids: Sequence[str]
) -> tuple[MessageRecord, ...]:
    """Return those committed messages, in the order of the thread."""
    found = db.execute(SQL["named_messages"], (thread_id, encode(list(message_ids))))
    return tuple(map(rows.message, found.fetchall()))


def list_records(db: sqlite3.Connection, thread_id: str, query: MessageQuery) -> tuple[MessageRecord, ...]:
    """Return committed messages in order of `seq`."""
    asked = {
        "thread_id": thread_id,
        "run_id": query.run_id,
        "visibility": query.visibility and query.visibility.value,
        "after": query.after,
        "before": _NEWEST if query.before is None else query.before,
        "limit": page(query.limit),
    }
    of_run = "" if query.run_id is None else "_of_run"
    newest = "_newest" if query.newest_first else ""
    return tuple(map(rows.message, db.execute(SQL[f"messages{of_run}{newest}"], asked).fetchall()))


def delete_messages(db: sqlite3.Connection, thread_id: str) -> int:
    """Remove a thread's committed messages; numbering goes on."""
    return db.execute(SQL["drop_messages"], (thread_id,)).rowcount
