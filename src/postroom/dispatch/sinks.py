"""The ways of an execution's live events: to the reader who asked, and to what watches on the way.

A reader that is slow, or gone, never holds up a run.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from postroom.contracts.agent_events import AgentEvent, EventSink, ToolCallDone, ToolCallResumed
from postroom.contracts.tools import ToolCallOutcome


class EventStream:
    """Events for one reader: `async for event in stream`, until the run ends.

    When the reader is slower than the run, the oldest events are dropped and counted; the last one never is.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._waiting: deque[AgentEvent] = deque(maxlen=capacity)
        self._changed = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def put(self, event: AgentEvent) -> None:
        """Take an event; one for a closed stream is dropped."""
        if self._closed:
            return
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(event)
        self._changed.set()

    def close(self) -> None:
        """End the stream: what is in it may still be read."""
        self._closed = True
        self._changed.set()

    async def next(self) -> AgentEvent | None:
        """Return the next event, or None at the end."""
        while not self._waiting:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    async def __aiter__(self) -> AsyncIterator[AgentEvent]:
        """Iterate over the events until the run ends."""
        while (event := await self.next()) is not None:
            yield event


class ReconnectableEventSink:
    """Passes events on to the reader of the moment; a later reader takes the place of the former."""

    def __init__(self, stream: EventStream | None = None) -> None:
        self._stream = stream

    def reconnect(self, stream: EventStream) -> None:
        """Pass events on to this reader from now on; the former reader's stream ends."""
        if self._stream is not None:
            self._stream.close()
        self._stream = stream

    async def emit(self, event: AgentEvent) -> None:
        """Pass an event on, when anybody reads."""
        if self._stream is not None:
            self._stream.put(event)

    def close(self) -> None:
        """End the reader's stream."""
        if self._stream is not None:
            self._stream.close()


class SuspensionAwareSink:
    """Knows whether a tool call is suspended; the lease of such a run is longer."""

    def __init__(self, inner: EventSink) -> None:
        self._inner = inner
        self.suspended = False
        self.finished = False
        """Whether the execution has told its end."""

    async def emit(self, event: AgentEvent) -> None:
        """Look at an event and pass it on."""
        if isinstance(event, ToolCallDone) and event.outcome is ToolCallOutcome.SUSPENDED:
            self.suspended = True
        elif isinstance(event, ToolCallResumed):
            self.suspended = False
        self.finished = self.finished or event.is_terminal
        await self._inner.emit(event)
