"""Checks a submission and decides what it writes, from what was seen of its thread. Looks nothing up.

run named, or waiting for input ──▶ the same run goes on: the messages are its input
a message that may not resume it ──▶ waits until that run has ended
a dispatch of that run is queued ──▶ it is joined: one delivery brings both
otherwise ─────────────────────────▶ a new run
"""

from collections.abc import Sequence

from postroom.contracts.activation import (
    DeliveryOptions,
    RunActivation,
    RunActivationSnapshot,
    RunHints,
    RunMode,
    RunOrigin,
)
from postroom.contracts.clock import Ids, iso
from postroom.contracts.dispatch import DEFAULT_MAX_ATTEMPTS, LOWEST_PRIORITY, RunDispatch
from postroom.contracts.errors import (
    AlreadyConsumed,
    DeliveryBlocked,
    ForeignThread,
    InternalError,
    InvalidSubmission,
    RunNotOpen,
    StaleDecision,
    UnknownRun,
)
from postroom.contracts.live import LiveRunCommand
from postroom.contracts.messages import (
    CONTROL,
    Boundary,
    DeliveryMode,
    Message,
    PendingMessage,
    PendingVersion,
    Role,
    SeqRange,
    select_pending,
    storable,
)
from postroom.contracts.records import Record, replace
from postroom.contracts.run_stores import SubmissionFacts, ThreadCommit
from postroom.contracts.runs import (
    AnsweredTicket,
    RunMessageInput,
    RunRecord,
    RunStatus,
    RunWaitingTicket,
)
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import MailboxConfig

_LONGEST_ID = 512
_SHOWN_OF_ID = 40
_NAMES = ("agent id", "dedupe key", "tenant", "limit key")
"""What people read in lists and logs."""
_MOST = 2**53
"""Numbers up to which every store keeps them as they are."""
DEFAULT_AGENT = "default"

_BOUNDARIES = {
    RunMode.FOREGROUND: Boundary.INTERRUPT,
    RunMode.SCHEDULED: Boundary.NEW_RUN,
    RunMode.RESUME: Boundary.RESUME_INPUT,
}


def validate_run_inputs(
    thread_id: str, messages: Sequence[Message], *, allow_empty: bool, new_id: Ids
) -> tuple[str, tuple[Message, ...]]:
    """Return the thread's id, trimmed or new when it is blank, and the messages, each with an id.

    Raises:
        InvalidSubmission: there is no message and no decision, or a message cannot be accepted.
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
                    remedy="leave out the id: then the message gets one",
                )
        for block in message.content:
            if storable(block.text) != block.text:
                raise InvalidSubmission(
                    "a message contains half of a character",
                    value=message.id,
                    remedy="decode the text with errors='replace' where you read it",
                )
        if message.role is Role.USER and not message.content:
            raise InvalidSubmission(
                "a message must not be empty",
                value=message.id,
                remedy="give the message a text or other content",
            )
        message_id = message.id or new_id()
        if message_id in accepted:
            raise InvalidSubmission(
                "two messages have the same id", value=message_id, remedy="give each message another id"
            )
        accepted[message_id] = message if message.id else replace(message, id=message_id)
    return thread_id.strip() or new_id(), tuple(accepted.values())


def refuse_odd_id(name: str, value: str) -> None:
    """Refuse an id that not every store can keep.

    Raises:
        InvalidSubmission: it is too long, or holds NUL or half of a character.
    """
    if len(value) > _LONGEST_ID or "\x00" in value or storable(value) != value:
        raise InvalidSubmission(
            f"the {name} must have at most {_LONGEST_ID} characters, without zero bytes and halves "
            f"of characters; this {name} has {len(value)}: {storable(value)[:_SHOWN_OF_ID]!r}",
            value=storable(value[:80]),
            remedy=f"give the {name} at most {_LONGEST_ID} characters, and remove zero bytes",
        )


def refuse_bad_delivery(request: RunActivation) -> None:
    """Refuse delivery options that no dispatch can have.

    Raises:
        InvalidSubmission: a blank id, or a number outside its range.
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
    _refuse_odd_numbers(options)
    for call, resume in request.decisions:
        if not call.strip() or not resume.decision_id.strip():
            raise InvalidSubmission(
                "a decision needs an id and the id of its tool call",
                remedy="take the id of the tool call from the open question, and make an id for the decision",
            )


def _refuse_odd_numbers(options: DeliveryOptions) -> None:
    if not 0 <= options.priority <= LOWEST_PRIORITY:
        raise InvalidSubmission(
            f"the priority must be from 0 to {LOWEST_PRIORITY}, not {options.priority}",
            value=options.priority,
            remedy=f"use 0 for the first, {LOWEST_PRIORITY} for the last, or leave out priority",
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
        if number is not None and number > _MOST:
            raise InvalidSubmission(
                f"the {name} is too large: {number}",
                value=number,
                remedy=f"give at most {_MOST}, or leave out the {name}",
            )
    if options.deadline_at is not None and options.deadline_at <= 0:
        raise InvalidSubmission(
            "the deadline must be a time in milliseconds since 1970",
            value=options.deadline_at,
            remedy="leave out deadline_at for no deadline",
        )
    if options.max_attempts is not None and options.max_attempts < 1:
        raise InvalidSubmission(
            f"there must be at least one attempt, not {options.max_attempts}",
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
    """Refuse a deadline before which the run cannot begin: it could only fail.

    Raises:
        InvalidSubmission: The deadline is before `now`, in milliseconds since the epoch, or before the end of
            the delay.
    """
    deadline_at, delay_ms = options.deadline_at, options.delay_ms
    if deadline_at is None or deadline_at >= now + delay_ms:
        return
    details = {"deadline_at": deadline_at, "delay_ms": delay_ms, "now": now}
    if deadline_at < now:
        raise InvalidSubmission(
            f"the deadline {iso(deadline_at)} has passed: the time is {iso(now)}",
            value=deadline_at,
            remedy="give a later deadline, or no deadline",
            details=details,
        )
    raise InvalidSubmission(
        f"with the delay of {delay_ms / 1000:g} s the run starts at {iso(now + delay_ms)} at the "
        f"earliest, after the deadline {iso(deadline_at)}",
        value=delay_ms,
        remedy="give a shorter delay or a later deadline",
        details=details,
    )


def normalized_mode(request: RunActivation, *, background: bool) -> RunActivation:
    """Return the request in the mode it is meant in; only `foreground`, the default, is ever replaced."""
    if request.trace.run_mode is not RunMode.FOREGROUND:
        return request
    if request.decisions or request.continue_run_id:
        return request.traced(run_mode=RunMode.RESUME)
    if request.trace.origin is RunOrigin.INTERNAL:
        return request.traced(run_mode=RunMode.INTERNAL_WAKE)
    return request.traced(run_mode=RunMode.SCHEDULED) if background else request


class Plan(Record, frozen=True, kw_only=True):
    """What a submission writes; `joins` is the queued dispatch that it becomes part of."""

    activation: RunActivation
    run: RunRecord
    commit: ThreadCommit
    """The step that stores the run and its messages, without a dispatch."""
    first_seq: int
    """The number of the first of these messages on the thread."""
    queued_at: int
    """When it counts as queued: after what the thread was given before, whatever the clocks of others say."""
    joins: RunDispatch | None = None
    answers: tuple[AnsweredTicket, ...] = ()
    """What the run is told with it, that it was not told before."""


def reusable_waiting_run(facts: SubmissionFacts) -> RunRecord | None:
    """Return the run that waits for input: the one that the thread calls open, else the latest."""
    thread_id = facts.thread.id if facts.thread else None
    for run in (facts.open_run, facts.latest_run):
        if run is not None and run.status is RunStatus.WAITING and thread_id in (None, run.thread_id):
            return run
    return None


def goes_on(run: RunRecord, request: RunActivation) -> bool:
    """Say whether a request lets a run go on that waits; what does not answer its questions comes behind."""
    is_for_it = request.run_id is not None or bool(request.decisions)
    return is_for_it or not run.open_tickets or not request.messages


def boundary_of(request: RunActivation) -> Boundary | None:
    """Return the boundary at which a request reads the messages that wait; None if it reads none."""
    return None if request.decisions else _BOUNDARIES.get(request.trace.run_mode)


def existing_run(request: RunActivation, facts: SubmissionFacts) -> RunRecord | None:
    """Return the stored run that the request is for, or None when it asks for a new one.

    Raises:
        UnknownRun: it names a run to continue that does not exist.
        ForeignThread: the run is another thread's.
        RunNotOpen: the run is running, or done.
    """
    if request.run_id is None:
        return reusable_waiting_run(facts)
    run = facts.named_run
    if run is None:
        if request.continue_run_id is not None:
            raise UnknownRun(f"there is no run {request.continue_run_id!r}", value=request.continue_run_id)
        return None
    if run.thread_id != request.thread_id:
        raise ForeignThread(f"run {run.run_id!r} belongs to thread {run.thread_id!r}", value=run.run_id)
    if run.status not in (RunStatus.CREATED, RunStatus.WAITING):
        raise RunNotOpen(f"run {run.run_id!r} is {run.status} and is not open for dispatch", value=run.run_id)
    return run


def selected_messages(
    request: RunActivation, facts: SubmissionFacts, run_id: str, *, pending_zone: bool, now: int
) -> tuple[tuple[Message, ...], tuple[PendingVersion, ...]]:
    """Return what the run reads first, and what of it waited on the thread.

    Raises:
        DeliveryBlocked: a barrier stands before the new messages, or one wants to be read alone.
        AlreadyConsumed: it brings no messages, and nothing waits that it could read.
    """
    asks_itself = bool(request.messages or request.decisions or request.committed_message_ids)
    if not facts.pending and asks_itself:
        return request.messages, ()
    boundary = boundary_of(request)
    may_read = pending_zone and boundary is not None and bool(facts.pending)
    if not asks_itself and not may_read:
        raise AlreadyConsumed(
            f"no run and no message waits on thread {request.thread_id!r}", value=request.thread_id
        )
    if boundary is None or not may_read:
        return request.messages, ()
    mode = DeliveryMode(boundary=boundary)
    fresh = tuple(
        PendingMessage(
            thread_id=request.thread_id,
            message=message,
            position=len(facts.pending) + place,
            mode=mode,
            created_at=now,
        )
        for place, message in enumerate(request.messages, start=1)
    )
    taken = select_pending((*facts.pending, *fresh), boundary, run_id)
    if not asks_itself and not taken:
        raise AlreadyConsumed(
            f"no run and no message waits on thread {request.thread_id!r}", value=request.thread_id
        )
    missing = {entry.pending_id for entry in fresh} - {entry.pending_id for entry in taken}
    if missing:
        before = (entry for entry in facts.pending if entry not in taken or entry.mode.barrier)
        blocking = next(before, facts.pending[-1])  # or the last of them wants to be read alone
        raise DeliveryBlocked(
            f"pending message {blocking.pending_id!r} must be read first", value=blocking.pending_id
        )
    new_ids = {entry.pending_id for entry in fresh}
    waited = tuple(entry.version for entry in taken if entry.pending_id not in new_ids)
    return tuple(entry.message for entry in taken), waited


def plan_submission(  # noqa: PLR0913 - what was seen and decided before, by name
    request: RunActivation,
    facts: SubmissionFacts,
    *,
    run_id: str,
    dispatch_id: str,
    resolution_id: str,
    existing: RunRecord | None,
    joins: RunDispatch | None,
    config: MailboxConfig,
    now: int,
) -> Plan:
    """Return what the submission writes when nothing has changed since the facts were seen.

    Raises:
        StaleDecision: one of the questions that it answers has another answer already, or its time is over.
    """
    request = request if existing is None else _of_its_run(request, existing)
    messages, consumes = selected_messages(request, facts, run_id, pending_zone=config.pending_zone, now=now)
    last_seq = facts.message_count + len(messages)
    covered = SeqRange(from_seq=1, to_seq=last_seq) if last_seq else None
    triggers = (*request.committed_message_ids, *(message.id or "" for message in messages))
    agent_id = agent_of(request, existing or facts.latest_started_run)
    hints = RunHints(run_id=run_id, dispatch_id=dispatch_id, resolution_id=resolution_id)
    activation = replace(request, agent_id=agent_id, hints=hints)
    if existing is not None and existing.status is RunStatus.WAITING:
        activation = _continuing(activation, existing.run_id, request.trace.run_mode)
    snapshot = activation.snapshot(trigger_message_ids=triggers, covered=covered)
    if joins is not None and existing is not None and existing.activation is not None:
        snapshot = _joined(existing.activation, snapshot)
    run, before = existing, facts.latest_started_run
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
    answers = tuple(_answers(run, request, now)) if request.decisions else ()
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
    latest = None if facts.thread is None else facts.thread.latest_run_updated_at
    return Plan(
        activation=activation,
        run=written,
        commit=ThreadCommit(
            thread_id=run.thread_id,
            messages=messages,
            expected_message_count=facts.message_count,
            consumes=consumes,
            run=written,
            parent_thread_id=activation.trace.parent_thread_id,
            joins=None if joins is None else joins.dispatch_id,
        ),
        first_seq=facts.message_count + 1,
        queued_at=now if latest is None or latest < now else latest + 1,
        joins=joins,
        answers=answers,
    )


def agent_of(request: RunActivation, before: RunRecord | None) -> str:
    """Return the agent of a request: the one that it names, else that of the run before it."""
    return request.agent_id or (DEFAULT_AGENT if before is None else before.agent_id)


def build_dispatch(
    activation: RunActivation,
    *,
    config: MailboxConfig,
    new_id: Ids,
    now: int,
    queued_at: int | None = None,
) -> RunDispatch:
    """Return the dispatch of a prepared request; `queued_at` decides its turn on the thread.

    Raises:
        InternalError: it was not prepared.
    """
    run_id = activation.run_id
    if run_id is None:
        raise InternalError("run_id missing after preparation", value=activation.thread_id)
    options = activation.delivery
    created_at = now if queued_at is None else queued_at
    return RunDispatch(
        dispatch_id=activation.hints.dispatch_id or new_id(),
        thread_id=activation.thread_id,
        run_id=run_id,
        created_at=created_at,
        available_at=now + options.delay_ms if options.delay_ms else 0,
        updated_at=created_at,
        priority=options.priority,
        max_attempts=options.max_attempts or config.default_max_attempts or DEFAULT_MAX_ATTEMPTS,
        max_interruptions=max_interruptions(options, config),
        dedupe_key=options.dedupe_key,
        deadline_at=options.deadline_at,
        tenant=options.tenant,
        limit_key=options.limit_key,
    )


def max_interruptions(options: DeliveryOptions | None, config: MailboxConfig) -> int:
    """Return how many interruptions a run survives."""
    chosen = None if options is None else options.max_interruptions
    return config.default_max_interruptions if chosen is None else chosen


def _continuing(activation: RunActivation, run_id: str, mode: RunMode) -> RunActivation:
    """Return the request as one that lets a run go on; that a run woke itself stays told."""
    activation = activation.continuing(run_id)
    return activation.traced(run_mode=mode) if mode is RunMode.INTERNAL_WAKE else activation


def _of_its_run(request: RunActivation, run: RunRecord) -> RunActivation:
    """Return a request that lets a run go on as counted, and tried, where that run was."""
    if run.activation is None:
        return request
    before = run.activation.delivery
    delay_ms = request.delivery.delay_ms
    if run.status is RunStatus.WAITING and request.delivery == DeliveryOptions(delay_ms=delay_ms):
        delivery = replace(before, delay_ms=delay_ms, deadline_at=None, dedupe_key=None)
    elif request.delivery.tenant or request.delivery.limit_key:
        return request
    else:
        delivery = replace(request.delivery, tenant=before.tenant, limit_key=before.limit_key)
    return replace(request, delivery=delivery)


def fresh_decisions(
    run: RunRecord,
    decisions: Sequence[tuple[str, ToolCallResume]],
    kept: Sequence[LiveRunCommand],
    *,
    now: int,
) -> list[tuple[str, ToolCallResume]]:
    """Return which decisions are news to a run at work, for which others are kept; a repeated one is none.

    Raises:
        StaleDecision: a question has another answer already, or its time is over.
    """
    asked = {ticket.tool_call_id: ticket for ticket in run.open_tickets}
    told = {one.ticket.tool_call_id: one.decision for one in run.answered}
    told = {call: decision for call, decision in told.items() if call not in asked}
    told |= {call: decision for command in kept for call, decision in command.decisions}
    fresh: list[tuple[str, ToolCallResume]] = []
    for call, decision in decisions:
        if call in asked:
            _refuse_late(asked[call], now)
        before = told.get(call)
        if before is None:
            fresh.append((call, decision))
        elif before.decision_id != decision.decision_id:
            raise StaleDecision(f"call {call!r} was answered already", value=call)
    return fresh


def _refuse_late(ticket: RunWaitingTicket, now: int) -> None:
    if ticket.goes_on(now):
        raise StaleDecision(
            f"question {ticket.ticket_id!r} timed out, and its run continued without an answer",
            value=ticket.tool_call_id,
            details={"expires_at": ticket.expires_at},
        )


def _answers(run: RunRecord, request: RunActivation, now: int) -> list[AnsweredTicket]:
    """Return which of the run's questions the request answers; a decision that is repeated counts once.

    Raises:
        StaleDecision: A question has another answer, its time is over, or the run asks other questions now.
    """
    found: list[AnsweredTicket] = []
    tickets = run.waiting.tickets if run.waiting is not None else ()
    for call_id, decision in request.decisions:
        if tickets and all(ticket.tool_call_id != call_id for ticket in tickets):
            asked = ", ".join(repr(ticket.tool_call_id) for ticket in run.open_tickets) or "nothing"
            raise StaleDecision(
                f"run {run.run_id} does not ask question {call_id!r} now: it asks {asked}", value=call_id
            )
        for ticket in tickets:
            if ticket.tool_call_id != call_id:
                continue
            before = next((one for one in run.answered if one.ticket == ticket), None)
            if before is None:
                _refuse_late(ticket, now)
                found.append(AnsweredTicket(ticket=ticket, decision=decision))
            elif before.decision.decision_id != decision.decision_id:
                raise StaleDecision(f"question {ticket.ticket_id!r} was answered already", value=call_id)
    return found


def _joined(queued: RunActivationSnapshot, more: RunActivationSnapshot) -> RunActivationSnapshot:
    """Return the queued request with more to read and to decide; each message and decision counts once."""
    known = {resume.decision_id for _, resume in queued.seeded_decisions}
    fresh = tuple(one for one in more.seeded_decisions if one[1].decision_id not in known)
    return replace(
        queued,
        range=more.range,
        trigger_message_ids=tuple(dict.fromkeys((*queued.trigger_message_ids, *more.trigger_message_ids))),
        seeded_decisions=(*queued.seeded_decisions, *fresh),
    )
