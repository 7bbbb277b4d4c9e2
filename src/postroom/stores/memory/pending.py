"""The pending zone in memory: messages that no run has read yet, thread by thread."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from postroom.contracts.errors import (
    AlreadyConsumed,
    DuplicateRecord,
    InvalidRecord,
    UnknownMessage,
    VersionConflict,
)
from postroom.contracts.messages import (
    DeliveryMode,
    Message,
    PendingMessage,
    PendingVersion,
    refuse_broken_delta,
)
from postroom.stores.memory.run_tables import Ordered


class PendingZone:
    """What waits on each thread; positions count from 1 without gaps."""

    def __init__(self, is_committed: Callable[[str, str], bool]) -> None:
        self.threads: Ordered[str] = Ordered()
        self._waiting: dict[str, tuple[PendingMessage, ...]] = {}
        self._is_committed = is_committed

    def of(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return what waits on a thread, in order."""
        return self._waiting.get(thread_id, ())

    def refuse_append(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Refuse messages that cannot be added.

        Raises:
            InvalidRecord: they could not be committed as they are.
            DuplicateRecord: an id waits or is committed.
        """
        refuse_broken_delta(messages)
        waiting = {one.pending_id for one in self.of(thread_id)}
        for message_id in [message.id or "" for message in messages]:
            if message_id in waiting or self._is_committed(thread_id, message_id):
                raise DuplicateRecord(f"message {message_id!r} is on the thread already", value=message_id)

    def append(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, now: int
    ) -> tuple[PendingMessage, ...]:
        """Add messages behind those that wait, and return them."""
        before = self.of(thread_id)
        added = tuple(
            PendingMessage(
                thread_id=thread_id,
                message=message,
                position=position,
                mode=mode,
                created_at=now,
                updated_at=now,
            )
            for position, message in enumerate(messages, start=len(before) + 1)
        )
        self._set(thread_id, (*before, *added))
        return added

    def edit(
        self, thread_id: str, message: Message, expected_revision: int | None, now: int
    ) -> PendingMessage:
        """Replace a message under its id."""
        before = self._as_expected(thread_id, message.id or "", expected_revision)
        refuse_broken_delta([message])
        after = replace(before, message=message, revision=before.revision + 1, updated_at=now)
        self._set(thread_id, tuple(after if one is before else one for one in self.of(thread_id)))
        return after

    def retract(self, thread_id: str, pending_id: str, expected_revision: int | None) -> PendingMessage:
        """Take back a message."""
        taken = self._as_expected(thread_id, pending_id, expected_revision)
        self.remove(thread_id, {pending_id})
        return taken

    def reorder(
        self, thread_id: str, order: Sequence[str], expected: Sequence[PendingVersion] | None
    ) -> tuple[PendingMessage, ...]:
        """Put all that waits into this order."""
        waiting = self.of(thread_id)
        if expected is not None and [one.version for one in waiting] != list(expected):
            raise VersionConflict("other messages wait than were looked at", value=thread_id)
        by_id = {one.pending_id: one for one in waiting}
        if sorted(order) != sorted(by_id):
            raise InvalidRecord("an order names every waiting message once", value=list(order))
        self._set(thread_id, tuple(by_id[pending_id] for pending_id in order))
        return self.of(thread_id)

    def refuse_changed(self, thread_id: str, versions: Collection[PendingVersion]) -> None:
        """Refuse when one of them is not there as it was seen.

        Raises:
            VersionConflict: as said.
        """
        there = {one.version for one in self.of(thread_id)}
        for version in versions:
            if version not in there:
                raise VersionConflict(
                    f"pending message {version.pending_id!r} is not there in revision {version.revision}",
                    value=version.pending_id,
                )

    def remove(self, thread_id: str, pending_ids: Collection[str]) -> None:
        """Let messages leave; those behind them move up."""
        if pending_ids:
            stay = tuple(one for one in self.of(thread_id) if one.pending_id not in pending_ids)
            self._set(thread_id, stay)

    def clear(self, thread_id: str) -> None:
        """Let all messages of a thread leave."""
        self._set(thread_id, ())

    def _as_expected(self, thread_id: str, pending_id: str, expected_revision: int | None) -> PendingMessage:
        found = next((one for one in self.of(thread_id) if one.pending_id == pending_id), None)
        if found is None:
            if self._is_committed(thread_id, pending_id):
                raise AlreadyConsumed(f"message {pending_id!r} is already consumed", value=pending_id)
            raise UnknownMessage(f"no pending message {pending_id!r}", value=pending_id)
        if expected_revision not in (None, found.revision):
            raise VersionConflict(
                f"pending message {pending_id!r} is at revision {found.revision}, not {expected_revision}",
                value=pending_id,
            )
        return found

    def _set(self, thread_id: str, entries: tuple[PendingMessage, ...]) -> None:
        if not entries:
            self._waiting.pop(thread_id, None)
            self.threads.discard(thread_id)
            return
        self._waiting[thread_id] = tuple(
            one if one.position == position else replace(one, position=position)
            for position, one in enumerate(entries, start=1)
        )
        self.threads.add(thread_id)
