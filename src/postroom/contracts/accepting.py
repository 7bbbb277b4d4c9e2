"""How a change of one room puts messages where runs of another read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from postroom.contracts.messages import DeliveryMode, Message
from postroom.contracts.tools import ToolCallResume


class ThreadsNeeded(Exception):
    """A change would put messages on threads that it has not locked; it is run again with these locked."""

    def __init__(self, thread_ids: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(thread_ids)))
        self.thread_ids = thread_ids


@dataclass(frozen=True, slots=True)
class Accept:
    """Puts a message where runs of a thread read it, within a change; it begins a run if the thread is idle.

    Return True if a run begins on it. A message whose id is known is passed over.
    """

    thread_ids: frozenset[str]
    """The threads that it is for: the change has locked them."""
    put: Callable[[str, Message, DeliveryMode, Sequence[tuple[str, ToolCallResume]]], bool]
    is_full: Callable[[str], bool]
    """Whether as many messages wait on a thread as may: a further message would be refused."""

    def __call__(
        self,
        thread_id: str,
        message: Message,
        mode: DeliveryMode,
        decisions: Sequence[tuple[str, ToolCallResume]] = (),
    ) -> bool:
        """Put the message there, with the decisions that it makes about questions of the run that reads it.

        Raises:
            ThreadsNeeded: The thread is none of those.
            QueueFull: As many messages wait on the thread as may, and this is another.
        """
        if thread_id not in self.thread_ids:
            raise ThreadsNeeded(frozenset({thread_id}))
        return self.put(thread_id, message, mode, decisions)


NOWHERE = Accept(frozenset(), lambda *_: False, lambda _: False)
"""Puts nothing anywhere: a change that would is run again."""
