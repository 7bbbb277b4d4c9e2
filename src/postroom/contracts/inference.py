"""The model port: one request, one streamed answer.

A stream that ends without a stop reason was cut off: an adapter raises StreamInterrupted then, and never
passes half an answer off as a whole one.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from postroom.contracts.activation import InferenceOverride
from postroom.contracts.messages import ContentBlock, Message, ToolCall
from postroom.contracts.runs import Usage
from postroom.contracts.tools import ToolDescriptor


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
