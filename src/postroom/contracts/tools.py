"""Descriptions of tools, results of tool calls, and the decisions that resume tool calls."""

from dataclasses import dataclass, field
from enum import StrEnum

from postroom.contracts.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDescriptor:
    """The description of a tool for the model.

    `parameters` is a JSON schema of an object.
    """

    id: str
    name: str
    description: str = ""
    parameters: dict[str, Json] = field(default_factory=lambda: {"type": "object", "properties": {}})


class ToolStatus(StrEnum):
    """The state of a tool call."""

    SUCCESS = "success"
    PENDING = "pending"
    ERROR = "error"


class ToolCallOutcome(StrEnum):
    """The outcome of a tool call in a step."""

    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class ToolCallResumeMode(StrEnum):
    """The effect of a decision on a suspended tool call."""

    REPLAY_TOOL_CALL = "replay_tool_call"
    USE_DECISION_AS_TOOL_RESULT = "use_decision_as_tool_result"
    PASS_DECISION_TO_TOOL = "pass_decision_to_tool"  # noqa: S105 - the name of a mode

    @property
    def is_a_question(self) -> bool:
        """Whether the tool itself asks the question."""
        return self is ToolCallResumeMode.PASS_DECISION_TO_TOOL


class ResumeDecisionAction(StrEnum):
    """Whether a suspended tool call is resumed or cancelled."""

    RESUME = "resume"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallResume:
    """A decision on a suspended tool call.

    Decisions with the same `decision_id` take effect only once.
    """

    decision_id: str
    action: ResumeDecisionAction = ResumeDecisionAction.RESUME
    result: Json = None
    reason: str | None = None
    updated_at: int = 0
    by: str = ""
    """The display name of the person who decided; empty if unknown. Agents do not see the name."""
    held_until: int = 0
    """The time until which the person can withdraw the decision; the agent gets the decision after this time.
    0 means that the decision is final.
    """

    @property
    def approved(self) -> bool | None:
        """True for an approval, False for a denial, and None for any other decision."""
        answer = self.result.get("approved") if isinstance(self.result, dict) else None
        return answer if isinstance(answer, bool) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A question that suspends a tool call until an answer arrives."""

    id: str
    action: str
    message: str = ""
    parameters: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a tool call."""

    tool_name: str
    status: ToolStatus = ToolStatus.SUCCESS
    data: Json = None
    message: str | None = None
    suspension: Suspension | None = None
    resume_mode: ToolCallResumeMode = ToolCallResumeMode.REPLAY_TOOL_CALL
    metadata: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def success(cls, tool_name: str, data: Json) -> "ToolResult":
        """Return the result of a successful tool call."""
        return cls(tool_name=tool_name, data=data)

    @classmethod
    def error(cls, tool_name: str, message: str, **metadata: Json) -> "ToolResult":
        """Return the result of a failed tool call, with a message for the model."""
        return cls(tool_name=tool_name, status=ToolStatus.ERROR, message=message, metadata=metadata)

    @classmethod
    def suspended(
        cls,
        tool_name: str,
        suspension: Suspension,
        *,
        resume_mode: ToolCallResumeMode = ToolCallResumeMode.REPLAY_TOOL_CALL,
    ) -> "ToolResult":
        """Return the result of a tool call that waits for a decision."""
        return cls(
            tool_name=tool_name, status=ToolStatus.PENDING, suspension=suspension, resume_mode=resume_mode
        )
