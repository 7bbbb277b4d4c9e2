"""The operator's routes to people: who may be written to by name, and in which chat they are reached."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.http_api.operators import operators, read_body


class PeopleService(Protocol):
    """What these routes ask of the server. Answers are plain JSON data."""

    async def add(self, name: str, chat: str | None) -> Mapping[str, object]:
        """Name a person, or give one who is named another chat, or none.

        Raises:
            InvalidName: nobody can be called that.
            InvalidArgument: the chat is none.
            NameTaken: somebody is called that but for the case of messages.
        """
        ...

    async def remove(self, name: str) -> bool:
        """Have a person written to no more; their messages are kept. False when they were not named."""
        ...

    async def everybody(self) -> Sequence[Mapping[str, object]]:
        """Return those who are named, by when they were."""
        ...


class _Added(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    chat: str | None = None


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


def people_routes(desk: PeopleService) -> list[Route]:
    """Return the routes."""

    async def add(request: Request) -> Response:
        asked = await read_body(request, _Added)
        return JSONResponse(dict(await desk.add(asked.name, asked.chat)))

    async def remove(request: Request) -> Response:
        asked = await read_body(request, _Named)
        return JSONResponse({"removed": await desk.remove(asked.name)})

    async def everybody(_: Request) -> Response:
        return JSONResponse({"people": [dict(one) for one in await desk.everybody()]})

    return [operators("/admin/people", {"GET": everybody, "PUT": add, "DELETE": remove})]
