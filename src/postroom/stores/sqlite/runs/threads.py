"""Threads, runs and messages on SQLite."""

from collections.abc import Sequence
from typing import Literal

from postroom.contracts.budgets import Spending
from postroom.contracts.messages import (
    DeliveryMode,
    Json,
    Message,
    MessageRecord,
    PendingMessage,
    PendingVersion,
)
from postroom.contracts.run_stores import MAX_PAGE, MessageQuery, RunQuery, SubmissionFacts, ThreadQuery
from postroom.contracts.runs import RunRecord, Thread
from postroom.stores.codec import encode
from postroom.stores.sqlite.runs import message_steps, pending, thread_steps
from postroom.stores.sqlite.runs.desk import Desk, page


class SqliteThreadStore:
    """Threads, runs and messages in the file; every promise is that of the port."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._desk.identity

    async def submission_facts(self, thread_id: str, run_id: str | None = None) -> SubmissionFacts:
        """Return what a submission to the thread is decided on."""
        return await self._desk.read(lambda db: thread_steps.submission_facts(db, thread_id, run_id))

    async def load_thread(self, thread_id: str) -> Thread | None:
        """Return one thread."""
        return await self._desk.look(lambda db: thread_steps.load_thread(db, thread_id))

    async def save_thread(self, thread: Thread) -> None:
        """Store a thread as given but for `message_count`."""
        await self._desk.write(lambda db: thread_steps.save_thread(db, thread))

    async def delete_thread(
        self, thread_id: str, *, children: Literal["detach", "reject", "cascade"] = "detach"
    ) -> bool:
        """Remove a thread with its messages and runs; False when there is none."""
        return await self._desk.write(lambda db: thread_steps.delete_thread(db, thread_id, children))

    async def list_threads(self, query: ThreadQuery) -> tuple[Thread, ...]:
        """Return threads by id."""
        return await self._desk.read(lambda db: thread_steps.list_threads(db, query))

    async def create_run(self, run: RunRecord) -> None:
        """Store a new run and move its thread's pointers; a missing thread is made."""
        now, body = self._desk.clock.now(), encode(run)
        await self._desk.write(lambda db: thread_steps.create_run(db, run, body, now))

    async def load_run(self, run_id: str) -> RunRecord | None:
        """Return one run.

        Raises:
            StoreCorrupt: its row does not read back.
        """
        return await self._desk.look(lambda db: thread_steps.load_run(db, run_id))

    async def latest_run(self, thread_id: str) -> RunRecord | None:
        """Return the thread's run with the newest `updated_at`, then the newest `created_at`."""
        return await self._desk.look(lambda db: thread_steps.latest_run(db, thread_id))

    async def latest_runs(self, thread_id: str, *, limit: int = MAX_PAGE) -> tuple[RunRecord, ...]:
        """Return the thread's newest runs, in the order in which `latest_run` finds them."""
        return await self._desk.read(lambda db: thread_steps.latest_runs(db, thread_id, page(limit)))

    async def list_runs(self, query: RunQuery) -> tuple[RunRecord, ...]:
        """Return runs by run id."""
        return await self._desk.read(lambda db: thread_steps.list_runs(db, query))

    async def load_messages(self, thread_id: str) -> tuple[Message, ...] | None:
        """Return all committed messages in order; None when the thread is not known.

        Raises:
            StoreCorrupt: one of the rows does not read back.
        """
        return await self._desk.read(lambda db: message_steps.load_messages(db, thread_id))

    async def load_message_records(
        self, thread_id: str, message_ids: Sequence[str]
    ) -> tuple[MessageRecord, ...]:
        """Return those committed messages, in the order of the thread; unknown ones are left out."""
        named = tuple(message_ids)
        return await self._desk.look(lambda db: message_steps.load_records(db, thread_id, named))

    async def list_message_records(self, thread_id: str, query: MessageQuery) -> tuple[MessageRecord, ...]:
        """Return committed messages in order of `seq`."""
        return await self._desk.read(lambda db: message_steps.list_records(db, thread_id, query))

    async def delete_messages(self, thread_id: str) -> int:
        """Remove a thread's committed messages; numbering goes on, and `message_count` with it."""
        return await self._desk.write(lambda db: message_steps.delete_messages(db, thread_id))

    async def load_thread_state(self, thread_id: str) -> dict[str, Json] | None:
        """Return what executors keep for the thread."""
        return await self._desk.read(lambda db: thread_steps.load_state(db, thread_id))

    async def spending(self, scopes: Sequence[str]) -> dict[str, Spending]:
        """Return what each scope has spent so far; one that never spent is there with nothing."""
        named = tuple(scopes)
        return await self._desk.read(lambda db: thread_steps.spending(db, named))

    async def pending_messages(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return what waits to be read, in order."""
        return await self._desk.look(lambda db: pending.waiting(db, thread_id))

    async def threads_with_pending(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads on which something waits to be read, by id."""
        return await self._desk.read(lambda db: pending.threads_with_pending(db, page(limit), after))

    async def append_pending(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, *, now: int | None = None
    ) -> tuple[PendingMessage, ...]:
        """Add messages behind those that wait; a missing thread is made."""
        at, added = self._desk.at(now), tuple(messages)
        return await self._desk.write(lambda db: thread_steps.append_pending(db, thread_id, added, mode, at))

    async def edit_pending(
        self,
        thread_id: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        now: int | None = None,
    ) -> PendingMessage:
        """Replace a pending message under its id and raise its revision."""
        at = self._desk.at(now)
        return await self._desk.write(lambda db: pending.edit(db, thread_id, message, expected_revision, at))

    async def retract_pending(
        self, thread_id: str, pending_id: str, *, expected_revision: int | None = None
    ) -> PendingMessage:
        """Take back a pending message."""
        return await self._desk.write(
            lambda db: pending.retract(db, thread_id, pending_id, expected_revision)
        )

    async def reorder_pending(
        self, thread_id: str, order: Sequence[str], *, expected: Sequence[PendingVersion] | None = None
    ) -> tuple[PendingMessage, ...]:
        """Put the pending messages into this order; all of them must be named."""
        wanted = tuple(order)
        return await self._desk.write(lambda db: pending.reorder(db, thread_id, wanted, expected))
