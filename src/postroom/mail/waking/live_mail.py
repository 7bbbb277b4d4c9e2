"""Lets a run that is at work read the messages that come on its thread; each is noted as in its hands."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from postroom.contracts.messages import Boundary, Message
from postroom.ports import PendingBoundary
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore


class Taken(Protocol):
    """Notes that a run has messages in its hands."""

    def __call__(self, tx: MailWrites, messages: Sequence[Message], *, told: bool) -> tuple[Message, ...]:
        """Return those that it is to read; of those that it was `told` also what it has read itself."""
        ...


class LiveMail:
    """What waits for an agent's run: messages of the thread that it works on, and nothing else.

    They are read before a step and never behind the last word, which would be lost to whoever waits for it:
    such a message begins a run of its own.
    """

    def __init__(
        self,
        within: PendingBoundary,
        store: MailStore,
        mail_thread: str,
        open_to: Callable[[MailReads, Sequence[Message]], tuple[Message, ...]],
        taken: Taken,
    ) -> None:
        """Keep what it works with; `open_to` leaves out what needs nobody."""
        self._open = open_to
        self._within = within
        self._store = store
        self._mail_thread = mail_thread
        self._taken = taken

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        """Return what the run would read before this step; what was read or taken back is left out.

        Raises:
            StoreError: mail could not be reached.
        """
        if boundary is not Boundary.NEXT_STEP:
            return ()
        waiting = await self._within.waiting(boundary, group=self._mail_thread)
        return await self._store.read(lambda tx: self._open(tx, waiting)) if waiting else ()

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        """Commit what the run reads before this step and return it, in order.

        What was read or taken back meanwhile is left out; but what `only` names the program was told, and its
        model may have come upon it in the inbox as well. A run that is cut off before its messages are noted
        notes them when it is begun again.

        Raises:
            StaleClaim: the run is not the worker's any more.
            StoreError: mail could not be reached.
        """
        if boundary is not Boundary.NEXT_STEP:
            return ()
        frozen = await self._within.freeze(boundary, group=self._mail_thread, only=only)
        if not frozen:
            return ()
        return await self._store.write(lambda tx: self._taken(tx, frozen, told=only is not None))

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        """Put messages that came live among those that wait, for this run; known ids are passed over."""
        await self._within.stage(boundary, messages)
