"""The events that an execution emits in order; the last event is `RunFinish`.

Live events are never delayed by storage. A separate component decides which events to store.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from postroom.contracts.activation import AdapterKind, RunMode, RunOrigin
from postroom.contracts.messages import Json
from postroom.contracts.runs import TerminationReason, Usage
from postroom.contracts.tools import ToolCallOutcome, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """The run and the execution to which an event belongs."""

    thread_id: str
    run_id: str
    agent_id: str
    parent_thread_id: str | None = None
    parent_run_id: str | None = None
    parent_tool_call_id: str | None = None
    dispatch_id: str | None = None
    session_id: str | None = None
    transport_request_id: str | None = None
    origin: RunOrigin = RunOrigin.USER
    run_mode: RunMode = RunMode.FOREGROUND
    adapter: AdapterKind = AdapterKind.INTERNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An event of an execution."""

    event_type: ClassVar[str] = ""
    is_terminal: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart(AgentEvent):
    """The execution started."""

    event_type: ClassVar[str] = "run_start"
    thread_id: str
    run_id: str
    parent_run_id: str | None = None
    identity: RunIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinish(AgentEvent):
    """The execution ended or was suspended."""

    event_type: ClassVar[str] = "run_finish"
    is_terminal: ClassVar[bool] = True
    thread_id: str
    run_id: str
    termination: TerminationReason
    result: Json = None
    identity: RunIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRetrying(AgentEvent):
    """The attempt failed, and the run starts again at `retry_at`.

    Readers must discard the streamed output of the failed attempt.
    """

    event_type: ClassVar[str] = "run_retrying"
    run_id: str
    attempt: int
    retry_at: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(AgentEvent):
    """The next piece of the answer's text."""

    event_type: ClassVar[str] = "text_delta"
    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta(AgentEvent):
    """The next piece of the model's reasoning."""

    event_type: ClassVar[str] = "reasoning_delta"
    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart(AgentEvent):
    """The model starts a tool call."""

    event_type: ClassVar[str] = "tool_call_start"
    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta(AgentEvent):
    """The next piece of a tool call's arguments, as text."""

    event_type: ClassVar[str] = "tool_call_delta"
    id: str
    args_delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallReady(AgentEvent):
    """The model has sent a complete tool call."""

    event_type: ClassVar[str] = "tool_call_ready"
    id: str
    name: str
    arguments: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDone(AgentEvent):
    """A tool call has ended."""

    event_type: ClassVar[str] = "tool_call_done"
    id: str
    message_id: str
    result: ToolResult
    outcome: ToolCallOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStreamDelta(AgentEvent):
    """The next piece of output from a running tool."""

    event_type: ClassVar[str] = "tool_call_stream_delta"
    id: str
    name: str
    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallResumed(AgentEvent):
    """A suspended tool call continues."""

    event_type: ClassVar[str] = "tool_call_resumed"
    target_id: str
    result: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallCancel(AgentEvent):
    """A tool call was cancelled."""

    event_type: ClassVar[str] = "tool_call_cancel"
    id: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReset(AgentEvent):
    """The streamed output of the current step is invalid and will be streamed again."""

    event_type: ClassVar[str] = "stream_reset"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart(AgentEvent):
    """A step started."""

    event_type: ClassVar[str] = "step_start"
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd(AgentEvent):
    """A step ended and was committed."""

    event_type: ClassVar[str] = "step_end"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceComplete(AgentEvent):
    """A model call ended."""

    event_type: ClassVar[str] = "inference_complete"
    model: str
    duration_ms: int
    usage: Usage | None = None


class EventSink(Protocol):
    """Receives the events of one execution."""

    async def emit(self, event: AgentEvent) -> None:
        """Accept an event without waiting for readers.

        The method never raises.
        """
        ...
