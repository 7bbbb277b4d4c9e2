"""Lets a running run read what waits for it: taken out of the pending zone and committed in one step."""

from collections.abc import Sequence
from dataclasses import replace

from postroom.contracts.errors import DuplicateRecord, InternalError, VersionConflict
from postroom.contracts.messages import (
    Boundary,
    DeliveryMode,
    Message,
    PendingMessage,
    SeqRange,
    select_pending,
)
from postroom.contracts.run_stores import SubmissionFacts, ThreadCommit
from postroom.contracts.runs import RunMessageInput, RunRecord
from postroom.dispatch.capture import RunCoordinator
from postroom.dispatch.config import COMMIT_ATTEMPTS
from postroom.dispatch.core import Core
from postroom.dispatch.journal import Journal


class ThreadBoundary:
    """The pending zone as one run sees it."""

    def __init__(
        self, core: Core, journal: Journal, coordinator: RunCoordinator, thread_id: str, run_id: str
    ) -> None:
        self._core = core
        self._journal = journal
        self._coordinator = coordinator
        self._thread_id = thread_id
        self._run_id = run_id

    async def freeze(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        """Commit what the run reads at this boundary and return it, in order; with `group` nothing else.

        Raises:
            StaleClaim: the run is not the worker's any more; what waits, waits on.
        """
        async with self._core.threads_being_read.holding(self._thread_id):
            for _ in range(COMMIT_ATTEMPTS):
                facts = await self._core.threads.submission_facts(self._thread_id, self._run_id)
                taken = select_pending(facts.pending, boundary, self._run_id, group=group)
                if not taken:
                    return ()
                try:
                    return await self._commit(facts, taken)
                except VersionConflict:
                    continue
        raise InternalError(f"what waits on thread {self._thread_id!r} changed again and again")

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        """Put messages that came live among those that wait, for this run; known ids are passed over."""
        mode = DeliveryMode(boundary=boundary, target_run_id=self._run_id)
        for message in messages:
            try:
                await self._core.threads.append_pending(self._thread_id, (message,), mode)
            except DuplicateRecord:
                continue

    async def _commit(self, facts: SubmissionFacts, taken: Sequence[PendingMessage]) -> tuple[Message, ...]:
        messages = tuple(entry.message for entry in taken)
        first_seq = facts.message_count + 1
        run = facts.named_run
        await self._coordinator.commit(
            ThreadCommit(
                thread_id=self._thread_id,
                messages=messages,
                expected_message_count=facts.message_count,
                consumes=tuple(entry.version for entry in taken),
                run=None if run is None else _with_input(run, messages, first_seq),
            )
        )
        await self._journal.messages_committed(self._thread_id, self._run_id, messages, first_seq=first_seq)
        return messages


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
