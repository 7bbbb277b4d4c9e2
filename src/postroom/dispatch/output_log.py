"""What a run puts out while it executes, kept in the event log so that people can watch it.

text ─▶ gathered ─▶ appended at most once a second, in pieces ─▶ the log of the run and of its thread

It is advisory: what cannot be kept is logged and missed, and holds up no run. The answer of a run is stored
beside it, when the run ends.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from postroom.concurrency import Tasks
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import AgentEvent, EventSink, StreamReset, TextDelta
from postroom.contracts.clock import Timer
from postroom.contracts.errors import PostroomError
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope, EventStore
from postroom.contracts.messages import Json, storable
from postroom.contracts.work import Output

_LOG = structlog.get_logger(__name__)
WRITER: Final = "output"
TEXT: Final = "TextDeltaObserved"
RESET: Final = "StreamReset"
PAUSE_MS: Final = 1_000
PIECE: Final = 16 * 1024
"""Characters of one event."""
KEPT: Final = 256 * 1024
"""Characters of one execution that are kept."""
MORE_NOTE: Final = "\n[more was put out than is kept]\n"
SHOWN: Final = 64 * 1024
"""Characters of a run that are shown: the last ones."""
_EVENTS_READ: Final = 200


class OutputLog:
    """Keeps what executions put out."""

    def __init__(self, events: EventStore, timer: Timer) -> None:
        self._events = events
        self._timer = timer

    @asynccontextmanager
    async def keeping(self, activation: RunActivation, sink: EventSink) -> AsyncIterator[EventSink]:
        """Give a sink for one execution whose texts are kept and whose events are all passed on."""
        gathered = _Gathered(activation, sink)
        tasks = Tasks("output of a run")
        tasks.start(self._keep_on(gathered), name=f"output of {activation.run_id}")
        try:
            yield gathered
        finally:
            await tasks.close()
            await self._write(gathered)

    async def _keep_on(self, gathered: "_Gathered") -> None:
        while True:
            await gathered.has_some.wait()
            await self._timer.sleep(PAUSE_MS)
            await self._write(gathered)

    async def _write(self, gathered: "_Gathered") -> None:
        while (draft := gathered.next()) is not None:
            try:
                await self._events.append(draft)
            except PostroomError as error:
                _LOG.warning("output.not_kept", run_id=draft.correlation_id, reason=error.describe())
                return
            gathered.written()


class _Gathered:
    """Texts of one execution that wait to be kept; passes every event on."""

    def __init__(self, activation: RunActivation, inner: EventSink) -> None:
        self._inner = inner
        self._activation = activation
        self._waiting: list[tuple[str, str]] = []
        self._left = KEPT
        self._count = 0
        self.has_some = asyncio.Event()

    async def emit(self, event: AgentEvent) -> None:
        """Gather a text and pass every event on."""
        if isinstance(event, TextDelta):
            self._gather(event.delta)
        elif isinstance(event, StreamReset):
            self._waiting.append((RESET, event.reason))
            self.has_some.set()
        await self._inner.emit(event)

    def next(self) -> CanonicalEventDraft | None:
        """Return the next event to be kept; None when there is none."""
        if not self._waiting:
            self.has_some.clear()
            return None
        kind, text = self._waiting[0]
        asked = self._activation
        payload: dict[str, Json] = {"reason" if kind == RESET else "delta": storable(text)}
        key = f"{asked.trace.dispatch_id}/{asked.attempt}/{asked.trace.session_id}/{self._count}"
        return CanonicalEventDraft(
            scopes=(EventScope.thread(asked.thread_id), EventScope.run(asked.run_id or "")),
            event_kind=kind,
            payload=payload,
            correlation_id=asked.run_id,
            options=AppendOptions(writer_id=WRITER, idempotency_key=key),
        )

    def written(self) -> None:
        """Drop the event that was kept."""
        self._waiting.pop(0)
        self._count += 1

    def _gather(self, text: str) -> None:
        if self._left <= 0:
            return
        self._left -= len(text)
        if self._left <= 0:
            text = text[: len(text) + self._left] + MORE_NOTE
        for begin in range(0, len(text), PIECE):
            piece = text[begin : begin + PIECE]
            last = (
                self._waiting[-1] if len(self._waiting) > 1 else None
            )  # the first is being written, perhaps
            if last is not None and last[0] == TEXT and len(last[1]) + len(piece) <= PIECE:
                self._waiting[-1] = (TEXT, last[1] + piece)
            else:
                self._waiting.append((TEXT, piece))
        self.has_some.set()


async def output_of(events: EventStore, scope: EventScope) -> Output:
    """Return the end of what a run has put out, as far as it was kept."""
    newest = await events.count(scope)
    after = max(newest - _EVENTS_READ, 0)
    page = await events.list(scope, after=after, limit=_EVENTS_READ)
    parts = []
    for event in page.events:
        if event.event_kind == TEXT:
            parts.append(str(event.payload.get("delta", "")))
        elif event.event_kind == RESET:
            parts.append(f"\n[{event.payload.get('reason', '')}]\n")
    text = "".join(parts)
    return Output(text=text[-SHOWN:], is_cut=after > 0 or len(text) > SHOWN)
