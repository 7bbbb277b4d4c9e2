"""What each page is made of: one look at the store, one template, and a page in place of a typed failure."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from postroom.contracts.clock import Clock
from postroom.contracts.errors import InvalidArgument, PostroomError, StoreFull
from postroom.contracts.mail import Project
from postroom.contracts.work import WorkCounts
from postroom.log import get_logger
from postroom.markdown import Markdown
from postroom.services.login_codes import Sessions
from postroom.services.people import MessageService
from postroom.services.questions import QuestionService
from postroom.services.schedules import MailSchedules
from postroom.services.statuses import status_of
from postroom.services.work import WorkService
from postroom.stores.store import SqlStore
from postroom.stores.transaction import Transaction
from postroom.web import links
from postroom.web.frame import EMPTY, Frame, frame
from postroom.web.reading import known_project
from postroom.web.serving import (
    ENVIRONMENT,
    cookies_of,
    error_page,
    failure_values,
    page_of,
    parts_of,
    remedy_at_pages,
    remembered_name,
    zone_of,
)

_LOG = get_logger(__name__)
TURN: Final = 400
"""Pieces of a page that are filled in one turn of the event loop: about a millisecond."""
_LISTS: Final[Mapping[str, str]] = {
    "t": "threads",
    "m": "threads",
    **{name: name for name in ("threads", "timeline", "search", "agents", "reservations")},
    **{name: name for name in ("runs", "questions", "schedules")},
}
"""The list to which a failure in a project leads, by the word behind the project in an address."""
_WORKED_ON: Final = ("runs", "questions", "schedules")
"""Lists that are there only where people can work on the pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServices:
    """Everything that the pages need so that people can work on them."""

    visitors: Sessions
    questions: QuestionService
    messages: MessageService
    runs: WorkService
    schedules: MailSchedules


@dataclass(frozen=True, slots=True)
class Shown:
    """What one look at the store found for a page."""

    values: dict[str, Any]
    """What the template is filled with."""
    now: int
    project: Project | None = None
    frame: Frame = EMPTY


S = TypeVar("S", bound="Site")
Look = Callable[[Transaction, Project], dict[str, Any]]
"""Reads everything that a page of a project shows.

What it found of the counts on the tabs it may return as `counts` and `conflicts`: they are not read again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What any page is made of; without services nothing can be changed on it."""

    store: SqlStore
    clock: Clock
    services: PageServices | None = None
    markdown: Markdown = field(default_factory=Markdown)

    def route(
        self: S,
        path: str,
        page: Callable[[S, Request], Awaitable[Response]],
        methods: Sequence[str] = ("GET",),
    ) -> Route:
        """Return the route of a page.

        An address that ends in a slash leads to the same without it, and `/p` to `/`; a slash within a name
        is quoted. A typed failure becomes a page, of the project where the address names one.
        """

        async def answer(request: Request) -> Response:
            typed: str = request.scope.get("raw_path", b"").decode("ascii", "replace").partition("?")[0]
            address, query = typed.rstrip("/"), f"?{request.url.query}" if request.url.query else ""
            if request.method == "GET" and (address == "/p" or (address and address != typed)):
                leads_to = "/" if address == "/p" else f"{address}{query}"
                return RedirectResponse(leads_to, status_code=HTTPStatus.PERMANENT_REDIRECT)
            try:
                return await page(self, request)
            except PostroomError as error:
                slug, typed_in = request.path_params.get("slug", ""), getattr(request.state, "typed", ())
                status, remedy = status_of(error), remedy_at_pages(error.remedy, error.code)
                return await self.failure(request, slug, status, error.message, remedy=remedy, typed=typed_in)

        return Route(path, answer, methods=list(methods))

    async def read(self, request: Request, look: Look, *, slug: str = "", is_fresh: bool = False) -> Shown:
        """Read a page of a project, and what stands around it, in one view of the store.

        With `is_fresh` search and threads have what was written last, unless the disk is full.

        Raises:
            UnknownProject: there is none that the address, or `slug`, names.
        """
        slug, me, services = slug or request.path_params["slug"], remembered_name(request), self.services
        if is_fresh:
            await self.settle()

        def view(tx: Transaction) -> Shown:
            project = known_project(tx.mail, slug)
            after, values = tx.mail.log_bounds(project.id).newest, look(tx, project)
            counts = values.get("counts") or (
                WorkCounts() if services is None else services.runs.counts(tx, slug)
            )
            now = self.clock.now()
            around = frame(
                tx.mail, project, after=after, work=counts, me=me, now=now, overlaps=values.get("conflicts")
            )
            return Shown(values, now, project, around)

        return await self.store.read(view)

    async def settle(self) -> None:
        """Let reads that begin now see the newest messages in search and threads, unless the disk is full."""
        try:
            await self.store.settle()
        except StoreFull as error:
            _LOG.warning("pages.shown_as_they_are", code=error.code, reason=error.message)

    async def draw(
        self, request: Request, template: str, shown: Shown, status: int = HTTPStatus.OK, **values: object
    ) -> Response:
        """Return a page, never to be kept by anybody on the way, or those parts that the address asks for.

        A large page takes long to fill: whoever else the event loop serves comes in between.

        Raises:
            InvalidArgument: the page has no such part.
        """
        parts = () if "status" in shown.values else parts_of(request)
        known = ENVIRONMENT.get_template(f"{template}.html")
        for name in parts:
            if name != "tabs" and name not in known.blocks:
                raise InvalidArgument(
                    f"this page has no part {name[:40]!r}", value=name, remedy="load the whole page"
                )
        services = self.services
        token = None if services is None else services.visitors.form_token(cookies_of(request))
        filled = {
            "q": "",
            **shown.values,
            **values,
            "project": shown.project,
            "frame": shown.frame,
            "now": shown.now,
            "zone": await zone_of(request),
            "works": services is not None,
            "form_token": token or "",
            "me": remembered_name(request),
            "layout": "parts_only.html" if parts else "base.html",
            "wanted": parts,
        }
        pieces = list[str]()
        for piece in known.generate(filled):
            pieces.append(piece)
            if len(pieces) % TURN == 0:
                await asyncio.sleep(0)
        return page_of(pieces, status, shown.frame.after)

    async def failure(
        self,
        request: Request,
        slug: str,
        status: int,
        message: str,
        *,
        remedy: str = "",
        typed: Sequence[str] = (),
    ) -> Response:
        """Return a page that says what is wrong, of the project `slug` if there is one.

        It is whole, whichever parts were asked for, and not live: it would be fetched anew to fail again.
        """
        alone = error_page(status, message, remedy=remedy, typed=typed)
        if not slug:
            return alone
        values = failure_values(status, message, remedy=remedy, typed=typed, name=slug)
        name = _LISTS.get(request.scope["path"].partition(f"/p/{slug}/")[2].partition("/")[0], "")
        if name in _WORKED_ON and self.services is None:
            name = ""
        ways = [("Control room", links.page(slug)), ("All projects", "/")]
        values["ways"] = [(name.capitalize(), links.page(slug, name)), *ways] if name else ways
        try:
            shown = await self.read(request, lambda _tx, _project: values, slug=slug)
            return await self.draw(request, "error", shown, status)
        except PostroomError:  # there is no such project, or the store is gone
            return alone


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingSite(Site):
    """What the pages are made of on which people work."""

    services: PageServices

    async def project(self, request: Request) -> Project:
        """Return the project of an address.

        Raises:
            UnknownProject: there is none.
        """
        slug = request.path_params["slug"]
        return await self.store.read(lambda tx: known_project(tx.mail, slug))
