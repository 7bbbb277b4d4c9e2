"""Sends a request to a model and streams the answer; if the answer is cut off, the request is repeated."""

from collections.abc import Callable, Iterable

from postroom.contracts.agent_events import (
    AgentEvent,
    EventSink,
    InferenceComplete,
    ReasoningDelta,
    StreamReset,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from postroom.contracts.clock import Clock
from postroom.contracts.errors import StreamInterrupted
from postroom.contracts.inference import (
    InferenceReasoningDelta,
    InferenceRequest,
    InferenceResult,
    InferenceStop,
    InferenceTextDelta,
    InferenceToolCallDelta,
    InferenceToolCallStart,
    Model,
)
from postroom.contracts.records import replace


class PartialAnswer:
    """An event sink that passes events on and collects the text of a model's answer."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._deltas: list[str] = []
        self._begins_again = False

    @property
    def text(self) -> str:
        """The text of the answer so far.

        After a failed attempt, the text remains until the next attempt produces text.
        """
        return "".join(self._deltas).strip()

    async def emit(self, event: AgentEvent) -> None:
        """Pass an event on, and collect the text of the event."""
        if isinstance(event, StreamReset):
            self._begins_again = True
        elif isinstance(event, TextDelta):
            if self._begins_again:
                self._begins_again = False
                self._deltas.clear()
            self._deltas.append(event.delta)
        await self._sink.emit(event)


REPEATS = 2
"""Maximum number of repetitions of a request whose answer was cut off."""


async def ask(model: Model, request: InferenceRequest, sink: EventSink, clock: Clock) -> InferenceResult:
    """Return the model's complete answer; repeat the request if the stream is interrupted.

    Raises:
        InferenceError: The model failed; StreamInterrupted only after several attempts.
    """
    for _ in range(REPEATS):
        try:
            return await _ask_once(model, request, sink, clock)
        except StreamInterrupted as error:
            await sink.emit(StreamReset(reason=error.message))
    return await _ask_once(model, request, sink, clock)


async def _ask_once(
    model: Model, request: InferenceRequest, sink: EventSink, clock: Clock
) -> InferenceResult:
    began = clock.now()
    stream = model.stream(request)
    try:
        async for piece in stream:
            if isinstance(piece, InferenceStop):
                took = max(clock.now() - began, 0)
                usage = piece.result.usage
                await sink.emit(InferenceComplete(model=request.model, duration_ms=took, usage=usage))
                return piece.result
            match piece:
                case InferenceTextDelta(delta=delta):
                    await sink.emit(TextDelta(delta=delta))
                case InferenceReasoningDelta(delta=delta):
                    await sink.emit(ReasoningDelta(delta=delta))
                case InferenceToolCallStart(id=call_id, name=name):
                    await sink.emit(ToolCallStart(id=call_id, name=name))
                case InferenceToolCallDelta(id=call_id, args_delta=delta):
                    await sink.emit(ToolCallDelta(id=call_id, args_delta=delta))
    finally:
        if (close := getattr(stream, "aclose", None)) is not None:
            await close()
    raise StreamInterrupted("the model's answer ended before it was complete", value=model.name)


def with_call_ids(
    result: InferenceResult, new_id: Callable[[], str], *, taken: Iterable[str] = ()
) -> InferenceResult:
    """Return the answer with a unique id for each tool call; the ids in `taken` are not used again."""
    seen = set(taken)
    calls = []
    for call in result.tool_calls:
        fresh = call.id if call.id.strip() and call.id not in seen else new_id()
        seen.add(fresh)
        calls.append(replace(call, id=fresh))
    return replace(result, tool_calls=tuple(calls))
