"""The operator's routes to named tokens. Only hashes come here: a token is made by who will hold it."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.http_api.operators import operators, read_body

_MOST_SECONDS: Final = 10**9
_Seconds = Annotated[int, Meta(ge=0, le=_MOST_SECONDS)]


class TokenService(Protocol):
    """What these routes ask of the server. Answers are plain JSON data, and hold no token and no hash."""

    async def create(
        self,
        name: str,
        token_id: str,
        hashed: str,
        scopes: Sequence[str],
        *,
        project: str | None = None,
        life: timedelta | None = None,
    ) -> Mapping[str, object]:
        """Keep a new token by its hash; the same call again answers alike and makes no second one."""
        ...

    async def rotate(
        self, name: str, token_id: str, hashed: str, *, overlap: timedelta
    ) -> Mapping[str, object]:
        """Let a new token take a name; those before it are good for `overlap` more."""
        ...

    async def revoke(self, name: str) -> int:
        """End every token of a name at once and return how many were good."""
        ...

    async def listed(self, *, ended: bool = False) -> Sequence[Mapping[str, object]]:
        """Return the tokens that are good, and with `ended` the others too."""
        ...


class _New(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    id: str
    hash: str
    scopes: list[str]
    project: str | None = None
    life_seconds: _Seconds | None = None


class _Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    id: str
    hash: str
    overlap_seconds: _Seconds


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


def token_routes(desk: TokenService) -> list[Route]:
    """Return the routes. No token opens them but the server's own: who may make tokens may do everything."""

    async def create(request: Request) -> Response:
        asked = await read_body(request, _New)
        life = None if asked.life_seconds is None else timedelta(seconds=asked.life_seconds)
        made = await desk.create(
            asked.name, asked.id, asked.hash, asked.scopes, project=asked.project, life=life
        )
        return JSONResponse(dict(made))

    async def rotate(request: Request) -> Response:
        asked = await read_body(request, _Rotation)
        overlap = timedelta(seconds=asked.overlap_seconds)
        return JSONResponse(dict(await desk.rotate(asked.name, asked.id, asked.hash, overlap=overlap)))

    async def revoke(request: Request) -> Response:
        return JSONResponse({"revoked": await desk.revoke((await read_body(request, _Named)).name)})

    async def listed(request: Request) -> Response:
        found = await desk.listed(ended=request.query_params.get("all") == "yes")
        return JSONResponse({"tokens": [dict(one) for one in found]})

    methods = {"GET": listed, "POST": create, "DELETE": revoke}
    return [
        operators("/admin/tokens", methods, by_token=False),
        operators("/admin/tokens/rotate", {"POST": rotate}, by_token=False),
    ]
