"""What the operator's routes share: who may call them, and how their bodies are read."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from postroom.contracts.errors import InvalidArgument, NotPermitted
from postroom.contracts.tokens import ADMIN, Grant
from postroom.mcp_server.callers import GRANT_SCOPE

Endpoint = Callable[[Request], Awaitable[Response]]
T = TypeVar("T", bound=msgspec.Struct)


def operators(path: str, endpoints: Mapping[str, Endpoint], *, by_token: bool = True) -> Route:
    """Return a route that refuses everybody but the operator, an endpoint for each method.

    A named token with the scope `admin` counts as the operator's, unless `by_token` is False.
    """

    async def checked(request: Request) -> Response:
        _refuse_others(request, by_token=by_token)
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, checked, methods=list(endpoints))


def _refuse_others(request: Request, *, by_token: bool) -> None:
    caller, grant = request.scope.get("state", {}).get("caller"), request.scope.get(GRANT_SCOPE)
    if caller == "token" and isinstance(grant, Grant) and by_token:
        grant.check(ADMIN, request.url.path)
    elif caller != "operator":
        raise NotPermitted("this is for the server's operator", remedy="use the server's own token")


async def read_body(request: Request, kind: type[T]) -> T:
    """Return a JSON body as what it is to be.

    Raises:
        InvalidArgument: it does not fit.
    """
    body = await request.body()
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(
            f"the body does not fit: {error}"[:300],
            remedy=f"send a JSON object with {', '.join(kind.__struct_fields__)} as text",
        ) from error
