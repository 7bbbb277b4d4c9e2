"""Lines and sessions of chats in memory. What is kept is the store's own: bodies are copied both ways."""

from collections import Counter
from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import islice, takewhile

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
from postroom.contracts.clock import Clock, SystemClock
from postroom.contracts.errors import (
    DuplicateRecord,
    InvalidRecord,
    UnknownMessage,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.messages import Json
from postroom.stores.codec import decode_json, encode
from postroom.stores.memory.chat_people import MemoryChatPeople, page, refuse_unfit
from postroom.stores.memory.run_tables import Key, Ordered, Place

Fields = dict[str, Json]


class MemoryIntakeLog:
    """The lines of all chats in this process's memory."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._newest = 0
        self._rows: dict[int, InboundMessage] = {}
        self._ids: dict[InboundKey, int] = {}
        self._open: Ordered[int] = Ordered()
        self._open_of: dict[str, Ordered[int]] = {}
        self._closed: Ordered[Key] = Ordered()

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def receive(self, draft: InboundDraft, *, now: int | None = None) -> Received:
        """Keep a line as waiting; one that is known by its key is returned as it stands, and stays so."""
        key, body = draft.key, _own(draft.body)
        refuse_unfit(
            draft.sender_id,
            platform=key.platform,
            account=key.account,
            chat_id=key.chat_id,
            message_id=key.message_id,
            session_key=draft.session_key,
        )
        at = await self._place.turn(now)
        if key in self._ids:
            return Received(message=_told(self._rows[self._ids[key]]), is_new=False)
        self._newest += 1
        line = InboundMessage(
            inbound_id=self._newest,
            key=key,
            session_key=draft.session_key,
            sender_id=draft.sender_id,
            body=body,
            status=InboundStatus.WAITING,
            received_at=at,
            updated_at=at,
        )
        self._ids[key] = line.inbound_id
        return Received(message=_told(self._put(line)), is_new=True)

    async def move(
        self, inbound_ids: Collection[int], move: InboundMove, *, now: int | None = None
    ) -> tuple[InboundMessage, ...]:
        """Move all of these lines, or none, and return them by id."""
        refuse_unfit(move.thread_id, move.reason)
        asked = sorted(set(inbound_ids))
        at = await self._place.turn(now)
        for inbound_id in asked:
            if inbound_id not in self._rows:
                raise UnknownMessage(f"no line {inbound_id}", value=inbound_id)
        moved = [self._rows[inbound_id].moved(move, now=at) for inbound_id in asked]
        return tuple(_told(self._put(line)) for line in moved)

    async def edit(self, key: InboundKey, body: Fields, *, now: int | None = None) -> InboundMessage:
        """Replace the body of an open line and raise its revision; the same body again changes nothing."""
        own = _own(body)
        at = await self._place.turn(now)
        if key not in self._ids:
            raise UnknownMessage(
                f"no line {key.message_id!r} was received in this chat", value=key.message_id
            )
        line = self._rows[self._ids[key]]
        return _told(self._put(line.edited(own, now=at)))

    async def find(self, key: InboundKey) -> InboundMessage | None:
        """Return the line with this key."""
        await self._place.turn()
        return _told(self._rows[self._ids[key]]) if key in self._ids else None

    async def messages(self, inbound_ids: Collection[int]) -> tuple[InboundMessage, ...]:
        """Return those of these lines that exist, by id; at most `MAX_INBOUND` ids."""
        asked = sorted(set(inbound_ids))
        if len(asked) > MAX_INBOUND:
            raise InvalidRecord(
                f"{len(asked)} lines were asked for, {MAX_INBOUND} are the most", value=len(asked)
            )
        await self._place.turn()
        return tuple(_told(self._rows[inbound_id]) for inbound_id in asked if inbound_id in self._rows)

    async def open_messages(
        self,
        *,
        status: InboundStatus | None = None,
        session_key: str | None = None,
        after: int = 0,
        limit: int = MAX_INBOUND,
    ) -> tuple[InboundMessage, ...]:
        """Return open lines by id, of one of the open states and one session where that is asked."""
        await self._place.turn()
        among = self._open if session_key is None else self._open_of.get(session_key, Ordered[int]())
        found = (self._rows[inbound_id] for inbound_id in among.behind(after))
        wanted = (line for line in found if status is None or line.status is status)
        return tuple(map(_told, islice(wanted, page(limit))))

    async def newest(self, platform: str, *, limit: int = MAX_INBOUND) -> tuple[InboundMessage, ...]:
        """Return the lines of a platform that were received last, the newest first, however they ended."""
        await self._place.turn()
        found = (line for line in reversed(self._rows.values()) if line.key.platform == platform)
        return tuple(map(_told, islice(found, page(limit))))

    async def counts(self) -> dict[InboundStatus, int]:
        """Count all lines by status, states without lines left out."""
        await self._place.turn()
        return dict(Counter(line.status for line in self._rows.values()))

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Remove up to `limit` lines that are not open and were last changed before `older_than`."""
        await self._place.turn()
        gone = list(islice(takewhile(lambda key: key[0] < older_than, self._closed), max(limit, 0)))
        for key in gone:
            self._closed.discard(key)
            del self._ids[self._rows.pop(key[1]).key]
        return len(gone)

    def _put(self, line: InboundMessage) -> InboundMessage:
        """Store or replace a line, and return it. One that is not open never changes again."""
        self._rows[line.inbound_id] = line
        of_session = self._open_of.setdefault(line.session_key, Ordered())
        if line.status.is_open:
            self._open.add(line.inbound_id)
            of_session.add(line.inbound_id)
        else:
            self._closed.add((line.updated_at, line.inbound_id))
            self._open.discard(line.inbound_id)
            of_session.discard(line.inbound_id)
        if not of_session:
            del self._open_of[line.session_key]
        return line


class MemoryChatSessions:
    """Sessions of chats, and the threads that they were bound to, in this process's memory."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._rows: dict[str, ChatSession] = {}
        self._keys: Ordered[str] = Ordered()
        self._conversations: dict[str, SessionThread] = {}
        self._of_session: dict[str, set[str]] = {}

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def load(self, session_key: str) -> ChatSession | None:
        """Return one session."""
        await self._place.turn()
        found = self._rows.get(session_key)
        return found and deepcopy(found)

    async def open(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a new session and its conversation; when there is one with this key, return that unchanged.

        It is made now, at revision 1; it was active when it says, or now where it does not.
        """
        own = _owned(session)
        at = await self._place.turn(now)
        if own.session_key not in self._rows:
            active_at = own.active_at or at
            own = replace(own, created_at=at, updated_at=at, active_at=active_at, revision=1)
            self._bind(own, at)
            self._rows[own.session_key] = own
            self._keys.add(own.session_key)
        return deepcopy(self._rows[own.session_key])

    async def put(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a changed session, compared by its revision, and return it with the next one."""
        own = _owned(session)
        at = await self._place.turn(now)
        stored = self._rows.get(own.session_key)
        if stored is None:
            raise UnknownThread(f"no session {own.session_key!r}", value=own.session_key)
        if stored.revision != own.revision:
            raise VersionConflict(
                f"session {own.session_key!r} is at revision {stored.revision}, not {own.revision}",
                value=own.session_key,
            )
        own = replace(own, created_at=stored.created_at, updated_at=at, revision=own.revision + 1)
        self._bind(own, at)
        self._rows[own.session_key] = own
        return deepcopy(own)

    async def threads(
        self, session_key: str, *, title: str | None = None, limit: int = MAX_INBOUND
    ) -> tuple[SessionThread, ...]:
        """Return a session's conversations, the last active first; those of one title when it is given."""
        await self._place.turn()
        found = [one for one in self._all_of(session_key) if title is None or one.title == title]
        return tuple(sorted(found, key=lambda one: (-one.active_at, one.thread_id))[: page(limit)])

    async def thread(self, thread_id: str) -> SessionThread | None:
        """Return the conversation on this thread, whether a session is bound to it at present or not."""
        await self._place.turn()
        return self._conversations.get(thread_id)

    async def sessions(self, *, after: str = "", limit: int = MAX_INBOUND) -> tuple[ChatSession, ...]:
        """Return sessions by key."""
        await self._place.turn()
        return tuple(deepcopy(self._rows[key]) for key in islice(self._keys.behind(after), page(limit)))

    def _all_of(self, session_key: str) -> Iterator[SessionThread]:
        return (self._conversations[thread] for thread in self._of_session.get(session_key, ()))

    def _bind(self, session: ChatSession, now: int) -> None:
        """Make the session's thread a conversation of it, with its title."""
        bound = self._conversations.get(session.thread_id)
        if bound is not None and bound.session_key != session.session_key:
            raise DuplicateRecord(
                f"thread {session.thread_id!r} is another session's", value=session.thread_id
            )
        others = (one for one in self._all_of(session.session_key) if one.thread_id != session.thread_id)
        for other in others if session.title is not None else ():
            if other.title == session.title:
                raise DuplicateRecord(
                    f"another conversation has the title {session.title!r}", value=session.title
                )
        self._conversations[session.thread_id] = SessionThread(
            thread_id=session.thread_id,
            session_key=session.session_key,
            title=session.title,
            created_at=bound.created_at if bound else now,
            active_at=session.active_at,
        )
        self._of_session.setdefault(session.session_key, set()).add(session.thread_id)


class MemoryChatStores:
    """What the gateway keeps, in this process's memory; beside runs where their place is given.

    For one event loop. Each call lets others run first and is then done in one step.
    """

    def __init__(self, clock: Clock | None = None, *, place: Place | None = None) -> None:
        place = place or Place(clock or SystemClock())
        self._intake_log = MemoryIntakeLog(place)
        self._sessions = MemoryChatSessions(place)
        self._people = MemoryChatPeople(place)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write here as well."""
        return False

    @property
    def intake_log(self) -> MemoryIntakeLog:
        """The lines of all chats."""
        return self._intake_log

    @property
    def sessions(self) -> MemoryChatSessions:
        """Sessions of chats."""
        return self._sessions

    @property
    def people(self) -> MemoryChatPeople:
        """Who may write."""
        return self._people


def _own(fields: Fields) -> Fields:
    """Return a copy as a store on disk would keep it."""
    try:
        copy: Fields = decode_json(encode(fields), where="what was given")
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"no store can hold a text: {error}") from error
    return copy


def _owned(session: ChatSession) -> ChatSession:
    refuse_unfit(session.title, session_key=session.session_key, thread_id=session.thread_id)
    return replace(session, source=_own(session.source), settings=_own(session.settings))


def _told(line: InboundMessage) -> InboundMessage:
    return replace(line, body=deepcopy(line.body))
