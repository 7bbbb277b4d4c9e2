"""The pages people look at: made on the server, without a script. Those here change nothing.

Each endpoint reads its parameters, gathers one view of the store (`reading`) and fills one template. A
typed failure becomes a page in the same look; anything else is left to the edge of the application.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, TypeVar, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from postroom.contracts.choices import SearchOrder, ThreadsSeen
from postroom.contracts.clock import Clock
from postroom.contracts.errors import StoreCorrupt, StoreFull, UnknownMessage
from postroom.contracts.mail import Agent, Attachment, Project, is_content_of
from postroom.contracts.work import Floor, Waiting
from postroom.log import get_logger
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.mail.query import parse_query
from postroom.markdown import Body, Markdown
from postroom.stores.mail.access import MailReads
from postroom.stores.mail.store import MailStore
from postroom.web import files, links, presence, reading, wording
from postroom.web.chat_pages import ChatPages
from postroom.web.control import SILENCE, control
from postroom.web.files import asset_routes
from postroom.web.forms import (
    PageContext,
    PageServices,
    Site,
    following,
    page_of_failure,
    project_page,
    remembered_name,
    token_for,
)
from postroom.web.frame import count_overlaps, count_unread
from postroom.web.message_pages import MessagePages
from postroom.web.run_pages import LONGEST_WHY, QuestionPages, RunPages, SchedulePages
from postroom.web.serving import NUMBER, Endpoint, choice, error_page, guarded, html, number, zone_of
from postroom.web.threads import LEVELS, Wanted, thread, threads
from postroom.web.timeline_pages import TimelinePages
from postroom.web.views import Page, ProjectRow, ShownMessage

_LOG = get_logger(__name__)
T = TypeVar("T")

MAX_QUESTION = 500
"""Characters of a search that are read."""
LONGEST_NAME = 128
"""Characters of a name in a filter that are read."""
_SHOWN: Final[dict[str, ThreadsSeen]] = {one: one for one in get_args(ThreadsSeen)}
DEFAULT_ADDRESS = "http://127.0.0.1:8765"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")


def page_routes(
    mail: MailStore,
    *,
    clock: Clock,
    services: PageServices | None = None,
) -> list[BaseRoute]:
    """Return the routes of the pages and of what they fetch; with services, people can work on them.

    No request reads a file: templates and assets are in memory. Every path is `/` itself or
    lies under `/chats`, `/p`, `/attachments`, `/previews` or `/static`.
    """
    pages = Pages(mail, clock=clock, services=services)
    looks: Sequence[tuple[str, Endpoint]] = (
        ("/", pages.projects),
        ("/p", pages.nowhere),
        ("/p/{slug}", pages.project),
        ("/p/{slug}/agents", pages.agents),
        ("/p/{slug}/agents/{name:path}", pages.agent),
        ("/p/{slug}/timeline", TimelinePages(mail, clock, services).timeline),
        ("/p/{slug}/threads", pages.threads),
        ("/p/{slug}/t/{thread_id:path}", pages.thread),
        ("/p/{slug}/m/{message_id}", pages.message),
        ("/p/{slug}/m/{message_id}/source", pages.source),
        ("/p/{slug}/reservations", pages.reservations),
        ("/p/{slug}/search", pages.search),
        ("/p/{rest:path}", pages.nowhere),
        ("/attachments/{sha256}", pages.attachment),
        ("/previews/{sha256}", pages.preview),
    )
    works = [] if services is None else _work_routes(PageContext(mail=mail, clock=clock, services=services))
    site = Site(mail=mail, clock=clock, services=services)
    shown = [Route(path, guarded(following(site, endpoint))) for path, endpoint in looks]
    return [*works, *shown, *asset_routes()]


def _work_routes(working: PageContext) -> list[Route]:
    """Return the routes of the pages that have forms; each is sent to the address at which it is shown."""
    pages = (
        QuestionPages(working),
        MessagePages(working),
        RunPages(working),
        SchedulePages(working),
        ChatPages(working),
    )
    return [
        Route("/chats", guarded(following(working.site, ChatPages(working).chats))),
        *(
            Route(path, guarded(following(working.site, endpoint)), methods=["GET", "POST"])
            for one in pages
            for path, endpoint in one.endpoints()
        ),
    ]


class Pages:
    """The endpoints, over one store."""

    def __init__(
        self,
        mail: MailStore,
        *,
        clock: Clock,
        services: PageServices | None,
    ) -> None:
        self._mail = mail
        self._services = services
        self._clock = clock
        self._site = Site(mail=mail, clock=clock, services=services)
        self._markdown = Markdown()

    async def projects(self, request: Request) -> Response:
        """Show every project."""
        after = number(request, "after") or 0
        now, me = self._clock.now(), remembered_name(request)

        def look(reads: MailReads) -> tuple[Page[ProjectRow], dict[str, int], int]:
            page = reading.projects(reads, after=after)
            known = [one.project for one in page.rows]
            overlaps = {one.slug: count_overlaps(reads, one, now=now) for one in known}
            return page, overlaps, count_unread(reads, reads.project(PEOPLE_KEY), me)

        page, needs, unread = await self._settled(look)
        dead = 0
        if self._services is not None:
            dead = await self._services.runs.count_dead_in_chats()
            for slug, number_of_work in (await self._services.runs.for_people(list(needs))).items():
                needs[slug] += number_of_work
        shown = {"after": after, "address": _address(request), "dead_in_chats": dead}
        shown |= {"needs": needs, "unread": unread, "me": me}
        return await self._html(request, "projects", page=page, project=None, **shown)

    async def project(self, request: Request) -> Response:
        """Show a project's control room."""
        slug, now, me = request.path_params["slug"], self._clock.now(), remembered_name(request)
        floor = Floor() if self._services is None else await self._services.runs.floor(slug)
        page = await self._settled(lambda reads: control(reads, slug, floor, me=me, now=now))
        done = choice(request, "done", ("", "yes", "no", "end", "share"))
        run_id, _, question = request.query_params.get("answered", "").partition("/")
        given = None
        if run_id and self._services is not None:
            given = await self._services.questions.given_answer(slug, run_id, question)
        answered = (run_id, question) if given is not None and given.can_take_back else None
        shown = {
            "page": page,
            "done": done,
            "answered": answered,
            "longest_why": LONGEST_WHY,
            "silence": SILENCE,
        }
        return await self._html(request, "project", project=page.overview.project, **shown)

    async def threads(self, request: Request) -> Response:
        """Show a project's threads, the newest first, or those that a filter wants."""
        slug, before = request.path_params["slug"], number(request, "before")
        wanted = Wanted(
            show=_SHOWN[choice(request, "show", tuple(_SHOWN))],
            importance=choice(request, "importance", tuple(LEVELS)),
            agent=request.query_params.get("agent", "").strip()[:LONGEST_NAME],
            person=request.query_params.get("person", "").strip()[:LONGEST_NAME],
        )
        page = await self._settled(lambda reads: threads(reads, slug, wanted, before=before))
        shown = {"page": page, "before": before, "chosen": wanted}
        return await self._html(request, "threads", project=page.project, **shown)

    async def thread(self, request: Request) -> Response:
        """Show messages of a thread, in order; those that were read are folded."""
        slug, thread_id = request.path_params["slug"], request.path_params["thread_id"]
        after, newest, me = (
            number(request, "after") or 0,
            number(request, "newest") == 1,
            remembered_name(request),
        )
        page = await self._mail.read(
            lambda reads: thread(reads, slug, thread_id, me=me, after=after, newest=newest)
        )
        shown = {
            "bodies": await self._bodies(page.project, page.messages.rows),
            "seen": await self._seen(
                [one for one in page.messages.rows if one.message.id == number(request, "sent")]
            ),
            "key": secrets.token_urlsafe(18),
            "people": [] if self._services is None else await self._services.messages.people(),
        }
        return await self._html(request, "thread", page=page, project=page.project, **shown)

    async def message(self, request: Request) -> Response:
        """Show one message."""
        project, shown = await self._message(request)
        thread_slug = await self._mail.read(
            lambda reads: reading.slug_of_thread(reads, project, shown.message)
        )
        bodies = await self._bodies(project, [shown])
        seen = await self._seen([shown] if number(request, "sent") == 1 else [])
        found = {"thread_slug": thread_slug, "bodies": bodies, "seen": seen, "held": await self._held(shown)}
        return await self._html(request, "message", project=project, shown=shown, **found)

    async def _held(self, shown: ShownMessage) -> list[Waiting]:
        """Return for which of its readers, as they are shown, a message waits, and why."""
        readers = {(one.project_slug, one.name) for one in shown.recipients if one.read_at is None}
        if self._services is None:
            return []
        slugs = sorted({slug for slug, _ in readers})
        found = [one for slug in slugs for one in await self._services.runs.waiting(slug)]
        return [
            one for one in found if one.message == shown.message.id and (one.project, one.agent) in readers
        ]

    async def source(self, request: Request) -> Response:
        """Give a message's text as it was written, to be stored."""
        _, shown = await self._message(request)
        if shown.message.recalled_at is not None:
            raise UnknownMessage("this message was recalled; its text is gone", remedy="")
        text = shown.message.body_md.encode("utf-8", "replace")
        return files.download(text, f"message-{shown.message.id}.md", etag=f"message-{shown.message.id}")

    async def agents(self, request: Request) -> Response:
        """Show a project's agents."""
        slug, after = request.path_params["slug"], number(request, "after") or 0
        project, page = await self._mail.read(lambda reads: reading.agents(reads, slug, after=after))
        there = await self._presence(slug, page.rows)
        return await self._html(request, "agents", project=project, page=page, after=after, there=there)

    async def agent(self, request: Request) -> Response:
        """Show an agent with its inbox or what it sent, and what it has reserved."""
        slug, name = request.path_params["slug"], request.path_params["name"]
        before, now = number(request, "before"), self._clock.now()
        sent = choice(request, "box", ("inbox", "sent")) == "sent"
        page = await self._settled(
            lambda reads: reading.agent(reads, slug, name, sent=sent, before=before, now=now)
        )
        there = await self._presence(slug, [page.agent])
        return await self._html(
            request, "agent", page=page, project=page.project, sent=sent, before=before, there=there
        )

    async def reservations(self, request: Request) -> Response:
        """Show what is reserved, and what was reserved last."""
        slug, now = request.path_params["slug"], self._clock.now()
        path = request.query_params.get("path", "").strip()[:MAX_QUESTION]
        page = await self._mail.read(lambda reads: reading.reservations(reads, slug, path=path, now=now))
        return await self._html(request, "reservations", page=page, project=page.project, path=path)

    async def search(self, request: Request) -> Response:
        """Show the messages that a search finds."""
        slug, cursor = request.path_params["slug"], number(request, "cursor") or 0
        question = request.query_params.get("q", "").strip()[:MAX_QUESTION]
        order: SearchOrder = "best" if choice(request, "order", ("newest", "best")) == "best" else "newest"
        query = parse_query(question)
        project, page = await self._settled(
            lambda reads: reading.search(reads, slug, query, order=order, cursor=cursor)
        )
        looked_for = wording.wanted(query) if query else wording.Wanted()
        found = [(hit.message, wording.pieces(hit.snippet, looked_for)) for hit in page.rows]
        asked = {"q": question, "order": order, "has_asked": query is not None}
        return await self._html(request, "search", project=project, found=found, page=page, **asked)

    async def attachment(self, request: Request) -> Response:
        """Give an attachment's bytes, to be stored under the name that its message gives it."""
        sha256, message_id = _stored_file(request)
        wanted = request.query_params.get("name", "")
        matching, content = await self._stored(request, message_id, sha256)
        if content is None:
            return files.unchanged(etag=sha256)
        names = [one.name for one in matching]
        return files.download(content, wanted if wanted in names else names[0], etag=sha256)

    async def preview(self, request: Request) -> Response:
        """Give a picture to be shown within a page, of the four kinds that every browser knows."""
        sha256, message_id = _stored_file(request)
        _, content = await self._stored(request, message_id, sha256)
        if content is None:
            return files.unchanged(etag=sha256)
        media_type = files.picture_type(content)
        if media_type is None:
            raise UnknownMessage("this attachment is no picture that can be shown", value=sha256)
        return files.picture(content, media_type, etag=sha256)

    async def nowhere(self, request: Request) -> Response:
        """Say that there is no such page, in the project that the address names, if there is one."""
        status, told = HTTPStatus.NOT_FOUND, f"there is no page at {request.url.path}"
        slug = request.path_params.get("rest", "").partition("/")[0]
        found = (
            await page_of_failure(self._site, request, slug, status=status, message=told) if slug else None
        )
        return found or error_page(status, told)

    async def _settled(self, look: Callable[[MailReads], T]) -> T:
        """Read what also shows searches or threads, which a store may bring up to date a little later.

        On a full disk they are shown as they are: what came last may be missing among them.
        """
        try:
            await self._mail.settle()
        except StoreFull as error:
            _LOG.warning("pages.shown_as_they_are", code=error.code, reason=error.message)
        return await self._mail.read(look)

    async def _message(self, request: Request) -> tuple[Project, ShownMessage]:
        slug, given = request.path_params["slug"], request.path_params["message_id"]
        if not NUMBER.fullmatch(given):
            raise UnknownMessage(f"{given!r} is no message's number", value=given)
        return await self._mail.read(lambda reads: reading.message(reads, slug, int(given)))

    async def _stored(
        self, request: Request, message_id: int, sha256: str
    ) -> tuple[list[Attachment], bytes | None]:
        """Return the attachments with these bytes, and the bytes unless the browser has them."""
        fresh = request.headers.get("if-none-match") == f'"{sha256}"'

        def look(reads: MailReads) -> tuple[list[Attachment], bytes | None]:
            matching = reading.attached(reads, message_id, sha256)
            return matching, None if fresh else reads.blob(sha256)

        matching, content = await self._mail.read(look)
        if content is None and not fresh:
            raise UnknownMessage("the bytes of this attachment are not in the store", value=sha256)
        if content is not None and not await asyncio.to_thread(is_content_of, sha256, content):
            raise StoreCorrupt(
                "the bytes of this attachment changed on the disk",
                value=sha256,
                remedy="run `postroom doctor` on the server",
            )
        return matching, content

    async def _seen(self, sent: Sequence[ShownMessage]) -> Sequence[tuple[str, str]]:
        """Return how each reader will see a message that was sent just now, if there is one."""
        if not sent:
            return ()
        return await self._mail.read(lambda reads: reading.how_seen(reads, sent[0]))

    async def _bodies(self, project: Project, messages: Sequence[ShownMessage]) -> dict[int, Body]:
        standing = [one for one in messages if one.message.recalled_at is None]
        texts = {one.message.id: one.message.body_md for one in standing}
        named = await self._mail.read(lambda reads: reading.references(reads, project, texts))
        return await self._markdown.render(texts, {one.message.id: _pictures(one) for one in standing}, named)

    async def _presence(self, slug: str, agents: Sequence[Agent]) -> dict[int, presence.Presence]:
        at_work = {} if self._services is None else await self._services.runs.at_work(slug)
        now = self._clock.now()
        return await self._mail.read(
            lambda reads: presence.of(reads, agents, at_work, now=now, are_people=slug == PEOPLE_SLUG)
        )

    async def _html(
        self, request: Request, template: str, *, project: Project | None = None, **values: object
    ) -> Response:
        if project is None:
            given: dict[str, object] = {
                "now": self._clock.now(),
                "zone": await zone_of(request),
                "works": self._services is not None,
            }
            if self._services is not None:
                given["form_token"] = token_for(request, self._services.visitors)
            return await html(template, {**given, **values})
        return await project_page(self._site, request, template, values, project=project)


def _pictures(shown: ShownMessage) -> dict[str, str]:
    """Return the pictures that came with a message: their addresses by the names that its text may use."""
    found = [(one.name, files.shown_as(one)) for one in shown.attachments]
    return {name: links.preview(sha256, shown.message.id) for name, sha256 in found if sha256 and name}


def _stored_file(request: Request) -> tuple[str, int]:
    sha256, message_id = request.path_params["sha256"], number(request, "message")
    if not _SHA256.fullmatch(sha256) or message_id is None:
        raise UnknownMessage("no message is named that has this file", remedy="open it from its message")
    return sha256, message_id


def _address(request: Request) -> str:
    """Return where this server was reached, for the line that connects a client."""
    address = str(request.base_url).rstrip("/")
    return address if _ADDRESS.fullmatch(address) else DEFAULT_ADDRESS
