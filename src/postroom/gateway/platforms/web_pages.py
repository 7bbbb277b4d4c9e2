"""The chat page's files, held in memory, and what is filled into them. No text of a chat is ever among it."""

import hashlib
import html
from importlib import resources
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from postroom.gateway.platforms.http_adapter import Refused

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
    """Return the page of somebody who signed in."""
    return HTMLResponse(_filled(_CHAT, title=title, base=base, name=name), headers=_HEADERS)


def sign_in_page(title: str, base: str, refusal: Refused | None = None) -> Response:
    """Return the form that asks for a token, with the reason when one was refused."""
    notice = "" if refusal is None else refusal.message
    page = _filled(_SIGN_IN, title=title, base=base, notice=notice)
    if refusal is None:
        return HTMLResponse(page, headers=_HEADERS)
    return HTMLResponse(page, status_code=refusal.status, headers={**_HEADERS, **refusal.headers})


def token_in_form(request: Request, body: bytes) -> str:
    """Return the token of a sent form.

    Raises:
        Refused: it is no form.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise Refused(415, "unsupported_media_type", "send the form of the page")
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=8)
    except ValueError as error:
        raise Refused(400, "malformed", "the form cannot be read") from error
    return fields.get("token", [""])[0].strip()


def _filled(page: str, **values: str) -> str:
    """Fill a page; what is filled in is not looked at again."""
    parts = page.split("{{")
    done = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("}}")
        done += (html.escape(values[name]), rest)
    return "".join(done)
