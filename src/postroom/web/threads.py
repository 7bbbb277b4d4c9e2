"""The pages of threads: the list with its filters, and one thread from a given message."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.choices import Importance, ThreadsSeen
from postroom.contracts.errors import UnknownThread
from postroom.contracts.mail import Agent, Message, Project, ThreadFilter
from postroom.mail import conversation
from postroom.mail.conversation import awaited
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.stores.mail.access import MailReads
from postroom.stores.store import Transaction
from postroom.web.reading import (
    OFFERED,
    Page,
    cut,
    how_seen,
    offered_names,
    read_bodies,
    shown_messages,
    thread_rows,
)
from postroom.web.serving import MAX_NAME_LENGTH, choice, number, remembered_name
from postroom.web.site import Site

THREADS: Final = 30
AMONG: Final = 2_000
"""Maximum number of threads that a filter reads."""
MESSAGES: Final = 50
PAGE_TEXT: Final = 256 * 1024
"""Maximum characters of message bodies on a page of a thread. A longer message gets its own page."""
PARTICIPANTS_AMONG: Final = 1_000
"""Maximum number of newest messages of each project that are searched for participants of a thread."""
NOBODY: Final = -1
"""The id for an unknown name. No agent has this id."""
_SHOWN: Final[dict[str, ThreadsSeen]] = {choice: choice for choice in get_args(ThreadsSeen)}
LEVELS: Final[Mapping[str, tuple[Importance, ...]]] = {
    "any": (),
    "high": ("high", "urgent"),
    "urgent": ("urgent",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The filter for a list of threads, from the query of the page's URL."""

    show: ThreadsSeen = "any"
    importance: str = "any"
    agent: str = ""
    person: str = ""

    @property
    def is_any(self) -> bool:
        """Whether the filter matches every thread."""
        return self == Wanted()


async def threads(site: Site, request: Request) -> Response:
    """Show the threads of a project that match the filter, most recently active first."""
    before, query = number(request, "before"), request.query_params
    wanted = Wanted(
        show=_SHOWN[choice(request, "show", tuple(_SHOWN))],
        importance=choice(request, "importance", tuple(LEVELS)),
        agent=query.get("agent", "").strip()[:MAX_NAME_LENGTH],
        person=query.get("person", "").strip()[:MAX_NAME_LENGTH],
    )

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        reads, people = tx.mail, tx.mail.project(PEOPLE_KEY)
        if wanted.is_any:
            threads = reads.threads(project.id, limit=THREADS + 1, before=before)
            page = cut(threads, THREADS, lambda head: head.last_id)
            heads, more = page.rows, page.next
        else:
            filters = ThreadFilter(
                seen=wanted.show,
                importance=LEVELS[wanted.importance],
                agent_id=_find_agent_id(reads, project, wanted.agent),
                person_id=_find_agent_id(reads, people, wanted.person),
                people_id=NOBODY if people is None else people.id,
            )
            heads, more = reads.wanted_threads(project.id, filters, limit=THREADS, among=AMONG, before=before)
        agents = offered_names(reads, project, wanted.agent)
        return {
            "threads": Page(thread_rows(reads, heads), more),
            "is_whole": more is None or len(heads) == THREADS,
            "agents": agents[:OFFERED],
            "has_more_agents": len(agents) > OFFERED,
            "people": offered_names(reads, people, wanted.person),
            "before": before,
            "chosen": wanted,
        }

    return await site.draw(request, "threads", await site.read(request, look, is_fresh=True))


async def thread(site: Site, request: Request) -> Response:
    """Show messages of a thread in order, starting at an id or with the newest messages.

    Messages that were read are collapsed.
    """
    thread_id, services, me = request.path_params["thread_id"], site.services, remembered_name(request)
    after, newest = number(request, "after") or 0, number(request, "newest") == 1
    sent = number(request, "sent")

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        reads = tx.mail
        talk = conversation.Conversation(reads, reads, project, thread_id)
        beginning = talk.messages(limit=1)
        if not beginning:
            raise UnknownThread(
                f"{project.slug} has no thread {thread_id!r}",
                value=thread_id,
                remedy="see the threads",
            )
        if newest:
            page = Page(_fitting(talk.newest(limit=MESSAGES)[::-1])[::-1])
        else:
            messages = talk.messages(limit=MESSAGES + 1, after=after)
            fitting = _fitting(messages[:MESSAGES])
            page = Page(fitting, fitting[-1].id if len(fitting) < len(messages) else None)
        rows = shown_messages(reads, project, page.rows)
        standing = [row for row in rows if row.message.recalled_at is None]
        # Collapse the messages that were read already, except the last one and the requested one. A message
        # only to agents counts as unread, because the server cannot know whether a person read it.
        first = rows[0].message.id if after and rows else 0
        folded, unread = set[int](), list[int]()
        for row in standing:
            mine = [to for to in row.recipients if (to.name, to.project_slug) == (me, PEOPLE_SLUG)]
            if any(to.read_at is None for to in mine):
                unread.append(row.message.id)
            is_read = any(to.read_at is not None for to in mine) and not awaited(row.message, mine)
            if is_read and row is not standing[-1] and row.message.id != first:
                folded.add(row.message.id)
        asking = reads.asking_among([row.message.id for row in standing])
        is_below = unread and not after and unread[0] != standing[0].message.id
        return {
            "page": {
                "thread_id": thread_id,
                "first": beginning[0],
                "size": talk.size(),
                "messages": Page(rows, page.next),
                "after": after,
                "newest": newest,
                "folded": frozenset(folded),
                "first_unread": unread[0] if is_below else 0,
                "participants": talk.participants(among=PARTICIPANTS_AMONG),
                "participants_among": PARTICIPANTS_AMONG,
                # A reply below the thread goes to its open questions, or to the last message.
                "answers": next((row for row in standing if row.message.id == asking), standing[-1])
                if standing and page.next is None
                else None,
            },
            "texts": read_bodies(reads, project, rows),
            "seen": next((how_seen(reads, row) for row in rows if row.message.id == sent), ()),
            "people": [] if services is None else services.messages.people(reads),
        }

    shown = await site.read(request, look)
    bodies = await site.markdown.render(*shown.values["texts"])
    return await site.draw(request, "thread", shown, bodies=bodies, key=secrets.token_urlsafe(18))


def _find_agent_id(reads: MailReads, project: Project | None, name: str) -> int:
    """Return the id of an agent in a project, or 0 if the name is empty."""
    if not name:
        return 0
    agent: Agent | None = None if project is None else reads.agent(project.id, name)
    return NOBODY if agent is None else agent.id


def _fitting(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the first messages whose texts fit on one page, and at least one message."""
    text = 0
    for count, message in enumerate(messages):
        text += len(message.body_md)
        if count and text > PAGE_TEXT:
            return messages[:count]
    return messages
