"""Queries for the stores of runs, and the commit of one step of a thread."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from postroom.contracts.dispatch import Claim, RunDispatch, RunDispatchResult
from postroom.contracts.events import CanonicalEvent, CanonicalEventDraft
from postroom.contracts.limits import LIMITS, Spending
from postroom.contracts.messages import (
    Json,
    Message,
    PendingMessage,
    PendingVersion,
    Visibility,
)
from postroom.contracts.outbox import OutboxDraft, OutboxMessage
from postroom.contracts.records import Record
from postroom.contracts.runs import RunRecord, RunStatus, SummaryDraft, Thread

MAX_PAGE = 200
"""Maximum length of a list that a call returns."""

FAMILIES = "threads"
"""The lock for changes of a thread's parent."""


def thread_lock(thread_id: str) -> str:
    """Return the name of the lock that protects a thread's queue, messages and log."""
    return f"thread:{thread_id}"  # this is also the key of `EventScope.thread`


class ThreadState(Record, frozen=True, kw_only=True):
    """The stored state of a thread, read in one consistent view."""

    thread: Thread | None
    run: RunRecord | None = None
    """The stored run that the step names or writes."""
    open_run: RunRecord | None = None
    """The run with the id `thread.open_run_id`; submissions use this field and the next two."""
    latest_run: RunRecord | None = None
    latest_started_run: RunRecord | None = None
    """The last run that was stored with a status other than `created`; a new run inherits its agent and
    state.
    """
    claimed: str | None = None
    """The id of the thread's claimed dispatch."""
    epoch: int = 0
    queued: int = 0
    """Number of dispatches queued on the thread; counting stops at the requested maximum."""
    waiting: int = 0
    """Number of pending messages of the thread that are not in `pending`; counting stops at the requested
    maximum.
    """
    pending: tuple[PendingMessage, ...] = ()
    """The first pending messages; the thread may have more."""
    held_by: str | None = None
    """The run that waits for answers, and for which the thread's other runs must wait."""
    has_parent: bool = False
    """Whether the thread that will become the parent exists."""
    taken: tuple[tuple[int, str], ...] = ()
    """The dispatches that prevent a new one from being queued, each with the number of the rule that is
    broken.
    """
    known_message: str | None = None
    """The id of a message in the step that is already stored on the thread."""
    has_commands: bool = False
    """Whether commands are stored for the run of the dispatch in `owned`."""
    owned: RunDispatch | None = None
    """The dispatch that the writer must own according to the claim of the step."""

    @property
    def message_count(self) -> int:
        """The number of committed messages of the thread."""
        return 0 if self.thread is None else self.thread.message_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadQuery:
    """A filter for threads.

    An empty `parent_thread_id` matches threads without a parent.
    """

    resource_id: str | None = None
    parent_thread_id: str | None = None
    id_prefix: str = ""
    after: str = ""
    limit: int = MAX_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """A filter for runs, which are ordered by run id.

    `after` is the last run id of the previous page.
    """

    thread_id: str | None = None
    thread_prefix: str = ""
    """The beginning of the ids of the runs' threads, if no thread is named."""
    statuses: tuple[RunStatus, ...] = ()
    id_prefix: str = ""
    after: str = ""
    limit: int = MAX_PAGE


class RunCursor(NamedTuple):
    """A position in a list of runs that is ordered by latest change."""

    updated_at: int = 2**63 - 1
    created_at: int = 0
    run_id: str = ""


BEFORE_ALL_RUNS: Final = RunCursor()
"""The position before all runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """A filter for committed messages.

    `after` and `before` are exclusive bounds of `seq`.
    """

    visibility: Visibility | None = None
    run_id: str | None = None
    after: int = 0
    before: int | None = None
    newest_first: bool = False
    limit: int = MAX_PAGE


class ClaimRequest(Record, frozen=True, kw_only=True):
    """A request to claim a dispatch at the moment when the dispatch is queued."""

    consumer: str
    lease_ms: int


class ThreadCommit(Record, frozen=True, kw_only=True):
    """The changes of one step of a thread, which are stored in one transaction.

    `expected_message_count` is the number of messages that the thread must have before `messages` are
    appended; None skips the check. `consumes` lists the pending messages that a run has read. `claim` proves
    that the writer still owns the run's dispatch. `joins` names a dispatch that must still be queued.
    `replaces` is the run as the caller read it, which must be unchanged in the store. `queues` is a new
    dispatch, and `queue_cap` the maximum number of queued dispatches. `claimed_by` requests a claim of the
    new dispatch.
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
    """Whether the ids of `messages` were newly generated, so that no stored message can have the same id."""
    summary: SummaryDraft | None = None
    """A summary that replaces the summaries with the same number or a later one."""
    spends: tuple[Spending, ...] = ()
    """Amounts to add to the spending of their scopes, unless all `events` of the commit were already stored.
    """
    begins: str | None = None
    """The instance id of an execution that starts.

    The id is recorded on the dispatch that `claim` owns, or on the dispatch that this commit queues and
    claims.
    """
    ends: RunDispatchResult | None = None
    """The result of an execution, which acknowledges the dispatch that `claim` owns."""
    answer: Message | None = None
    """An earlier committed message of the run, which may be the answer with which `run` ends."""
    ended_before: RunRecord | None = None
    """An earlier run of the thread, whose answer the commit repeats."""
    queues: RunDispatch | None = None
    queue_cap: int | None = None
    claimed_by: ClaimRequest | None = None

    @property
    def locks(self) -> set[str]:
        """The names of the locks that the commit needs."""
        threads = [self.thread_id, *([self.parent_thread_id] if self.parent_thread_id else [])]
        drafts = [draft.locks for draft in self.events] + [draft.locks for draft in self.outbox]
        limits = {LIMITS} if self.spends else set[str]()  # the run that starts next must see the spending
        return set(map(thread_lock, threads)).union(limits, *drafts)


class Committed(Record, frozen=True, kw_only=True):
    """The result of a commit."""

    message_count: int
    events: tuple[CanonicalEvent, ...] = ()
    outbox: tuple[OutboxMessage, ...] = ()
    dispatch: RunDispatch | None = None
    """The stored dispatch that was enqueued, or whose execution started or ended."""
    leaves_queued: bool = False
    """Whether queued dispatches remain on the thread; set only if the commit ends an execution."""
    leaves_waiting: bool = False
    """Whether pending messages remain on the thread; set only if the commit ends an execution."""


class CommitCoordinator(Protocol):
    """Stores the changes of a thread's step in one transaction."""

    @property
    def storage_identity(self) -> str | None:
        """The name of the database to which the coordinator writes."""
        ...

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        """Store a commit.

        Raises:
            VersionConflict: The message count, a pending message or the joined dispatch is not as expected.
            InvalidRecord, IllegalTransition, ForeignThread: The messages, the run or the result break a rule.
            DuplicateRecord: A message id is already committed, or the dispatch exists.
            DedupeKeyInUse, RunNotOpen, QueueFull: The dispatch cannot be queued.
            ActiveRunConflict: The commit claims its dispatch, but another dispatch of the thread is
                claimed, or a run of the thread waits for an answer.
            StaleClaim: The writer lost its dispatch.
            UnknownThread: The parent thread does not exist, or the thread of a claim was removed in between.
            StoreError: Nothing was written; only after CommitUnknown, the commit may have been written.
        """
        ...


Beginning = tuple[RunDispatch, RunRecord | None]
"""A claimed dispatch, and its run if the claim starts the run."""


Places = Collection[str] | None
"""The places whose threads a consumer executes, in addition to threads without a place, or None for every
place.
"""


MAX_COUNTED: Final = 1_000
"""Maximum of the counter for successful dispatches of one kind."""


class DueThread(NamedTuple):
    """A thread with a due dispatch, and the tenant and keys by which limits count the dispatch."""

    thread_id: str
    tenant: str
    limit_key: str
