"""Serves every page in the same way: from one snapshot of the store, with one template."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from postroom.contracts.clock import Clock
from postroom.contracts.errors import InvalidArgument, PostroomError, StoreFull
from postroom.contracts.mail import Project
from postroom.contracts.work import OpenQuestion, WorkCounts
from postroom.log import get_logger
from postroom.markdown import Markdown
from postroom.services.login_codes import Sessions
from postroom.services.people import MessageService
from postroom.services.push import PushNotifier
from postroom.services.questions import QuestionService
from postroom.services.schedules import MailSchedules
from postroom.services.statuses import status_of
from postroom.services.work import WorkService
from postroom.stores.store import SqlStore, Transaction
from postroom.web import links
from postroom.web.reading import EMPTY, Frame, frame, known_project
from postroom.web.serving import (
    ENVIRONMENT,
    SEAL,
    TOLD,
    build_page,
    error_page,
    failure_values,
    read_cookies,
    read_parts,
    read_zone,
    remedy_at_pages,
    remembered_name,
    see,
    told_by,
    untold,
)

_LOG = get_logger(__name__)
TURN: Final = 400
"""The number of pieces of a page that are rendered without a pause, which takes about a millisecond."""
_LISTS: Final[Mapping[str, str]] = {
    "t": "threads",
    "m": "threads",
    **{name: name for name in ("threads", "timeline", "search", "agents", "reservations", "tasks", "notes")},
    **{name: name for name in ("runs", "questions", "schedules")},
}
"""The list to which an error page links, keyed by the path segment after the project."""
_WORKED_ON: Final = ("runs", "questions", "schedules")
"""The lists that exist only if people can change data on the pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServices:
    """The services through which people change data on the pages."""

    visitors: Sessions
    questions: QuestionService
    messages: MessageService
    runs: WorkService
    schedules: MailSchedules
    push: PushNotifier


@dataclass(frozen=True, slots=True)
class Shown:
    """The content of a page, from one snapshot of the store."""

    values: dict[str, Any]
    """The values for the template."""
    now: int
    project: Project | None = None
    frame: Frame = EMPTY


S = TypeVar("S", bound="Site")
Look = Callable[[Transaction, Project], dict[str, Any]]
"""A function that reads the content of a page of a project.

The result may also contain counts for the tabs, as `counts` and `conflicts`, so that they are not read twice.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The objects that all pages need.

    Without services, the pages are read-only.
    """

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

        An address with a slash at the end redirects to the address without the slash. `/p` redirects to `/`.
        An error is shown as an error page, in the frame of the project if there is one.
        """

        async def answer(request: Request) -> Response:
            typed: str = request.scope.get("raw_path", b"").decode("ascii", "replace").partition("?")[0]
            address, query = typed.rstrip("/"), f"?{request.url.query}" if request.url.query else ""
            if request.method == "GET" and (address == "/p" or (address and address != typed)):
                leads_to = "/" if address == "/p" else f"{address}{query}"
                return RedirectResponse(leads_to, status_code=HTTPStatus.PERMANENT_REDIRECT)
            if request.method == "GET" and not request.query_params.keys().isdisjoint(TOLD):
                notice = told_by(f"{address or '/'}{query}")
                seal, services = request.query_params.get(SEAL, ""), self.services
                if notice and not (
                    services is not None and services.visitors.is_sealed(read_cookies(request), notice, seal)
                ):  # only this server reports its last action in an address
                    return see(untold(f"{address or '/'}{query}"))
            try:
                return await page(self, request)
            except PostroomError as error:
                slug, typed_in = request.path_params.get("slug", ""), getattr(request.state, "typed", ())
                status, remedy = status_of(error), remedy_at_pages(error.remedy, error.code)
                return await self.failure(request, slug, status, error.message, remedy=remedy, typed=typed_in)

        return Route(path, answer, methods=list(methods))

    async def read(self, request: Request, look: Look, *, slug: str = "", is_fresh: bool = False) -> Shown:
        """Read the content and the frame of a project's page from one snapshot of the store.

        If `is_fresh` is true, searches and lists of threads contain the newest messages, unless the disk is
        full.

        Raises:
            UnknownProject: The project in the address, or `slug`, does not exist.
        """
        slug, me, services = slug or request.path_params["slug"], remembered_name(request), self.services
        if is_fresh:
            await self.settle()

        def view(tx: Transaction) -> Shown:
            project = known_project(tx.mail, slug)
            after, values = tx.mail.newest_entry(project.id), look(tx, project)
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
        """Make later searches and lists of threads contain the newest messages, unless the disk is full."""
        try:
            await self.store.settle()
        except StoreFull as error:
            _LOG.warning("pages.shown_as_they_are", code=error.code, reason=error.message)

    async def draw(
        self,
        request: Request,
        template: str,
        shown: Shown,
        status: int = HTTPStatus.OK,
        *,
        questions: Sequence[OpenQuestion] = (),
        **values: object,
    ) -> Response:
        """Return a page that browsers must not cache, or the parts of the page that the address requests.

        After the page has been sent, the questions in `questions` are recorded as shown.

        Raises:
            InvalidArgument: The page has no such part.
        """
        parts = () if "status" in shown.values else read_parts(request)
        drawn = ENVIRONMENT.get_template(f"{template}.html")
        for name in parts:
            if name != "tabs" and name not in drawn.blocks:
                raise InvalidArgument(
                    f"this page has no part {name[:40]!r}", value=name, remedy="load the whole page"
                )
        services = self.services
        token = None if services is None else services.visitors.form_token(read_cookies(request))
        filled = {
            "q": "",
            **shown.values,
            **values,
            "project": shown.project,
            "frame": shown.frame,
            "now": shown.now,
            "zone": await read_zone(request),
            "works": services is not None,
            "form_token": token or "",
            "me": remembered_name(request),
            "layout": "parts_only.html" if parts else "base.html",
            "wanted": parts,
        }
        pieces = list[str]()
        for piece in drawn.generate(filled):
            pieces.append(piece)
            if len(pieces) % TURN == 0:
                await asyncio.sleep(0)
        page = build_page(pieces, status, shown.frame.after)
        if services is not None and questions:
            numbers = [(question.run_id, question.number) for question in questions]
            page.background = BackgroundTask(services.questions.note_shown, numbers, "on the pages")
        return page

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
        """Return an error page in the frame of the project `slug`, if the project exists.

        The response is always a complete page, and the page does not update itself.
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
        except PostroomError:  # the project does not exist, or the store cannot be read
            return alone


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingSite(Site):
    """The objects that pages need if people can change data."""

    services: PageServices

    def done(self, request: Request, address: str) -> Response:
        """Redirect a browser to a page that reports an action, with a seal that prevents forged reports."""
        address, mark, place = address.partition("#")
        seal = self.services.visitors.seal(read_cookies(request), told_by(address))
        return see(f"{address}&{urlencode({SEAL: seal})}{mark}{place}")

    async def project(self, request: Request) -> Project:
        """Return the project that an address names.

        Raises:
            UnknownProject: No such project exists.
        """
        slug = request.path_params["slug"]
        return await self.store.read(lambda tx: known_project(tx.mail, slug))
