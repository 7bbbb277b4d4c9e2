"""A fake homeserver on loopback: it speaks the part of Matrix's client-server API that the adapter uses.

It keeps a stream of batches that the test pushes, hands each out to who has not passed it, takes a transaction
once, and notes every request. It knows no federation, no encryption and no rights.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

BOT = "@bot:fake"
TOKEN = "syt_secret_token"


@dataclass
class Asked:
    """A request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    token: str


@dataclass
class Fault:
    """The answers to the next matching requests."""

    matches: str
    status: int = 0
    """0: the connection is cut without an answer."""
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    after: bool = False
    """Whether the request is done first: its answer alone is lost."""
    times: int = 1


class FakeMatrix:
    """The fake; use it as a context manager."""

    def __init__(self) -> None:
        self.first: dict[str, Any] = {"rooms": {}}
        self.batches: list[dict[str, Any]] = []
        self.events: dict[str, dict[str, Any]] = {}
        self.pages: dict[str, dict[str, Any]] = {}
        """Pages of history by the token that they are asked from."""
        self.members: dict[str, int] = {}
        self.files: dict[str, bytes] = {}
        self.redirect_files_to: str | None = None
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self.sent: dict[str, dict[str, Any]] = {}
        """Contents by the transaction that brought them."""
        self.redacted: set[str] = set()
        """The events that were deleted."""
        self.user_id = BOT
        self.token = TOKEN
        self.port = 0
        self._news = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def push(self, room_id: str, *events: Any, **info: Any) -> None:
        """Send a message in a room, in one batch."""
        timeline = {"events": list(events), **info.pop("timeline", {})}
        await self.push_batch({"join": {room_id: {"timeline": timeline, **info}}})

    async def push_batch(self, rooms: Any) -> None:
        for room in rooms.get("join", {}).values():
            events = room.get("timeline", {}).get("events", [])
            known = [e for e in events if isinstance(e, dict)] if isinstance(events, list) else []
            self.events.update({str(e.get("event_id")): e for e in known})
        async with self._news:
            self.batches.append({"rooms": rooms})
            self._news.notify_all()

    def requests(self, word: str) -> list[Asked]:
        return [one for one in self.asked if word in one.path]

    @property
    def said(self) -> list[dict[str, Any]]:
        return list(self.sent.values())

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        kind = request.headers.get("Content-Type", "")
        body = json.loads(raw) if raw and "json" in kind else raw
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.asked.append(Asked(request.method, request.path, dict(request.query), body, token))
        if fault := next((one for one in self.faults if one.matches in request.path), None):
            fault.times -= 1
            if not fault.times:
                self.faults.remove(fault)
            if fault.after:
                await self._answer(request, body)
            if not fault.status:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return web.json_response(fault.body, status=fault.status, headers=fault.headers)
        if token != self.token:
            return web.json_response({"errcode": "M_UNKNOWN_TOKEN", "error": token}, status=401)
        return await self._answer(request, body)

    async def _answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")[3:]
        for name in ("sync", "rooms", "join", "upload", "download"):
            if name in parts:
                parts = parts[parts.index(name) :]
                break
        answers: dict[str, Callable[[web.Request, list[str], Any], Any]] = {
            "sync": self._sync,
            "rooms": self._rooms,
            "join": lambda *_: {},
            "upload": lambda *_: {"content_uri": "mxc://fake/uploaded"},
            "download": self._download,
            "account": lambda *_: {"user_id": self.user_id},
            "profile": lambda *_: {"displayname": "Postbot"},
        }
        answer = answers[parts[0]](request, parts, body)
        answer = await answer if asyncio.iscoroutine(answer) else answer
        if isinstance(answer, web.StreamResponse):
            return answer
        if answer is None:
            return web.json_response({"errcode": "M_NOT_FOUND"}, status=404)
        return web.json_response(answer)

    async def _sync(self, request: web.Request, _: list[str], __: Any) -> dict[str, Any]:
        since = request.query.get("since")
        if since is None:
            return {**self.first, "next_batch": f"s{len(self.batches)}"}
        at = int(since.removeprefix("s"))
        full = request.query.get("full_state") == "true"
        async with self._news:
            if not full:
                await self._news.wait_for(lambda: len(self.batches) > at)
        if len(self.batches) <= at:
            return {**self.first, "next_batch": since}
        return {**self.batches[at], "next_batch": f"s{at + 1}"}

    def _rooms(self, request: web.Request, parts: list[str], body: Any) -> Any:
        room, what = parts[1], parts[2]
        if what == "event":
            return self.events.get(parts[3])
        if what == "messages":
            return self.pages.get(request.query["from"], {"chunk": []})
        if what == "joined_members":
            return {"joined": {f"@u{n}:fake": {} for n in range(self.members.get(room, 2))}}
        if what in ("send", "redact"):
            key = f"{room}/{parts[-1]}"
            if key not in self.sent:
                self.sent[key] = body
            if what == "redact":
                self.redacted.add(parts[3])
            return {"event_id": f"$sent{list(self.sent).index(key)}"}
        return {}

    def _download(self, _: web.Request, parts: list[str], __: Any) -> Any:
        if self.redirect_files_to is not None:
            return web.Response(status=302, headers={"Location": self.redirect_files_to})
        data = self.files.get(parts[-1])
        return None if data is None else web.Response(body=data)
