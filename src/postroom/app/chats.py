"""The lifecycle of a server's gateway, and the server's reaction if the gateway cannot start."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from postroom.concurrency import Tasks
from postroom.contracts.errors import InternalError, PostroomError

if TYPE_CHECKING:
    from postroom.app.gateway_wiring import ChatService

_LOOK_SECONDS = 0.1


class Chats:
    """Starts a gateway, possibly after everything else, and stops it; `end` stops the server."""

    def __init__(self, gateway: "ChatService", *, end: Callable[[], None]) -> None:
        self._gateway = gateway
        self._end = end
        self._tasks = Tasks("chats")
        self._hurrying = Tasks("chats in a hurry")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: PostroomError | None = None
        """Why it could not start; a failure that a person must fix stops the server."""

    async def start(self, *, patience: float, told_to_stop: Callable[[], bool]) -> None:
        """Start it; return when it runs or has failed, or after `patience` seconds while it continues."""
        self._loop = asyncio.get_running_loop()
        starting = self._tasks.start(self._start(), name="start")
        until = self._loop.time() + patience
        while not starting.done() and not told_to_stop() and self._loop.time() < until:
            await asyncio.wait({starting}, timeout=_LOOK_SECONDS)

    async def stop(self) -> None:
        """Stop it cleanly, even while it starts."""
        await self._tasks.close()
        await self._gateway.stop()
        await self._hurrying.close()

    def hurry(self) -> None:
        """Make a stop skip its wait for runs; a signal handler may call this."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._hurry)

    def _hurry(self) -> None:
        if self._gateway.state == "stopping":
            self._hurrying.start(self._gateway.hurry(), name="hurry")

    async def _start(self) -> None:
        self.failure = InternalError("the gateway did not start: see the log")
        try:
            await self._gateway.start()
            self.failure = None
        except asyncio.CancelledError:  # stopped before its start
            self.failure = None
            raise
        except PostroomError as error:
            self.failure = error
        finally:
            if self.failure is not None:
                self._end()
