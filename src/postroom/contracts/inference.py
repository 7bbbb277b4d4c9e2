"""The model port: one request, one streamed answer.

A stream that ends without a stop reason was cut off: an adapter raises StreamInterrupted then, and never
passes half an answer off as a whole one.
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
    """What a program that calls a model sends with its message; it goes along in the message's first block.

    `context` is what was said before, as the caller tells it, or the results of tools that it was asked for.
    A call of one of its `tools` ends the run: it is made by the caller, whose next message brings the result.
    """

    instructions: str = ""
    context: tuple[Message, ...] = ()
    tools: tuple[ToolDescriptor, ...] = ()
    overrides: InferenceOverride | None = None

    def as_data(self) -> dict[str, Json]:
        """Return it as an entry of a block's data; nothing where nothing is asked."""
        return {} if self == CallerRequest() else {_KEY: as_plain(self)}

    @classmethod
    def of(cls, message: Message) -> "CallerRequest":
        """Return what came with a message; one that brought nothing asks nothing."""
        told = message.content[0].data.get(_KEY) if message.content else None
        return cls() if told is None else from_plain(told, cls)

    @classmethod
    def newest(cls, messages: Iterable[Message]) -> "CallerRequest":
        """Return what came with the newest message that somebody sent: it counts from then on."""
        asked = [one for one in messages if one.role is Role.USER and one.visibility is Visibility.ALL]
        return cls.of(asked[-1]) if asked else cls()


MISPLACED_RESULT = "the result belongs to no tool call"
"""The words by which postroom itself refuses the result of a tool; its caller may see them."""
CALLER_TOOLS = "caller_tools"
"""The reason for which a run ends that asks its caller to use tools; the detail holds the calls, as JSON."""


def with_context(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return a conversation with what callers told of it where they told it."""
    return tuple(one for message in messages for one in (*CallerRequest.of(message).context, message))


class StopReason(StrEnum):
    """Why a model stopped."""

    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    TOOL_USE = "tool_use"
    STOP_SEQUENCE = "stop_sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """What a model is asked."""

    model: str
    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolDescriptor, ...] = ()
    overrides: InferenceOverride | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    """What a model answered, whole."""

    content: tuple[ContentBlock, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    stop_reason: StopReason = StopReason.END_TURN
    usage: Usage | None = None

    @classmethod
    def text(cls, text: str) -> "InferenceResult":
        """Return an answer of text alone."""
        return cls(content=(ContentBlock(text=text),))


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceTextDelta:
    """More of the answer's text."""

    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceReasoningDelta:
    """More of the reasoning."""

    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceToolCallStart:
    """A tool call begins."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceToolCallDelta:
    """More of a tool call's arguments, as text."""

    id: str
    args_delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceStop:
    """The answer is whole."""

    result: InferenceResult


InferencePiece = (
    InferenceTextDelta
    | InferenceReasoningDelta
    | InferenceToolCallStart
    | InferenceToolCallDelta
    | InferenceStop
)


class Model(Protocol):
    """A model behind any provider."""

    @property
    def name(self) -> str:
        """What the adapter is called in logs and metrics."""
        ...

    def stream(self, request: InferenceRequest) -> AsyncIterator[InferencePiece]:
        """Answer piece by piece; the last piece is `InferenceStop`.

        Raises:
            InferenceError: by kind, so that it is known whether to try again.
        """
        ...
