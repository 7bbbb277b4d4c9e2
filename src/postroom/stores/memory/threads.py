"""Threads, runs and messages in memory: the port over the tables."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import Literal

from postroom.contracts.budgets import Spending
from postroom.contracts.errors import DuplicateRecord, InvalidRecord, UnknownThread
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
from postroom.stores.memory.run_tables import Place, page
from postroom.stores.memory.thread_rows import Log, ThreadTable, own_copy


class MemoryThreadStore:
    """Threads, runs and messages in this process's memory."""

    def __init__(self, place: Place, table: ThreadTable) -> None:
        self._place = place
        self._table = table

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def submission_facts(self, thread_id: str, run_id: str | None = None) -> SubmissionFacts:
        """Return what a submission to the thread is decided on."""
        await self._place.turn()
        thread = self._table.threads.get(thread_id)
        runs = self._table.runs
        return SubmissionFacts(
            thread=thread,
            message_count=thread.message_count if thread else 0,
            pending=self._table.pending.of(thread_id),
            named_run=runs.get(run_id) if run_id else None,
            open_run=runs.get(thread.open_run_id) if thread and thread.open_run_id else None,
            latest_run=self._table.latest_run(thread_id),
            latest_started_run=self._table.latest_run(thread_id, started=True),
        )

    async def load_thread(self, thread_id: str) -> Thread | None:
        """Return one thread."""
        await self._place.turn()
        return self._table.threads.get(thread_id)

    async def save_thread(self, thread: Thread) -> None:
        """Store a thread as given but for `message_count`."""
        await self._place.turn()
        ancestor = thread.parent_thread_id
        while ancestor is not None:
            if ancestor == thread.id:
                raise InvalidRecord(f"thread {thread.id!r} would be its own ancestor", value=thread.id)
            above = self._table.threads.get(ancestor)
            if above is None:
                raise UnknownThread(f"no thread {ancestor!r}, the parent of another", value=ancestor)
            ancestor = above.parent_thread_id
        before = self._table.threads.get(thread.id)
        count = before.message_count if before else 0
        self._table.put_thread(replace(thread, message_count=count, custom=deepcopy(thread.custom)))

    async def delete_thread(
        self, thread_id: str, *, children: Literal["detach", "reject", "cascade"] = "detach"
    ) -> bool:
        """Remove a thread with its messages and runs; False when there is none."""
        await self._place.turn()
        if thread_id not in self._table.threads:
            return False
        below = self._table.children(thread_id)
        if below and children == "reject":
            raise InvalidRecord(f"thread {thread_id!r} has children", value=thread_id)
        gone = [thread_id]
        if children == "cascade":
            for one in gone:
                gone.extend(self._table.children(one))
        else:
            for one in below:
                self._table.put_thread(replace(self._table.threads[one], parent_thread_id=None))
        for one in gone:
            self._table.drop_thread(one)
        return True

    async def list_threads(self, query: ThreadQuery) -> tuple[Thread, ...]:
        """Return threads by id."""
        await self._place.turn()
        return tuple(islice(self._table.found_threads(query), page(query.limit)))

    async def create_run(self, run: RunRecord) -> None:
        """Store a new run and move its thread's pointers; a missing thread is made."""
        now = await self._place.turn()
        if run.run_id in self._table.runs:
            raise DuplicateRecord(f"run {run.run_id!r} exists", value=run.run_id)
        thread = self._table.threads.get(run.thread_id) or new_thread(run.thread_id, now)
        own = own_copy(run)
        self._table.put_thread(thread.after(run))
        self._table.put_run(own)

    async def load_run(self, run_id: str) -> RunRecord | None:
        """Return one run."""
        await self._place.turn()
        return self._table.runs.get(run_id)

    async def latest_run(self, thread_id: str) -> RunRecord | None:
        """Return the thread's run with the newest `updated_at`, then the newest `created_at`."""
        await self._place.turn()
        return self._table.latest_run(thread_id)

    async def latest_runs(self, thread_id: str, *, limit: int = MAX_PAGE) -> tuple[RunRecord, ...]:
        """Return the thread's newest runs, in the order in which `latest_run` finds them."""
        await self._place.turn()
        return self._table.latest_runs(thread_id, page(limit))

    async def list_runs(self, query: RunQuery) -> tuple[RunRecord, ...]:
        """Return runs by run id."""
        await self._place.turn()
        return tuple(
            self._table.runs[one] for one in islice(self._table.found_runs(query), page(query.limit))
        )

    async def load_messages(self, thread_id: str) -> tuple[Message, ...] | None:
        """Return all committed messages in order; None when the thread is not known."""
        await self._place.turn()
        if thread_id not in self._table.threads:
            return None
        return tuple(record.message for record in self._log(thread_id).records)

    async def load_message_records(
        self, thread_id: str, message_ids: Sequence[str]
    ) -> tuple[MessageRecord, ...]:
        """Return those committed messages, in the order of the thread; unknown ones are left out."""
        await self._place.turn()
        return tuple(self._log(thread_id).named(message_ids))

    async def list_message_records(self, thread_id: str, query: MessageQuery) -> tuple[MessageRecord, ...]:
        """Return committed messages in order of `seq`."""
        await self._place.turn()
        return tuple(islice(self._log(thread_id).found(query), page(query.limit)))

    async def delete_messages(self, thread_id: str) -> int:
        """Remove a thread's committed messages; numbering goes on, and `message_count` with it."""
        await self._place.turn()
        log = self._table.logs.pop(thread_id, None)
        return len(log.records) if log else 0

    async def load_thread_state(self, thread_id: str) -> dict[str, Json] | None:
        """Return a copy of what executors keep for the thread."""
        await self._place.turn()
        return deepcopy(self._table.states.get(thread_id))

    async def spending(self, scopes: Sequence[str]) -> dict[str, Spending]:
        """Return what each scope has spent so far."""
        await self._place.turn()
        return {scope: self._table.spent.get(scope, Spending(scope=scope)) for scope in scopes}

    async def pending_messages(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return what waits to be read, in order."""
        await self._place.turn()
        return self._table.pending.of(thread_id)

    async def threads_with_pending(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads on which something waits to be read, by id."""
        await self._place.turn()
        return tuple(islice(self._table.pending.threads.behind(after), page(limit)))

    async def append_pending(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, *, now: int | None = None
    ) -> tuple[PendingMessage, ...]:
        """Add messages behind those that wait; a missing thread is made."""
        at = await self._place.turn(now)
        self._table.pending.refuse_append(thread_id, messages)
        if thread_id not in self._table.threads:
            self._table.put_thread(new_thread(thread_id, at))
        return self._table.pending.append(thread_id, messages, mode, at)

    async def edit_pending(
        self,
        thread_id: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        now: int | None = None,
    ) -> PendingMessage:
        """Replace a pending message under its id and raise its revision."""
        at = await self._place.turn(now)
        return self._table.pending.edit(thread_id, message, expected_revision, at)

    async def retract_pending(
        self, thread_id: str, pending_id: str, *, expected_revision: int | None = None
    ) -> PendingMessage:
        """Take back a pending message."""
        await self._place.turn()
        return self._table.pending.retract(thread_id, pending_id, expected_revision)

    async def reorder_pending(
        self, thread_id: str, order: Sequence[str], *, expected: Sequence[PendingVersion] | None = None
    ) -> tuple[PendingMessage, ...]:
        """Put the pending messages into this order; all of them must be named."""
        await self._place.turn()
        return self._table.pending.reorder(thread_id, order, expected)

    def _log(self, thread_id: str) -> Log:
        return self._table.logs.get(thread_id) or Log()


def new_thread(thread_id: str, now: int, parent_thread_id: str | None = None) -> Thread:
    """Return a thread as it is before anything was said."""
    return Thread(id=thread_id, parent_thread_id=parent_thread_id, created_at=now, updated_at=now)
