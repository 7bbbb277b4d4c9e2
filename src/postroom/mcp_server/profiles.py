"""The tools listed at each address of the endpoint: each tool takes space in a client's prompt."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.contracts.operations import Operation
from postroom.mail.operations import MAIL_OPERATIONS, OPERATIONS
from postroom.mcp_server.callers import GRANT_SCOPE

Profile = Literal["full", "core", "run"]
"""All operations; the common ones; the common ones and the ones reserved for runs of the server."""

CORE: Final = (
    "start_session",
    "send_message",
    "reply_message",
    "fetch_inbox",
    "get_attachment",
    "acknowledge_message",
    "search_messages",
    "file_reservation_paths",
    "release_file_reservations",
    "list_agents",
    "delivery_status",
    "list_tasks",
    "claim_task",
    "add_task",
    "update_task",
    "done_task",
    "add_note",
    "find_notes",
    "catch_up",
)
"""Tools for agents' everyday work; rare ones, and decisions of people, are in the full profile."""
IN_RUNS: Final = ("ask_person",)
_PROFILE_SCOPE: Final = "postroom.profile"


def operations_of(profile: Profile) -> tuple[Operation, ...]:
    """Return the operations of a profile in an order that never changes: clients cache prompts with it."""
    if profile == "full":
        return MAIL_OPERATIONS
    return tuple(OPERATIONS[name] for name in (*CORE, *(IN_RUNS if profile == "run" else ())))


def profile_of(scope: Mapping[str, Any], default: Profile) -> Profile:
    """Return the profile of a request's address; `default` if it names none.

    A run that this server started, identified by its token, gets `run` in place of `core`.
    """
    profile: Profile = scope.get(_PROFILE_SCOPE) or default
    grant = scope.get(GRANT_SCOPE)
    return "run" if profile == "core" and grant is not None and grant.run_id is not None else profile


class Addresses:
    """Maps each address of the endpoint, with or without a final slash, to the one route."""

    def __init__(self, app: ASGIApp, mcp_path: str, *, others: tuple[str, ...] = ()) -> None:
        """`others` are additional paths for the same endpoint as `mcp_path`."""
        self._app = app
        self._mcp_path = mcp_path
        tails: dict[str, Profile | None] = {"": None, "/core": "core", "/full": "full"}
        self._known = {
            f"{base}{tail}{end}": profile
            for base in (mcp_path, *others)
            for tail, profile in tails.items()
            for end in ("", "/")
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Rewrite an address of the endpoint to its route, note the profile, and pass the request on."""
        if scope["type"] == "http" and scope["path"] in self._known:
            profile = self._known[scope["path"]]
            path = {"path": self._mcp_path, "raw_path": self._mcp_path.encode()}
            scope = {**scope, **path, _PROFILE_SCOPE: profile}
        await self._app(scope, receive, send)
