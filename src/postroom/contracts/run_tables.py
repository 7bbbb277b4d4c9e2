"""The parts of a transaction that runs stand on: runs, events and effects.

A change locks first what it decides on (`thread_lock`, `line_lock`, and the `locks` of commits, events and
effects), all in one call; the instant is read after that, when it is first needed. Nothing here is awaited.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, Self

from postroom.contracts.budgets import Spending
from postroom.contracts.conversation import Summary, Turn
from postroom.contracts.dispatch import Claim, Interrupt, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import StaleClaim
from postroom.contracts.live import LiveRunCommand
from postroom.contracts.messages import (
    Boundary,
    DeliveryMode,
    Json,
    Message,
    MessageRecord,
    PendingMessage,
    PendingVersion,
)
from postroom.contracts.run_stores import (
    ClaimRequest,
    Committed,
    LikelyCommit,
    MessageQuery,
    RunQuery,
    SubmissionFacts,
    ThreadCommit,
    ThreadQuery,
)
from postroom.contracts.runs import RunRecord, Thread

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


class DispatchTables(Protocol):
    """The queue.

    What moves a dispatch is called under the lock of its thread. A lost claim is returned, not raised, for it
    may have ended its row, and what is raised undoes the change.
    """

    def load(self, dispatch_id: str) -> RunDispatch | None:
        """Return one dispatch."""
        ...

    def begun_with(self, prefix: str, limit: int) -> dict[str, str]:
        """Return the dispatches whose ids begin so, by id, each with the id of its run."""
        ...

    def thread_of(self, dispatch_id: str) -> str | None:
        """Return the thread of a dispatch, which never changes: what is to be locked."""
        ...

    def claimed(self, thread_id: str) -> RunDispatch | None:
        """Return the thread's claimed dispatch."""
        ...

    def claimed_by(self, consumer: str, *, besides: Sequence[str]) -> tuple[RunDispatch, ...]:
        """Return what a consumer has claimed, except the claims with the tokens `besides`, by thread."""
        ...

    def epoch(self, thread_id: str) -> int:
        """Return the thread's epoch."""
        ...

    def enqueue(self, dispatch: RunDispatch) -> RunDispatch:
        """Store a queued dispatch with its thread's epoch; see `DispatchStore.enqueue`."""
        ...

    def due(
        self, thread_id: str, *, behind: RunDispatch | None = None, now: int | None = None
    ) -> RunDispatch | None:
        """Return the thread's next due dispatch when none is claimed; one of an older epoch is superseded.

        With `behind`, as if that one and its run had ended, of what is due at `now`; nothing is superseded.
        """
        ...

    def claim(self, thread_id: str, asks: ClaimRequest) -> RunDispatch | None:
        """Own the thread's next due dispatch; see `DispatchStore.claim`."""
        ...

    def claim_dispatch(self, dispatch_id: str, asks: ClaimRequest) -> RunDispatch | None:
        """Own this dispatch, due or not; see `DispatchStore.claim_dispatch`."""
        ...

    def move_owned(
        self, claim: Claim, move: Callable[[RunDispatch, int], RunDispatch]
    ) -> RunDispatch | StaleClaim:
        """Store what `move` makes, now, of the dispatch that the claim owns, or say why it may not.

        Raises:
            UnknownDispatch: there is no such dispatch.
        """
        ...

    def renew(self, lengths: Mapping[Claim, int]) -> frozenset[str]:
        """Own dispatches until so long from now; return the ids of those that are owned still.

        One statement for each length, without locks: who moves a dispatch meanwhile waits or is waited for,
        and a claim that was lost renews nothing.
        """
        ...

    def refuse_stale(self, claim: Claim) -> None:
        """End the claimed dispatch as superseded where the claim owns it and is of an older epoch."""
        ...

    def cancel(self, dispatch_id: str) -> RunDispatch | None:
        """Withdraw a queued dispatch; None when it is not queued."""
        ...

    def hurry(self, dispatch_id: str, *, not_before: int) -> None:
        """Make a queued dispatch due at `not_before`, whenever it was due; at once if that is over."""
        ...

    def interrupt(self, thread_id: str) -> Interrupt:
        """Raise the thread's epoch and supersede all that is queued; see `DispatchStore.interrupt`."""
        ...

    def supersede_claimed(self, claim: Claim, reason: str) -> RunDispatch | StaleClaim | None:
        """End a claimed dispatch as superseded, whatever its epoch; None when it is not Claimed any more."""
        ...

    def overdue(self, limit: int) -> list[RunDispatch]:
        """Return what was owned until before now, the longest overdue first."""
        ...

    def reclaim(self, dispatch_id: str, *, counts: bool = True) -> RunDispatch | None:
        """Take back a dispatch if it is overdue; None when it is not, or is of an older epoch and ends.

        `counts` says whether that is an attempt.
        """
        ...

    def of_thread(
        self, thread_id: str, statuses: Collection[RunDispatchStatus], *, limit: int, offset: int
    ) -> tuple[RunDispatch, ...]:
        """Return a thread's dispatches by priority, then age, then id."""
        ...

    def by_status(
        self,
        status: RunDispatchStatus,
        *,
        limit: int,
        after: tuple[int, str] | None,
        thread_prefix: str = "",
    ) -> tuple[RunDispatch, ...]:
        """Return dispatches of threads whose ids begin so, by last change, then id."""
        ...

    def unreconciled(self, limit: int) -> tuple[RunDispatch, ...]:
        """Return ended dispatches whose runs were not told yet, oldest first."""
        ...

    def mark_reconciled(self, dispatch_ids: Sequence[str]) -> None:
        """Record that the runs of these were told."""
        ...

    def due_threads(
        self,
        limit: int,
        *,
        tenant: str | None = None,
        full_keys: Sequence[str] = (),
        places: Places = None,
    ) -> tuple[DueThread, ...]:
        """Return threads that have a due dispatch and no claimed one, in the order of those dispatches.

        Those of one tenant where it is given, '' for none, those of keys that are not full, and those that
        may run in one of these places.
        """
        ...

    def begun_by_limit(self) -> tuple[tuple[str, str, int], ...]:
        """Count by tenant and key the runs that execute or are retried within 10 s; a pair may come twice."""
        ...

    def begun_of_agent(self, agent_id: str) -> int:
        """Count the runs of an agent that execute, or are retried within 10 s."""
        ...

    def claimed_by_limit(self) -> tuple[tuple[str, str, int], ...]:
        """Return how much is claimed for each tenant and key; to be counted on under the lock of limits."""
        ...

    def starts(self, scope: str, most: int) -> tuple[int, int | None]:
        """Return the number of the scope's last start, and the instant of the one `most` before the next."""
        ...

    def note_start(self, scope: str, most: int) -> None:
        """Note that something of the scope begins now; no more than the last `most` are kept."""
        ...

    def forget_starts(self, older_than: int) -> None:
        """Remove the starts of scopes that were before this instant."""
        ...

    def hold(self, thread_id: str, scope: str, until: int | None) -> None:
        """Keep what is queued on a thread out of `due_threads` until then, None: until it is released.

        It says why nobody is to try, not that nobody may: whoever claims decides anew, and that ends it.
        """
        ...

    def release_held(self, scope: str, until: int | None) -> None:
        """Have what is held for this scope tried again."""
        ...

    def held_until(self) -> int | None:
        """Return when the next of what is held is tried again by itself."""
        ...

    def set_back(self, back_ms: int) -> int:
        """Make delays and leases end earlier if a clock wrote them that was set back; count the delays.

        Harmless if another process has done it already.
        """
        ...

    def due_tenants(self, limit: int) -> tuple[str, ...]:
        """Return the names of tenants that have something queued."""
        ...

    def next_due_at(self, places: Places = None) -> int | None:
        """Return when the next dispatch of a thread without a claimed one is due; 0 for at once.

        Of threads that may run in one of these places.
        """
        ...

    def place(self, thread_id: str) -> str:
        """Return the only place where runs of a thread may execute; '' for anywhere."""
        ...

    def put_place(self, thread_id: str, place: str) -> None:
        """Say where runs of a thread may execute, '' for anywhere."""
        ...

    def open_threads(self, among: Sequence[str]) -> frozenset[str]:
        """Return those of some threads that have an open dispatch."""
        ...

    def queued_threads(self, limit: int, after: str) -> tuple[str, ...]:
        """Return threads that have queued dispatches, by id."""
        ...

    def count_queued(self, thread_id: str, at_most: int) -> int:
        """Count a thread's queued dispatches, no further than `at_most`."""
        ...

    def count_dead(self, thread_prefix: str, at_most: int) -> int:
        """Count the dead letters of threads whose ids begin so, no further than `at_most`."""
        ...

    def count_by_status(self) -> dict[RunDispatchStatus, int]:
        """Count dispatches; of those that ended as they should, `MOST_COUNTED` of each kind at most.

        What has ended stays for days, and is no work: a gauge that counted it took longer every day.
        """
        ...

    def hasten(self, dispatch_id: str) -> RunDispatch | None:
        """Have a queued dispatch that is due later be due at once; None when it is none."""
        ...

    def discard(self, dispatch_id: str) -> RunDispatch | None:
        """Remove a dead letter for good; None when it is none."""
        ...

    def put_command(self, dispatch: RunDispatch, command: LiveRunCommand) -> None:
        """Keep what is asked of a run at work, a wish that it ends or one decision, and tell its owner.

        Of each call, and of the wish, the first is kept.
        """
        ...

    def commands(self, dispatch_ids: Sequence[str]) -> tuple[tuple[str, LiveRunCommand], ...]:
        """Return what is kept for these dispatches, with the id of each, in the order in which it came."""
        ...

    def drop_commands(self, dispatch_id: str) -> None:
        """Keep nothing more for a dispatch: it is not at work any more."""
        ...

    def purge_some(self, older_than: int, dead_letters_older_than: int | None) -> int:
        """Remove some of what ended before and return how many; 0 when nothing is left."""
        ...


class ThreadTables(Protocol):
    """Threads, runs, what executors keep and what was spent."""

    def load(self, thread_id: str) -> Thread | None:
        """Return one thread."""
        ...

    def made(self, thread_id: str) -> Thread:
        """Return the thread; a missing one is stored first."""
        ...

    def save(self, thread: Thread) -> None:
        """Store a thread as given but for `message_count`.

        Raises:
            UnknownThread, InvalidRecord: as `ThreadStore.save_thread` says.
        """
        ...

    def below(self, thread_id: str) -> list[str]:
        """Return the thread's children, their children and so on."""
        ...

    def idle(self, before: int, *, limit: int, among: Sequence[str] | None = None) -> list[str]:
        """Return threads on which nothing has happened since an instant, of some or of all.

        Nothing on them is open, waits or is pending; no chat is in one, and none has a thread below it.
        """
        ...

    def runs_of(self, thread_ids: Sequence[str]) -> list[str]:
        """Return the ids of all runs of threads."""
        ...

    def delete(self, thread_id: str, children: Literal["detach", "reject", "cascade"]) -> bool:
        """Remove a thread with its messages and runs; False when there is none.

        Raises:
            InvalidRecord: it has children and they are to prevent it.
        """
        ...

    def list(self, query: ThreadQuery, limit: int) -> tuple[Thread, ...]:
        """Return threads by id."""
        ...

    def create_run(self, run: RunRecord) -> None:
        """Store a new run and move its thread's pointers; a missing thread is made.

        Raises:
            DuplicateRecord: a run with this id exists.
        """
        ...

    def load_run(self, run_id: str) -> RunRecord | None:
        """Return one run."""
        ...

    def latest_runs(self, thread_id: str, limit: int) -> tuple[RunRecord, ...]:
        """Return the thread's newest runs by `updated_at`, then `created_at`, the newest first."""
        ...

    def list_runs(self, query: RunQuery, limit: int) -> tuple[RunRecord, ...]:
        """Return runs by run id."""
        ...

    def undelivered(self, limit: int, after: str) -> tuple[RunRecord, ...]:
        """Return the runs that are only prepared, or wait, and have no open dispatch, by id."""
        ...

    def waiting_without_questions(self, limit: int, after: str) -> tuple[RunRecord, ...]:
        """Return the runs that wait and ask nothing, on threads without an open dispatch, by id."""
        ...

    def count_open(self, thread_prefix: str) -> int:
        """Count the runs that are not done of threads whose ids begin so."""
        ...

    def turns(self, thread_id: str, since: int = 0) -> Sequence[Turn]:
        """Return runs of a thread, in any order, as far as a conversation is ordered by them.

        With `since` those that were last written before, and are over, are left out.
        """
        ...

    def turns_named(self, run_ids: Sequence[str]) -> Sequence[Turn]:
        """Return these runs, in any order, likewise."""
        ...

    def submission_facts(
        self, thread_id: str, run_id: str | None, queued: int = 1, likely: LikelyCommit | None = None
    ) -> SubmissionFacts:
        """Return what a submission to the thread is decided on, with what is queued counted to `queued`.

        What stands against a `likely` commit is looked up with the rest.
        """
        ...

    def state(self, thread_id: str) -> dict[str, Json] | None:
        """Return what executors keep for the thread."""
        ...

    def spending(self, scopes: Sequence[str]) -> dict[str, Spending]:
        """Return what each scope has spent so far."""
        ...

    def spend(self, spends: Sequence[Spending]) -> None:
        """Add to what scopes have spent, always in the same order, so that no two wait for each other."""
        ...

    def put_asker(self, scope: str, until: int | None, run_id: str, *, is_refused: bool = False) -> None:
        """Store which run asks for all of a scope, '' for none; to be decided on under the lock of limits."""
        ...

    def asked(self) -> tuple[Spending, ...]:
        """Return the scopes for which a run asks, those without a window first, then by the window's end."""
        ...

    def forget_spending(self, older_than: int) -> None:
        """Remove what was spent in windows that had ended before this instant."""
        ...


class MessageTables(Protocol):
    """Messages of threads: committed ones, and those that wait to be read."""

    def all(self, thread_id: str) -> tuple[Message, ...]:
        """Return all committed messages in order."""
        ...

    def unsummarized(self, thread_id: str, after: int | None) -> tuple[Message, ...]:
        """Return those that no summary stands for, or only one with a higher number, in order."""
        ...

    def passed_over(
        self, thread_id: str, message_ids: Sequence[str], own: Sequence[str]
    ) -> tuple[Message, ...]:
        """Return of these messages those that a summary has passed over, and `own` in any case, in order."""
        ...

    def summary(self, thread_id: str, below: int | None = None) -> Summary | None:
        """Return the thread's newest summary, or the newest with a lower number."""
        ...

    def first_summary_of(
        self, thread_id: str, run_ids: Sequence[str], message_ids: Sequence[str]
    ) -> int | None:
        """Return the number of the first summary that stands for what these runs said, or these messages."""
        ...

    def named(self, thread_id: str, message_ids: Sequence[str]) -> tuple[MessageRecord, ...]:
        """Return those committed messages, in the order of the thread."""
        ...

    def list(self, thread_id: str, query: MessageQuery, limit: int) -> tuple[MessageRecord, ...]:
        """Return committed messages in order of `seq`."""
        ...

    def delete(self, thread_id: str) -> int:
        """Remove a thread's committed messages; numbering goes on."""
        ...

    def waiting(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return what waits on a thread, in order."""
        ...

    def append_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode
    ) -> tuple[PendingMessage, ...]:
        """Add messages behind those that wait; the thread is there, or is made by the caller.

        Raises:
            InvalidRecord: they could not be committed as they are.
            DuplicateRecord: an id waits or is committed.
        """
        ...

    def leading(
        self,
        thread_id: str,
        boundary: Boundary,
        run_id: str | None,
        *,
        group: str | None = None,
        resumed: RunRecord | None = None,
    ) -> tuple[PendingMessage, ...]:
        """Return the first messages that wait, up to the one at which `select_pending` stops.

        `resumed` is the waiting run that reads them: messages that may not resume it are left out.
        """
        ...

    def waiting_named(self, thread_id: str, pending_id: str) -> PendingMessage | None:
        """Return the message with this id, if it waits on the thread."""
        ...

    def given_to(self, thread_id: str, message_id: str) -> RunRecord | None:
        """Return the run that was given a committed message to read; None if there is none."""
        ...

    def among_waiting(self, thread_id: str, message_ids: Sequence[str]) -> tuple[str, ...]:
        """Return which of these messages wait on the thread."""
        ...

    def full(self, thread_ids: Collection[str], at_most: int) -> frozenset[str]:
        """Return the threads on which at least `at_most` messages wait."""
        ...

    def edit_waiting(self, thread_id: str, message: Message, expected_revision: int | None) -> PendingMessage:
        """Replace a message under its id; see `ThreadStore.edit_pending`."""
        ...

    def retract_waiting(
        self, thread_id: str, pending_id: str, expected_revision: int | None
    ) -> PendingMessage:
        """Take back a message; see `ThreadStore.retract_pending`."""
        ...

    def reorder_waiting(
        self, thread_id: str, order: Sequence[str], expected: Sequence[PendingVersion] | None
    ) -> tuple[PendingMessage, ...]:
        """Put all that waits into this order; see `ThreadStore.reorder_pending`."""
        ...

    def threads_left_over(self, limit: int, after: str) -> tuple[str, ...]:
        """Return, by id, idle threads on which a message waits that starts a run or was meant for one."""
        ...

    def threads_with_waiting(self, limit: int, after: str) -> tuple[str, ...]:
        """Return threads on which something waits, by id."""
        ...


class Together(Protocol):
    """New runs that are added to threads in one transaction, looked at and written with few statements."""

    runs: dict[str, str]
    """Which of the runs exist, with their threads."""
    messages: dict[str, Message]
    """The messages of these runs that have the id of their run, by that id."""

    def facts(
        self, thread_id: str, run_id: str, dispatch_id: str, messages: Sequence[Message]
    ) -> SubmissionFacts | None:
        """Return a thread as it is with what was added to it.

        None where one of these exists, or something waits on the thread: that is to be looked at alone.
        """
        ...

    def add(self, run: RunRecord, messages: Sequence[Message], dispatch: RunDispatch) -> RunDispatch:
        """Add a run, decided on these facts, to its thread; return its dispatch as it is stored."""
        ...

    def write(self, looked_at_alone: str | None = None) -> None:
        """Write what was added; a thread that is looked at alone after this is looked at anew here."""
        ...


class RunTables(Protocol):
    """Dispatches, threads and messages, and the steps that write to all of them."""

    dispatches: DispatchTables
    threads: ThreadTables
    messages: MessageTables
    """Committed ones, and those that wait."""

    def at(self, now: int) -> Self:
        """Return the same rows at another instant."""
        ...

    def together(
        self,
        messages: Mapping[str, Collection[str]],
        run_ids: Collection[str],
        dispatch_ids: Collection[str],
        at_most: int,
    ) -> "Together":
        """Look at once at what new runs are decided on: threads, with the ids of messages they are given.

        What is queued on a thread is counted up to `at_most`.
        """
        ...

    def owned_run(
        self, dispatch: RunDispatch, answer_id: str | None = None, now: int | None = None
    ) -> RunRecord | None:
        """Return the run of a claimed dispatch, and look up with it what its end is decided on.

        `answer_id` is what the message is called that its end may write; with `now`, what is due behind it
        then is looked up as well.
        """
        ...

    def begin(self, dispatch: RunDispatch, run: RunRecord | None) -> None:
        """Store a dispatch that is claimed in this change, and its run where that begins with it."""
        ...

    def commit(self, step: ThreadCommit, following: Beginning | None = None) -> Committed | StaleClaim:
        """Write a step of a thread; one whose claim was lost is refused before anything else is written.

        What is `following` the dispatch that ends is stored with it, as `begin` does.

        Raises:
            PostroomError: as `CommitCoordinator.commit` says; the change is to be undone.
        """
        ...

    def append_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode
    ) -> tuple[PendingMessage, ...]:
        """Add messages behind those that wait; a missing thread is made.

        Raises:
            InvalidRecord, DuplicateRecord: as `ThreadStore.append_pending` says.
        """
        ...

    def put_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, at_most: int | None
    ) -> None:
        """Add messages as `append_waiting` does, at a cost that does not grow with what waits.

        Raises:
            InvalidRecord, DuplicateRecord: As for `append_waiting`.
            QueueFull: More than `at_most` messages would wait on the thread.
        """
        ...
