"""Passes an execution's live events to their reader and to observers, and stores its output.

A slow or absent reader never delays a run. The output of a run is stored in the event log, so that people can
watch the run:

    text, calls ─▶ buffered ─▶ appended at most once a second ─▶ the log of the run and of its thread

If the database is unavailable, the output is stored later. If the execution ends before the database is
available again, the output in memory is lost. Delayed or lost output is logged once per outage. The answer of
a run is stored when the run ends.

`Capture` selects the events to store. Selected events are first kept in memory, and then written together
with the run's next checkpoint: a step and its events become durable together, or not at all. The live stream
never waits for stored events.
"""

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from json import dumps
from typing import Any, Final

import msgspec

from postroom.concurrency import Tasks, retried
from postroom.contracts import agent_events as live
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import (
    AgentEvent,
    EventSink,
    InferenceComplete,
    StreamReset,
    TextDelta,
    ToolCallDone,
    ToolCallReady,
    ToolCallResumed,
)
from postroom.contracts.clock import Ids, Timer
from postroom.contracts.dispatch import Claim, RunDispatch
from postroom.contracts.errors import CursorExpired, PostroomError, StoreError
from postroom.contracts.events import (
    AppendOptions,
    CanonicalEvent,
    CanonicalEventDraft,
    EventScope,
    EventVisibility,
    RuntimeEventDurability,
)
from postroom.contracts.executor import AgentRunResult, ExecutorAround, RunDispatchExecutor
from postroom.contracts.messages import Json, storable
from postroom.contracts.quoting import end_of
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MAX_PAGE, CommitCoordinator, Committed, ThreadCommit
from postroom.contracts.runs import TerminationKind
from postroom.contracts.tools import ToolCallOutcome, ToolCallResumeMode
from postroom.contracts.work import Output
from postroom.log import get_logger
from postroom.ports import RunControl
from postroom.stores.runs.ports import EventStore

WRITER = "runtime"


class Fidelity(StrEnum):
    """The kind of fact that an event reports."""

    OBSERVED = "observed_runtime_event"
    COMMITTED = "committed_runtime_event"
    DOMAIN = "domain_event"
    CONTROL = "control_event"


Kept = tuple[str, Fidelity]

_BY_TYPE: dict[str, Kept] = {
    "tool_call_ready": ("ToolCallReady", Fidelity.COMMITTED),
    "tool_call_resumed": ("ToolCallResumed", Fidelity.CONTROL),
    "tool_call_cancel": ("ToolCallCancelled", Fidelity.DOMAIN),
    "stream_reset": ("StreamReset", Fidelity.COMMITTED),
    "inference_complete": ("InferenceComplete", Fidelity.COMMITTED),
    "run_retrying": ("RunRetrying", Fidelity.OBSERVED),
    "tool_call_start": ("ToolCallStarted", Fidelity.OBSERVED),
    "step_start": ("StepStarted", Fidelity.OBSERVED),
    "step_end": ("StepEnded", Fidelity.OBSERVED),
    "text_delta": ("TextDeltaObserved", Fidelity.OBSERVED),
    "reasoning_delta": ("ReasoningDeltaObserved", Fidelity.OBSERVED),
    "tool_call_delta": ("ToolCallDeltaObserved", Fidelity.OBSERVED),
    "tool_call_stream_delta": ("ToolCallStreamDeltaObserved", Fidelity.OBSERVED),
}
_FINISHES = {
    TerminationKind.NATURAL_END: "RunFinished",
    TerminationKind.BEHAVIOR_REQUESTED: "RunFinished",
    TerminationKind.SUSPENDED: "RunSuspended",
    TerminationKind.CANCELLED: "RunCancelled",
    TerminationKind.ERROR: "RunErrored",
    TerminationKind.STOPPED: "RunTerminated",
    TerminationKind.BLOCKED: "RunTerminated",
}


def kept_as(event: live.AgentEvent, *, resumed: bool) -> tuple[Kept, ...]:
    """Return the stored forms of an executor's event."""
    if isinstance(event, live.RunStart):
        return (("RunResumed" if resumed else "RunStarted", Fidelity.COMMITTED),)
    if isinstance(event, live.RunFinish):
        return ((_FINISHES[event.termination.type], Fidelity.COMMITTED),)
    if isinstance(event, live.ToolCallDone):
        if event.outcome is ToolCallOutcome.SUSPENDED:
            suspended: Kept = ("ToolCallSuspended", Fidelity.DOMAIN)
            if event.result.resume_mode is ToolCallResumeMode.REPLAY_TOOL_CALL and event.result.suspension:
                return (suspended, ("ToolPermissionRequested", Fidelity.DOMAIN))
            return (suspended,)
        metadata = event.result.metadata
        if event.outcome is ToolCallOutcome.FAILED and metadata.get("rejected"):
            return (("ToolCallRejected", Fidelity.COMMITTED),)
        if event.outcome is ToolCallOutcome.FAILED and metadata.get("timed_out") is True:
            return (("ToolCallTimedOut", Fidelity.COMMITTED),)
        return (("ToolCallDone", Fidelity.COMMITTED),)
    return (_BY_TYPE[event.event_type],)


class CapturingSink:
    """Collects the events of one execution that must be stored, and passes every event on."""

    def __init__(
        self,
        inner: live.EventSink,
        buffer: list[CanonicalEventDraft],
        capture: "Capture",
        dispatch: RunDispatch,
        *,
        resumed: bool,
    ) -> None:
        self._inner = inner
        self._buffer = buffer
        self._capture = capture
        self._dispatch = dispatch
        self._resumed = resumed
        self._count = 0

    async def emit(self, event: live.AgentEvent) -> None:
        """Collect an event if the event must be stored, and pass the event on."""
        self.keep(event)
        await self._inner.emit(event)

    def keep(self, event: live.AgentEvent) -> None:
        """Collect an event if the event must be stored."""
        stored_event = kept_as(event, resumed=self._resumed)
        if isinstance(event, live.RunStart):
            self._resumed = True  # a second start event in one execution continues the run
        for kind, fidelity in stored_event:
            if self._capture.everything or fidelity is not Fidelity.OBSERVED:
                dispatch = self._dispatch
                self._count += 1
                payload: dict[str, Any] = msgspec.to_builtins(event)
                key = f"{kind}/{dispatch.dispatch_id}/{dispatch.attempt_count}/{self._count}"
                draft = CanonicalEventDraft(
                    scopes=(EventScope.thread(dispatch.thread_id), EventScope.run(dispatch.run_id)),
                    event_kind=kind,
                    payload=payload | {"event_type": event.event_type, "fidelity": fidelity.value},
                    correlation_id=dispatch.dispatch_id,
                    origin=self._capture.origin,
                    visibility=EventVisibility.PUBLIC,
                    options=AppendOptions(writer_id=WRITER, idempotency_key=key),
                )
                self._buffer.append(draft)


class Capture:
    """The rules that decide which events of executions are stored."""

    def __init__(self, durability: RuntimeEventDurability, origin: str) -> None:
        self.everything = durability is RuntimeEventDurability.FULL_FIDELITY
        self.origin = origin


@dataclass(slots=True, eq=False)
class RunCoordinator:
    """Commits the steps of one execution, with a proof of the claim and the collected events."""

    inner: CommitCoordinator
    claim: Claim | None
    staged: list[CanonicalEventDraft]
    """The events that are not durable yet, and that the next commit stores."""
    new_id: Ids
    timer: Timer

    @property
    def storage_identity(self) -> str | None:
        """The identity of the coordinator's storage."""
        return self.inner.storage_identity

    def owned(self, commit: ThreadCommit) -> ThreadCommit:
        """Return a commit with the proof of the claim, the collected events, and message ids."""
        return replace(
            commit,
            claim=commit.claim or self.claim,
            events=(*commit.events, *self.staged),
            messages=tuple(
                message if message.id else message.with_id(self.new_id()) for message in commit.messages
            ),
        )

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        """Store the commit together with the collected events.

        The commit is repeated while the store is unavailable.

        Raises:
            StaleClaim: Another worker owns the run, or no worker owns it.
            PostroomError: The coordinator refused the commit.
        """
        count, owned = len(self.staged), self.owned(commit)
        committed = await retried(lambda: self.inner.commit(owned, now=now), self.timer)
        del self.staged[:count]
        return committed


_LOG = get_logger(__name__)
OUTPUT_WRITER: Final = "output"
TEXT: Final = "TextDeltaObserved"
RESET: Final = "StreamReset"
CALL: Final = "ToolCallReady"
CALL_DONE: Final = "ToolCallDone"
MODEL_CALL: Final = "InferenceComplete"
MAX_CALLS: Final = 2_000
"""Maximum number of events about tool calls and model calls that are stored for one execution."""
MAX_DETAIL_LENGTH: Final = 4_000
"""Maximum number of characters that are stored of a tool call's arguments, or of its result."""
PAUSE_MS: Final = 1_000
PIECE: Final = 16 * 1024
"""Maximum number of characters in one stored event."""
KEPT: Final = 256 * 1024
"""Maximum number of characters that are stored for one execution."""
MORE_NOTE: Final = "\n[further output was not stored]\n"
SHOWN: Final = 64 * 1024
"""Number of characters at the end of a run's output that are shown."""
ALL_KEPT: Final = 64 * KEPT
"""A memory limit in characters, which is higher than the stored output of all executions of a run together.
"""


class EventStream:
    """The events of a run for one reader.

    `async for event in stream` ends when the run ends. If the reader is slower than the run, the oldest
    events are dropped. The last event of a run is never dropped.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._waiting: deque[AgentEvent] = deque(maxlen=capacity)
        self._changed = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def put(self, event: AgentEvent) -> None:
        """Add an event to the stream.

        A closed stream drops the event.
        """
        if self._closed:
            return
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(event)
        self._changed.set()

    def close(self) -> None:
        """End the stream after the events that the stream already contains."""
        self._closed = True
        self._changed.set()

    async def next(self) -> AgentEvent | None:
        """Return the next event, or None at the end of the stream."""
        while not self._waiting:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    async def __aiter__(self) -> AsyncIterator[AgentEvent]:
        """Yield events until the run ends."""
        while (event := await self.next()) is not None:
            yield event


@dataclass(slots=True, eq=False)
class ReconnectableEventSink:
    """Passes the events of an execution to one reader, whom a later reader can replace."""

    stream: EventStream | None = None
    suspended: bool = False
    """Whether a tool call is suspended, so that the lease of the run is longer."""
    finished: bool = False
    """Whether the execution has reported that it ended."""

    def reconnect(self, stream: EventStream) -> None:
        """Pass events to a new reader, and end the stream of the former reader."""
        self.close()
        self.stream = stream

    async def emit(self, event: AgentEvent) -> None:
        """Pass an event to the reader, and record whether the event suspends or ends the run."""
        if isinstance(event, ToolCallDone) and event.outcome is ToolCallOutcome.SUSPENDED:
            self.suspended = True
        elif isinstance(event, ToolCallResumed):
            self.suspended = False
        self.finished = self.finished or event.is_terminal
        if self.stream is not None:
            self.stream.put(event)

    def close(self) -> None:
        """End the stream of the reader."""
        if self.stream is not None:
            self.stream.close()


class OutputKept(ExecutorAround):
    """Wraps an executor, and stores the texts and tool calls of the runs."""

    def __init__(self, within: RunDispatchExecutor, events: EventStore, timer: Timer) -> None:
        super().__init__(within)
        self._events = events
        self._timer = timer
        self._told = set[str]()
        """The outages that were already logged."""

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run with the wrapped executor, and store the output."""
        gathered, tasks = _Gathered(activation, sink), list[Tasks]()

        def keep_on() -> None:
            tasks.append(Tasks("output of a run"))
            tasks[0].start(self._keep_on(gathered), name=f"of {activation.run_id}")

        async def store_output() -> None:
            await self._write(gathered)

        if isinstance(activation.control, RunControl):
            control = dataclasses.replace(activation.control, store_output=store_output)
            activation = replace(activation, control=control)
        gathered.on_first = keep_on
        try:
            return await self._within.run(activation, gathered)
        finally:
            for started in tasks:
                await started.close()
            if gathered.has_some.is_set() and (error := await self._write(gathered)) is not None:
                self._tell_once("output.lost", gathered.run_id, error)

    async def _keep_on(self, gathered: "_Gathered") -> None:
        while True:
            await gathered.has_some.wait()
            await self._write(gathered)
            await self._timer.sleep(PAUSE_MS)

    async def _write(self, gathered: "_Gathered") -> PostroomError | None:
        async with gathered.writing:
            while (draft := gathered.next()) is not None:
                try:
                    await self._events.add(draft, claim=gathered.claim)
                except PostroomError as error:
                    if isinstance(error, StoreError):
                        self._tell_once("output.put_off", gathered.run_id, error)
                        return error
                    _LOG.warning("output.lost", run_id=gathered.run_id, reason=error.describe())
                else:
                    self._told.clear()
                gathered.written()
        return None

    def _tell_once(self, what: str, run_id: str | None, error: PostroomError) -> None:
        if what not in self._told:
            self._told.add(what)
            _LOG.warning(what, run_id=run_id, reason=error.describe())


class _Gathered:
    """Collects the texts of one execution until the texts are stored."""

    def __init__(self, activation: RunActivation, inner: EventSink) -> None:
        self.run_id = activation.run_id
        control = activation.control
        self.claim = control.claim if isinstance(control, RunControl) else None
        self._inner = inner
        self._activation = activation
        self._waiting: list[tuple[str, dict[str, Json]]] = []
        self._left = KEPT
        self._calls_left = MAX_CALLS
        self._count = 0
        self.has_some = asyncio.Event()
        self.writing = asyncio.Lock()
        """Allows only one task to write: the periodic writer, or a run whose next stored event must follow
        the texts.
        """
        self.on_first: Callable[[], object] | None = None
        """A function that is called when the first event is collected."""

    async def emit(self, event: AgentEvent) -> None:
        if isinstance(event, TextDelta):
            self._gather(event.delta)
        elif isinstance(event, StreamReset):
            self._waiting.append((RESET, {"reason": event.reason}))
            self._has_more()
        elif (step := _step(event)) is not None and self._calls_left > 0:
            self._calls_left -= 1
            self._waiting.append(step)
            self._has_more()
        await self._inner.emit(event)

    def next(self) -> CanonicalEventDraft | None:
        if not self._waiting:
            self.has_some.clear()
            return None
        kind, said = self._waiting[0]
        activation = self._activation
        payload = {name: storable(value) if isinstance(value, str) else value for name, value in said.items()}
        key = (
            f"{activation.trace.dispatch_id}/{activation.attempt}/{activation.trace.session_id}/{self._count}"
        )
        return CanonicalEventDraft(
            scopes=(EventScope.thread(activation.thread_id), EventScope.run(activation.run_id or "")),
            event_kind=kind,
            payload=payload,
            correlation_id=activation.run_id,
            options=AppendOptions(writer_id=OUTPUT_WRITER, idempotency_key=key),
        )

    def written(self) -> None:
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
            # the first event may be being written
            last = self._waiting[-1] if len(self._waiting) > 1 else None
            before = str(last[1]["delta"]) if last is not None and last[0] == TEXT else None
            if before is not None and len(before) + len(piece) <= PIECE:
                self._waiting[-1] = (TEXT, {"delta": before + piece})
            else:
                self._waiting.append((TEXT, {"delta": piece}))
        self._has_more()

    def _has_more(self) -> None:
        self.has_some.set()
        if self.on_first is not None:
            on_first, self.on_first = self.on_first, None
            on_first()


def _step(event: AgentEvent) -> tuple[str, dict[str, Json]] | None:
    if isinstance(event, ToolCallReady):
        return CALL, {"id": event.id, "name": event.name, "arguments": _detail(event.arguments)}
    if isinstance(event, ToolCallDone):
        result = event.result.message if event.result.message is not None else event.result.data
        return CALL_DONE, {"id": event.id, "outcome": event.outcome.value, "result": _detail(result)}
    if isinstance(event, InferenceComplete):
        return MODEL_CALL, {"model": event.model, "duration_ms": event.duration_ms}
    return None


def _detail(value: Json) -> str:
    text = value if isinstance(value, str) else "" if value is None else dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_DETAIL_LENGTH else f"{text[: MAX_DETAIL_LENGTH - 1]}…"


async def output_after(events: EventStore, scope: EventScope, after: int) -> tuple[str, int]:
    """Return a page of a run's output after a log position, and the position of the next page.

    Raises:
        CursorAhead, CursorExpired: As for `EventStore.list`.
    """
    page = await events.list(scope, after=after, limit=MAX_PAGE)
    return "".join(said(event) for event in page.events), page.cursor


async def read_output(events: EventStore, scope: EventScope, *, most: int = SHOWN) -> Output:
    """Return the last lines of a run's stored output, with at most `most` characters."""
    newest = end = await events.count(scope)
    parts, length = list[str](), 0
    while end > 0 and length <= most:
        begin = max(end - MAX_PAGE, 0)
        try:
            page = await events.list(scope, after=begin, limit=end - begin)
        except CursorExpired:  # the older events were deleted
            break
        parts.append("".join(said(event) for event in page.events))
        length += len(parts[-1])
        end = begin
    text = "".join(reversed(parts))
    is_cut = end > 0 or length > most
    shown = end_of(text, most, begins_within=end > 0)
    return Output(text=shown, is_cut=is_cut, is_kept_whole=MORE_NOTE not in shown, after=newest)


def said(event: CanonicalEvent) -> str:
    """Return the output text of an event, or "" for events without output."""
    if event.event_kind == RESET:
        return f"\n[{event.payload.get('reason', '')}]\n"
    return str(event.payload.get("delta", "")) if event.event_kind == TEXT else ""
