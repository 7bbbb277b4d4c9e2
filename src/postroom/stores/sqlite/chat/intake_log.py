"""The lines of all chats on SQLite."""

import sqlite3
from collections.abc import Collection

from postroom.contracts.chat import (
    MAX_INBOUND,
    InboundDraft,
    InboundKey,
    InboundMessage,
    InboundMove,
    InboundStatus,
    Received,
)
from postroom.contracts.errors import InvalidRecord, UnknownMessage
from postroom.contracts.messages import Json
from postroom.stores.codec import decode_json, encode
from postroom.stores.sqlite.chat import rows
from postroom.stores.sqlite.runs.desk import Desk
from postroom.stores.sqlite.runs.rows import Values
from postroom.stores.sqlite.statements import load_statements

SQL = load_statements("chat")


def receive(db: sqlite3.Connection, values: Values) -> Received:
    """Keep a line as waiting; one that is known by its key is returned as it stands."""
    key = InboundKey(**{name: values[name] for name in InboundKey.__slots__})
    known = find(db, key)
    if known is not None:
        return Received(message=known, is_new=False)
    return Received(message=rows.line(db.execute(SQL["receive"], values).fetchone()), is_new=True)


def find(db: sqlite3.Connection, key: InboundKey) -> InboundMessage | None:
    """Return the line with this key."""
    row = db.execute(SQL["line"], (key.platform, key.account, key.chat_id, key.message_id)).fetchone()
    return rows.line(row) if row else None


def move_lines(
    db: sqlite3.Connection, inbound_ids: Collection[int], move: InboundMove, now: int
) -> tuple[InboundMessage, ...]:
    """Move all of these lines, or none, and return them by id.

    Raises:
        UnknownMessage, IllegalTransition: as the port says.
    """
    named = _named(inbound_ids)
    found = [rows.line(row) for row in db.execute(SQL["lines"], (named,)).fetchall()]
    unknown = set(inbound_ids) - {line.inbound_id for line in found}
    if unknown:
        raise UnknownMessage(f"no line {min(unknown)}", value=min(unknown))
    moved = tuple(line.moved(move, now=now) for line in found)
    values = {
        "inbound_ids": named,
        "status": move.status.value,
        "is_open": move.status.is_open,
        "thread_id": move.thread_id,
        "reason": move.reason,
        "now": now,
    }
    db.execute(SQL["move"], values)
    return moved


def edit(db: sqlite3.Connection, key: InboundKey, body: str, now: int) -> InboundMessage:
    """Replace the body of an open line and raise its revision; the same body again changes nothing.

    Raises:
        UnknownMessage, AlreadyConsumed: as the port says.
    """
    line = find(db, key)
    if line is None:
        raise UnknownMessage(f"no line {key.message_id!r} was received in this chat", value=key.message_id)
    edited = line.edited(decode_json(body, where="body"), now=now)
    if edited is line:
        return line
    db.execute(
        SQL["edit"], {"inbound_id": line.inbound_id, "body": body, "revision": edited.revision, "now": now}
    )
    return edited


def purge(db: sqlite3.Connection, older_than: int, limit: int) -> int:
    """Remove up to `limit` lines that are not open, those changed longest ago first."""
    gone = db.execute(SQL["purge"], {"older_than": older_than, "limit": max(limit, 0)}).rowcount
    db.execute(SQL["forget_purged"])
    return gone


def _named(inbound_ids: Collection[int]) -> str:
    """Return those ids that a line can have, as a list in JSON."""
    return encode([one for one in inbound_ids if 0 < one <= rows.NEWEST])


class SqliteIntakeLog:
    """The lines of all chats in the file; every promise is that of the port."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._desk.identity

    async def receive(self, draft: InboundDraft, *, now: int | None = None) -> Received:
        """Keep a line as waiting; one that is known by its key is returned as it stands, and stays so."""
        names = {name: getattr(draft.key, name) for name in InboundKey.__slots__}
        rows.refuse_unfit(draft.sender_id, **names, session_key=draft.session_key)
        values = {
            **names,
            "session_key": draft.session_key,
            "sender_id": draft.sender_id,
            "body": rows.written(draft.body),
            "now": self._desk.at(now),
        }
        return await self._desk.write(lambda db: receive(db, values))

    async def move(
        self, inbound_ids: Collection[int], move: InboundMove, *, now: int | None = None
    ) -> tuple[InboundMessage, ...]:
        """Move all of these lines, or none, and return them by id."""
        rows.refuse_unfit(move.thread_id, move.reason)
        asked, at = frozenset(inbound_ids), self._desk.at(now)
        return await self._desk.write(lambda db: move_lines(db, asked, move, at))

    async def edit(self, key: InboundKey, body: dict[str, Json], *, now: int | None = None) -> InboundMessage:
        """Replace the body of an open line and raise its revision; the same body again changes nothing."""
        text, at = rows.written(body), self._desk.at(now)
        return await self._desk.write(lambda db: edit(db, key, text, at))

    async def find(self, key: InboundKey) -> InboundMessage | None:
        """Return the line with this key."""
        return await self._desk.look(lambda db: find(db, key))

    async def messages(self, inbound_ids: Collection[int]) -> tuple[InboundMessage, ...]:
        """Return those of these lines that exist, by id; at most `MAX_INBOUND` ids."""
        asked = frozenset(inbound_ids)
        if len(asked) > MAX_INBOUND:
            raise InvalidRecord(
                f"{len(asked)} lines were asked for, {MAX_INBOUND} are the most", value=len(asked)
            )
        return await self._listed("readable_lines", (_named(asked),))

    async def open_messages(
        self,
        *,
        status: InboundStatus | None = None,
        session_key: str | None = None,
        after: int = 0,
        limit: int = MAX_INBOUND,
    ) -> tuple[InboundMessage, ...]:
        """Return open lines by id, of one of the open states and one session where that is asked."""
        values = {
            "status": status and status.value,
            "session_key": session_key,
            "after": max(0, min(after, rows.NEWEST)),
            "limit": rows.page(limit),
        }
        statement = "open_messages" if session_key is None else "open_lines_of_session"
        return await self._listed(statement, values)

    async def newest(self, platform: str, *, limit: int = MAX_INBOUND) -> tuple[InboundMessage, ...]:
        """Return the lines of a platform that were received last, the newest first, however they ended."""
        return await self._listed("newest", (platform, rows.page(limit)))

    async def counts(self) -> dict[InboundStatus, int]:
        """Count all lines by status, states without lines left out."""
        found = await self._desk.look(lambda db: db.execute(SQL["counts"]).fetchall())
        return {InboundStatus(status): number for status, number in found}

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Remove up to `limit` lines that are not open and were last changed before `older_than`."""
        return await self._desk.write(lambda db: purge(db, older_than, limit))

    async def _listed(
        self, statement: str, values: Values | tuple[object, ...]
    ) -> tuple[InboundMessage, ...]:
        return await self._desk.look(
            lambda db: tuple(map(rows.line, db.execute(SQL[statement], values).fetchall()))
        )
