"""Shared by tests of channels on our server: an adapter with a fake gateway, and a real server."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from postroom.contracts.errors import StoreUnavailable
from postroom.gateway.events import ButtonPress, Card, MessageEvent
from postroom.gateway.platforms.base import BasePlatformAdapter, KnownMessage
from postroom.gateway.platforms.http_adapter import HttpAdapter
from postroom.gateway.session import SessionSource

Reply = Callable[[MessageEvent], Awaitable[None]]


class FakeGateway:
    """A fake gateway: keeps the messages that it gets, and refuses or answers as the test says."""

    def __init__(self) -> None:
        self.accepted: list[MessageEvent] = []
        self.edits: list[MessageEvent] = []
        self.deletions: list[tuple[str, str]] = []
        self.presses: list[ButtonPress] = []
        self.forgotten: list[tuple[str, str]] = []
        self.cancelled: list[tuple[str, str]] = []
        self.failure: Exception | None = None
        self.reply: Reply | None = None
        self.answers: dict[str, str] = {}
        """By text of a message: what the store has as its answer."""
        self.arrived = asyncio.Event()

    async def accept(self, event: MessageEvent) -> None:
        if self.failure is not None:
            raise self.failure
        known = {(one.source.chat_id, one.message_id) for one in self.accepted}
        self.accepted.append(event)
        self.arrived.set()
        if self.reply is not None and (event.source.chat_id, event.message_id) not in known:
            await self.reply(event)

    async def edited(self, event: MessageEvent) -> None:
        if self.failure is not None:
            raise self.failure
        self.edits.append(event)

    async def deleted(self, source: SessionSource, message_id: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.deletions.append((source.chat_id, message_id))

    async def pressed(self, press: ButtonPress) -> str:
        if self.failure is not None:
            raise self.failure
        self.presses.append(press)
        return f"noted: {press.value}"

    async def cards_of(self, source: SessionSource, message_id: str) -> Sequence[Card]:
        return ()

    async def look_up(self, source: SessionSource, message_id: str) -> KnownMessage | None:
        if self.failure is not None:
            raise self.failure
        names = source.chat_id, message_id
        found = next((e for e in self.accepted if (e.source.chat_id, e.message_id) == names), None)
        if found is None:
            return None
        forgotten, answer = names in self.forgotten, self.answers.get(found.text)
        return KnownMessage(
            event=found,
            received_at=found.timestamp,
            is_forgotten=forgotten,
            is_cancelled=names in self.cancelled,
            answer=answer,
        )

    async def forget_answer(self, source: SessionSource, message_id: str) -> None:
        self.forgotten.append((source.chat_id, message_id))

    async def cancel_answer(
        self, source: SessionSource, message_id: str, is_waited_for: Callable[[str], bool]
    ) -> bool:
        if self.failure is not None:
            raise self.failure
        self.cancelled.append((source.chat_id, message_id))
        return True

    async def inbound(self, count: int) -> list[MessageEvent]:
        """Return the messages that were handed over once there are this many."""
        while len(self.accepted) < count:
            self.arrived.clear()
            await self.arrived.wait()
        return self.accepted


def unavailable() -> StoreUnavailable:
    return StoreUnavailable("the disk is away")


async def until(condition: Callable[[], bool]) -> None:
    """Return once something is so; what makes it so runs on this loop."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def application(adapter: HttpAdapter, below: str = "") -> Starlette:
    routes = list(adapter.routes())
    return Starlette(routes=[Mount(below, routes=routes)] if below else routes)


@asynccontextmanager
async def calling(adapter: HttpAdapter, below: str = "") -> AsyncIterator[httpx2.AsyncClient]:
    """Give a client that calls the application without a socket between; answers come whole."""
    transport = httpx2.ASGITransport(app=application(adapter, below))
    async with httpx2.AsyncClient(transport=transport, base_url="http://room.test") as client:
        yield client


@asynccontextmanager
async def served(
    adapter: HttpAdapter, below: str = "", *, door: Callable[[ASGIApp], ASGIApp] = lambda app: app
) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve the application on this loop by a real server, and give a client of it; answers come in pieces."""
    config = uvicorn.Config(door(application(adapter, below)), log_level="error", lifespan="off", ws="none")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    with listening() as listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]))
            await until(lambda: server.started)
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            try:
                async with httpx2.AsyncClient(base_url=address, trust_env=False) as client:
                    yield client
            finally:
                server.should_exit = True


@contextmanager
def listening() -> Iterator[socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        yield listener
    finally:
        listener.close()


async def status_of(
    adapter: BasePlatformAdapter, path: str, messages: Iterator[dict[str, Any]], **headers: str
) -> int:
    """Post a request in these pieces; the server may read only some of them."""

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(told: Any) -> None:
        statuses.append(told.get("status"))

    statuses: list[int] = []
    named = [(name.replace("_", "-").lower().encode(), one.encode()) for name, one in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": named}
    async with asyncio.timeout(60):
        await Starlette(routes=list(adapter.routes()))(scope, receive, send)
    return statuses[0]


def endless(pieces: list[int]) -> Iterator[dict[str, Any]]:
    """A body without an end; `pieces` counts the pieces that were read."""
    while True:
        pieces.append(len(pieces))
        yield {"type": "http.request", "body": b" " * 65_536, "more_body": True}
