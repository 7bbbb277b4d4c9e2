"""Live control: commands to a run that is executing somewhere, with a receipt that says it was accepted.

A command that nobody acknowledges counts as not delivered; the sender then takes the durable way, so that a
command may arrive twice and is never lost.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from postroom.contracts.messages import Message
from postroom.contracts.tools import ToolCallResume


class LiveCommandKind(StrEnum):
    """What a running run can be told."""

    MESSAGES = "messages"
    PENDING_BOUNDARY_WAKE = "pending_boundary_wake"
    CANCEL = "cancel"
    DECISION = "decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRunCommand:
    """New messages, a hint that some wait, a wish that it ends, or decisions about its tool calls."""

    kind: LiveCommandKind
    messages: tuple[Message, ...] = ()
    decisions: tuple[tuple[str, ToolCallResume], ...] = ()
    gives_way: bool = False
    """Whether a `cancel` comes from a submission that takes the place of the run.

    The run stops and is queued again. The commit of the submission ends the run as cancelled.
    """

    @property
    def cancels(self) -> bool:
        """Whether the run ends as cancelled."""
        return self.kind is LiveCommandKind.CANCEL and not self.gives_way


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRunTarget:
    """Whom a command is for; what is None matches anything, on either side."""

    thread_id: str
    run_id: str | None = None
    dispatch_id: str | None = None

    def matches(self, listener: "LiveRunTarget") -> bool:
        """Say whether a command to this target is for that listener."""
        pairs = ((self.run_id, listener.run_id), (self.dispatch_id, listener.dispatch_id))
        agree = all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)
        return self.thread_id == listener.thread_id and agree


class LiveDeliveryOutcome(StrEnum):
    """Whether a command was accepted by a running run."""

    DELIVERED = "delivered"
    NO_SUBSCRIBER = "no_subscriber"


@dataclass(slots=True, kw_only=True)
class LiveReceipt:
    """Settled once: accepted, or dropped."""

    settle: Callable[[bool], None]
    settled: bool = field(default=False, init=False)

    def ack(self) -> None:
        """Say that the run has accepted the command."""
        self._settle(accepted=True)

    def drop(self) -> None:
        """Say that it has not; harmless after `ack`."""
        self._settle(accepted=False)

    def _settle(self, *, accepted: bool) -> None:
        if not self.settled:
            self.settled = True
            self.settle(accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCommandEntry:
    """A command with its receipt; leaving the `with` block without `ack` drops the receipt."""

    command: LiveRunCommand
    receipt: LiveReceipt

    def __enter__(self) -> "LiveCommandEntry":
        """Begin to handle the command."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Drop what was not acknowledged."""
        self.receipt.drop()


class LiveSubscription(Protocol):
    """The commands for one target, in order, until closed."""

    def __aiter__(self) -> AsyncIterator[LiveCommandEntry]:
        """Iterate over commands as they come."""
        ...

    def close(self) -> None:
        """End the subscription and drop what was not handled; harmless when done twice."""
        ...


class LiveChannels(Protocol):
    """Carries commands to running runs, in one process or between many."""

    async def deliver(self, target: LiveRunTarget, command: LiveRunCommand) -> LiveDeliveryOutcome:
        """Hand a command to every listener it is for; delivered when one accepted it."""
        ...

    async def open(self, target: LiveRunTarget) -> LiveSubscription:
        """Listen for commands to this target from now on."""
        ...
