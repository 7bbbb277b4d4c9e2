"""The ports of runs over a store: each method is a look or a change, with the locks that it needs."""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Final, Literal, Protocol, Self, TypeVar

from typing_extensions import override

from postroom.contracts.budgets import Spending
from postroom.contracts.dispatch import Claim, Interrupt, RunDispatch, RunDispatchResult, RunDispatchStatus
from postroom.contracts.errors import StaleClaim, UnknownDispatch
from postroom.contracts.events import CanonicalEvent, CanonicalEventDraft, EventPage, EventScope, EventStore
from postroom.contracts.messages import (
    DeliveryMode,
    Json,
    Message,
    MessageRecord,
    PendingMessage,
    PendingVersion,
)
from postroom.contracts.outbox import (
    NackOutcome,
    OutboxDraft,
    OutboxMessage,
    OutboxStatus,
    OutboxStore,
    line_lock,
)
from postroom.contracts.run_stores import (
    FAMILIES,
    MAX_PAGE,
    ClaimRequest,
    CommitCoordinator,
    Committed,
    DispatchStore,
    MessageQuery,
    RunQuery,
    SubmissionFacts,
    ThreadCommit,
    ThreadQuery,
    ThreadStore,
    Wakeups,
    thread_lock,
)
from postroom.contracts.run_tables import RunTables
from postroom.contracts.runs import RunRecord, Thread
from postroom.contracts.transactions import WORK, Store, Transaction

T = TypeVar("T")

LOOK_AGAIN_AFTER: Final = timedelta(seconds=10)
"""When one who waits for events looks by itself: a hint may be lost."""


class _Port:
    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._store.identity


class _RunPort(_Port):
    async def _look(self, look: Callable[[RunTables], T], *, now: int | None = None) -> T:
        return await self._store.read(lambda tx: look(_at(tx.runs, now)))

    async def _change(
        self,
        thread_id: str,
        change: Callable[[RunTables], T | StaleClaim],
        *,
        now: int | None = None,
    ) -> T:
        """Run a change under the lock of its thread."""

        def locked(tx: Transaction) -> T | StaleClaim:
            tx.lock(thread_lock(thread_id))
            return change(_at(tx.runs, now))

        return await self._store.write(locked, key=thread_id)

    async def _change_of(
        self, dispatch_id: str, change: Callable[[RunTables], T | StaleClaim], *, now: int | None = None
    ) -> T:
        """Run a change of a dispatch under the lock of its thread, which it never leaves."""
        thread_id = await self._look(lambda runs: runs.dispatches.thread_of(dispatch_id))
        if thread_id is None:  # it is gone, or never was
            return await self._store.write(lambda tx: change(_at(tx.runs, now)))
        return await self._change(thread_id, change, now=now)


class SqlDispatchStore(_RunPort, DispatchStore):
    """The queue."""

    @override
    async def enqueue(self, dispatch: RunDispatch, *, now: int | None = None) -> RunDispatch:
        return await self._change(dispatch.thread_id, lambda runs: runs.dispatches.enqueue(dispatch), now=now)

    @override
    async def claim(
        self, thread_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        asks = ClaimRequest(consumer=consumer, lease_ms=lease_ms)
        return await self._change(thread_id, lambda runs: runs.dispatches.claim(thread_id, asks), now=now)

    @override
    async def claim_dispatch(
        self, dispatch_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        asks = ClaimRequest(consumer=consumer, lease_ms=lease_ms)
        return await self._change_of(
            dispatch_id, lambda runs: runs.dispatches.claim_dispatch(dispatch_id, asks), now=now
        )

    @override
    async def record_dispatch_start(
        self, claim: Claim, instance_id: str, *, now: int | None = None
    ) -> RunDispatch:
        return await self._moved(claim, lambda row, at: row.record_dispatch_start(instance_id, now=at), now)

    @override
    async def record_run_result(
        self, claim: Claim, result: RunDispatchResult, *, now: int | None = None
    ) -> RunDispatch:
        return await self._moved(claim, lambda row, at: row.record_run_result(result, now=at), now)

    @override
    async def ack(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        return await self._moved(claim, lambda row, at: row.acked(now=at), now)

    @override
    async def nack(
        self, claim: Claim, *, error: str, delay_ms: int = 0, now: int | None = None
    ) -> RunDispatch:
        return await self._moved(
            claim, lambda row, at: row.nacked(error=error, delay_ms=delay_ms, now=at), now
        )

    @override
    async def release(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        return await self._moved(claim, lambda row, at: row.released(now=at), now)

    @override
    async def dead_letter(self, claim: Claim, *, error: str, now: int | None = None) -> RunDispatch:
        return await self._moved(claim, lambda row, at: row.dead_lettered(error=error, now=at), now)

    @override
    async def extend_lease(self, claim: Claim, *, extension_ms: int, now: int | None = None) -> bool:
        try:
            await self._moved(claim, lambda row, at: row.extend_lease(extension_ms=extension_ms, now=at), now)
        except (StaleClaim, UnknownDispatch):
            return False
        return True

    async def _moved(
        self, claim: Claim, move: Callable[[RunDispatch, int], RunDispatch], now: int | None
    ) -> RunDispatch:
        return await self._change_of(
            claim.dispatch_id, lambda runs: runs.dispatches.move_owned(claim, move), now=now
        )

    @override
    async def cancel(self, dispatch_id: str, *, now: int | None = None) -> RunDispatch | None:
        return await self._change_of(dispatch_id, lambda runs: runs.dispatches.cancel(dispatch_id), now=now)

    @override
    async def interrupt(self, thread_id: str, *, now: int | None = None) -> Interrupt:
        return await self._change(thread_id, lambda runs: runs.dispatches.interrupt(thread_id), now=now)

    @override
    async def current_dispatch_epoch(self, thread_id: str) -> int:
        return await self._look(lambda runs: runs.dispatches.epoch(thread_id))

    @override
    async def supersede_claimed(
        self, claim: Claim, *, reason: str, now: int | None = None
    ) -> RunDispatch | None:
        return await self._change_of(
            claim.dispatch_id,
            lambda runs: runs.dispatches.supersede_claimed(claim, reason),
            now=now,
        )

    @override
    async def reclaim_expired_leases(
        self, *, limit: int = 100, now: int | None = None
    ) -> tuple[RunDispatch, ...]:
        taken: list[RunDispatch] = []
        while (left := limit - len(taken)) > 0:
            overdue = await self._look(lambda runs: runs.dispatches.overdue(left), now=now)
            for one in overdue:
                back = await self._change(
                    one.thread_id,
                    lambda runs: runs.dispatches.reclaim(one.dispatch_id),  # noqa: B023 - awaited at once
                    now=now,
                )
                taken += [back] if back else []
            if len(overdue) < left:
                break
        return tuple(taken)

    @override
    async def load_dispatch(self, dispatch_id: str) -> RunDispatch | None:
        return await self._look(lambda runs: runs.dispatches.load(dispatch_id))

    @override
    async def list_dispatches(
        self,
        thread_id: str,
        statuses: Collection[RunDispatchStatus] | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[RunDispatch, ...]:
        chosen = frozenset(RunDispatchStatus if statuses is None else statuses)
        return await self._look(
            lambda runs: runs.dispatches.of_thread(thread_id, chosen, limit=page(limit), offset=offset)
        )

    @override
    async def claimed_dispatch(self, thread_id: str) -> RunDispatch | None:
        return await self._look(lambda runs: runs.dispatches.claimed(thread_id))

    @override
    async def list_by_status(
        self, status: RunDispatchStatus, *, limit: int = 100, after: tuple[int, str] | None = None
    ) -> tuple[RunDispatch, ...]:
        return await self._look(
            lambda runs: runs.dispatches.by_status(status, limit=page(limit), after=after)
        )

    @override
    async def unreconciled_dispatches(self, *, limit: int = 100) -> tuple[RunDispatch, ...]:
        return await self._look(lambda runs: runs.dispatches.unreconciled(page(limit)))

    @override
    async def mark_reconciled(self, dispatch_ids: Sequence[str]) -> None:
        if named := tuple(dispatch_ids):
            await self._store.write(lambda tx: tx.runs.dispatches.mark_reconciled(named))

    @override
    async def due_thread_ids(self, *, limit: int = 100, now: int | None = None) -> tuple[str, ...]:
        return await self._look(lambda runs: runs.dispatches.due_threads(page(limit)), now=now)

    @override
    async def next_due_at(self) -> int | None:
        return await self._look(lambda runs: runs.dispatches.next_due_at())

    @override
    async def queued_thread_ids(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        return await self._look(lambda runs: runs.dispatches.queued_threads(page(limit), after))

    @override
    async def count_queued(self, thread_id: str, *, at_most: int) -> int:
        return await self._look(lambda runs: runs.dispatches.count_queued(thread_id, at_most))

    @override
    async def count_by_status(self) -> dict[RunDispatchStatus, int]:
        return await self._look(lambda runs: runs.dispatches.count_by_status())

    @override
    async def discard(self, dispatch_id: str) -> RunDispatch | None:
        return await self._change_of(dispatch_id, lambda runs: runs.dispatches.discard(dispatch_id))

    @override
    async def purge_terminal(self, *, older_than: int, dead_letters_older_than: int | None = None) -> int:
        removed = 0  # in several changes, so that a large purge keeps nobody waiting
        while gone := await self._store.write(
            lambda tx: tx.runs.dispatches.purge_some(older_than, dead_letters_older_than)
        ):
            removed += gone
        return removed


class SqlThreadStore(_RunPort, ThreadStore):
    """Threads, runs and messages."""

    @override
    async def submission_facts(self, thread_id: str, run_id: str | None = None) -> SubmissionFacts:
        return await self._look(lambda runs: runs.threads.submission_facts(thread_id, run_id))

    @override
    async def load_thread(self, thread_id: str) -> Thread | None:
        return await self._look(lambda runs: runs.threads.load(thread_id))

    @override
    async def save_thread(self, thread: Thread) -> None:
        def saved(tx: Transaction) -> None:
            named = (thread.id, thread.parent_thread_id)
            tx.lock(FAMILIES, *(thread_lock(one) for one in named if one is not None))
            tx.runs.threads.save(thread)

        await self._store.write(saved, key=thread.id)

    @override
    async def delete_thread(
        self, thread_id: str, *, children: Literal["detach", "reject", "cascade"] = "detach"
    ) -> bool:
        # Those below are looked for before: all are locked in one call.
        below = await self._look(lambda runs: runs.threads.below(thread_id))

        def deleted(tx: Transaction) -> bool:
            tx.lock(FAMILIES, thread_lock(thread_id), *map(thread_lock, below))
            return tx.runs.threads.delete(thread_id, children)

        return await self._store.write(deleted, key=thread_id)

    @override
    async def list_threads(self, query: ThreadQuery) -> tuple[Thread, ...]:
        return await self._look(lambda runs: runs.threads.list(query, page(query.limit)))

    @override
    async def create_run(self, run: RunRecord) -> None:
        await self._change(run.thread_id, lambda runs: runs.threads.create_run(run))

    @override
    async def load_run(self, run_id: str) -> RunRecord | None:
        return await self._look(lambda runs: runs.threads.load_run(run_id))

    @override
    async def latest_run(self, thread_id: str) -> RunRecord | None:
        return next(iter(await self.latest_runs(thread_id, limit=1)), None)

    @override
    async def latest_runs(self, thread_id: str, *, limit: int = MAX_PAGE) -> tuple[RunRecord, ...]:
        return await self._look(lambda runs: runs.threads.latest_runs(thread_id, page(limit)))

    @override
    async def list_runs(self, query: RunQuery) -> tuple[RunRecord, ...]:
        return await self._look(lambda runs: runs.threads.list_runs(query, page(query.limit)))

    @override
    async def load_messages(self, thread_id: str) -> tuple[Message, ...] | None:
        def look(runs: RunTables) -> tuple[Message, ...] | None:
            found = runs.messages.all(thread_id)
            return found if found or runs.threads.load(thread_id) else None

        return await self._look(look)

    @override
    async def load_message_records(
        self, thread_id: str, message_ids: Sequence[str]
    ) -> tuple[MessageRecord, ...]:
        named = tuple(message_ids)
        return await self._look(lambda runs: runs.messages.named(thread_id, named))

    @override
    async def list_message_records(self, thread_id: str, query: MessageQuery) -> tuple[MessageRecord, ...]:
        return await self._look(lambda runs: runs.messages.list(thread_id, query, page(query.limit)))

    @override
    async def delete_messages(self, thread_id: str) -> int:
        return await self._change(thread_id, lambda runs: runs.messages.delete(thread_id))

    @override
    async def load_thread_state(self, thread_id: str) -> dict[str, Json] | None:
        return await self._look(lambda runs: runs.threads.state(thread_id))

    @override
    async def spending(self, scopes: Sequence[str]) -> dict[str, Spending]:
        named = tuple(scopes)
        return await self._look(lambda runs: runs.threads.spending(named))

    @override
    async def pending_messages(self, thread_id: str) -> tuple[PendingMessage, ...]:
        return await self._look(lambda runs: runs.messages.waiting(thread_id))

    @override
    async def threads_with_pending(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        return await self._look(lambda runs: runs.messages.threads_with_waiting(page(limit), after))

    @override
    async def append_pending(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, *, now: int | None = None
    ) -> tuple[PendingMessage, ...]:
        added = tuple(messages)
        return await self._change(
            thread_id, lambda runs: runs.append_waiting(thread_id, added, mode), now=now
        )

    @override
    async def edit_pending(
        self,
        thread_id: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        now: int | None = None,
    ) -> PendingMessage:
        return await self._change(
            thread_id,
            lambda runs: runs.messages.edit_waiting(thread_id, message, expected_revision),
            now=now,
        )

    @override
    async def retract_pending(
        self, thread_id: str, pending_id: str, *, expected_revision: int | None = None
    ) -> PendingMessage:
        return await self._change(
            thread_id, lambda runs: runs.messages.retract_waiting(thread_id, pending_id, expected_revision)
        )

    @override
    async def reorder_pending(
        self, thread_id: str, order: Sequence[str], *, expected: Sequence[PendingVersion] | None = None
    ) -> tuple[PendingMessage, ...]:
        wanted = tuple(order)
        return await self._change(
            thread_id, lambda runs: runs.messages.reorder_waiting(thread_id, wanted, expected)
        )


class SqlEventStore(_Port, EventStore):
    """The log."""

    @override
    async def append(self, draft: CanonicalEventDraft, *, now: int | None = None) -> CanonicalEvent:
        def appended(tx: Transaction) -> CanonicalEvent:
            tx.lock(*draft.locks)
            [event] = tx.events.append((draft,), at=now)
            return event

        # Of its scopes the thread is what steps of runs order by too.
        key = draft.scope_id("thread") or min(draft.locks, default="")
        return await self._store.write(appended, key=key)

    @override
    async def list(self, scope: EventScope, *, after: int = 0, limit: int = 100) -> EventPage:
        return await self._store.read(lambda tx: tx.events.behind(scope.key, after, limit))

    @override
    async def load(self, event_id: str) -> CanonicalEvent | None:
        return await self._store.read(lambda tx: tx.events.load(event_id))

    @override
    async def count(self, scope: EventScope) -> int:
        return await self._store.read(lambda tx: tx.events.newest(scope.key))

    @override
    async def wait(self, scope: EventScope, *, after: int) -> None:
        with self._store.changes.listen(scope.key) as news:
            while await self.count(scope) <= after:
                await news.wait(LOOK_AGAIN_AFTER)


class SqlOutboxStore(_Port, OutboxStore):
    """The effects that wait."""

    @override
    async def enqueue(self, draft: OutboxDraft, *, now: int | None = None) -> OutboxMessage:
        def stored(tx: Transaction) -> OutboxMessage:
            tx.lock(*draft.locks)
            [effect] = _at(tx.outbox, now).enqueue((draft,))
            return effect

        return await self._store.write(stored, key=line_lock(draft.kind, draft.target))

    @override
    async def claim(
        self, kind: str, target: str, *, lease_ms: int, limit: int = 1, now: int | None = None
    ) -> tuple[OutboxMessage, ...]:
        line = line_lock(kind, target)

        def claimed(tx: Transaction) -> tuple[OutboxMessage, ...]:
            tx.lock(line)
            return _at(tx.outbox, now).claim(kind, target, lease_ms=lease_ms, limit=limit)

        return await self._store.write(claimed, key=line)

    @override
    async def ack(self, outbox_id: str, token: str, *, now: int | None = None) -> bool:
        return bool(await self._store.write(lambda tx: tx.outbox.ack([outbox_id], [token])))

    @override
    async def nack(
        self,
        outbox_id: str,
        token: str,
        *,
        error: str,
        delay_ms: int = 0,
        now: int | None = None,
        final: bool = False,
        may_have_arrived: bool = False,
    ) -> NackOutcome:
        became = await self._store.write(
            lambda tx: _at(tx.outbox, now).nack(
                [outbox_id],
                [token],
                error=error,
                delay_ms=delay_ms,
                final=final,
                may_have_arrived=may_have_arrived,
            )
        )
        if not became:
            return NackOutcome.LOST_CLAIM
        gone = became == [OutboxStatus.DEAD_LETTER]
        return NackOutcome.DEAD_LETTERED if gone else NackOutcome.REQUEUED

    @override
    async def dead_letters(
        self, *, kind: str | None = None, after: str = "", limit: int = 100
    ) -> tuple[OutboxMessage, ...]:
        return await self._store.read(
            lambda tx: tx.outbox.dead_letters(kind=kind, after=after, limit=page(limit))
        )

    @override
    async def revive(self, outbox_id: str, *, now: int | None = None) -> OutboxMessage | None:
        return await self._store.write(lambda tx: _at(tx.outbox, now).revive(outbox_id))

    @override
    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        return await self._store.write(lambda tx: tx.outbox.purge(older_than, limit))


class SqlCommitCoordinator(_Port, CommitCoordinator):
    """Writes steps of threads; a lost claim alone leaves its row Superseded."""

    @override
    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        def committed(tx: Transaction) -> Committed | StaleClaim:
            tx.lock(*commit.locks)
            return _at(tx.runs, now).commit(commit)

        return await self._store.write(committed, key=commit.thread_id)


class SqlWakeups(Wakeups):
    """Hints that there may be work, of this process and of others."""

    def __init__(self, store: Store) -> None:
        self._work = store.changes.listen(WORK)

    @override
    async def wait(self, timeout_ms: int) -> None:
        await self._work.wait(timedelta(milliseconds=max(timeout_ms, 0)))


class SqlRunStores(_Port):
    """The ports over one store."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = store
        self.clock = store.clock
        self.dispatches = SqlDispatchStore(store)
        self.threads = SqlThreadStore(store)
        self.events = SqlEventStore(store)
        self.outbox = SqlOutboxStore(store)
        self.coordinator = SqlCommitCoordinator(store)
        self.wakeups = SqlWakeups(store)


def page(limit: int) -> int:
    """Return how much a listing holds that was asked for so much."""
    return max(0, min(limit, MAX_PAGE))


class _AtAnInstant(Protocol):
    def at(self, now: int) -> Self: ...


P = TypeVar("P", bound=_AtAnInstant)


def _at(tables: P, now: int | None) -> P:
    """Return the tables as they go by an instant that was given, or by their transaction's."""
    return tables if now is None else tables.at(now)
