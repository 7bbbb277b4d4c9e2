"""Stands where the gateway stands: notes what adapters hand over, and can refuse to keep it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from postroom.gateway.events import ButtonPress, MessageEvent
from postroom.gateway.session import SessionSource


@dataclass
class Listener:
    """A fake of `Inbound`. `failures` are raised one a call, before anything is noted."""

    inbound: list[MessageEvent] = field(default_factory=list)
    edits: list[MessageEvent] = field(default_factory=list)
    withdrawn: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    refused: int = 0

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.inbound]

    async def accept(self, event: MessageEvent) -> None:
        self._fail()
        self.inbound.append(event)

    async def edited(self, event: MessageEvent) -> None:
        self._fail()
        self.edits.append(event)

    async def deleted(self, source: SessionSource, message_id: str) -> None:
        self._fail()
        self.withdrawn.append((source.chat_id, message_id))

    async def pressed(self, press: ButtonPress) -> str:
        self._fail()
        return ""

    def _fail(self) -> None:
        if self.failures:
            self.refused += 1
            raise self.failures.pop(0)


async def eventually(holds: Callable[[], object]) -> None:
    """Return when something holds; fail when it does not within five seconds."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0)
