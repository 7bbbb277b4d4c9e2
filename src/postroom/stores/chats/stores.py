"""The stores of the chat gateway, which implement the gateway's ports."""

from collections.abc import Collection
from typing import Final

from postroom.contracts.chat import InboundMessage
from postroom.contracts.files import ChatFile
from postroom.contracts.run_stores import MessageQuery
from postroom.contracts.runs import RunRecord
from postroom.stores.chats.files import FileStore
from postroom.stores.chats.intake_log import IntakeLog, not_too_many
from postroom.stores.chats.links import ChatLinks
from postroom.stores.chats.people import ChatPeople
from postroom.stores.chats.sessions import ChatSessions
from postroom.stores.chats.web_chats import WebChats
from postroom.stores.store import SqlStore, Transaction

_MESSAGES_OF_RUN: Final = 100


class ChatStores:
    """The stores of the chat gateway in one database."""

    def __init__(self, store: SqlStore, *, is_shared: bool) -> None:
        self._store = store
        self.is_shared = is_shared
        """Whether other processes may also write to the database."""
        self.intake_log = IntakeLog(store)
        """The inbound messages of all chats."""
        self.sessions = ChatSessions(store)
        """The sessions of all chats."""
        self.people = ChatPeople(store)
        """The people who have access."""
        self.links = ChatLinks(store)
        """The links between the direct chats of a person."""
        self.files = FileStore(store)
        """The files that were received with messages or sent by runs."""
        self.web_chats = WebChats(store)
        """The conversations of the chat page."""

    async def answered(
        self, inbound_ids: Collection[int], thread_id: str, run_id: str | None
    ) -> tuple[tuple[InboundMessage, ...], tuple[ChatFile, ...]]:
        """Return the readable inbound messages with these ids, ordered by id, and the files of a run."""
        requested_ids = not_too_many(inbound_ids)
        return await self._store.read(lambda tx: tx.chats.answered(requested_ids, thread_id, run_id))

    async def reasoning(self, thread_id: str, run_id: str) -> str:
        """Return the model's reasoning in the newest 100 messages of a run, or "" if there is none."""
        return await self._store.read(lambda tx: _reasoning(tx, thread_id, run_id))

    async def run_that_read(self, message: InboundMessage) -> tuple[RunRecord | None, str]:
        """Return the run that read an inbound message, and the model's reasoning in this run.

        The run is None if no run has read the message.
        """
        thread_id = message.thread_id
        if thread_id is None:
            return None, ""

        def look(tx: Transaction) -> tuple[RunRecord | None, str]:
            run = tx.runs.messages.given_to(thread_id, message.thread_message_id)
            return run, "" if run is None else _reasoning(tx, thread_id, run.run_id)

        return await self._store.read(look)

    async def note_sent(self, outbox_id: str, steps: int) -> None:
        """Store how many steps of a reply were delivered, so that a later attempt skips them."""
        await self._store.write(lambda tx: tx.outbox.note_steps(outbox_id, steps))


def _reasoning(tx: Transaction, thread_id: str, run_id: str) -> str:
    query = MessageQuery(run_id=run_id, newest_first=True)
    records = tx.runs.messages.list(thread_id, query, _MESSAGES_OF_RUN)
    blocks = (block for record in reversed(records) for block in record.message.content)
    return "\n\n".join(block.text.strip() for block in blocks if block.type == "thinking")
