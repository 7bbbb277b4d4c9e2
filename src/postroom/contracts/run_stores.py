"""Queries to the stores of runs, and the commit of a step to a thread."""

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
"""The lock for changing the parents of threads."""


def thread_lock(thread_id: str) -> str:
    """Return the name of a thread's lock, which protects its queue, its messages and its log."""
    return f"thread:{thread_id}"  # this is also the key of `EventScope.thread`


class ThreadState(Record, frozen=True, kw_only=True):
    """The data on which a decision about a step of a thread is based, read in one consistent view."""

    thread: Thread | None
    run: RunRecord | None = None
    """The stored run that the step names or writes."""
    open_run: RunRecord | None = None
    """The run that `thread.open_run_id` refers to; this field and the next two are used for submissions."""
    latest_run: RunRecord | None = None
    latest_started_run: RunRecord | None = None
    """The last run that was stored with a status other than `created`; a new run inherits its agent and
    state.
    """
    claimed: str | None = None
    """The thread's claimed dispatch."""
    epoch: int = 0
    queued: int = 0
    """Number of dispatches queued on the thread, counted up to the requested maximum."""
    waiting: int = 0
    """Number of waiting messages of the thread that are not in `pending`, counted up to the requested
    maximum.
    """
    pending: tuple[PendingMessage, ...] = ()
    """The first pending messages; there may be more."""
    held_by: str | None = None
    """The run that waits for answers, so that the thread's other runs must wait, too."""
    has_parent: bool = False
    """Whether the thread that will become the parent exists."""
    taken: tuple[tuple[int, str], ...] = ()
    """The dispatches that prevent a new dispatch from being queued, each with the number of the violated
    rule.
    """
    known_message: str | None = None
    """A message of the step that is already stored on the thread."""
    has_commands: bool = False
    """Whether commands are stored for the run of the dispatch in `owned`."""
    owned: RunDispatch | None = None
    """The dispatch that the writer must own according to the step's claim."""

    @property
    def message_count(self) -> int:
        """The number of the thread's last message."""
        return 0 if self.thread is None else self.thread.message_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadQuery:
    """A filter for threads; `parent_thread_id` "" matches threads without a parent."""

    resource_id: str | None = None
    parent_thread_id: str | None = None
    id_prefix: str = ""
    after: str = ""
    limit: int = MAX_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """A filter for runs in order of run id; `after` is the last id of the previous page."""

    thread_id: str | None = None
    thread_prefix: str = ""
    """Prefix of their threads' ids, if no thread is named."""
    statuses: tuple[RunStatus, ...] = ()
    id_prefix: str = ""
    after: str = ""
    limit: int = MAX_PAGE


class RunCursor(NamedTuple):
    """A position in a list of runs, ordered by their last change, newest first."""

    updated_at: int = 2**63 - 1
    created_at: int = 0
    run_id: str = ""


BEFORE_ALL_RUNS: Final = RunCursor()
"""The position before every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """A filter of committed messages; `after` and `before` are exclusive bounds of `seq`."""

    visibility: Visibility | None = None
    run_id: str | None = None
    after: int = 0
    before: int | None = None
    newest_first: bool = False
    limit: int = MAX_PAGE


class ClaimRequest(Record, frozen=True, kw_only=True):
    """A request to own a dispatch as soon as it is enqueued, for a consumer and a length of time."""

    consumer: str
    lease_ms: int


class ThreadCommit(Record, frozen=True, kw_only=True):
    """All writes of one step to a thread, which are stored together or not at all.

    `messages` are appended if the thread has exactly `expected_message_count` messages (None skips this
    check), and the messages in `consumes` are no longer pending; both are compared with the store. `claim`
    proves that the writer still owns the run's dispatch; as long as it does, no other writer changes the run.
    `joins` names a dispatch that must still be queued, because its run receives more messages. `replaces`, if
    set, is the run as it was read, and the run must not have changed since.

    `queues` is a new dispatch for the thread, on which at most `queue_cap` dispatches may be queued with it.
    With `claimed_by`, the caller owns this dispatch, due or not, as after `DispatchStore.claim_dispatch`. In
    this case, the commit is refused if another dispatch of the thread is claimed, or if a run of the thread
    waits for an answer.
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
    """Whether the ids of `messages` were newly generated, so that no stored message can have one of them."""
    summary: SummaryDraft | None = None
    """A summary that replaces those with the same number or a later one."""
    spends: tuple[Spending, ...] = ()
    """Amounts to add to their scopes, unless all `events` of the commit were already stored before."""
    begins: str | None = None
    """The instance id of an execution that starts.

    It is recorded on the dispatch that `claim` owns, or on the one that this commit queues and claims.
    """
    ends: RunDispatchResult | None = None
    """The result of an execution, recorded on the dispatch that `claim` owns; the dispatch is acked at the
    same time.
    """
    answer: Message | None = None
    """A message of the run that was committed earlier and may be the answer with which `run` ends."""
    ended_before: RunRecord | None = None
    """A run of the thread that ended before this commit, and whose answer the commit repeats."""
    queues: RunDispatch | None = None
    queue_cap: int | None = None
    claimed_by: ClaimRequest | None = None

    @property
    def locks(self) -> set[str]:
        """The locks that the commit needs: for the thread, its parent, and its events and effects."""
        threads = [self.thread_id, *([self.parent_thread_id] if self.parent_thread_id else [])]
        drafts = [draft.locks for draft in self.events] + [draft.locks for draft in self.outbox]
        limits = {LIMITS} if self.spends else set[str]()  # a run that starts next must see the spending
        return set(map(thread_lock, threads)).union(limits, *drafts)


class Committed(Record, frozen=True, kw_only=True):
    """The result of a commit."""

    message_count: int
    events: tuple[CanonicalEvent, ...] = ()
    outbox: tuple[OutboxMessage, ...] = ()
    dispatch: RunDispatch | None = None
    """The dispatch that was enqueued, or whose execution started or ended, in its stored form."""
    leaves_queued: bool = False
    """Whether queued dispatches remain on the thread; set by commits that end an execution."""
    leaves_waiting: bool = False
    """Whether pending messages remain on the thread; set by commits that end an execution."""


class CommitCoordinator(Protocol):
    """Writes a step of a thread in one transaction."""

    @property
    def storage_identity(self) -> str | None:
        """The name of the database to which this coordinator writes."""
        ...

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        """Write the commit.

        Raises:
            VersionConflict: The message count, a pending message or the joined dispatch is not as expected.
            InvalidRecord, IllegalTransition, ForeignThread: The messages, the run or the result break a rule.
            DuplicateRecord: A message id is already committed, or the dispatch exists.
            DedupeKeyInUse, RunNotOpen, QueueFull: The dispatch cannot be queued.
            ActiveRunConflict: The commit claims its dispatch, but another dispatch of the thread is
                claimed, or a run of the thread waits for an answer.
            StaleClaim: The writer lost its dispatch.
            UnknownThread: The parent thread does not exist, or the thread of a claim was removed in between.
            StoreError: Nothing was written. Only after CommitUnknown, the commit may have been written.
        """
        ...


Beginning = tuple[RunDispatch, RunRecord | None]
"""A claimed dispatch and, if its run starts with it, the run."""


Places = Collection[str] | None
"""The places whose threads a consumer runs, besides threads for any place; None means every place."""


MAX_COUNTED: Final = 1_000
"""Maximum count reported for successfully ended dispatches of one kind."""


class DueThread(NamedTuple):
    """A thread with a due dispatch, and the facts that limits need to count it."""

    thread_id: str
    tenant: str
    limit_key: str
