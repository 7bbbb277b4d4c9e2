"""The operator's routes to people: who may be written to by name, and in which chat they are reached."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.http_api.operators import operators, read_body
from postroom.services.people import PeopleService


class _Added(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    chat: str | None = None


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


def people_routes(people: PeopleService) -> list[Route]:
    """Return the routes."""

    async def add(request: Request) -> Response:
        asked = await read_body(request, _Added)
        return JSONResponse(dict(await people.add(asked.name, asked.chat)))

    async def remove(request: Request) -> Response:
        asked = await read_body(request, _Named)
        return JSONResponse({"removed": await people.remove(asked.name)})

    async def everybody(_: Request) -> Response:
        return JSONResponse({"people": [dict(one) for one in await people.everybody()]})

    return [operators("/admin/people", {"GET": everybody, "PUT": add, "DELETE": remove})]
