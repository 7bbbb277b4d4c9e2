"""Tools as values: what they are called with, what they answer, and the decision that lets one go on."""

from dataclasses import dataclass, field
from enum import StrEnum

from postroom.contracts.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDescriptor:
    """What the model is told of a tool; `parameters` is a JSON schema of an object."""

    id: str
    name: str
    description: str = ""
    parameters: dict[str, Json] = field(default_factory=lambda: {"type": "object", "properties": {}})


class ToolStatus(StrEnum):
    """How a tool call stands."""

    SUCCESS = "success"
    PENDING = "pending"
    ERROR = "error"


class ToolCallOutcome(StrEnum):
    """How a tool call ended for this step."""

    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class ToolCallResumeMode(StrEnum):
    """What a decision means for the call: run it again, be its result, or be given to it."""

    REPLAY_TOOL_CALL = "replay_tool_call"
    USE_DECISION_AS_TOOL_RESULT = "use_decision_as_tool_result"
    PASS_DECISION_TO_TOOL = "pass_decision_to_tool"  # noqa: S105 - the name of a mode

    @property
    def is_a_question(self) -> bool:
        """Whether the tool asks something of its own, and hears yes and no alike."""
        return self is ToolCallResumeMode.PASS_DECISION_TO_TOOL


class ResumeDecisionAction(StrEnum):
    """What was decided about a suspended call."""

    RESUME = "resume"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallResume:
    """A decision about a suspended tool call; `decision_id` makes it count once."""

    decision_id: str
    action: ResumeDecisionAction = ResumeDecisionAction.RESUME
    result: Json = None
    reason: str | None = None
    updated_at: int = 0
    by: str = ""
    """Who decided, as people call them; empty where nobody said. No agent is told."""

    @property
    def approved(self) -> bool | None:
        """Whether it is a yes or a no; None when it is neither."""
        said = self.result.get("approved") if isinstance(self.result, dict) else None
        return said if isinstance(said, bool) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A question that a tool call waits on."""

    id: str
    action: str
    message: str = ""
    parameters: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool answered."""

    tool_name: str
    status: ToolStatus = ToolStatus.SUCCESS
    data: Json = None
    message: str | None = None
    suspension: Suspension | None = None
    resume_mode: ToolCallResumeMode = ToolCallResumeMode.REPLAY_TOOL_CALL
    metadata: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def success(cls, tool_name: str, data: Json) -> "ToolResult":
        """Return a good answer."""
        return cls(tool_name=tool_name, data=data)

    @classmethod
    def error(cls, tool_name: str, message: str, **metadata: Json) -> "ToolResult":
        """Return a failure that the model is told of."""
        return cls(tool_name=tool_name, status=ToolStatus.ERROR, message=message, metadata=metadata)

    @classmethod
    def suspended(
        cls,
        tool_name: str,
        suspension: Suspension,
        *,
        resume_mode: ToolCallResumeMode = ToolCallResumeMode.REPLAY_TOOL_CALL,
    ) -> "ToolResult":
        """Return that the call waits for a decision."""
        return cls(
            tool_name=tool_name, status=ToolStatus.PENDING, suspension=suspension, resume_mode=resume_mode
        )
