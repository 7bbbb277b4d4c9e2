"""The operation that reads the log of a project, and the rules for the entries that a reader may see.

| reader | sees |
|---|---|
| the operator | everything |
| an agent, by its token | agents, reservations and, at home, runs; messages and contacts of its own |
| a person at the pages | everything except contacts and entries about blind copies |

Only the sender, the recipient and the operator can see that a blind copy exists.
"""

from collections.abc import Sequence
from typing import TypedDict

from postroom.contracts.clock import iso
from postroom.contracts.errors import CursorAhead, CursorExpired
from postroom.contracts.mail import HIDDEN, OTHER, Agent, LogBounds, Project, ProjectEvent
from postroom.mail.commands import FetchEvents
from postroom.mail.context import ReadContext, token_hash
from postroom.mail.projects import find_project, format_address
from postroom.stores.mail.access import RecordReads


class EventView(TypedDict):
    """An entry of a project's event log.

    `agent` caused the event, or is the recipient of a delivery.
    """

    seq: int
    at: str
    kind: str
    agent: str | None
    agent_id: int | None
    message_id: int | None
    reservation_id: int | None
    run_id: str | None
    detail: dict[str, str | int | bool]


class EventsView(TypedDict):
    """A page of the event log.

    Pass `next` as `after` of the next call, even if the page is empty.
    """

    events: list[EventView]
    next: int
    newest: int
    oldest: int


def fetch_events(context: ReadContext, asked: FetchEvents) -> EventsView:
    """Return the log entries of a project after a cursor, in order.

    Raises:
        CursorExpired: Entries after the cursor were deleted.
        CursorAhead: The cursor is greater than the number of the newest entry.
    """
    project = find_project(context.projects, asked.project_key)
    bounds = context.tx.log_bounds(project.id)
    check_cursor(asked.after, bounds)
    events = context.tx.project_events(project.id, after=asked.after, limit=asked.limit, kinds=asked.kinds)
    visible = visible_events(context, project, events)
    names = agent_addresses(context.tx, project, visible)
    return {
        "events": [
            {
                "seq": event.seq,
                "at": iso(event.happening.at),
                "kind": event.happening.kind,
                "agent": names.get(event.happening.agent_id),
                "agent_id": event.happening.agent_id,
                "message_id": event.happening.message_id,
                "reservation_id": event.happening.reservation_id,
                "run_id": event.happening.run_id,
                "detail": dict(event.happening.detail),
            }
            for event in visible
        ],
        "next": events[-1].seq if len(events) == asked.limit else bounds.newest,
        "newest": bounds.newest,
        "oldest": bounds.oldest,
    }


def start_at_newest(context: ReadContext, project_key: str) -> EventsView:
    """Return an empty page whose cursor points to the end of the event log."""
    bounds = context.tx.log_bounds(find_project(context.projects, project_key).id)
    return {"events": [], "next": bounds.newest, "newest": bounds.newest, "oldest": bounds.oldest}


def find_caller(context: ReadContext) -> Agent | None:
    """Return the agent whose token or run made the call, or None if a person made the call."""
    token, own_id = context.caller.agent_token, context.caller.agent_id
    if own_id is not None:
        return context.tx.agents_by_id([own_id]).get(own_id)
    return None if token is None else context.tx.agent_by_token(token_hash(token))


def check_cursor(after: int, bounds: LogBounds) -> None:
    """Raise an error if a reader of the event log cannot continue after the cursor.

    Raises:
        CursorExpired: Entries after the cursor were deleted.
        CursorAhead: The cursor is greater than the number of the newest entry.
    """
    details = {"oldest": bounds.oldest, "newest": bounds.newest}
    if after < bounds.oldest:
        raise CursorExpired(
            f"entries up to number {bounds.oldest} were deleted",
            value=after,
            remedy=(
                f"continue after {bounds.oldest}, and read the project's current state to learn about "
                f"earlier changes"
            ),
            details=details,
        )
    if after > bounds.newest:
        raise CursorAhead(
            f"the newest entry has the number {bounds.newest}",
            value=after,
            remedy=f"continue after {bounds.newest}: the database was restored or replaced",
            details=details,
        )


def visible_events(context: ReadContext, home: Project, events: Sequence[ProjectEvent]) -> list[ProjectEvent]:
    """Return the log entries of a project that the caller may see."""
    reader = find_caller(context)
    if reader is None:
        return [
            event
            for event in events
            if context.caller.operator
            or not (event.happening.detail.get(HIDDEN) or event.happening.kind.startswith("contact."))
        ]
    messages = sorted(
        {event.happening.message_id for event in events if event.happening.message_id is not None}
    )
    written, received = context.tx.messages_of(reader.id, messages) if messages else (set[int](), set[int]())

    def may_see(event: ProjectEvent) -> bool:
        happening = event.happening
        group, _, _ = happening.kind.partition(".")
        if group == "contact":
            return reader.id in (happening.agent_id, happening.detail.get(OTHER))
        if group in ("run", "pause"):
            return reader.project_id == home.id
        if group not in ("message", "delivery") or happening.message_id in written:
            return True
        if happening.message_id not in received:
            return False
        return group == "message" or happening.agent_id == reader.id or not happening.detail.get(HIDDEN)

    return [event for event in events if may_see(event)]


def agent_addresses(tx: RecordReads, home: Project, events: Sequence[ProjectEvent]) -> dict[int | None, str]:
    """Return the addresses of the agents in log entries, as agents of the project `home` would write them."""
    ids = sorted({event.happening.agent_id for event in events if event.happening.agent_id is not None})
    agents = tx.agents_by_id(ids) if ids else {}
    homes = {agent.project_id: tx.project_by_id(agent.project_id) for agent in agents.values()}
    slugs = {number: project.slug if project else "?" for number, project in homes.items()}
    return {
        agent.id: format_address(agent.name, slugs[agent.project_id], home.slug) for agent in agents.values()
    }
