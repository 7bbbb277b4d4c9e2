"""The access to our own chat page, and its files, in memory. They never contain text of a chat.

Each token belongs to a person. The cookie of a session is signed with a key that is derived from the token.
Every server recognises the session by it, also after a restart. A session ends after twelve hours, when the
token changes, or when the person signs out.
"""

import hashlib
import hmac
import html
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Mapping
from datetime import timedelta
from importlib import resources
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import ConfigError
from postroom.contracts.signing import same_secret
from postroom.gateway.platforms.http_adapter import Refused
from postroom.gateway.platforms.options import secret_remedy

POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: with it browsers send `Origin: null` with our own forms, which are refused then.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_KINDS: Final = {
    "chat.css": "text/css; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_FORM: Final = "application/x-www-form-urlencoded"


def _read(name: str) -> bytes:
    return (resources.files("postroom.gateway.platforms") / "web_static").joinpath(name).read_bytes()


_FILES: Final = {name: _read(name) for name in _KINDS}
_TAGS: Final = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in _FILES.items()}
_CHAT: Final = _read("chat.html").decode()
_SIGN_IN: Final = _read("sign_in.html").decode()


async def static_file(request: Request) -> Response:
    """Return the script or the style sheet."""
    name = request.path_params["name"]
    if name not in _FILES:
        raise Refused(404, "not_found", "there is no such file")
    headers = {**_HEADERS, "Cache-Control": "no-cache", "ETag": _TAGS[name]}
    if request.headers.get("if-none-match") == _TAGS[name]:
        return Response(status_code=304, headers=headers)
    return Response(_FILES[name], media_type=_KINDS[name], headers=headers)


def chat_page(title: str, base: str, name: str) -> Response:
    """Return the page of a signed-in person."""
    return HTMLResponse(_filled(_CHAT, title=title, base=base, name=name), headers=_HEADERS)


def sign_in_page(title: str, base: str, refusal: Refused | None = None) -> Response:
    """Return the form that asks for a token, with the reason after a refusal."""
    notice = "" if refusal is None else refusal.message
    page = _filled(_SIGN_IN, title=title, base=base, notice=notice)
    if refusal is None:
        return HTMLResponse(page, headers=_HEADERS)
    return HTMLResponse(page, status_code=refusal.status, headers={**_HEADERS, **refusal.headers})


def token_in_form(request: Request, body: bytes) -> str:
    """Return the token of a sent form.

    Raises:
        Refused: The request is not a form.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise Refused(415, "unsupported_media_type", "use the form on this page")
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=8)
    except ValueError as error:
        raise Refused(400, "malformed", "the form cannot be read") from error
    return fields.get("token", [""])[0].strip()


def _filled(page: str, **values: str) -> str:
    """Fill a page; the values are not searched for further fields."""
    parts = page.split("{{")
    done = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("}}")
        done += (html.escape(values[name]), rest)
    return "".join(done)


SESSION_LIFE: Final = timedelta(hours=12)
MOST_FAILURES: Final = 10
FAILURE_WINDOW: Final = timedelta(minutes=1)
LEAST_TOKEN: Final = 16
_MOST_ADDRESSES: Final = 1_024
_SESSION: Final = re.compile(r"([0-9]{13,15})\.[A-Za-z0-9_-]{22}")
"""The payload of a cookie before its signature: the end of the session, and 16 random bytes."""


def read_people(token: str | None, name: str, others: Mapping[str, str]) -> dict[str, str]:
    """Return who may chat, and the token of each.

    Raises:
        ConfigError: a name or a token cannot be one, two are the same, or there is nobody.
    """
    people = [*([] if token is None else [(name, token)]), *others.items()]
    if not people:
        raise ConfigError(
            "web has no token",
            value="token",
            remedy=secret_remedy("token", f"at least {LEAST_TOKEN} random characters"),
        )
    for known, secret in people:
        if not 1 <= len(known) <= 64 or not known.isprintable():
            raise ConfigError(
                "a name in web's people is invalid", remedy="use one line of 1 to 64 characters"
            )
        if len(secret) < LEAST_TOKEN:
            raise ConfigError(
                f"the token of {known!r} on web is too short",
                value=known,
                remedy=secret_remedy("token", f"at least {LEAST_TOKEN} random characters"),
            )
    if len({known for known, _ in people}) < len(people) or len({one for _, one in people}) < len(people):
        raise ConfigError(
            "two of web's people have the same name or token", remedy="give each a different name and token"
        )
    return dict(people)


class Visitors:
    """Signs people in and knows them again."""

    def __init__(self, people: Mapping[str, str], clock: Clock) -> None:
        self._people = people
        self._clock = clock
        self._failures: OrderedDict[str, deque[int]] = OrderedDict()

    def sign_in(self, token: str, address: str) -> str:
        """Return the cookie of a new session of the token's owner.

        Raises:
            Refused: No person has this token, or this address failed ten times within a minute.
        """
        wait = self._wait(address)
        if wait:
            raise Refused(429, "wait", f"Too many attempts. Try again in {wait} seconds.", retry_after=wait)
        # All are compared, so that the time reveals nothing about similar tokens.
        found = [name for name, known in self._people.items() if same_secret(token, known)]
        if not found:
            self._failed(address)
            raise Refused(401, "wrong_token", "Unknown token.")
        payload = f"{self._clock.now() + milliseconds(SESSION_LIFE)}.{secrets.token_urlsafe(16)}"
        return f"{payload}.{self._signature(found[0], payload)}"

    def who(self, session: str | None) -> str | None:
        """Return the person of a session; None if the cookie is not valid or is older than its twelve hours.

        The caller asks the store whether the person has signed out.
        """
        payload, _, signed = (session or "").rpartition(".")
        found = _SESSION.fullmatch(payload)
        if found is None or int(found[1]) <= self._clock.now():
            return None
        return next(
            (name for name in self._people if same_secret(signed, self._signature(name, payload))), None
        )

    def _signature(self, name: str, payload: str) -> str:
        token = self._people[name].encode("utf-8", "surrogatepass")
        key = hmac.digest(token, f"chat page session of {name}".encode("utf-8", "surrogatepass"), "sha256")
        return hmac.digest(key, payload.encode(), "sha256").hex()

    def _failed(self, address: str) -> None:
        self._failures.setdefault(address, deque(maxlen=MOST_FAILURES)).append(self._clock.now())
        self._failures.move_to_end(address)
        while len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def _wait(self, address: str) -> int:
        failures = self._failures.get(address, deque())
        if len(failures) < MOST_FAILURES:
            return 0
        left = failures[0] + milliseconds(FAILURE_WINDOW) - self._clock.now()
        return max(0, -(-left // 1000))


def require_own_page(request: Request, *, is_form: bool = False) -> None:
    """Check that a changing request was sent by our own page, and not by another site's.

    A page's script sends a header that no form of another site can send; a form must name its origin.

    Raises:
        Refused: The request is from another page.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    foreign = Refused(403, "foreign_page", "the request did not come from the chat's own page")
    if request.headers.get("x-postroom") != "1" and not (is_form and (site or origin)):
        raise foreign
    if site not in (None, "same-origin"):
        raise foreign
    if origin is not None and not _is_own(origin, request.headers.get("host", "")):
        raise foreign


def _is_own(origin: str, host: str) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
