"""The wake policy: gives messages to the runs of readers that have a runner, at least once, keyed by message.

wait for a hint or the poll ─▶ a batch of rows ─▶ revalidate ─┬─▶ unread: on the reader's thread, announced
                                                              ├─▶ a person's: to the chat they are reached in
                                                              └─▶ read, recalled, retired, no runner: nothing
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from secrets import token_hex

import structlog

from postroom.concurrency import Rounds
from postroom.contracts.clock import Clock
from postroom.contracts.messages import Boundary, DeliveryMode, Message
from postroom.contracts.outbox import OutboxMessage
from postroom.contracts.people import ChatAddress, ChatDelivery, ChatOutbox
from postroom.contracts.run_queue import RunQueue
from postroom.contracts.store import MailReads, MailStore, MailWrites
from postroom.mail.outgoing import WAKE, woken_by
from postroom.mail.projects import address_of
from postroom.mail.waking.prompts import Origin, agent_thread, as_prompt, as_said, message_name

_LOG = structlog.get_logger(__name__)
POLL = timedelta(seconds=5)
BY = "runner"
_BATCH = 100


def _nobody() -> None:
    """Hint to nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """A message that its reader's thread is to have."""

    thread_id: str
    message: Message
    mode: DeliveryMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A message that a person is to have in a chat."""

    address: ChatAddress
    text: str


class Waker:
    """Performs the mail room's wake rows."""

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        store: MailStore,
        run_queue: RunQueue,
        clock: Clock,
        *,
        verified: bool,
        boxes: ChatDelivery,
        chats: ChatOutbox | None = None,
        on_change: Callable[[], None] = _nobody,
    ) -> None:
        """Keep what it works with.

        `chats` says messages in chats, where there are any. `on_change` is called after messages were
        announced, as a hint to whoever waits for changes.
        """
        self._chats = chats
        self._on_change = on_change
        self._boxes = boxes
        self._store = store
        self._run_queue = run_queue
        self._clock = clock
        self._verified = verified
        self._rounds = Rounds("wakes", self.round, POLL)

    def wake(self) -> None:
        """Hint that a message was written."""
        self._rounds.hint()

    async def serve(self) -> None:
        """Wake readers until cancelled."""
        await self._rounds.serve()

    async def round(self) -> int:
        """Perform a batch of rows; return how many were finished.

        Raises:
            PostroomError: mail or runs could not be reached; what is not finished is done again.
        """
        rows = await self._store.read(lambda tx: tx.outbox.open(WAKE, limit=_BATCH))
        for row in rows:
            nonce = token_hex(8)  # here, for a look may be run again
            found = await self._store.read(partial(self._looked_up, row=row, nonce=nonce))
            if isinstance(found, Wake):
                await self._run_queue.deliver(found.thread_id, [found.message], found.mode)
            elif found is not None:
                await self._carried(row, found)
            await self._finish(row, announced=isinstance(found, Wake))
        return len(rows)

    async def _carried(self, row: OutboxMessage, message: Carried) -> None:
        """Have a message said in a chat; who wrote it is told where there is no way to that chat."""
        if self._chats is not None and self._chats.reaches(message.address):
            await self._chats.enqueue(row.payload["key"], message.address, message.text)
        else:
            await self._boxes.lost(row.payload["key"], f"there is no channel to {message.address.name} here")

    async def _finish(self, row: OutboxMessage, *, announced: bool) -> None:
        message_id, agent_id = woken_by(row.payload["key"])

        def change(tx: MailWrites) -> None:
            tx.outbox.drop([row.outbox_id])
            if announced:
                tx.mark_announced(agent_id, [message_id], by=BY, now=self._clock.now())

        await self._store.write(change)
        self._on_change()

    def _looked_up(self, tx: MailReads, *, row: OutboxMessage, nonce: str) -> Wake | Carried | None:
        """Return what the reader is to have; None when it needs to be woken no more."""
        message_id, agent_id = woken_by(row.payload["key"])
        message, agent = tx.message(message_id), tx.agents_by_id([agent_id]).get(agent_id)
        mine = next(
            (one for one in tx.recipients([message_id])[message_id] if one.agent_id == agent_id), None
        )
        if message is None or agent is None or mine is None:
            return None
        is_over = mine.read_at is not None or message.recalled_at is not None
        chat = tx.chat_address(agent_id)
        is_reached = chat is not None or tx.runner(agent_id) is not None
        if is_over or agent.retired_at is not None or not is_reached:
            return None
        home = tx.project_by_id(message.project_id)
        sender = tx.agents_by_id([message.sender_id]).get(message.sender_id)
        origin = Origin(
            address=address_of(message.sender_name, home.slug if home else "?", mine.project_slug),
            program="somebody" if sender is None else sender.program,
            verified=self._verified,
            is_answer=tx.answering_run(message_id) is not None,
        )
        if chat is not None:
            return Carried(address=chat, text=as_said(message, origin))
        text = as_prompt(message, origin, reader=agent.name, nonce=nonce)
        return Wake(
            thread_id=agent_thread(mine.project_slug, agent.name),
            message=Message.user(text, id=message_name(message_id)),
            mode=DeliveryMode(boundary=Boundary.NEXT_STEP, group=message.thread_id, starts_run=True),
        )
