"""Code that all pages share: templates, HTML responses, error pages, and query parameters.

Everything in a template is escaped, unless code marks it as safe.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from http import HTTPStatus
from importlib import resources
from typing import Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import DictLoader, Environment, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from postroom.contracts.clock import every, from_iso
from postroom.contracts.errors import (
    InvalidArgument,
    UnknownAgent,
    UnknownMessage,
    UnknownNote,
    UnknownProject,
    UnknownReservation,
    UnknownTask,
)
from postroom.contracts.mail import EVENT_KINDS
from postroom.contracts.plain_answers import check_person_name
from postroom.contracts.quoting import exact, sentence
from postroom.contracts.work import SHOWN_STATES
from postroom.mail.conversation import awaited
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mail.projects import PEOPLE_SLUG
from postroom.mail.views import delivery_state
from postroom.web import links
from postroom.web.files import ASSET_LINKS
from postroom.web.reading import EMPTY, Face, Frame, shown_as
from postroom.web.wording import (
    absolute,
    clip,
    clock_time,
    extension,
    folder_name,
    gist,
    initials,
    lasting,
    lines,
    moment,
    one_line,
    relative,
    size_text,
)

W = TypeVar("W", bound=str)

NUMBER = re.compile(r"[0-9]{1,18}")
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,20}(?:/[A-Za-z0-9_+-]{1,20}){0,2}")
_PART = re.compile(r"[a-z_]{1,40}")
NAME_COOKIE: Final = "postroom_name"
NAME_KEPT: Final = 365 * 24 * 3600
"""The number of seconds for which a browser remembers the name of its user."""
_UTC_TIME: Final = re.compile(r"(?:\bat )?\b(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z)")
"""Matches a time in the form of `contracts.clock.iso`, and the word "at", "since" or "until" before it."""
TOLD: Final = ("done", "answered", "many", "skipped", "sent")
"""The query parameters with which a page reports the server's last action."""
SEAL: Final = "seal"
"""The query parameter which proves that the server has written the report."""
MAX_PARTS = 12
MAX_QUESTION = 500
"""Maximum number of characters in a search. The rest is ignored."""
MAX_NAME_LENGTH = 128
"""Maximum number of characters of a name in a filter. The rest is ignored."""

_TOOLS = re.compile(
    rf"\b({'|'.join(operation.name for operation in MAIL_OPERATIONS)})\b|`[a-z_.]+`|\barguments are:"
)
"""Matches tools, and arguments in backticks, in remedies for agents."""
_REMEDIES: Final[Mapping[str, str]] = {
    UnknownProject.code: "see the list of projects",
    UnknownAgent.code: "see the project's agents",
    UnknownMessage.code: "search for it, or see the threads",
    UnknownReservation.code: "see the project's reservations",
    UnknownTask.code: "see the project's tasks",
    UnknownNote.code: "see the project's notes",
}


def told_by(address: str) -> str:
    """Return the path of a URL with the query parameters that report the result of a form.

    The result is "" if the URL has no such parameters.
    """
    place = urlsplit(address)
    values = [(name, text) for name, text in parse_qsl(place.query) if name in TOLD]
    return f"{place.path}?{urlencode(values)}" if values else ""


def untold(address: str) -> str:
    """Return a URL without the query parameters that report the result of a form."""
    place = urlsplit(address)
    pairs = [(name, text) for name, text in parse_qsl(place.query, True) if name not in (*TOLD, SEAL)]
    return urlunsplit(place._replace(query=urlencode(pairs)))


def see(address: str) -> Response:
    """Redirect a browser to a page after a form was accepted.

    A reload of the page does not send the form again.
    """
    return RedirectResponse(address, status_code=303)


def read_parts(request: Request) -> Sequence[str]:
    """Return the parts of a page that an address requests, or no parts for the whole page.

    Raises:
        InvalidArgument: A name is not the name of a part.
    """
    given_param = request.query_params.get("part", "")
    names = given_param.split(",") if given_param else []
    for name in names:
        if not _PART.fullmatch(name):
            raise InvalidArgument(
                f"{name[:40]!r} is not the name of a part of this page",
                value=name[:40],
                remedy="load the page",
            )
    return names[:MAX_PARTS]


def error_page(status: int, message: str, *, remedy: str = "", typed: Sequence[str] = ()) -> Response:
    """Return an error page with a remedy.

    `typed` contains the texts that a person typed into a form. The page shows the texts for copying.
    """
    values = {
        **failure_values(status, message, remedy=remedy, typed=typed),
        **dict.fromkeys(("project", "now")),
        **dict.fromkeys(("q", "me", "form_token"), ""),
        "works": False,
        "zone": UTC,
        "layout": "base.html",
        "wanted": (),
        "frame": EMPTY,
    }
    return build_page(ENVIRONMENT.get_template("error.html").generate(values), status)


def failure_values(
    status: int, message: str, *, remedy: str, typed: Sequence[str], name: str = ""
) -> dict[str, object]:
    """Return the values for the error template.

    If the message starts with the word `name`, the case of the word does not change.
    """
    return {
        "status": int(status),
        "title": HTTPStatus(status).phrase,
        "message": sentence(message, name),
        "remedy": sentence(remedy),
        "typed": typed,
        "ways": [("All projects", "/")],
    }


def build_page(pieces: Iterable[str], status: int, after: int = 0) -> Response:
    """Return a page that browsers must not cache.

    `after` is the position of the page in the project's log.
    """
    return Response(
        # Lone surrogates, which only a store in memory can contain, become question marks.
        "".join(pieces).encode("utf-8", "replace"),
        status_code=status,
        media_type="text/html; charset=utf-8",
        headers={
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Postroom-After": str(after),
        },
    )


def remedy_at_pages(remedy: str, code: str, here: Mapping[str, str] | None = None) -> str:
    """Return the remedy that a page shows for an error.

    A remedy that is meant for agents is replaced. `here` contains the page's own remedies, keyed by error
    code.
    """
    if not _TOOLS.search(remedy):
        return remedy
    return {**_REMEDIES, **(here or {})}.get(code, "")


async def read_zone(request: Request) -> tzinfo:
    """Return the viewer's time zone, or UTC if the time zone is unknown."""
    name = request.cookies.get("postroom_zone", "")
    try:
        return await asyncio.to_thread(ZoneInfo, name) if _ZONE.fullmatch(name) else UTC
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return UTC


def read_cookies(request: Request) -> str:
    """Return the Cookie header of a request."""
    return "; ".join(request.headers.getlist("cookie"))


def _can_be_remembered(name: str) -> bool:
    try:
        return check_person_name(name) == name
    except InvalidArgument:
        return False


def remembered_name(request: Request) -> str:
    """Return the name under which the user of the browser last wrote, or "" if unknown."""
    name = unquote(request.cookies.get(NAME_COOKIE, ""))
    return name if name and _can_be_remembered(name) else ""


def remember_name(request: Request, answer: Response, name: str) -> None:
    """Make the browser remember the name of its user. An invalid name is ignored."""
    if name and _can_be_remembered(name):
        answer.set_cookie(
            NAME_COOKIE,
            quote(name, safe=""),
            max_age=NAME_KEPT,
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


def number(request: Request, name: str) -> int | None:
    """Return a query parameter as a number, or None if the parameter is missing.

    Raises:
        InvalidArgument: The parameter is not a number.
    """
    given_param = request.query_params.get(name)
    if given_param is None:
        return None
    if not NUMBER.fullmatch(given_param):
        raise InvalidArgument(
            f"{name} must be a number, not {given_param[:40]!r}", value=given_param, remedy="go back"
        )
    return int(given_param)


def choice(request: Request, name: str, allowed: tuple[W, ...]) -> W:
    """Return the value of a query parameter, or the first allowed value if the parameter is missing.

    Raises:
        InvalidArgument: The value is not allowed.
    """
    given_param = request.query_params.get(name, allowed[0])
    if given_param not in allowed:
        raise InvalidArgument(
            f"{name} must be one of {', '.join(filter(None, allowed))}, not {given_param[:40]!r}",
            value=given_param,
            remedy="go back",
        )
    return allowed[allowed.index(given_param)]


def _render_code(text: str) -> Markup:
    """Render a line, with text between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def _percent(x: float) -> str:
    """Return a horizontal position as a percentage for CSS."""
    return f"{x:g}%"


@pass_context
def _when(context: Context, instant: int) -> Markup:
    """Render how long ago a time was, and the time of day in the viewer's time zone."""
    now: int = context["now"]
    words = relative(instant, now)
    known_value = moment(instant)
    if known_value is None:
        return Markup("<span>{}</span>").format(words)
    return Markup('<time datetime="{}" title="{}">{}<span class="clock">, {}</span></time>').format(
        known_value, absolute(instant), words, clock_time(instant, now, context["zone"])
    )


@pass_context
def _render_times(context: Context, text: str) -> Markup:
    """Render a text with all UTC times converted to the time zone of the page."""
    if context["now"] is None:
        return escape(text)

    def shown(found: re.Match[str]) -> str:
        try:
            return str(_when(context, from_iso(found[1])))
        except ValueError:  # a text by an agent only looks like a time
            return found[0]

    return Markup(_UTC_TIME.sub(shown, str(escape(text))))  # noqa: S704 - escaped here


@pass_context
def _avatar(
    context: Context, name: str, size: str = "", is_person: bool | None = None, slug: str = ""
) -> Markup:
    """Render the avatar of an agent or a person."""
    frame: Frame = context["frame"]
    return _face(frame.face(name, is_person=is_person, slug=slug), initials(name), size)


@lru_cache(4096)
def _face(look: Face, short: str, size: str) -> Markup:
    words = ("avatar", "person-face" if look.is_person else "", f"tone-{look.tone}", size)
    return Markup('<span class="{}" aria-hidden="true">{}</span>').format(
        " ".join(filter(None, words)), short
    )


@pass_context
def _at(context: Context, instant: int, *, is_long: bool) -> Markup:
    """Render a time of day, with the date if the page covers several days."""
    local = datetime.fromtimestamp(instant // 1000, tz=context["zone"])
    return Markup(  # noqa: S704 - of digits alone
        f'<span class="tl-when" title="{absolute(instant)}">'
        f'<time datetime="{moment(instant)}">{local:{"%m-%d %H:%M" if is_long else "%H:%M:%S"}}</time></span>'
    )


_TEMPLATES: Final = (
    file for file in (resources.files("postroom.web") / "templates").iterdir() if file.is_file()
)
ENVIRONMENT: Final = Environment(
    loader=DictLoader({file.name: file.read_text("utf-8") for file in _TEMPLATES}),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
ENVIRONMENT.globals.update(
    link=links,
    assets=ASSET_LINKS,
    avatar=_avatar,
    people_slug=PEOPLE_SLUG,
    event_kinds=" ".join(EVENT_KINDS),
    shown_states=SHOWN_STATES,
)
ENVIRONMENT.filters.update(
    absolute=absolute,
    awaited=awaited,
    delivery_state=delivery_state,
    clip=clip,
    coded=_render_code,
    timed=_render_times,
    every=every,
    exact=exact,
    extension=extension,
    folder_name=folder_name,
    gist=gist,
    lasting=lasting,
    line=one_line,
    moment=moment,
    at=_at,
    pc=_percent,
    said=lines,
    sentence=sentence,
    shown_as=shown_as,
    size=size_text,
    when=_when,
)
