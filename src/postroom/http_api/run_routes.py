"""The operator's routes to runs: what agents are at, what waits and why, what was given up."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.work import Output, Waiting, Work, told
from postroom.http_api.operators import operators, read_body


class WorkService(Protocol):
    """What these routes ask of the server."""

    async def slug(self, project: str) -> str:
        """Return the slug of the project that a path or slug names.

        Raises:
            UnknownProject: there is none.
        """
        ...

    async def dead(self) -> Sequence[Mapping[str, object]]:
        """Return the runs that were given up and wait for somebody, oldest first, up to 500."""
        ...

    async def works(self, slug: str) -> Sequence[Work]:
        """Return the runs of a project's agents, or with "" of all: those not done, then the last ended."""
        ...

    async def waiting(self, slug: str) -> Sequence[Waiting]:
        """Return the messages that wait for their reader's next run, those that wait longest first."""
        ...

    async def named(self, run_id: str) -> Work:
        """Return one run, named by its id or by its dispatch's.

        Raises:
            UnknownRun: there is none, or it is no agent's.
        """
        ...

    async def output(self, run_id: str) -> Output:
        """Return what a run has put out so far."""
        ...

    async def cancel(self, run_id: str) -> None:
        """End a run that is queued or at work.

        Raises:
            UnknownRun, IllegalTransition: there is none, or it can be cancelled no more.
        """
        ...

    async def replay(self, run_id: str) -> Work:
        """Have a run that was given up tried again; return the new one.

        Raises:
            UnknownRun, IllegalTransition: there is none, or it is not among those that were given up.
        """
        ...


class _Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str


def run_routes(desk: WorkService) -> list[Route]:
    """Return the routes."""

    async def listed(request: Request) -> Response:
        project = request.query_params.get("project")
        slug = "" if project is None else await desk.slug(project)
        runs, waiting = await desk.works(slug), await desk.waiting(slug)
        return JSONResponse({"runs": [told(one) for one in runs], "waiting": [told(one) for one in waiting]})

    async def shown(request: Request) -> Response:
        run_id = request.query_params.get("run")
        if not run_id:
            raise InvalidArgument("no run is named", remedy="give its id as `run`")
        work = await desk.named(run_id)
        output = await desk.output(work.run_id)
        return JSONResponse({**told(work), "output": output.text, "output_is_cut": output.is_cut})

    async def dead(_: Request) -> Response:
        return JSONResponse({"dead": [dict(one) for one in await desk.dead()]})

    async def cancelled(request: Request) -> Response:
        asked = await read_body(request, _Run)
        await desk.cancel(asked.run)
        return JSONResponse(told(await desk.named(asked.run)))

    async def replayed(request: Request) -> Response:
        asked = await read_body(request, _Run)
        return JSONResponse(told(await desk.replay(asked.run)))

    return [
        operators("/admin/runs", {"GET": listed}),
        operators("/admin/runs/one", {"GET": shown}),
        operators("/admin/runs/dead", {"GET": dead}),
        operators("/admin/runs/cancel", {"POST": cancelled}),
        operators("/admin/runs/replay", {"POST": replayed}),
    ]
