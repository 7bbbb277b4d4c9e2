"""Storage of the conversations on the chat page, and of their entries."""

from collections.abc import Sequence

from postroom.contracts.records import replace
from postroom.contracts.web_chats import WebConversation, WebEntry
from postroom.stores.chats.rows import page, plain, refuse_unfit
from postroom.stores.store import SqlStore, Transaction


class WebChats:
    """The conversations of the chat page."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def end_session(self, hashed: str, *, ends_at: int) -> None:
        """Store the hash of a session from which a person signed out, until the time `ends_at`."""
        await self._store.write(lambda tx: tx.mail.end_session(hashed, ends_at=ends_at))

    async def is_session_ended(self, hashed: str) -> bool:
        """Return whether a person has signed out of the session with this hash."""
        return await self._store.read(lambda tx: tx.mail.is_session_ended(hashed))

    async def conversations(
        self, person: str, *, before: int | None = None, limit: int = 200
    ) -> tuple[WebConversation, ...]:
        """Return up to `limit` conversations of a person, last active first.

        With `before`, only conversations that were last active before this time are returned.
        """
        return tuple(
            await self._store.read(
                lambda tx: tx.chats.web_conversations(person, before=before, limit=page(limit))
            )
        )

    async def conversation(self, person: str, conversation_id: str) -> WebConversation | None:
        """Return the conversation with this id, or None."""
        return await self._store.read(lambda tx: tx.chats.web_conversation(person, conversation_id))

    async def open(self, person: str, conversation_id: str, *, title: str) -> None:
        """Create an empty conversation, unless a conversation with this id exists.

        Raises:
            InvalidRecord: A part is blank or contains a lone surrogate.
        """
        refuse_unfit(person=person, conversation_id=conversation_id, title=title)

        def change(tx: Transaction) -> None:
            tx.lock(_lock(person))
            if tx.chats.web_conversation(person, conversation_id) is None:
                now = tx.now()
                opened = WebConversation(
                    person=person,
                    conversation_id=conversation_id,
                    title=title,
                    created_at=now,
                    active_at=now,
                )
                tx.chats.put_web_conversation(opened)

        await self._store.write(change, key=person)

    async def put(self, entries: Sequence[WebEntry]) -> bool:
        """Store entries of a conversation; return False if the conversation was deleted.

        A stored entry gets the new body and keeps its position.

        Raises:
            InvalidRecord: An id is blank, or a text contains a lone surrogate.
        """
        web_entries = [replace(entry, body=plain(entry.body)) for entry in entries]
        for entry in web_entries:
            refuse_unfit(person=entry.person, conversation_id=entry.conversation_id, entry_id=entry.entry_id)
        newest = max(web_entries, key=lambda one: one.position)

        def change(tx: Transaction) -> bool:
            tx.lock(_lock(newest.person))
            conversation = tx.chats.web_conversation(newest.person, newest.conversation_id)
            if conversation is None:
                return False
            if newest.position > conversation.active_at:
                tx.chats.put_web_conversation(replace(conversation, active_at=newest.position))
            for entry in web_entries:
                tx.chats.put_web_entry(entry)
            return True

        return await self._store.write(change, key=newest.person)

    async def rename(self, person: str, conversation_id: str, title: str) -> bool:
        """Change the title of a conversation; return False if the conversation does not exist.

        Raises:
            InvalidRecord: The title is blank or contains a lone surrogate.
        """
        refuse_unfit(title=title)

        def change(tx: Transaction) -> bool:
            tx.lock(_lock(person))
            conversation = tx.chats.web_conversation(person, conversation_id)
            if conversation is not None:
                tx.chats.put_web_conversation(replace(conversation, title=title))
            return conversation is not None

        return await self._store.write(change, key=person)

    async def delete(self, person: str, conversation_id: str) -> bool:
        """Delete a conversation with its entries; return False if the conversation does not exist."""

        def change(tx: Transaction) -> bool:
            tx.lock(_lock(person))
            return tx.chats.drop_web_conversation(person, conversation_id)

        return await self._store.write(change, key=person)

    async def entries(
        self, person: str, conversation_id: str, *, before: int | None = None, limit: int = 200
    ) -> tuple[WebEntry, ...]:
        """Return up to `limit` entries of a conversation before the position `before`, newest first."""
        return tuple(
            await self._store.read(
                lambda tx: tx.chats.web_entries(person, conversation_id, before=before, limit=page(limit))
            )
        )

    async def entry(self, person: str, entry_id: str) -> WebEntry | None:
        """Return the entry with this id from any conversation of a person, or None."""
        return await self._store.read(lambda tx: tx.chats.web_entry(person, entry_id))


def _lock(person: str) -> str:
    """Return the name of the lock for a person's conversations."""
    return f"web_chats:{person}"
