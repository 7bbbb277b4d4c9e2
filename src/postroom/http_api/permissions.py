"""The permissions of callers: a table, and the only function that checks it.

Everything that the table does not permit is forbidden.

`application` puts `check` in front of every route, so a new route answers nobody until the table has a row
for it. The rows of operations come from the table of operations (`postroom.app.operations`). The table of
operations also lists the scopes with which a caller may use a mail operation. The rows of channels come from
the routes of their adapters. `Guard` has identified the caller before `check` is called.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.contracts.errors import NotPermitted
from postroom.contracts.operations import Operation, Who
from postroom.contracts.tokens import ADMIN, Grant
from postroom.http_api.rest.document import DOCUMENT, EVENTS
from postroom.mcp_server.callers import GRANT_SCOPE

_LET_IN: Final[Mapping[Who, frozenset[str]]] = {
    Who.PEOPLE: frozenset({"person", "operator"}),
    Who.LOOKERS: frozenset({"operator", "agent", "token", "person"}),
    Who.CALLERS: frozenset({"operator", "agent", "token"}),
    Who.HOOKS: frozenset({"operator"}),
    Who.ADMINS: frozenset({"operator"}),
    Who.OPERATOR: frozenset({"operator"}),
}
"""The kinds of callers that an address accepts. `check` has further requirements for named tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """A URL path with its HTTP methods, and the callers who may use the path."""

    path: str
    methods: frozenset[str]
    who: Who


def _rows(who: Who, *told: str) -> Iterator[Permission]:
    for line in told:
        *methods, path = line.split()
        yield Permission(path=path, methods=frozenset(methods), who=who)


_EVERY_METHOD: Final = "GET POST PUT PATCH DELETE OPTIONS"
_DISCOVERY: Final = ("oauth-authorization-server", "oauth-protected-resource", "openid-configuration")


def table(
    operations: Sequence[Operation], mcp_path: str = "/mcp", channels: Sequence[BaseRoute] = ()
) -> tuple[Permission, ...]:
    """Return the permissions for all paths of a server.

    A chat channel in `channels` cannot change the permission of another path.
    """
    mail = [operation for operation in operations if operation.service is None]
    administration: dict[tuple[str, Who], set[str]] = {}
    for entry in operations:
        if entry.service is not None:
            administration.setdefault((entry.path, entry.who), set()).add(entry.method)
    of_channels: dict[str, frozenset[str]] = {}  # their handlers authenticate the callers themselves
    for path, methods in _addresses(channels):
        of_channels[path] = of_channels.get(path, frozenset()) | methods
    return (
        *(Permission(path=path, methods=taken, who=Who.PROVED_THERE) for path, taken in of_channels.items()),
        *_rows(Who.PROVED_THERE, "POST /callbacks/{dispatch_id}"),
        *_rows(Who.ANYONE, "GET /healthz", "GET /readyz", "GET POST /login", "GET /static/{name}"),
        *_rows(
            Who.ANYONE,  # routes that report that there is no OAuth
            *(f"{_EVERY_METHOD} /{name}" for name in ("authorize", "oauth/token", "register", "token")),
            *(f"{_EVERY_METHOD} /.well-known/{name}" for name in _DISCOVERY),
            *(f"{_EVERY_METHOD} /.well-known/{name}/{{rest:path}}" for name in _DISCOVERY),
            f"{_EVERY_METHOD} {mcp_path}/.well-known/{{rest:path}}",
        ),
        *_rows(
            Who.CALLERS,
            f"{_EVERY_METHOD} {mcp_path}",
            *(
                f"{operation.method} OPTIONS {operation.path}"
                for operation in mail
                if operation.who is Who.CALLERS
            ),
        ),
        *_rows(
            Who.LOOKERS,
            f"GET OPTIONS {DOCUMENT}",
            f"GET OPTIONS {EVENTS}",
            *(
                f"{operation.method} OPTIONS {operation.path}"
                for operation in mail
                if operation.who is Who.LOOKERS
            ),
        ),
        *_PAGES,
        *_rows(Who.ADMINS, "GET /metrics"),
        *_rows(Who.HOOKS, "POST /hooks/{client}/{event}"),
        *_rows(Who.ADMINS, "POST /watch"),
        *(
            Permission(path=path, methods=frozenset(methods), who=who)
            for (path, who), methods in administration.items()
        ),
    )


_PAGES: Final = tuple(
    _rows(
        Who.PEOPLE,
        "POST /logout",
        "GET POST /",
        "GET POST /push",
        "GET /p",
        "GET /p/{slug}",
        "GET /p/{slug}/agents",
        "GET /p/{slug}/agents/{name:path}",
        "GET /p/{slug}/timeline",
        "GET /p/{slug}/threads",
        "GET /p/{slug}/t/{thread_id:path}",
        "GET /p/{slug}/m/{message_id}",
        "GET /p/{slug}/m/{message_id}/source",
        "GET /p/{slug}/reservations",
        "GET /p/{slug}/tasks",
        "GET /p/{slug}/notes",
        "GET /p/{slug}/search",
        "GET /p/{rest:path}",
        "GET /attachments/{sha256}",
        "GET /previews/{sha256}",
        "GET POST /p/{slug}/questions",
        "GET POST /p/{slug}/write",
        "GET POST /p/{slug}/m/{message_id}/mark",
        "GET POST /p/{slug}/reservations/decide",
        "GET POST /p/{slug}/tasks/decide",
        "GET POST /p/{slug}/runs",
        "GET POST /p/{slug}/runs/{run_id:path}",
        "GET POST /p/{slug}/schedules",
        "GET /p/{slug}/digest",
        "GET /chats",
        "GET /find",
        "GET POST /chats/{run_id:path}",
    )
)


def _addresses(routes: Sequence[BaseRoute], below: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from _addresses(route.routes or (), below + route.path)
        elif isinstance(route, Route):
            yield below + route.path, frozenset(route.methods or _EVERY_METHOD.split()) - {"HEAD"}


def check(who: Who | None, scope: Scope) -> None:
    """Check that a path accepts the caller of a request.

    `who` is the permission of the path, or None if the path has no permission.

    Raises:
        InsufficientScope: A named token lacks `admin`.
        NotPermitted: The address accepts only other callers, or has no row (`who` is None).
    """
    if who in (Who.ANYONE, Who.PROVED_THERE):
        return
    if who is None:
        raise NotPermitted("the table of permissions does not list this path, so no caller may use it")
    caller, grant = scope.get("state", {}).get("caller"), scope.get(GRANT_SCOPE)
    if caller in _LET_IN[who]:
        return
    if caller == "token" and isinstance(grant, Grant) and who in (Who.HOOKS, Who.ADMINS):
        if who is Who.ADMINS or grant.run_id is None:
            grant.check(ADMIN, scope["path"])
        return
    raise NotPermitted(
        f"only {who} may use this path", remedy=_REMEDIES.get(who, "use the server's own token")
    )


_REMEDIES: Final = {
    Who.PEOPLE: "log in at /login",
    Who.LOOKERS: "send `Authorization: Bearer <token>`",
    Who.CALLERS: "send `Authorization: Bearer <token>`; a page session can read but not change",
}


def close(routes: Sequence[BaseRoute], permissions: Sequence[Permission], below: str = "") -> None:
    """Add the permission check to every route; a route without a permission rejects all callers."""
    for route in routes:
        if isinstance(route, Mount):
            close(route.routes or (), permissions, below + route.path)
        elif isinstance(route, Route):
            path = below + route.path
            who = {
                method: permission.who
                for permission in permissions
                if permission.path == path
                for method in permission.methods
            }
            route.app = _Checked(route.app, who)
        else:
            raise TypeError(f"no permission is declared for a {type(route).__name__}")


class _Checked:
    def __init__(self, app: ASGIApp, who: Mapping[str, Who]) -> None:
        self._app = app
        self._who = who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        check(self._who.get(method), scope)
        await self._app(scope, receive, send)
