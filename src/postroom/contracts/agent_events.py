"""What an execution tells while it runs; the stream ends with `RunFinish`.

Live events are never held up by storage; which of them are kept, and as what, the capture decides.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from postroom.contracts.activation import AdapterKind, RunMode, RunOrigin
from postroom.contracts.messages import Json
from postroom.contracts.runs import TerminationReason, Usage
from postroom.contracts.tools import ToolCallOutcome, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Which execution speaks."""

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
    """One event of an execution."""

    event_type: ClassVar[str] = ""
    is_terminal: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart(AgentEvent):
    """The execution begins."""

    event_type: ClassVar[str] = "run_start"
    thread_id: str
    run_id: str
    parent_run_id: str | None = None
    identity: RunIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinish(AgentEvent):
    """The execution ended, or stands still."""

    event_type: ClassVar[str] = "run_finish"
    is_terminal: ClassVar[bool] = True
    thread_id: str
    run_id: str
    termination: TerminationReason
    result: Json = None
    identity: RunIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRetrying(AgentEvent):
    """The execution failed and is tried again at `retry_at`; what it streamed so far does not count."""

    event_type: ClassVar[str] = "run_retrying"
    run_id: str
    attempt: int
    retry_at: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(AgentEvent):
    """More of the answer's text."""

    event_type: ClassVar[str] = "text_delta"
    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta(AgentEvent):
    """More of the model's reasoning."""

    event_type: ClassVar[str] = "reasoning_delta"
    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart(AgentEvent):
    """The model begins to ask for a tool."""

    event_type: ClassVar[str] = "tool_call_start"
    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta(AgentEvent):
    """More of a tool call's arguments, as text."""

    event_type: ClassVar[str] = "tool_call_delta"
    id: str
    args_delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallReady(AgentEvent):
    """A tool call is complete."""

    event_type: ClassVar[str] = "tool_call_ready"
    id: str
    name: str
    arguments: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDone(AgentEvent):
    """A tool call has ended for this step."""

    event_type: ClassVar[str] = "tool_call_done"
    id: str
    message_id: str
    result: ToolResult
    outcome: ToolCallOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStreamDelta(AgentEvent):
    """More of what a running tool puts out."""

    event_type: ClassVar[str] = "tool_call_stream_delta"
    id: str
    name: str
    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallResumed(AgentEvent):
    """A suspended tool call goes on."""

    event_type: ClassVar[str] = "tool_call_resumed"
    target_id: str
    result: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallCancel(AgentEvent):
    """A tool call was given up."""

    event_type: ClassVar[str] = "tool_call_cancel"
    id: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReset(AgentEvent):
    """What was streamed of this step does not count; it comes again."""

    event_type: ClassVar[str] = "stream_reset"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart(AgentEvent):
    """A step begins."""

    event_type: ClassVar[str] = "step_start"
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd(AgentEvent):
    """A step has ended and was committed."""

    event_type: ClassVar[str] = "step_end"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceComplete(AgentEvent):
    """A model call has ended."""

    event_type: ClassVar[str] = "inference_complete"
    model: str
    duration_ms: int
    usage: Usage | None = None


class EventSink(Protocol):
    """Takes the events of one execution."""

    async def emit(self, event: AgentEvent) -> None:
        """Take an event; never waits for a reader and never fails."""
        ...
