"""What is asked of the stores of runs, and what a commit of a thread is."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from postroom.contracts.budgets import Spending
from postroom.contracts.conversation import SummaryDraft
from postroom.contracts.dispatch import Claim, RunDispatch, RunDispatchResult
from postroom.contracts.errors import InvalidRecord
from postroom.contracts.events import CanonicalEvent, CanonicalEventDraft
from postroom.contracts.limits import LIMITS
from postroom.contracts.messages import (
    Json,
    Message,
    PendingMessage,
    PendingVersion,
    Visibility,
)
from postroom.contracts.outbox import OutboxDraft, OutboxMessage
from postroom.contracts.records import Record
from postroom.contracts.runs import RunRecord, RunStatus, Thread

MAX_PAGE = 200
"""No listing returns more than this at once."""

FAMILIES = "threads"
"""The lock of whoever changes which thread is whose parent."""


def thread_lock(thread_id: str) -> str:
    """Return the name by which a thread is locked: its queue, its messages and its log."""
    return f"thread:{thread_id}"  # the key of `EventScope.thread`


class ThreadState(Record, frozen=True, kw_only=True):
    """What a step of a thread is decided on, seen in one consistent view."""

    thread: Thread | None
    run: RunRecord | None = None
    """The run that the step names or writes, as it is stored."""
    open_run: RunRecord | None = None
    """The run that `thread.open_run_id` points to; this field and the next two are for submissions."""
    latest_run: RunRecord | None = None
    latest_started_run: RunRecord | None = None
    """The newest run that was ever past `created`; a new run inherits its agent and state."""
    claimed: str | None = None
    """The thread's claimed dispatch."""
    epoch: int = 0
    queued: int = 0
    """How many dispatches are queued on the thread, counted as far as was asked."""
    waiting: int = 0
    """How many messages wait on the thread that `pending` does not hold, counted as far as was asked."""
    pending: tuple[PendingMessage, ...] = ()
    """The messages in front of those that wait, as far as they were read."""
    held_by: str | None = None
    """The run that waits with questions, behind which the thread's others wait."""
    has_parent: bool = False
    """Whether the thread exists that will be the parent."""
    taken: tuple[tuple[int, str], ...] = ()
    """The dispatches that prevent a new dispatch from being queued, each with the number of its rule."""
    known_message: str | None = None
    """One of the messages of the step that is stored on the thread already."""
    has_commands: bool = False
    """Whether commands are stored for the run of the owned dispatch."""
    owned: RunDispatch | None = None
    """The dispatch whose claim the step proves."""

    @property
    def message_count(self) -> int:
        """The number of the thread's last message."""
        return 0 if self.thread is None else self.thread.message_count


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
    thread_prefix: str = ""
    """How the ids of their threads begin, where no thread is named."""
    statuses: tuple[RunStatus, ...] = ()
    id_prefix: str = ""
    after: str = ""
    limit: int = MAX_PAGE


class RunCursor(NamedTuple):
    """The place of a run among others, of which the last changed comes first."""

    updated_at: int = 2**63 - 1
    created_at: int = 0
    run_id: str = ""


BEFORE_ALL_RUNS: Final = RunCursor()
"""The place after which every run comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """Which committed messages; `after` and `before` are exclusive bounds of `seq`."""

    visibility: Visibility | None = None
    run_id: str | None = None
    after: int = 0
    before: int | None = None
    newest_first: bool = False
    limit: int = MAX_PAGE


class ClaimRequest(Record, frozen=True, kw_only=True):
    """Who wants to own a dispatch that is being enqueued, and for how long."""

    consumer: str
    lease_ms: int


class Delivery(Record, frozen=True, kw_only=True):
    """The queue's part of a commit: one dispatch that is added, perhaps owned at once.

    With `claim` the caller owns the dispatch, due or not, as after `DispatchStore.claim_dispatch`. The commit
    is refused if another dispatch of the thread is claimed, or if a run of the thread waits for an answer.
    `queue_cap` is how many dispatches may be queued on the thread at most, this one included.
    """

    dispatch: RunDispatch
    claim: ClaimRequest | None = None
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
    are_new: bool = False
    """Whether the ids of `messages` were made for this commit, so that no stored message can have one."""
    summary: SummaryDraft | None = None
    """Stored in place of those with its number and later ones; from then on it stands for what it covers."""
    spends: tuple[Spending, ...] = ()
    """Added to what their scopes have spent, unless all `events` of the commit were stored before."""
    begins: str | None = None
    """The instance id of an execution that begins: recorded on the dispatch that `claim` owns, or on the one
    that a delivery claims."""
    ends: RunDispatchResult | None = None
    """How an execution ended: recorded on the dispatch that `claim` owns, which is acked with it."""
    answer: Message | None = None
    """A message of the run that was committed before, perhaps as the answer with which `run` ends."""
    ended_before: RunRecord | None = None
    """A run of the thread that had ended before this commit, whose answer the commit tells again."""
    delivery: Delivery | None = None

    @property
    def locks(self) -> set[str]:
        """What is locked before it is written: the thread, its parent, and what events and effects name."""
        threads = [self.thread_id, *([self.parent_thread_id] if self.parent_thread_id else [])]
        drafts = [draft.locks for draft in self.events] + [draft.locks for draft in self.outbox]
        limits = {LIMITS} if self.spends else set[str]()  # whoever starts a run next sees what was spent
        return set(map(thread_lock, threads)).union(limits, *drafts)

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
            raise InvalidRecord("a commit that starts or ends an execution cannot deliver another one")
        begins_its = delivery is not None and delivery.claim is not None
        if self.claim is None and (self.ends is not None or not begins_its):
            raise InvalidRecord("a commit that starts or ends an execution must name its claim")


class Committed(Record, frozen=True, kw_only=True):
    """What a commit wrote."""

    message_count: int
    events: tuple[CanonicalEvent, ...] = ()
    outbox: tuple[OutboxMessage, ...] = ()
    dispatch: RunDispatch | None = None
    """The dispatch that was enqueued, or whose execution begins or has ended, as it is stored now."""
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
            ActiveRunConflict: a delivery claims its dispatch, and another dispatch of the thread is claimed,
                or a run of the thread waits for an answer.
            StaleClaim: the writer lost its dispatch.
            UnknownThread: the parent thread does not exist; or the thread of a claim was removed meanwhile.
            StoreError: nothing was written; after CommitUnknown it may have been.
        """
        ...


Beginning = tuple[RunDispatch, RunRecord | None]
"""A dispatch that is claimed, and its run where that begins with it."""


Places = Collection[str] | None
"""Where somebody runs threads: anywhere, and in these places; None: wherever they are to run."""


MOST_COUNTED: Final = 1_000
"""How many dispatches of a kind that ended as they should are counted."""


class DueThread(NamedTuple):
    """A thread with a due dispatch, and what that counts for."""

    thread_id: str
    tenant: str
    limit_key: str
