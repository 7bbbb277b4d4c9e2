"""Storage of chat sessions, with their current and earlier threads."""

from dataclasses import dataclass

from postroom.contracts.chat import MAX_INBOUND, ChatSession, SessionThread, session_locks
from postroom.contracts.errors import DuplicateRecord, UnknownThread, VersionConflict
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.stores.chats.rows import page, plain, refuse_unfit
from postroom.stores.store import SqlStore, Transaction


@dataclass(slots=True)
class Activity:
    """The time and the source of a session's last activity."""

    session_key: str
    thread_id: str
    source: dict[str, Json]
    at: int
    written: ChatSession | None = None
    """The session as it was stored."""

    @property
    def locks(self) -> tuple[str, ...]:
        """The names of the locks that `change` requires."""
        return session_locks(self.session_key, self.thread_id)

    def noted(self, session: ChatSession) -> ChatSession:
        """Return a copy of a session with the time and the source of this activity."""
        return replace(session, active_at=self.at, source=self.source)

    def change(self, tx: Transaction) -> None:
        """Store the activity, unless the session has another thread now."""
        self.written, stored = None, tx.chats.session(self.session_key)
        if stored is None or stored.thread_id != self.thread_id:
            return
        now = tx.now()
        written = replace(self.noted(stored), updated_at=now, revision=stored.revision + 1)
        tx.chats.put_thread(
            SessionThread(
                thread_id=self.thread_id,
                session_key=self.session_key,
                title=stored.title,
                created_at=now,
                active_at=self.at,
            )
        )
        tx.chats.put_session(written)
        self.written = written


class ChatSessions:
    """The sessions of all chats."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def load(self, session_key: str) -> ChatSession | None:
        """Return the session with this key, or None."""
        return await self._store.read(lambda tx: tx.chats.session(session_key))

    async def open(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a new session and its thread, or return the stored session with this key.

        Raises:
            InvalidRecord: The session key or the thread id is blank.
            DuplicateRecord: The thread belongs to another session.
        """
        checked = _check_session(session)

        def change(tx: Transaction) -> ChatSession:
            _lock(tx, checked)
            if known_session := tx.chats.session(checked.session_key):
                return known_session
            at = tx.now() if now is None else now
            made = replace(
                checked, created_at=at, updated_at=at, active_at=checked.active_at or at, revision=1
            )
            return _store_session(tx, made)

        return await self._store.write(change, key=session.session_key)

    async def put(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a changed session if its revision is current; return the session with the next revision.

        `thread_id`, `source`, `title`, `settings` and `active_at` are stored. The title is also stored as the
        title of the current thread.

        Raises:
            UnknownThread: No session has this key.
            VersionConflict: The session has changed since the caller read it.
            DuplicateRecord: Another thread of this session has the title, or the thread belongs to another
                session.
        """
        checked = _check_session(session)

        def change(tx: Transaction) -> ChatSession:
            _lock(tx, checked)
            stored = tx.chats.session(checked.session_key)
            if stored is None:
                raise UnknownThread(f"no session {checked.session_key!r}", value=checked.session_key)
            if stored.revision != checked.revision:
                raise VersionConflict(
                    f"session {checked.session_key!r} is at revision {stored.revision}, "
                    f"not {checked.revision}",
                    value=checked.session_key,
                )
            at = tx.now() if now is None else now
            changed = replace(
                checked, created_at=stored.created_at, updated_at=at, revision=checked.revision + 1
            )
            return _store_session(tx, changed)

        return await self._store.write(change, key=session.session_key)

    async def rename(self, session_key: str, new_key: str, source: dict[str, Json]) -> bool:
        """Change the key of a session, its threads and its open messages.

        Return False if no session has the old key, or if a session already has the new key.

        Raises:
            InvalidRecord: The new key is blank.
        """
        refuse_unfit(None, session_key=new_key)
        there = plain(source)

        def change(tx: Transaction) -> bool:
            tx.lock(*sorted(f"chat_session:{key}" for key in (session_key, new_key)))
            session = tx.chats.session(session_key)
            if session is None or tx.chats.session(new_key) is not None:
                return False
            moved = replace(
                session, session_key=new_key, source=there, updated_at=tx.now(), revision=session.revision + 1
            )
            tx.chats.rename_session(session_key, moved)
            return True

        return await self._store.write(change, key=session_key)

    async def threads(
        self, session_key: str, *, title: str | None = None, limit: int = MAX_INBOUND
    ) -> tuple[SessionThread, ...]:
        """Return up to `limit` threads of a session, last active first; `title` selects threads by title."""
        return tuple(
            await self._store.read(lambda tx: tx.chats.threads(session_key, title=title, limit=page(limit)))
        )

    async def thread(self, thread_id: str) -> SessionThread | None:
        """Return the thread with this id, or None if no session has ever used the thread."""
        return await self._store.read(lambda tx: tx.chats.thread(thread_id))

    async def sessions(self, *, after: str = "", limit: int = MAX_INBOUND) -> tuple[ChatSession, ...]:
        """Return up to `limit` sessions, ordered by key, from the first key after `after`."""
        return tuple(await self._store.read(lambda tx: tx.chats.sessions(after=after, limit=page(limit))))


def _check_session(session: ChatSession) -> ChatSession:
    """Return a deep copy of a session after checking that the session can be stored."""
    refuse_unfit(session.title, session_key=session.session_key, thread_id=session.thread_id)
    return replace(session, source=plain(session.source), settings=plain(session.settings))


def _lock(tx: Transaction, session: ChatSession) -> None:
    """Lock a session and its thread."""
    tx.lock(*session_locks(session.session_key, session.thread_id))


def _store_session(tx: Transaction, session: ChatSession) -> ChatSession:
    """Store a session, and the title of its current thread."""
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
