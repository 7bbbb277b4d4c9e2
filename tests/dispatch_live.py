"""A worker on another machine, and time that passes while a submission waits for it. For tests only."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from postroom.concurrency import Tasks
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.live import LiveChannels, LiveRunCommand, LiveRunTarget
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

T = TypeVar("T")
Answer = Callable[[LiveRunCommand], Awaitable[bool]]


async def accept(command: LiveRunCommand) -> bool:
    return True


async def drop(command: LiveRunCommand) -> bool:
    return False


@asynccontextmanager
async def listening(
    channels: LiveChannels, target: LiveRunTarget, answer: Answer = accept
) -> AsyncIterator[list[LiveRunCommand]]:
    """Hear the commands to a target; `answer` says of each whether it is accepted, else it is dropped."""
    heard: list[LiveRunCommand] = []
    subscription = await channels.open(target)

    async def serve() -> None:
        async for entry in subscription:
            with entry:
                heard.append(entry.command)
                if await answer(entry.command):
                    entry.receipt.ack()

    tasks = Tasks("listener")
    served = tasks.start(serve(), name=target.thread_id)
    try:
        yield heard
        subscription.close()
        async with asyncio.timeout(60):
            await served
    finally:
        subscription.close()
        await tasks.close()


async def claimed_elsewhere(stores: RunStores, dispatch_id: str) -> RunDispatch:
    """Claim a queued dispatch for a worker that is not of this process."""
    claimed = await stores.dispatches.claim_dispatch(dispatch_id, "remote-consumer", lease_ms=30_000)
    assert claimed is not None
    return claimed


async def as_time_passes(timer: ManualClock, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; whoever sleeps by the timer meanwhile is woken."""
    tasks = Tasks("work under a moving clock")
    task = tasks.start(work, name="work")
    try:
        async with asyncio.timeout(60):
            while not task.done():
                await asyncio.sleep(0)
                if timer.sleeping:
                    timer.advance(timedelta(milliseconds=25))
        return await task
    finally:
        await tasks.close()
