"""The pages people look at: read-only, made on the server, without a script.

Each endpoint reads its parameters, gathers one view of the store (`reading`) and fills one template. A
failure of the house becomes a page in the same look; anything else is left to the edge of the application.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from postroom.contracts.clock import Clock
from postroom.contracts.errors import (
    AccessError,
    InputError,
    InvalidArgument,
    PostroomError,
    StateError,
    StoreError,
    UnknownAgent,
    UnknownMessage,
    UnknownProject,
    UnknownThread,
)
from postroom.contracts.mail import Attachment, Message, Project, Query, SearchOrder
from postroom.contracts.store import MailReads, MailStore
from postroom.web import files, marks, reading
from postroom.web.assets import asset_routes
from postroom.web.markdown import Body, Markdown
from postroom.web.templating import render
from postroom.web.timeline import timeline
from postroom.web.views import Letter

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

MAX_QUESTION = 500
"""Characters of a search that are read."""
SHOWN_PICTURE = 512 * 1024
"""Bytes of a picture without a preview up to which it is shown itself."""
DEFAULT_ADDRESS = "http://127.0.0.1:8765"

_NUMBER = re.compile(r"[0-9]{1,18}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")

_STATUS: tuple[tuple[type[PostroomError], HTTPStatus], ...] = (
    (UnknownProject, HTTPStatus.NOT_FOUND),
    (UnknownAgent, HTTPStatus.NOT_FOUND),
    (UnknownMessage, HTTPStatus.NOT_FOUND),
    (UnknownThread, HTTPStatus.NOT_FOUND),
    (InputError, HTTPStatus.BAD_REQUEST),
    (AccessError, HTTPStatus.FORBIDDEN),
    (StateError, HTTPStatus.CONFLICT),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    (PostroomError, HTTPStatus.INTERNAL_SERVER_ERROR),
)


def page_routes(
    mail: MailStore, *, clock: Clock, parse_query: Callable[[str], Query | None]
) -> list[BaseRoute]:
    """Return the routes of the pages and of what they fetch.

    No request reads a file: templates and assets are in memory. Every path is `/` itself or lies under `/p`,
    `/attachments`, `/previews` or `/static`.
    """
    pages = Pages(mail, clock=clock, parse_query=parse_query)
    endpoints: Sequence[tuple[str, Endpoint]] = (
        ("/", pages.projects),
        ("/p/{slug}", pages.project),
        ("/p/{slug}/agents", pages.agents),
        ("/p/{slug}/agents/{name:path}", pages.agent),
        ("/p/{slug}/timeline", pages.timeline),
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
    return [Route(path, pages.guarded(endpoint)) for path, endpoint in endpoints] + asset_routes()


def error_page(status: int, message: str, *, remedy: str = "") -> Response:
    """Return a page in the look of the others that says what is wrong, and what to do about it."""
    words = {"title": HTTPStatus(status).phrase, "message": message, "remedy": remedy}
    return _html("error", {"status": int(status), **words}, status)


class Pages:
    """The endpoints, over one store."""

    def __init__(self, mail: MailStore, *, clock: Clock, parse_query: Callable[[str], Query | None]) -> None:
        self._mail = mail
        self._clock = clock
        self._parse_query = parse_query
        self._markdown = Markdown()

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint, with a page in the place of each failure of the house."""

        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request)
            except PostroomError as error:
                status = next(status for kind, status in _STATUS if isinstance(error, kind))
                return error_page(status, error.message, remedy=error.remedy)

        return answer

    async def projects(self, request: Request) -> Response:
        """Show every project."""
        after = _number(request, "after") or 0
        page = await self._settled(lambda reads: reading.projects(reads, after=after))
        return self._html("projects", page=page, after=after, address=_address(request))

    async def project(self, request: Request) -> Response:
        """Show a project's newest threads, agents and reservations."""
        slug, now = request.path_params["slug"], self._clock.now()
        page = await self._settled(lambda reads: reading.overview(reads, slug, now=now))
        return self._html("project", page=page, project=page.project)

    async def timeline(self, request: Request) -> Response:
        """Show what happened in a project, the newest first; live, the page loads itself again."""
        slug, now = request.path_params["slug"], self._clock.now()
        live = _choice(request, "live", ("0", "1")) == "1"
        page = await self._mail.read(lambda reads: timeline(reads, slug, now=now))
        return self._html("timeline", page=page, project=page.project, live=live)

    async def threads(self, request: Request) -> Response:
        """Show a project's threads, the newest first."""
        slug, before = request.path_params["slug"], _number(request, "before")
        project, page = await self._settled(lambda reads: reading.threads(reads, slug, before=before))
        return self._html("threads", project=project, page=page, before=before)

    async def thread(self, request: Request) -> Response:
        """Show messages of a thread, in order."""
        slug, thread_id = request.path_params["slug"], request.path_params["thread_id"]
        after, newest = _number(request, "after") or 0, _number(request, "newest") == 1
        page = await self._mail.read(
            lambda reads: reading.thread(reads, slug, thread_id, after=after, newest=newest)
        )
        bodies = await self._bodies([letter.message for letter in page.letters.rows])
        return self._html("thread", page=page, project=page.project, bodies=bodies)

    async def message(self, request: Request) -> Response:
        """Show one message."""
        project, letter = await self._message(request)
        bodies = await self._bodies([letter.message])
        return self._html("message", project=project, letter=letter, bodies=bodies)

    async def source(self, request: Request) -> Response:
        """Give a message's text as it was written, to be stored."""
        _, letter = await self._message(request)
        if letter.message.recalled_at is not None:
            raise UnknownMessage("this message was recalled; its text is gone", remedy="")
        text = letter.message.body_md.encode("utf-8", "replace")
        return files.download(text, f"message-{letter.message.id}.md", etag=f"message-{letter.message.id}")

    async def agents(self, request: Request) -> Response:
        """Show a project's agents."""
        slug, after = request.path_params["slug"], _number(request, "after") or 0
        project, page = await self._mail.read(lambda reads: reading.agents(reads, slug, after=after))
        return self._html("agents", project=project, page=page, after=after)

    async def agent(self, request: Request) -> Response:
        """Show an agent with its inbox or what it sent, and what it has reserved."""
        slug, name = request.path_params["slug"], request.path_params["name"]
        before, now = _number(request, "before"), self._clock.now()
        sent = _choice(request, "box", ("inbox", "sent")) == "sent"
        page = await self._settled(
            lambda reads: reading.agent(reads, slug, name, sent=sent, before=before, now=now)
        )
        return self._html("agent", page=page, project=page.project, sent=sent, before=before)

    async def reservations(self, request: Request) -> Response:
        """Show what is reserved, and what was reserved last."""
        slug, now = request.path_params["slug"], self._clock.now()
        path = request.query_params.get("path", "").strip()[:MAX_QUESTION]
        page = await self._mail.read(lambda reads: reading.reservations(reads, slug, path=path, now=now))
        return self._html("reservations", page=page, project=page.project, path=path)

    async def search(self, request: Request) -> Response:
        """Show the messages that a search finds."""
        slug, cursor = request.path_params["slug"], _number(request, "cursor") or 0
        question = request.query_params.get("q", "").strip()[:MAX_QUESTION]
        order: SearchOrder = "best" if _choice(request, "order", ("newest", "best")) == "best" else "newest"
        query = self._parse_query(question)
        project, page = await self._settled(
            lambda reads: reading.search(reads, slug, query, order=order, cursor=cursor)
        )
        looked_for = marks.wanted(query) if query else marks.Wanted()
        found = [(hit.message, marks.pieces(hit.snippet, looked_for)) for hit in page.rows]
        asked = {"q": question, "order": order, "asked": query is not None}
        return self._html("search", project=project, found=found, page=page, **asked)

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
        """Say that there is no such page."""
        return error_page(HTTPStatus.NOT_FOUND, f"there is no page at {request.url.path}")

    async def _settled(self, look: Callable[[MailReads], T]) -> T:
        """Read what also shows searches or threads, which a store may bring up to date a little later."""
        await self._mail.settle()
        return await self._mail.read(look)

    async def _message(self, request: Request) -> tuple[Project, Letter]:
        slug, given = request.path_params["slug"], request.path_params["message_id"]
        if not _NUMBER.fullmatch(given):
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
        return matching, content

    async def _bodies(self, messages: Sequence[Message]) -> dict[int, Body]:
        texts = {one.id: one.body_md for one in messages if one.recalled_at is None}
        return await self._markdown.render(texts)

    def _html(self, template: str, **values: object) -> Response:
        return _html(template, {"now": self._clock.now(), "shown_picture": SHOWN_PICTURE, **values})


def _html(template: str, values: dict[str, object], status: int = HTTPStatus.OK) -> Response:
    return Response(
        render(template, **{"project": None, "q": "", "now": None, **values}),
        status_code=status,
        media_type="text/html; charset=utf-8",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
    )


def _number(request: Request, name: str) -> int | None:
    given = request.query_params.get(name)
    if given is None:
        return None
    if not _NUMBER.fullmatch(given):
        raise InvalidArgument(f"{name} must be a number, not {given[:40]!r}", value=given, remedy="go back")
    return int(given)


def _choice(request: Request, name: str, allowed: tuple[str, ...]) -> str:
    given = request.query_params.get(name, allowed[0])
    if given not in allowed:
        raise InvalidArgument(
            f"{name} must be one of {', '.join(allowed)}, not {given[:40]!r}", value=given, remedy="go back"
        )
    return given


def _stored_file(request: Request) -> tuple[str, int]:
    sha256, message_id = request.path_params["sha256"], _number(request, "message")
    if not _SHA256.fullmatch(sha256) or message_id is None:
        raise UnknownMessage("no message is named that has this file", remedy="open it from its message")
    return sha256, message_id


def _address(request: Request) -> str:
    """Return where this server was reached, for the line that connects a client."""
    address = str(request.base_url).rstrip("/")
    return address if _ADDRESS.fullmatch(address) else DEFAULT_ADDRESS
