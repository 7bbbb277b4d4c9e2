"""Reconstructs the steps of a run from its record, its messages, its log, and its agent's mail."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from postroom.contracts.events import CanonicalEvent
from postroom.contracts.mail import Agent, Attempt, Message, Project, Reservation, Span
from postroom.contracts.messages import Json, Role
from postroom.contracts.questions import NOBODY, answered_where
from postroom.contracts.run_stores import MAX_PAGE, MessageQuery
from postroom.contracts.runs import RunRecord, RunWaitingTicket, Usage
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import number_of
from postroom.contracts.work import Output
from postroom.dispatch.sinks import CALL, CALL_DONE, MODEL_CALL
from postroom.mail.reservations import in_run
from postroom.mail.waking.prompts import messages_named
from postroom.services.last_lines import newest_events, output_in
from postroom.services.runs import whose
from postroom.services.shown import Surface, surfaces_of
from postroom.stores.store import Transaction

Kind = Literal["message", "wrote", "says", "call", "asked", "failed", "interrupted"]
STEPS: Final = 400
"""Maximum number of steps of a run; only the newest ones are returned."""
_LOOKED_AT: Final = 5_000
"""Number of the newest entries in a run's log that are searched for steps."""
_SENT: Final = 60
_HELD: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An action of a run, or an input that the run received."""

    at: int
    kind: Kind
    title: str = ""
    text: str = ""
    result: str = ""
    ended_at: int | None = None
    is_failed: bool = False
    is_prompt: bool = False
    message: Message | None = None
    by: str = ""
    """The person who answered a question."""
    where: str = ""
    """The interface on which a question was answered."""
    places: Sequence[str] = ()
    """The places at which a question was shown."""
    approved: bool | None = None
    is_answered: bool = False
    """Whether somebody answered the question. If not, it is open or closed, or its time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The steps and messages of a run."""

    steps: Sequence[Step] = ()
    is_cut: bool = False
    prompts: Sequence[Message] = ()
    """The messages that started the run."""
    tells_steps: bool = False
    """Whether the run's runner reports tool calls and model calls."""
    attempts: Sequence[Attempt] = ()
    usage: Usage = field(default_factory=Usage)
    models: Sequence[str] = ()
    model_ms: int = 0
    tool_ms: int = 0
    held: Sequence[Reservation] = ()
    """The agent's reservations. After the end of the run, only unreleased reservations are included."""
    heard_at: int | None = None
    """The time of the newest entry in the run's log, or None before the first one."""
    output: Output = field(default_factory=partial(Output, text=""))
    """The end of the run's output."""


def story_of(tx: Transaction, run: RunRecord) -> Story:
    """Return the steps and messages of a run."""
    query = MessageQuery(run_id=run.run_id)
    records = tx.runs.messages.list(run.thread_id, query, MAX_PAGE)
    named = [record.message.id or "" for record in records if record.message.role is Role.USER]
    prompts = messages_named(run.input.trigger_message_ids if run.input else ())
    wanted = list(dict.fromkeys([*prompts, *messages_named(named)]))
    events, newest, is_cut = newest_events(tx, run.run_id, _LOOKED_AT)
    slug, name = whose(run.thread_id)
    attempts, held = tx.mail.attempts_of_runs([run.run_id]), list[Reservation]()
    project = tx.mail.project(slug)
    agent = None if project is None else tx.mail.agent(project.id, name)
    received = tx.mail.messages(wanted)
    steps = [
        Step(at=max(row.created_at, run.created_at), kind="message", message=row, is_prompt=number in prompts)
        for number, row in sorted(received.items())
    ]
    if project is not None and agent is not None:
        if run.is_open:
            held = tx.mail.live_reservations(project.id, now=tx.now(), agent_id=agent.id, limit=_HELD)
        else:
            held = tx.mail.reserved_in(in_run(run.run_id), now=tx.now())
        steps += _wrote(tx, project, agent, attempts)
    steps += [
        Step(at=record.created_at, kind="says", text=record.message.text())
        for record in records
        if record.message.role is Role.ASSISTANT and record.message.text().strip()
    ]
    calls = _calls(events)
    steps += calls
    places = surfaces_of(tx, run) if run.answered or run.open_tickets else {}
    steps += [_question_step(run, answered.ticket, places, answered.decision) for answered in run.answered]
    steps += [_question_step(run, ticket, places) for ticket in run.open_tickets]
    steps += [
        Step(
            at=row.ended_at,
            kind="failed" if row.outcome == "failed" else "interrupted",
            text=row.error,
            title=str(number),
        )
        for number, row in enumerate(attempts, start=1)
        if row.outcome in ("failed", "cut_off") and row.ended_at is not None
    ]
    steps.sort(key=lambda one: (one.at, not one.is_prompt))
    model_calls = [event for event in events if event.event_kind == MODEL_CALL]
    return Story(
        steps=steps[-STEPS:],
        is_cut=len(steps) > STEPS,
        prompts=[received[number] for number in prompts if number in received],
        tells_steps=bool(calls or model_calls),
        attempts=attempts,
        usage=run.usage,
        models=sorted(
            {str(event.payload.get("model")) for event in model_calls if event.payload.get("model")}
        ),
        model_ms=sum(ms for event in model_calls if isinstance(ms := event.payload.get("duration_ms"), int)),
        tool_ms=sum((call.ended_at or call.at) - call.at for call in calls),
        held=held,
        heard_at=events[-1].created_at if events else None,
        output=output_in(events, newest, is_cut=is_cut),
    )


def _wrote(tx: Transaction, project: Project, agent: Agent, attempts: Sequence[Attempt]) -> list[Step]:
    if not attempts:
        return []
    spans = [
        (attempt.began_at, attempt.ended_at if attempt.ended_at is not None else tx.now())
        for attempt in attempts
    ]
    span = Span(begin=spans[0][0], end=max(end for _, end in spans) + 1)
    ids = [
        message.id
        for message in tx.mail.written(project.id, span, limit=2 * _SENT, agent_id=agent.id)
        if message.sender_id == agent.id and any(begin <= message.created_at <= end for begin, end in spans)
    ]
    written = sorted(tx.mail.messages(ids[-_SENT:]).items())
    return [Step(at=message.created_at, kind="wrote", message=message) for _, message in written]


def _calls(events: Sequence[CanonicalEvent]) -> list[Step]:
    ends = {event.payload.get("id"): event for event in events if event.event_kind == CALL_DONE}
    steps = []
    for entry in events:
        if entry.event_kind != CALL:
            continue
        end = ends.get(entry.payload.get("id"))
        steps.append(
            Step(
                at=entry.created_at,
                kind="call",
                title=str(entry.payload.get("name", "")),
                text=shown(entry.payload.get("arguments")),
                result="" if end is None else shown(end.payload.get("result")),
                ended_at=None if end is None else end.created_at,
                is_failed=end is not None and end.payload.get("outcome") == "failed",
            )
        )
    return steps


def _question_step(
    run: RunRecord,
    ticket: RunWaitingTicket,
    places: Mapping[str, Sequence[Surface]],
    decision: ToolCallResume | None = None,
) -> Step:
    number = number_of(run.run_id, ticket)
    step = Step(
        at=ticket.updated_at,
        kind="asked",
        title=number,
        text=ticket.question,
        places=[place.where for place in places.get(number, ())],
    )
    if decision is None:
        return step
    return replace(
        step,
        ended_at=decision.updated_at,
        by=decision.by,
        where=answered_where(decision),
        approved=decision.approved,
        is_answered=decision.by != NOBODY,
        result=decision.reason or "",
    )


def shown(value: Json) -> str:
    """Return the arguments or the result of a tool call in readable form."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
