"""What a listener for live commands holds: those that came for it, and their receipts."""

import asyncio
from collections import deque
from collections.abc import Callable

from postroom.contracts.live import LiveCommandEntry, LiveReceipt, LiveRunTarget


class Subscription:
    """The commands for one target, in order, until closed; `forget` is told of that once."""

    def __init__(self, key: str, target: LiveRunTarget, forget: Callable[["Subscription"], None]) -> None:
        self.key = key
        self.target = target
        self._forget = forget
        self._queue: deque[LiveCommandEntry] = deque()
        self._open_receipts: list[LiveReceipt] = []
        self._changed = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> "Subscription":
        """Iterate over commands as they come; one iteration at a time."""
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
        """Hand over a command."""
        self._open_receipts = [one for one in self._open_receipts if not one.settled]
        self._open_receipts.append(entry.receipt)
        self._queue.append(entry)
        self._changed.set()

    def close(self) -> None:
        """End the subscription and drop what was not handled; harmless when done twice."""
        if self._closed:
            return
        self._closed = True
        self._forget(self)
        self._queue.clear()
        for receipt in self._open_receipts:
            receipt.drop()
        self._open_receipts.clear()
        self._changed.set()
