"""Messages of a thread: their content, committed messages, and pending messages.

    accepted ──▶ pending (may be edited, retracted, reordered) ──▶ committed (append-only, `seq` without gaps)

The delivery mode of a pending message decides at which boundary it is read, by which run, and whether
together with other messages.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from postroom.contracts.errors import InvalidRecord
from postroom.contracts.records import Record, field, replace

Json = Any
"""Plain JSON data: dictionaries, lists, strings, numbers, booleans and None."""


TASKS_UPDATED = "<background-tasks-updated />"
"""The message that tells a run to check its background tasks, which have ended or were lost with their
process.
"""


id_of = attrgetter("id")
"""Returns the id of a message."""


CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Matches characters that a name must not contain, because terminals and log lines cannot display them."""


def storable(text: str) -> str:
    """Return a text that every store accepts, with each lone surrogate replaced by `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


class Role(StrEnum):
    """The author of a message: system, user, assistant or tool."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Visibility(StrEnum):
    """The readers of a message: everybody, or only the model."""

    ALL = "all"
    INTERNAL = "internal"


class ContentBlock(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message, such as text, an image or a tool result."""

    type: str = "text"
    text: str = ""
    data: dict[str, Json] = field(default_factory=dict)


class ToolCall(Record, frozen=True, kw_only=True):
    """A tool call that the model requests."""

    id: str
    name: str
    arguments: Json = None


class MessageMetadata(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The origin of a message.

    `compacts` is the range of messages that the message summarizes. `is_stopped` is true if an answer was
    stopped before it was complete.
    """

    run_id: str | None = None
    step_index: int | None = None
    sender_agent_id: str | None = None
    compacts: tuple[int, int] | None = None
    is_stopped: bool = False


STOPPED_MARK = "[This answer was stopped before its end.]"
"""The line that is appended to a stopped answer for the model; people do not see this line."""


COMPACT = "compact"
"""The command in a message that asks the runtime to summarize the conversation."""


class Message(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a conversation.

    The id is None until the message is accepted.
    """

    role: Role
    content: tuple[ContentBlock, ...] = ()
    id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    visibility: Visibility = Visibility.ALL
    metadata: MessageMetadata | None = None

    @classmethod
    def user(cls, text: str, *, id: str | None = None) -> "Message":
        """Return a message that a person wrote."""
        return cls(role=Role.USER, content=(ContentBlock(text=text),), id=id)

    @classmethod
    def internal(cls, text: str, *, id: str | None = None) -> "Message":
        """Return a message from postroom to the model, which people do not see."""
        return cls(role=Role.USER, content=(ContentBlock(text=text),), id=id, visibility=Visibility.INTERNAL)

    @classmethod
    def assistant(cls, text: str, *, id: str | None = None, tool_calls: Sequence[ToolCall] = ()) -> "Message":
        """Return a message that the model wrote, with the requested tool calls."""
        content = (ContentBlock(text=text),) if text else ()
        return cls(role=Role.ASSISTANT, content=content, id=id, tool_calls=tuple(tool_calls))

    @classmethod
    def tool(cls, tool_call_id: str, text: str, *, id: str | None = None) -> "Message":
        """Return a message with the result of a tool call."""
        return cls(role=Role.TOOL, content=(ContentBlock(text=text),), id=id, tool_call_id=tool_call_id)

    @property
    def asks_to_compact(self) -> bool:
        """Whether the message asks for a summary of the conversation."""
        return any(block.data.get("command") == COMPACT for block in self.content)

    def text(self) -> str:
        """Return the text blocks of the message, joined."""
        return "".join(block.text for block in self.content if block.type == "text")

    def for_model(self) -> "Message":
        """Return the message as the model sees it.

        A stopped answer gets a line that marks the answer as stopped.
        """
        if self.metadata is None or not self.metadata.is_stopped:
            return self
        return replace(self, content=(*self.content, ContentBlock(text=f"\n\n{STOPPED_MARK}")))

    def with_id(self, message_id: str) -> "Message":
        """Return a copy of the message with an id."""
        return replace(self, id=message_id)


class MessageRecord(Record, frozen=True, kw_only=True):
    """A committed message with the message's number in the thread."""

    thread_id: str
    seq: int
    message: Message
    created_at: int

    @property
    def message_id(self) -> str:
        """The id of the message."""
        return self.message.id or ""


class SeqRange(Record, frozen=True, kw_only=True):
    """A range of committed messages of a thread, from `from_seq` to `to_seq` inclusive."""

    from_seq: int
    to_seq: int


class Boundary(StrEnum):
    """A point in a run at which pending messages are read."""

    INTERRUPT = "interrupt"
    NEXT_STEP = "next_step"
    ON_NATURAL_END = "on_natural_end"
    RESUME_INPUT = "resume_input"
    NEW_RUN = "new_run"


PRECEDENCE = {
    Boundary.INTERRUPT: 0,
    Boundary.NEXT_STEP: 1,
    Boundary.ON_NATURAL_END: 2,
    Boundary.NEW_RUN: 4,
}
"""The order of the boundaries: each one also reads messages for earlier ones, except `resume_input`."""


class Granularity(StrEnum):
    """Whether a run reads a pending message alone, or together with the messages that follow."""

    ONE = "one"
    BATCH = "batch"


class DeliveryMode(Record, frozen=True, kw_only=True):
    """The rules that decide when a run reads a pending message.

    A barrier message delays all later messages until a run reads the barrier. `target_run_id` names the only
    run that may read the message, unless `fallback_to_new_run` permits a new run. Messages of different
    groups are not read together. `starts_run` is true if the message starts a run on an idle thread.
    `resumes` is true if the message may resume a waiting run.
    """

    boundary: Boundary = Boundary.NEW_RUN
    granularity: Granularity = Granularity.BATCH
    barrier: bool = False
    target_run_id: str | None = None
    fallback_to_new_run: bool = True
    group: str | None = None
    starts_run: bool = False
    resumes: bool = True

    def may_resume(self, run_id: str, *, asks: bool) -> bool:
        """Return whether the message resumes a waiting run.

        A run that waits for a person is resumed only by a message that targets the run.
        """
        return (self.resumes and not asks) or self.target_run_id == run_id

    def is_read_at(self, boundary: Boundary, run_id: str | None) -> bool:
        """Return whether the run `run_id` reads the message at a boundary."""
        if self.target_run_id is not None and self.target_run_id != run_id:
            return boundary is Boundary.NEW_RUN and self.fallback_to_new_run
        if Boundary.RESUME_INPUT in (boundary, self.boundary):
            return boundary is self.boundary
        return PRECEDENCE[self.boundary] <= PRECEDENCE[boundary]


class PendingMessage(Record, frozen=True, kw_only=True):
    """A message that no run has read yet.

    `revision` counts the edits of the message.
    """

    thread_id: str
    message: Message
    position: int
    revision: int = 1
    mode: DeliveryMode = DeliveryMode()
    created_at: int = 0
    updated_at: int = 0

    @property
    def pending_id(self) -> str:
        """The id of the message."""
        return self.message.id or ""

    @property
    def version(self) -> "PendingVersion":
        """The version that the message must still have when a run reads the message."""
        return PendingVersion(pending_id=self.pending_id, revision=self.revision)


class PendingVersion(Record, frozen=True, kw_only=True):
    """The version of a pending message that a caller has read."""

    pending_id: str
    revision: int


def select_pending(
    waiting: Iterable[PendingMessage], boundary: Boundary, run_id: str | None, *, group: str | None = None
) -> tuple[PendingMessage, ...]:
    """Return the pending messages that a run reads at a boundary, in order.

    The selection ends at an unread barrier. The selection also ends at a message that cannot be read together
    with the previous messages. With `group`, only messages of one group are considered.
    """
    taken: list[PendingMessage] = []
    for entry in waiting:
        is_ours = group is None or entry.mode.group == group
        if not is_ours or not entry.mode.is_read_at(boundary, run_id):
            if entry.mode.barrier:
                break
            continue
        alone = entry.mode.granularity is Granularity.ONE
        if taken and (alone or entry.mode.group != taken[-1].mode.group):
            break
        taken.append(entry)
        if alone:
            break
    return tuple(taken)


def leading_barrier(waiting: Sequence[PendingMessage], boundary: Boundary) -> PendingMessage | None:
    """Return the barrier that prevents a new message from being read at a boundary, or None."""
    for entry in waiting:
        if entry.mode.barrier and not entry.mode.is_read_at(boundary, None):
            return entry
    return None


def refuse_broken_delta(delta: Sequence[Message]) -> tuple[str, ...]:
    """Return the ids of messages that will be appended to a thread.

    Raises:
        InvalidRecord: An id is missing or repeated, or a tool message has no call id.
    """
    ids: list[str] = []
    for message in delta:
        if not message.id:
            raise InvalidRecord("an appended message has no id", remedy="give each message an id")
        ids.append(message.id)
        if message.role is Role.TOOL and not message.tool_call_id:
            raise InvalidRecord("a tool message has no tool call id", value=message.id)
        for call in message.tool_calls:
            if not call.id:
                raise InvalidRecord(
                    f"a tool call of message {message.id} has no id",
                    value=message.id,
                    remedy="give each tool call an id",
                )
    if len(set(ids)) != len(ids):
        raise InvalidRecord(
            "two appended messages have the same id", value=ids, remedy="give each message a different id"
        )
    return tuple(ids)
