"""The style sheet and the icon, held in memory; pages name each by its content, so that it may be kept."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

_MEDIA_TYPES = {"postroom.css": "text/css; charset=utf-8", "favicon.svg": "image/svg+xml"}
_FOR_GOOD = "public, max-age=31536000, immutable"
_ASK_EACH_TIME = "no-cache"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that every page may fetch."""

    content: bytes
    media_type: str
    digest: str


def _load() -> dict[str, Asset]:
    folder = resources.files("postroom.web") / "static"
    found = {}
    for name, media_type in _MEDIA_TYPES.items():
        content = folder.joinpath(name).read_bytes()
        found[name] = Asset(content, media_type, hashlib.sha256(content).hexdigest()[:16])
    return found


_ASSETS: Mapping[str, Asset] = _load()


def asset_link(name: str) -> str:
    """Return the address of an asset, which changes with its content."""
    stem, _, suffix = name.rpartition(".")
    return f"/static/{stem}.{_ASSETS[name].digest}.{suffix}"


_BY_PATH = {
    **{asset_link(name).removeprefix("/static/"): (asset, _FOR_GOOD) for name, asset in _ASSETS.items()},
    **{name: (asset, _ASK_EACH_TIME) for name, asset in _ASSETS.items()},
}


async def _asset(request: Request) -> Response:
    known = _BY_PATH.get(request.path_params["name"])
    if known is None:
        raise HTTPException(404)
    asset, keep = known
    headers = {"Cache-Control": keep, "ETag": f'"{asset.digest}"', "X-Content-Type-Options": "nosniff"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)


def asset_routes() -> list[BaseRoute]:
    """Return the routes under `/static`: by name and content, kept for good, and by name alone."""
    return [Mount("/static", routes=[Route("/{name}", _asset)])]
