"""Pages on which people work: their services, and forms that change something.

A form is read within bounds, and taken only from the session that it was made for. The door in front has
refused other origins already. The token in the form is the second lock: it is made of the session's cookie,
so that nobody who cannot read our pages can write a form that we take.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from postroom.contracts.clock import Clock
from postroom.contracts.errors import InvalidArgument, NotPermitted, PostroomError, TooLarge
from postroom.contracts.mail import Project
from postroom.contracts.work import WorkCounts
from postroom.services.login_codes import FORM_TOKEN, typed_in
from postroom.services.people import DraftFile, MessageService
from postroom.services.questions import QuestionService
from postroom.services.schedules import MailSchedules
from postroom.services.work import WorkService
from postroom.stores.mail.store import MailStore
from postroom.web import links, reading
from postroom.web.frame import cursor, frame
from postroom.web.serving import (
    Endpoint,
    failure_values,
    html,
    parts_of,
    remedy_of,
    status_of,
    typed_into,
    zone_of,
)

FORM_TYPE: Final = "application/x-www-form-urlencoded"
FILES_TYPE: Final = "multipart/form-data"
"""The type of a form with files."""
_BOUNDARY: Final = re.compile(r';\s*boundary="?([A-Za-z0-9\'()+_,./:=? -]{1,70})"?\s*$', re.IGNORECASE)
_FIELD: Final = re.compile(
    rb'^content-disposition:[ \t]*form-data;[ \t]*name="([^"\r\n]*)"(?:;[ \t]*filename="([^"\r\n]*)")?',
    re.IGNORECASE | re.MULTILINE,
)
SMALL_FORM: Final = 32 * 1024
"""Bytes of a form without a message in it."""
MOST_FIELDS: Final = 1_000
NAME_COOKIE: Final = "postroom_name"
NAME_KEPT: Final = 365 * 24 * 3600
"""Seconds for which a browser remembers as whom its person writes."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LISTS: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "t": ("Threads", links.threads),
    "m": ("Threads", links.threads),
    "threads": ("Threads", links.threads),
    "timeline": ("Timeline", links.timeline),
    "search": ("Search", links.search),
    "agents": ("Agents", links.agents),
    "reservations": ("Reservations", links.reservations),
    "runs": ("Runs", links.runs),
    "questions": ("Questions", links.questions),
    "schedules": ("Schedules", links.schedules),
}
"""By what stands behind a project in an address: the list of such things, and what it is called."""
_WORKED_ON: Final = ("runs", "questions", "schedules")
"""Lists that are there only where people can work on the pages."""


class Visitors(Protocol):
    """Who is at the pages, by what their cookies say."""

    def form_token(self, cookies: str) -> str | None:
        """Return what a form holds that is made for this session; None when there is no session."""
        ...

    def takes_form(self, cookies: str, token: str) -> bool:
        """Return whether a form that holds this token was made for this session."""
        ...


@dataclass(frozen=True, slots=True)
class Form:
    """What somebody sent: texts by the names of their fields, in order."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    files: tuple[DraftFile, ...] = ()
    is_cut: bool = False
    """Whether its files were over their limit: of them, and of what came after, nothing is here."""

    def text(self, name: str) -> str:
        """Return the first text of a field, with plain line ends; "" when it is not there."""
        return self.fields.get(name, [""])[0].replace("\r\n", "\n")

    def all(self, name: str) -> list[str]:
        """Return every text of a field."""
        return self.fields.get(name, [])


def token_for(request: Request, visitors: Visitors) -> str:
    """Return the token for the forms of a page; "" for who has no session, whose forms are not taken."""
    return visitors.form_token(_cookies(request)) or ""


async def read_form(
    request: Request, visitors: Visitors, *, limit: int = SMALL_FORM, files_limit: int = 0
) -> Form:
    """Return a form that was sent by the session for which it was made.

    With a `files_limit`, in bytes, the form may have files.

    Raises:
        NotPermitted: it was not; nothing of it was read.
        TooLarge: it has more than `limit` bytes.
        InvalidArgument: it is no form.
    """
    if request.scope.get("state", {}).get("caller") != "person":
        raise NotPermitted(
            "forms are taken from people who have logged in",
            remedy="log in; programs use the command line, /v1 or /admin",
        )
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind == FILES_TYPE and files_limit and (boundary := _BOUNDARY.search(given)):
        body, is_cut = await _body(request, limit + files_limit)
        form = await asyncio.to_thread(_parts, body, boundary[1].encode(), is_cut=is_cut)
    elif kind == FORM_TYPE:
        body, is_cut = await _body(request, limit)
        if is_cut:
            raise TooLarge(
                f"the form is larger than {limit} bytes", value=limit, remedy="send less; nothing was changed"
            )
        form = _parsed(body)
    else:
        raise InvalidArgument("this is not the form of a page", remedy=f"send it as {FORM_TYPE}")
    if not visitors.takes_form(_cookies(request), form.text(FORM_TOKEN)):
        request.state.typed = typed_in(form.fields)
        raise NotPermitted(
            "the form was not made for this session; nothing was changed",
            remedy="load the page again and send its form",
        )
    return form


def remembered_name(request: Request) -> str:
    """Return as whom this browser's person wrote last; "" when that is not known."""
    name = request.cookies.get(NAME_COOKIE, "")
    return name if _NAME.fullmatch(name) else ""


def remember_name(request: Request, answer: Response, name: str) -> None:
    """Have the browser remember as whom its person writes; a name that no agent can have is passed over."""
    if _NAME.fullmatch(name):
        answer.set_cookie(
            NAME_COOKIE,
            name,
            max_age=NAME_KEPT,
            path="/p",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


def _cookies(request: Request) -> str:
    return "; ".join(request.headers.getlist("cookie"))


async def _body(request: Request, limit: int) -> tuple[bytes, bool]:
    """Return the body of a request, and whether it is cut after `limit` bytes.

    The rest is received: a browser reads no answer before it has sent its form.
    """
    parts, size = list[bytes](), 0
    async for part in request.stream():
        if size < limit:
            parts.append(part[: limit - size])
        size += len(part)
    return b"".join(parts), size > limit


def _parts(body: bytes, boundary: bytes, *, is_cut: bool) -> Form:
    """Return a form with files. Of a form that is cut, return the fields before the cut.

    Raises:
        InvalidArgument: The form cannot be read.
    """
    fields: dict[str, list[str]] = {}
    files = list[DraftFile]()
    *parts, end = (b"\r\n" + body).split(b"\r\n--" + boundary, MOST_FIELDS + 1)
    is_whole = end.startswith(b"--") and not (parts and parts[0])
    heads = [part.removeprefix(b"\r\n").partition(b"\r\n\r\n") for part in parts[1:]]
    named = [(_FIELD.search(head), content) for head, _, content in heads]
    try:
        for found, content in named:
            if found is None or not (is_whole or is_cut):
                raise InvalidArgument("the form cannot be read", remedy="load the page again")
            name, filename = found[1].decode(), found[2]
            if filename is None:
                fields.setdefault(name, []).append(content.decode())
            elif filename:  # it is empty if no file was chosen
                files.append(DraftFile(filename.decode().replace("%22", '"'), content))
    except UnicodeDecodeError as error:
        raise InvalidArgument("the form cannot be read", remedy="load the page again") from error
    return Form(fields, tuple(files), is_cut)


def _parsed(body: bytes) -> Form:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS
        )
    except ValueError as error:
        raise InvalidArgument("the form cannot be read", remedy="load the page again") from error
    fields: dict[str, list[str]] = {}
    for name, text in pairs:
        fields.setdefault(name, []).append(text)
    return Form(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServices:
    """Everything that the pages need so that people can work on them."""

    visitors: Visitors
    questions: QuestionService
    messages: MessageService
    runs: WorkService
    schedules: MailSchedules


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What any page is made of; without services nothing can be changed on it."""

    mail: MailStore
    clock: Clock
    services: PageServices | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """What the endpoints work with."""

    mail: MailStore
    clock: Clock
    services: PageServices

    @property
    def site(self) -> Site:
        """What its pages are made of."""
        return Site(mail=self.mail, clock=self.clock, services=self.services)

    async def project(self, request: Request) -> Project:
        """Return the project of an address.

        Raises:
            UnknownProject: there is none.
        """
        slug = request.path_params["slug"]
        return await self.mail.read(lambda reads: reading.known_project(reads, slug))

    async def html(
        self, request: Request, template: str, status: int = 200, *, project: Project, **values: object
    ) -> Response:
        """Return a page with forms for the session that asks for it."""
        return await project_page(self.site, request, template, values, project=project, status=status)


def following(site: Site, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint, which notes first how far the log of its project is: a page tells of it live.

    What happens while the page is gathered comes behind that place, so that nothing is missed. Where
    the address names a project that is there, a typed failure is a page of it, from which one can go on.
    """

    async def answer(request: Request) -> Response:
        slug = request.path_params.get("slug")
        if slug is not None and request.method == "GET":
            request.state.after = await site.mail.read(lambda reads: cursor(reads, slug))
        try:
            return await endpoint(request)
        except PostroomError as error:
            found = None if slug is None else await _failed_in(site, request, slug, error)
            if found is None:
                raise
            return found

    return answer


async def _failed_in(site: Site, request: Request, slug: str, error: PostroomError) -> Response | None:
    try:
        return await page_of_failure(
            site, request, slug, status=status_of(error), message=error.message, remedy=remedy_of(error)
        )
    except PostroomError:  # the frame fails as the page did: the store is gone, or too much was asked of it
        return None


async def page_of_failure(
    site: Site, request: Request, slug: str, *, status: int, message: str, remedy: str = ""
) -> Response | None:
    """Return a page of a project that says what is wrong; None when there is no such project.

    It is whole, whichever parts were asked for, and it is not live: it would be fetched anew to fail again.
    """
    project = await site.mail.read(lambda reads: reads.project(slug))
    if project is None:
        return None
    values = failure_values(
        status,
        message,
        remedy=remedy,
        typed=typed_into(request),
        ways=_ways_on(request.scope["path"], slug, works=site.services is not None),
        names=[slug],
    )
    return await _framed(site, request, "error", values, project=project, status=status, parts=())


def _ways_on(path: str, slug: str, *, works: bool) -> list[tuple[str, str]]:
    """Return where to go from what failed within a project: the list of its kind, and the first page."""
    kind = path.partition(f"/p/{slug}/")[2].partition("/")[0]
    found = _LISTS.get(kind)
    listed = [] if found is None or (kind in _WORKED_ON and not works) else [(found[0], found[1](slug))]
    return [*listed, ("Control room", links.project(slug))]


async def project_page(
    site: Site,
    request: Request,
    template: str,
    values: Mapping[str, object],
    *,
    project: Project,
    status: int = 200,
) -> Response:
    """Return a page of a project in its frame, or those parts of it that the address asks for."""
    parts = parts_of(request)
    return await _framed(site, request, template, values, project=project, status=status, parts=parts)


async def _framed(  # noqa: PLR0913 - a page and what stands around it
    site: Site,
    request: Request,
    template: str,
    values: Mapping[str, object],
    *,
    project: Project,
    status: int,
    parts: Sequence[str],
) -> Response:
    me, now, services = remembered_name(request), site.clock.now(), site.services
    after = getattr(request.state, "after", 0)
    work = WorkCounts() if services is None else await services.runs.counts(project.slug)
    drawn_in = await site.mail.read(
        lambda reads: frame(reads, project, after=after, work=work, me=me, now=now)
    )
    shared = {
        "project": project,
        "now": now,
        "zone": await zone_of(request),
        "works": services is not None,
        "form_token": "" if services is None else token_for(request, services.visitors),
        "me": me,
    }
    return await html(template, {**shared, **values}, status, frame=drawn_in, parts=parts)


def see(address: str) -> Response:
    """Send a browser to a page after its form was taken, so that to load that again sends nothing."""
    return RedirectResponse(address, status_code=303)
