"""The model port, which sends a request to a model and streams the answer.

If a stream ends without a stop reason, it was interrupted. The adapter then raises StreamInterrupted, so that
a partial answer is never mistaken for a complete one.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from postroom.contracts.activation import InferenceOverride
from postroom.contracts.messages import ContentBlock, Json, Message, Role, ToolCall, Visibility
from postroom.contracts.records import Record, as_plain, from_plain
from postroom.contracts.runs import Usage
from postroom.contracts.tools import ToolDescriptor

_KEY = "caller"


class CallerRequest(Record, frozen=True, kw_only=True):
    """The instructions, earlier messages and tools that a calling program sends with a message.

    `context` is the earlier conversation, or the results of tools that the caller executed. If the model
    calls one of the caller's `tools`, the run ends, and the caller executes the tool.
    """

    instructions: str = ""
    context: tuple[Message, ...] = ()
    tools: tuple[ToolDescriptor, ...] = ()
    overrides: InferenceOverride | None = None

    def as_data(self) -> dict[str, Json]:
        """Return the request as an entry for the data of a content block.

        The entry may be empty.
        """
        return {} if self == CallerRequest() else {_KEY: as_plain(self)}

    @classmethod
    def of(cls, message: Message) -> "CallerRequest":
        """Return the request that a message contains, or an empty request."""
        fields = message.content[0].data.get(_KEY) if message.content else None
        return cls() if fields is None else from_plain(fields, cls)

    @classmethod
    def newest(cls, messages: Iterable[Message]) -> "CallerRequest":
        """Return the request in the newest message of a person."""
        requested_messages = [
            message
            for message in messages
            if message.role is Role.USER and message.visibility is Visibility.ALL
        ]
        return cls.of(requested_messages[-1]) if requested_messages else cls()


MISPLACED_RESULT = "the result belongs to no tool call"
"""The error text for a tool result that belongs to no call; the caller may see the text."""
CALLER_TOOLS = "caller_tools"
"""The termination code of a run that ended because its caller must execute tools; the detail contains the
calls as JSON.
"""


def with_context(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the messages, each preceded by the context that the caller sent with the message."""
    return tuple(item for message in messages for item in (*CallerRequest.of(message).context, message))


class StopReason(StrEnum):
    """The reason why a model stopped."""

    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    TOOL_USE = "tool_use"
    STOP_SEQUENCE = "stop_sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """A request to a model."""

    model: str
    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolDescriptor, ...] = ()
    overrides: InferenceOverride | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    """The complete answer of a model."""

    content: tuple[ContentBlock, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    stop_reason: StopReason = StopReason.END_TURN
    usage: Usage | None = None

    @classmethod
    def text(cls, text: str) -> "InferenceResult":
        """Return an answer that consists of text only."""
        return cls(content=(ContentBlock(text=text),))


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceTextDelta:
    """The next piece of the answer's text."""

    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceReasoningDelta:
    """The next piece of the model's reasoning."""

    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceToolCallStart:
    """The start of a tool call."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceToolCallDelta:
    """The next piece of a tool call's arguments, as text."""

    id: str
    args_delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceStop:
    """The end of the answer."""

    result: InferenceResult


InferencePiece = (
    InferenceTextDelta
    | InferenceReasoningDelta
    | InferenceToolCallStart
    | InferenceToolCallDelta
    | InferenceStop
)


class Model(Protocol):
    """A model of any provider."""

    @property
    def name(self) -> str:
        """The adapter's name in logs and metrics."""
        ...

    def stream(self, request: InferenceRequest) -> AsyncIterator[InferencePiece]:
        """Yield the answer of the model in pieces, of which the last is an `InferenceStop`.

        Raises:
            InferenceError: The call failed; the class of the error shows whether a retry can help.
        """
        ...
