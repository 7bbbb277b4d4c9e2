"""The pages of agents: the agents of a project, and one agent with its mail and its reservations.

One of three words states whether an agent can be reached now:

    at work    one of the agent's runs is executing on this server
    reachable  the server starts the agent for new mail, or hooks of its client were active recently
    unknown    neither is the case; the agent may still read its inbox
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.mail import Agent, InboxEntry, Message, Project, Recipient
from postroom.contracts.waking import MessageRun
from postroom.contracts.work import Waiting, Work
from postroom.mail.projects import PEOPLE_SLUG
from postroom.stores.mail.access import MailReads
from postroom.stores.store import Transaction
from postroom.web.reading import Page, cut, known_agent, openly, read_slugs, subjects_of
from postroom.web.serving import choice, number
from postroom.web.site import Site

AGENTS: Final = 50
BOX: Final = 25
HELD: Final = 50
LATELY: Final = 60 * 60 * 1_000
"""The age, in milliseconds, up to which the activity of hooks counts as recent."""
OPEN: Final = 10
"""Maximum number of open runs that the page of an agent shows."""


async def agents(site: Site, request: Request) -> Response:
    """Show the agents of a project, including retired agents, in the order of registration."""
    after = number(request, "after") or 0

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        agents = tx.mail.agents(project.id, include_retired=True, limit=AGENTS + 1, after=after)
        page = cut(agents, AGENTS, lambda agent: agent.id)
        return {"page": page, "after": after, "there": _presence(site, tx, project, page.rows)}

    return await site.draw(request, "agents", await site.read(request, look))


async def agent(site: Site, request: Request) -> Response:
    """Show an agent with its reservations and a page of received or sent messages."""
    name, before = request.path_params["name"], number(request, "before")
    sent = choice(request, "box", ("inbox", "sent")) == "sent"

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        agent = known_agent(tx.mail, project, name)
        held = tx.mail.live_reservations(project.id, now=site.clock.now(), agent_id=agent.id, limit=HELD + 1)
        works, waiting = list[Work](), list[Waiting]()  # dead letters are among the open runs
        if site.services is not None:
            folded, runs = agent.name.casefold(), site.services.runs
            open_works = (
                work for work in runs.unsettled(tx, project.slug) if work.agent.casefold() == folded
            )
            works = list(islice(open_works, OPEN))
            waiting = [one for one in runs.waiting(tx, project.slug) if one.agent.casefold() == folded]
        return {
            "agent": agent,
            "box": (_sent_by if sent else _inbox_page)(tx.mail, agent, before),
            "held": cut(held, HELD, lambda one: one.id),
            "sent": sent,
            "before": before,
            "there": _presence(site, tx, project, [agent]),
            "open_works": works,
            "waiting": waiting,
            "subjects": subjects_of(tx.mail, project, works) if works else {},
        }

    shown = await site.read(request, look, is_fresh=True)
    works: Sequence[Work] = shown.values["open_works"]
    if site.services is not None:
        works = await site.services.runs.explained(works)
    return await site.draw(request, "agent", shown, open_works=works)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRow:
    """A message that an agent received or sent.

    Only a received message has an inbox `entry`.
    """

    message: Message
    project_slug: str | None
    entry: InboxEntry | None = None
    run: MessageRun | None = None
    """The run that received the message, for a message in an inbox."""
    recipients: Sequence[Recipient] = ()


def _inbox_page(reads: MailReads, owner: Agent, before: int | None) -> Page[BoxRow]:
    """Return the inbox entries before a sequence number, without blind copies."""
    top = min(before or owner.inbox_seq + 1, owner.inbox_seq + 1)
    after = max(top - 1 - BOX, owner.inbox_floor)
    window = reads.inbox_events(owner.id, after=after, limit=BOX)
    entries = [entry for entry in reversed(window) if entry.seq < top and entry.kind != "bcc"]
    slugs = read_slugs(reads, (entry.message.project_id for entry in entries))
    runs = reads.message_runs([entry.message.id for entry in entries])
    rows = [
        BoxRow(
            message=entry.message,
            project_slug=slugs.get(entry.message.project_id),
            entry=entry,
            run=runs[entry.message.id].get(owner.id),
        )
        for entry in entries
    ]
    return Page(rows, after + 1 if after > owner.inbox_floor else None)


def _sent_by(reads: MailReads, owner: Agent, before: int | None) -> Page[BoxRow]:
    """Return the messages that an agent has sent, newest first, without recalled messages."""
    page = cut(reads.sent_messages(owner.id, limit=BOX + 1, before=before), BOX, lambda one: one.id)
    recipients = reads.recipients([row.id for row in page.rows])
    slugs = read_slugs(reads, (row.project_id for row in page.rows))
    rows = [
        BoxRow(
            message=row,
            project_slug=slugs.get(row.project_id),
            recipients=openly(recipients.get(row.id, [])),
        )
        for row in page.rows
    ]
    return Page(rows, page.next)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Whether an agent can be reached, with the reason and the time of the last change."""

    word: Literal["at work", "reachable", "unknown"]
    how: str
    since: int


def _presence(site: Site, tx: Transaction, project: Project, agents: Sequence[Agent]) -> dict[int, Presence]:
    """Return the presence of each active agent, keyed by agent id."""
    at_work = {} if site.services is None else site.services.runs.at_work(tx, project.slug)
    active = [agent for agent in agents if agent.retired_at is None]
    ids = [agent.id for agent in active]
    runners, seen = tx.mail.with_runner(ids), tx.mail.sessions_seen(ids)
    result: dict[int, Presence] = {}
    for agent in active:
        last_seen = seen.get(agent.id)
        if (began := at_work.get(agent.name.casefold())) is not None:
            result[agent.id] = Presence(word="at work", how="a run of the agent started", since=began)
        elif (runner := runners.get(agent.id)) is not None:
            is_person = project.slug == PEOPLE_SLUG
            how = "messages go to a chat; the chat was set"
            how = how if is_person else "messages start a run; the runner was set"
            result[agent.id] = Presence(word="reachable", how=how, since=runner)
        elif last_seen is not None and site.clock.now() - last_seen <= LATELY:
            result[agent.id] = Presence(
                word="reachable", how="hooks of the agent's client were active", since=last_seen
            )
        else:
            result[agent.id] = Presence(word="unknown", how="last activity", since=agent.last_active_at)
    return result
