"""The operator's routes to runs: what agents are at, what waits and why, what was given up."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.work import told
from postroom.http_api.operators import operators, read_body
from postroom.services.work import WorkService


class _Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str


def run_routes(runs: WorkService) -> list[Route]:
    """Return the routes."""

    async def listed(request: Request) -> Response:
        project = request.query_params.get("project")
        slug = "" if project is None else await runs.slug(project)
        works, waiting = await runs.works(slug), await runs.waiting(slug)
        return JSONResponse({"runs": [told(one) for one in works], "waiting": [told(one) for one in waiting]})

    async def shown(request: Request) -> Response:
        run_id = request.query_params.get("run")
        if not run_id:
            raise InvalidArgument("no run is named", remedy="give its id as `run`")
        work = await runs.named(run_id)
        output = await runs.output(work.run_id)
        return JSONResponse({**told(work), "output": output.text, "output_is_cut": output.is_cut})

    async def dead(_: Request) -> Response:
        return JSONResponse({"dead": [dict(one) for one in await runs.dead()]})

    async def cancelled(request: Request) -> Response:
        asked = await read_body(request, _Run)
        await runs.cancel(asked.run)
        return JSONResponse(told(await runs.named(asked.run)))

    async def replayed(request: Request) -> Response:
        asked = await read_body(request, _Run)
        return JSONResponse(told(await runs.replay(asked.run)))

    return [
        operators("/admin/runs", {"GET": listed}),
        operators("/admin/runs/one", {"GET": shown}),
        operators("/admin/runs/dead", {"GET": dead}),
        operators("/admin/runs/cancel", {"POST": cancelled}),
        operators("/admin/runs/replay", {"POST": replayed}),
    ]
