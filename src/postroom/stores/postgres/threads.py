"""Threads, runs and messages on PostgreSQL."""

from collections.abc import Sequence
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
from postroom.contracts.runs import RunRecord, RunStatus, Thread
from postroom.stores.codec import decode_json
from postroom.stores.postgres import pending, rows
from postroom.stores.postgres.driver import Connection
from postroom.stores.postgres.place import Place, page
from postroom.stores.postgres.statements import load_statements

_SQL = load_statements("threads")
_LAST = chr(0x10FFFF)
_NEWEST = 2**63 - 1
_THREAD_COLUMNS = 12


class PostgresThreadStore:
    """Threads, runs and messages in one schema, for many processes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._database = place.database

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def submission_facts(self, thread_id: str, run_id: str | None = None) -> SubmissionFacts:
        """Return what a submission to the thread is decided on, in one view."""
        [row] = await self._database.read(_SQL["facts"], thread_id, run_id)
        thread = None if row[0] is None else rows.thread(row)
        named, opened, latest_id, latest, started_id, started, *waiting = tuple(row)[_THREAD_COLUMNS:]
        columns = [column or [] for column in waiting]
        there = [(thread_id, *values) for values in zip(*columns, strict=True)]
        return SubmissionFacts(
            thread=thread,
            message_count=thread.message_count if thread else 0,
            pending=tuple(rows.pending(values, position) for position, values in enumerate(there, start=1)),
            named_run=_run(run_id, named),
            open_run=_run(thread.open_run_id if thread else None, opened),
            latest_run=_run(latest_id, latest),
            latest_started_run=_run(started_id, started),
        )

    async def load_thread(self, thread_id: str) -> Thread | None:
        """Return one thread."""
        found = await self._database.first(_SQL["load"], thread_id)
        return None if found is None else rows.thread(found)

    async def save_thread(self, thread: Thread) -> None:
        """Store a thread as given but for `message_count`, which is counted by the store."""

        async def save(session: Connection) -> None:
            parent = thread.parent_thread_id
            if parent is not None:
                # Two threads that become each other's parents at once lock different rows.
                await session.rows(_SQL["lock_lineage"])
                above = [row[0] for row in await session.rows(_SQL["lineage"], parent)]
                if thread.id in above:
                    raise InvalidRecord(f"thread {thread.id!r} would be its own ancestor", value=thread.id)
                if not above:
                    raise UnknownThread(f"no thread {parent!r}, the parent of another", value=parent)
            await pending.lock_thread(session, thread.id, None)
            await session.rows(_SQL["save"], *_columns(thread))

        await self._database.transact(save)

    async def delete_thread(
        self, thread_id: str, *, children: Literal["detach", "reject", "cascade"] = "detach"
    ) -> bool:
        """Remove a thread with its messages and runs; False when there is none."""

        async def delete(session: Connection) -> bool:
            await session.rows(_SQL["lock_lineage"])
            gone = [thread_id]
            if children == "cascade":
                gone = [row[0] for row in await session.rows(_SQL["descendants"], thread_id)]
            await session.rows(_SQL["lock_several"], gone)
            if not await session.rows(_SQL["load"], thread_id):
                return False
            if children == "reject" and await session.rows(_SQL["children"], thread_id):
                raise InvalidRecord(f"thread {thread_id!r} has children", value=thread_id)
            if children == "detach":
                await session.rows(_SQL["detach"], thread_id)
            await session.rows(_SQL["drop"], gone)
            return True

        return await self._database.transact(delete)

    async def list_threads(self, query: ThreadQuery) -> tuple[Thread, ...]:
        """Return threads by id."""
        bounds = _bounds(query.after, query.id_prefix, query.limit)
        resource = query.resource_id
        if query.parent_thread_id == "":
            found = await self._database.read(_SQL["list_roots"], *bounds, resource)
        elif query.parent_thread_id is not None:
            found = await self._database.read(
                _SQL["list_children"], *bounds, query.parent_thread_id, resource
            )
        elif resource is not None:
            found = await self._database.read(_SQL["list_of_resource"], *bounds, resource)
        else:
            found = await self._database.read(_SQL["list"], *bounds)
        return tuple(await self._place.readable("thread", found, rows.thread))

    async def create_run(self, run: RunRecord) -> None:
        """Store a new run and move its thread's pointers; a missing thread is made."""

        async def create(session: Connection) -> None:
            now = await pending.lock_thread(session, run.thread_id, self._place.at(None))
            if not await session.rows(_SQL["create_run"], *run_columns(run)):
                raise DuplicateRecord(f"run {run.run_id!r} exists", value=run.run_id)
            await session.rows(_SQL["make"], run.thread_id, now)
            [found] = await session.rows(_SQL["load"], run.thread_id)
            await session.rows(_SQL["point"], run.thread_id, *pointers(rows.thread(found).after(run)))

        await self._database.transact(create)

    async def load_run(self, run_id: str) -> RunRecord | None:
        """Return one run.

        Raises:
            StoreCorrupt: its row does not read back.
        """
        found = await self._database.first(_SQL["load_run"], run_id)
        return None if found is None else rows.run(found)

    async def latest_run(self, thread_id: str) -> RunRecord | None:
        """Return the thread's run with the newest `updated_at`, then the newest `created_at`."""
        found = await self._database.first(_SQL["latest_run"], thread_id)
        return None if found is None else rows.run(found)

    async def latest_runs(self, thread_id: str, *, limit: int = MAX_PAGE) -> tuple[RunRecord, ...]:
        """Return the thread's newest runs, in the order in which `latest_run` finds them."""
        found = await self._database.read(_SQL["latest_runs"], thread_id, page(limit))
        return tuple(await self._place.readable("run", found, rows.run))

    async def list_runs(self, query: RunQuery) -> tuple[RunRecord, ...]:
        """Return runs by run id; a query for open statuses costs what is open, not what ever was."""
        statuses = query.statuses or tuple(RunStatus)
        name = "runs" if RunStatus.DONE in statuses else "runs_open"
        values: tuple[object, ...] = (
            *_bounds(query.after, query.id_prefix, query.limit),
            [status.value for status in statuses],
        )
        if query.thread_id is not None:
            name, values = f"{name}_of_thread", (*values, query.thread_id)
        found = await self._database.read(_SQL[name], *values)
        return tuple(await self._place.readable("run", found, rows.run))

    async def load_messages(self, thread_id: str) -> tuple[Message, ...] | None:
        """Return all committed messages in order; None when the thread is not known."""
        found = await self._database.read(_SQL["messages"], thread_id)
        if not found:
            return None
        return tuple(rows.message(row).message for row in found if row[1] is not None)

    async def load_message_records(
        self, thread_id: str, message_ids: Sequence[str]
    ) -> tuple[MessageRecord, ...]:
        """Return those committed messages, in the order of the thread; unknown ones are left out."""
        found = await self._database.read(_SQL["messages_named"], thread_id, list(message_ids))
        return tuple(rows.message(row) for row in found)

    async def list_message_records(self, thread_id: str, query: MessageQuery) -> tuple[MessageRecord, ...]:
        """Return committed messages in order of `seq`."""
        name = "messages_of_run" if query.run_id is not None else "messages"
        values: tuple[object, ...] = (
            thread_id,
            query.after,
            _NEWEST if query.before is None else query.before,
            page(query.limit),
            query.visibility and query.visibility.value,
        )
        if query.run_id is not None:
            values = (*values, query.run_id)
        direction = "back" if query.newest_first else "from"
        found = await self._database.read(_SQL[f"{name}_{direction}"], *values)
        return tuple(rows.message(row) for row in found)

    async def delete_messages(self, thread_id: str) -> int:
        """Remove a thread's committed messages; numbering goes on, and `message_count` with it."""

        async def delete(session: Connection) -> int:
            await pending.lock_thread(session, thread_id, None)
            return len(await session.rows(_SQL["delete_messages"], thread_id))

        return await self._database.transact(delete)

    async def load_thread_state(self, thread_id: str) -> dict[str, Json] | None:
        """Return what executors keep for the thread."""
        found = await self._database.first(_SQL["state"], thread_id)
        where = f"state of thread {thread_id!r}"
        return None if found is None else decode_json(found[0], where=where)

    async def spending(self, scopes: Sequence[str]) -> dict[str, Spending]:
        """Return what each scope has spent so far."""
        found = await self._database.read(_SQL["spending"], list(scopes))
        spent = {row[0]: Spending(**dict(zip(Spending.__slots__, row, strict=True))) for row in found}
        return {scope: spent.get(scope) or Spending(scope=scope) for scope in scopes}

    async def pending_messages(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return what waits to be read, in order."""
        found = await self._database.read(_SQL["pending"], thread_id)
        return tuple(rows.pending(row, position) for position, row in enumerate(found, start=1))

    async def threads_with_pending(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads on which something waits to be read, by id."""
        found = await self._database.read(_SQL["pending_threads"], after, page(limit))
        return tuple(row[0] for row in found)

    async def append_pending(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, *, now: int | None = None
    ) -> tuple[PendingMessage, ...]:
        """Add messages behind those that wait; a missing thread is made."""
        at = self._place.at(now)
        return await self._database.transact(
            lambda session: pending.append(session, thread_id, messages, mode, at)
        )

    async def edit_pending(
        self,
        thread_id: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        now: int | None = None,
    ) -> PendingMessage:
        """Replace a pending message under its id and raise its revision."""
        at = self._place.at(now)
        return await self._database.transact(
            lambda session: pending.edit(session, thread_id, message, expected_revision, at)
        )

    async def retract_pending(
        self, thread_id: str, pending_id: str, *, expected_revision: int | None = None
    ) -> PendingMessage:
        """Take back a pending message."""
        return await self._database.transact(
            lambda session: pending.retract(session, thread_id, pending_id, expected_revision)
        )

    async def reorder_pending(
        self, thread_id: str, order: Sequence[str], *, expected: Sequence[PendingVersion] | None = None
    ) -> tuple[PendingMessage, ...]:
        """Put the pending messages into this order; all of them must be named."""
        return await self._database.transact(
            lambda session: pending.reorder(session, thread_id, order, expected)
        )


def new_thread(thread_id: str, now: int, parent_thread_id: str | None = None) -> Thread:
    """Return a thread as it is before anything was said."""
    return Thread(id=thread_id, parent_thread_id=parent_thread_id, created_at=now, updated_at=now)


def run_columns(run: RunRecord) -> tuple[object, ...]:
    """Return a run as the columns of its table."""
    return run.run_id, run.thread_id, run.status.value, run.created_at, run.updated_at, rows.body(run)


def pointers(thread: Thread) -> tuple[object, ...]:
    """Return what a run moves in its thread."""
    return (
        thread.active_run_id,
        thread.open_run_id,
        thread.latest_run_id,
        thread.latest_run_updated_at,
        thread.updated_at,
    )


def _columns(thread: Thread) -> tuple[object, ...]:
    *moved, updated_at = pointers(thread)
    said = rows.kept(thread.title), thread.resource_id, thread.parent_thread_id, rows.body(thread.custom)
    return thread.id, *said, *moved, thread.created_at, updated_at


def _run(run_id: str | None, body: str | None) -> RunRecord | None:
    return None if body is None else rows.run((run_id, body))


def _bounds(after: str, prefix: str, limit: int) -> tuple[object, ...]:
    """Return the bounds of a listing by id: behind, from, before, and how many."""
    return after, prefix, prefix + _LAST + _LAST, page(limit)
