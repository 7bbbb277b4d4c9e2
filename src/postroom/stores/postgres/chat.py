"""Lines and sessions of chats on PostgreSQL, and all that the chat gateway keeps in one schema."""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from postroom.contracts.chat import (
    MAX_INBOUND,
    ChatSession,
    InboundDraft,
    InboundKey,
    InboundMessage,
    InboundMove,
    InboundStatus,
    Received,
    SessionThread,
)
from postroom.contracts.errors import (
    DuplicateRecord,
    InvalidRecord,
    StoreCorrupt,
    StoreUnavailable,
    UnknownMessage,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.messages import Json
from postroom.stores.codec import decode_json
from postroom.stores.postgres.chat_people import PostgresChatPeople, page, refuse_blank
from postroom.stores.postgres.database import TRIES
from postroom.stores.postgres.driver import Connection, Row
from postroom.stores.postgres.place import Place
from postroom.stores.postgres.rows import body as written
from postroom.stores.postgres.rows import kept, told
from postroom.stores.postgres.statements import load_statements

T = TypeVar("T")

_SQL = load_statements("chat")
_NEWEST = 2**63 - 1


class PostgresIntakeLog:
    """The lines of all chats in one schema, for many processes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._database = place.database

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def receive(self, draft: InboundDraft, *, now: int | None = None) -> Received:
        """Keep a line as waiting; one that is known by its key is returned as it stands, and stays so."""
        names = {name: getattr(draft.key, name) for name in InboundKey.__slots__}
        refuse_blank(**names, session_key=draft.session_key)
        values = *names.values(), draft.session_key, draft.sender_id, written(draft.body), self._place.at(now)
        for _ in range(TRIES):
            # Nothing comes back when another received it at this moment: the next look sees what it wrote.
            if found := await self._database.write(_SQL["receive"], *values):
                [[is_new, *row]] = found
                return Received(message=_line(row), is_new=is_new)
        raise StoreUnavailable("the line is received and removed by others again and again", value=names)

    async def move(
        self, inbound_ids: Collection[int], move: InboundMove, *, now: int | None = None
    ) -> tuple[InboundMessage, ...]:
        """Move all of these lines, or none, and return them by id."""
        asked, at = sorted(set(inbound_ids)), self._place.at(now)

        async def step(session: Connection) -> tuple[InboundMessage, ...]:
            found = await session.rows(_SQL["lock_lines"], _possible(asked), at)
            lines = [_line(row[1:]) for row in found]
            unknown = set(asked) - {line.inbound_id for line in lines}
            if unknown:
                raise UnknownMessage(f"no line {min(unknown)}", value=min(unknown))
            moved = tuple(line.moved(move, now=found[-1][0]) for line in lines)
            if any(line.status is not move.status for line in lines):
                values = move.status.value, move.thread_id, kept(move.reason), found[-1][0]
                await session.rows(_SQL["move"], asked, *values)
            return moved

        return await self._database.transact(step)

    async def edit(self, key: InboundKey, body: dict[str, Json], *, now: int | None = None) -> InboundMessage:
        """Replace the body of an open line and raise its revision; the same body again changes nothing."""
        text, at = written(body), self._place.at(now)
        fields = decode_json(text, where="body")

        async def step(session: Connection) -> InboundMessage:
            found = await session.rows(_SQL["lock_line"], *_named(key), at)
            if not found:
                raise UnknownMessage(
                    f"no line {key.message_id!r} was received in this chat", value=key.message_id
                )
            [[edited_at, *row]] = found
            line = _line(row)
            edited = line.edited(fields, now=edited_at)
            if edited is line:
                return line
            await session.rows(_SQL["edit"], line.inbound_id, text, edited.revision, edited_at)
            return edited

        return await self._database.transact(step)

    async def find(self, key: InboundKey) -> InboundMessage | None:
        """Return the line with this key."""
        found = await self._database.first(_SQL["line"], *_named(key))
        return None if found is None else _line(found)

    async def messages(self, inbound_ids: Collection[int]) -> tuple[InboundMessage, ...]:
        """Return those of these lines that exist, by id; at most `MAX_INBOUND` ids."""
        asked = set(inbound_ids)
        if len(asked) > MAX_INBOUND:
            raise InvalidRecord(
                f"{len(asked)} lines were asked for, {MAX_INBOUND} are the most", value=len(asked)
            )
        return await _listed(self._place, "line", "lines", (_possible(asked),), lambda row: _line(row[1:]))

    async def open_messages(
        self,
        *,
        status: InboundStatus | None = None,
        session_key: str | None = None,
        after: int = 0,
        limit: int = MAX_INBOUND,
    ) -> tuple[InboundMessage, ...]:
        """Return open lines by id, of one of the open states and one session where that is asked.

        Of lines that several callers receive at once, one with a lower id may come to light after one with a
        higher. Who pages by `after` sees it when he begins again from 0.
        """
        values: tuple[object, ...] = max(0, min(after, _NEWEST)), status and status.value, page(limit)
        statement = "open_messages"
        if session_key is not None:
            statement, values = "open_lines_of_session", (*values, session_key)
        return await _listed(self._place, "line", statement, values, lambda row: _line(row[1:]))

    async def newest(self, platform: str, *, limit: int = MAX_INBOUND) -> tuple[InboundMessage, ...]:
        """Return the lines of a platform that were received last, the newest first, however they ended."""
        return await _listed(
            self._place, "line", "newest", (platform, page(limit)), lambda row: _line(row[1:])
        )

    async def counts(self) -> dict[InboundStatus, int]:
        """Count all lines by status, states without lines left out."""
        return {InboundStatus(row[0]): row[1] for row in await self._database.read(_SQL["counts"])}

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Remove up to `limit` lines that are not open and were last changed before `older_than`."""
        [[gone]] = await self._database.write(_SQL["purge"], older_than, max(limit, 0))
        return int(gone)


class PostgresChatSessions:
    """Sessions of chats in one schema, for many processes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._database = place.database

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def load(self, session_key: str) -> ChatSession | None:
        """Return one session."""
        found = await self._database.first(_SQL["session"], session_key)
        return None if found is None else _session(found)

    async def open(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a new session and its conversation; when there is one with this key, return that unchanged.

        It is made now, at revision 1; it was active when it says, or now where it does not.
        """
        *columns, active_at = _columns(session)
        if (known := await self.load(session.session_key)) is not None:
            return known
        at = self._place.at(now)

        async def step(opening: Connection) -> ChatSession:
            made = await opening.rows(_SQL["open"], *columns, active_at or None, at)
            if not made:
                # Another made it at this moment, or another session has its thread.
                found = await opening.rows(_SQL["session"], session.session_key)
                if not found:
                    raise _anothers(session.thread_id)
                return _session(found[0])
            stored = _session(made[0])
            await _bind(opening, stored, stored.created_at)
            return stored

        return await self._database.transact(step)

    async def put(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a changed session, compared by its revision, and return it with the next one."""
        columns, at = _columns(session), self._place.at(now)
        session_key = session.session_key

        async def step(putting: Connection) -> ChatSession:
            found = await putting.rows(_SQL["lock_session"], session_key, at)
            if not found:
                raise UnknownThread(f"no session {session_key!r}", value=session_key)
            [[put_at, *row]] = found
            stored = _session(row)
            if stored.revision != session.revision:
                raise VersionConflict(
                    f"session {session_key!r} is at revision {stored.revision}, not {session.revision}",
                    value=session_key,
                )
            await _bind(putting, session, put_at)
            [changed] = await putting.rows(_SQL["put_session"], *columns, put_at)
            return _session(changed)

        return await self._database.transact(step)

    async def threads(
        self, session_key: str, *, title: str | None = None, limit: int = MAX_INBOUND
    ) -> tuple[SessionThread, ...]:
        """Return a session's conversations, the last active first; those of one title when it is given."""
        values = session_key, page(limit)
        if title is None:
            found = await self._database.read(_SQL["conversations"], *values)
        else:
            found = await self._database.read(_SQL["conversations_titled"], *values, kept(title))
        return tuple(map(_conversation, found))

    async def thread(self, thread_id: str) -> SessionThread | None:
        """Return the conversation on this thread, whether a session is bound to it at present or not."""
        found = await self._database.first(_SQL["conversation"], thread_id)
        return None if found is None else _conversation(found)

    async def sessions(self, *, after: str = "", limit: int = MAX_INBOUND) -> tuple[ChatSession, ...]:
        """Return sessions by key."""
        return await _listed(self._place, "session", "sessions", (after, page(limit)), _session)


class PostgresChatStores:
    """What the gateway keeps, in the schema of the runs and through the same sessions of the database."""

    def __init__(self, place: Place) -> None:
        self._intake_log = PostgresIntakeLog(place)
        self._sessions = PostgresChatSessions(place)
        self._people = PostgresChatPeople(place)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write here as well."""
        return True

    @property
    def intake_log(self) -> PostgresIntakeLog:
        """The lines of all chats."""
        return self._intake_log

    @property
    def sessions(self) -> PostgresChatSessions:
        """Sessions of chats."""
        return self._sessions

    @property
    def people(self) -> PostgresChatPeople:
        """Who may write."""
        return self._people


async def _listed(
    place: Place, kind: str, statement: str, values: tuple[object, ...], read: Callable[[Row], T]
) -> tuple[T, ...]:
    """Return a whole page: rows that do not read back are set aside and others take their places."""
    while True:
        found = await place.database.read(_SQL[statement], *values)
        listed = await place.readable(kind, found, read)
        if len(listed) == len(found):
            return tuple(listed)


async def _bind(session: Connection, bound: ChatSession, now: int) -> None:
    """Make a session's thread a conversation of it, with its title.

    Raises:
        DuplicateRecord: the thread is another session's, or another conversation has the title.
    """
    thread_id, title = bound.thread_id, bound.title
    values = thread_id, bound.session_key, kept(title), now, bound.active_at
    if await session.rows(_SQL["bind"], *values):
        return
    found = await session.rows(_SQL["conversation"], thread_id)
    if found and found[0][1] != bound.session_key:
        raise _anothers(thread_id)
    raise DuplicateRecord(f"another conversation has the title {title!r}", value=title)


def _anothers(thread_id: str) -> DuplicateRecord:
    return DuplicateRecord(f"thread {thread_id!r} is another session's", value=thread_id)


def _possible(inbound_ids: Collection[int]) -> list[int]:
    """Return those ids that a line can have."""
    return [one for one in inbound_ids if 0 < one <= _NEWEST]


def _named(key: InboundKey) -> tuple[str, ...]:
    return key.platform, key.account, key.chat_id, key.message_id


def _columns(session: ChatSession) -> tuple[Any, ...]:
    """Return what is stored of a session as it is given."""
    refuse_blank(session_key=session.session_key, thread_id=session.thread_id)
    source, settings = written(session.source), written(session.settings)
    return session.session_key, session.thread_id, source, kept(session.title), settings, session.active_at


def _line(row: Row) -> InboundMessage:
    where = f"line {row[0]}"
    try:
        status = InboundStatus(row[8])
    except ValueError as error:
        raise StoreCorrupt(f"{where} does not read back: {error}", value=row[0]) from error
    return InboundMessage(
        inbound_id=row[0],
        key=InboundKey(platform=row[1], account=row[2], chat_id=row[3], message_id=row[4]),
        session_key=row[5],
        sender_id=row[6],
        body=_fields(row[7], where),
        status=status,
        received_at=row[9],
        updated_at=row[10],
        revision=row[11],
        thread_id=row[12],
        reason=told(row[13]),
    )


def _session(row: Row) -> ChatSession:
    where = f"session {row[0]!r}"
    return ChatSession(
        session_key=row[0],
        thread_id=row[1],
        source=_fields(row[2], where),
        title=told(row[3]),
        settings=_fields(row[4], where),
        created_at=row[5],
        updated_at=row[6],
        active_at=row[7],
        revision=row[8],
    )


def _conversation(row: Row) -> SessionThread:
    thread_id, session_key, title, created_at, active_at = row
    return SessionThread(
        thread_id=thread_id,
        session_key=session_key,
        title=told(title),
        created_at=created_at,
        active_at=active_at,
    )


def _fields(text: str, where: str) -> dict[str, Any]:
    fields = decode_json(text, where=where)
    if not isinstance(fields, dict):
        raise StoreCorrupt(f"{where} does not read back: it holds no object", value=where)
    return fields
