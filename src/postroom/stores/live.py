"""Live commands: the subscription of a listener, and channels within one process."""

import asyncio
from collections import deque
from collections.abc import Callable

from postroom.concurrency import SystemTimer
from postroom.contracts.clock import Timer
from postroom.contracts.live import (
    LiveCommandEntry,
    LiveDeliveryOutcome,
    LiveReceipt,
    LiveRunCommand,
    LiveRunTarget,
)


class Subscription:
    """The commands for one target, in order of arrival; closing the subscription calls `forget` once."""

    def __init__(self, key: str, target: LiveRunTarget, forget: Callable[["Subscription"], None]) -> None:
        self.key = key
        self.target = target
        self._forget = forget
        self._queue: deque[LiveCommandEntry] = deque()
        self._open_receipts: list[LiveReceipt] = []
        self._changed = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> "Subscription":
        """Iterate over the commands as they arrive; only one iteration at a time is allowed."""
        return self

    async def __anext__(self) -> LiveCommandEntry:
        """Return the next command whose sender still waits."""
        while not self._closed:
            while self._queue:
                entry = self._queue.popleft()
                if not entry.receipt.settled:
                    return entry
            self._changed.clear()
            await self._changed.wait()
        raise StopAsyncIteration

    def put(self, entry: LiveCommandEntry) -> None:
        """Queue a command for the listener."""
        self._open_receipts = [receipt for receipt in self._open_receipts if not receipt.settled]
        self._open_receipts.append(entry.receipt)
        self._queue.append(entry)
        self._changed.set()

    def close(self) -> None:
        """End the subscription and drop unhandled commands; a second call has no effect."""
        if self._closed:
            return
        self._closed = True
        self._forget(self)
        self._queue.clear()
        for receipt in self._open_receipts:
            receipt.drop()
        self._open_receipts.clear()
        self._changed.set()


class LocalLiveChannels:
    """Delivers commands to the runs of this process.

    A command that no listener accepts within `accept_within_ms` milliseconds is withdrawn.
    """

    def __init__(self, timer: Timer | None = None, accept_within_ms: int = 5_000) -> None:
        self._timer: Timer = timer or SystemTimer()
        self._accept_within_ms = accept_within_ms
        self._listening: dict[str, dict[LiveRunTarget, Subscription]] = {}

    async def deliver(self, target: LiveRunTarget, command: LiveRunCommand) -> LiveDeliveryOutcome:
        """Pass a command to all listeners of a run.

        The outcome is DELIVERED if at least one listener accepts the command.
        """
        await asyncio.sleep(0)
        there = self._listening.get(target.thread_id, {})
        listeners = [subscription for listener, subscription in there.items() if target.matches(listener)]
        if not listeners:
            return LiveDeliveryOutcome.NO_SUBSCRIBER
        verdict = _Verdict(len(listeners))
        receipts = [LiveReceipt(settle=verdict.settle) for _ in listeners]
        for listener, receipt in zip(listeners, receipts, strict=True):
            listener.put(LiveCommandEntry(command=command, receipt=receipt))
        try:

            async def give_up() -> None:
                await self._timer.sleep(self._accept_within_ms)
                verdict.complete.set()

            async with asyncio.TaskGroup() as group:
                late = group.create_task(give_up(), name="give up")
                await verdict.complete.wait()
                late.cancel()
        finally:
            for receipt in receipts:
                receipt.drop()
        return LiveDeliveryOutcome.DELIVERED if verdict.accepted else LiveDeliveryOutcome.NO_SUBSCRIBER

    async def open(self, target: LiveRunTarget) -> Subscription:
        """Start to listen for the commands to a target; an earlier listener of the target is closed."""
        await asyncio.sleep(0)
        former = self._listening.get(target.thread_id, {}).get(target)
        if former is not None:
            former.close()
        subscription = Subscription("", target, self._forget)
        self._listening.setdefault(target.thread_id, {})[target] = subscription
        return subscription

    def _forget(self, subscription: Subscription) -> None:
        there = self._listening[subscription.target.thread_id]
        del there[subscription.target]
        if not there:
            del self._listening[subscription.target.thread_id]


class _Verdict:
    """Whether any listener accepted a command."""

    def __init__(self, receipts: int) -> None:
        self.complete = asyncio.Event()
        self.accepted = False
        self._unsettled = receipts

    def settle(self, accepted: bool) -> None:
        self.accepted = self.accepted or accepted
        self._unsettled -= 1
        if self._unsettled == 0:
            self.complete.set()
