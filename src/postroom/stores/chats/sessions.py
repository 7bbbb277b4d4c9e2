"""Keeps the sessions of chats, and the threads that they were bound to."""

from postroom.contracts.chat import MAX_INBOUND, ChatSession, SessionThread, session_locks
from postroom.contracts.errors import DuplicateRecord, UnknownThread, VersionConflict
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.stores.chats.rows import page, plain, refuse_unfit
from postroom.stores.store import SqlStore
from postroom.stores.transaction import Transaction


class ChatSessions:
    """Sessions of chats in a store."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._store.identity

    async def load(self, session_key: str) -> ChatSession | None:
        """Return one session."""
        return await self._store.read(lambda tx: tx.chats.session(session_key))

    async def open(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a new session and its thread; when there is one with this key, return that unchanged.

        Of callers at the same time one makes it, and all are given the same.

        Raises:
            InvalidRecord: the session key or the thread id is blank.
            DuplicateRecord: the thread is another session's.
        """
        asked = _checked(session)

        def change(tx: Transaction) -> ChatSession:
            _lock(tx, asked)
            if known := tx.chats.session(asked.session_key):
                return known
            at = tx.now() if now is None else now
            made = replace(asked, created_at=at, updated_at=at, active_at=asked.active_at or at, revision=1)
            return _stored(tx, made)

        return await self._store.write(change, key=session.session_key)

    async def put(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a changed session, compared by its revision, and return it with the next one.

        `thread_id`, `source`, `title`, `settings` and `active_at` are stored as given. A thread that it was
        not bound to before becomes one of its own; the title is also that of the present thread.

        Raises:
            UnknownThread: there is no such session.
            VersionConflict: it was changed since it was read.
            DuplicateRecord: another thread of this session has the title, or the thread is another session's.
        """
        asked = _checked(session)

        def change(tx: Transaction) -> ChatSession:
            _lock(tx, asked)
            stored = tx.chats.session(asked.session_key)
            if stored is None:
                raise UnknownThread(f"no session {asked.session_key!r}", value=asked.session_key)
            if stored.revision != asked.revision:
                raise VersionConflict(
                    f"session {asked.session_key!r} is at revision {stored.revision}, not {asked.revision}",
                    value=asked.session_key,
                )
            at = tx.now() if now is None else now
            changed = replace(asked, created_at=stored.created_at, updated_at=at, revision=asked.revision + 1)
            return _stored(tx, changed)

        return await self._store.write(change, key=session.session_key)

    async def rename(self, session_key: str, new_key: str, source: dict[str, Json]) -> bool:
        """Give a session, its threads and its open messages another key, for its chat is elsewhere now.

        False: there is no such session, or there is one with the new key; nothing was changed.

        Raises:
            InvalidRecord: the new key is blank.
        """
        refuse_unfit(None, session_key=new_key)
        there = plain(source)

        def change(tx: Transaction) -> bool:
            tx.lock(*sorted(f"chat_session:{key}" for key in (session_key, new_key)))
            found = tx.chats.session(session_key)
            if found is None or tx.chats.session(new_key) is not None:
                return False
            moved = replace(
                found, session_key=new_key, source=there, updated_at=tx.now(), revision=found.revision + 1
            )
            tx.chats.rename_session(session_key, moved)
            return True

        return await self._store.write(change, key=session_key)

    async def threads(
        self, session_key: str, *, title: str | None = None, limit: int = MAX_INBOUND
    ) -> tuple[SessionThread, ...]:
        """Return a session's threads, the last active first; those of one title when it is given."""
        return tuple(
            await self._store.read(lambda tx: tx.chats.threads(session_key, title=title, limit=page(limit)))
        )

    async def thread(self, thread_id: str) -> SessionThread | None:
        """Return this thread of a session, whether the session is bound to it at present or not."""
        return await self._store.read(lambda tx: tx.chats.thread(thread_id))

    async def sessions(self, *, after: str = "", limit: int = MAX_INBOUND) -> tuple[ChatSession, ...]:
        """Return sessions by key."""
        return tuple(await self._store.read(lambda tx: tx.chats.sessions(after=after, limit=page(limit))))


def _checked(session: ChatSession) -> ChatSession:
    """Return a session that can be stored, as it is now: what is done to its fields later changes nothing."""
    refuse_unfit(session.title, session_key=session.session_key, thread_id=session.thread_id)
    return replace(session, source=plain(session.source), settings=plain(session.settings))


def _lock(tx: Transaction, session: ChatSession) -> None:
    """Keep others from the session and from its thread."""
    tx.lock(*session_locks(session.session_key, session.thread_id))


def _stored(tx: Transaction, session: ChatSession) -> ChatSession:
    """Store a session, and its thread with its title."""
    bound = tx.chats.thread(session.thread_id)
    if bound is not None and bound.session_key != session.session_key:
        raise DuplicateRecord(f"thread {bound.thread_id!r} belongs to another session", value=bound.thread_id)
    if session.title is not None:
        titled = tx.chats.threads(session.session_key, title=session.title, limit=1)
        if titled and titled[0].thread_id != session.thread_id:
            raise DuplicateRecord(f"another thread has the title {session.title!r}", value=session.title)
    thread = SessionThread(
        thread_id=session.thread_id,
        session_key=session.session_key,
        title=session.title,
        created_at=session.updated_at,
        active_at=session.active_at,
    )
    tx.chats.put_thread(thread)
    tx.chats.put_session(session)
    return session
