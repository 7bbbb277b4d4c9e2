"""What a run did, step by step: from its record, its messages, its log, and the mail of its agent."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from postroom.contracts.errors import CursorExpired
from postroom.contracts.events import CanonicalEvent, EventScope
from postroom.contracts.mail import Agent, Message, Project, Reservation
from postroom.contracts.messages import Json, Role
from postroom.contracts.run_stores import MAX_PAGE, MessageQuery
from postroom.contracts.runs import AnsweredTicket, RunRecord, RunWaitingTicket, Usage
from postroom.contracts.timeline import Attempt, Span
from postroom.dispatch.sinks import CALL, CALL_DONE, MODEL_CALL
from postroom.mail.reservations import in_run
from postroom.mail.service import Mail
from postroom.mail.waking.prompts import messages_named
from postroom.services.runs import RunService, whose
from postroom.stores.mail.access import MailReads

Kind = Literal["message", "wrote", "says", "call", "asked", "failed", "interrupted"]
STEPS: Final = 400
"""Steps of a run that are told: the newest ones."""
_LOOKED_AT: Final = 5_000
"""Entries of a run's log that are looked through for its steps: the newest ones."""
_SENT: Final = 60
_HELD: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that a run did, or that came to it."""

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
    """Who answered a question."""
    approved: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is known of a run beside how it stands."""

    steps: Sequence[Step] = ()
    is_cut: bool = False
    tells_steps: bool = False
    """Whether its runner tells of tool calls and model calls."""
    attempts: Sequence[Attempt] = ()
    usage: Usage = field(default_factory=Usage)
    models: Sequence[str] = ()
    model_ms: int = 0
    tool_ms: int = 0
    held: Sequence[Reservation] = ()


async def story_of(runs: RunService, mail: Mail, run: RunRecord, *, now: int) -> Story:
    """Return what a run did so far.

    Raises:
        StoreError: it could not be read.
    """
    query = MessageQuery(run_id=run.run_id, limit=MAX_PAGE)
    records = await runs.stores.threads.list_message_records(run.thread_id, query)
    triggers = list(run.input.trigger_message_ids if run.input else ())
    named = [one.message.id or "" for one in records if one.message.role is Role.USER]
    prompts = messages_named(triggers)
    wanted = list(dict.fromkeys([*prompts, *messages_named(named)]))
    events = await _logged(runs, run.run_id)
    seen = await mail.store.read(lambda reads: _mail_of(reads, run, wanted, now))
    steps = [
        Step(at=max(one.created_at, run.created_at), kind="message", message=one, is_prompt=one.id in prompts)
        for one in seen.came
    ]
    steps += [Step(at=one.created_at, kind="wrote", message=one) for one in seen.wrote]
    steps += [
        Step(at=one.created_at, kind="says", text=one.message.text())
        for one in records
        if one.message.role is Role.ASSISTANT and one.message.text().strip()
    ]
    calls = _calls(events)
    steps += calls
    steps += [_asked(one) for one in run.answered]
    steps += [_open(one) for one in run.open_tickets]
    steps += [
        Step(
            at=one.ended_at,
            kind="failed" if one.outcome == "failed" else "interrupted",
            text=one.error,
            title=str(number),
        )
        for number, one in enumerate(seen.attempts, start=1)
        if one.outcome in ("failed", "cut_off") and one.ended_at is not None
    ]
    steps.sort(key=lambda one: (one.at, not one.is_prompt))
    model_calls = [one for one in events if one.event_kind == MODEL_CALL]
    return Story(
        steps=steps[-STEPS:],
        is_cut=len(steps) > STEPS,
        tells_steps=bool(calls or model_calls),
        attempts=seen.attempts,
        usage=run.usage,
        models=sorted({str(one.payload.get("model")) for one in model_calls if one.payload.get("model")}),
        model_ms=sum(_number(one.payload.get("duration_ms")) for one in model_calls),
        tool_ms=sum((one.ended_at or one.at) - one.at for one in calls),
        held=seen.held,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mail:
    came: Sequence[Message]
    wrote: Sequence[Message]
    attempts: Sequence[Attempt]
    held: Sequence[Reservation]
    """What the agent holds while its run is open; afterwards what the run has left reserved."""


def _mail_of(reads: MailReads, run: RunRecord, wanted: Sequence[int], now: int) -> _Mail:
    slug, name = whose(run.thread_id)
    project = reads.project(slug)
    agent = None if project is None else reads.agent(project.id, name)
    attempts = reads.attempts_of_runs([run.run_id])
    came = sorted(reads.messages(list(wanted)).values(), key=lambda one: one.id)
    if project is None or agent is None:
        return _Mail(came=came, wrote=(), attempts=attempts, held=())
    return _Mail(
        came=came,
        wrote=_wrote(reads, project, agent, attempts, now),
        attempts=attempts,
        held=reads.live_reservations(project.id, now=now, agent_id=agent.id, limit=_HELD)
        if run.is_open
        else reads.reserved_in(in_run(run.run_id), now=now),
    )


def _wrote(
    reads: MailReads, project: Project, agent: Agent, attempts: Sequence[Attempt], now: int
) -> list[Message]:
    """Return what an agent wrote while a run of it was at work, or as it ended."""
    if not attempts:
        return []
    spans = [(one.began_at, one.ended_at if one.ended_at is not None else now) for one in attempts]
    span = Span(begin=spans[0][0], end=max(end for _, end in spans) + 1)
    found = reads.written(project.id, span, limit=2 * _SENT, agent_id=agent.id)
    ids = [
        one.id
        for one in found
        if one.sender_id == agent.id and any(begin <= one.created_at <= end for begin, end in spans)
    ]
    return sorted(reads.messages(ids[-_SENT:]).values(), key=lambda one: one.id)


async def _logged(runs: RunService, run_id: str) -> list[CanonicalEvent]:
    """Return the entries of a run's log that are steps."""
    scope, events = EventScope.run(run_id), runs.stores.events
    after, found = max(await events.count(scope) - _LOOKED_AT, 0), list[CanonicalEvent]()
    while True:
        try:
            page = await events.list(scope, after=after, limit=MAX_PAGE)
        except CursorExpired:  # older ones are gone, and those behind them were looked at by nobody
            return found
        found += [one for one in page.events if one.event_kind in (CALL, CALL_DONE, MODEL_CALL)]
        if not page.events:
            return found
        after = page.cursor


def _calls(events: Sequence[CanonicalEvent]) -> list[Step]:
    ends = {one.payload.get("id"): one for one in events if one.event_kind == CALL_DONE}
    found = []
    for one in events:
        if one.event_kind != CALL:
            continue
        end = ends.get(one.payload.get("id"))
        found.append(
            Step(
                at=one.created_at,
                kind="call",
                title=str(one.payload.get("name", "")),
                text=shown(one.payload.get("arguments")),
                result="" if end is None else shown(end.payload.get("result")),
                ended_at=None if end is None else end.created_at,
                is_failed=end is not None and end.payload.get("outcome") == "failed",
            )
        )
    return found


def _asked(one: AnsweredTicket) -> Step:
    return Step(
        at=one.ticket.updated_at,
        kind="asked",
        text=one.ticket.question,
        ended_at=one.decision.updated_at,
        by=one.decision.by,
        approved=one.decision.approved,
        result=one.decision.reason or "",
    )


def _open(ticket: RunWaitingTicket) -> Step:
    return Step(at=ticket.updated_at, kind="asked", text=ticket.question)


def shown(value: Json) -> str:
    """Return arguments or a result as a person reads them."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0
