"""What the chat gateway keeps, behind its ports."""

from collections.abc import Collection
from typing import Final

from typing_extensions import override

from postroom.contracts.chat import ChatStores, InboundMessage
from postroom.contracts.files import ChatFile
from postroom.contracts.run_stores import MessageQuery
from postroom.contracts.transactions import Store
from postroom.stores.chats.files import StoredFiles
from postroom.stores.chats.intake_log import StoredIntakeLog, not_too_many
from postroom.stores.chats.links import StoredLinks
from postroom.stores.chats.people import StoredPeople
from postroom.stores.chats.sessions import StoredSessions
from postroom.stores.chats.web_chats import StoredWebChats

_MESSAGES_OF_RUN: Final = 100


class StoredChats(ChatStores):
    """What the gateway keeps, in the store that holds mail and runs."""

    def __init__(self, store: Store, *, is_shared: bool) -> None:
        self._store = store
        self._is_shared = is_shared
        self._lines = StoredIntakeLog(store)
        self._sessions = StoredSessions(store)
        self._people = StoredPeople(store)
        self._links = StoredLinks(store)
        self._files = StoredFiles(store)
        self._web_chats = StoredWebChats(store)

    @property
    @override
    def is_shared(self) -> bool:
        return self._is_shared

    @property
    @override
    def intake_log(self) -> StoredIntakeLog:
        return self._lines

    @property
    @override
    def sessions(self) -> StoredSessions:
        return self._sessions

    @property
    @override
    def people(self) -> StoredPeople:
        return self._people

    @property
    @override
    def links(self) -> StoredLinks:
        return self._links

    @property
    @override
    def files(self) -> StoredFiles:
        return self._files

    @property
    @override
    def web_chats(self) -> StoredWebChats:
        return self._web_chats

    @override
    async def answered(
        self, inbound_ids: Collection[int], thread_id: str, run_id: str | None
    ) -> tuple[tuple[InboundMessage, ...], tuple[ChatFile, ...]]:
        asked = not_too_many(inbound_ids)
        return await self._store.read(lambda tx: tx.chats.answered(asked, thread_id, run_id))

    @override
    async def reasoning(self, thread_id: str, run_id: str) -> str:
        asked = MessageQuery(run_id=run_id, newest_first=True)
        found = await self._store.read(lambda tx: tx.runs.messages.list(thread_id, asked, _MESSAGES_OF_RUN))
        blocks = (block for one in reversed(found) for block in one.message.content)
        return "\n\n".join(block.text.strip() for block in blocks if block.type == "thinking")

    @override
    async def note_sent(self, outbox_id: str, steps: int) -> None:
        await self._store.write(lambda tx: tx.outbox.note_steps(outbox_id, steps))
