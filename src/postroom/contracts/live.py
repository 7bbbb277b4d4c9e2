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
    """The kinds of commands that can be sent to an active run."""

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

    @property
    def cancels(self) -> bool:
        """Whether the command causes the run to end as cancelled."""
        return self.kind is LiveCommandKind.CANCEL and not self.gives_way


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRunTarget:
    """The active run that a command is for, or that a listener serves; None in a field matches all."""

    thread_id: str
    run_id: str | None = None
    dispatch_id: str | None = None

    def matches(self, listener: "LiveRunTarget") -> bool:
        """Return whether a listener receives commands to this target."""
        pairs = ((self.run_id, listener.run_id), (self.dispatch_id, listener.dispatch_id))
        agree = all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)
        return self.thread_id == listener.thread_id and agree


class LiveDeliveryOutcome(StrEnum):
    """Whether an active run accepted a command."""

    DELIVERED = "delivered"
    NO_SUBSCRIBER = "no_subscriber"


@dataclass(slots=True, kw_only=True)
class LiveReceipt:
    """The receipt of a command, which is settled once: as accepted or as dropped."""

    settle: Callable[[bool], None]
    settled: bool = field(default=False, init=False)

    def ack(self) -> None:
        """Record that the run has accepted the command."""
        self._settle(accepted=True)

    def drop(self) -> None:
        """Record that the run did not accept the command; no effect after `ack`."""
        self._settle(accepted=False)

    def _settle(self, *, accepted: bool) -> None:
        if not self.settled:
            self.settled = True
            self.settle(accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCommandEntry:
    """A command with its receipt, which is dropped if the `with` block ends without `ack`."""

    command: LiveRunCommand
    receipt: LiveReceipt

    def __enter__(self) -> "LiveCommandEntry":
        """Return the entry."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Drop the receipt unless it was acknowledged."""
        self.receipt.drop()


class LiveSubscription(Protocol):
    """Yields the commands for one target in order, until it is closed."""

    def __aiter__(self) -> AsyncIterator[LiveCommandEntry]:
        """Iterate over commands as they arrive."""
        ...

    def close(self) -> None:
        """End the subscription and drop unhandled commands; a repeated call has no effect."""
        ...


class LiveChannels(Protocol):
    """Delivers commands to active runs, within one process or between processes."""

    async def deliver(self, target: LiveRunTarget, command: LiveRunCommand) -> LiveDeliveryOutcome:
        """Pass a command to all listeners of a run. The delivery succeeds if one listener accepts it."""
        ...

    async def open(self, target: LiveRunTarget) -> LiveSubscription:
        """Start listening for commands to this target."""
        ...
