"""Input that no run has read yet, as one run sees it: taken out of what waits and committed in one step."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from postroom.contracts.errors import DuplicateRecord, StaleClaim
from postroom.contracts.messages import (
    Boundary,
    DeliveryMode,
    Message,
    PendingMessage,
    SeqRange,
    select_pending,
)
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit, ThreadState, thread_lock
from postroom.contracts.runs import RunMessageInput, RunRecord, RunStatus
from postroom.dispatch.capture import RunCoordinator
from postroom.dispatch.core import Core
from postroom.dispatch.events import ServerEvents
from postroom.stores.runs.dispatches import state_look
from postroom.stores.transaction import Transaction


@dataclass(frozen=True, slots=True, eq=False)
class PendingInput:
    """The pending messages of a thread, for one run."""

    core: Core
    events: ServerEvents
    coordinator: RunCoordinator
    thread_id: str
    run_id: str

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        """Return the messages that the run would read at this boundary, in order; they keep waiting."""

        def look(tx: Transaction) -> tuple[PendingMessage, ...]:
            return self._leading(tx, tx.runs.threads.load_run(self.run_id), boundary, group)

        pending = await self.core.retried(lambda: self.core.store.read(look))
        return tuple(one.message for one in select_pending(pending, boundary, self.run_id, group=group))

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        """Commit and return the messages that the run reads at this boundary, in order.

        With `group` only that group, with `only` only the messages with these ids.

        Raises:
            StaleClaim: The worker no longer owns the run; pending messages stay.
        """
        core, thread_id, count = self.core, self.thread_id, len(self.coordinator.staged)
        written: list[tuple[tuple[Message, ...], int]] = []

        def freeze(tx: Transaction) -> tuple[tuple[Message, ...], int] | StaleClaim:
            tx.lock(thread_lock(thread_id))
            if written and tx.runs.messages.named(thread_id, [one.id or "" for one in written[0][0]]):
                return written[0]  # only the reply was lost
            state = tx.runs.state(state_look(thread_id, run_id=self.run_id))
            pending = self._leading(tx, state.run, boundary, group) if state.waiting else ()
            taken = select_pending(pending, boundary, self.run_id, group=group)
            if only is not None:
                taken = tuple(entry for entry in taken if entry.message.id in only)
            messages = tuple(entry.message for entry in taken)
            if taken:
                done = tx.runs.commit(self.coordinator.owned(self._commit(state, taken, messages)))
                if isinstance(done, StaleClaim):
                    return done
            written[:] = [(messages, state.message_count + 1)] if taken else []
            return messages, state.message_count + 1

        messages, first_seq = await core.retried(lambda: core.store.write(freeze, key=thread_id))
        if messages:
            del self.coordinator.staged[:count]
            await self.events.messages_committed(thread_id, self.run_id, messages, first_seq=first_seq)
        return messages

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        """Add messages that arrived live to the waiting messages, for this run; ignore known ids."""
        mode = DeliveryMode(boundary=boundary, target_run_id=self.run_id)
        for message in messages:
            try:
                await self.core.threads.append_pending(self.thread_id, (message,), mode)
            except DuplicateRecord:
                continue

    def _leading(
        self, tx: Transaction, run: RunRecord | None, boundary: Boundary, group: str | None
    ) -> tuple[PendingMessage, ...]:
        resumed = run if run is not None and run.status is RunStatus.WAITING else None
        return tx.runs.messages.leading(self.thread_id, boundary, self.run_id, group=group, resumed=resumed)

    def _commit(
        self, state: ThreadState, taken: Sequence[PendingMessage], messages: tuple[Message, ...]
    ) -> ThreadCommit:
        first_seq, run = state.message_count + 1, state.run
        return ThreadCommit(
            thread_id=self.thread_id,
            messages=messages,
            consumes=tuple(entry.version for entry in taken),
            run=None if run is None else _with_input(run, messages, first_seq),
            events=self.events.of_commit(self.thread_id, self.run_id, messages, first_seq=first_seq),
        )


def _with_input(run: RunRecord, messages: Sequence[Message], first_seq: int) -> RunRecord:
    """Return the run with more that it was given to read."""
    before = run.input or RunMessageInput(thread_id=run.thread_id)
    last_seq = first_seq + len(messages) - 1
    from_seq = before.range.from_seq if before.range else first_seq
    ids = tuple(message.id or "" for message in messages)
    return replace(
        run,
        input=replace(
            before,
            range=SeqRange(from_seq=from_seq, to_seq=last_seq),
            trigger_message_ids=(*before.trigger_message_ids, *ids),
        ),
    )
