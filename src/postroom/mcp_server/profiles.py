"""Which tools each address of the endpoint lists: each one that a client is given takes of its prompt."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.contracts.operations import Operation
from postroom.mail.operations import ALL_OPERATIONS, OPERATIONS
from postroom.mcp_server.callers import GRANT_SCOPE

Profile = Literal["full", "core", "run"]
"""All operations; those of daily work; those and what only a run that the server has started may do."""

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
)
"""What agents need day by day; what they seldom need, or what a person decides, is in the full profile."""
IN_RUNS: Final = ("ask_person",)
_PROFILE_SCOPE: Final = "postroom.profile"


def operations_of(profile: Profile) -> tuple[Operation, ...]:
    """Return the operations of a profile in an order that never changes: clients cache prompts with it."""
    if profile == "full":
        return ALL_OPERATIONS
    return tuple(OPERATIONS[name] for name in (*CORE, *(IN_RUNS if profile == "run" else ())))


def profile_of(scope: Mapping[str, Any], default: Profile) -> Profile:
    """Return the profile that the address of a request stands for; `default` where it names none.

    A run of the server's own, which its token shows, is given `run` where others are given `core`.
    """
    profile: Profile = scope.get(_PROFILE_SCOPE) or default
    grant = scope.get(GRANT_SCOPE)
    return "run" if profile == "core" and grant is not None and grant.run_id is not None else profile


class Addresses:
    """Brings each address of the endpoint, with or without a slash at its end, to the one route."""

    def __init__(self, app: ASGIApp, mcp_path: str, *, others: tuple[str, ...] = ()) -> None:
        """`others` are further names of `mcp_path`."""
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
        """Rename the path, if it is an address of the endpoint, note its profile, and pass the request on."""
        if scope["type"] == "http" and scope["path"] in self._known:
            profile = self._known[scope["path"]]
            path = {"path": self._mcp_path, "raw_path": self._mcp_path.encode()}
            scope = {**scope, **path, _PROFILE_SCOPE: profile}
        await self._app(scope, receive, send)
