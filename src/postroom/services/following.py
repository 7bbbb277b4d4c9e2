"""Long polls for an inbox or a project's log, which return new entries, or nothing after the wait."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from msgspec import Meta

from postroom.contracts.errors import WrongToken
from postroom.contracts.tokens import Grant
from postroom.mail.commands import (
    AgentName,
    Command,
    Cursor,
    FetchEvents,
    FetchInboxEvents,
    FollowEvents,
    MessageId,
    ProjectKey,
    read_command,
)
from postroom.mail.context import Caller, ReadContext
from postroom.mail.event_log import EventsView, fetch_events, start_at_newest
from postroom.mail.identity import acting, refuse_unknown_token
from postroom.mail.inbox import InboxEvents, fetch_inbox_events
from postroom.mail.operations import OPERATIONS
from postroom.mail.service import Mail
from postroom.stores.mail.access import MailReads, MailWrites

BY = "watch"
STRIDE: Final = 1_000
"""Number of entries that are read at a time to find one that the caller may see, even if it asked for fewer.
"""


class AwaitMessages(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of the operator to wait for new messages in an inbox."""

    project_key: ProjectKey
    agent_name: AgentName
    after: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100
    wait_seconds: Annotated[float, Meta(ge=0, le=30)] = 25.0
    shown: Annotated[tuple[MessageId, ...], Meta(max_length=200)] = ()


class Following:
    """Answers callers that wait for new messages in an inbox."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    async def messages(self, body: Mapping[str, Any], *, agent_token: str | None = None) -> InboxEvents:
        """Wait up to `wait_seconds` for messages after a cursor, and return the messages.

        Messages that the caller reports as shown are marked as announced. Without a cursor, the result
        contains no messages, but `next` is the cursor for the next call.

        Raises:
            InvalidArgument, UnknownProject, UnknownAgent, CursorExpired, CursorAhead: The inbox cannot be
                followed.
        """
        command = read_command(AwaitMessages, dict(body))
        caller = Caller(agent_token=agent_token, operator=True)
        if command.shown:

            def change(tx: MailWrites) -> None:
                context = self._mail.context(tx, caller)
                _, agent = acting(context, command.project_key, command.agent_name)
                tx.mark_announced(agent.id, command.shown, by=BY, now=context.now)

            await self._mail.store.write(change)
        if command.after is None:

            def look(tx: MailReads) -> InboxEvents:
                _, agent = acting(self._mail.context(tx, caller), command.project_key, command.agent_name)
                newest, oldest = agent.inbox_seq, agent.inbox_floor
                return {"events": [], "next": newest, "newest": newest, "oldest": oldest}

            return await self._mail.store.read(look)
        fetch = FetchInboxEvents(
            project_key=command.project_key,
            agent_name=command.agent_name,
            after=command.after,
            limit=command.limit,
        )
        until = asyncio.get_running_loop().time() + command.wait_seconds
        return await self._mail.changes.awaited(
            lambda: self._mail.store.read(
                lambda tx: fetch_inbox_events(self._mail.context(tx, caller), fetch)
            ),
            lambda found: bool(found["events"]),
            until=until,
        )


def _holds(grant: Grant) -> bool:
    return True


class EventFollowing:
    """Answers callers that wait for new entries in a project's log."""

    def __init__(self, mail: Mail, holds: Callable[[Grant], bool] = _holds) -> None:
        """Create the service.

        `holds` returns whether a named token is still valid.
        """
        self._mail = mail
        self._holds = holds

    @property
    def is_over(self) -> bool:
        """Whether the server is stopping."""
        return self._mail.changes.is_stopped

    async def events(self, asked: FollowEvents, caller: Caller) -> EventsView:
        """Wait for events after a cursor that the caller may see, and return the events.

        If the wait ends without events, `next` still advances. Without a cursor, the result contains no
        events, but `next` is the cursor for the next call.

        Raises:
            UnknownProject, WrongToken, InsufficientScope, CursorExpired, CursorAhead: The log cannot be
                followed.
        """
        if asked.after is None:
            return await self._mail.store.read(
                lambda tx: start_at_newest(self._context(tx, caller), asked.project_key)
            )
        until = asyncio.get_running_loop().time() + asked.wait
        after = asked.after

        async def look() -> EventsView:
            nonlocal after
            result = await self._look(asked, after, caller, asked.limit)
            while not result["events"] and result["next"] < result["newest"]:  # it may not see the page
                result = await self._look(asked, result["next"], caller, STRIDE)
                if len(result["events"]) > asked.limit:
                    kept_events = result["events"][: asked.limit]
                    result = {**result, "events": kept_events, "next": kept_events[-1]["seq"]}
            after = result["next"]
            return result

        return await self._mail.changes.awaited(look, lambda found: bool(found["events"]), until=until)

    async def _look(self, asked: FollowEvents, after: int, caller: Caller, limit: int) -> EventsView:
        command = FetchEvents(project_key=asked.project_key, after=after, limit=limit, kinds=asked.kinds)
        return await self._mail.store.read(lambda tx: fetch_events(self._context(tx, caller), command))

    def _context(self, tx: MailReads, caller: Caller) -> ReadContext:
        """Return the context for reads by a caller whose access is still valid."""
        OPERATIONS["fetch_events"].check(caller.grant)
        if caller.grant is not None and not self._holds(caller.grant):
            raise WrongToken(f"the token `{caller.grant.name}` was revoked or has expired")
        context = self._mail.context(tx, caller)
        refuse_unknown_token(context)
        return context
