"""The operator's routes to named tokens. Only hashes come here: a token is made by who will hold it."""

from datetime import timedelta
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.http_api.operators import operators, read_body
from postroom.mail.named_tokens import NamedTokens

_MOST_SECONDS: Final = 10**9
_Seconds = Annotated[int, Meta(ge=0, le=_MOST_SECONDS)]


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


def token_routes(tokens: NamedTokens) -> list[Route]:
    """Return the routes. No token opens them but the server's own: who may make tokens may do everything."""

    async def create(request: Request) -> Response:
        asked = await read_body(request, _New)
        life = None if asked.life_seconds is None else timedelta(seconds=asked.life_seconds)
        made = await tokens.create(
            asked.name, asked.id, asked.hash, asked.scopes, project=asked.project, life=life
        )
        return JSONResponse(dict(made))

    async def rotate(request: Request) -> Response:
        asked = await read_body(request, _Rotation)
        overlap = timedelta(seconds=asked.overlap_seconds)
        return JSONResponse(dict(await tokens.rotate(asked.name, asked.id, asked.hash, overlap=overlap)))

    async def revoke(request: Request) -> Response:
        return JSONResponse({"revoked": await tokens.revoke((await read_body(request, _Named)).name)})

    async def listed(request: Request) -> Response:
        found = await tokens.listed(ended=request.query_params.get("all") == "yes")
        return JSONResponse({"tokens": [dict(one) for one in found]})

    methods = {"GET": listed, "POST": create, "DELETE": revoke}
    return [
        operators("/admin/tokens", methods, by_token=False),
        operators("/admin/tokens/rotate", {"POST": rotate}, by_token=False),
    ]
