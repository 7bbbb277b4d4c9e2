"""The page of permissions: every address and tool, and how each caller is answered."""

from typing import Final

from starlette.routing import Mount

from from_code.channels import with_addresses
from from_code.markdown import table
from postroom.app.gateway_wiring import CHANNELS
from postroom.app.operations import ALL_OPERATIONS
from postroom.contracts.operations import Who
from postroom.http_api import permissions
from postroom.http_api.rest.document import EVENTS
from postroom.mail.operations import MAIL_OPERATIONS, OPERATIONS
from postroom.mcp_server.resources import RESOURCES

CALLERS: Final = (
    "no token",
    "wrong token",
    "revoked token",
    "other project",
    "agent",
    "named token",
    "person",
    "operator",
)
_NOBODY: Final = ("401", "401", "401")
ANSWERS: Final[dict[Who, tuple[str, ...]]] = {
    Who.ANYONE: ("in",) * 8,
    Who.PROVED_THERE: ("its own proof",) * 8,
    Who.PEOPLE: (*_NOBODY, "401", "401", "401", "in", "in"),
    Who.LOOKERS: (*_NOBODY, "404", "in", "in", "in", "in"),
    Who.CALLERS: (*_NOBODY, "404", "in", "in", "403", "in"),
    Who.HOOKS: (*_NOBODY, "403", "401", "in", "401", "in"),
    Who.ADMINS: (*_NOBODY, "403", "401", "in", "401", "in"),
    Who.OPERATOR: (*_NOBODY, "403", "401", "403", "401", "in"),
}
"""How addresses answer each of `CALLERS`."""


def answers(row: permissions.Permission) -> tuple[str, ...]:
    """Return how an address answers each of `CALLERS`."""
    told = dict(zip(CALLERS, ANSWERS[row.who], strict=True))
    if (
        row.path.removeprefix("/v1/") not in OPERATIONS
        and row.path != EVENTS
        and told["other project"] == "404"
    ):
        told["other project"] = "in"  # it is about no project yet
    if row.path == "/mcp":
        told["person"] = "401"  # a session of the pages opens nothing there
    return tuple(told.values())


def page() -> str:
    """Return the page."""
    routes = [
        route if adapter.at_root else Mount(CHANNELS, routes=[route])
        for adapter in with_addresses().values()
        for route in adapter.routes()
    ]
    rows = [
        (f"`{' '.join(sorted(one.methods - {'OPTIONS'}))} {one.path}`", *answers(one))
        for one in sorted(
            permissions.table(ALL_OPERATIONS, channels=routes), key=lambda one: one.who is Who.PROVED_THERE
        )
        if ".well-known" not in one.path
    ]
    tools = [
        (f"`{one.name}`", ", ".join(sorted(one.needs)), "404" if one.is_of_one_project else "403")
        for one in MAIL_OPERATIONS
    ]
    resources = [(f"`{one.template}`", f"`{one.operation}`") for one in RESOURCES]
    return f"""
# Permissions

An address without a row is refused. `in` means that the call passes this check; it may still be refused for
its content. A browser without a session gets the log-in page instead of 401. *Named token* has every scope.
*Other project* is a named token with every scope except `admin`, bound to a different project: the requested
project does not exist for it (404). *Its own proof* means that the handler authenticates the caller: the
routes of a channel have such rows, also those of a plug-in, which are not listed here.
`tests/unit/test_permissions.py` calls the whole server for each row and column.

{table(("address", *CALLERS), rows)}

## Tools

Each is an address of REST above and a tool of the MCP endpoint. Agents and the operator need no scope.

{table(("tool", "scopes of a named token", "other project"), tools)}

## Resources

To read or follow a resource needs the permissions of its operation.

{table(("resource", "operation"), resources)}
"""
