"""Where other servers that run agents send their results: open, for a signature proves who sends."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.executors.remote import RemoteExecutor


def callback_routes(path: str, results: RemoteExecutor) -> list[Route]:
    """Return the route below `path`."""

    async def result(request: Request) -> Response:
        await results.take(request.path_params["dispatch_id"], request.headers, await request.body())
        return JSONResponse({"taken": True})

    return [Route(f"{path}/{{dispatch_id}}", result, methods=["POST"])]
