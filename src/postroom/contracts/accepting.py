"""The port by which a change of one package puts messages on threads of runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from postroom.contracts.messages import DeliveryMode, Message
from postroom.contracts.tools import ToolCallResume


class ChangeUndone(Exception):
    """Signals that a change has undone itself on purpose: its caller goes another way."""


class ThreadsNeeded(ChangeUndone):
    """Signals that a change needs threads which it has not locked.

    The caller runs the change again with these locked.
    """

    def __init__(self, thread_ids: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(thread_ids)))
        self.thread_ids = thread_ids


@dataclass(frozen=True, slots=True)
class Accept:
    """Puts a message on a thread of runs within a change, and starts a run if the thread is idle.

    A call returns True if a run starts on the message. A message with a known id is ignored.
    """

    thread_ids: frozenset[str]
    """The threads that the change has locked."""
    put: Callable[[str, Message, DeliveryMode, Sequence[tuple[str, ToolCallResume]]], bool]
    is_full: Callable[[str], bool]
    """Whether a thread has reached its limit of waiting messages, so that it refuses another."""

    def __call__(
        self,
        thread_id: str,
        message: Message,
        mode: DeliveryMode,
        decisions: Sequence[tuple[str, ToolCallResume]] = (),
    ) -> bool:
        """Put a message on the thread, with its decisions about questions of the run that reads it.

        Raises:
            ThreadsNeeded: The change has not locked the thread.
            QueueFull: The thread has reached its limit of waiting messages, and the message is new.
        """
        if thread_id not in self.thread_ids:
            raise ThreadsNeeded(frozenset({thread_id}))
        return self.put(thread_id, message, mode, decisions)


NOWHERE = Accept(frozenset(), lambda *_: False, lambda _: False)
"""Locks no thread: a change that puts a message is run again with its threads locked."""
