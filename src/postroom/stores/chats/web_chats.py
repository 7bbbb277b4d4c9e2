"""Stores the conversations of the chat page and their entries."""

from collections.abc import Sequence

from typing_extensions import override

from postroom.contracts.records import replace
from postroom.contracts.transactions import Store, Transaction
from postroom.contracts.web_chats import WebChats, WebConversation, WebEntry
from postroom.stores.chats.rows import page, plain, refuse_unfit


class StoredWebChats(WebChats):
    """The conversations of the chat page in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @override
    async def end_session(self, hashed: str, *, ends_at: int) -> None:
        await self._store.write(lambda tx: tx.mail.end_session(hashed, ends_at=ends_at))

    @override
    async def is_session_ended(self, hashed: str) -> bool:
        return await self._store.read(lambda tx: tx.mail.is_session_ended(hashed))

    @override
    async def conversations(
        self, person: str, *, before: int | None = None, limit: int = 200
    ) -> tuple[WebConversation, ...]:
        return tuple(
            await self._store.read(
                lambda tx: tx.chats.web_conversations(person, before=before, limit=page(limit))
            )
        )

    @override
    async def conversation(self, person: str, conversation_id: str) -> WebConversation | None:
        return await self._store.read(lambda tx: tx.chats.web_conversation(person, conversation_id))

    @override
    async def open(self, person: str, conversation_id: str, *, title: str) -> None:
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

    @override
    async def put(self, entries: Sequence[WebEntry]) -> bool:
        asked = [replace(one, body=plain(one.body)) for one in entries]
        for one in asked:
            refuse_unfit(person=one.person, conversation_id=one.conversation_id, entry_id=one.entry_id)
        newest = max(asked, key=lambda one: one.position)

        def change(tx: Transaction) -> bool:
            tx.lock(_lock(newest.person))
            found = tx.chats.web_conversation(newest.person, newest.conversation_id)
            if found is None:
                return False
            if newest.position > found.active_at:
                tx.chats.put_web_conversation(replace(found, active_at=newest.position))
            for one in asked:
                tx.chats.put_web_entry(one)
            return True

        return await self._store.write(change, key=newest.person)

    @override
    async def rename(self, person: str, conversation_id: str, title: str) -> bool:
        refuse_unfit(title=title)

        def change(tx: Transaction) -> bool:
            tx.lock(_lock(person))
            found = tx.chats.web_conversation(person, conversation_id)
            if found is not None:
                tx.chats.put_web_conversation(replace(found, title=title))
            return found is not None

        return await self._store.write(change, key=person)

    @override
    async def delete(self, person: str, conversation_id: str) -> bool:
        def change(tx: Transaction) -> bool:
            tx.lock(_lock(person))
            return tx.chats.drop_web_conversation(person, conversation_id)

        return await self._store.write(change, key=person)

    @override
    async def entries(
        self, person: str, conversation_id: str, *, before: int | None = None, limit: int = 200
    ) -> tuple[WebEntry, ...]:
        return tuple(
            await self._store.read(
                lambda tx: tx.chats.web_entries(person, conversation_id, before=before, limit=page(limit))
            )
        )

    @override
    async def entry(self, person: str, entry_id: str) -> WebEntry | None:
        return await self._store.read(lambda tx: tx.chats.web_entry(person, entry_id))


def _lock(person: str) -> str:
    """Return the name by which a person's conversations are locked while one of them is changed."""
    return f"web_chats:{person}"
