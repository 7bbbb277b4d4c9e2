"""Sessions of chats, and the threads that they were bound to, on SQLite."""

import sqlite3
from dataclasses import fields

from postroom.contracts.chat import MAX_INBOUND, ChatSession, SessionThread
from postroom.contracts.errors import DuplicateRecord, UnknownThread, VersionConflict
from postroom.stores.sqlite.chat import rows
from postroom.stores.sqlite.runs.desk import Desk
from postroom.stores.sqlite.runs.rows import Values
from postroom.stores.sqlite.statements import load_statements

SQL = load_statements("chat")

_COLUMNS = tuple(field.name for field in fields(ChatSession))


def load(db: sqlite3.Connection, session_key: str) -> ChatSession | None:
    """Return one session."""
    row = db.execute(SQL["session"], (session_key,)).fetchone()
    return rows.session(row) if row else None


def opened(db: sqlite3.Connection, values: Values, now: int) -> ChatSession:
    """Store a new session and its conversation; when there is one with this key, return that unchanged.

    Raises:
        DuplicateRecord: the thread is another session's.
    """
    known = load(db, values["session_key"])
    if known is not None:
        return known
    active_at = values["active_at"] or now
    made = {**values, "created_at": now, "updated_at": now, "active_at": active_at, "revision": 1}
    return _stored(db, made, now)


def put(db: sqlite3.Connection, values: Values, now: int) -> ChatSession:
    """Store a changed session, compared by its revision, and return it with the next one.

    Raises:
        UnknownThread, VersionConflict, DuplicateRecord: as the port says.
    """
    session_key, revision = values["session_key"], values["revision"]
    stored = load(db, session_key)
    if stored is None:
        raise UnknownThread(f"no session {session_key!r}", value=session_key)
    if stored.revision != revision:
        raise VersionConflict(
            f"session {session_key!r} is at revision {stored.revision}, not {revision}", value=session_key
        )
    changed = {**values, "created_at": stored.created_at, "updated_at": now, "revision": revision + 1}
    return _stored(db, changed, now)


def conversation(db: sqlite3.Connection, thread_id: str) -> SessionThread | None:
    """Return the conversation on this thread."""
    row = db.execute(SQL["conversation"], (thread_id,)).fetchone()
    return rows.conversation(row) if row else None


def _stored(db: sqlite3.Connection, values: Values, now: int) -> ChatSession:
    """Store a session, and its thread as a conversation of it with its title."""
    bound = conversation(db, values["thread_id"])
    if bound is not None and bound.session_key != values["session_key"]:
        raise DuplicateRecord(f"thread {bound.thread_id!r} is another session's", value=bound.thread_id)
    titled = db.execute(SQL["conversations_titled"], {**values, "limit": 1}).fetchone()
    if titled and titled[0] != values["thread_id"]:
        raise DuplicateRecord(
            f"another conversation has the title {values['title']!r}", value=values["title"]
        )
    db.execute(SQL["put_conversation"], {**values, "now": now})
    db.execute(SQL["put_session"], values)
    return rows.session(tuple(values[name] for name in _COLUMNS))


class SqliteChatSessions:
    """Sessions of chats in the file; every promise is that of the port."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._desk.identity

    async def load(self, session_key: str) -> ChatSession | None:
        """Return one session."""
        return await self._desk.look(lambda db: load(db, session_key))

    async def open(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a new session and its conversation; when there is one with this key, return that unchanged.

        It is made now, at revision 1; it was active when it says, or now where it does not.
        """
        values, at = _values(session), self._desk.at(now)
        return await self._desk.write(lambda db: opened(db, values, at))

    async def put(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a changed session, compared by its revision, and return it with the next one."""
        values, at = _values(session), self._desk.at(now)
        return await self._desk.write(lambda db: put(db, values, at))

    async def threads(
        self, session_key: str, *, title: str | None = None, limit: int = MAX_INBOUND
    ) -> tuple[SessionThread, ...]:
        """Return a session's conversations, the last active first; those of one title when it is given."""
        statement = SQL["conversations" if title is None else "conversations_titled"]
        values = {"session_key": session_key, "title": title, "limit": rows.page(limit)}
        found = await self._desk.look(lambda db: db.execute(statement, values).fetchall())
        return tuple(map(rows.conversation, found))

    async def thread(self, thread_id: str) -> SessionThread | None:
        """Return the conversation on this thread, whether a session is bound to it at present or not."""
        return await self._desk.look(lambda db: conversation(db, thread_id))

    async def sessions(self, *, after: str = "", limit: int = MAX_INBOUND) -> tuple[ChatSession, ...]:
        """Return sessions by key."""
        values = {"after": after, "limit": rows.page(limit)}
        return await self._desk.look(
            lambda db: tuple(map(rows.session, db.execute(SQL["sessions"], values).fetchall()))
        )


def _values(session: ChatSession) -> Values:
    """Return a session by column, as it is stored."""
    rows.refuse_unfit(session.title, session_key=session.session_key, thread_id=session.thread_id)
    values = {name: getattr(session, name) for name in _COLUMNS}
    return {**values, "source": rows.written(session.source), "settings": rows.written(session.settings)}
