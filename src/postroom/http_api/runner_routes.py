"""The operator's routes to the runners of agents: who is run how, when mail comes."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts.messages import Json
from postroom.http_api.operators import operators, read_body
from postroom.services.runners import RunnerService


class _Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    project: str
    agent: str
    runner: dict[str, Json]


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    project: str
    agent: str


def runner_routes(runners: RunnerService) -> list[Route]:
    """Return the routes."""

    async def declare(request: Request) -> Response:
        asked = await read_body(request, _Declared)
        return JSONResponse(dict(await runners.declare(asked.project, asked.agent, asked.runner)))

    async def withdraw(request: Request) -> Response:
        asked = await read_body(request, _Named)
        return JSONResponse({"removed": await runners.withdraw(asked.project, asked.agent)})

    async def declared(request: Request) -> Response:
        found = await runners.declared(request.query_params.get("project"))
        return JSONResponse({"runners": [dict(one) for one in found]})

    return [operators("/admin/runners", {"GET": declared, "PUT": declare, "DELETE": withdraw})]
