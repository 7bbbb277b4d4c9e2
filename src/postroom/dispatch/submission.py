"""Accepts work: checks a request, plans its run from the state of its thread, and writes both in one commit.

    submit ────────────▶ the active run ends ─▶ interrupt, run, dispatch and claim ─▶ executes here
    submit_background ─▶ run and dispatch, claimed if thread and slot are free ─▶ executes in its turn
    steer ─────────────▶ the active run reads it at its next step, or as submit_background
    deliver ───────────▶ is pending, or starts a run at once
    accepting ─────────▶ the same, in a change of another package

The transaction that stores the work also decides what happens if the thread is busy.

    run named, or waiting for input ──▶ the same run resumes: the messages are its input
    a message that may not resume it ──▶ waits until that run has ended
    a dispatch of that run is queued ──▶ it is joined: one delivery brings both
    otherwise ─────────────────────────▶ a new run
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from postroom.contracts.activation import (
    BusyPolicy,
    DeliveryOptions,
    RunActivation,
    RunActivationSnapshot,
    RunHints,
    RunMode,
    RunOptions,
    RunOrigin,
)
from postroom.contracts.clock import Ids, iso
from postroom.contracts.dispatch import (
    DEFAULT_MAX_ATTEMPTS,
    INTERRUPTED,
    LOWEST_PRIORITY,
    OPEN,
    Interrupt,
    RunDispatch,
    RunDispatchStatus,
)
from postroom.contracts.errors import (
    ActiveRunConflict,
    AlreadyConsumed,
    DeliveryBlocked,
    DuplicateRecord,
    ForeignThread,
    IdempotencyConflict,
    InputError,
    InternalError,
    InvalidSubmission,
    PostroomError,
    QueueFull,
    RunNotOpen,
    StaleClaim,
    StaleDecision,
    StateError,
    StoreError,
    SubmissionRejected,
    UnknownRun,
)
from postroom.contracts.limits import LIMITS, Held
from postroom.contracts.messages import (
    CONTROL,
    Boundary,
    DeliveryMode,
    Message,
    PendingMessage,
    PendingVersion,
    Role,
    SeqRange,
    id_of,
    leading_barrier,
    select_pending,
    storable,
)
from postroom.contracts.records import Record, replace
from postroom.contracts.run_stores import (
    MAX_PAGE,
    Committed,
    ThreadCommit,
    ThreadState,
    thread_lock,
)
from postroom.contracts.runs import (
    AnsweredTicket,
    RunMessageInput,
    RunRecord,
    RunStatus,
    TerminationReason,
)
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import Accept, ChangeUndone
from postroom.dispatch.budgets import answers_budget, note_start, settle
from postroom.dispatch.completion import (
    ClaimAsk,
    Claimed,
    Completion,
    EndedRuns,
    begun_in,
    claimed_next,
)
from postroom.dispatch.config import ACTIVE_RUN_CONFLICT_MESSAGE, MailboxConfig
from postroom.dispatch.control import Control
from postroom.dispatch.core import Core
from postroom.dispatch.events import ServerEvents, decision_facts
from postroom.dispatch.sinks import EventStream
from postroom.dispatch.worker import Dispatcher
from postroom.log import get_logger
from postroom.stores.runs.dispatches import state_look
from postroom.stores.runs.together import Together
from postroom.stores.sql_transaction import Look
from postroom.stores.store import Joined, Transaction

T = TypeVar("T")
_LOG = get_logger(__name__)

MAX_BATCH: Final = 500
"""Maximum number of submissions in one commit.

A commit of this size takes about 50 ms, during which all other writers wait.
"""
_AT_ONCE: Final = 100
"""Number of submissions that are prepared, in a few milliseconds, before other tasks can run."""


_MAX_ID_LENGTH = 512
_SHOWN_OF_ID = 40
_NAMES = ("agent id", "dedupe key", "tenant", "limit key")
"""Fields whose values people read in lists and logs."""
_MAX_INTEGER = 2**53
"""The largest integer that every store represents exactly."""
DEFAULT_AGENT = "default"
_NO_OPTIONS = DeliveryOptions()

_BOUNDARIES = {
    RunMode.FOREGROUND: Boundary.INTERRUPT,
    RunMode.SCHEDULED: Boundary.NEW_RUN,
    RunMode.RESUME: Boundary.RESUME_INPUT,
}


def validate_run_inputs(
    thread_id: str, messages: Sequence[Message], *, allow_empty: bool, new_id: Ids
) -> tuple[str, tuple[Message, ...]]:
    """Return the thread id and the messages of a request, with missing ids generated.

    Raises:
        InvalidSubmission: The request has neither a message nor a decision, or a message is invalid.
    """
    if not messages and not allow_empty:
        raise InvalidSubmission(
            "at least one message is required",
            value=thread_id,
            remedy="pass a message, or the decisions that a waiting run needs",
        )
    refuse_odd_id("thread id", thread_id)
    accepted: dict[str, Message] = {}
    for message in messages:
        if message.id is not None:
            refuse_odd_id("message id", message.id)
            if not message.id.strip():
                raise InvalidSubmission(
                    "a message id must not be blank",
                    value=message.text()[:80],
                    remedy="leave out the id to get a new one",
                )
        for block in message.content:
            if storable(block.text) != block.text:
                raise InvalidSubmission(
                    "a message contains an unpaired surrogate character",
                    value=message.id,
                    remedy="decode the text with errors='replace' where you read it",
                )
        if message.role is Role.USER and not message.content:
            raise InvalidSubmission(
                "a message must not be empty",
                value=message.id,
                remedy="add a text or other content to the message",
            )
        message_id = message.id or new_id()
        if message_id in accepted:
            raise InvalidSubmission(
                "two messages have the same id", value=message_id, remedy="give each message a different id"
            )
        accepted[message_id] = message if message.id else replace(message, id=message_id)
    return thread_id.strip() or new_id(), tuple(accepted.values())


def refuse_odd_id(name: str, value: str) -> None:
    """Raise an error for an id that some stores cannot store.

    Raises:
        InvalidSubmission: The id is too long, or contains NUL or a lone surrogate.
    """
    if len(value) > _MAX_ID_LENGTH or "\x00" in value or storable(value) != value:
        raise InvalidSubmission(
            f"the {name} must have at most {_MAX_ID_LENGTH} characters, without NUL and unpaired "
            f"surrogate characters; this {name} has {len(value)}: {storable(value)[:_SHOWN_OF_ID]!r}",
            value=storable(value[:80]),
            remedy=f"shorten the {name} to {_MAX_ID_LENGTH} characters, and remove NUL and unpaired "
            f"surrogate characters",
        )


def refuse_bad_delivery(request: RunActivation) -> None:
    """Raise an error for delivery options that no dispatch can have.

    Raises:
        InvalidSubmission: An id is blank, or a number is out of range.
    """
    options, hints = request.delivery, request.hints
    ids = {
        "run id": hints.run_id,
        "dispatch id": hints.dispatch_id,
        "run id to continue": request.continue_run_id,
        "agent id": request.agent_id,
        "dedupe key": options.dedupe_key,
        "tenant": options.tenant or None,
        "limit key": options.limit_key or None,
    }
    for name, value in ids.items():
        if value is not None:
            refuse_odd_id(name, value)
            if not value.strip():
                raise InvalidSubmission(f"the {name} must not be blank", remedy=f"leave out the {name}")
            if name in _NAMES and CONTROL.search(value):
                raise InvalidSubmission(
                    f"the {name} must not contain control characters: {value[:_SHOWN_OF_ID]!r}",
                    value=value[:80],
                    remedy="remove line breaks, tabs and other control characters",
                )
    if options != _NO_OPTIONS:
        _refuse_odd_numbers(options)
    for call, resume in request.decisions:
        if not call.strip() or not resume.decision_id.strip():
            raise InvalidSubmission(
                "a decision needs an id of its own and a tool call id",
                remedy="use the open question's tool call id, and choose a new id for the decision",
            )


def _refuse_odd_numbers(options: DeliveryOptions) -> None:
    if not 0 <= options.priority <= LOWEST_PRIORITY:
        raise InvalidSubmission(
            f"the priority must be from 0 to {LOWEST_PRIORITY}, not {options.priority}",
            value=options.priority,
            remedy=f"use a number from 0 (first) to {LOWEST_PRIORITY} (last), or leave out priority",
        )
    delays = {
        "delay": options.delay_ms,
        "first delay of a retry": options.retry_delay_ms,
        "longest delay of a retry": options.max_retry_delay_ms,
    }
    for name, delay in delays.items():
        if delay is not None and delay < 0:
            raise InvalidSubmission(
                f"the {name} must not be negative: {delay} ms", value=delay, remedy=f"leave out the {name}"
            )
    for name, number in (
        *delays.items(),
        ("deadline", options.deadline_at),
        ("number of attempts", options.max_attempts),
        ("number of interruptions", options.max_interruptions),
    ):
        if number is not None and number > _MAX_INTEGER:
            raise InvalidSubmission(
                f"the {name} is too large: {number}",
                value=number,
                remedy=f"use at most {_MAX_INTEGER}, or leave out the {name}",
            )
    if options.deadline_at is not None and options.deadline_at <= 0:
        raise InvalidSubmission(
            "the deadline must be a time in milliseconds since 1970",
            value=options.deadline_at,
            remedy="leave out deadline_at for no deadline",
        )
    if options.max_attempts is not None and options.max_attempts < 1:
        raise InvalidSubmission(
            f"the number of attempts must be at least 1, not {options.max_attempts}",
            value=options.max_attempts,
            remedy="leave out the number of attempts to use the default",
        )
    if options.max_interruptions is not None and options.max_interruptions < 0:
        raise InvalidSubmission(
            f"the number of interruptions must not be negative: {options.max_interruptions}",
            value=options.max_interruptions,
            remedy="leave out the number of interruptions to use the default",
        )


def refuse_missed_deadline(options: DeliveryOptions, now: int) -> None:
    """Raise an error for a deadline that passes before the run can start.

    Raises:
        InvalidSubmission: The deadline is before `now` (in milliseconds since the epoch), or before the end
            of the delay.
    """
    deadline_at, delay_ms = options.deadline_at, options.delay_ms
    if deadline_at is None or deadline_at >= now + delay_ms:
        return
    details = {"deadline_at": deadline_at, "delay_ms": delay_ms, "now": now}
    if deadline_at < now:
        raise InvalidSubmission(
            f"the deadline {iso(deadline_at)} has passed: it is now {iso(now)}",
            value=deadline_at,
            remedy="set a later deadline, or leave it out",
            details=details,
        )
    raise InvalidSubmission(
        f"with the delay of {delay_ms / 1000:g} s the run starts at {iso(now + delay_ms)} at the "
        f"earliest, after the deadline {iso(deadline_at)}",
        value=delay_ms,
        remedy="set a shorter delay or a later deadline",
        details=details,
    )


class GaveWay(NamedTuple):
    """The runs and dispatches that ended so that a new run can start."""

    interrupt: Interrupt
    ended: EndedRuns
    """The superseded queued dispatches, each with its run."""
    cancelled: RunRecord | None
    """The run that waited for an answer, and was cancelled."""


class Prepared(Record, frozen=True, kw_only=True):
    """The rows that a submission stores."""

    activation: RunActivation
    """The request, completed by the decisions of the plan."""
    run: RunRecord
    """The run that executes the request."""
    commit: ThreadCommit
    """The commit that stores the run and its messages, without a dispatch."""
    queued_at: int
    """The time at which the dispatch was queued, as stored.

    The time is later than those of all earlier work on the thread, even if other servers' clocks are ahead.
    """
    joins: RunDispatch | None = None
    """The queued dispatch that executes this submission, too."""
    answers: tuple[AnsweredTicket, ...] = ()
    """The new answers for the run."""
    dispatch: RunDispatch | None = None
    """The stored dispatch, if the run was queued."""
    claimed: Claimed | Held | None = None
    """The dispatch that was claimed in the same change, which may be older work of the thread, or the limit
    that prevented the claim.
    """
    gave_way: GaveWay | None = None
    """The work that ended so that this submission can start, or None if its policy ends nothing."""

    @property
    def run_id(self) -> str:
        """The id of the run that executes the request."""
        return self.run.run_id

    @property
    def dispatch_id(self) -> str:
        """The id of the dispatch that executes the request, or "" without a dispatch."""
        return self.run.dispatch_id or ""

    @property
    def first_seq(self) -> int:
        """The number of the request's first message in the thread."""
        return (self.commit.expected_message_count or 0) + 1


def reusable_waiting_run(state: ThreadState) -> RunRecord | None:
    """Return the thread's open or latest run that waits for input, or None."""
    thread_id = state.thread.id if state.thread else None
    for run in (state.open_run, state.latest_run):
        if run is not None and run.status is RunStatus.WAITING and thread_id in (None, run.thread_id):
            return run
    return None


def goes_on(run: RunRecord, request: RunActivation) -> bool:
    """Return whether a request resumes a waiting run.

    A request that answers none of the run's questions does not resume the run.
    """
    is_for_it = request.run_id is not None or bool(request.decisions)
    return is_for_it or not run.open_tickets or not request.messages


def choose_boundary(request: RunActivation) -> Boundary | None:
    """Return the boundary at which a request reads pending messages, or None if the request reads none."""
    if request.decisions:
        return None if request.messages else Boundary.RESUME_INPUT
    return _BOUNDARIES.get(request.trace.run_mode)


def selected_messages(
    request: RunActivation, state: ThreadState, run_id: str, *, pending_zone: bool, now: int
) -> tuple[tuple[Message, ...], tuple[PendingVersion, ...]]:
    """Return the first input of the run, and the versions of the pending messages in that input.

    Raises:
        DeliveryBlocked: A barrier precedes the new messages, or a message must be read alone.
        AlreadyConsumed: The request has no messages, and no pending message that it could read.
    """
    asks_itself = bool(request.messages or request.decisions or request.committed_message_ids)
    boundary = choose_boundary(request)
    may_read = pending_zone and boundary is not None and bool(state.pending)
    if not asks_itself and not may_read:
        raise AlreadyConsumed(
            f"no run and no message is waiting on thread {request.thread_id!r}", value=request.thread_id
        )
    if boundary is None or not may_read:
        return request.messages, ()
    mode = DeliveryMode(boundary=boundary)
    fresh = tuple(
        PendingMessage(
            thread_id=request.thread_id,
            message=message,
            position=len(state.pending) + place,
            mode=mode,
            created_at=now,
        )
        for place, message in enumerate(request.messages, start=1)
    )
    taken = select_pending((*state.pending, *fresh), boundary, run_id)
    if not asks_itself and not taken:
        raise AlreadyConsumed(
            f"no run and no message is waiting on thread {request.thread_id!r}", value=request.thread_id
        )
    missing = {entry.pending_id for entry in fresh} - {entry.pending_id for entry in taken}
    if missing:
        before = (entry for entry in state.pending if entry not in taken or entry.mode.barrier)
        blocking = next(before, state.pending[-1])  # or the last message must be read alone
        raise DeliveryBlocked(
            f"pending message {blocking.pending_id!r} blocks the thread and must be read first",
            value=blocking.pending_id,
        )
    new_ids = {entry.pending_id for entry in fresh}
    waited = tuple(entry.version for entry in taken if entry.pending_id not in new_ids)
    return tuple(entry.message for entry in taken), waited


def plan_submission(  # noqa: PLR0913 - the results of earlier steps, by name
    request: RunActivation,
    state: ThreadState,
    *,
    run_id: str,
    dispatch_id: str,
    resolution_id: str,
    existing: RunRecord | None,
    joins: RunDispatch | None,
    config: MailboxConfig,
    now: int,
) -> Prepared:
    """Plan the rows of a submission. The plan is valid while the given state is unchanged.

    Raises:
        StaleDecision: A question already has another answer, or has timed out.
    """
    request = request if existing is None else _of_its_run(request, existing)
    messages, consumes = request.messages, tuple[PendingVersion, ...]()
    if state.pending or not (messages or request.decisions or request.committed_message_ids):
        messages, consumes = selected_messages(
            request, state, run_id, pending_zone=config.pending_zone, now=now
        )
    last_seq = state.message_count + len(messages)
    covered = SeqRange(from_seq=1, to_seq=last_seq) if last_seq else None
    triggers = (*request.committed_message_ids, *map(id_of, messages))
    agent_id = agent_of(request, existing or state.latest_started_run)
    hints = RunHints(run_id=run_id, dispatch_id=dispatch_id, resolution_id=resolution_id)
    activation = replace(request, agent_id=agent_id, hints=hints)
    if existing is not None and existing.status is RunStatus.WAITING:
        activation = _continuing(activation, existing.run_id, request.trace.run_mode)
    snapshot = activation.snapshot(trigger_message_ids=triggers, covered=covered)
    if joins is not None and existing is not None and existing.activation is not None:
        snapshot = _merge_request(existing.activation, snapshot)
    run, before = existing, state.latest_started_run
    if run is None:
        run = RunRecord(
            run_id=run_id,
            thread_id=activation.thread_id,
            agent_id=agent_id,
            status=RunStatus.CREATED,
            parent_run_id=activation.trace.parent_run_id,
            created_at=now,
            state=None if before is None else before.state,
        )
    all_triggers = (*(run.input.trigger_message_ids if run.input else ()), *snapshot.trigger_message_ids)
    run_input = RunMessageInput(
        thread_id=run.thread_id, range=covered, trigger_message_ids=tuple(dict.fromkeys(all_triggers))
    )
    answers = tuple(_answers(run, request, joins, now)) if request.decisions else ()
    written = replace(
        run,
        answered=(*run.answered, *answers),
        activation=snapshot,
        input=run_input,
        dispatch_id=dispatch_id,
        resolution_id=run.resolution_id or resolution_id,
        transport_request_id=request.trace.transport_request_id or run.transport_request_id,
        updated_at=max(now, run.updated_at),
    )
    latest = None if state.thread is None else state.thread.latest_run_updated_at
    return Prepared(
        activation=activation,
        run=written,
        commit=ThreadCommit(
            thread_id=run.thread_id,
            messages=messages,
            expected_message_count=state.message_count,
            consumes=consumes,
            run=written,
            parent_thread_id=activation.trace.parent_thread_id,
            joins=None if joins is None else joins.dispatch_id,
        ),
        queued_at=now if latest is None or latest < now else latest + 1,
        joins=joins,
        answers=answers,
    )


def agent_of(request: RunActivation, before: RunRecord | None) -> str:
    """Return the agent that a request names, or the agent of the thread's previous run."""
    return request.agent_id or (DEFAULT_AGENT if before is None else before.agent_id)


def build_dispatch(
    activation: RunActivation,
    *,
    config: MailboxConfig,
    new_id: Ids,
    now: int,
    queued_at: int | None = None,
) -> RunDispatch:
    """Return the dispatch of a prepared request. `queued_at` determines the dispatch's place in the queue.

    Raises:
        InternalError: The request was not prepared.
    """
    run_id = activation.run_id
    if run_id is None:
        raise InternalError("run_id missing after preparation", value=activation.thread_id)
    options, survives = activation.delivery, activation.delivery.max_interruptions
    created_at = now if queued_at is None else queued_at
    return RunDispatch(
        dispatch_id=activation.hints.dispatch_id or new_id(),
        thread_id=activation.thread_id,
        run_id=run_id,
        created_at=created_at,
        available_at=_due_at(activation, now)
        if activation.decisions
        else (now + options.delay_ms if options.delay_ms else 0),
        updated_at=created_at,
        priority=options.priority,
        max_attempts=options.max_attempts or config.default_max_attempts or DEFAULT_MAX_ATTEMPTS,
        max_interruptions=config.default_max_interruptions if survives is None else survives,
        dedupe_key=options.dedupe_key,
        deadline_at=options.deadline_at,
        tenant=options.tenant,
        limit_key=options.limit_key,
    )


def _of_its_run(request: RunActivation, run: RunRecord) -> RunActivation:
    """Return a request that resumes a run, with the options of the run."""
    if run.activation is None:
        return request
    own, options = run.activation.options, request.options
    hidden = tuple(sorted({*own.without_runs, *options.without_runs}))
    kept = own if replace(options, without_runs=()) == RunOptions() else options
    request = replace(request, options=replace(kept, without_runs=hidden))
    before = run.activation.delivery
    delay_ms = request.delivery.delay_ms
    if run.status is RunStatus.WAITING and request.delivery == DeliveryOptions(delay_ms=delay_ms):
        deadline_at = before.deadline_at if run.started_at is None else None
        delivery = replace(before, delay_ms=delay_ms, deadline_at=deadline_at, dedupe_key=None)
    elif request.delivery.tenant or request.delivery.limit_key:
        return request
    else:
        delivery = replace(request.delivery, tenant=before.tenant, limit_key=before.limit_key)
    return replace(request, delivery=delivery)


def _answers(
    run: RunRecord, request: RunActivation, joins: RunDispatch | None, now: int
) -> list[AnsweredTicket]:
    """Return the questions of a run that the request answers, with the answers.

    Raises:
        StaleDecision: A question has another answer or has timed out, or the run now asks other questions.
    """
    answered_tickets: list[AnsweredTicket] = []
    tickets = run.waiting.tickets if run.waiting is not None else ()
    for call_id, decision in request.decisions:
        if tickets and all(ticket.tool_call_id != call_id for ticket in tickets):
            questions = ", ".join(repr(ticket.tool_call_id) for ticket in run.open_tickets) or "nothing"
            raise StaleDecision(
                f"run {run.run_id} is not asking question {call_id!r}; its open questions: {questions}",
                value=call_id,
            )
        for ticket in tickets:
            if ticket.tool_call_id != call_id:
                continue
            before = next((answered for answered in run.answered if answered.ticket == ticket), None)
            if before is None:
                # A run claimed after its question timed out has continued, whatever the local clock says.
                now = now if joins is None else max(now, joins.claimed_at or 0)
                run.refuse_late(ticket, decision, now=now)
                answered_tickets.append(AnsweredTicket(ticket=ticket, decision=decision))
            elif before.decision.decision_id != decision.decision_id:
                raise StaleDecision(f"question {ticket.ticket_id!r} has already been answered", value=call_id)
    return answered_tickets


def _continuing(activation: RunActivation, run_id: str, mode: RunMode) -> RunActivation:
    activation = activation.continuing(run_id)
    return activation.traced(run_mode=mode) if mode is RunMode.INTERNAL_WAKE else activation


def _merge_request(queued: RunActivationSnapshot, more: RunActivationSnapshot) -> RunActivationSnapshot:
    """Merge new messages and decisions into a queued request, without duplicates."""
    known_decision_ids = {resume.decision_id for _, resume in queued.seeded_decisions}
    fresh = tuple(
        decision for decision in more.seeded_decisions if decision[1].decision_id not in known_decision_ids
    )
    return replace(
        queued,
        range=more.range,
        trigger_message_ids=tuple(dict.fromkeys((*queued.trigger_message_ids, *more.trigger_message_ids))),
        seeded_decisions=(*queued.seeded_decisions, *fresh),
    )


class MailboxDispatchStatus(StrEnum):
    """The state of a submission's dispatch when the submitting call returns."""

    RUNNING = "running"
    QUEUED = "queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxSubmitResult:
    """The result of a submission.

    `joined` is true if the messages were added to an already queued dispatch.
    """

    dispatch_id: str
    run_id: str
    thread_id: str
    status: MailboxDispatchStatus
    joined: bool = False


class _Known(NamedTuple):
    thread_id: str
    run_id: str


class _PinNeeded(Exception):
    """Raised if a new run needs a pin that the executor has not provided yet."""


class _Acceptable(Exception):
    """Raised to roll back a trial, after the trial showed that the submission can replace the active run."""


class _LeftWaiting(Exception):
    """Raised if the thread has a waiting run that the messages may not resume."""


@dataclass(slots=True, kw_only=True, eq=False)
class Submission:
    """A request that is being submitted, with the ids and rows that the submission creates."""

    request: RunActivation
    policy: BusyPolicy = BusyPolicy.QUEUE
    """The policy for a busy thread. Steering was tried before."""
    claims: ClaimAsk | None = None
    """A request to claim the thread's next due dispatch in the same change, unless one is claimed already."""
    is_now: bool = False
    """Whether a caller waits for the run.

    For a waiting caller, the dispatch is claimed at once, or nothing is written.
    """
    is_queued: bool = True
    """Whether a dispatch is stored together with the run."""
    queue_cap: int | None = None
    """Maximum number of queued dispatches on the thread, or None for no limit."""
    is_reserved: bool = False
    """Whether the thread's worker and a slot are reserved for a claim."""
    run_id: str = ""
    """The id of a new run, which is generated before the change so that the change can be repeated."""
    dispatch_id: str = ""
    """The id of a new dispatch."""
    pin: str | PostroomError | None = None
    """The pin of a new run, or the error if it has none, or None if the executor was not asked yet."""
    prepared: Prepared | None = None
    """The rows that were written, or None if the messages are now pending."""
    kept: tuple[RunDispatch, Sequence[tuple[str, ToolCallResume]]] | None = None
    """The active run for which decisions were stored, and these decisions."""
    wakes: bool = False
    """Whether the messages are pending, and the active run reads them at its next step."""
    looks_again: bool = False
    """Whether to check the pending messages of the thread again, because the thread may be idle."""


class Submissions:
    """Accepts work for the queue."""

    def __init__(
        self,
        core: Core,
        events: ServerEvents,
        completion: Completion,
        dispatcher: Dispatcher,
        control: Control,
    ) -> None:
        self._core = core
        self._events = events
        self._completion = completion
        self._dispatcher = dispatcher
        self._control = control

    def checked(self, request: RunActivation, *, background: bool) -> RunActivation:
        """Return a validated request with a run mode, a thread id and message ids.

        Raises:
            InvalidSubmission: The request is invalid, and the text states why; nothing was read or written.
        """
        if (trace := request.trace).run_mode is RunMode.FOREGROUND:
            if request.decisions or request.continue_run_id:
                request = request.traced(run_mode=RunMode.RESUME)
            elif trace.origin is RunOrigin.INTERNAL:
                request = request.traced(run_mode=RunMode.INTERNAL_WAKE)
            elif background:
                request = request.traced(run_mode=RunMode.SCHEDULED)
        refuse_bad_delivery(request)
        is_new = not background or request.hints.run_id is None
        if (
            is_new and request.delivery.deadline_at is not None
        ):  # a stored run may be submitted again after its deadline
            refuse_missed_deadline(request.delivery, self._core.now())
        thread_id, messages = validate_run_inputs(
            request.thread_id,
            request.messages,
            allow_empty=bool(request.decisions),
            new_id=self._core.new_id,
        )
        return replace(request, thread_id=thread_id, messages=messages)

    # Work that waits for its turn.

    async def submit_background(
        self,
        request: RunActivation,
        *,
        strategy: BusyPolicy = BusyPolicy.QUEUE,
        first: Joined | None = None,
    ) -> MailboxSubmitResult:
        """Queue work.

        The transaction calls `first` before it stores the work, unless an active run accepts the messages.

        If the request contains only decisions, the decisions are stored for the active run. A request with
        decisions only stores the decisions for the active run of any process.

        Raises:
            StaleDecision: A call already has a decision, or its question has timed out.
            SubmissionRejected: The thread is busy and the strategy is `reject`.
            QueueFull: The thread already has the maximum number of pending messages or queued runs.
            DedupeKeyInUse: An open dispatch of the thread has the key.
        """
        request = self.checked(request, background=True)
        if strategy is BusyPolicy.STEER:
            return await self._steer_or_queue(request, None)
        try:
            return await self._queue_run(request, strategy, first)
        except ActiveRunConflict as error:
            raise SubmissionRejected(error.message, value=request.thread_id) from error
        except RunNotOpen:
            if request.messages or not request.decisions:
                raise
        row = await self._control.keep_decisions(request)
        if row is None:  # the run is no longer active
            return await self._queue_run(request, strategy)
        return MailboxSubmitResult(
            dispatch_id=row.dispatch_id,
            run_id=row.run_id,
            thread_id=row.thread_id,
            status=MailboxDispatchStatus.RUNNING,
        )

    async def submit_many(
        self, requests: Sequence[RunActivation], progress: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str, bool]]:
        """Accept work for many threads, in commits of at most `MAX_BATCH` requests.

        For each request, return the thread, the run, and whether the call created the run.

        Raises:
            InvalidSubmission: A request is invalid; the text names its position. Nothing was written.
            QueueFull, DedupeKeyInUse, DuplicateRecord: A request was refused; earlier commits remain.
        """
        checked = list[RunActivation]()
        for place, request in enumerate(requests):
            if place % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)  # let other tasks run
            try:
                checked.append(self.checked(request, background=True))
            except PostroomError as error:
                raise error.met_at(f"item {place}") from error
        results = list[tuple[str, str, bool]]()
        for first in range(0, len(checked), MAX_BATCH):
            part = self._stored_together(checked[first : first + MAX_BATCH], first)
            results += await self._core.claiming.complete(part, name="a submission")
            if progress is not None:
                progress(len(results), len(checked))
        return results

    async def _stored_together(
        self, requests: Sequence[RunActivation], first: int
    ) -> list[tuple[str, str, bool]]:
        core, dispatcher = self._core, self._dispatcher
        cap = core.config.max_queued_per_thread
        submissions = list[Submission]()
        for place, request in enumerate(requests):
            if place % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            submission = Submission(request=request, queue_cap=cap)
            await self._make_ids(submission, is_new=request.continue_run_id is None)
            submissions.append(submission)
        messages: dict[str, list[str]] = {}
        for request in requests:
            messages.setdefault(request.thread_id, []).extend(
                message.id or "" for message in request.messages
            )
        locks = sorted(map(thread_lock, messages))
        ids_of = (
            {submission.run_id for submission in submissions},
            {submission.dispatch_id for submission in submissions},
        )

        def submit(tx: Transaction) -> list[Prepared | _Known]:
            tx.lock(*locks)
            done = list[Prepared | _Known]()
            together = tx.runs.together(messages, *ids_of, at_most=cap or 1)
            for place, submission in enumerate(submissions, start=first):
                try:
                    done.append(self._one_of_many_in(tx, together, submission))
                except PostroomError as error:
                    raise error.met_at(f"item {place}") from error
            together.write()
            return done

        written = await core.observed("commit", core.store.write(submit, key=locks[0]))
        for prepared in written:
            if isinstance(prepared, Prepared):
                await self._publish(prepared)
                if not dispatcher.is_polled:
                    worker = dispatcher.workers.get_or_create(prepared.run.thread_id)
                    worker.expect(prepared.activation.delivery.tenant)
                    await dispatcher.try_dispatch_next(prepared.run.thread_id)
        return [
            (item.run.thread_id, item.run_id, True) if isinstance(item, Prepared) else (*item, False)
            for item in written
        ]

    def _one_of_many_in(
        self, tx: Transaction, together: Together, submission: Submission
    ) -> Prepared | _Known:
        request, run_id, cap = submission.request, submission.run_id, submission.queue_cap
        thread_id, trace = request.thread_id, request.trace
        if thread_id == together.runs.get(request.hints.run_id or ""):
            message = together.messages.get(run_id)
            if message is not None:
                stored = [message]
            else:
                run = tx.runs.threads.load_run(run_id)
                first = None if run is None else run.activation
                ids = () if first is None else first.trigger_message_ids
                stored = [record.message for record in tx.runs.messages.named(thread_id, ids)]
            refuse_other_content(request, run_id, stored)
            return _Known(thread_id, run_id)
        is_more = request.decisions or request.continue_run_id or request.committed_message_ids
        if not (is_more or trace.parent_thread_id or request.delivery.dedupe_key or self._events.in_commits):
            state = together.state(thread_id, run_id, submission.dispatch_id, request.messages)
            if state is not None and (cap is None or state.queued < cap):
                plan = self._plan(tx, self._as_its_agent(request), state, submission, None)
                dispatch = together.add(plan.run, plan.commit.messages, self._new_dispatch(tx, plan))
                return replace(plan, dispatch=dispatch)
        together.write(looked_at_alone=thread_id)
        prepared = self._submitted_in(tx, submission, request)
        together.runs[prepared.run_id] = thread_id
        return prepared

    def _as_its_agent(self, request: RunActivation) -> RunActivation:
        agent_id = self._core.executor.agent_of(request.thread_id)
        return request if agent_id is None else replace(request, agent_id=agent_id)

    def _new_dispatch(self, tx: Transaction, plan: Prepared) -> RunDispatch:
        core = self._core
        if plan.activation.delivery.deadline_at is not None:
            refuse_missed_deadline(plan.activation.delivery, tx.now())
        return build_dispatch(
            plan.activation, config=core.config, new_id=core.new_id, now=tx.now(), queued_at=plan.queued_at
        )

    async def submit_live_then_queue(
        self, request: RunActivation, expected_run_id: str | None = None
    ) -> MailboxSubmitResult:
        """Pass messages to the active run, or queue the messages if no run accepts them.

        Messages are delivered at least once.
        """
        return await self._steer_or_queue(self.checked(request, background=True), expected_run_id)

    async def submit_committed(self, request: RunActivation) -> MailboxSubmitResult:
        """Queue a run on messages that are already committed."""
        return await self._queue_run(request)

    async def _steer_or_queue(
        self, request: RunActivation, expected_run_id: str | None
    ) -> MailboxSubmitResult:
        steered = await self._control.steered(request, expected_run_id)
        if steered is None:
            return await self._queue_run(request)
        run_id = steered.run_id or ""
        return MailboxSubmitResult(
            dispatch_id=steered.dispatch_id or run_id,
            run_id=run_id,
            thread_id=request.thread_id,
            status=MailboxDispatchStatus.RUNNING,
        )

    async def _queue_run(
        self,
        request: RunActivation,
        policy: BusyPolicy = BusyPolicy.QUEUE,
        first: Joined | None = None,
    ) -> MailboxSubmitResult:
        submission = self._arriving(request, policy)

        async def queue() -> MailboxSubmitResult:
            with self._reserve_slots([submission]):
                prepared = submission.prepared = await self.prepare(submission, first)
            return await self._gone_on(submission, prepared)

        return await self._core.claiming.complete(queue(), name="a submission")

    def _arriving(self, request: RunActivation, policy: BusyPolicy) -> Submission:
        """Return a submission with a reserved worker and slot, if the worker and a slot are free."""
        dispatcher = self._dispatcher
        worker = dispatcher.workers.get_or_create(request.thread_id)
        # With limits, the request is only stored, because older work under a limit must be claimed first.
        tenant, is_alone = request.delivery.tenant, not self._core.config.limits
        reserved = is_alone and dispatcher.reserve(request.thread_id, worker, tenant)
        return Submission(
            request=request,
            policy=policy,
            claims=dispatcher.asks() if reserved else None,
            queue_cap=self._core.config.max_queued_per_thread,
            is_reserved=reserved,
        )

    @contextmanager
    def _reserve_slots(self, submissions: Sequence[Submission]) -> Iterator[None]:
        """Release unused reservations at the end of the context."""
        is_unknown = False
        try:
            yield
        except BaseException as error:
            is_unknown = isinstance(error, StoreError)
            for submission in submissions:
                submission.prepared = None
            raise
        finally:
            dispatcher, tasks = self._dispatcher, self._core.tasks
            for submission in submissions:
                thread_id = submission.request.thread_id
                is_claimed = submission.prepared is not None and isinstance(
                    submission.prepared.claimed, Claimed
                )
                if submission.is_reserved and not is_claimed:
                    worker = dispatcher.workers.get_or_create(thread_id)
                    if dispatcher.unreserve(worker) and not tasks.closed:
                        tasks.start(dispatcher.try_dispatch_next(thread_id), name=f"look at {thread_id}")
            if is_unknown and any(submission.is_reserved for submission in submissions):
                dispatcher.look_for_unexecuted()

    async def _gone_on(self, submission: Submission, prepared: Prepared) -> MailboxSubmitResult:
        dispatcher, thread_id, claimed = self._dispatcher, submission.request.thread_id, prepared.claimed
        worker = dispatcher.workers.get_or_create(thread_id)
        try:
            if prepared.gave_way is not None:
                await self._control.stop_active(prepared.gave_way.interrupt)
        finally:  # start a claimed run even if the caller was cancelled
            if isinstance(claimed, Claimed):
                await dispatcher.begin_or_release(claimed)
        # the rounds know which thread is next
        others_first = self._core.config.limits and dispatcher.is_polled
        is_held = isinstance(claimed, Held)  # the claim is repeated in a change that records the reason
        if (not submission.is_reserved or prepared.dispatch is None or is_held) and not others_first:
            await dispatcher.try_dispatch_next(thread_id)  # the thread may be free by now
        run = prepared.run
        dispatch, job = prepared.dispatch, worker.job
        runs = dispatch is not None and job is not None and job.dispatch.dispatch_id == dispatch.dispatch_id
        return MailboxSubmitResult(
            dispatch_id=run.dispatch_id or "",
            run_id=run.run_id,
            thread_id=run.thread_id,
            status=MailboxDispatchStatus.RUNNING if runs else MailboxDispatchStatus.QUEUED,
            joined=prepared.joins is not None,
        )

    # Work that starts at once.

    async def submit(
        self, request: RunActivation, *, strategy: BusyPolicy = BusyPolicy.INTERRUPT
    ) -> tuple[MailboxSubmitResult, EventStream]:
        """Execute a request now, and stream the events of the run.

        By default, the thread's active run is cancelled.

        Raises:
            ActiveRunConflict: The active run did not stop; nothing was written.
            DeliveryBlocked: A pending barrier precedes the message; nothing was written.
            InvalidSubmission: The strategy would add the request to another run, whose events already have a
                reader.
        """
        if strategy in (BusyPolicy.STEER, BusyPolicy.COLLECT):
            raise InvalidSubmission(
                f"a submission that streams events cannot {strategy}",
                value=strategy,
                remedy="use another strategy, or submit_background",
            )
        if strategy in (BusyPolicy.QUEUE, BusyPolicy.REJECT):
            return await self._streamed_in_turn(request, strategy)
        request = self.checked(request, background=False)
        if request.trace.run_mode is RunMode.FOREGROUND and self._core.config.pending_zone:
            thread_id, interrupt = request.thread_id, Boundary.INTERRUPT
            waiting = await self._core.store.read(
                lambda tx: tx.runs.messages.leading(thread_id, interrupt, None)
            )
            barrier = leading_barrier(waiting, interrupt)
            if barrier is not None:
                raise DeliveryBlocked(
                    f"pending message {barrier.pending_id!r} blocks the thread and must be read first",
                    value=barrier.pending_id,
                )
        stream = EventStream(self._core.config.event_channel_capacity)

        async def begin() -> Prepared:
            async with self._wanting(request.thread_id):
                prepared, claimed = await self._claimed_now(request, strategy)
                self._dispatcher.begin_foreground(claimed, stream)
            return prepared

        prepared = await self._core.claiming.complete(begin(), name="a submission")
        accepted = MailboxSubmitResult(
            dispatch_id=prepared.dispatch_id,
            run_id=prepared.run_id,
            thread_id=request.thread_id,
            status=MailboxDispatchStatus.RUNNING,
        )
        return accepted, stream

    async def _streamed_in_turn(
        self, request: RunActivation, strategy: BusyPolicy
    ) -> tuple[MailboxSubmitResult, EventStream]:
        stream = EventStream(self._core.config.event_channel_capacity)
        dispatch_id = request.hints.dispatch_id or self._core.new_id()
        self._dispatcher.read_along(dispatch_id, stream)
        try:
            request = request.hinted(dispatch_id=dispatch_id)
            result = await self.submit_background(request, strategy=strategy)
        except BaseException:
            self._dispatcher.stop_reading(dispatch_id)
            raise
        if result.dispatch_id != dispatch_id:  # the request joined another dispatch, which has its own reader
            self._dispatcher.stop_reading(dispatch_id)
        return result, stream

    async def _claimed_now(self, request: RunActivation, policy: BusyPolicy) -> tuple[Prepared, Claimed]:
        """End the active run, and claim the request's dispatch in the commit that stores the dispatch."""
        core, thread_id = self._core, request.thread_id
        claims, was_free = self._dispatcher.asks(is_now=True), False
        for _ in range(max(core.config.cancel_wait_ms // core.config.cancel_poll_ms, 1)):
            active = await core.dispatches.claimed_dispatch(thread_id)
            submission = Submission(request=request, policy=policy, claims=claims, is_now=True)
            try:
                prepared = await (
                    self._stored_now(submission)
                    if active is None
                    else self._replace_active(active, submission)
                )
            except ActiveRunConflict:
                if active is None and was_free:
                    raise  # a waiting run is not ended for a submission
                was_free = active is None
                continue  # another run started first; ask this run to end, too
            except StoreError:
                self._dispatcher.look_for_unexecuted()
                raise
            if prepared is None:
                break
            if isinstance(prepared.claimed, Claimed):
                return prepared, prepared.claimed
        raise ActiveRunConflict(ACTIVE_RUN_CONFLICT_MESSAGE, value=thread_id)

    async def _replace_active(self, active: RunDispatch, submission: Submission) -> Prepared | None:
        """Replace an active run by a submission; return None if the run does not stop."""
        await self._refuse_unfit(submission, active)
        if not await self._control.give_way(active):
            return None
        try:
            return await self._stored_now(submission)
        except (InputError, StateError) as error:
            if not isinstance(error, ActiveRunConflict):
                await self._core.store.write(partial(_make_due_now, active), key=active.thread_id)
            raise

    async def _stored_now(self, submission: Submission) -> Prepared:
        worker = self._dispatcher.workers.get_or_create(submission.request.thread_id)
        worker.storing += 1
        try:
            return await self.prepare(submission)
        finally:
            worker.storing -= 1

    async def _refuse_unfit(self, submission: Submission, active: RunDispatch) -> None:
        """Raise an error if the request could not be stored even after the end of the active dispatch."""
        request = submission.request
        await self._make_ids(submission, is_new=True)
        parent = request.trace.parent_thread_id or request.thread_id

        def try_out(tx: Transaction) -> None:
            locks = sorted({thread_lock(request.thread_id), thread_lock(parent)})
            tx.lock(*locks, *self._core.limits_lock)
            row, now = tx.runs.dispatches.load(active.dispatch_id), tx.now()
            if row is not None and active.claim_token is not None and row.claim_token == active.claim_token:
                tx.runs.dispatches.put(row.superseded(reason=INTERRUPTED, now=now))
                if (run := tx.runs.threads.load_run(row.run_id)) is not None:
                    tx.runs.threads.put_run(run.ended(TerminationReason.cancelled(), now=now))
            self._submitted_in(tx, submission, request)
            raise _Acceptable

        try:
            await self._core.store.write(try_out, key=request.thread_id)
        except _Acceptable:
            return
        except DuplicateRecord as error:
            raise await self._naming_its_run(error, request.thread_id) from error

    @asynccontextmanager
    async def _wanting(self, thread_id: str) -> AsyncIterator[None]:
        """Keep the process from claiming the thread's queued dispatches while a caller waits."""
        worker = self._dispatcher.workers.get_or_create(thread_id)
        worker.foreground += 1
        try:
            yield
        finally:
            worker.foreground -= 1
            if not worker.foreground and not worker.is_running:
                await self._dispatcher.try_dispatch_next(thread_id)

    # Messages that wait until a run reads them.

    async def deliver(
        self,
        thread_id: str,
        messages: Sequence[Message],
        mode: DeliveryMode,
    ) -> MailboxSubmitResult | None:
        """Store messages with the delivery rules in `mode`, and return the run that the messages started.

        Known message ids are ignored, so a repeated call is safe.

        Raises:
            QueueFull: More than `max_pending_per_thread` messages would be pending on the thread; none was
                stored.
        """
        request = self.checked(RunActivation.new(thread_id, messages), background=True)
        arrival = self._arriving(request, BusyPolicy.REJECT)

        def submit(tx: Transaction) -> None:
            tx.lock(thread_lock(request.thread_id), *(self._core.limits_lock if arrival.claims else ()))
            self._accepted_in(tx, arrival, request.messages, mode)

        async def deliver() -> MailboxSubmitResult | None:
            with self._reserve_slots([arrival]):
                await self._make_ids(arrival)
                if isinstance(arrival.pin, PostroomError):
                    raise arrival.pin
                await self._core.observed("commit", self._core.store.write(submit, key=request.thread_id))
            return await self._after_write(arrival)

        return await self._core.claiming.complete(deliver(), name="a delivery")

    async def accepting(
        self,
        thread_ids: Collection[str],
        change: Callable[[Transaction, Accept], T | StaleClaim],
        *,
        key: str,
        within: str | None = None,
    ) -> T:
        """Execute `change` in a transaction, in which `change` may deliver messages to runs.

        A message that cannot start a run becomes pending. `within` names another thread to lock: the thread
        of a run that `change` ends.

        Raises:
            ThreadsNeeded: The change needs further threads; nothing was written.
            QueueFull: A thread already has `max_pending_per_thread` pending messages; see `Accept`.
        """
        core, scheduled = self._core, RunMode.SCHEDULED
        requests = [
            RunActivation(thread_id=value).traced(run_mode=scheduled) for value in sorted(set(thread_ids))
        ]
        arrivals = {request.thread_id: self._arriving(request, BusyPolicy.REJECT) for request in requests}
        locks = sorted(map(thread_lock, {*arrivals, *filter(None, (within,))}))
        if core.has_budgets and (within is not None or any(arrival.claims for arrival in arrivals.values())):
            locks.append(LIMITS)  # the end of a run writes spending, which a claim reads
        cancelled = list[RunRecord]()

        def accepted(tx: Transaction) -> "T | StaleClaim":
            if locks:
                tx.lock(*locks)
            for arrival in arrivals.values():  # reset the results of an earlier execution of this change
                arrival.prepared, arrival.kept = None, None
                arrival.wakes, arrival.looks_again = False, False
            cancelled.clear()

            def put(
                thread_id: str,
                message: Message,
                mode: DeliveryMode,
                decisions: Sequence[tuple[str, ToolCallResume]],
            ) -> bool:
                self._accepted_in(tx, arrivals[thread_id], (message,), mode, decisions)
                return arrivals[thread_id].prepared is not None

            def is_full(thread_id: str) -> bool:
                most = core.config.max_pending_per_thread
                return most is not None and thread_id in tx.runs.messages.full((thread_id,), most)

            def cancel(run: RunRecord, reason: str) -> None:
                end = TerminationReason.cancelled(reason)
                if self._completion.cancelled_in(tx, run.run_id, termination=end) is not None:
                    cancelled.append(run)
                    arrivals[run.thread_id].looks_again = True

            return change(tx, Accept(frozenset(arrivals), put, is_full, cancel))

        async def store() -> T | ChangeUndone:
            try:
                with self._reserve_slots(tuple(arrivals.values())):
                    for arrival in arrivals.values():
                        await self._make_ids(arrival)
                    done = await core.observed("commit", core.store.write(accepted, key=key))
            except ChangeUndone as undone:
                return undone  # not a failure, even if the caller was cancelled and does not retry
            for run in cancelled:
                await self._completion.told_cancelled(run)
            for thread_id, arrival in arrivals.items():
                try:
                    await self._after_write(arrival)
                except PostroomError as error:  # the message is stored, and recovery checks it again
                    _LOG.warning("arrival.not_begun", thread_id=thread_id, reason=error.describe())
            return done

        stored = await core.claiming.complete(store(), name="a delivery")
        if isinstance(stored, ChangeUndone):
            raise stored
        return stored

    def _accepted_in(
        self,
        tx: Transaction,
        arrival: Submission,
        messages: Sequence[Message],
        mode: DeliveryMode,
        decisions: Sequence[tuple[str, ToolCallResume]] = (),
    ) -> None:
        arrival.prepared, arrival.looks_again = None, mode.starts_run
        if decisions and (row := self._control.kept_in(tx, mode.target_run_id or "", decisions)):
            arrival.kept = row, decisions
            mode = replace(mode, boundary=Boundary.RESUME_INPUT)  # the run reads the message with them
        arrival.wakes = mode.boundary in (Boundary.INTERRUPT, Boundary.NEXT_STEP)
        begins = mode.starts_run and not mode.barrier and mode.is_read_at(Boundary.NEW_RUN, None)
        if begins:
            request = replace(arrival.request, messages=tuple(messages), decisions=tuple(decisions))
            try:
                arrival.prepared = self._submitted_in(tx, arrival, request, mode)
            except (ActiveRunConflict, _LeftWaiting):
                arrival.looks_again = False  # the end of the thread's open run checks them
            except (DeliveryBlocked, DuplicateRecord, QueueFull, _PinNeeded):
                arrival.prepared = None
            except PostroomError as error:
                # messages that cannot be combined now stay pending
                if error is not arrival.pin:
                    raise
        if arrival.prepared is None:
            most = None if decisions else self._core.config.max_pending_per_thread
            for message in messages:
                with suppress(DuplicateRecord):
                    tx.runs.put_waiting(arrival.request.thread_id, (message,), mode, most)

    async def _after_write(self, arrival: Submission) -> MailboxSubmitResult | None:
        if arrival.kept is not None:
            await self._control.tell_kept(*arrival.kept)
        if arrival.prepared is not None:
            await self._publish(arrival.prepared)
            return await self._gone_on(arrival, arrival.prepared)
        thread_id = arrival.request.thread_id
        started = await self.take_up_left_over(thread_id) if arrival.looks_again else None
        if started is None and arrival.wakes:
            await self._control.wake(thread_id)
        return started

    async def after_run(self, thread_id: str) -> None:
        """Start a run for messages that an ended run did not read.

        Errors are logged, not raised.
        """
        try:
            await self.take_up_left_over(thread_id)
        except PostroomError as error:
            _LOG.warning("pending.not_taken_up", thread_id=thread_id, reason=error.describe())

    async def take_up_left_over(self, thread_id: str) -> MailboxSubmitResult | None:
        """Start a run on the pending messages of an idle thread; return None if no message starts a run."""
        if not self._core.config.pending_zone:
            return None

        def look(tx: Transaction) -> Sequence[PendingMessage]:
            # the end of the active run checks the pending messages
            is_at_work = tx.runs.dispatches.claimed(thread_id) is not None
            return () if is_at_work else tx.runs.messages.leading(thread_id, Boundary.NEW_RUN, None)

        waiting = await self._core.store.read(look)
        modes = [entry.mode for entry in select_pending(waiting, Boundary.NEW_RUN, None)]
        if not any(mode.target_run_id or mode.starts_run for mode in modes):
            return None
        request = RunActivation(thread_id=thread_id).traced(run_mode=RunMode.SCHEDULED)
        try:
            return await self._queue_run(request, BusyPolicy.REJECT)
        except (AlreadyConsumed, DeliveryBlocked, ActiveRunConflict):
            return None  # a run is active now, and its end checks the messages

    def resumed_in(
        self, tx: Transaction, run: RunRecord, decisions: Sequence[tuple[str, ToolCallResume]]
    ) -> Callable[[], Awaitable[None]]:
        """Store people's decisions about a waiting run, and queue the run again.

        The caller must hold the lock of the run's thread. After the commit, the caller must call the returned
        function, which publishes the events.
        """
        request = RunActivation.new(run.thread_id, [], continue_run_id=run.run_id, decisions=decisions)
        checked = self.checked(request, background=True)
        submission = Submission(request=checked, run_id=run.run_id, dispatch_id=tx.new_id())
        prepared = self._submitted_in(tx, submission, checked)
        return lambda: self._publish(prepared)

    # Planning and writing in one commit.

    async def prepare(self, submission: Submission, first: Joined | None = None) -> Prepared:
        """Store the run, the messages and the dispatch of a request in one transaction.

        `first` is called at the start of the transaction.

        Raises:
            UnknownRun, ForeignThread, RunNotOpen, DeliveryBlocked: The state of the thread does not allow the
                request.
            ResolveFailed: The executor cannot resolve the agent.
            ActiveRunConflict, QueueFull, DedupeKeyInUse: The dispatch cannot be queued now.
        """
        core, request = self._core, submission.request
        parent = request.trace.parent_thread_id or request.thread_id
        locks = sorted({thread_lock(request.thread_id), thread_lock(parent)})
        calls = [call for call, _ in request.decisions] if request.decisions else ()
        if (submission.claims is not None and core.limits_lock) or (calls and answers_budget(calls)):
            locks.append(LIMITS)
        if first is not None:
            locks += first.locks
        await self._make_ids(submission, is_new=request.continue_run_id is None)

        def submit(tx: Transaction) -> Prepared:
            tx.lock(*locks)
            if first is not None:
                first.change(tx)
            return self._submitted_in(tx, submission, request)

        try:
            prepared = await core.observed("commit", core.store.write(submit, key=request.thread_id))
        except _PinNeeded:
            await self._make_ids(submission, is_new=True)
            prepared = await core.observed("commit", core.store.write(submit, key=request.thread_id))
        except DuplicateRecord as error:
            raise await self._naming_its_run(error, request.thread_id) from error
        except StoreError as error:
            await self._tell_failure(submission, error)
            raise
        await self._publish(prepared)
        return prepared

    async def _naming_its_run(self, error: DuplicateRecord, thread_id: str) -> DuplicateRecord:
        """Return the error for a duplicate message, with the id of the run that has it."""
        message_id = str(error.value)
        run = await self._core.store.read(lambda tx: tx.runs.messages.given_to(thread_id, message_id))
        if run is None:
            return error
        text = f"{error.message}: run {run.run_id!r} contains the message"
        remedy = f"wait for run {run.run_id!r}, or give the message another id"
        return DuplicateRecord(text, value=error.value, remedy=remedy, details={"run_id": run.run_id})

    async def _make_ids(self, submission: Submission, *, is_new: bool | None = None) -> None:
        core, request = self._core, submission.request
        if is_new is None:
            is_new = not self._dispatcher.workers.get_or_create(request.thread_id).is_running
        submission.run_id, submission.pin = request.run_id or core.new_id(), None
        if is_new:
            try:
                submission.pin = await core.pinning.pin(request, run_id=submission.run_id)
            except PostroomError as error:
                submission.pin = error  # a stored run already has its pin
        submission.dispatch_id = request.hints.dispatch_id or core.new_id()

    def _submitted_in(
        self,
        tx: Transaction,
        submission: Submission,
        request: RunActivation,
        mode: DeliveryMode | None = None,
    ) -> Prepared:
        """Plan and store a submission under the thread's lock.

        `mode` applies to messages that stay pending.
        """
        request = activation = self._as_its_agent(request)
        state, gave_way = tx.runs.state(_look_for(request, submission)), None
        if submission.is_queued and (submission.is_now or submission.policy is not BusyPolicy.QUEUE):
            request, state, gave_way = self._by_policy(tx, submission, request, state, mode)
        if activation.run_id is not None and request.messages and submission.is_queued:
            request = _without_known_messages(tx, request, state)
        plan = self._plan(tx, request, state, submission, mode)
        # The commit uses the same data, unless it writes rows that were not read.
        is_seen = plan.run.run_id == (request.run_id or submission.run_id) and not plan.commit.consumes
        seen = state if is_seen and plan.joins is None else None
        if submission.is_queued and plan.joins is None:
            is_held = state.held_by not in (None, plan.run.run_id)
            is_free = state.claimed is None and not state.queued and not is_held
            plan = self._queued_in(tx, plan, submission, seen, is_free=is_free)
        else:
            done, claimed = self._write_plan(tx, plan, plan.commit, seen), None
            if plan.joins is not None and plan.answers:
                tx.runs.dispatches.hurry(plan.joins.dispatch_id, not_before=_due_with_answers(plan, tx.now()))
            if submission.claims is not None:
                claimed = self._claimed_in(tx, plan, submission.claims, is_now=submission.is_now)
            plan = replace(plan, dispatch=done.dispatch, claimed=claimed)
        return plan if gave_way is None else replace(plan, gave_way=gave_way)

    def _by_policy(
        self,
        tx: Transaction,
        submission: Submission,
        request: RunActivation,
        state: ThreadState,
        mode: DeliveryMode | None,
    ) -> tuple[RunActivation, ThreadState, GaveWay | None]:
        """Apply the policy for busy threads; return the request, the thread's state, and the ended work.

        Raises:
            ActiveRunConflict: The thread is busy, but the policy requires an idle thread, or a caller waits
                for the run.
        """
        run, activation, policy = state.run, request, submission.policy
        # A stored run must not be refused because of itself.
        if request.hints.run_id is not None and run is not None and run.status is not RunStatus.WAITING:
            policy = BusyPolicy.QUEUE
        is_busy = state.held_by not in (None, request.run_id) and not request.decisions and mode is None
        asking, gave_way = state.held_by if is_busy else None, None
        queue, thread_id = tx.runs.dispatches, request.thread_id
        if submission.is_now and state.claimed is not None:
            raise ActiveRunConflict(ACTIVE_RUN_CONFLICT_MESSAGE, value=state.claimed)
        if policy is BusyPolicy.REJECT and (state.claimed is not None or state.queued or asking is not None):
            raise ActiveRunConflict(f"thread {thread_id!r} is busy", value=state.claimed or thread_id)
        if policy is BusyPolicy.COLLECT and state.queued and request.run_id is None:
            queued = queue.of_thread(thread_id, (RunDispatchStatus.QUEUED,), limit=MAX_PAGE, offset=0)
            for row in sorted(queued, key=lambda row: (row.created_at, row.dispatch_id), reverse=True):
                queued_run = tx.runs.threads.load_run(row.run_id)
                if queued_run is not None and _may_join(request, state, row, queued_run, now=tx.now()):
                    request = request.hinted(run_id=row.run_id)
                    break
        if policy is BusyPolicy.ROLLBACK:
            rows = queue.of_thread(thread_id, OPEN, limit=MAX_PAGE, offset=0)
            # The request, changed so that its run does not see these runs.
            run_ids = [*(row.run_id for row in rows), *filter(None, (asking,))]
            gone = {*request.options.without_runs, *run_ids} - {request.run_id}
            request = replace(request, options=replace(request.options, without_runs=tuple(sorted(gone))))
        if policy in (BusyPolicy.INTERRUPT, BusyPolicy.ROLLBACK):
            cancelled = None
            if is_busy and not submission.is_now:
                cancelled = self._completion.cancelled_in(tx, state.held_by or "")
            raised = queue.interrupt(thread_id)
            gave_way = GaveWay(*self._completion.interrupted_in(tx, raised), cancelled)
        if gave_way is not None or request is not activation:
            state = tx.runs.state(_look_for(request, submission))
        return request, state, gave_way

    def _queued_in(
        self,
        tx: Transaction,
        plan: Prepared,
        submission: Submission,
        state: ThreadState | None,
        *,
        is_free: bool,
    ) -> Prepared:
        claims, dispatch, run = submission.claims, self._new_dispatch(tx, plan), plan.run
        if claims is not None and claims.places is not None and claims.is_elsewhere(tx, run.thread_id):
            claims = None
        is_next = submission.is_now or (is_free and dispatch.available_at <= tx.now())
        # A new run starts with the commit if the plan contains all that the run reads.
        is_new = run.status is RunStatus.CREATED and not plan.activation.committed_message_ids
        begins, start = claims is not None and claims.begins and is_new, None
        if claims is not None and is_next and (claims.limits or claims.budgets is not None):
            start = claims.start(tx, dispatch, run)
            begins = begins and start.held is None and not start.asks
            is_next = submission.is_now or begins  # otherwise claimed like other due work
        # An answer belongs to a run that was accepted earlier, so the queue limit does not apply.
        cap = None if plan.answers else submission.queue_cap
        claimed_by = claims if is_next else None
        commit = replace(plan.commit, queues=dispatch, queue_cap=cap, claimed_by=claimed_by)
        if claims is None or not is_next:
            done = self._write_plan(tx, plan, commit, state)
            claimed = None if claims is None else claimed_next(tx, run.thread_id, claims)
            return replace(plan, dispatch=done.dispatch, claimed=claimed)
        if not begins:
            done = self._write_plan(tx, plan, commit, state)
            claimed = None if done.dispatch is None else begun_in(tx, done.dispatch, claims)
            return replace(plan, dispatch=done.dispatch, claimed=claimed)
        if claims.limits:
            note_start(tx, claims.limits, dispatch)
        run = run.begun(dispatch.dispatch_id, claims.instance_id, now=tx.now())
        commit = replace(commit, run=run, begins=claims.instance_id)
        done = self._write_plan(tx, plan, commit, state)
        claimed = None
        if done.dispatch is not None:
            claimed = Claimed(
                dispatch=done.dispatch,
                instance_id=claims.instance_id,
                run=run,
                messages=plan.commit.messages,
                has_begun=True,
                beginning=claims.effects and claims.effects.begin(tx, run, plan.commit.messages),
                start=start,
            )
            if start is not None:  # the run is already stored, but its spending is not
                claimed = claimed.noted(tx, claims)
        return replace(plan, run=run, dispatch=done.dispatch, claimed=claimed)

    def _write_plan(
        self, tx: Transaction, plan: Prepared, commit: ThreadCommit, state: ThreadState | None
    ) -> Committed:
        if plan.answers:
            settle(tx, plan.run, plan.answers)
        in_commits = self._events.in_commits
        if in_commits:
            run, messages = plan.run, plan.commit.messages
            drafts = self._events.of_commit(run.thread_id, run.run_id, messages, first_seq=plan.first_seq)
            commit = replace(commit, events=drafts)
        done = tx.runs.commit(commit, state=state)
        if isinstance(done, StaleClaim):
            raise done
        if in_commits and done.dispatch is not None:
            tx.events.append((self._events.of_dispatch("RunQueued", done.dispatch),))
        return done

    def _claimed_in(
        self, tx: Transaction, plan: Prepared, claims: ClaimAsk, *, is_now: bool
    ) -> Claimed | Held | None:
        if not is_now or plan.joins is None:
            return claimed_next(tx, plan.run.thread_id, claims)
        if claims.is_elsewhere(tx, plan.run.thread_id):
            return None
        row = tx.runs.dispatches.claim_dispatch(plan.joins.dispatch_id, claims)
        return None if row is None else begun_in(tx, row, claims)

    def _plan(
        self,
        tx: Transaction,
        request: RunActivation,
        state: ThreadState,
        submission: Submission,
        mode: DeliveryMode | None,
    ) -> Prepared:
        """Plan the run of a request: a new run, or a stored run that the request resumes.

        Raises:
            UnknownRun: The request names a run to continue, and that run does not exist.
            ForeignThread: The run belongs to another thread.
            RunNotOpen: The run is active or done.
        """
        existing, joins, resumed = state.run, None, None
        if request.run_id is None:
            existing = reusable_waiting_run(state)
        elif existing is None and request.continue_run_id is not None:
            raise UnknownRun(f"there is no run {request.run_id!r}", value=request.run_id)
        elif existing is not None and existing.thread_id != request.thread_id:
            text = f"run {existing.run_id!r} belongs to thread {existing.thread_id!r}"
            raise ForeignThread(text, value=existing.run_id)
        elif existing is not None and existing.status not in (RunStatus.CREATED, RunStatus.WAITING):
            text = f"run {existing.run_id!r} is {existing.status} and is not open for dispatch"
            raise RunNotOpen(text, value=existing.run_id)
        if existing is not None:
            existing, joins, resumed = _going_on(tx, request, existing, mode)
        resolution_id = None if existing is None else existing.resolution_id
        if resolution_id is None:
            if isinstance(submission.pin, PostroomError):
                raise submission.pin
            if submission.pin is None:
                raise _PinNeeded
            resolution_id = submission.pin
        run_id = existing.run_id if existing else submission.run_id
        if state.waiting:
            state = self._with_pending(tx, request, state, run_id, resumed)
        return plan_submission(
            request,
            state,
            run_id=run_id,
            dispatch_id=joins.dispatch_id if joins else submission.dispatch_id,
            resolution_id=resolution_id,
            existing=existing,
            joins=joins,
            config=self._core.config,
            now=tx.now(),
        )

    def _with_pending(
        self,
        tx: Transaction,
        request: RunActivation,
        state: ThreadState,
        run_id: str,
        resumed: RunRecord | None,
    ) -> ThreadState:
        """Return the thread's state with the pending messages that the request may read.

        Raises:
            DuplicateRecord: A message of the request is already pending on the thread.
        """
        messages, boundary = tx.runs.messages, choose_boundary(request)
        message_ids = [message.id for message in request.messages if message.id]
        if message_ids:
            for twice in messages.among_waiting(request.thread_id, message_ids):
                raise DuplicateRecord(f"message {twice!r} is already waiting in the thread", value=twice)
        if boundary is None or not self._core.config.pending_zone:
            return state
        pending = messages.leading(request.thread_id, boundary, run_id, resumed=resumed)
        return replace(state, pending=pending)

    async def _publish(self, prepared: Prepared) -> None:
        metrics, events = self._core.metrics, self._events
        if prepared.gave_way is not None:
            for dispatch, run in prepared.gave_way.ended:
                self._completion.told(dispatch, run)
                await self._dispatcher.end_reading(dispatch)
            if prepared.gave_way.cancelled is not None:
                await self._completion.told_cancelled(prepared.gave_way.cancelled)
        if events.is_on and not events.in_commits:
            run, messages = prepared.run, prepared.commit.messages
            await events.messages_committed(run.thread_id, run.run_id, messages, first_seq=prepared.first_seq)
            if prepared.dispatch is not None:
                await events.dispatch_happened("RunQueued", prepared.dispatch)
        if prepared.dispatch is not None:
            metrics.happened("enqueue")
        if isinstance(prepared.claimed, Claimed):
            metrics.happened("claim")

    async def _tell_failure(self, submission: Submission, error: PostroomError) -> None:
        if not self._events.is_on:
            return
        core = self._core
        request = submission.request.hinted(run_id=submission.run_id, dispatch_id=submission.dispatch_id)
        dispatch = build_dispatch(request, config=core.config, new_id=core.new_id, now=core.now())
        facts = {"reason": "enqueue_failed", "error": error.describe()}
        await self._events.dispatch_happened("MailboxSubmitFailed", dispatch, **facts)
        if request.decisions:
            decisions = [decision_facts(call, resume) for call, resume in request.decisions]
            await self._events.dispatch_happened(
                "MailboxResumeFailed", dispatch, **facts, decisions=decisions
            )


def _look_for(request: RunActivation, submission: Submission) -> Look:
    return state_look(
        request.thread_id,
        run_id=request.run_id or submission.run_id,
        parent=request.trace.parent_thread_id or "",
        adds=(submission.dispatch_id, request.delivery.dedupe_key, submission.run_id),
        message_ids=tuple(filter(None, map(id_of, request.messages))),
        at_most=submission.queue_cap or 1,
        is_submission=True,
    )


def _going_on(
    tx: Transaction, request: RunActivation, existing: RunRecord, mode: DeliveryMode | None
) -> tuple[RunRecord | None, RunDispatch | None, RunRecord | None]:
    """Return the stored run that a request resumes, with the run's queued dispatch.

    Raises:
        RunNotOpen: The request names the run, which is claimed.
    """
    if existing.status is RunStatus.WAITING:
        if mode is not None and not mode.may_resume(existing.run_id, asks=bool(existing.open_tickets)):
            raise _LeftWaiting
        if mode is None and not goes_on(existing, request):
            return None, None, None
    resumed = existing if existing.status is RunStatus.WAITING else None
    row = None if existing.dispatch_id is None else tx.runs.dispatches.load(existing.dispatch_id)
    if row is None or row.run_id != existing.run_id or row.status not in OPEN:
        return existing, None, resumed
    if row.status is RunDispatchStatus.QUEUED:
        return existing, row, resumed
    if request.run_id is not None:
        raise RunNotOpen(f"run {row.run_id!r} is already being executed", value=row.dispatch_id)
    return None, None, resumed  # another message is resuming the run; this one is for the next run


def _make_due_now(active: RunDispatch, tx: Transaction) -> None:
    tx.lock(thread_lock(active.thread_id))
    tx.runs.dispatches.hurry(active.dispatch_id, not_before=tx.now())


def _due_at(activation: RunActivation, now: int) -> int:
    """Return when a delayed or answered run is due, not before its answers are final; 0 means at once."""
    delay_ms = activation.delivery.delay_ms
    due = max([now + delay_ms, *(decision.held_until for _, decision in activation.decisions)])
    return due if due > now else 0


def _due_with_answers(plan: Prepared, now: int) -> int:
    """Return when a run may resume with new answers, in milliseconds since 1970."""
    due = _due_at(plan.activation, now) or now
    tickets = plan.run.waiting.tickets if plan.run.waiting is not None else ()
    given_answered_tickets = [answered for answered in plan.run.answered if answered.ticket in tickets]
    waits_for_earlier = plan.joins is not None and len(given_answered_tickets) > len(plan.answers)
    return max(due, plan.joins.available_at or 0) if plan.joins and waits_for_earlier else due


def _without_known_messages(tx: Transaction, request: RunActivation, state: ThreadState) -> RunActivation:
    """Return the request without messages that an earlier copy of the request has queued."""
    run = state.run
    if run is None or run.activation is None or run.dispatch_id is None or run.thread_id != request.thread_id:
        return request
    row = tx.runs.dispatches.load(run.dispatch_id)
    if row is None or row.status is not RunDispatchStatus.QUEUED or row.run_id != run.run_id:
        return request
    ids = run.activation.trigger_message_ids
    by_message_id = {
        record.message_id: _without_id(record.message)
        for record in tx.runs.messages.named(run.thread_id, ids)
    }
    read, messages = (
        [by_message_id.get(id) for id in ids],
        [_without_id(message) for message in request.messages],
    )
    starts = range(len(read) - len(messages) + 1)
    if not any(read[start : start + len(messages)] == messages for start in starts):
        return request
    return replace(request, messages=(), committed_message_ids=ids)


def refuse_other_content(request: RunActivation, run_id: str, stored: Sequence[Message]) -> None:
    """Raise an error if a key was already used for a run with different content.

    Raises:
        IdempotencyConflict: The content differs, so nothing was written.
    """
    if not stored or not request.messages or _words(request.messages[0]) in map(_words, stored):
        return
    key = request.hints.key
    raise IdempotencyConflict(
        f"the key {key!r} belongs to run {run_id!r} of thread {request.thread_id!r}, whose content differs",
        value=key,
        remedy="use a different key for a different job; a call with the same content returns the run",
        details={"key": key, "run_id": run_id},
    )


def _words(message: Message) -> bytes:
    return msgspec.json.encode(_without_id(message), order="sorted")


def _without_id(message: Message) -> Message:
    return replace(message, id=None, metadata=None)


def _may_join(
    request: RunActivation, state: ThreadState, row: RunDispatch, run: RunRecord, *, now: int
) -> bool:
    """Return whether a request may join a queued run, which must be due and have the same options."""
    queued = run.activation
    if queued is None or run.status is not RunStatus.CREATED or row.available_at > now:
        return False  # a started run has already read its input
    delivery = replace(queued.delivery, delay_ms=0, dedupe_key=request.delivery.dedupe_key)
    request_key = agent_of(request, state.latest_started_run), request.delivery, request.options
    return request_key == (queued.agent_id, delivery, queued.options)
