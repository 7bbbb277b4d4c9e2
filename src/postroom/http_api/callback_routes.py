"""Where other servers that run agents send their results: open, for a signature proves who sends."""

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class ResultService(Protocol):
    """What takes results."""

    async def take(self, dispatch_id: str, headers: Mapping[str, str], body: bytes) -> None:
        """Take the result of a dispatch; when this returns it is durable.

        Raises:
            PostroomError: it is not taken; `retryable` says whether it is to be sent again.
        """
        ...


def callback_routes(path: str, desk: ResultService) -> list[Route]:
    """Return the route below `path`."""

    async def result(request: Request) -> Response:
        await desk.take(request.path_params["dispatch_id"], request.headers, await request.body())
        return JSONResponse({"taken": True})

    return [Route(f"{path}/{{dispatch_id}}", result, methods=["POST"])]
