"""The routes for hooks and watchers of this machine: thin, and for its operator alone."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts.errors import InvalidArgument
from postroom.http_api.operators import operators
from postroom.services.following import Following
from postroom.services.hooks import Hooks

_AGENT_TOKEN: Final = "postroom-agent-token"  # noqa: S105 - the name of a header


def hook_routes(hooks: Hooks, following: Following) -> list[Route]:
    """Return the routes; they refuse everybody but the operator."""

    async def hook(request: Request) -> Response:
        client, event = request.path_params["client"], request.path_params["event"]
        token = request.headers.get(_AGENT_TOKEN)
        return JSONResponse(
            dict(await hooks.answer(client, event, await _object(request), agent_token=token))
        )

    async def watch(request: Request) -> Response:
        token = request.headers.get(_AGENT_TOKEN)
        return JSONResponse(dict(await following.messages(await _object(request), agent_token=token)))

    return [operators("/hooks/{client}/{event}", {"POST": hook}), operators("/watch", {"POST": watch})]


async def _object(request: Request) -> Mapping[str, Any]:
    body = await request.body()
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body does not fit: {error}"[:300], remedy="send a JSON object") from error
