"""The operator's routes to the runners of agents: who is run how, when mail comes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts.messages import Json
from postroom.http_api.operators import operators, read_body


class RunnerService(Protocol):
    """What these routes ask of the server. Answers are plain JSON data, and hold no secret."""

    async def declare(self, project: str, agent: str, runner: Mapping[str, Json]) -> Mapping[str, object]:
        """Say how an agent is run; what was said before is replaced.

        Raises:
            UnknownProject, UnknownAgent: there is none.
            InvalidRunner: it cannot be run like this; nothing is changed.
        """
        ...

    async def withdraw(self, project: str, agent: str) -> bool:
        """Have an agent run no more; False when it was not.

        Raises:
            UnknownProject, UnknownAgent: there is none.
        """
        ...

    async def declared(self, project: str | None) -> Sequence[Mapping[str, object]]:
        """Return the runners of a project, or of all.

        Raises:
            UnknownProject: there is none.
        """
        ...


class _Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    project: str
    agent: str
    runner: dict[str, Json]


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    project: str
    agent: str


def runner_routes(desk: RunnerService) -> list[Route]:
    """Return the routes."""

    async def declare(request: Request) -> Response:
        asked = await read_body(request, _Declared)
        return JSONResponse(dict(await desk.declare(asked.project, asked.agent, asked.runner)))

    async def withdraw(request: Request) -> Response:
        asked = await read_body(request, _Named)
        return JSONResponse({"removed": await desk.withdraw(asked.project, asked.agent)})

    async def declared(request: Request) -> Response:
        found = await desk.declared(request.query_params.get("project"))
        return JSONResponse({"runners": [dict(one) for one in found]})

    return [operators("/admin/runners", {"GET": declared, "PUT": declare, "DELETE": withdraw})]
