"""The gateway as its operator uses it, wherever a channel is served."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.services.administration import ChatPeopleView, PairedPerson, RemovedChatPerson, StoredEffect

if TYPE_CHECKING:
    from postroom.app.gateway_service import GatewayService  # loaded where there are chats


@dataclass(frozen=True, slots=True)
class ChatAdministration:
    """Performs the operator's operations on chats; without a gateway each is refused."""

    found: "GatewayService | None"

    @property
    def gateway(self) -> "GatewayService":
        """The gateway.

        Raises:
            ConfigError: This server has none.
        """
        if self.found is None:
            raise ConfigError(
                "this server has no gateway: it found no gateway.toml when it started",
                remedy=(
                    "write the file (`postroom gateway config check` checks it) and start the server again"
                ),
            )
        return self.found

    async def pair(self, platform: str, code: str, role: str) -> PairedPerson:
        """Admit the person who was given this code."""
        return await self.gateway.pair(platform, code, role)

    async def people(self) -> ChatPeopleView:
        """Return the people who may write, and those who ask to."""
        return await self.gateway.people()

    async def remove_person(self, platform: str, user_id: str) -> RemovedChatPerson:
        """Remove a person who was admitted with a code."""
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
        """Send a message to a chat, at the server that serves the channel."""
        there = await self.gateway.passed_on(platform, request)
        return there or await self.gateway.send(platform, text, chat_id, thread_id, key)

    async def reconnect(self, request: Request, platform: str) -> Mapping[str, Json] | Response:
        """Reconnect a channel at the server that serves it; return its state."""
        return await self.gateway.passed_on(platform, request) or await self.gateway.reconnect(platform)
