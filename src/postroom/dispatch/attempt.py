"""One execution of a dispatch: what it is of, and what it writes and tells with."""

from dataclasses import dataclass

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.messages import Message
from postroom.contracts.runs import RunRecord
from postroom.dispatch.capture import RunCoordinator
from postroom.dispatch.sinks import SuspensionAwareSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """An execution that begins in the commit that stores its run: nothing of it is to be looked up."""

    run: RunRecord
    messages: tuple[Message, ...]
    instance_id: str


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One execution: what it is of, and what it writes and tells with."""

    dispatch: RunDispatch
    run: RunRecord
    activation: RunActivation
    instance_id: str
    watched: SuspensionAwareSink
    sink: EventSink
    """What the executor tells: it is kept where it is to be kept, and goes on to `watched`."""
    coordinator: RunCoordinator
    started_at: int = 0
    paused: bool = False
    """Whether a budget kept the run from being executed."""
    leaves_waiting: bool = True
    """Whether messages may wait on the thread when it has ended; True where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """What is left to do when an execution has ended."""

    comes_again: bool = False
    leaves_waiting: bool = True
