"""Decides which tools each address of the endpoint lists.

Each listed tool takes space in the prompt of the client's model.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.contracts.operations import Operation
from postroom.mail.operations import MAIL_OPERATIONS, OPERATIONS
from postroom.mcp_server.callers import GRANT_SCOPE

Profile = Literal["full", "core", "run"]
"""A selection of tools:

`full` has all operations, `core` has the common ones, and `run` adds the operations for runs of this server
to the common ones.
"""

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
"""The tools that agents need every day.

Rare operations, and decisions of people, are only in the full profile.
"""
IN_RUNS: Final = ("ask_person",)
_PROFILE_SCOPE: Final = "postroom.profile"


def list_operations(profile: Profile) -> tuple[Operation, ...]:
    """Return the operations of a profile in a fixed order."""
    if profile == "full":
        return MAIL_OPERATIONS
    return tuple(OPERATIONS[name] for name in (*CORE, *(IN_RUNS if profile == "run" else ())))


def choose_profile(scope: Mapping[str, Any], default: Profile) -> Profile:
    """Return the profile that the path of a request names, or `default`.

    A request with the token of a run gets the profile `run` in place of `core`.
    """
    profile: Profile = scope.get(_PROFILE_SCOPE) or default
    grant = scope.get(GRANT_SCOPE)
    return "run" if profile == "core" and grant is not None and grant.run_id is not None else profile


class Addresses:
    """Middleware that maps all paths of the MCP endpoint to one route."""

    def __init__(self, app: ASGIApp, mcp_path: str, *, others: tuple[str, ...] = ()) -> None:
        """`others` are additional base paths of the endpoint."""
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
        """Rewrite the path of a request to the endpoint's route, and store the profile of the request."""
        if scope["type"] == "http" and scope["path"] in self._known:
            profile = self._known[scope["path"]]
            path = {"path": self._mcp_path, "raw_path": self._mcp_path.encode()}
            scope = {**scope, **path, _PROFILE_SCOPE: profile}
        await self._app(scope, receive, send)
