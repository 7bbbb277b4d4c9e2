"""The files that pages load: style sheet, script, icon, and attachments, which browsers never execute."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from postroom.web.wording import one_line

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Browsers must ask each time, because a recalled message loses its attachments.
    "Cache-Control": "private, no-cache",
}


def picture_type(content: bytes) -> str | None:
    """Return the media type of an image that browsers may display, or None if browsers may not display it."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for beginning, kind in _BEGINNINGS if content.startswith(beginning)), None)


def download(content: bytes, name: str, *, etag: str) -> Response:
    """Return a response that a browser saves as a file with this name."""
    # Write both forms of a file name into the header: ASCII for all browsers, and the exact name by RFC 5987.
    shown = one_line(name).replace("/", "_").replace("\\", "_").strip(". ") or "attachment"
    plain = "".join(
        character if character.isascii() and character not in '"%;' else "_" for character in shown
    )
    headers = {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(shown, safe='')}",
        "ETag": f'"{etag}"',
        **_SAFE,
    }
    return Response(content, media_type="application/octet-stream", headers=headers)


def picture(content: bytes, media_type: str, *, etag: str) -> Response:
    """Return a response with an image that a page displays."""
    return Response(content, media_type=media_type, headers={"ETag": f'"{etag}"', **_SAFE})


def unchanged(*, etag: str) -> Response:
    """Return the response 304 for a browser that already has the current content of a file."""
    return Response(status_code=304, headers={"ETag": f'"{etag}"', **_SAFE})


def plain(text: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """Return a text that a browser displays as plain text."""
    return Response(
        text.encode("utf-8", "replace"),
        media_type="text/plain; charset=utf-8",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})},
    )


_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FOR_GOOD = "public, max-age=31536000, immutable"
_ASK_EACH_TIME = "no-cache"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that every page may load."""

    content: bytes
    media_type: str
    digest: str


_ASSETS: Mapping[str, Asset] = {
    file.name: Asset(content, media_type, hashlib.sha256(content).hexdigest()[:16])
    for file in (resources.files("postroom.web") / "static").iterdir()
    if (media_type := _MEDIA_TYPES.get(file.name.rpartition(".")[2]))
    for content in [file.read_bytes()]
}


ASSET_LINKS: Mapping[str, str] = {
    name: f"/static/{stem}.{asset.digest}.{suffix}"
    for name, asset in _ASSETS.items()
    for stem, _, suffix in [name.rpartition(".")]
}
"""The addresses of the assets, keyed by name. An address changes with the content of the asset."""
_BY_PATH = {
    **{ASSET_LINKS[name].removeprefix("/static/"): (asset, _FOR_GOOD) for name, asset in _ASSETS.items()},
    **{name: (asset, _ASK_EACH_TIME) for name, asset in _ASSETS.items()},
}


async def _asset(request: Request) -> Response:
    file = _BY_PATH.get(request.path_params["name"])
    if file is None:
        raise HTTPException(404)
    asset, keep = file
    headers = {"Cache-Control": keep, "ETag": f'"{asset.digest}"', "X-Content-Type-Options": "nosniff"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)


def asset_routes() -> list[BaseRoute]:
    """Return the routes below `/static`. Browsers cache an asset without a time limit."""
    return [Mount("/static", routes=[Route("/{name}", _asset)])]
