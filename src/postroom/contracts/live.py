"""Sends commands to active runs on any server; each receipt states whether a command was accepted.

If a command is not acknowledged, the sender stores it. Therefore a command may arrive twice, but is never
lost.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from postroom.contracts.messages import Message
from postroom.contracts.tools import ToolCallResume


class LiveCommandKind(StrEnum):
    """The kind of command that is sent to an active run."""

    MESSAGES = "messages"
    PENDING_BOUNDARY_WAKE = "pending_boundary_wake"
    CANCEL = "cancel"
    DECISION = "decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRunCommand:
    """A command to an active run: messages, a notice of waiting messages, a stop, or decisions."""

    kind: LiveCommandKind
    messages: tuple[Message, ...] = ()
    decisions: tuple[tuple[str, ToolCallResume], ...] = ()
    gives_way: bool = False
    """Whether a `cancel` only interrupts the run in favour of a submission that replaces it.

    The run then stops and returns to the queue, and the commit of the submission ends it as cancelled.
    """

    reason: str | None = None
    """The reason for a cancellation, for the questions and the sender of the run, or None."""

    @property
    def cancels(self) -> bool:
        """Whether the command ends the run as cancelled."""
        return self.kind is LiveCommandKind.CANCEL and not self.gives_way


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRunTarget:
    """The run to which a command is addressed.

    Fields with the value None match every run.
    """

    thread_id: str
    run_id: str | None = None
    dispatch_id: str | None = None

    def matches(self, listener: "LiveRunTarget") -> bool:
        """Return whether a listener receives commands that are addressed to the target."""
        pairs = ((self.run_id, listener.run_id), (self.dispatch_id, listener.dispatch_id))
        agree = all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)
        return self.thread_id == listener.thread_id and agree


class LiveDeliveryOutcome(StrEnum):
    """Whether an active run accepted a command."""

    DELIVERED = "delivered"
    NO_SUBSCRIBER = "no_subscriber"


@dataclass(slots=True, kw_only=True)
class LiveReceipt:
    """The receipt of a command, which records whether the run accepted the command."""

    settle: Callable[[bool], None]
    settled: bool = field(default=False, init=False)

    def ack(self) -> None:
        """Record that the run accepted the command."""
        self._settle(accepted=True)

    def drop(self) -> None:
        """Record that the run did not accept the command.

        No effect after `ack`.
        """
        self._settle(accepted=False)

    def _settle(self, *, accepted: bool) -> None:
        if not self.settled:
            self.settled = True
            self.settle(accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCommandEntry:
    """A received command with its receipt.

    A `with` block that ends without `ack` drops the command.
    """

    command: LiveRunCommand
    receipt: LiveReceipt

    def __enter__(self) -> "LiveCommandEntry":
        """Return the entry."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Drop the command unless the receipt was acknowledged."""
        self.receipt.drop()


class LiveSubscription(Protocol):
    """Yields the commands to one run in order, until the subscription is closed."""

    def __aiter__(self) -> AsyncIterator[LiveCommandEntry]:
        """Iterate over commands as they arrive."""
        ...

    def close(self) -> None:
        """End the subscription and drop unhandled commands.

        A repeated call has no effect.
        """
        ...


class LiveChannels(Protocol):
    """Delivers commands to active runs, within one process or between processes."""

    async def deliver(self, target: LiveRunTarget, command: LiveRunCommand) -> LiveDeliveryOutcome:
        """Pass a command to all listeners of a run, and return whether any listener accepted the command."""
        ...

    async def open(self, target: LiveRunTarget) -> LiveSubscription:
        """Start listening for commands to a run."""
        ...
