"""Loads the MCP SDK at the first MCP message, because it takes a third of startup time and idle memory."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    from postroom.mcp_server.endpoint import McpOverHttp

_LOADED: Final = ("postroom.mcp_server.endpoint", "rich.logging")
"""The modules that the first MCP request needs. The SDK imports the second one when it creates a server."""


class LoadedOnUse:
    """An MCP endpoint that is created at the first request."""

    def __init__(self, make: Callable[[], "McpOverHttp"]) -> None:
        self._make = make
        self._made: McpOverHttp | None = None
        self._running: McpOverHttp | None = None
        self._loading = asyncio.Lock()
        self._is_running = asyncio.Event()
        self._begin = asyncio.Event()
        self._end = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        running = self._running
        if running is None:
            async with self._loading:
                if self._made is None:
                    for module in _LOADED:  # in a thread, so that no other request waits
                        await asyncio.to_thread(import_module, module)
                    self._made = self._make()
                    self._begin.set()
            await self._is_running.wait()
            running = self._made
        await running(scope, receive, send)

    async def run(self) -> None:
        """Run the endpoint after its creation, until the method `end` is called."""
        await self._begin.wait()
        if self._made is None or self._end.is_set():
            return
        async with self._made.running():
            self._running = self._made
            self._is_running.set()
            await self._end.wait()

    def end(self) -> None:
        """Make the method `run` return."""
        self._end.set()
        self._begin.set()

    def end_listening(self) -> None:
        """End all subscriptions."""
        if self._made is not None:
            self._made.end_listening()
