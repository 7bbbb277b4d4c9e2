"""The ports that runs are kept behind.

No port is shaped by one engine: each method is one step that is done whole or not at all, takes plain values,
and is safe to repeat when its answer was lost.

A method that reads the time takes `now`, in milliseconds since the epoch; without one it uses the store's own
clock (on PostgreSQL the database's). Absence is None for a look-up and an error for a command.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from postroom.contracts.budgets import Spending
from postroom.contracts.clock import Clock
from postroom.contracts.dispatch import Claim, Interrupt, RunDispatch, RunDispatchResult, RunDispatchStatus
from postroom.contracts.errors import InvalidRecord
from postroom.contracts.events import CanonicalEvent, CanonicalEventDraft, EventStore
from postroom.contracts.messages import (
    DeliveryMode,
    Json,
    Message,
    MessageRecord,
    PendingMessage,
    PendingVersion,
    Visibility,
)
from postroom.contracts.outbox import OutboxDraft, OutboxMessage, OutboxStore
from postroom.contracts.records import Record
from postroom.contracts.runs import RunRecord, RunStatus, Thread

if TYPE_CHECKING:
    from postroom.contracts.transactions import Store

MAX_PAGE = 200
"""No listing returns more than this at once."""

FAMILIES = "threads"
"""The lock of whoever changes which thread is whose parent."""


def thread_lock(thread_id: str) -> str:
    """Return the name by which a thread is locked: its queue, its messages and its log."""
    return f"thread:{thread_id}"  # the key of `EventScope.thread`


class DispatchStore(Protocol):
    """The queue: one dispatch of a thread is claimed at a time, on all machines together."""

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes; two ports with one identity can share a transaction."""
        ...

    async def enqueue(self, dispatch: RunDispatch, *, now: int | None = None) -> RunDispatch:
        """Store a queued dispatch with its thread's current epoch and return it as it is stored.

        Raises:
            InvalidRecord: it is not Queued.
            DuplicateRecord: a dispatch with this id exists, whatever its state; it is unchanged.
            DedupeKeyInUse: an open dispatch of the thread has its dedupe key.
            RunNotOpen: the run has an open dispatch; there is one at a time.
        """
        ...

    async def claim(
        self, thread_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Own the thread's next due dispatch: lowest priority number first, then oldest, then by id.

        None when the thread has a claimed one, or none that is due (`available_at <= now`). Queued rows of
        an older epoch become Superseded on the way. A fresh token each time.
        """
        ...

    async def claim_dispatch(
        self, dispatch_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Own this dispatch, due or not.

        None when it is not Queued, is of an older epoch (it becomes Superseded), or the thread has a claimed
        one.
        """
        ...

    async def record_dispatch_start(
        self, claim: Claim, instance_id: str, *, now: int | None = None
    ) -> RunDispatch:
        """Record that the execution begins.

        Raises:
            StaleClaim: the claim was lost. A row whose epoch is older than the thread's becomes Superseded.
            UnknownDispatch: there is no such dispatch.
        """
        ...

    async def record_run_result(
        self, claim: Claim, result: RunDispatchResult, *, now: int | None = None
    ) -> RunDispatch:
        """Record how the execution ended; the row stays Claimed.

        Raises:
            InvalidRecord: the result is another run's.
            StaleClaim, UnknownDispatch: as for `record_dispatch_start`.
        """
        ...

    async def ack(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Record that it is consumed.

        Raises:
            StaleClaim, UnknownDispatch: as for `record_dispatch_start`.
        """
        ...

    async def nack(
        self, claim: Claim, *, error: str, delay_ms: int = 0, now: int | None = None
    ) -> RunDispatch:
        """Give it back, due after `delay_ms`; at the last attempt it becomes a dead letter.

        Raises:
            StaleClaim, UnknownDispatch: as for `record_dispatch_start`.
        """
        ...

    async def release(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Give it back, due at once, without an attempt counted.

        Raises:
            StaleClaim, UnknownDispatch: as for `record_dispatch_start`.
        """
        ...

    async def dead_letter(self, claim: Claim, *, error: str, now: int | None = None) -> RunDispatch:
        """Give it up.

        Raises:
            StaleClaim, UnknownDispatch: as for `record_dispatch_start`.
        """
        ...

    async def extend_lease(self, claim: Claim, *, extension_ms: int, now: int | None = None) -> bool:
        """Own it until `now + extension_ms`; False when the claim was lost.

        A row of an older epoch becomes Superseded.
        """
        ...

    async def cancel(self, dispatch_id: str, *, now: int | None = None) -> RunDispatch | None:
        """Withdraw a queued dispatch; None when it is not queued."""
        ...

    async def interrupt(self, thread_id: str, *, now: int | None = None) -> Interrupt:
        """Raise the thread's epoch and supersede all that is queued; the claimed one is stale then."""
        ...

    async def current_dispatch_epoch(self, thread_id: str) -> int:
        """Return the thread's epoch: 0 at first, and never lower than it was."""
        ...

    async def supersede_claimed(
        self, claim: Claim, *, reason: str, now: int | None = None
    ) -> RunDispatch | None:
        """End a claimed dispatch as superseded; None when it is not Claimed any more.

        Raises:
            StaleClaim: another owns it.
        """
        ...

    async def reclaim_expired_leases(
        self, *, limit: int = 100, now: int | None = None
    ) -> tuple[RunDispatch, ...]:
        """Take back what was owned until before `now`: queued again, or dead letters at the last attempt.

        Each row is returned to one caller. Rows of an older epoch become Superseded and are not returned.
        """
        ...

    async def load_dispatch(self, dispatch_id: str) -> RunDispatch | None:
        """Return one dispatch."""
        ...

    async def list_dispatches(
        self,
        thread_id: str,
        statuses: Collection[RunDispatchStatus] | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[RunDispatch, ...]:
        """Return a thread's dispatches by priority, then age, then id."""
        ...

    async def claimed_dispatch(self, thread_id: str) -> RunDispatch | None:
        """Return the thread's claimed dispatch."""
        ...

    async def list_by_status(
        self, status: RunDispatchStatus, *, limit: int = 100, after: tuple[int, str] | None = None
    ) -> tuple[RunDispatch, ...]:
        """Return dispatches of all threads, by last change then id, behind `after` (`updated_at`, id)."""
        ...

    async def unreconciled_dispatches(self, *, limit: int = 100) -> tuple[RunDispatch, ...]:
        """Return ended dispatches whose runs were not told yet, oldest first."""
        ...

    async def mark_reconciled(self, dispatch_ids: Sequence[str]) -> None:
        """Record that the runs of these were told; harmless when repeated."""
        ...

    async def due_thread_ids(self, *, limit: int = 100, now: int | None = None) -> tuple[str, ...]:
        """Return threads that have a due dispatch and no claimed one, the most urgent first."""
        ...

    async def next_due_at(self) -> int | None:
        """Return when the next dispatch of a thread without a claimed one is due; 0 for at once."""
        ...

    async def queued_thread_ids(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads that have queued dispatches, by id."""
        ...

    async def count_queued(self, thread_id: str, *, at_most: int) -> int:
        """Count a thread's queued dispatches, no further than `at_most`."""
        ...

    async def count_by_status(self) -> dict[RunDispatchStatus, int]:
        """Count all dispatches; for gauges, at long intervals."""
        ...

    async def discard(self, dispatch_id: str) -> RunDispatch | None:
        """Remove a dead letter for good; None when it is none."""
        ...

    async def purge_terminal(self, *, older_than: int, dead_letters_older_than: int | None = None) -> int:
        """Remove ended rows last changed before `older_than` and return how many; epochs stay.

        Dead letters are kept until `dead_letters_older_than`, where it is given. A row whose run was not
        told yet stays.
        """
        ...


class SubmissionFacts(Record, frozen=True, kw_only=True):
    """What a submission is decided on, seen in one consistent view."""

    thread: Thread | None
    message_count: int = 0
    pending: tuple[PendingMessage, ...] = ()
    named_run: RunRecord | None = None
    """The run that the submission names."""
    open_run: RunRecord | None = None
    """The run that `thread.open_run_id` points to."""
    latest_run: RunRecord | None = None
    latest_started_run: RunRecord | None = None
    """The newest run that was ever past `created`; a new one inherits its agent and state."""
    claimed: str | None = None
    """The thread's claimed dispatch."""
    queued: int = 0
    """How many dispatches wait on it, counted as far as was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadQuery:
    """Which threads; `parent_thread_id` "" means those without a parent."""

    resource_id: str | None = None
    parent_thread_id: str | None = None
    id_prefix: str = ""
    after: str = ""
    limit: int = MAX_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Which runs, by run id; `after` is the last run id seen."""

    thread_id: str | None = None
    statuses: tuple[RunStatus, ...] = ()
    id_prefix: str = ""
    after: str = ""
    limit: int = MAX_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """Which committed messages; `after` and `before` are exclusive bounds of `seq`."""

    visibility: Visibility | None = None
    run_id: str | None = None
    after: int = 0
    before: int | None = None
    newest_first: bool = False
    limit: int = MAX_PAGE


class ThreadStore(Protocol):
    """Threads, runs, and messages committed and pending. Messages and runs change through commits alone."""

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        ...

    async def submission_facts(self, thread_id: str, run_id: str | None = None) -> SubmissionFacts:
        """Return what a submission to the thread is decided on."""
        ...

    async def load_thread(self, thread_id: str) -> Thread | None:
        """Return one thread."""
        ...

    async def save_thread(self, thread: Thread) -> None:
        """Store a thread as given but for `message_count`, which is counted by the store.

        Raises:
            UnknownThread: its parent does not exist.
            InvalidRecord: it would be its own ancestor.
        """
        ...

    async def delete_thread(
        self, thread_id: str, *, children: Literal["detach", "reject", "cascade"] = "detach"
    ) -> bool:
        """Remove a thread with its messages and runs; False when there is none.

        Raises:
            InvalidRecord: it has children and they are to prevent it.
        """
        ...

    async def list_threads(self, query: ThreadQuery) -> tuple[Thread, ...]:
        """Return threads by id."""
        ...

    async def create_run(self, run: RunRecord) -> None:
        """Store a new run and move its thread's pointers.

        Raises:
            DuplicateRecord: a run with this id exists.
        """
        ...

    async def load_run(self, run_id: str) -> RunRecord | None:
        """Return one run."""
        ...

    async def latest_run(self, thread_id: str) -> RunRecord | None:
        """Return the thread's run with the newest `updated_at`, then the newest `created_at`."""
        ...

    async def latest_runs(self, thread_id: str, *, limit: int = MAX_PAGE) -> tuple[RunRecord, ...]:
        """Return the thread's newest runs, in the order in which `latest_run` finds them."""
        ...

    async def list_runs(self, query: RunQuery) -> tuple[RunRecord, ...]:
        """Return runs by run id; a query for open statuses costs what is open, not what ever was."""
        ...

    async def load_messages(self, thread_id: str) -> tuple[Message, ...] | None:
        """Return all committed messages in order; None when the thread is not known."""
        ...

    async def load_message_records(
        self, thread_id: str, message_ids: Sequence[str]
    ) -> tuple[MessageRecord, ...]:
        """Return those committed messages, in the order of the thread; unknown ones are left out."""
        ...

    async def list_message_records(self, thread_id: str, query: MessageQuery) -> tuple[MessageRecord, ...]:
        """Return committed messages in order of `seq`."""
        ...

    async def delete_messages(self, thread_id: str) -> int:
        """Remove a thread's committed messages, as a person may ask for; numbering goes on, never back."""
        ...

    async def load_thread_state(self, thread_id: str) -> dict[str, Json] | None:
        """Return what executors keep for the thread."""
        ...

    async def spending(self, scopes: Sequence[str]) -> dict[str, Spending]:
        """Return what each scope has spent so far; one that never spent is there with nothing."""
        ...

    async def pending_messages(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return what waits to be read, in order."""
        ...

    async def threads_with_pending(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads on which something waits to be read, by id."""
        ...

    async def append_pending(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, *, now: int | None = None
    ) -> tuple[PendingMessage, ...]:
        """Add messages behind those that wait.

        Raises:
            DuplicateRecord: one of the ids waits or is committed already.
        """
        ...

    async def edit_pending(
        self,
        thread_id: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        now: int | None = None,
    ) -> PendingMessage:
        """Replace a pending message under its id and raise its revision.

        Raises:
            AlreadyConsumed: a run has read it.
            UnknownMessage: there is no such message.
            VersionConflict: it was edited since it was looked at.
        """
        ...

    async def retract_pending(
        self, thread_id: str, pending_id: str, *, expected_revision: int | None = None
    ) -> PendingMessage:
        """Take back a pending message.

        Raises:
            AlreadyConsumed, UnknownMessage, VersionConflict: as for `edit_pending`.
        """
        ...

    async def reorder_pending(
        self, thread_id: str, order: Sequence[str], *, expected: Sequence[PendingVersion] | None = None
    ) -> tuple[PendingMessage, ...]:
        """Put the pending messages into this order; all of them must be named.

        Raises:
            VersionConflict: they are not those that were looked at.
            InvalidRecord: the order names others than wait.
        """
        ...


class ClaimRequest(Record, frozen=True, kw_only=True):
    """Who wants to own a dispatch that is being enqueued, and for how long."""

    consumer: str
    lease_ms: int


class Delivery(Record, frozen=True, kw_only=True):
    """The queue's part of a commit: one dispatch, perhaps in place of what was queued, perhaps owned at once.

    With `interrupt` the thread must have no claimed dispatch, else the commit is refused. With `claim` the
    thread's next due dispatch is claimed when none is, as `DispatchStore.claim` would right after; it may be
    an older one than this. With `claim_needed` it must be this one, as `claim_dispatch` would, else the
    commit is refused. With `when_idle` nothing of the thread may be queued or claimed, else it is refused.
    `queue_cap` is how many may wait on the thread at most, this one included.
    """

    dispatch: RunDispatch
    interrupt: bool = False
    claim: ClaimRequest | None = None
    claim_needed: bool = False
    when_idle: bool = False
    queue_cap: int | None = None


class ThreadCommit(Record, frozen=True, kw_only=True):
    """All that one step writes to a thread; it is written whole or not at all.

    `messages` are appended behind exactly `expected_message_count` messages (None: wherever the thread ends)
    and `consumes` leaves the pending zone, both compared. With `claim` the writer proves that it still owns
    the run's dispatch; while it does, nobody else writes the run. With `joins` a dispatch is named that must
    still be queued: its run is given more to read. With `replaces` the run must still be as it was seen.
    """

    thread_id: str
    messages: tuple[Message, ...] = ()
    expected_message_count: int | None = None
    consumes: tuple[PendingVersion, ...] = ()
    run: RunRecord | None = None
    replaces: RunRecord | None = None
    parent_thread_id: str | None = None
    thread_state: dict[str, Json] | None = None
    claim: Claim | None = None
    joins: str | None = None
    events: tuple[CanonicalEventDraft, ...] = ()
    outbox: tuple[OutboxDraft, ...] = ()
    spends: tuple[Spending, ...] = ()
    """Added to what their scopes have spent."""
    begins: str | None = None
    """The instance id of an execution that begins: recorded on the dispatch that `claim` owns, or on the one
    of a delivery whose claim is needed."""
    ends: RunDispatchResult | None = None
    """How an execution ended: recorded on the dispatch that `claim` owns, which is acked with it."""
    delivery: Delivery | None = None

    @property
    def locks(self) -> set[str]:
        """What is locked before it is written: the thread, its parent, and what events and effects name."""
        threads = [self.thread_id, *([self.parent_thread_id] if self.parent_thread_id else [])]
        drafts = [draft.locks for draft in self.events] + [draft.locks for draft in self.outbox]
        return set(map(thread_lock, threads)).union(*drafts)

    def moved(self, owned: RunDispatch, *, now: int) -> RunDispatch | None:
        """Return the dispatch that `claim` owns as this commit leaves it; None where it does not move it.

        Raises:
            InvalidRecord: the result is another run's.
        """
        if self.begins is not None:
            owned = owned.record_dispatch_start(self.begins, now=now)
        if self.ends is not None:
            return owned.record_run_result(self.ends, now=now).acked(now=now)
        return None if self.begins is None else owned

    def refuse_unclaimed_move(self) -> None:
        """Refuse to begin or end an execution that nobody proves to be theirs, or beside another's delivery.

        Raises:
            InvalidRecord: as said.
        """
        if self.begins is None and self.ends is None:
            return
        delivery = self.delivery
        if self.claim is not None and delivery is not None:
            raise InvalidRecord("a commit that begins or ends an execution delivers no other")
        begins_its = delivery is not None and delivery.claim is not None and delivery.claim_needed
        if self.claim is None and (self.ends is not None or not begins_its):
            raise InvalidRecord("a commit that begins or ends an execution names its claim")


class Committed(Record, frozen=True, kw_only=True):
    """What a commit wrote."""

    message_count: int
    events: tuple[CanonicalEvent, ...] = ()
    outbox: tuple[OutboxMessage, ...] = ()
    dispatch: RunDispatch | None = None
    """The dispatch that was enqueued, or whose execution begins or has ended, as it is stored now."""
    claimed: RunDispatch | None = None
    """The dispatch that the caller owns now; it may be an older one of the thread."""
    interrupt: Interrupt | None = None
    leaves_queued: bool = False
    """Whether dispatches wait on the thread when an execution has ended; told of commits that end one."""
    leaves_waiting: bool = False
    """Whether messages wait on it then."""


class CommitCoordinator(Protocol):
    """Writes a step of a thread in one transaction."""

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        ...

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        """Write it.

        Raises:
            VersionConflict: the message count, a pending message or the joined one differs.
            InvalidRecord, IllegalTransition, ForeignThread: the messages, the run or the result break a rule.
            DuplicateRecord: one of the message ids is committed already, or the dispatch exists.
            DedupeKeyInUse, RunNotOpen, QueueFull: the dispatch cannot be queued.
            ActiveRunConflict: an interrupt or a claim that is needed met a claimed dispatch, or the thread
                was to be idle and is not.
            StaleClaim: the writer lost its dispatch.
            UnknownThread: the parent thread does not exist; or the thread of a claim was removed meanwhile.
            StoreError: nothing was written; after CommitUnknown it may have been.
        """
        ...


class Wakeups(Protocol):
    """Hints that there may be work. Losing one costs latency, never correctness."""

    async def wait(self, timeout_ms: int) -> None:
        """Return when something was enqueued or released since the last call, or the time is up."""
        ...


class RunStores(Protocol):
    """The stores of one place, which share transactions."""

    @property
    def store(self) -> "Store":
        """The transactions that the ports below are made of."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock that the stores go by."""
        ...

    @property
    def dispatches(self) -> DispatchStore:
        """The queue."""
        ...

    @property
    def threads(self) -> ThreadStore:
        """Threads, runs and messages."""
        ...

    @property
    def events(self) -> EventStore:
        """The log."""
        ...

    @property
    def outbox(self) -> OutboxStore:
        """Effects that wait."""
        ...

    @property
    def coordinator(self) -> CommitCoordinator:
        """Writes over all of them in one transaction."""
        ...

    @property
    def wakeups(self) -> Wakeups:
        """Hints that there may be work."""
        ...
