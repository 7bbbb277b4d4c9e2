"""Stands where the gateway stands: notes what adapters hand over, and can refuse to keep it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from postroom.contracts.errors import StoreUnavailable
from postroom.gateway.events import ButtonPress, Card, MessageEvent
from postroom.gateway.platforms.base import KnownMessage
from postroom.gateway.session import SessionSource


@dataclass(repr=False)
class Listener:
    """A fake of `Inbound`. `failures` are raised one a call, before anything is noted; None lets one call pass."""

    inbound: list[MessageEvent] = field(default_factory=list)
    edits: list[MessageEvent] = field(default_factory=list)
    withdrawn: list[tuple[SessionSource, str]] = field(default_factory=list)
    presses: list[ButtonPress] = field(default_factory=list)
    moves: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Exception | None] = field(default_factory=list)
    asked: int = 0
    refused: int = 0
    down: bool = False
    gate: asyncio.Event | None = None
    """Calls wait for it, if there is one."""
    note: str = "noted"

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.inbound]

    @property
    def once(self) -> list[str]:
        """The content of an intake log: each message once."""
        return list({one.message_id: one.text for one in self.inbound}.values())

    @property
    def happened(self) -> list[object]:
        return [*self.inbound, *self.edits, *self.withdrawn, *self.presses, *self.moves]

    async def accept(self, event: MessageEvent) -> None:
        await self._may()
        self.inbound.append(event)

    async def cards_of(self, source: SessionSource, message_id: str) -> Sequence[Card]:
        return ()

    async def look_up(self, source: SessionSource, message_id: str) -> KnownMessage | None:
        for event in self.inbound:
            if event.message_id == message_id and event.source == source:
                return KnownMessage(event=event, received_at=0)
        return None

    async def edited(self, event: MessageEvent) -> None:
        await self._may()
        self.edits.append(event)

    async def deleted(self, source: SessionSource, message_id: str) -> None:
        await self._may()
        self.withdrawn.append((source, message_id))

    async def moved(self, source: SessionSource, chat_id: str) -> None:
        await self._may()
        self.moves.append((source.chat_id, chat_id))

    async def pressed(self, press: ButtonPress) -> str:
        await self._may()
        self.presses.append(press)
        return self.note

    async def _may(self) -> None:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        failure = self.failures.pop(0) if self.failures else StoreUnavailable("away") if self.down else None
        if failure is not None:
            self.refused += 1
            raise failure


async def eventually(holds: Callable[[], object]) -> None:
    """Return when something holds; real sockets are waited for, no time is."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0)
