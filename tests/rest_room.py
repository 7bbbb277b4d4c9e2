"""The mail room over REST, in process: the door, the routes and a real service over a store in memory."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import rich  # noqa: F401 - the SDK's server imports it at first use, which would block the loop of a test

from mail_room import CHANGES, HARBOR, THE_PLAN, UNPLACED, Room, furnish
from postroom.app.operations import ALL_OPERATIONS
from postroom.app.tokens import new_named_token, token_check
from postroom.contracts.tracing import OFF, Tracing
from postroom.http_api.guard import Credentials, Guard, GuardRules, OpenPath
from postroom.http_api.permissions import table
from postroom.http_api.rest.routes import rest_paths, rest_routes
from postroom.http_api.routes import application
from postroom.mail.context import Rules, token_hash
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mail.service import Mail
from postroom.mail.tokens import NamedTokens
from postroom.mcp_server.server import PostroomMcpServer
from postroom.services.calls import Calls, Subscriptions
from postroom.services.following import EventFollowing
from postroom.services.login_codes import EndedSessions, Sessions
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

TOKEN = "prm_" + "t" * 43
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
BASE = "http://127.0.0.1:8765"
LIMIT = 64 * 1024

LOOKS: dict[str, dict[str, Any]] = {
    "health_check": {},
    "show_project": {},
    "whois": {"agent_name": "Ben"},
    "list_agents": {"include_retired": True, "limit": 3},
    "fetch_inbox": {"agent_name": "Ben", "limit": 1, "include_bodies": False},
    "fetch_inbox_events": {"agent_name": "Ben", "after": 1},
    "get_attachment": {"agent_name": "Ben", "message_id": 1, "sha256": THE_PLAN},
    "get_message": {"agent_name": "Ben", "message_id": 1},
    "delivery_status": {"agent_name": "Ada", "message_id": 2},
    "search_messages": {"query": "subject:Subject", "order": "best"},
    "fetch_thread": {"thread_id": "msg-1", "after": 0, "limit": 1},
    "summarize_thread": {"thread_id": "msg-1"},
    "list_contacts": {"agent_name": "Ada"},
    "check_file_reservations": {"agent_name": "Ada", "paths": ["p", "x y&z"], "exclusive": False},
    "list_file_reservations": {"agent_name": "Ben"},
    "list_tasks": {"task_id": 2},
    "find_notes": {"query": "paint"},
    "list_subscriptions": {"agent_name": "Ben"},
    "catch_up": {"after": 3, "hours": 2},
    "fetch_events": {"after": 3, "limit": 4, "kinds": ["message.sent", "reservation.made"]},
}
"""The arguments of one read each, in the world of `furnish`."""


def arguments_of(name: str) -> dict[str, Any]:
    """Return arguments with which an operation has something to do."""
    place = {} if name in UNPLACED else {"project_key": HARBOR}
    if name == "rotate_agent_token":
        return {**place, "agent_name": "Ben"}
    return {**place, **(LOOKS[name] if name in LOOKS else CHANGES[name].arguments)}


def all_names() -> list[str]:
    return [operation.name for operation in MAIL_OPERATIONS]


@dataclass
class Edge:
    """The mail room with its middleware, and its callers."""

    rules: Rules | None = None
    channels: tuple[OpenPath, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    counted: list[tuple[str, str]] = field(default_factory=list)
    tracing: Tracing = OFF

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.store = SqliteStore.in_memory(self.clock)
        dice = random.Random("the same each time")
        self.mail = Mail(
            self.store,
            self.clock,
            self.rules,
            dice=lambda _: dice,
            keep_token=lambda slug, name: (f"pra_{slug}_{name}", f"/tokens/{slug}/{name}"),
            tracing=self.tracing,
        )
        self.room = Room(self.mail, self.clock)
        self.news = Subscriptions()
        self.mcp = PostroomMcpServer(self.mail, subscriptions=self.news)
        self.sessions = Sessions(b"k" * 32, self.clock, EndedSessions(self.store))
        self.tokens = NamedTokens(self.store, self.clock)
        calls = Calls(self.mail, MAIL_OPERATIONS, news=self.news, observe=self._count)
        events = EventFollowing(self.mail, self.tokens.holds)
        made = rest_routes(calls, events, session_cookie=self.sessions.cookie_name)
        self.bare = application([*made], permissions=table(ALL_OPERATIONS))
        self.app = Guard(
            self.bare,
            GuardRules(
                max_request_bytes=LIMIT,
                channels=self.channels,
                rest_paths=rest_paths(),
                allowed_hosts=self.allowed_hosts,
            ),
            Credentials(
                is_operator=token_check(TOKEN),
                sessions=self.sessions,
                is_agent=self.mail.knows_token,
                grant_of=self.tokens.recognise,
            ),
        )

    def _count(self, name: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.counted.append((name, outcome))

    async def furnish(self) -> None:
        await furnish(self.room)

    async def token_of(self, name: str) -> str:
        """Give an agent a token and return it."""
        token = f"pra_{name}" + "a" * 40
        await self.mail.issue_token(HARBOR, name, token_hash(token))
        return token

    async def named_token(self, name: str, *scopes: str, **more: Any) -> dict[str, str]:
        """Make a named token and return the header that shows it."""
        made = new_named_token()
        await self.tokens.create(name, made.id, made.hash, scopes, **more)
        return {"Authorization": f"Bearer {made.token}"}

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"{self.sessions.cookie_name}={self.sessions.issue()}"}

    async def ask(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> httpx2.Response:
        """Call an operation as its document describes; as the operator, unless the headers name another caller."""
        given = arguments_of(name) if arguments is None else arguments
        proof = OPERATOR if headers is None or not {"Authorization", "Cookie"} & headers.keys() else {}
        told = {**proof, **(headers or {})}
        if next(one for one in MAIL_OPERATIONS if one.name == name).changes:
            return await self.send("POST", f"/v1/{name}", json=given, headers=told)
        return await self.send("GET", f"/v1/{name}", params=as_query(given), headers=told)

    async def send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=self.app)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
            return await client.request(method, path, **{"headers": OPERATOR, **more})

    def close(self) -> None:
        self.store.close()


def as_query(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Return arguments as the pairs of a query: a list by its name once for each entry."""
    return [
        (name, str(one).lower() if isinstance(one, bool) else str(one))
        for name, value in arguments.items()
        for one in (value if isinstance(value, list) else [value])
    ]


def opened(**options: Any) -> Iterator[Edge]:
    """Yield an edge and close it."""
    edge = Edge(**options)
    yield edge
    edge.close()
