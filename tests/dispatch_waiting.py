"""Waits of tests for what a mailbox does in the background: bounded, and without time passing."""

import asyncio
from collections.abc import Callable

from postroom.dispatch.mailbox import Mailbox

PATIENCE = 10
TURNS = 200


async def until(condition: Callable[[], object]) -> None:
    """Let others run until it is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def settled(mailbox: Mailbox) -> None:
    """Return when nothing executes in the mailbox."""
    async with asyncio.timeout(PATIENCE):
        await mailbox.settled()


async def turns() -> None:
    """Let others run for a while, so that what must not happen would have happened."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
