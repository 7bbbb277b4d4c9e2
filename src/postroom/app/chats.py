"""When the gateway of a server begins and ends, and what becomes of the server when it cannot begin."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from postroom.concurrency import Tasks
from postroom.contracts.errors import InternalError, PostroomError

if TYPE_CHECKING:
    from postroom.app.gateway_wiring import ChatService

_LOOK_SECONDS = 0.1


class Chats:
    """Starts a gateway, perhaps behind everything else, and stops it; `end` stops the server."""

    def __init__(self, gateway: "ChatService", *, end: Callable[[], None]) -> None:
        self._gateway = gateway
        self._end = end
        self._tasks = Tasks("chats")
        self._hurrying = Tasks("chats in a hurry")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: PostroomError | None = None
        """Why it could not begin; what a person must mend ends the server."""

    async def start(self, *, patience: float, told_to_stop: Callable[[], bool]) -> None:
        """Start it; return when it runs or has failed, or after so many seconds while it goes on."""
        self._loop = asyncio.get_running_loop()
        starting = self._tasks.start(self._start(), name="start")
        until = self._loop.time() + patience
        while not starting.done() and not told_to_stop() and self._loop.time() < until:
            await asyncio.wait({starting}, timeout=_LOOK_SECONDS)

    async def stop(self) -> None:
        """Stop it in good order, also while it starts."""
        await self._tasks.close()
        await self._gateway.stop()
        await self._hurrying.close()

    def hurry(self) -> None:
        """Have a stop wait for no turn; may be called from a signal's handler."""
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
        except asyncio.CancelledError:  # stopped before it had begun
            self.failure = None
            raise
        except PostroomError as error:
            self.failure = error
        finally:
            if self.failure is not None:
                self._end()
