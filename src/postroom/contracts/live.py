"""Live control: commands to a run that executes somewhere, with a receipt for their acceptance.

A command without an acknowledgement counts as not delivered; the sender then stores it, so that a command may
arrive twice and is never lost.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from postroom.contracts.messages import Message
from postroom.contracts.tools import ToolCallResume


class LiveCommandKind(StrEnum):
    """The kinds of commands to a running run."""

    MESSAGES = "messages"
    PENDING_BOUNDARY_WAKE = "pending_boundary_wake"
    CANCEL = "cancel"
    DECISION = "decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRunCommand:
    """New messages, a hint that messages wait, a request to stop, or decisions about tool calls."""

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
    """The address of a command; None matches anything, on either side."""

    thread_id: str
    run_id: str | None = None
    dispatch_id: str | None = None

    def matches(self, listener: "LiveRunTarget") -> bool:
        """Return whether a command to this target is for that listener."""
        pairs = ((self.run_id, listener.run_id), (self.dispatch_id, listener.dispatch_id))
        agree = all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)
        return self.thread_id == listener.thread_id and agree


class LiveDeliveryOutcome(StrEnum):
    """Whether a running run accepted a command."""

    DELIVERED = "delivered"
    NO_SUBSCRIBER = "no_subscriber"


@dataclass(slots=True, kw_only=True)
class LiveReceipt:
    """A receipt that is settled once: accepted or dropped."""

    settle: Callable[[bool], None]
    settled: bool = field(default=False, init=False)

    def ack(self) -> None:
        """Record that the run has accepted the command."""
        self._settle(accepted=True)

    def drop(self) -> None:
        """Record that the run has not accepted the command; no effect after `ack`."""
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
        """Return the entry."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Drop the receipt unless it was acknowledged."""
        self.receipt.drop()


class LiveSubscription(Protocol):
    """The commands for one target, in order, until closed."""

    def __aiter__(self) -> AsyncIterator[LiveCommandEntry]:
        """Iterate over commands as they arrive."""
        ...

    def close(self) -> None:
        """End the subscription and drop unhandled commands; a repeated call has no effect."""
        ...


class LiveChannels(Protocol):
    """Delivers commands to running runs, in one process or between several."""

    async def deliver(self, target: LiveRunTarget, command: LiveRunCommand) -> LiveDeliveryOutcome:
        """Pass a command to every listener of its target; it is delivered if one accepts it."""
        ...

    async def open(self, target: LiveRunTarget) -> LiveSubscription:
        """Listen for commands to this target from now on."""
        ...
