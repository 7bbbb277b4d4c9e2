"""Starts and stops a server's gateway, and handles a gateway that cannot start."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from postroom.concurrency import Tasks
from postroom.contracts.errors import ConfigError, InternalError, PostroomError
from postroom.contracts.messages import Json
from postroom.services.administration import ChatPeopleView, PairedPerson, RemovedChatPerson, StoredEffect

if TYPE_CHECKING:
    from postroom.app.gateway_service import GatewayService  # loaded only if there are chats
    from postroom.app.gateway_wiring import ChatService


@dataclass(frozen=True, slots=True)
class ChatAdministration:
    """Performs the operator's operations on chats.

    Each operation raises a ConfigError if the server has no gateway.
    """

    found: "GatewayService | None"

    @property
    def gateway(self) -> "GatewayService":
        """The gateway of this server.

        Raises:
            ConfigError: This server has no gateway.
        """
        if self.found is None:
            raise ConfigError(
                "this server has no gateway: it found no gateway.toml when it started",
                remedy=(
                    "create the file, check it with `postroom gateway config check`, and restart the server"
                ),
            )
        return self.found

    async def pair(self, platform: str, code: str, role: str) -> PairedPerson:
        """Give access to the person who received the pairing code `code`."""
        return await self.gateway.pair(platform, code, role)

    async def people(self) -> ChatPeopleView:
        """Return the people who have access to chats, and the people who ask for access."""
        return await self.gateway.people()

    async def remove_person(self, platform: str, user_id: str) -> RemovedChatPerson:
        """Remove a person who got access with a pairing code."""
        return await self.gateway.shut_out(platform, user_id)

    async def send(
        self,
        request: Request,
        platform: str,
        text: str,
        chat_id: str | None,
        thread_id: str | None,
        key: str | None,
    ) -> StoredEffect | Response:
        """Send a message to a chat, through the server that serves the channel."""
        there = await self.gateway.passed_on(platform, request)
        return there or await self.gateway.send(platform, text, chat_id, thread_id, key)

    async def reconnect(self, request: Request, platform: str) -> Mapping[str, Json] | Response:
        """Reconnect a channel on the server that serves the channel, and return the channel's state."""
        return await self.gateway.passed_on(platform, request) or await self.gateway.reconnect(platform)


_LOOK_SECONDS = 0.1


class Chats:
    """Starts and stops the gateway of a server."""

    def __init__(self, gateway: "ChatService", *, end: Callable[[], None]) -> None:
        self._gateway = gateway
        self._end = end
        self._tasks = Tasks("chats")
        self._hurrying = Tasks("chats in a hurry")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: PostroomError | None = None
        """Why the gateway could not start. A failure that only a person can correct stops the server."""

    async def start(self, *, patience: float, told_to_stop: Callable[[], bool]) -> None:
        """Start the gateway, and wait at most `patience` seconds until the gateway runs or has failed.

        After `patience` seconds, the gateway continues to start in the background. The call returns early if
        `told_to_stop` returns True.
        """
        self._loop = asyncio.get_running_loop()
        starting = self._tasks.start(self._start(), name="start")
        until = self._loop.time() + patience
        while not starting.done() and not told_to_stop() and self._loop.time() < until:
            await asyncio.wait({starting}, timeout=_LOOK_SECONDS)

    async def stop(self) -> None:
        """Stop the gateway cleanly, even if the gateway is still starting."""
        await self._tasks.close()
        await self._gateway.stop()
        await self._hurrying.close()

    def hurry(self) -> None:
        """End a stop of the gateway that is waiting for runs.

        A signal handler may call this method.
        """
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
        except asyncio.CancelledError:  # stopped before it has started
            self.failure = None
            raise
        except PostroomError as error:
            self.failure = error
        finally:
            if self.failure is not None:
                self._end()
