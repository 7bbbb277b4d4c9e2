"""The operator's route to runs that were given up."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.http_api.operators import operators


class RunDesk(Protocol):
    """What this route asks of the server. Answers are plain JSON data."""

    async def dead(self) -> Sequence[Mapping[str, object]]:
        """Return the runs that were given up and wait for somebody, oldest first, up to 500."""
        ...


def run_routes(desk: RunDesk) -> list[Route]:
    """Return the routes."""

    async def dead(_: Request) -> Response:
        return JSONResponse({"dead": [dict(one) for one in await desk.dead()]})

    return [operators("/admin/runs/dead", {"GET": dead})]
