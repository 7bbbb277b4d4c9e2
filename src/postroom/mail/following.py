"""Waiting for messages: who follows an inbox is answered when something comes, or when the wait is over."""

import asyncio
from collections.abc import Mapping
from typing import Any

from postroom.contracts.store import MailReads, MailWrites
from postroom.mail.commands import FetchInboxEvents, read_command
from postroom.mail.context import Caller
from postroom.mail.hook_commands import AwaitMessages
from postroom.mail.identity import acting
from postroom.mail.inbox import InboxEvents, fetch_inbox_events
from postroom.mail.service import Mail

BY = "watch"


class Following:
    """Answers those who wait, for one mail room."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    async def messages(self, body: Mapping[str, Any], *, agent_token: str | None = None) -> InboxEvents:
        """Return what came after a cursor, as soon as there is something; nothing when the wait is over.

        Messages that the caller says it showed are marked as announced. Without a cursor the answer is empty
        and comes at once; its `next` is where to begin.

        Raises:
            InvalidArgument, UnknownProject, UnknownAgent, CursorExpired, CursorAhead: it cannot be followed.
        """
        asked = read_command(AwaitMessages, dict(body))
        caller = Caller(agent_token=agent_token, operator=True)
        if asked.shown:
            await self._mark(asked, caller)
        if asked.after is None:
            return await self._mail.store.read(lambda tx: self._newest(tx, asked, caller))
        until = asyncio.get_running_loop().time() + asked.wait_seconds
        return await self._mail.bell.awaited(
            lambda: self._mail.store.read(lambda tx: self._after(tx, asked, caller)),
            lambda found: bool(found["events"]),
            until=until,
        )

    async def _mark(self, asked: AwaitMessages, caller: Caller) -> None:
        def change(tx: MailWrites) -> None:
            context = self._mail.context(tx, caller)
            _, agent = acting(context, asked.project_key, asked.agent_name)
            tx.mark_announced(agent.id, asked.shown, by=BY, now=context.now)

        await self._mail.store.write(change)
        self._mail.bell.ring()

    def _newest(self, tx: MailReads, asked: AwaitMessages, caller: Caller) -> InboxEvents:
        _, agent = acting(self._mail.context(tx, caller), asked.project_key, asked.agent_name)
        newest, oldest = agent.inbox_seq, agent.inbox_floor
        return {"events": [], "next": newest, "newest": newest, "oldest": oldest}

    def _after(self, tx: MailReads, asked: AwaitMessages, caller: Caller) -> InboxEvents:
        command = FetchInboxEvents(
            project_key=asked.project_key,
            agent_name=asked.agent_name,
            after=asked.after or 0,
            limit=asked.limit,
        )
        return fetch_inbox_events(self._mail.context(tx, caller), command)
